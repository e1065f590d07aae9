//! The programs of the load, in Python.
//!
//! Each is given a directory to work in, and a file that says stop when it exists. Errors are failures, unless the test
//! says that they have to be expected for a while: it writes their numbers to a file beside that one ([`super::Load::excuse`]). Then
//! the operation is repeated until it succeeds, and what it did the first time is compared with what it may have done:
//! after EIO, all or nothing or a part; after ENOSPC, nothing, or a part of what was to be written.

/// What all programs begin with.
macro_rules! program {
    ($body:literal) => {
        concat!(
            r#"
import errno, os, sys, time
home, stop, worst, count = sys.argv[1], sys.argv[2], 0, 0
def excused(error):
    try:
        with open(stop + '.excused') as f: return str(error.errno) in f.read().split()
    except FileNotFoundError: return False
def tell(call, what, begun):
    name, took, now = getattr(call, 'name', call.__name__), time.monotonic() - begun, time.time()
    at = time.strftime('%T', time.gmtime(now)) + f'.{int(now % 1 * 1000):03}'
    print(f'{at}: {name}: {what}, after {took:.3f} s', file=sys.stderr)
def once(call, *args):
    # One attempt: what it returned, or the error, if the test has said that there may be some.
    global worst, count
    begun = time.monotonic()
    try:
        return call(*args)
    except OSError as error:
        if excused(error): return error
        tell(call, error, begun)
        raise
    finally:
        worst, count = max(worst, time.monotonic() - begun), count + 1
        if time.monotonic() - begun > 2: tell(call, 'done', begun)
def timed(call, *args, done=None):
    # Until it succeeds. An attempt that failed with EIO may have been carried out: then another one says `done`.
    unsure = False
    def attempt():
        try: return call(*args)
        except OSError as error:
            if unsure and error.errno == done: return None
            raise
    attempt.name = f'{call.__name__} {repr(args)[:60]}'
    while True:
        result = once(attempt)
        if not isinstance(result, OSError): return result
        unsure = unsure or result.errno == errno.EIO
        time.sleep(0.05)
"#,
            $body
        )
    };
}

/// Makes, renames, links, lists, reads and removes small files, which lie in the metadata, until a file says stop.
/// Every operation has to succeed, and everything that was acknowledged has to be there; prints how many operations
/// there were, and how long the longest took.
pub const NAMES: &str = program!(
    r#"
def write(path, text):
    with open(path, 'w') as f: f.write(text)
def read(path):
    with open(path) as f: return f.read()
timed(os.mkdir, home, done=errno.EEXIST)
there, turn = {}, 0
while not os.path.exists(stop):
    turn += 1
    name, directory = f'f{turn}', f'{home}/d{turn % 7}'
    if turn <= 7: timed(os.mkdir, directory, done=errno.EEXIST)
    timed(write, f'{home}/{name}', name)
    timed(os.rename, f'{home}/{name}', f'{directory}/{name}', done=errno.ENOENT)
    there[f'{directory}/{name}'] = name
    if turn % 3 == 0:
        timed(os.link, f'{directory}/{name}', f'{home}/link{turn}', done=errno.EEXIST)
        there[f'{home}/link{turn}'] = name
    if turn % 5 == 0:
        gone = next(iter(there))
        timed(os.unlink, gone, done=errno.ENOENT)
        del there[gone]
    some = list(there)[turn * 7919 % len(there)]
    assert timed(read, some) == there[some], some
    if turn == 20: open(stop + '.begun', 'w').close()
found = {os.path.join(base, name) for base, _, names in os.walk(home) for name in names}
assert found == set(there), found ^ set(there)
for path, text in there.items(): assert timed(read, path) == text, path
print(count, worst)
"#
);

