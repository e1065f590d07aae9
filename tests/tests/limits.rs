//! The edges of what a file system takes: each is the same as on a local directory.

use bivouac_tests::same_as_local;

/// Runs a Python script in the work directory.
fn python(name: &str, script: &str) -> String {
    same_as_local(name, &format!("python3 -B - \"$S\" <<'END'\nimport errno, os, sys\n{script}\nEND"))
}

#[test]
fn names_of_255_bytes_and_not_of_256() {
    let script = r"
def attempt(what, f, *args):
    try:
        f(*args)
        print(what, 'ok')
    except OSError as e:
        print(what, errno.errorcode[e.errno])
for n in (255, 256):
    name = 'n' * n
    attempt(('create', n), lambda: open(name, 'w').close())
    attempt(('mkdir', n), os.mkdir, 'd' * n)
    attempt(('symlink', n), os.symlink, 'x', 's' * n)
    open('source', 'w').close()
    attempt(('rename', n), os.rename, 'source', 'r' * n)
    attempt(('stat', n), os.stat, 'r' * n)
    attempt(('unlink', n), os.unlink, 'r' * n)
    attempt(('within', n), os.stat, 'q' * n + '/x')
open('e' * 255, 'w').close()
print(sorted(len(n) for n in os.listdir('.')))";
    python("names", script);
}

#[test]
fn paths_of_4095_bytes_and_not_of_4096() {
    let script = r"
here = os.getcwd()
part = 'p' * 200
while len(os.getcwd()) + 201 < 4095 - 250:
    os.mkdir(part)
    os.chdir(part)
deep = os.getcwd()
for n in (4094, 4095, 4096):
    path = deep + '/' + 'f' * (n - len(deep) - 1)
    try:
        with open(path, 'w') as f:
            f.write(str(n))
        print(n, open(path).read(), os.stat(path).st_size)
    except OSError as e:
        print(n, errno.errorcode[e.errno])
os.chdir(here)
print(os.listdir('.') == [part])
import shutil
shutil.rmtree(part)";
    // The local directory has another length than the one inside, and so another depth: it is removed again.
    python("paths", script);
}

#[test]
fn every_byte_but_slash_and_nul_in_a_name() {
    let script = r"
for b in range(1, 256):
    if b != 0x2f:
        with open(b'b' + bytes([b]), 'wb') as f:
            f.write(bytes([b]))
names = sorted(os.listdir(b'.'))
print(len(names), names[0], names[-1], all(open(n, 'rb').read() == n[1:] for n in names))
for n in names:
    os.rename(n, n + b'\xff')
print(sorted(os.listdir(b'.'))[7])";
    python("bytes", script);
}

#[test]
fn offsets_at_the_end_of_what_is_possible() {
    let script = r"
def attempt(what, f, *args):
    try:
        print(what, f(*args))
    except OSError as e:
        # POSIX says EOVERFLOW where Linux says EINVAL.
        print(what, errno.errorcode[e.errno].replace('EOVERFLOW', 'EINVAL'))
    except (OverflowError, ValueError) as e:
        print(what, type(e).__name__)
fd = os.open('f', os.O_RDWR | os.O_CREAT)
attempt('negative', os.lseek, fd, -1, os.SEEK_SET)
attempt('end', os.lseek, fd, 2**43, os.SEEK_SET)
attempt('read', os.read, fd, 10)
attempt('beyond', os.lseek, fd, 2**63 - 1, os.SEEK_CUR)
attempt('pread', os.pread, fd, 10, 2**40)
attempt('truncate', os.ftruncate, fd, -1)
print(os.fstat(fd).st_size)
os.pwrite(fd, b'x', 2**42)
print(os.fstat(fd).st_size, os.pread(fd, 2, 2**42 - 1))
os.ftruncate(fd, 5)
print(os.fstat(fd).st_size, os.pread(fd, 10, 0))
os.unlink('f')";
    python("offsets", script);
}

