//! Errors that POSIX names, each the same as on a local directory, or as the documentation says.

use bivouac_tests::{Site, same_as_local};

const ATTEMPT: &str = r"
def attempt(what, f, *args, **more):
    try:
        print(what, f(*args, **more))
    except OSError as e:
        print(what, errno.errorcode[e.errno])
";

/// Runs a Python script in the work directory.
fn python(name: &str, script: &str) -> String {
    same_as_local(
        name,
        &format!("python3 -B - \"$S\" <<'END'\nimport errno, os, sys\n{ATTEMPT}{script}\nEND"),
    )
}

#[test]
fn links_that_lead_in_circles_or_too_far_are_eloop() {
    let script = r"
os.symlink('b', 'a')
os.symlink('a', 'b')
os.symlink('self/x', 'self')
for f in (os.stat, os.listdir, os.chdir, os.readlink):
    attempt(('circle', f.__name__), f, 'a')
attempt('through', os.stat, 'self/y')
attempt('open', os.open, 'a', os.O_RDONLY)
attempt('create', os.open, 'a', os.O_WRONLY | os.O_CREAT, 0o644)
attempt('exclusive', os.open, 'a', os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
attempt('nofollow', os.open, 'a', os.O_RDONLY | os.O_NOFOLLOW)
attempt('truncate', os.truncate, 'a', 0)
attempt('chmod', os.chmod, 'a', 0o600)
attempt('rename', os.rename, 'a', 'c')
attempt('link', os.link, 'c', 'hard', follow_symlinks=False)
open('end', 'w').close()
os.symlink('end', 'l1')
for i in range(2, 45):
    os.symlink(f'l{i - 1}', f'l{i}')
for i in (1, 39, 40, 41, 44):
    attempt(('chain', i), lambda: os.stat(f'l{i}').st_size)";
    python("eloop", script);
}

#[test]
fn directories_are_neither_emptied_nor_read_nor_replaced_unasked() {
    let script = r"
os.makedirs('full/inner')
open('full/file', 'w').close()
os.mkdir('empty')
open('file', 'w').close()
attempt('rmdir full', os.rmdir, 'full')
attempt('rmdir file', os.rmdir, 'file')
attempt('rmdir dot', os.rmdir, 'full/.')
attempt('rmdir dotdot', os.rmdir, 'full/inner/..')
attempt('unlink dir', os.unlink, 'empty')
attempt('rename over full', os.rename, 'empty', 'full')
attempt('rename file over dir', os.rename, 'file', 'empty')
attempt('rename dir over file', os.rename, 'empty', 'file')
attempt('rename into itself', os.rename, 'full', 'full/inner/x')
attempt('write dir', os.open, 'empty', os.O_WRONLY)
attempt('create dir', os.open, 'empty', os.O_RDONLY | os.O_CREAT)
attempt('truncate dir', os.truncate, 'empty', 0)
d = os.open('empty', os.O_RDONLY)
attempt('read dir', os.read, d, 1)
attempt('write dirfd', os.write, d, b'x')
attempt('ftruncate dirfd', os.ftruncate, d, 0)
attempt('link dir', os.link, 'empty', 'other')
attempt('slash', os.open, 'new/', os.O_WRONLY | os.O_CREAT)
attempt('below file', os.mkdir, 'file/x')
attempt('over empty', os.rename, 'empty', 'full/inner')";
    python("directories", script);
}

#[test]
fn names_do_not_cross_between_the_mount_and_the_rest() {
    let site = Site::new("exdev");
    let deployment = site.up(2);
    let script = r"
import errno, os
outside = os.environ['S']
os.chdir('/bivouac')
def attempt(f, *args, **more):
    try:
        return f(*args, **more)
    except OSError as e:
        return errno.errorcode[e.errno]
open('f', 'w').close()
open(outside + '/g', 'w').close()
print(attempt(os.rename, 'f', outside + '/f'), attempt(os.rename, outside + '/g', 'g'))
print(attempt(os.link, 'f', outside + '/f'), attempt(os.link, outside + '/g', 'g'))
print(attempt(os.rename, 'absent', outside + '/f'), attempt(os.link, outside + '/absent', 'g'))
fd = os.open('.', os.O_TMPFILE | os.O_RDWR)
# Python follows links only with a directory's descriptor.
root = os.open('/', os.O_RDONLY)
print(attempt(os.link, f'/proc/self/fd/{fd}', outside + '/t', src_dir_fd=root))
print(os.listdir('.'), sorted(os.listdir(outside)))";
    let scratch = site.path("scratch");
    std::fs::create_dir(&scratch).expect("a directory");
    let script = format!("S={} python3 -B - <<'END'\n{script}\nEND", scratch.display());
    let out = site.sh(&deployment, &script).ok();
    assert_eq!(out, "EXDEV EXDEV\nEXDEV EXDEV\nENOENT ENOENT\nEXDEV\n['f'] ['g']\n");
}

#[test]
fn a_path_through_a_descriptor_goes_on_only_from_a_directory() {
    let script = r"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.realpath.restype = ctypes.c_char_p
here = os.getcwd()
os.mkdir('d')
open('f', 'w').close()
open('d/f', 'w').close()
for flags in (os.O_RDONLY, os.O_PATH):
    for name in ('f', 'd'):
        fd = os.open(name, flags)
        path = f'/proc/self/fd/{fd}'
        attempt('open', lambda: os.close(os.open(path + '/f', os.O_RDONLY)))
        attempt('slash', lambda: bool(os.stat(path + '/')))
        attempt('dev', lambda: bool(os.stat(f'/dev/fd/{fd}/f')))
        attempt('mkdir', os.mkdir, path + '/m')
        attempt('rmdir', os.rmdir, path + '/m')
        attempt('readlink', os.readlink, path + '/none')
        attempt('list', lambda: sorted(os.listdir(path)))
        attempt('chdir', os.chdir, path)
        os.chdir(here)
        print(os.path.basename(libc.realpath(path.encode(), None)))
os.mkdir('gone')
open('also', 'w').close()
opened = [os.open(name, os.O_RDONLY) for name in ('gone', 'also')]
os.rmdir('gone')
os.unlink('also')
for fd in opened:
    print(libc.realpath(b'/proc/self/fd/%d' % fd, None), errno.errorcode[ctypes.get_errno()])
";
    let said = python("through-descriptors", script);
    assert_eq!(said.matches("ENOTDIR").count(), 16, "{said}");
}

#[test]
fn the_limit_on_file_sizes_is_efbig_after_sigxfsz() {
    let script = r"
import resource, signal
signals = []
signal.signal(signal.SIGXFSZ, lambda number, frame: signals.append(number))
fd = os.open('f', os.O_RDWR | os.O_CREAT)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000000, resource.RLIM_INFINITY))
def told(what, f, *args):
    before = len(signals)
    attempt(what, f, *args)
    print(len(signals) - before, os.fstat(fd).st_size)
