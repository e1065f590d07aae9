"""Files that the kernel reads and writes itself, and what everybody else sees of them.

passthrough.py MOUNT LOOK: MOUNT is a mount of a deployment, LOOK a command that runs a script in /bivouac with the library. Prints
what differs from a local file system, which is nothing."""
import mmap, os, subprocess, sys, time

M, look = sys.argv[1], sys.argv[2:]


def inside(script):
    return subprocess.run(look + [script], capture_output=True, check=True).stdout


def made(name, size, byte=b'.'):
    """A file in blocks that nobody has open."""
    path = f'{M}/{name}'
    with open(path, 'wb') as file:
        file.write(byte * size)
    return path


def same(seen, expected, what):
    if seen != expected:
        print(f'{what}: {seen!r}, not {expected!r}')


# What the kernel writes, others see at once, with size and time; what others do, it reads.
path = made('f', 100_000)
os.utime(path, (1, 1))
# A write within the tick of the kernel's clock would not show.
time.sleep(0.1)
f = os.open(path, os.O_RDWR)
os.pwrite(f, b'kernel', 7)
os.pwrite(f, b'end', 299_997)
same(inside('head -c 13 /bivouac/f | tail -c 6; stat -c " %s" /bivouac/f'), b'kernel 300000\n', 'written by the kernel')
same(int(inside('stat -c %Y /bivouac/f')) > 1_000_000, True, 'a time')
inside('printf library | dd of=/bivouac/f bs=1 seek=20 conv=notrunc status=none')
same(os.pread(f, 7, 20), b'library', 'written by the library')
shared = mmap.mmap(f, 300_000)
shared[40:46] = b'mapped'
inside('printf others | dd of=/bivouac/f bs=1 seek=50 conv=notrunc status=none')
same((os.pread(f, 6, 40), shared[50:56]), (b'mapped', b'others'), 'a mapping')
same(inside('tail -c +41 /bivouac/f | head -c 6'), b'mapped', 'a mapping, from outside')

# Opens in all ways, beside it.
with open(path, 'ab', buffering=0) as a:
    a.write(b'appended')
    inside('printf again >> /bivouac/f')
    a.write(b'more')
same(os.pread(f, 100, 299_997), b'endappendedagainmore', 'appends')
for flags in (os.O_SYNC, os.O_DSYNC, os.O_DIRECT):
    g = os.open(path, os.O_RDWR | flags)
    buffer = mmap.mmap(-1, 4096)
    buffer[:] = bytes([flags % 251]) * 4096
    same(os.pwritev(g, [buffer], 4096), 4096, 'written in other ways')
    same(os.pread(f, 4096, 4096), buffer[:], 'read back')
    with mmap.mmap(g, 300_000) as other:
        same(other[4096:8192], buffer[:], 'mapped in other ways')
    os.close(g)
r = os.open(path, os.O_RDONLY)
same(os.sendfile(os.memfd_create('x'), r, 0, 1000), 1000, 'sendfile')

# Cut and lengthened by others, while it is open.
shared.close()
inside('truncate -s 45 /bivouac/f; truncate -s 70000 /bivouac/f')
same((os.fstat(f).st_size, os.pread(f, 10, 40), len(os.pread(r, 100_000, 0))), (70_000, b'mappe\0\0\0\0\0', 70_000), 'cut')
same(os.lseek(f, 0, os.SEEK_END), 70_000, 'the end')
os.ftruncate(f, 10)
same(inside('stat -c %s /bivouac/f'), b'10\n', 'cut by the kernel')
os.pwrite(f, b'x' * 9000, 0)

# A time that was set stays, whatever was written before; also over a close.
os.utime(f, (5, 6))
os.close(r)
os.close(f)
same((os.stat(path).st_size, os.stat(path).st_mtime), (9000, 6), 'a set time')
before = os.stat(path)
f = os.open(path, os.O_RDWR)
os.close(f)
same(os.stat(path).st_mtime_ns, before.st_mtime_ns, 'nothing written')
time.sleep(0.1)
with open(path, 'r+b', buffering=0) as file:
    file.write(b'new')
same(time.time() - os.stat(path).st_mtime < 60, True, 'a time after the close')
same(inside('stat -c %s /bivouac/f'), b'9000\n', 'a size after the close')

# O_TRUNC; removed, and replaced, while it is open.
f = os.open(path, os.O_RDWR | os.O_TRUNC)
os.write(f, b'fresh')
same(inside('cat /bivouac/f'), b'fresh', 'truncated')
inside('rm /bivouac/f; echo another > /bivouac/f')
os.pwrite(f, b'removed' * 1000, 0)
same((os.pread(f, 7, 7), os.fstat(f).st_nlink, os.fstat(f).st_size), (b'removed', 0, 7000), 'removed')
os.close(f)
same(open(path).read(), 'another\n', 'the new one')

# Opened while it was small: the data comes into the way of the rest, whoever opens it next.
a = os.open(f'{M}/grown', os.O_RDWR | os.O_CREAT)
os.write(a, b'small')
b = os.open(f'{M}/grown', os.O_RDWR)
os.pwrite(b, b'g' * 50_000, 5)
c = os.open(f'{M}/grown', os.O_RDONLY)
maps = [mmap.mmap(x, 50_005, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) for x in (a, b, c)]
os.pwrite(a, b'SMALL', 0)
same([m[:7] for m in maps], [b'SMALLgg'] * 3, 'grown')
for m in maps:
    m.close()
for x in (a, b, c):
    os.close(x)

# Holes.
f = os.open(made('holes', 20_000), os.O_RDWR)
os.ftruncate(f, 10 << 20)
os.pwrite(f, b'island', 5 << 20)
same((os.lseek(f, 30_000, os.SEEK_DATA) <= 5 << 20, os.lseek(f, 0, os.SEEK_HOLE) >= 20_000), (True, True), 'holes')
same(len(os.pread(f, 10 << 20, 0)), 10 << 20, 'holes are read')
os.posix_fallocate(f, 0, 11 << 20)
same((os.fstat(f).st_size, inside('stat -c %s /bivouac/holes')), (11 << 20, b'11534336\n'), 'allocated')
os.close(f)

# Bits that go with a write by somebody without privileges.
path = made('bits', 10_000)
os.chmod(path, 0o6777)
script = "import os, sys; f = os.open(sys.argv[1], os.O_RDWR); os.write(f, b'x'); os.close(f)"
subprocess.run(['setpriv', '--reuid=nobody', '--regid=nogroup', '--clear-groups', 'python3', '-c', script, path], check=True)
same(oct(os.stat(path).st_mode & 0o7777), '0o777', 'set-user-ID')

# A program in the mount, and one that is written while it runs.
subprocess.run(['cp', '/bin/true', f'{M}/true'], check=True)
same(subprocess.run([f'{M}/true']).returncode, 0, 'a program')
print('the same')
