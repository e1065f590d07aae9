"""fsspec: `bivouac://DEPLOYMENT/path`, or `bivouac:///path` for the deployment that the environment names.

Nothing is cached: what others write is seen at once, and asking costs no more than a cache would save. Files are Python's own
buffered files over `RawFile`. `cat`, `cat_ranges` and `pipe` of many paths are few exchanges with all servers at the same time.
"""

import errno
import os
import stat as modes
import uuid
from datetime import datetime, timezone

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from ._deployment import Deployment
from ._file import BUFFER

PROTOCOL = "bivouac"


def _split(url):
    """The deployment and the path of a URL; a path alone has no deployment."""
    url = stringify_path(url)
    for prefix in (f"{PROTOCOL}://", f"{PROTOCOL}::"):
        if url.startswith(prefix):
            name, slash, path = url[len(prefix) :].partition("/")
            return name or None, slash + path
    return None, url


class BivouacFileSystem(AbstractFileSystem):
    """A deployment as fsspec sees it. `deployment`: its name, or a `bivouac.Deployment`; `key`: its key, if this node is not to be
    asked for it; `auto_mkdir`: writing a file makes the directories that it is to be in, as with stores that have none."""

    protocol = PROTOCOL
    root_marker = "/"
    local_file = False

    def __init__(self, deployment=None, key=None, auto_mkdir=False, **options):
        options.setdefault("use_listings_cache", False)
        super().__init__(**options)
        self.auto_mkdir = auto_mkdir
        self.deployment = deployment if isinstance(deployment, Deployment) else Deployment(deployment, key=key)

    @property
    def fsid(self):
        return f"{PROTOCOL}-{self.deployment.name}"

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return "/" + _split(path)[1].strip("/")

    @staticmethod
    def _get_kwargs_from_urls(url):
        name, _ = _split(url)
        return {"deployment": name} if name else {}

    def unstrip_protocol(self, name):
        return f"{PROTOCOL}://{self.deployment.name}{self._strip_protocol(name)}"

    # Looking.

    def _shown(self, path, stat, target=None):
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

    def _followed(self, path, stat):
        """What is shown of an entry: of a symbolic link, what it leads to."""
        if not modes.S_ISLNK(stat.st_mode):
            return self._shown(path, stat)
        target = self.deployment.readlink(path)
        try:
            return self._shown(path, self.deployment.stat(path), target)
        except OSError:
            return self._shown(path, stat, target)

    def info(self, path, **_):
        path = self._strip_protocol(path)
        return self._followed(path, self.deployment.lstat(path))

    def ls(self, path, detail=True, **_):
        path = self._strip_protocol(path)
        try:
            found = [
                self._followed(entry.path, entry.stat(follow_symlinks=False)) if detail else entry.path
                for entry in self.deployment.scandir(path)
            ]
        except NotADirectoryError:
            shown = self.info(path)
            found = [shown if detail else path]
        return found

    def exists(self, path, **_):
        return self.deployment.exists(self._strip_protocol(path))

    def lexists(self, path, **_):
        path = self._strip_protocol(path)
        return self.deployment.islink(path) or self.deployment.exists(path)

    def isfile(self, path):
        return self.deployment.isfile(self._strip_protocol(path))

    def isdir(self, path):
        return self.deployment.isdir(self._strip_protocol(path))

    def islink(self, path):
        return self.deployment.islink(self._strip_protocol(path))

    def created(self, path):
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path):
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def ukey(self, path):
        stat = self.deployment.stat(self._strip_protocol(path))
        return f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ctime_ns}"

    def checksum(self, path):
        return int.from_bytes(self.ukey(path).encode()[-15:], "big")

    def locate(self, path, offset=0, length=None):
        """Which hosts have which part of a file (`bivouac.Location`)."""
        return self.deployment.locate(self._strip_protocol(path), offset, length)

    # Making, moving, removing.

    def mkdir(self, path, create_parents=True, **_):
        path = self._strip_protocol(path)
        if create_parents:
            self.makedirs(self._parent(path), exist_ok=True)
        self.deployment.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        path = self._strip_protocol(path)
        if path == "/":
            if not exist_ok:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            return
        self.deployment.makedirs(path, exist_ok=exist_ok)

    def rmdir(self, path):
        self.deployment.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        self.deployment.remove(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path, recursive=False, maxdepth=None):
        if not isinstance(path, list):
            path = [path]
        for one in self.expand_path(path, recursive=recursive, maxdepth=maxdepth)[::-1]:
            if self.deployment.isdir(one) and not self.deployment.islink(one):
                if one == "/":
                    continue
                if not recursive:
                    raise IsADirectoryError(errno.EISDIR, "recursive is needed to remove a directory", one)
                self.deployment.rmdir(one)
            else:
                self.deployment.remove(one)

    def mv(self, path1, path2, recursive=False, maxdepth=None, **options):
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self._has_glob(source) or (str(path2).endswith("/") and self.isdir(target)):
            return super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
        if self.isdir(source) and self.isdir(target):
            return super().mv(path1, path2, recursive=True, maxdepth=maxdepth, **options)
        self.makedirs(self._parent(target), exist_ok=True)
        self.deployment.rename(source, target)

    @staticmethod
    def _has_glob(path):
        return any(sign in path for sign in "*?[")

    def mv_file(self, path1, path2, **_):
        self.deployment.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def cp_file(self, path1, path2, **_):
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.makedirs(target, exist_ok=True)
            return
        self.makedirs(self._parent(target), exist_ok=True)
        with self.deployment.open(source, "rb", 0) as reader, self.deployment.open(target, "wb", 0) as writer:
            self._copied(reader, writer)

    def link(self, src, dst, **_):
        self.deployment.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src, dst, **_):
        self.deployment.symlink(self._strip_protocol(src), self._strip_protocol(dst))

    def chmod(self, path, mode):
        self.deployment.chmod(self._strip_protocol(path), mode)

    def touch(self, path, truncate=True, **_):
        path = self._made(path)
        self.deployment.open(path, "wb" if truncate else "ab", 0).close()
        self.deployment.utime(path)

    # Data.

    def _made(self, path):
        """A path of a file that is to be written."""
        path = self._strip_protocol(path)
        if self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)
        return path

    @staticmethod
    def _copied(reader, writer, most=4 << 20):
        buffer = memoryview(bytearray(most))
        while count := reader.readinto(buffer):
            rest = buffer[:count]
            while rest:
                rest = rest[writer.write(rest) :]

    def get_file(self, rpath, lpath, callback=None, outfile=None, **_):
        path = self._strip_protocol(rpath)
        if self.isdir(path):
            os.makedirs(lpath, exist_ok=True)
            return
        with self.deployment.open(path, "rb", 0) as reader:
            if callback is not None:
                callback.set_size(reader.stat().st_size)
            target = outfile if outfile is not None else None
            if target is None:
                os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
                with open(lpath, "wb", 0) as writer:
                    self._copied(reader, writer)
            else:
                self._copied(reader, target)
            if callback is not None:
                callback.absolute_update(reader.stat().st_size)

    def put_file(self, lpath, rpath, callback=None, mode="overwrite", **_):
        path = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            self.makedirs(path, exist_ok=True)
            return
        self.makedirs(self._parent(path), exist_ok=True)
        with open(lpath, "rb", 0) as reader:
            size = os.fstat(reader.fileno()).st_size
            if callback is not None:
                callback.set_size(size)
            with self.deployment.open(path, "xb" if mode == "create" else "wb", 0) as writer:
                self._copied(reader, writer)
            if callback is not None:
                callback.absolute_update(size)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **_):
        path = self._made(path) if "r" not in mode else self._strip_protocol(path)
        size = block_size if isinstance(block_size, int) and block_size > 1 else BUFFER
        if not autocommit and "r" not in mode:
            return _Pending(self, path, mode)
        return self.deployment.open(path, mode if "b" in mode else mode + "b", size)

    def _range(self, path, start, end):
        """Offset and length of what a slice means."""
        if start is not None and start >= 0 and end is not None and end >= 0:
            return start, max(0, end - start)
        size = self.deployment.stat(path).st_size
        start, end, _ = slice(start, end).indices(size)
        return start, max(0, end - start)

    def cat_file(self, path, start=None, end=None, **_):
        path = self._strip_protocol(path)
        with self.deployment.open(path, "rb", 0) as file:
            if start is None and end is None:
                return file.readall()
            size = None if start is not None and start >= 0 and end is not None and end >= 0 else file.stat().st_size
            if size is not None:
                start, end, _ = slice(start, end).indices(size)
            return file.pread(max(0, end - start), start)

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **_):
        paths = self._strip_protocol(list(paths))
        starts = [starts] * len(paths) if not isinstance(starts, (list, tuple)) else starts
        ends = [ends] * len(paths) if not isinstance(ends, (list, tuple)) else ends
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("there have to be as many paths as starts and ends")
        found, pieces, asked = [None] * len(paths), [], []
        for index, (path, start, end) in enumerate(zip(paths, starts, ends)):
            try:
                pieces.append((path, *self._range(path, start, end)))
                asked.append(index)
            except OSError as error:
                if on_error == "raise":
                    raise
                found[index] = error
        for index, piece in zip(asked, self.deployment.read_many(pieces, on_error="return")):
            found[index] = piece
        errors = [one for one in found if isinstance(one, OSError)]
        if errors and on_error == "raise":
            raise errors[0]
        return found

    def cat(self, path, recursive=False, on_error="raise", **options):
        paths = self.expand_path(path, recursive=recursive)
        alone = isinstance(path, str) and len(paths) == 1 and paths[0] == self._strip_protocol(path)
        if alone and not recursive:
            return self.cat_file(paths[0], **options)
        if options:
            return super().cat(path, recursive=recursive, on_error=on_error, **options)
        found = self.deployment.read_files(paths, on_error="return")
        done = {}
        for name, one in zip(paths, found):
            if isinstance(one, IsADirectoryError) and (recursive or self._has_glob(str(path))):
                continue
            if isinstance(one, OSError):
                if on_error == "raise":
                    raise one
                if on_error == "omit":
                    continue
            done[name] = one
        return done

    def pipe_file(self, path, value, mode="overwrite", **_):
        path = self._made(path)
        with self.deployment.open(path, "xb" if mode == "create" else "wb", 0) as file:
            rest = memoryview(value).cast("B")
            while rest:
                rest = rest[file.write(rest) :]


class _Pending:
    """A file of a transaction: it gets its name when that is committed."""

    def __init__(self, fs, path, mode):
        self.fs, self.path = fs, path
        self.temporary = f"{path}.{uuid.uuid4().hex}.pending"
        self.file = fs.deployment.open(self.temporary, mode if "b" in mode else mode + "b")

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def commit(self):
        self.fs.deployment.rename(self.temporary, self.path)

    def discard(self):
        self.fs.deployment.remove(self.temporary)
