//! Programs that check everything that they do, for tests in which servers fail, in Python.

use crate::{Site, eventually};

/// Makes, renames, links, lists, reads and removes small files, which lie in the metadata, until a file says stop.
/// Every operation has to succeed, and everything that was acknowledged has to be there; prints how many operations
/// there were, and how long the longest took.
pub const NAMES: &str = r#"
import os, sys, time
home, stop, worst, count = sys.argv[1], sys.argv[2], 0, 0
def timed(call, *args):
    global worst, count
    begun = time.monotonic()
    try:
        return call(*args)
    except OSError as error:
        print(f'{time.strftime("%T")}: {error}, after {time.monotonic() - begun:.3f} s', file=sys.stderr)
        raise
    finally: worst, count = max(worst, time.monotonic() - begun), count + 1
def write(path, text):
    with open(path, 'w') as f: f.write(text)
def read(path):
    with open(path) as f: return f.read()
timed(os.mkdir, home)
there, turn = {}, 0
while not os.path.exists(stop):
    turn += 1
    name, directory = f'f{turn}', f'{home}/d{turn % 7}'
    if turn <= 7: timed(os.mkdir, directory)
    timed(write, f'{home}/{name}', name)
    timed(os.rename, f'{home}/{name}', f'{directory}/{name}')
    there[f'{directory}/{name}'] = name
    if turn % 3 == 0:
        timed(os.link, f'{directory}/{name}', f'{home}/link{turn}')
        there[f'{home}/link{turn}'] = name
    if turn % 5 == 0:
        gone = next(iter(there))
        timed(os.unlink, gone)
        del there[gone]
    some = list(there)[turn * 7919 % len(there)]
    assert timed(read, some) == there[some], some
    if turn == 20: open(stop + '.begun', 'w').close()
found = {os.path.join(base, name) for base, _, names in os.walk(home) for name in names}
assert found == set(there), found ^ set(there)
for path, text in there.items(): assert timed(read, path) == text, path
print(count, worst)
"#;

/// Writes, overwrites, extends, truncates and reads files of some blocks, until a file says stop; every operation has to
/// succeed, and every file has to have what was written last. Then it says so, and looks at all again each time that it
/// reads a line.
pub const BLOCKS: &str = r#"
import os, random, sys, time
home, stop, count, worst = sys.argv[1], sys.argv[2], 0, 0
random.seed(7)
os.mkdir(home)
files = {}
def timed(call, *args):
    global worst, count
    begun = time.monotonic()
    try:
        return call(*args)
    except OSError as error:
        print(f'{time.strftime("%T")}: {error}, after {time.monotonic() - begun:.3f} s', file=sys.stderr)
        raise
    finally: worst, count = max(worst, time.monotonic() - begun), count + 1
def check(name):
    fd = timed(os.open, f'{home}/{name}', os.O_RDONLY)
    found = bytearray()
    while True:
        part = timed(os.pread, fd, 1 << 20, len(found))
        if not part: break
        found += part
    os.close(fd)
    content = files[name]
    if found != content:
        at = next((i for i, (a, b) in enumerate(zip(found, content)) if a != b), min(len(found), len(content)))
        raise AssertionError(f'{name}: {len(found)} of {len(content)} bytes, other from {at} on')