told('reach', os.pwrite, fd, b'x' * 2000, 999000)
told('at', os.pwrite, fd, b'x', 1000000)
told('nothing', os.pwrite, fd, b'', 1000000)
told('beyond', os.pwrite, fd, b'x', 5000000)
told('below', os.pwrite, fd, b'x' * 10, 100)
told('grow', os.ftruncate, fd, 1000001)
told('grow by name', os.truncate, 'f', 1000001)
told('allocate', os.posix_fallocate, fd, 0, 1000001)
told('cut', os.ftruncate, fd, 999999)
appending = os.open('f', os.O_WRONLY | os.O_APPEND)
told('append', os.write, appending, b'abc')
told('append more', os.write, appending, b'abc')
told('vector', os.pwritev, fd, [b'a' * 10, b'b' * 10], 999985)
small = os.open('small', os.O_RDWR | os.O_CREAT)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
attempt('small', os.write, small, b'123456789012')
attempt('small again', os.write, small, b'123456789012')
attempt('read', os.pread, small, 100, 0)
# A file that is longer already may be cut and read, and written below the limit.
told('longer', os.pwrite, fd, b'x', 5)
told('cut longer', os.ftruncate, fd, 500000)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
told('no limit', os.pwrite, fd, b'x', 5000000)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.pwrite(fd, b'x', 100)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
sys.stdout.flush()
# The limit goes along through exec.
os.execvp('python3', ['python3', '-B', '-c', '''
import os, errno
fd = os.open('late', os.O_RDWR | os.O_CREAT)
print(os.write(fd, b'x' * 100))
try:
    os.write(fd, b'y')
except OSError as e:
    print(errno.errorcode[e.errno])
'''])";
    python("fsize", script);
}

