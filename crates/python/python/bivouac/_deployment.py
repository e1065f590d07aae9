"""A deployment, with functions that are named as those of `os` and `shutil`."""

import errno
import os
import stat as modes
import threading
import weakref
from typing import NamedTuple

from . import _bivouac
from ._file import RawFile, opened
from ._path import Path


class Location(NamedTuple):
    """A range of a file, and the hosts that have all of it, this one first. None: no copy is left."""

    offset: int
    length: int
    hosts: list[str]


def result_of(stat):
    """An `os.stat_result`."""
    mode, inode, links, user, group, size, accessed, modified, changed, created, blocks = stat
    whole = (mode, inode, 0, links, user, group, size, accessed // 10**9, modified // 10**9, changed // 10**9)
    return os.stat_result(
        whole,
        {
            "st_atime": accessed / 1e9,
            "st_mtime": modified / 1e9,
            "st_ctime": changed / 1e9,
            "st_atime_ns": accessed,
            "st_mtime_ns": modified,
            "st_ctime_ns": changed,
            "st_blocks": blocks,
            "st_blksize": 128 << 10,
            "st_rdev": 0,
        },
    )


def encoded(path):
    """A path as the extension takes it."""
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError("embedded null byte")
    return encoded


class Entry:
    """What is in a directory, as `os.DirEntry`: with its attributes, which came with its name."""

    __slots__ = ("_deployment", "_stat", "name", "path")

    def __init__(self, deployment, directory, name, stat):
        self._deployment, self._stat = deployment, stat
        self.name = name
        self.path = f"{directory.rstrip('/')}/{name}"

    def __repr__(self):
        return f"<bivouac.Entry {self.name!r}>"

    def __fspath__(self):
        return self.path

    def inode(self):
        return self._stat[1]

    def is_symlink(self):
        return modes.S_ISLNK(self._stat[0])

    def _is(self, test, follow_symlinks):
        if follow_symlinks and self.is_symlink():
            try:
                return test(self._deployment.stat(self.path).st_mode)
            except OSError:
                # It leads to nothing, in a circle, or out of the deployment.
                return False
        return test(self._stat[0])

    def is_dir(self, *, follow_symlinks=True):
        return self._is(modes.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks=True):
        return self._is(modes.S_ISREG, follow_symlinks)

    def stat(self, *, follow_symlinks=True):
        if follow_symlinks and self.is_symlink():
            return self._deployment.stat(self.path)
        return result_of(self._stat)


class Deployment:
    """A deployment that this process is attached to.

    `name`: what `bivouac up` was given; without one, the deployment that the environment names (`bivouac run`, `bivouac exec`).
    `key`: its key, if this node is not to be asked for it. Paths are those inside: "/a/b" and "a/b" are the same.

    It is a context manager, and can be used from any thread, and after a fork: only what is open is to be opened anew there.
    It can be pickled: who gets it attaches anew.
    """

    def __init__(self, name: str | None = None, *, key: str | None = None):
        self._inner = _bivouac.Deployment(name, key)
        self._name, self._key = self._inner.name, key
        self._forked()
        _ATTACHED.add(self)

    def _forked(self):
        """In a forked child, what the parent has open is not to be closed by the child, nor is a lock that a thread of the parent held."""
        self._files = weakref.WeakSet()
        self._guard = threading.Lock()

    def __reduce__(self):
        return _attached, (self.name, self._key)

    def __repr__(self):
        return f"<bivouac.Deployment {self.name!r}>"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __truediv__(self, path):
        return Path(self, "/") / path

    def path(self, *parts) -> Path:
        """A path, with functions named as those of `pathlib`."""
        return Path(self, "/", *parts)

    @property
    def _deployment(self):
        if self._inner is None:
            raise ValueError("the deployment was closed")
        return self._inner

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def mount(self) -> str:
        """Where programs in a mount or with the preload library see it."""
        return self._deployment.mount

    @property
    def host(self) -> str:
        """The node that this process runs on, as the deployment knows it."""
        return self._deployment.host

    @property
    def closed(self) -> bool:
        """Whether it was detached."""
        return self._inner is None

    def close(self):
        """Detaches: files that are open are closed, with what is in their buffers, and locks are released."""
        if self._inner is None:
            return
        with self._guard:
            files = list(self._files)
        failed = None
        # What has a buffer before what is below it.
        for file in sorted(files, key=lambda file: isinstance(file, RawFile)):
            try:
                file.close()
            except Exception as error:  # noqa: BLE001: all others are closed, too
                failed = failed or error
        self._inner.detach()
        self._inner = None
        if failed is not None:
            raise failed

    def _opened(self, path, flags, permissions):
        if flags & os.O_CREAT:
            permissions &= ~_umask()
        return self._deployment.open(encoded(path), flags, permissions)

    def _track(self, file):
        """A file object that is to be closed before the deployment is left."""
        with self._guard:
            self._files.add(file)
        return file

    # Files.

    def open(self, path, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *, permissions=0o666):
        """As the built-in `open`."""
        return opened(self, path, mode, buffering, encoding, errors, newline, permissions)

    def read_bytes(self, path) -> bytes:
        """All that is in a file."""
        with self.open(path, "rb", 0) as file:
            return file.readall()

    def write_bytes(self, path, data) -> int:
        """Makes a file of bytes, in the place of one that is there."""
        with self.open(path, "wb", 0) as file:
            rest = memoryview(data).cast("B")
            while rest:
                rest = rest[file.write(rest) :]
        return len(memoryview(data).cast("B"))

    def read_text(self, path, encoding=None, errors=None) -> str:
        """The text in a file."""
        with self.open(path, "r", -1, encoding, errors) as file:
            return file.read()

    def write_text(self, path, text, encoding=None, errors=None) -> int:
        """Makes a file of a text."""
        with self.open(path, "w", -1, encoding, errors) as file:
            return file.write(text)

    def read_many(self, pieces, *, on_error="raise"):
        """Reads pieces of many files at once: servers are asked at the same time, and nothing is opened.

        `pieces`: (path, offset, length) each. Returns the bytes, in the same order. `on_error`: "raise" the first error, or
        "return" it in the place of the bytes.
        """
        wanted = [(encoded(path), offset, length) for path, offset, length in pieces]
        return _checked(self._deployment.read_many(wanted), [path for path, _, _ in wanted], on_error)

    def read_files(self, paths, *, on_error="raise"):
        """Reads all of many files at once, as `read_many`."""
        wanted = [encoded(path) for path in paths]
        return _checked(self._deployment.read_files(wanted), wanted, on_error)

    def locate(self, path, offset=0, length=None) -> list[Location]:
        """Which hosts have which part of a file."""
        length = (1 << 63) - 1 if length is None else length
        return [Location(*found) for found in self._deployment.locate(encoded(path), offset, length)]

    def truncate(self, path, length: int):
        """As `os.truncate`."""
        self._deployment.truncate(encoded(path), length)

    # Attributes.

    def stat(self, path, *, follow_symlinks=True) -> os.stat_result:
        """As `os.stat`."""
        return result_of(self._deployment.stat(encoded(path), follow_symlinks))

    def lstat(self, path) -> os.stat_result:
        """As `os.lstat`."""
        return self.stat(path, follow_symlinks=False)

    def _mode(self, path, follow_symlinks=True):
        try:
            return self._deployment.stat(encoded(path), follow_symlinks)[0]
        except (OSError, ValueError):
            return 0

    def exists(self, path) -> bool:
        """As `os.path.exists`."""
        return self._mode(path) != 0

    def isfile(self, path) -> bool:
        """As `os.path.isfile`."""
        return modes.S_ISREG(self._mode(path))

    def isdir(self, path) -> bool:
        """As `os.path.isdir`."""
        return modes.S_ISDIR(self._mode(path))

    def islink(self, path) -> bool:
        """As `os.path.islink`."""
        return modes.S_ISLNK(self._mode(path, False))

    def getsize(self, path) -> int:
        """As `os.path.getsize`."""
        return self.stat(path).st_size

    def access(self, path, mask: int) -> bool:
        """As `os.access`."""
        try:
            self._deployment.access(encoded(path), mask)
            return True
        except OSError:
            return False

    def chmod(self, path, mode: int, *, follow_symlinks=True):
        """As `os.chmod`."""
        self._deployment.chmod(encoded(path), mode, follow_symlinks)

    def chown(self, path, uid: int, gid: int, *, follow_symlinks=True):
        """As `os.chown`."""
        user, group = (None if number == -1 else number for number in (uid, gid))
        self._deployment.chown(encoded(path), user, group, follow_symlinks)

    def utime(self, path, times=None, *, ns=None, follow_symlinks=True):
        """As `os.utime`."""
        if times is not None and ns is not None:
            raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
        if times is not None:
            ns = tuple(round(time * 1e9) for time in times)
        self._deployment.utimes(encoded(path), ns, follow_symlinks)

    def getxattr(self, path, name) -> bytes:
        """As `os.getxattr`."""
        return self._deployment.getxattr(encoded(path), encoded(name))

    def setxattr(self, path, name, value: bytes, flags: int = 0):
        """As `os.setxattr`."""
        self._deployment.setxattr(encoded(path), encoded(name), bytes(value), flags)

    def removexattr(self, path, name):
        """As `os.removexattr`."""
        self._deployment.removexattr(encoded(path), encoded(name))

    def listxattr(self, path) -> list[str]:
        """As `os.listxattr`."""
        return [os.fsdecode(name) for name in self._deployment.listxattr(encoded(path)).split(b"\0") if name]

    def layout(self, path) -> str:
        """The layout of a file, or of new files in a directory ("" where it has none of its own)."""
        try:
            return self.getxattr(path, "user.bivouac.layout").decode()
        except OSError as error:
            if error.errno == errno.ENODATA:
                return ""
            raise

    def set_layout(self, path, layout: str):
        """Sets it, for example "width=1 first=local"; "" takes a directory's away."""
        self.setxattr(path, "user.bivouac.layout", layout.encode())

    def disk_usage(self):
        """As `shutil.disk_usage`: total, used and free bytes."""
        import shutil

        total, free, _, _ = self._deployment.statfs()
        return shutil._ntuple_diskusage(total, total - free, free)

    # Names.

    def mkdir(self, path, mode: int = 0o777):
        """As `os.mkdir`."""
        self._deployment.mkdir(encoded(path), mode & ~_umask())

    def makedirs(self, path, mode: int = 0o777, exist_ok: bool = False):
        """As `os.makedirs`."""
        path = os.fspath(path)
        try:
            self.mkdir(path, mode)
        except FileNotFoundError:
            above = os.path.dirname(path.rstrip("/"))
            if above in ("", "/", path):
                raise
            self.makedirs(above, exist_ok=True)
            self.makedirs(path, mode, exist_ok)
        except FileExistsError:
            if not exist_ok or not self.isdir(path):
                raise

    def remove(self, path):
        """As `os.remove`."""
        self._deployment.unlink(encoded(path))

    unlink = remove

    def rmdir(self, path):
        """As `os.rmdir`."""
        self._deployment.rmdir(encoded(path))

    def rmtree(self, path):
        """Removes a directory and all below it, as `shutil.rmtree`. Symbolic links are removed, and not followed."""
        if not modes.S_ISDIR(self.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))
        for entry in self.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                self.rmtree(entry.path)
            else:
                self.remove(entry.path)
        self.rmdir(path)

    def rename(self, path, to, *, exclusive=False):
        """As `os.rename`. `exclusive`: FileExistsError if there is something at `to`."""
        self._deployment.rename(encoded(path), encoded(to), 1 if exclusive else 0)

    def replace(self, path, to):
        """As `os.replace`."""
        self.rename(path, to)

    def link(self, path, name):
        """As `os.link`."""
        self._deployment.link(encoded(path), encoded(name))

    def symlink(self, target, path):
        """As `os.symlink`. A target that begins with `/` is one from the deployment's root, as all paths here."""
        target = os.fspath(target)
        if target.startswith("/") and not f"{target}/".startswith(f"{self.mount}/"):
            target = self.mount + target
        self._deployment.symlink(encoded(target), encoded(path))

    def readlink(self, path) -> str:
        """As `os.readlink`; from the deployment's root, if the link leads there."""
        target = os.fsdecode(self._deployment.readlink(encoded(path)))
        return target[len(self.mount) :] or "/" if f"{target}/".startswith(f"{self.mount}/") else target

    def realpath(self, path) -> str:
        """The path without links, `.` and `..`, from the root. All of it has to be there."""
        return os.fsdecode(self._deployment.resolve(encoded(path)))

    def scandir(self, path="/"):
        """The entries of a directory with their attributes, as `os.scandir`."""
        name, given = os.fspath(path), encoded(path)
        after = None
        while True:
            directory, (entries, following) = self._deployment.list(given, after)
            for entry, stat in entries:
                yield Entry(self, name, os.fsdecode(entry), stat)
            if following is None:
                return
            after = (directory, following)

    def listdir(self, path="/") -> list[str]:
        """As `os.listdir`."""
        return [entry.name for entry in self.scandir(path)]

    def walk(self, top="/", topdown=True, onerror=None, followlinks=False):
        """As `os.walk`."""
        try:
            entries = list(self.scandir(top))
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        directories = [entry.name for entry in entries if entry.is_dir()]
        files = [entry.name for entry in entries if not entry.is_dir()]
        links = {entry.name for entry in entries if entry.is_symlink()}
        below = f"{os.fspath(top).rstrip('/')}/"
        if topdown:
            yield os.fspath(top), directories, files
        for name in directories:
            if followlinks or name not in links:
                yield from self.walk(below + name, topdown, onerror, followlinks)
        if not topdown:
            yield os.fspath(top), directories, files


# What this process is attached to.
_ATTACHED = weakref.WeakSet()


def _let_go():
    for deployment in list(_ATTACHED):
        deployment._forked()


os.register_at_fork(after_in_child=_let_go)


def _checked(found, paths, on_error):
    """Bytes, and errors in the place of their numbers."""
    for index, path in enumerate(paths):
        if isinstance(found[index], int):
            error = OSError(found[index], os.strerror(found[index]), os.fsdecode(path))
            if on_error == "raise":
                raise error
            found[index] = error
    return found


def _attached(name, key):
    return Deployment(name, key=key)


# What paths and files that were pickled are in, in this process: it is attached to once for all of them, and as long as one is there.
_SHARED = weakref.WeakValueDictionary()


def shared(name, key):
    """The deployment of a path or of a file that was pickled."""
    known = _SHARED.get((name, key))
    if known is None or known.closed:
        known = _SHARED[name, key] = Deployment(name, key=key)
    return known


def _umask():
    """The process's umask. (It can be read without changing it.)"""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022
