"""fsspec: `bivouac://DEPLOYMENT/path`, or `bivouac:///path` for the deployment that the environment names.

Deployments are to this file system what buckets are to a store of objects: the first name of a path is that of a deployment, so
that one file system serves several, and a path is whole wherever a library takes it apart and puts it together again.

Nothing is cached: what others write is seen at once, and asking costs no more than a cache would save. Files are Python's own
buffered files over `RawFile`. `cat` and `cat_ranges` of many paths are few exchanges with all servers at the same time.
"""

import errno
import os
import re
import shutil
import stat as modes
import threading
import uuid
from datetime import datetime, timezone

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from ._deployment import Deployment
from ._file import BUFFER

PROTOCOL = "bivouac"
PREFIXES = (f"{PROTOCOL}://", f"{PROTOCOL}::")


_SIGN = re.compile(r"[*?\[]").search


def _is_pattern(path):
    return _SIGN(stringify_path(path)) is not None


# Held while a deployment is attached to.
_guard = threading.Lock()


def _forked():
    """In a forked child: a thread of the parent, which may have held it, is not there."""
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_forked)


class BivouacFileSystem(AbstractFileSystem):
    """Deployments as fsspec sees them. `key`: the deployments' key, if this node is not to be asked for it; `auto_mkdir`: writing a
    file makes the directories that it is to be in, as stores do that have none (and as Hadoop does)."""

    protocol = PROTOCOL
    root_marker = ""

    def __init__(self, key=None, auto_mkdir=True, **options):
        options.setdefault("use_listings_cache", False)
        super().__init__(**options)
        self.key, self.auto_mkdir = key, auto_mkdir
        self._deployments = {}

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        for prefix in PREFIXES:
            if path.startswith(prefix):
                path = path[len(prefix) :]
                if path.startswith("/"):
                    if not os.environ.get("BIVOUAC_DEPLOYMENT"):
                        raise ValueError(f"{PROTOCOL}://{path} names no deployment, and neither does the environment")
                    path = os.environ["BIVOUAC_DEPLOYMENT"] + path
        return path.strip("/")

    def unstrip_protocol(self, name):
        return f"{PROTOCOL}://{self._strip_protocol(name)}"

    def deployment(self, path) -> Deployment:
        """The deployment of a path; it is attached to once."""
        return self._named(self._strip_protocol(path).partition("/")[0])

    def _named(self, name):
        known = self._deployments.get(name)
        if known is None or known.closed:
            if not name:
                raise FileNotFoundError(errno.ENOENT, "the path names no deployment: bivouac://DEPLOYMENT/path", name)
            with _guard:
                known = self._deployments.get(name)
                if known is None or known.closed:
                    known = self._deployments[name] = Deployment(name, key=self.key)
        return known

    def _at(self, path):
        """The deployment of a path, and the path in it."""
        name, _, inside = self._strip_protocol(path).partition("/")
        return self._named(name), "/" + inside

    def close(self):
        """Detaches from all deployments."""
        while self._deployments:
            self._deployments.popitem()[1].close()

    # Looking.

    @staticmethod
    def _shown(path, stat, target=None):
        kind = "directory" if modes.S_ISDIR(stat.st_mode) else "file" if modes.S_ISREG(stat.st_mode) else "other"
        shown = {
            "name": path,
            "size": stat.st_size if kind == "file" else 0,
            "type": kind,
            "created": stat.st_ctime,
            "mtime": stat.st_mtime,
            "mode": stat.st_mode,
            "uid": stat.st_uid,
            "gid": stat.st_gid,
            "ino": stat.st_ino,
            "nlink": stat.st_nlink,
            "islink": target is not None,
        }
        if target is not None:
            shown["destination"] = target
        return shown

    def _followed(self, path, job, inside, stat):
        """What is shown of an entry. A symbolic link to a file is shown as that file. One to a directory is none: who goes through a
        tree, and perhaps removes it, must not get into another one, or into the same one again."""
        if not modes.S_ISLNK(stat.st_mode):
            return self._shown(path, stat)
        target = job.readlink(inside)
        try:
            followed = job.stat(inside)
        except OSError:
            followed = stat
        return self._shown(path, followed if modes.S_ISREG(followed.st_mode) else stat, target)

    def info(self, path, **_):
        path = self._strip_protocol(path)
        if not path:
            return {"name": "", "size": 0, "type": "directory"}
        job, inside = self._at(path)
        return self._followed(path, job, inside, job.lstat(inside))

    def ls(self, path, detail=True, **_):
        path = self._strip_protocol(path)
        if not path:
            found = [{"name": name, "size": 0, "type": "directory"} for name in sorted(self._deployments)]
            return found if detail else [one["name"] for one in found]
        job, inside = self._at(path)
        try:
            entries = [(f"{path}/{entry.name}", entry) for entry in job.scandir(inside)]
        except NotADirectoryError:
            shown = self.info(path)
            return [shown if detail else path]
        if not detail:
            return [name for name, _ in entries]
        return [self._followed(name, job, entry.path, entry.stat(follow_symlinks=False)) for name, entry in entries]

    def exists(self, path, **_):
        try:
            job, inside = self._at(path)
        except OSError:
            return self._strip_protocol(path) == ""
        return job.exists(inside)

    def lexists(self, path, **_):
        job, inside = self._at(path)
        return job.islink(inside) or job.exists(inside)

    def isfile(self, path):
        if not self._strip_protocol(path):
            return False
        job, inside = self._at(path)
        return job.isfile(inside)

    def isdir(self, path):
        if not self._strip_protocol(path):
            return True
        try:
            job, inside = self._at(path)
        except OSError:
            return False
        return job.isdir(inside)

    def islink(self, path):
        job, inside = self._at(path)
        return job.islink(inside)

    def created(self, path):
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path):
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def ukey(self, path):
        job, inside = self._at(path)
        stat = job.stat(inside)
        return f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ctime_ns}"

    def locate(self, path, offset=0, length=None):
        """Which hosts have which part of a file (`bivouac.Location`)."""
        job, inside = self._at(path)
        return job.locate(inside, offset, length)

    # Making, moving, removing.

    def mkdir(self, path, create_parents=True, **_):
        job, inside = self._at(path)
        if create_parents:
            job.makedirs(os.path.dirname(inside), exist_ok=True)
        job.mkdir(inside)

    def makedirs(self, path, exist_ok=False):
        job, inside = self._at(path)
        job.makedirs(inside, exist_ok=exist_ok)

    def rmdir(self, path):
        job, inside = self._at(path)
        job.rmdir(inside)

    def rm_file(self, path):
        job, inside = self._at(path)
        job.remove(inside)

    _rm = rm_file

    def rm(self, path, recursive=False, maxdepth=None):
        if maxdepth is not None:
            raise NotImplementedError("a part of a tree is not removed: give the paths")
        # The longest first: a pattern may have found a directory and what is in it.
        for one in sorted(self.expand_path(path), key=len, reverse=True):
            job, inside = self._at(one)
            if job.islink(inside) or not job.isdir(inside):
                job.remove(inside)
            elif not recursive:
                raise IsADirectoryError(errno.EISDIR, "recursive is needed to remove a directory", one)
            elif inside != "/":
                job.rmtree(inside)
            else:
                # The deployment itself stays.
                for entry in job.scandir("/"):
                    self.rm(f"{one}/{entry.name}", recursive=True)

    def mv(self, path1, path2, recursive=False, maxdepth=None, **options):
        if isinstance(path1, list) or _is_pattern(path1):
            for one in self.expand_path(path1):
                self.mv(one, self._strip_protocol(path2) + "/")
            return
        (job, source), (other, target) = self._at(path1), self._at(path2)
        if job is not other:
            # Copied first, so that what fails has removed nothing.
            super().mv(path1, path2, recursive=recursive or job.isdir(source), maxdepth=maxdepth, **options)
            return
        if job.isdir(target) or str(path2).endswith("/"):
            target = f"{target.rstrip('/')}/{os.path.basename(source)}"
        if self.auto_mkdir:
            job.makedirs(os.path.dirname(target), exist_ok=True)
        job.rename(source, target)

    def mv_file(self, path1, path2, **_):
        (job, source), (other, target) = self._at(path1), self._at(path2)
        if job is not other:
            self.cp_file(path1, path2)
            return job.remove(source)
        return job.rename(source, target)

    def cp_file(self, path1, path2, **_):
        (job, source), (other, target) = self._at(path1), self._at(path2)
        if job.isdir(source):
            other.makedirs(target, exist_ok=True)
            return
        if job is other and other.exists(target) and job.stat(source).st_ino == other.stat(target).st_ino:
            raise shutil.SameFileError(f"{path1} and {path2} are the same file")
        with job.open(source, "rb", 0) as reader, self._written(other, target, "wb") as writer:
            self._copied(reader, writer)

    def link(self, src, dst, **_):
        (job, source), (other, target) = self._at(src), self._at(dst)
        if job is not other:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), src)
        job.link(source, target)

    def chmod(self, path, mode):
        job, inside = self._at(path)
        job.chmod(inside, mode)

    def touch(self, path, truncate=True, **_):
        job, inside = self._at(path)
        self._written(job, inside, "wb" if truncate else "ab").close()
        job.utime(inside)

    # Data.

    def _written(self, job, path, mode, buffering=0):
        """A file that is to be written, and if need be the directories above it."""
        try:
            return job.open(path, mode, buffering)
        except FileNotFoundError:
            if not self.auto_mkdir:
                raise
            job.makedirs(os.path.dirname(path), exist_ok=True)
            return job.open(path, mode, buffering)

    @staticmethod
    def _copied(reader, writer, most=4 << 20):
        buffer = memoryview(bytearray(most))
        while count := reader.readinto(buffer):
            rest = buffer[:count]
            while rest:
                rest = rest[writer.write(rest) :]

    def get_file(self, rpath, lpath, callback=None, outfile=None, **_):
        job, inside = self._at(rpath)
        if job.isdir(inside):
            os.makedirs(lpath, exist_ok=True)
            return
        with job.open(inside, "rb", 0) as reader:
            size = reader.stat().st_size
            if callback is not None:
                callback.set_size(size)
            if outfile is None:
                os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
                with open(lpath, "wb", 0) as writer:
                    self._copied(reader, writer)
            else:
                self._copied(reader, outfile)
            if callback is not None:
                callback.absolute_update(size)

    def put_file(self, lpath, rpath, callback=None, mode="overwrite", **_):
        job, inside = self._at(rpath)
        if os.path.isdir(lpath):
            job.makedirs(inside, exist_ok=True)
            return
        with open(lpath, "rb", 0) as reader:
            size = os.fstat(reader.fileno()).st_size
            if callback is not None:
                callback.set_size(size)
            with self._written(job, inside, "xb" if mode == "create" else "wb") as writer:
                self._copied(reader, writer)
            if callback is not None:
                callback.absolute_update(size)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **_):
        job, inside = self._at(path)
        size = block_size if isinstance(block_size, int) and block_size > 1 else BUFFER
        mode = mode if "b" in mode else mode + "b"
        if "r" in mode:
            return job.open(inside, mode, size)
        if not autocommit:
            return _Pending(self, job, inside, mode, size)
        return self._written(job, inside, mode, size)

    @staticmethod
    def _range(job, path, start, end):
        """Offset and length of what a slice means."""
        if start is not None and start >= 0 and end is not None and end >= 0:
            return start, max(0, end - start)
        start, end, _ = slice(start, end).indices(job.stat(path).st_size)
        return start, max(0, end - start)

    def cat_file(self, path, start=None, end=None, **_):
        job, inside = self._at(path)
        with job.open(inside, "rb", 0) as file:
            if start is None and end is None:
                return file.readall()
            offset, length = self._range(job, inside, start, end)
            return file.pread(length, offset)

    def _each(self, paths, ask):
        """What `ask` says of the paths (without the protocol) in each deployment, in their order."""
        found, of_job = [None] * len(paths), {}
        last = None
        for index, path in enumerate(paths):
            name, _, inside = path.partition("/")
            if name != last:
                try:
                    last, asked = name, of_job.setdefault(self._named(name), [])
                except OSError as error:
                    found[index] = error
                    continue
            asked.append((index, "/" + inside))
        for job, asked in of_job.items():
            for (index, _), one in zip(asked, ask(job, asked)):
                found[index] = one
        return found

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **_):
        paths = list(paths)
        starts = [starts] * len(paths) if not isinstance(starts, (list, tuple)) else starts
        ends = [ends] * len(paths) if not isinstance(ends, (list, tuple)) else ends
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("there have to be as many paths as starts and ends")

        def ask(job, asked):
            ranges = []
            for index, inside in asked:
                try:
                    ranges.append((inside, *self._range(job, inside, starts[index], ends[index])))
                except OSError:
                    # Reading it says the same.
                    ranges.append((inside, 0, 1))
            return job.read_many(ranges, on_error="return")

        found = self._each([self._strip_protocol(path) for path in paths], ask)
        errors = [one for one in found if isinstance(one, OSError)]
        if errors and on_error == "raise":
            raise errors[0]
        return found

    def cat(self, path, recursive=False, on_error="raise", **options):
        if isinstance(path, list) and path and not recursive and not options and not any(map(_is_pattern, path)):
            # Looking at each of thousands of names would take longer than reading the files.
            paths = list(dict.fromkeys(map(self._strip_protocol, path)))
        else:
            paths = self.expand_path(path, recursive=recursive)
        if options or (isinstance(path, str) and paths == [self._strip_protocol(path)] and not recursive):
            return super().cat(path, recursive=recursive, on_error=on_error, **options)
        found = self._each(paths, lambda job, asked: job.read_files([path for _, path in asked], on_error="return"))
        # Directories that a pattern has found, or that are gone through, are not meant.
        is_pattern = recursive or any(map(_is_pattern, path if isinstance(path, list) else [path]))
        done = {}
        for name, one in zip(paths, found):
            if isinstance(one, OSError):
                if on_error == "omit" or (is_pattern and isinstance(one, IsADirectoryError)):
                    continue
                if on_error == "raise":
                    raise one
            done[name] = one
        return done

    def pipe_file(self, path, value, mode="overwrite", **_):
        job, inside = self._at(path)
        with self._written(job, inside, "xb" if mode == "create" else "wb") as file:
            rest = memoryview(value).cast("B")
            while rest:
                rest = rest[file.write(rest) :]


class _Pending:
    """A file of a transaction: it gets its name when that is committed. What is appended to a file is there at once."""

    def __init__(self, fs, job, path, mode, size):
        self.job, self.path = job, path
        self.exclusive = "x" in mode
        if self.exclusive and job.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.temporary = None if "a" in mode else f"{path}.{uuid.uuid4().hex}.pending"
        self.file = fs._written(job, self.temporary or path, mode, size)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def commit(self):
        if self.temporary:
            self.job.rename(self.temporary, self.path, exclusive=self.exclusive)

    def discard(self):
        if self.temporary:
            self.job.remove(self.temporary)