#[test]
fn what_is_not_offered_says_so() {
    let site = Site::new("not-offered");
    let deployment = site.up(2);
    let script = r"
import ctypes, errno, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)
os.chdir('/bivouac')
a = os.open('a', os.O_RDWR | os.O_CREAT)
b = os.open('b', os.O_RDWR | os.O_CREAT)
os.write(a, b'x' * 2000000)
def fallocate(mode):
    call = libc.fallocate(a, mode, ctypes.c_long(0), ctypes.c_long(65536))
    return 'ok' if call == 0 else errno.errorcode[ctypes.get_errno()]
print([fallocate(mode) for mode in (0x08, 0x20, 0x40, 0x02, 0x04)])
try:
    fcntl.ioctl(b, 0x40049409, a)
except OSError as e:
    print(errno.errorcode[e.errno])
print(os.fstat(a).st_size, os.fstat(b).st_size)";
    let out = site.sh(&deployment, &format!("python3 -B - <<'END'\n{script}\nEND")).ok();
    let expected = "['ENOTSUP', 'ENOTSUP', 'ENOTSUP', 'ENOTSUP', 'ENOTSUP']\nENOTSUP\n2000000 0\n";
    assert_eq!(out, expected);
    // Programs that can do without fall back; those that were told not to, fail.
    site.sh(&deployment, "cd /bivouac && cp --reflink=auto a copy && cmp a copy").ok();
    let refused = site.sh(&deployment, "cd /bivouac && cp --reflink=always a never");
    assert!(refused.code == 1 && refused.err.contains("not supported"), "{refused:?}");
}

#[test]
fn times_are_set_left_and_kept_as_asked() {
    let script = r"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2
def set_times(name, atime, mtime):
    times = (ctypes.c_long * 4)(*atime, *mtime)
    return libc.utimensat(-100, name.encode(), times, 0)
open('f', 'w').write('some text')
os.mkdir('d')
for name in ('f', 'd'):
    print(set_times(name, (11, 22), (33, 44)))
    s = os.stat(name)
    print(s.st_atime_ns, s.st_mtime_ns)
    print(set_times(name, (0, OMIT), (55, 66)))
    s = os.stat(name)
    print(s.st_atime_ns, s.st_mtime_ns)
    before = s.st_ctime_ns
    print(set_times(name, (0, OMIT), (0, OMIT)), os.stat(name).st_ctime_ns == before)
    print(set_times(name, (77, 0), (0, NOW)))
    s = os.stat(name)
    print(s.st_atime_ns, s.st_mtime_ns > 10**18)
    print(set_times(name, (0, 10**9), (0, 0)))
for size in (0, 10, 100000):
    open('cut', 'wb').write(b'x' * size)
    os.utime('cut', (5, 5))
    open('cut', 'wb').close()
    print(os.stat('cut').st_mtime > 10**6, os.stat('cut').st_size)
attempt('negative', os.utime, 'f', ns=(-5 * 10**9, -10**9 + 3))
print(os.stat('f').st_mtime_ns)";
    python("times", script);
}

