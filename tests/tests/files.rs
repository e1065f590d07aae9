//! What the semantics page promises of files, each in every way of access.

use bivouac_tests::{
    Mounted, Site, python_in_each_access, python_in_each_access_to, python_says, skipped_without_mount,
};

#[test]
fn of_many_who_create_exclusively_one_wins() {
    let script = "
names, ready = [str(i) for i in range(40)], os.pipe()
def race(who):
    os.read(ready[0], 1)
    for name in names:
        made = attempt(os.open, name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        if made != 'EEXIST':
            os.write(made, b'%d' % who); os.close(made)
            os.close(os.open(f'won-{who}', os.O_CREAT | os.O_WRONLY)); os.truncate(f'won-{who}', os.stat(f'won-{who}').st_size + 1)
racers = [child(lambda who=who: race(who)) for who in range(4)]
os.write(ready[1], b'!!!!')
print(join(*racers), sum(os.stat(n).st_size for n in os.listdir('.') if n.startswith('won-')))
print(all(len(open(name).read()) == 1 for name in names))
";
    python_says("exclusive", script, "True 40\nTrue\n");
}

#[test]
fn a_read_is_short_only_at_the_end_and_holes_are_zeros() {
    let script = "
K = 1024
f = os.open('f', os.O_RDWR | os.O_CREAT)
model = bytearray(700 * K + 11)
os.ftruncate(f, len(model))
for at, size in ((0, 10), (15 * K, 40 * K), (100 * K + 1, 3), (250 * K, 16 * K), (700 * K, 11)):
    data = os.urandom(size); os.pwrite(f, data, at); model[at:at + size] = data
wrong = [(at, size) for at in (0, 7, 16 * K, 90 * K, 699 * K, len(model) - 1, len(model), 900 * K)
         for size in (1, 4096, 100 * K, 2000 * K) if os.pread(f, size, at) != model[at:at + size]]
print(wrong, os.read(f, 2000 * K) == model, os.read(f, 1))
";
    python_says("whole-reads", script, "[] True b''\n");
}

#[test]
fn a_write_over_several_servers_may_be_seen_in_parts_and_is_whole_when_it_returns() {
    let script = "
SIZE, ROUNDS = 128 * 1024, 60
f = os.open('f', os.O_RDWR | os.O_CREAT)
os.write(f, b'a' * SIZE)
tell, told = os.pipe(), os.pipe()
def write():
    g = os.open('f', os.O_WRONLY)
    for i in range(ROUNDS):
        os.pwrite(g, b'%c' % (98 + i % 2) * SIZE, 0)
        os.write(tell[1], b'!'); os.read(told[0], 1)
writer = child(write)
bad = 0
for i in range(ROUNDS):
    # Beside the write: of each byte the old or the new value, whatever of the next.
    while not any(__import__('select').select([tell[0]], [], [], 0)):
        seen = os.pread(f, SIZE, 0)
        bad += len(seen) != SIZE or not set(seen) <= {97 if i == 0 else 98 + (i - 1) % 2, 98 + i % 2}
    os.read(tell[0], 1)
    bad += set(os.pread(f, SIZE, 0)) != {98 + i % 2}
    os.write(told[1], b'!')
print(bad, join(writer))
";
    python_says("parts", script, "0 True\n");
}

#[test]
fn appends_of_many_processes_land_whole_once_and_in_order() {
    let script = "
sizes = [20, 100, 5000, 20000, 100000]
def append(who):
    f = os.open('f', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for i in range(40):
        size = sizes[(i + who) % 5]
        assert os.write(f, (b'%d:%04d:%08d:' % (who, i, size)).ljust(size - 1, b'%d' % who) + b'\\n') == size
print(join(*[child(lambda who=who: append(who)) for who in range(4)]))
data, at, seen = open('f', 'rb').read(), 0, {who: [] for who in range(4)}
while at < len(data):
    who, number = int(data[at:at + 1]), int(data[at + 2:at + 6])
    size = sizes[(number + who) % 5]
    one = data[at:at + size]
    assert one == (b'%d:%04d:%08d:' % (who, number, size)).ljust(size - 1, b'%d' % who) + b'\\n', (who, number)
    seen[who].append(number)
    at += size
print([seen[who] == list(range(40)) for who in seen])
# In a mount, up to what the kernel hands on in one request: 256 pages, which need not begin where the data does.
large = 255 << 12 if mounted else 8 << 20
def append_large(who):
    f = os.open('g', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for i in range(3): assert os.write(f, b'%d' % who * large) == large
print(join(*[child(lambda who=who: append_large(who)) for who in range(3)]))
data = open('g', 'rb').read()
print(len(data) // large, all(len(set(data[at:at + large])) == 1 for at in range(0, len(data), large)))
";
    python_says("appends", script, "True\n[True, True, True, True]\nTrue\n9 True\n");
}

#[test]
fn sizes_and_times_are_exact_while_others_write() {
    let script = "
tell, told = os.pipe(), os.pipe()
f = os.open('f', os.O_RDWR | os.O_CREAT)
def write():
    g = os.open('f', os.O_RDWR)
    size = 0
    for i in range(24):
        # Longer than the kernel's clock may lag behind on an idle virtual machine (7 ms were seen), and a request take.
        time.sleep(0.04)
        if i % 4 == 3: size //= 2; os.ftruncate(g, size)
        elif i % 4 == 2: size += 30000; os.pwrite(g, b'x' * 30000, size - 30000)
        else: size += 700; os.pwrite(g, b'y', size - 1)
        os.write(tell[1], struct.pack('q', size)); os.read(told[0], 1)
writer = child(write)
bad, last = 0, 0
for i in range(24):
    size = struct.unpack('q', os.read(tell[0], 8))[0]
    for seen in (os.stat('f'), os.fstat(f)):
        bad += seen.st_size != size or seen.st_mtime_ns <= last
    last = seen.st_mtime_ns
    os.write(told[1], b'!')
print(bad, join(writer))
";
    python_says("exact", script, "0 True\n");
}

#[test]
fn a_write_shows_in_mtime_from_the_clocks_next_tick_on() {
    let script = "
for size in (10, 100000):
    f = os.open('f', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.write(f, b'x' * size)
    os.utime('f', (5, 5))
    print(os.stat('f').st_mtime)
    time.sleep(0.05)
    begin = time.time() - 1
    os.pwrite(f, b'y', 3)
    print(os.fstat(f).st_mtime > begin)
    os.close(f)
    print(os.stat('f').st_mtime > begin)
";
    python_says("tick", script, &"5.0\nTrue\nTrue\n".repeat(2));
}

#[test]
fn two_looks_at_a_file_that_is_open_for_writing_see_one_mtime() {
    let site = Site::new("looks");
    let name = site.up_with(4, &["--block-size", "16K"]);
    let script = "
import subprocess
f = os.open('f', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.write(f, b'x' * 100000)
time.sleep(0.05)
os.pwrite(f, b'y', 20000)
looks = {os.fstat(f).st_mtime_ns for i in range(20)} | {os.stat('f').st_ctime_ns for i in range(20)}
for i in range(3):
    looks.add(int(subprocess.check_output(['python3', '-c', 'import os; print(os.stat(\"f\").st_mtime_ns)'])))
print(len(looks))
";
    for (access, said) in python_in_each_access_to(&site, &name, script) {
        assert_eq!(said, "1\n", "{access}");
    }
}

#[test]
fn an_unlinked_file_stays_for_whom_it_was_handed_on_to_and_its_storage_is_then_free() {
    let site = Site::new("handed-on");
    let name = site.up_with(4, &["--block-size", "16K"]);
    let script = "
f = os.open('f', os.O_RDWR | os.O_CREAT)
os.write(f, b'x' * 100000)
go = os.pipe()
os.set_inheritable(f, True); os.set_inheritable(go[0], True)
def stay():
    os.close(go[1])
    program = f'import os; os.read({go[0]}, 1); print(os.pread({f}, 9, 99995), os.fstat({f}).st_nlink, os.write({f}, b\"more\"))'
    os.execvp('python3', ['python3', '-c', program])
other = child(stay)
os.close(f); os.unlink('f')
print(attempt(os.stat, 'f'), os.listdir('.'))
os.close(go[1])
print(join(other))
";
    for (access, said) in python_in_each_access_to(&site, &name, script) {
        assert_eq!(said, "ENOENT []\nb'xxxxx' 0 4\nTrue\n", "{access}");
        let stored = || {
            let status = site.status(&name);
            let servers = status["servers"].as_array().expect("servers").iter();
            servers.map(|server| server["stored"].as_u64().expect("bytes")).sum::<u64>()
        };
        bivouac_tests::eventually("its storage is free", || stored() == 0);
    }
}

#[test]
fn mappings_are_served_as_far_as_each_access_can() {
    let script = "
f = os.open('f', os.O_RDWR | os.O_CREAT)
data = os.urandom(100000); os.write(f, data)
private = mmap.mmap(f, 100000, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
private[:3] = b'abc'
print(private[3:] == data[3:], os.pread(f, 3, 0) == data[:3])
print(mmap.mmap(f, 100000, mmap.MAP_SHARED, mmap.PROT_READ)[:] == data)
print(mmap.mmap(f, 5000, mmap.MAP_SHARED, mmap.PROT_READ, offset=16384)[:] == data[16384:21384])
for at, size in ((16384, 16384), (0, 100000)):
    shared = attempt(mmap.mmap, f, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=at)
    if shared == 'ENODEV': print(shared); continue
    shared[5:8] = b'xyz'
    shared.flush()
    print(os.pread(f, 3, at + 5)); os.pwrite(f, b'back', at + 5); print(shared[5:9])
# What a mapping has put into a hole is passed over by nobody, written back or not.
hole = os.open('hole', os.O_RDWR | os.O_CREAT)
os.ftruncate(hole, 200000)
if mounted:
    kept = mmap.mmap(hole, 200000)
    kept[100000:100003] = b'new'
else: os.pwrite(hole, b'new', 100000)
print(os.lseek(hole, 0, os.SEEK_DATA) <= 100000, 3 in [len(os.pread(hole, 9, 100000).strip(b'\\0'))])
";
    for (access, said) in python_in_each_access("mappings", script) {
        let wide = if access == "preload" { "ENODEV\n" } else { "b'xyz'\nb'back'\n" };
        let expected = format!("True True\nTrue\nTrue\nb'xyz'\nb'back'\n{wide}True True\n");
        assert_eq!(said, expected, "{access}");
    }
}

#[test]
fn a_mapping_shows_how_the_file_grows_or_is_refused() {
    // Blocks are of 16 KiB.
    let script = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
RW, R, SHARED, PRIVATE = 3, 1, 1, 2
def grown(length, protection, flags):
    f = os.open('g', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.pwrite(f, b'a' * 8192, 0)
    at = libc.mmap(None, length, protection, flags, f, 0)
    if at == ctypes.c_void_p(-1).value: return print(errno.errorcode[ctypes.get_errno()])
    os.pwrite(f, b'b' * 65536, 8192)
    if flags == SHARED and protection == RW: ctypes.memmove(at + length - 4, b'mine', 4)
    shown = ctypes.string_at(at, 1), ctypes.string_at(at + length - 4, 4) if flags == SHARED else None
    print(*shown, os.pread(f, 4, length - 4))
grown(16384, RW, SHARED)
grown(16384, R, SHARED)
grown(65536, RW, SHARED)
grown(65536, R, SHARED)
grown(65536, R, PRIVATE)
s = os.open('s', os.O_RDWR | os.O_CREAT)
os.write(s, b'small')
mmap.mmap(s, 5)[:1] = b'S'
print(os.pread(s, 9, 0))
f = os.open('g', os.O_RDWR)
at = libc.mmap(None, 65536, R, SHARED, f, 0)
print(ctypes.string_at(at + 65532, 4), libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(65536), RW), ctypes.get_errno() == errno.EACCES)
";
    for (access, said) in python_in_each_access("growing", script) {
        let one = "b'a' b'mine' b'mine'\nb'a' b'bbbb' b'bbbb'\n";
        let (wide, made_writable) =
            if access == "preload" { ("ENODEV\nENODEV\n", "-1 True\n") } else { (one, "0 False\n") };
        assert_eq!(
            said,
            format!("{one}{wide}b'a' None b'bbbb'\nb'Small'\nb'bbbb' {made_writable}"),
            "{access}"
        );
    }
}

#[test]
fn when_the_storage_is_full_counts_and_sizes_agree_and_removing_makes_room() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("full");
    let small = Mounted::new(site.path("small"), "size=48m");
    let name = site.up_with(2, &["--block-size", "64K", "--storage", &small.path().to_string_lossy()]);
    let script = "
def fill(f):
    wrote = 0
    for i in range(1000):
        count = attempt(os.write, f, b'%c' % (97 + i % 26) * 700000)
        if isinstance(count, str): return wrote, count
        wrote += count
f = os.open('f', os.O_RDWR | os.O_CREAT)
wrote, error = fill(f)
print(error, os.fstat(f).st_size == wrote, wrote > 10 << 20)
# What is said to be there is there.
print(all(set(os.pread(f, 1000, at)) == {97 + at // 700000 % 26} for at in range(0, wrote - 1000, 700000)))
print(error == attempt(os.pwrite, f, b'x' * 1000000, wrote + 10000000), os.fstat(f).st_size == wrote)
print(attempt(os.pwrite, f, b'over', 10), os.pread(f, 4, 10))
os.ftruncate(f, 1000000)
print(os.pwrite(f, b'again' * 100000, 1000000), os.fstat(f).st_size)
fill(f)
os.close(f); os.unlink('f')
g = os.open('g', os.O_RDWR | os.O_CREAT)
for i in range(100):
    if attempt(os.pwrite, g, b'z' * 5000000, 0) == 5000000: break
    time.sleep(0.1)
print(os.fstat(g).st_size)
";
    let expected = "ENOSPC True True\nTrue\nTrue True\n4 b'over'\n500000 1500000\n5000000\n";
    for (access, said) in python_in_each_access_to(&site, &name, script) {
        assert_eq!(said, expected, "{access}");
    }
    site.bivouac(["down", &name]).ok();
}