/// Writes, overwrites, extends, truncates and reads files of some blocks, until a file says stop; every operation has to
/// succeed, and every file has to have what was written last. Then it says so, and looks at all again each time that it
/// reads a line.
pub const BLOCKS: &str = program!(
    r#"
import collections, ctypes, random, time
random.seed(7)
os.mkdir(home)
# What was done last to each file, and in which change each 4 KiB of it got the bytes with this hash.
files, done, made = {}, collections.defaultdict(lambda: collections.deque(maxlen=8)), {}
libc = ctypes.CDLL(None, use_errno=True)
def punch(fd, offset, length):
    if libc.fallocate(fd, 3, ctypes.c_long(offset), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def content_of(name):
    fd = timed(os.open, f'{home}/{name}', os.O_RDONLY)
    found = bytearray()
    while True:
        part = timed(os.pread, fd, 1 << 20, len(found))
        if not part: break
        found += part
    os.close(fd)
    return found
def check(name):
    found, content = content_of(name), files[name]
    if found != content:
        wrong = difference(name, found, content)
        time.sleep(5)
        again = difference(name, content_of(name), content)
        raise AssertionError(f'{name}, in change {turn}: {wrong}; then {again}; last changes {list(done[name])}')
def difference(name, found, content):
    # The stretches that differ, and of which change they are instead.
    wrong = []
    for at in range(0, max(len(found), len(content)), 4096):
        there, wanted = bytes(found[at:at + 4096]), bytes(content[at:at + 4096])
        if there == wanted: continue
        what = [made.get((name, at, hash(bytes(part)))) for part in (there, wanted)]
        what[0] = 'zeros' if not any(there) else what[0]
        if wrong and wrong[-1][1] == at and wrong[-1][2:] == what: wrong[-1][1] = at + 4096
        else: wrong.append([at, at + 4096] + what)
    return f'{len(found)} of {len(content)} bytes, wrong from, to, of change, not of: {wrong}'
turn = 0
while not os.path.exists(stop):
    turn += 1
    name = f'f{turn % 12}'
    content = files.setdefault(name, bytearray())
    fd = timed(os.open, f'{home}/{name}', os.O_RDWR | os.O_CREAT)
    what, old, this = random.random(), bytes(content), 'synced'
    if what < 0.6:
        offset = random.randrange(0, len(content) + 50000)
        data = random.randbytes(random.choice([1, 100, 5000, 70000, 300000]))
        written = 0
        while written < len(data): written += timed(os.pwrite, fd, data[written:], offset + written)
        if len(content) < offset: content += bytes(offset - len(content))
        content[offset:offset + len(data)] = data
        this = f'wrote {len(data)} at {offset}'
    elif what < 0.75:
        size = random.randrange(0, len(content) + 30000)
        timed(os.ftruncate, fd, size)
        content[size:] = bytes(max(0, size - len(content)))
        this = f'cut to {size}'
    elif what < 0.85 and len(content) > 10:
        offset, length = random.randrange(0, len(content) - 1), random.randrange(1, 200000)
        end = min(offset + length, len(content))
        timed(punch, fd, offset, end - offset)
        content[offset:end] = bytes(end - offset)
        this = f'freed {end - offset} at {offset}'
    else:
        timed(os.fsync, fd)
    done[name].append(f'{turn}: {this}, {len(old)} before')
    for at in range(0, len(content), 4096):
        there = bytes(content[at:at + 4096])
        if there != old[at:at + 4096]: made[name, at, hash(there)] = turn
    os.close(fd)
    check(random.choice(list(files)))
    if turn == 30: open(stop + '.begun', 'w').close()
for name in files: check(name)
print('written', count, worst, flush=True)
for line in sys.stdin:
    for name in files: check(name)
    print('the same', flush=True)
"#
);

/// Makes two files longer and shorter in turns, until a file says stop. Each time they have to be as long as they were made,
/// and to contain what was written. Prints the same as the first.
pub const LENGTHS: &str = program!(
    r#"
import random
random.seed(11)
os.mkdir(home)
files, turn = {}, 0
def check(name):
    with open(f'{home}/{name}', 'rb') as f: found = f.read()
    assert len(found) == len(files[name]), f'{name} has {len(found)} bytes instead of {len(files[name])} in turn {turn}'
    assert found == files[name], f'the content of {name} in turn {turn}'
while not os.path.exists(stop):
    turn += 1
    name = f'f{turn // 2 % 2}'
    content = files.setdefault(name, bytearray())
    fd = timed(os.open, f'{home}/{name}', os.O_RDWR | os.O_CREAT)
    if turn % 2:
        data, written = random.randbytes(random.randrange(600000)), 0
        while written < len(data): written += timed(os.pwrite, fd, data[written:], written)
        content[:len(data)] = data
    else:
        size = random.randrange(len(content) + 1)
        timed(os.ftruncate, fd, size)
        del content[size:]
    os.close(fd)
    check(name)
    if turn == 30: open(stop + '.begun', 'w').close()
print(count, worst)
"#
);

/// Three processes append records to one file, and count in another one under a lock, until a file says stop. Every record
/// has to be there once, in the order of its process, and every count to be counted. Of a record whose append failed, or
/// was cut short, a part may be there, or zeros in its place.
pub const APPENDS: &str = program!(
    r#"
import fcntl, json
SIZE = 3000
os.mkdir(home)
log, counter = f'{home}/log', f'{home}/counter'
with open(counter, 'w') as f: f.write('%08d' % 0)
def record(me, turn): return (b'%d %08d ' % (me, turn)).ljust(SIZE - 1, b'.') + b'\n'
def work(me):
    locked, turn, torn = 0, 0, {}
    fd = timed(os.open, log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    shared = timed(os.open, counter, os.O_RDWR)
    while not os.path.exists(stop):
        written = once(os.write, fd, record(me, turn))
        if isinstance(written, OSError): torn[turn] = 0
        elif written < SIZE: torn[turn] = written
        turn += 1
        if turn % 4 == me:
            timed(fcntl.lockf, shared, fcntl.LOCK_EX)
            value = int(timed(os.pread, shared, 8, 0))
            timed(os.pwrite, shared, b'%08d' % (value + 1), 0)
            timed(fcntl.lockf, shared, fcntl.LOCK_UN)
            locked += 1
        if turn == 20: open(stop + '.begun', 'w').close()
        time.sleep(0.05 if turn - 1 in torn else 0.002)
    with open(f'{stop}.{me}', 'w') as f: json.dump([turn, torn, locked, count, worst], f)
children = []
for me in range(3):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(me)
            code = 0
        finally: os._exit(code)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children), 'a process has failed'
said = [json.load(open(f'{stop}.{me}')) for me in range(3)]
with open(log, 'rb') as f: found = f.read()
torn = [{int(turn): length for turn, length in lengths.items()} for _, lengths, *_ in said]
turns, next_turn, at, parts, first = [turn for turn, *_ in said], [0, 0, 0], 0, 0, None
HEAD = len(record(0, 0).rstrip(b'.\n'))
def may_be_missing(me, turn): return torn[me].get(turn, SIZE) < HEAD
def begins(at):
    # Whose record, of which turn, begins here.
    for me in range(3):
        for turn in range(next_turn[me], turns[me]):
            if found.startswith(record(me, turn)[:HEAD], at): return me, turn
            if not may_be_missing(me, turn): break
while at < len(found):
    whose = begins(at)
    if whose:
        me, turn = whose
        length = max(torn[me].get(turn, SIZE), HEAD)
        assert found.startswith(record(me, turn)[:length], at), (me, turn, at, found[at:at + 20])
        next_turn[me], at = turn + 1, at + length
    else:
        # More of one that was torn, or zeros.
        assert found[at] in b'\0 .\n0123456789', (at, found[at:at + 20])
        first = first or (at, found[at:at + 20], next_turn.copy())
        at, parts = at + 1, parts + 1
assert parts <= SIZE * sum(map(len, torn)), (len(found), parts, torn, turns, next_turn, first)
for me in range(3):
    missing = [turn for turn in range(next_turn[me], turns[me]) if not may_be_missing(me, turn)]
    assert not missing, (me, missing[:10])
print(f'{sum(map(len, torn))} appends failed or were cut short, and left {parts} bytes', file=sys.stderr)
with open(counter) as f: counted = int(f.read())
assert counted == sum(locked for _, _, locked, *_ in said), (counted, [locked for _, _, locked, *_ in said])
print(sum(done for *_, done, _ in said), max(longest for *_, longest in said))
"#
);

/// Writes and syncs small files in many directories, whose shards all servers share; tells like the others.
pub const SYNCS: &str = program!(
    r#"
os.mkdir(home)
there, turn = {}, 0
for number in range(40): os.mkdir(f'{home}/d{number}')
while not os.path.exists(stop):
    path, data = f'{home}/d{turn % 40}/f{turn % 1000}', str(turn).encode()
    fd = timed(os.open, path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    timed(os.write, fd, data)
    timed(os.fsync, fd)
    timed(os.close, fd)
    turn, there[path] = turn + 1, data
    if turn == 50: open(stop + '.begun', 'w').close()
for path, data in there.items():
    with open(path, 'rb') as f: assert f.read() == data, path
print(count, worst)
"#
);
