//! Holes in files, and files without names: as on a local directory.

use bivouac_tests::{Site, same_as_local};

/// Runs a Python script in the work directory.
fn python(name: &str, script: &str) -> String {
    same_as_local(name, &format!("python3 -B - \"$S\" <<'END'\nimport errno, os, sys\n{script}\nEND"))
}

/// A map of a file's data and holes.
const MAP: &str = r"
K, M = 1 << 10, 1 << 20
def runs(fd):
    found, at = [], 0
    while True:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as e:
            return found + [errno.errorcode[e.errno]]
        at = os.lseek(fd, data, os.SEEK_HOLE)
        found.append((data // K, at / K))
def attempt(f, *args):
    try:
        return f(*args)
    except OSError as e:
        return errno.errorcode[e.errno]
";

#[test]
fn holes_over_several_servers_are_where_they_are_locally() {
    let script = format!(
        "{MAP}{}",
        r"
fd = os.open('f', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 9 * M + 5)
print('empty', runs(fd))
for at, length in ((0, 64 * K), (2 * M, 3 * M), (6 * M + 128 * K, 64 * K), (7 * M - 64 * K, 192 * K)):
    os.pwrite(fd, b'd' * length, at)
print('written', runs(fd))
for whence in (os.SEEK_DATA, os.SEEK_HOLE):
    print([attempt(os.lseek, fd, at, whence) for at in
        (0, 64 * K, M, 2 * M, 5 * M - 1, 5 * M, 7 * M, 9 * M, 9 * M + 4, 9 * M + 5, 10 * M, -1)])
os.lseek(fd, 7, os.SEEK_SET)
print(attempt(os.lseek, fd, 20 * M, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_CUR))
os.posix_fallocate(fd, 0, 1)
os.ftruncate(fd, 3 * M)
print('cut', runs(fd))
os.ftruncate(fd, 12 * M)
os.pwrite(fd, b'e' * 64 * K, 12 * M)
print('grown', runs(fd))
# A file as a whole, each block of another server.
os.pwrite(fd, b'x' * 13 * M, 0)
print('full', runs(fd))
dense = os.open('dense', os.O_RDWR | os.O_CREAT)
print('nothing', runs(dense), attempt(os.lseek, dense, 0, os.SEEK_HOLE))
os.write(dense, b'small')
print('small', [attempt(os.lseek, dense, at, w) for w in (os.SEEK_DATA, os.SEEK_HOLE) for at in (0, 4, 5)])
far = os.open('far', os.O_RDWR | os.O_CREAT)
os.pwrite(far, b'y' * 64 * K, 1 << 41)
print('far', runs(far))
os.unlink('far')"
    );
    let out = python("holes", &script);
    assert!(out.contains("far [(2147483648, 2147483712.0), 'ENXIO']"), "{out}");
}

#[test]
fn punched_holes_are_found_and_copies_around_them_are_whole() {
    let script = r"
fallocate -l 8M f
head -c 8388608 /dev/zero | tr '\0' 'a' > g
fallocate -p -o 1M -l 2M g
fallocate -p -o 4194304 -l 1048576 g
cp --sparse=auto g copy
cmp g copy
python3 -B - <<'END'
import os, errno
fd = os.open('g', os.O_RDONLY)
out = os.open('data', os.O_RDWR | os.O_CREAT)
os.ftruncate(out, os.fstat(fd).st_size)
at, found = 0, []
while True:
    try:
        at = os.lseek(fd, at, os.SEEK_DATA)
    except OSError:
        break
    hole = os.lseek(fd, at, os.SEEK_HOLE)
    os.pwrite(out, os.pread(fd, hole - at, at), at)
    found.append((at, hole))
    at = hole
print(found)
END
cmp g data
tar -cSf archive.tar g && mkdir out && tar -C out -xf archive.tar && cmp g out/g
rm f archive.tar";
    same_as_local("punched", script);
}

#[test]
fn what_is_no_hole_is_never_taken_for_one_while_others_write() {
    let site = Site::new("holes-race");
    let deployment = site.up_with(4, &["--block-size", "64K"]);
    let script = r"
import os, threading
size, piece = 64 << 20, 64 << 10
fd = os.open('/bivouac/f', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, size)
done = [0]
def write():
    own = os.open('/bivouac/f', os.O_RDWR)
    for at in range(0, size, piece):
        os.pwrite(own, b'w' * piece, at)
        done[0] = at + piece
    os.close(own)
t = threading.Thread(target=write)
t.start()
asked = 0
while t.is_alive():
    before = done[0]
    hole = os.lseek(fd, 0, os.SEEK_HOLE)
    assert hole >= before, (hole, before)
    asked += 1
t.join()
print(asked > 0, os.lseek(fd, 0, os.SEEK_HOLE) == size)";
    let out = site.sh(&deployment, &format!("python3 -B - <<'END'\n{script}\nEND")).ok();
    assert_eq!(out, "True True\n");
}

#[test]
fn files_without_names_are_as_locally() {
    let script = format!(
        "{MAP}{}",
        r"
root = os.open('/', os.O_RDONLY)
os.mkdir('d')
open('plain', 'w').close()
fd = os.open('d', os.O_TMPFILE | os.O_RDWR, 0o640)
print(os.fstat(fd).st_nlink, oct(os.fstat(fd).st_mode), os.listdir('d'))
print(os.write(fd, b'z' * 9000), os.pread(fd, 3, 8998), os.fstat(fd).st_size)
os.link(f'/proc/self/fd/{fd}', 'd/named', src_dir_fd=root)
print(os.fstat(fd).st_nlink, os.listdir('d'), os.stat('d/named').st_size)
os.link(f'/proc/self/fd/{fd}', 'again', src_dir_fd=root)
print(os.fstat(fd).st_nlink)
os.unlink('again')
os.unlink('d/named')
print(os.fstat(fd).st_nlink)
os.close(fd)
closed = os.open('.', os.O_TMPFILE | os.O_EXCL | os.O_WRONLY, 0o600)
print(os.write(closed, b'never seen'))
try:
    os.link(f'/proc/self/fd/{closed}', 'no', src_dir_fd=root)
except OSError as e:
    print(errno.errorcode[e.errno])
print(attempt(os.open, 'd', os.O_TMPFILE | os.O_RDONLY, 0o600))
print(attempt(os.open, 'plain', os.O_TMPFILE | os.O_RDWR, 0o600))
print(attempt(os.open, 'absent', os.O_TMPFILE | os.O_RDWR, 0o600))
plain = os.open('plain', os.O_RDONLY)
for flags in (os.O_RDONLY, os.O_RDWR):
    print(attempt(lambda: os.open('x', os.O_TMPFILE | flags, 0o600, dir_fd=plain)))
os.rmdir('d')
import tempfile
with tempfile.TemporaryFile(dir='.') as f:
    f.write(b'hello' * 2000)
    f.seek(0)
    print(f.read(7), os.listdir('.'))
pid = os.fork()
if pid == 0:
    mine = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(mine, b'child')
    os._exit(0)
os.waitpid(pid, 0)
print(sorted(os.listdir('.')))"
    );
    python("nameless", &script);
}
