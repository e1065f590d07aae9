"""Paths in a deployment, with functions named as those of `pathlib`."""

import fnmatch
import os
from pathlib import PurePosixPath


class Path(os.PathLike):
    """A path in a deployment. What it does not have of its own it has from `pathlib.PurePosixPath`."""

    __slots__ = ("deployment", "_pure")

    def __init__(self, deployment, *parts):
        self.deployment = deployment
        self._pure = PurePosixPath("/", *(part._pure if isinstance(part, Path) else part for part in parts))

    def _with(self, pure):
        path = Path.__new__(Path)
        path.deployment, path._pure = self.deployment, pure
        return path

    def __reduce__(self):
        return _unpickled, (self.deployment.name, self.deployment._key, str(self._pure))

    def __fspath__(self):
        return str(self._pure)

    def __str__(self):
        return str(self._pure)

    def __repr__(self):
        return f"bivouac.Path({str(self._pure)!r} in {self.deployment.name!r})"

    def __hash__(self):
        return hash((self.deployment.name, self._pure))

    def __eq__(self, other):
        return isinstance(other, Path) and (self.deployment.name, self._pure) == (other.deployment.name, other._pure)

    def __lt__(self, other):
        return self._pure < other._pure if isinstance(other, Path) else NotImplemented

    def __truediv__(self, other):
        return self._with(self._pure / (other._pure if isinstance(other, Path) else other))

    def joinpath(self, *others):
        path = self
        for other in others:
            path = path / other
        return path

    name = property(lambda self: self._pure.name)
    stem = property(lambda self: self._pure.stem)
    suffix = property(lambda self: self._pure.suffix)
    suffixes = property(lambda self: self._pure.suffixes)
    parts = property(lambda self: self._pure.parts)
    parent = property(lambda self: self._with(self._pure.parent))
    parents = property(lambda self: [self._with(pure) for pure in self._pure.parents])

    def with_name(self, name):
        return self._with(self._pure.with_name(name))

    def with_suffix(self, suffix):
        return self._with(self._pure.with_suffix(suffix))

    def relative_to(self, other):
        return self._pure.relative_to(other._pure if isinstance(other, Path) else other)

    def match(self, pattern):
        return self._pure.match(pattern)

    def as_uri(self):
        return f"bivouac://{self.deployment.name}{self._pure}"

    # What is there.

    def open(self, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        return self.deployment.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self):
        return self.deployment.read_bytes(self)

    def write_bytes(self, data):
        return self.deployment.write_bytes(self, data)

    def read_text(self, encoding=None, errors=None):
        return self.deployment.read_text(self, encoding, errors)

    def write_text(self, text, encoding=None, errors=None):
        return self.deployment.write_text(self, text, encoding, errors)

    def stat(self, *, follow_symlinks=True):
        return self.deployment.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self):
        return self.deployment.lstat(self)

    def exists(self):
        return self.deployment.exists(self)

    def is_file(self):
        return self.deployment.isfile(self)

    def is_dir(self):
        return self.deployment.isdir(self)

    def is_symlink(self):
        return self.deployment.islink(self)

    def chmod(self, mode):
        self.deployment.chmod(self, mode)

    def touch(self, mode=0o666, exist_ok=True):
        self.deployment.open(self, "ab" if exist_ok else "xb", 0, permissions=mode).close()
        if exist_ok:
            self.deployment.utime(self)

    def mkdir(self, mode=0o777, parents=False, exist_ok=False):
        if parents:
            self.deployment.makedirs(self, mode, exist_ok)
            return
        try:
            self.deployment.mkdir(self, mode)
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def unlink(self, missing_ok=False):
        try:
            self.deployment.remove(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self):
        self.deployment.rmdir(self)

    def rename(self, target):
        target = target if isinstance(target, Path) else self._with(PurePosixPath("/", target))
        self.deployment.rename(self, target)
        return target

    replace = rename

    def symlink_to(self, target):
        self.deployment.symlink(target, self)

    def hardlink_to(self, target):
        self.deployment.link(target, self)

    def readlink(self):
        return PurePosixPath(self.deployment.readlink(self))

    def resolve(self):
        return self._with(PurePosixPath(self.deployment.realpath(self)))

    def iterdir(self):
        for entry in self.deployment.scandir(self):
            yield self / entry.name

    def walk(self, top_down=True, on_error=None, follow_symlinks=False):
        for top, directories, files in self.deployment.walk(self, top_down, on_error, follow_symlinks):
            yield self._with(PurePosixPath(top)), directories, files

    def glob(self, pattern):
        """As `pathlib.Path.glob`: `*`, `?`, `[...]` in names, and `**` for any number of directories."""
        parts = PurePosixPath(pattern).parts
        if not parts or pattern.startswith("/"):
            raise ValueError(f"unacceptable pattern: {pattern!r}")
        seen = set()
        for found in self._globbed(parts):
            if found not in seen:
                seen.add(found)
                yield found

    def rglob(self, pattern):
        return self.glob(f"**/{pattern}")

    def _globbed(self, parts):
        first, rest = parts[0], parts[1:]
        if first == "**":
            yield from self._globbed(rest) if rest else [self]
            for entry in self.deployment.scandir(self):
                if entry.is_dir(follow_symlinks=False):
                    yield from (self / entry.name)._globbed(parts)
            return
        for entry in self.deployment.scandir(self):
            if fnmatch.fnmatchcase(entry.name, first):
                if not rest:
                    yield self / entry.name
                elif entry.is_dir():
                    yield from (self / entry.name)._globbed(rest)


def _unpickled(name, key, path):
    from ._deployment import shared

    return Path(shared(name, key), path)