turn = 0
while not os.path.exists(stop):
    turn += 1
    name = f'f{turn % 12}'
    content = files.setdefault(name, bytearray())
    fd = timed(os.open, f'{home}/{name}', os.O_RDWR | os.O_CREAT)
    what = random.random()
    if what < 0.6:
        offset = random.randrange(0, len(content) + 50000)
        data = random.randbytes(random.choice([1, 100, 5000, 70000, 300000]))
        written = 0
        while written < len(data): written += timed(os.pwrite, fd, data[written:], offset + written)
        if len(content) < offset: content += bytes(offset - len(content))
        content[offset:offset + len(data)] = data
    elif what < 0.75:
        size = random.randrange(0, len(content) + 30000)
        timed(os.ftruncate, fd, size)
        content[size:] = bytes(max(0, size - len(content)))
    elif what < 0.85 and len(content) > 10:
        offset, length = random.randrange(0, len(content) - 1), random.randrange(1, 200000)
        end = min(offset + length, len(content))
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        done = timed(libc.fallocate, fd, 3, ctypes.c_long(offset), ctypes.c_long(end - offset))
        if done == 0: content[offset:end] = bytes(end - offset)
    else:
        timed(os.fsync, fd)
    os.close(fd)
    check(random.choice(list(files)))
    if turn == 30: open(stop + '.begun', 'w').close()
for name in files: check(name)
print('written', count, worst, flush=True)
for line in sys.stdin:
    for name in files: check(name)
    print('the same', flush=True)
"#;

/// Three processes append records to one file, and count in another one under a lock, until a file says stop. Every record
/// has to be there once, in the order of its process, and every count to be counted.
pub const APPENDS: &str = r#"
import fcntl, os, sys, time
home, stop, SIZE = sys.argv[1], sys.argv[2], 3000
os.mkdir(home)
log, counter = f'{home}/log', f'{home}/counter'
with open(counter, 'w') as f: f.write('%08d' % 0)
def work(me, told):
    worst = count = locked = turn = 0
    def timed(call, *args):
        nonlocal worst, count
        begun = time.monotonic()
        try:
            return call(*args)
        except OSError as error:
            print(f'{time.strftime("%T")}: {error}, after {time.monotonic() - begun:.3f} s', file=sys.stderr)
            raise
        finally: worst, count = max(worst, time.monotonic() - begun), count + 1
    fd = timed(os.open, log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    shared = timed(os.open, counter, os.O_RDWR)
    while not os.path.exists(stop):
        record = (b'%d %08d ' % (me, turn)).ljust(SIZE - 1, b'.') + b'\n'
        assert timed(os.write, fd, record) == SIZE
        turn += 1
        if turn % 4 == me:
            timed(fcntl.lockf, shared, fcntl.LOCK_EX)
            value = int(timed(os.pread, shared, 8, 0))
            timed(os.pwrite, shared, b'%08d' % (value + 1), 0)
            timed(fcntl.lockf, shared, fcntl.LOCK_UN)
            locked += 1
        if turn == 20: open(stop + '.begun', 'w').close()
        time.sleep(0.002)
    os.write(told, f'{me} {turn} {locked} {count} {worst}\n'.encode())
ears, mouth = os.pipe()
children = []
for me in range(3):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(me, mouth)
            code = 0
        finally: os._exit(code)
    children.append(pid)
os.close(mouth)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children), 'a process has failed'
said = [line.split() for line in os.read(ears, 10000).decode().splitlines()]
turns = {int(me): int(turn) for me, turn, *_ in said}
with open(log, 'rb') as f: found = f.read()
assert len(found) == SIZE * sum(turns.values()), (len(found) / SIZE, turns)
there = {me: [] for me in turns}
for at in range(0, len(found), SIZE):
    record = found[at:at + SIZE]
    assert record[10:] == b' '.ljust(SIZE - 11, b'.') + b'\n', (at, record[:20])
    there[int(record[:1])].append(int(record[2:10]))
for me, turn in turns.items(): assert there[me] == list(range(turn)), me
with open(counter) as f: counted = int(f.read())
assert counted == sum(int(locked) for _, _, locked, *_ in said), (counted, said)
print(sum(int(count) for *_, count, _ in said), max(float(worst) for *_, worst in said))
"#;

/// Waits until no server has anything to catch up with.
pub fn all_in_step(site: &Site, name: &str) {
    eventually("all servers have caught up", || {
        let status = site.status(name);
        let servers = status["servers"].as_array().expect("servers");
        servers.iter().all(|server| server["state"] == "up" && server["behind"] == 0)
    });
}
