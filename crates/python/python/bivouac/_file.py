"""Open files, as Python's own: a raw file, and on it the buffers and the text of `io`."""

import errno
import io
import os
import time
from contextlib import contextmanager

# The buffer of a file that is not told how large to make it, bytes.
BUFFER = 128 << 10


def parsed(mode):
    """The flags of `open(2)` for a mode of `open`, and whether it reads, writes, appends, and is text."""
    letters = set(mode)
    kinds = letters & set("rwxa")
    if len(letters) != len(mode) or letters - set("rwxabt+") or len(kinds) != 1 or {"b", "t"} <= letters:
        raise ValueError(f"invalid mode: {mode!r}")
    kind = kinds.pop()
    reads, writes = kind == "r" or "+" in letters, kind != "r" or "+" in letters
    flags = os.O_RDWR if reads and writes else os.O_WRONLY if writes else os.O_RDONLY
    flags |= {"r": 0, "w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL, "a": os.O_CREAT | os.O_APPEND}[kind]
    return flags, reads, writes, kind == "a", "b" not in letters


class RawFile(io.RawIOBase):
    """An open file without a buffer.

    Besides what every raw file of Python has: reading and writing at an offset (`pread`, `preadinto`, `pwrite`), appending
    (`append`), locks, `sync`. Memory is filled and read where it is: `readinto(numpy_array)` makes no copy. The interpreter's
    lock is released meanwhile, so that several threads read at the same time.
    """

    def __init__(self, deployment, path, mode="r", permissions=0o666):
        super().__init__()
        self._file = None
        flags, self._reads, self._writes, self._appends, _ = parsed(mode)
        self._file = deployment._opened(path, flags, permissions)
        self._deployment = deployment
        deployment._track(self)
        self.name = os.fspath(path)
        self.mode = mode.replace("t", "") if "b" in mode else mode.replace("t", "") + "b"

    def __repr__(self):
        return f"<bivouac.RawFile name={self.name!r} mode={self.mode!r}>"

    def __reduce__(self):
        return _pickled(self, 0, self)

    def _open(self):
        if self.closed or self._file is None:
            raise ValueError("I/O operation on closed file")
        if not self._file.is_own():
            raise OSError(errno.EBADF, "the file was opened before a fork: open it in this process", self.name)
        return self._file

    def _for(self, allowed, what):
        file = self._open()
        if not allowed:
            raise io.UnsupportedOperation(f"not {what}")
        return file

    # What `io` asks for.

    def close(self):
        if not self.closed:
            try:
                super().close()
            finally:
                if self._file is not None:
                    self._file.close()

    def fileno(self):
        self._open()
        raise io.UnsupportedOperation("fileno: a file of a deployment is not one of the kernel's")

    def isatty(self):
        self._open()
        return False

    def readable(self):
        self._open()
        return self._reads

    def writable(self):
        self._open()
        return self._writes

    def seekable(self):
        self._open()
        return True

    def readinto(self, buffer):
        """Reads into memory at the file's position; how many bytes, 0 at the end."""
        return self._for(self._reads, "readable").readinto(buffer)

    def readall(self):
        """The rest of the file."""
        file = self._for(self._reads, "readable")
        at = file.seek(0, os.SEEK_CUR)
        pieces = []
        while piece := file.pread(1 << 30, at):
            pieces.append(piece)
            at += len(piece)
        file.seek(at, os.SEEK_SET)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, data):
        """Writes at the file's position, or at its end if it was opened to append; how many bytes."""
        return self._for(self._writes, "writable").write(data)

    def seek(self, offset, whence=os.SEEK_SET):
        return self._open().seek(offset, whence)

    def tell(self):
        return self._open().seek(0, os.SEEK_CUR)

    def truncate(self, size=None):
        file = self._for(self._writes, "writable")
        size = self.tell() if size is None else size
        if size < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        file.truncate(size)
        return size

    # What only files of a deployment have.

    def pread(self, length, offset):
        """Bytes at an offset; fewer only at the end of the file. Does not move the position."""
        return self._for(self._reads, "readable").pread(length, offset)

    def preadinto(self, buffer, offset):
        """Reads at an offset into memory; how many bytes."""
        return self._for(self._reads, "readable").preadinto(buffer, offset)

    def pwrite(self, data, offset):
        """Writes at an offset; how many bytes."""
        return self._for(self._writes, "writable").pwrite(data, offset)

    def append(self, data):
        """Writes at the end of the file, wherever that is by then, in one piece up to 4 MiB. Where it begins."""
        offset, count = self._for(self._writes, "writable").append(data)
        if count < len(memoryview(data).cast("B")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
        return offset

    def allocate(self, length, offset=0, mode=0):
        """As `fallocate(2)`."""
        self._for(self._writes, "writable").allocate(mode, offset, length)

    def sync(self):
        """Puts data and attributes on stable storage."""
        self._open().sync()

    def stat(self):
        """As `os.fstat`."""
        from ._deployment import result_of

        return result_of(self._open().stat())

    @contextmanager
    def locked(self, start=0, length=None, shared=False, timeout=None):
        """Holds a lock on a range of the file for this open file, to the end of the file without a length. `timeout`: seconds;
        TimeoutError after that."""
        until = None if timeout is None else time.monotonic() + timeout
        # Half a second at a time, so that signals (an interrupt from the keyboard) are heard.
        while not self._open().lock(not shared, start, length, until is None or until > time.monotonic()):
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, "somebody else has the lock", self.name)
        try:
            yield self
        finally:
            if not self.closed:
                self._open().unlock(start, length)


class Reader(io.BufferedReader):
    """A file that is read through a buffer. It can be pickled, as those of other file systems of fsspec can."""

    def __init__(self, raw, size):
        super().__init__(raw, size)
        self._size = size

    def __reduce__(self):
        return _pickled(self.raw, self._size, self)


def _pickled(raw, buffering, file):
    """What a file that is only read is pickled as: who gets it opens it anew, at the same position."""
    position = file.tell()
    if raw._writes:
        raise TypeError("a file that is open for writing cannot be pickled: open it where it is written")
    deployment = raw._deployment
    return _unpickled, (deployment.name, deployment._key, raw.name, raw.mode, buffering, position)


def _unpickled(name, key, path, mode, buffering, position):
    from ._deployment import shared

    file = shared(name, key).open(path, mode, buffering)
    file.seek(position)
    return file


def opened(deployment, path, mode, buffering, encoding, errors, newline, permissions):
    """As the built-in `open`."""
    flags, reads, writes, appends, text = parsed(mode)
    if not text and (encoding, errors, newline) != (None, None, None):
        raise ValueError("binary mode takes no encoding, errors or newline")
    if text and buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    raw = RawFile(deployment, path, mode, permissions)
    try:
        if appends:
            raw.seek(0, os.SEEK_END)
        if buffering == 0:
            return raw
        line_buffering = buffering == 1
        size = BUFFER if buffering < 0 or line_buffering else buffering
        kind = io.BufferedRandom if reads and writes else io.BufferedWriter if writes else Reader
        file = kind(raw, size)
        if not text:
            return deployment._track(file)
        text = io.TextIOWrapper(file, io.text_encoding(encoding), errors, newline, line_buffering)
        text.mode = mode
        return deployment._track(text)
    except BaseException:
        raw.close()
        raise
