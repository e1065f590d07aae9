"""What programs rely on when several of them use one file: offsets, appending, mappings, descriptors that are handed on.

Usage: beside.py DIRECTORY STRANGER [TOOL DEPLOYMENT]
STRANGER is a statically linked program, into which no library can be loaded (tests/c/stranger.c). With TOOL and DEPLOYMENT
the directory is in a mount of a deployment, and what is done here is looked at from outside of the mount too.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time

directory, stranger = sys.argv[1:3]
inside = sys.argv[3:5]
SIZE = 100


def path(name):
    return os.path.join(directory, name)


def made(name, flags=os.O_RDWR | os.O_CREAT | os.O_TRUNC):
    return os.open(path(name), flags, 0o644)


def used(fd):
    """Uses a descriptor so often that data goes past the mount from then on, if it ever does."""
    for _ in range(4):
        os.pread(fd, 1, 0)
    return fd


def child(body):
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException as error:
            print("in a child:", repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return pid


def join(*pids):
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0


def strange(fd, *words):
    """Starts the program that knows nothing of libraries, with a descriptor as its standard input and output."""
    return subprocess.Popen([stranger, *words], stdin=fd, stdout=fd)


def record(who, number):
    return (b"%d:%06d:" % (who, number)).ljust(SIZE - 1, b"x") + b"\n"


def records(data):
    assert len(data) % SIZE == 0, len(data)
    found = [data[at : at + SIZE] for at in range(0, len(data), SIZE)]
    assert all(one[-1:] == b"\n" and b"\0" not in one for one in found), "a record is torn"
    return sorted(found)


def content(name):
    with open(path(name), "rb") as file:
        return file.read()


def from_outside(script):
    if inside:
        command = [inside[0], "exec", inside[1], "--access", "preload", "--", "bash", "-c", script]
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        return subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    return subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def mapped(fd, length):
    """Maps more than there may be of a file, without looking at it first as `mmap.mmap` does."""
    address = LIBC.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return address


def writers_of_one_offset():
    fd = made("offset")

    def write(who):
        for number in range(400):
            assert os.write(fd, record(who, number)) == SIZE

    threads = [threading.Thread(target=write, args=(who,)) for who in (0, 1)]
    children = [child(lambda who=who: write(who)) for who in (2, 3)]
    other = strange(fd, "write", "4", "400")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    join(*children)
    assert other.wait() == 0
    assert os.lseek(fd, 0, os.SEEK_CUR) == 5 * 400 * SIZE
    assert records(content("offset")) == sorted(record(who, number) for who in range(5) for number in range(400))


def readers_of_one_offset():
    fd = os.open(path("offset"), os.O_RDONLY)
    pipes = []

    def read(into):
        while data := os.read(fd, SIZE):
            os.write(into, data)

    children = []
    for _ in range(3):
        out, into = os.pipe()
        pipes.append(out)
        children.append(child(lambda into=into: read(into)))
        os.close(into)
    data = b"".join(open(pipe, "rb").read() for pipe in pipes)
    join(*children)
    assert records(data) == records(content("offset"))
    assert os.lseek(fd, 0, os.SEEK_CUR) == os.fstat(fd).st_size


def appending():
    plain = made("append", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)

    def write(who):
        fd = os.open(path("append"), os.O_WRONLY | os.O_APPEND)
        for number in range(200):
            assert os.write(fd, record(who, number)) == SIZE

    children = [child(lambda who=who: write(who)) for who in (0, 1)]
    other = strange(plain, "write", "2", "200")
    join(*children)
    assert other.wait() == 0
    assert records(content("append")) == sorted(record(who, number) for who in range(3) for number in range(200))
    # Switched on and off while it is open, by another process that shares the description too.
    fd = used(made("switched"))
    os.write(fd, b"0123456789")
    os.pwrite(fd, b"ab", 0)
    join(child(lambda: fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)))
    os.lseek(fd, 3, os.SEEK_SET)
    os.write(fd, b"end")
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_APPEND)
    os.lseek(fd, 3, os.SEEK_SET)
    os.write(fd, b"cd")
    assert content("switched") == b"ab2cd56789end", content("switched")


    # By a program without the library: from its next write on.
    fd = used(made("strangely"))
    os.write(fd, b"0123456789")
    script = "import fcntl, os; fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_APPEND); os.write(1, b'x')"
    subprocess.run([sys.executable, "-c", script], stdout=fd, env={}, check=True)
    os.lseek(fd, 3, os.SEEK_SET)
    os.write(fd, b"end")
    assert content("strangely") == b"0123456789xend", content("strangely")


def mappings():
    fd = used(made("mapped"))
    block = bytes(range(256)) * 256
    for at in range(0, 4 * len(block), len(block)):
        os.pwrite(fd, block, at)
    there = os.open(path("mapped"), os.O_RDWR)
    used(there)
    go, ready = os.pipe(), os.pipe()

    def other():
        # Not through a descriptor of the parent's.
        whole = mapped(os.open(path("mapped"), os.O_RDWR), 1 << 20)
        assert ctypes.string_at(whole + 5, 3) == block[5:8]
        os.write(ready[1], b"1")
        os.read(go[0], 1)
        assert ctypes.string_at(whole + 70000, 4) == b"past" and ctypes.string_at(whole + 5, 4) == b"also"
        # What lies behind the file's end as it was when it was mapped.
        assert ctypes.string_at(whole + 900000, 5) == b"grown"
        ctypes.memmove(whole + 80000, b"mapped", 6)
        os.write(ready[1], b"2")
        os.read(go[0], 1)

    pid = child(other)
    os.read(ready[0], 1)
    os.pwrite(fd, b"past", 70000)
    os.pwrite(there, b"also", 5)
    os.pwrite(fd, b"grown", 900000)
    os.write(go[1], b"1")
    os.read(ready[0], 1)
    # Not synced: reads have to see it all the same.
    assert os.pread(fd, 6, 80000) == b"mapped" and os.pread(there, 6, 80000) == b"mapped"
    os.write(go[1], b"2")
    join(pid)
    # Longer than the kernel was told, and mapped without a look at it.
    grown = used(made("grown"))
    for at in range(0, 1 << 20, 1 << 16):
        os.write(grown, block)
    assert ctypes.string_at(mapped(grown, 1 << 20) + (1 << 20) - 4, 4) == block[-4:]


def stranger_maps():
    fd = used(made("strange"))
    for number in range(1000):
        os.write(fd, record(9, number))
    other = subprocess.Popen([stranger, "map", path("strange")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == record(9, 999)
    os.pwrite(fd, record(8, 1), 999 * SIZE)
    other.stdin.write(b"\n")
    other.stdin.flush()
    assert other.stdout.readline() == record(8, 1)
    other.stdin.write(b"\n")
    other.stdin.flush()
    # It has changed the first byte of the last record, and has not gone yet.
    assert other.stdout.readline() == b"changed\n"
    assert os.pread(fd, 2, 999 * SIZE) == b"!:"
    other.stdin.close()
    assert other.wait() == 0


def numbers_change_hands():
    a, b = used(made("a")), used(made("b"))
    os.write(a, b"aaaa")
    os.write(b, b"bbbb")
    c = os.dup(a)
    os.lseek(a, 0, os.SEEK_SET)
    assert os.read(c, 2) == b"aa" and os.lseek(a, 0, os.SEEK_CUR) == 2
    os.dup2(b, a)
    assert os.pread(a, 4, 0) == b"bbbb" and os.pread(c, 4, 0) == b"aaaa"
    for _ in range(5):
        assert os.pread(a, 4, 0) == b"bbbb"
    # A directory is none of them, how often it is tried.
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(8):
        for call in (lambda: os.read(place, 1), lambda: os.write(place, b"x"), lambda: os.pread(place, 1, 0)):
            try:
                raise SystemExit(f"a directory: {call()}")
            except OSError as error:
                assert error.errno in (errno.EBADF, errno.EISDIR)
    os.close(place)
    assert os.pread(b, 5, 0) == b"bbbb"
    # A number that a stream closes and something else gets.
    stream = os.fdopen(c, "rb")
    stream.close()
    again = os.open("/etc/hostname", os.O_RDONLY)
    assert again == c
    with open("/etc/hostname", "rb") as name:
        assert os.pread(again, 1000, 0) == name.read()
    os.close(again)
    out, into = os.pipe()
    os.dup2(into, a)
    for _ in range(5):
        os.write(a, b"pipe")
    assert os.read(out, 100) == b"pipe" * 5
    # Everything closed, as daemons do.
    def close_all():
        os.closerange(3, 1 << 16)
        fd = used(made("closed"))
        for _ in range(10):
            os.write(fd, b"0123456789")
        assert content("closed") == b"0123456789" * 10

    join(child(close_all))


def handed_on():
    fd = used(made("handed"))
    for number in range(10):
        os.write(fd, record(1, number))
    os.lseek(fd, 0, os.SEEK_SET)
    for number in range(3):
        assert os.read(fd, SIZE) == record(1, number)
    # A program with the library and one without go on where we stopped, and we behind them.
    assert subprocess.run(["head", "-c", "100"], stdin=fd, capture_output=True).stdout[:7] == record(1, 3)[:7]
    os.lseek(fd, 4 * SIZE, os.SEEK_SET)
    clean = subprocess.run(["dd", "bs=100", "count=1", "status=none"], stdin=fd, capture_output=True, env={})
    assert clean.stdout == record(1, 4)
    assert os.read(fd, SIZE) == record(1, 5)
    os.lseek(fd, 0, os.SEEK_END)
    subprocess.run(["bash", "-c", "for i in 1 2 3 4 5; do echo $i; done; /bin/echo 6"], stdout=fd, check=True)
    os.write(fd, b"7\n")
    assert content("handed")[10 * SIZE :] == b"1\n2\n3\n4\n5\n6\n7\n"


def ends():
    fd = used(made("gone"))
    other = used(os.open(path("gone"), os.O_RDWR))
    for _ in range(100):
        os.write(fd, b"z" * 5000)
    os.unlink(path("gone"))
    assert os.pread(other, 5000, 495000) == b"z" * 5000 and os.fstat(other).st_nlink == 0
    os.ftruncate(other, 10)
    assert os.pread(fd, 100, 0) == b"z" * 10 and os.fstat(fd).st_size == 10
    os.write(fd, b"behind")
    assert os.fstat(other).st_size == 500006 and os.pread(other, 10, 300000) == b"\0" * 10
    # Limits, and what may not be done.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600000, hard))
    assert os.pwrite(fd, b"l" * 1000, 599500) == 500
    for _ in range(5):
        try:
            os.pwrite(fd, b"l", 600000)
            raise SystemExit("no limit")
        except OSError as error:
            assert error.errno == errno.EFBIG
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    reader = used(os.open(path("a"), os.O_RDONLY))
    for _ in range(5):
        try:
            os.write(reader, b"x")
            raise SystemExit("written to what is open for reading")
        except OSError as error:
            assert error.errno == errno.EBADF
    # A set time stays, also behind writes past the mount.
    fd = used(made("time"))
    for _ in range(5):
        os.write(fd, b"x" * 10000)
    os.utime(fd, ns=(10**18, 10**18))
    os.close(fd)
    assert os.stat(path("time")).st_mtime_ns == 10**18


def other_faces():
    here = path("face")
    fd = used(os.open(here, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644))
    for size in (10, 5000, 700000):
        data = os.urandom(size)
        os.lseek(fd, 0, os.SEEK_SET)
        assert os.write(fd, data) == size
        assert from_outside(f"cat {here}") == data
        assert from_outside(f"stat -c %s {here}") == b"%d\n" % size
        from_outside(f"printf changed | dd of={here} bs=1 seek=3 conv=notrunc status=none")
        assert os.pread(fd, 10, 0)[3:] == b"changed"
        from_outside(f"truncate -s 5 {here}; mv {here} {here}.moved")
        assert os.pread(fd, 100, 0) == data[:3] + b"ch" and os.fstat(fd).st_size == 5
        from_outside(f"echo appended >> {here}.moved; mv {here}.moved {here}")
        assert os.pread(fd, 100, 5) == b"appended\n"
    fcntl.lockf(fd, fcntl.LOCK_EX)
    assert from_outside(f"flock -n {here} echo free || echo held; python3 -c \"import fcntl; f = open('{here}', 'r+'); fcntl.lockf(f, 6)\" 2>/dev/null || echo locked").split() == [b"free", b"locked"]


def attributes():
    # By path, which may be answered without the kernel, and by descriptor, which is not.
    os.chdir(directory)

    def statx(fd, name, flags, settled):
        buffer = ctypes.create_string_buffer(256)
        assert LIBC.statx(fd, os.fsencode(name), flags, 0xFFF, buffer) == 0, os.strerror(ctypes.get_errno())
        # Without what only the kernel knows, and what changes.
        found = buffer.raw
        return found[16:56] + found[64:96] + (found[96:128] if settled else b"") + found[128:144]

    def same(name, settled=True):
        for follow in (True, False):
            by_path = os.stat(path(name), follow_symlinks=follow)
            fd = os.open(path(name), os.O_PATH | (0 if follow else os.O_NOFOLLOW))
            by_number = os.fstat(fd)
            by_statx = statx(-100, path(name), 0 if follow else 0x100, settled)
            assert by_statx == statx(fd, "", 0x1000, settled) == statx(-100, name or ".", 0 if follow else 0x100, settled), name
            assert os.stat(name or ".", follow_symlinks=follow).st_ino == by_number.st_ino
            os.close(fd)
            for field in (field for field in dir(by_path) if field.startswith("st_")):
                # When a file was written that is still being written is known to some microseconds.
                if not settled and field[:8] in ("st_mtime", "st_ctime"):
                    continue
                assert getattr(by_path, field) == getattr(by_number, field), (name, follow, field)

    os.mkdir(path("tree"))
    os.mkdir(path("tree/sub"))
    os.symlink("tree/sub", path("link"))
    os.symlink("nowhere", path("dangling"))
    os.symlink("/etc/hostname", path("away"))
    fd = used(made("tree/file"))
    os.chmod(path("tree/file"), 0o640)
    os.mkfifo(path("fifo"))
    for size in (0, 10, 5000, 700000):
        os.pwrite(fd, b"s" * size, 0)
        for name in ("", "tree", "tree/sub/..", "link/.", "link", "away", "tree/file", "fifo"):
            same(name, settled=name != "tree/file")
        assert os.stat(path("tree/file")).st_size == size
    assert os.path.lexists(path("dangling")) and not os.path.exists(path("dangling"))
    for number in range(30):
        name = path(f"tree/{number}")
        assert not os.path.exists(name)
        open(name, "w").close()
        assert os.path.exists(name) and os.access(name, os.W_OK) and not os.access(name, os.X_OK)
        os.chmod(name, 0o755)
        assert os.access(name, os.X_OK) and os.stat(name).st_mode & 0o777 == 0o755
        os.rename(name, name + ".moved")
        assert not os.path.exists(name) and os.path.exists(name + ".moved")
    for number in range(3):
        from_outside(f"mv {path('tree')} {path('moved')}")
        assert not os.path.exists(path("tree/file")) and os.path.exists(path("moved/0.moved"))
        assert not os.path.exists(path("link")) and os.stat(path("moved/file")).st_size == 700000
        from_outside(f"mv {path('moved')} {path('tree')}; chmod 64{number} {path('tree/file')}; touch {path('tree')}/new{number}")
        assert os.stat(path("tree/file")).st_mode & 0o777 == 0o640 + number
        assert os.path.exists(path(f"tree/new{number}"))
        same("tree/file", settled=False)
    os.close(fd)
    # The kernel does not wait for what a close has to tell.
    for attempt in range(100):
        try:
            same("tree/file")
            break
        except AssertionError:
            assert attempt < 99
            time.sleep(0.1)
    # From a working directory that is moved.
    os.chdir("tree")
    for number in range(3):
        assert os.stat("file").st_size == 700000 and not os.path.exists("nothing")
        from_outside(f"mv {path('tree')} {path('moved')}; mkdir {path('tree')}; echo other > {path('tree/file')}")
        assert os.stat("file").st_size == 700000 and os.access("file", os.R_OK)
        from_outside(f"rm -r {path('tree')}; mv {path('moved')} {path('tree')}")
    os.chdir("sub")
    assert os.stat("../file").st_size == 700000 and os.stat(".").st_ino == os.stat(path("tree/sub")).st_ino
    os.chdir("/")
    assert not os.path.exists("tree/file")
    try:
        os.stat(path("tree/file/below"))
        raise SystemExit("a file is no directory")
    except NotADirectoryError:
        pass


for test in (
    attributes,
    writers_of_one_offset,
    readers_of_one_offset,
    appending,
    mappings,
    stranger_maps,
    numbers_change_hands,
    handed_on,
    ends,
    other_faces,
):
    test()
    print(test.__name__, flush=True)
if inside and "BIVOUAC_MOUNTED" in os.environ:
    # Or all of this would prove nothing.
    fd = used(made("shown"))
    os.pwrite(fd, b"x" * 10000, 0)
    links = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}")]
    assert any(link.startswith("socket:") for link in links), links
    print("past the mount")
