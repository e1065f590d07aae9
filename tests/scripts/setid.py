"""Prints what becomes of set-user-ID and set-group-ID bits: for each kind of inode, mode and operation a line with the result.

Usage: setid.py DIRECTORY [USER]. The same lines come from any file system that does as Linux does. With USER (a number; by the
superuser), that user is the owner of everything, its group is the superuser's, and the operations are the user's, who is not in it.
"""

import ctypes
import errno
import os
import stat
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
directory = sys.argv[1]
user = int(sys.argv[2]) if len(sys.argv) > 2 else None
if user is not None:
    os.chown(directory, user, user)
    os.setgroups([2000])
    os.setegid(user)
    os.seteuid(user)
uid, gid = os.geteuid(), os.getegid()
# A group of the caller's besides his own.
other = next((group for group in os.getgroups() if group != gid), gid)
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


def allocate(mode, offset, length):
    def run(fd):
        if libc.fallocate(fd, mode, offset, length) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")

    return opened(run)


def opened(work, flags=os.O_RDWR):
    def run(path):
        fd = os.open(path, flags)
        try:
            work(fd)
        finally:
            os.close(fd)

    return run


def copy_range(path):
    with open(path + ".source", "wb") as source:
        source.write(b"x" * 5000)
    source = os.open(path + ".source", os.O_RDONLY)
    try:
        opened(lambda fd: os.copy_file_range(source, fd, 3000))(path)
    finally:
        os.close(source)
        os.unlink(path + ".source")


CONTENT = {
    "write": opened(lambda fd: os.write(fd, b"x")),
    "write of nothing": opened(lambda fd: os.write(fd, b"")),
    "pwrite": opened(lambda fd: os.pwrite(fd, b"x", 10)),
    "append": opened(lambda fd: os.write(fd, b"x"), os.O_WRONLY | os.O_APPEND),
    "truncate to the size": lambda path: os.truncate(path, os.stat(path).st_size),
    "truncate to 0": lambda path: os.truncate(path, 0),
    "truncate longer": lambda path: os.truncate(path, 900000),
    "ftruncate": opened(lambda fd: os.ftruncate(fd, 5)),
    "O_TRUNC": opened(lambda fd: None, os.O_WRONLY | os.O_TRUNC),
    "fallocate": allocate(0, 0, 9000),
    "fallocate, keeping the size": allocate(KEEP_SIZE, 0, 9000),
    "fallocate within": allocate(KEEP_SIZE, 0, 1),
    "punch": allocate(KEEP_SIZE | PUNCH_HOLE, 0, 90),
    "zero": allocate(ZERO_RANGE, 0, 90),
    "zero, keeping the size": allocate(KEEP_SIZE | ZERO_RANGE, 0, 90),
    "copy_file_range": copy_range,
    "setxattr": lambda path: os.setxattr(path, "user.a", b"b"),
    "fchown -1": opened(lambda fd: os.fchown(fd, -1, -1)),
    "fchown": opened(lambda fd: os.fchown(fd, uid, gid)),
}
ANY = {
    "lchown -1": lambda path: os.lchown(path, -1, -1),
    "lchown": lambda path: os.lchown(path, uid, gid),
}
NO_LINK = {
    "chown": lambda path: os.chown(path, uid, gid),
    "chown -1": lambda path: os.chown(path, -1, -1),
    "chown of the owner": lambda path: os.chown(path, uid, -1),
    "chown of the group": lambda path: os.chown(path, -1, gid),
    "chown to another group": lambda path: os.chown(path, -1, other),
    "chmod": lambda path: os.chmod(path, 0o6755),
    "utime": os.utime,
}


def content(length):
    def make(path):
        with open(path, "wb") as file:
            file.write(b"y" * length)

    return make


KINDS = {
    "empty file": (content(0), {**CONTENT, **ANY, **NO_LINK}),
    "small file": (content(100), {**CONTENT, **ANY, **NO_LINK}),
    "large file": (content(700000), {**CONTENT, **ANY, **NO_LINK}),
    "directory": (os.mkdir, {**ANY, **NO_LINK}),
    "pipe": (os.mkfifo, {**ANY, **NO_LINK}),
    "socket": (lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), {**ANY, **NO_LINK}),
    "link": (lambda path: os.symlink("nowhere", path), ANY),
}


def by_root(work):
    """Does something as the superuser."""
    os.seteuid(0)
    os.setegid(0)
    work()
    os.setegid(gid)
    os.seteuid(uid)


def set_mode(path, mode):
    if user is None:
        os.chmod(path, mode)
        return

    def work():
        os.chown(path, user, 0)
        os.chmod(path, mode)

    by_root(work)


for kind, (make, operations) in KINDS.items():
    for mode in (0o6666, 0o6777, 0o4755, 0o2745, 0o2654, 0o7711):
        for name, operation in operations.items():
            path = os.path.join(directory, "it")
            make(path)
            if kind != "link":
                set_mode(path, mode)
            try:
                operation(path)
                result = "done"
            except OSError as error:
                result = errno.errorcode[error.errno]
            after = stat.S_IMODE(os.lstat(path).st_mode)
            print(f"{kind}, {mode:o}: {name}: {result}, {after:o}")
            os.rmdir(path) if kind == "directory" else os.unlink(path)