#[test]
fn errors_come_in_the_order_in_which_linux_finds_them() {
    let script = r"
def attempt(call, *args, **more):
    try:
        call(*args, **more)
        print('done')
    except OSError as e:
        print(errno.errorcode[e.errno])
long, flags = 'n' * 256, os.O_RDONLY
os.mkdir('d'); os.mkdir('d/e'); open('f', 'w').close(); os.symlink('f', 'd/link')
for to in ('d', 'd/', 'f/', 'absent/', 'absent', long):
    attempt(os.link, 'd', to)
for to in ('d/', 'f/', 'absent/'):
    attempt(os.symlink, 'x', to)
    attempt(os.unlink, to)
for path in ('d', 'd/', '.', 'd/..'):
    attempt(os.open, path, flags | os.O_TRUNC)
attempt(os.open, long + '/', flags | os.O_CREAT)
pairs = [('absent/', long + '/'), (long, '.'), (long, 'f'), ('f/', 'f/'), ('f', 'absent/'), ('d', 'd/link/'),
         ('d', 'd/e/new'), ('f', 'd/..'), ('f/', 'd'), ('d/e', 'd'), ('d/link', 'd'), ('d', 'f')]
for pair in pairs:
    attempt(os.rename, *pair)
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def renameat2(a, b, how):
    done = libc.renameat2(-100, a.encode(), -100, b.encode(), how)
    print(how, a[:9], b[:9], 'done' if done == 0 else errno.errorcode[ctypes.get_errno()])
for a, b in (('f/', 'f/'), ('f', '.'), ('absent', 'd'), ('f', 'absent/'), ('f', 'd/'), ('d', 'd/e'), ('d/e', 'd')):
    renameat2(a, b, 1)
    if (a, b) != ('f', 'd/'):
        renameat2(a, b, 2)
fd = os.open('f', flags)
print(libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(0)), errno.errorcode[ctypes.get_errno()])
print(libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(1)), errno.errorcode[ctypes.get_errno()])
omit = ((1 << 30) - 2)
class Time(ctypes.Structure):
    _fields_ = [('seconds', ctypes.c_long), ('nanoseconds', ctypes.c_long)]
print(libc.utimensat(-100, b'absent', (Time * 2)(Time(0, omit), Time(0, omit)), 0))";
    python("error-order", script);
}

#[test]
fn a_write_shows_in_mtime_also_after_a_later_change_of_the_inode() {
    let script = r"
import time
f = open('f', 'wb', buffering=0)
f.write(b'x' * 10000)
os.utime('f', (1, 1))
print(os.stat('f').st_mtime)
time.sleep(0.05)
f.write(b'y')
time.sleep(0.05)
os.chmod('f', 0o600)
print(time.time() - os.stat('f').st_mtime < 3600)
os.utime('f', (1, 1))
os.chmod('f', 0o644)
print(os.stat('f').st_mtime)
f.close()
print(os.stat('f').st_mtime)";
    python("mtime-later", script);
}

#[test]
fn a_directory_that_another_process_moved_is_not_found_by_dots_at_its_end() {
    let script = r"
import subprocess
os.makedirs('d/e')
def look():
    for path in ('d/.', 'd/e/..', 'd/e/.', 'd/..'):
        for call in (os.stat, os.listdir, lambda p: os.open(p, os.O_RDONLY), lambda p: os.rename(p, 'x')):
            try:
                call(path)
                print(path, 'there')
            except OSError as e:
                print(path, errno.errorcode[e.errno])
look()
subprocess.run(['mv', 'd', 'moved'], check=True)
look()
subprocess.run(['mv', 'moved', 'd'], check=True)
look()
# Nor is one that was removed, where the error is known without a look at it.
def make():
    try:
        os.open('d/e/new/', os.O_WRONLY | os.O_CREAT)
    except OSError as e:
        print(errno.errorcode[e.errno])
make()
subprocess.run(['rm', '-r', 'd'], check=True)
make()
subprocess.run(['ln', '-s', 'd', 'd'], check=True)
make()";
    python("dots", script);
}