#[test]
fn ten_thousand_open_files() {
    let script = r"
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 12000), hard))
os.mkdir('many')
open_files = []
for i in range(10000):
    fd = os.open(f'many/{i}', os.O_RDWR | os.O_CREAT)
    os.write(fd, b'%d' % i)
    open_files.append(fd)
print(len(set(open_files)), all(os.pread(fd, 10, 0) == b'%d' % i for i, fd in enumerate(open_files)))
for fd in open_files[::2]:
    os.close(fd)
print(os.pread(open_files[9999], 10, 0), len(os.listdir('many')))
for i in range(10000):
    os.unlink(f'many/{i}')
print(os.pread(open_files[1], 10, 0), os.fstat(open_files[3]).st_nlink, os.listdir('many'))
os.rmdir('many')";
    python("ten-thousand", script);
}

#[test]
fn the_descriptor_limit_is_the_programs_own() {
    let script = r"
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
got = []
try:
    for i in range(100):
        got.append(os.open('f', os.O_RDWR | os.O_CREAT))
except OSError as e:
    print(errno.errorcode[e.errno], len(got) >= 50)
for fd in got:
    os.close(fd)
print(open('f', 'w').write('x'))";
    python("descriptors", script);
}

#[test]
fn without_a_descriptor_nothing_is_made_and_nothing_truncated() {
    let script = r"
import resource
open('f', 'w').write('content')
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
got = []
while True:
    try:
        got.append(os.open('f', os.O_RDONLY))
    except OSError as e:
        break
for name, flags in (('f', os.O_WRONLY | os.O_TRUNC), ('new', os.O_WRONLY | os.O_CREAT), (f'/proc/self/fd/{got[0]}', os.O_RDWR | os.O_TRUNC)):
    try:
        print(os.open(name, flags))
    except OSError as e:
        print(errno.errorcode[e.errno], os.path.exists('new'), os.stat('f').st_size)
# The library may need some itself.
for fd in got[10:]:
    os.close(fd)
print(os.open('new', os.O_WRONLY | os.O_CREAT | os.O_EXCL) > 2)";
    let said = python("no-descriptor", script);
    assert!(said.starts_with("EMFILE False 7\nEMFILE False 7\nEMFILE False 7\nTrue\n"), "{said}");
}

#[test]
fn a_program_that_closes_all_descriptors_above_two_goes_on() {
    let script = r"
import subprocess
kept = open('kept', 'w')
kept.write('before')
kept.flush()
os.closerange(3, 4096)
for fd in range(3, 300):
    try:
        os.close(fd)
    except OSError:
        pass
with open('after', 'w') as f:
    f.write('after')
print(open('after').read(), open('kept').read(), sorted(os.listdir('.')))
print(subprocess.run(['cat', 'after'], close_fds=True, capture_output=True).stdout)
pid = os.fork()
if pid == 0:
    os.closerange(3, 65536)
    open('child', 'w').write('child')
    os._exit(0)
os.waitpid(pid, 0)
print(open('child').read())
os._exit(0)";
    // `_exit` leaves out the closing of `kept`, whose number is somebody else's by now.
    let script = script.replace("\nos._exit(0)", "\nsys.stdout.flush()\nos._exit(0)");
    python("closes-all", &script);
}

#[test]
fn a_directory_that_splits_lists_every_name_once() {
    let script = r"
for i in range(5000):
    os.close(os.open(f'file{i:05}', os.O_CREAT | os.O_WRONLY))
names = os.listdir('.')
print(len(names), len(set(names)), os.path.exists('file04999'))
for i in range(0, 5000, 2):
    os.unlink(f'file{i:05}')
print(len(os.listdir('.')))
os.mkdir('sub')
os.rename('file00001', 'sub/file')
print(sorted(os.listdir('.'))[0], os.stat('.').st_nlink)
for n in os.listdir('.'):
    if n != 'sub':
        os.unlink(n)
print(os.listdir('.'))";
    python("splits", script);
}
