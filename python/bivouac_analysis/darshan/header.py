"""What can be said of a log without Darshan's library: whether it is a whole log of version 3.

A log that is shorter than its own table of contents says is refused here, because the library returns what it finds in such a log
without an error.
"""

import bz2
import lzma
import os
import re
import stat
import struct
import zlib

from .errors import Compressed, NewVersion, NotDarshan, OldVersion, Truncated, Unreadable

MAGIC = 6567223


def check_header(path: str) -> None:
    """Refuses what is not a complete log of version 3."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise Unreadable(f"{path} is a directory: name one log in it, a file that ends in .darshan")
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(f"{path} is not a regular file: save the log to a file first")
        with open(path, "rb") as file:
            head = file.read(4096)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Unreadable(f"{path} cannot be read: {reason}. Check the path and the permissions") from None
    if not head:
        raise Truncated(
            f"{path} is empty: the job did not finish writing its log. Take the log of a run that ended normally"
        )
    check_compression(path, head)
    check_version(path, head, status.st_size)


def check_compression(path: str, head: bytes) -> None:
    # Without the last bytes of the file the decompressors still return its beginning.
    wrappers = [
        (b"\x1f\x8b", "gzip", "gunzip", lambda: zlib.decompressobj(31).decompress(head, 64)),
        (b"BZh", "bzip2", "bunzip2", lambda: bz2.BZ2Decompressor().decompress(head, 64)),
        (b"\xfd7zXZ\x00", "xz", "unxz", lambda: lzma.LZMADecompressor(memlimit=1 << 28).decompress(head, 64)),
        (b"\x28\xb5\x2f\xfd", "zstd", "unzstd", lambda: b""),
    ]
    for magic, name, command, decompress in wrappers:
        if not head.startswith(magic):
            continue
        try:
            inside = decompress()
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
            inside = b""
        if re.match(rb"[12]\.\d\d\0", inside):
            raise OldVersion(old_version(path, inside[:4].decode()))
        what = "a Darshan log" if re.match(rb"\d\.\d\d\0", inside) else "a file"
        raise Compressed(
            f"{path} is {what} that was compressed with {name}: unpack it with `{command}` and name the result"
        )


def old_version(path: str, version: str) -> str:
    return (
        f"{path} is a log of Darshan {version}, and only version 3 can be read: "
        f"run the program with Darshan 3, or convert the log with darshan-convert of Darshan 2.3 or 3.0"
    )


def check_version(path: str, head: bytes, size: int) -> None:
    version = re.match(rb"(\d)\.(\d\d)\0", head)
    if not version:
        if re.match(rb"\d?\.?\d{0,2}\0?$", head) and len(head) < 5:
            raise Truncated(
                f"{path} ends after {len(head)} bytes: copy the log again, or take that of a run that ended normally"
            )
        raise NotDarshan(f"{path} is not a Darshan log: name a file that Darshan wrote (its name ends in .darshan)")
    number = version.group().rstrip(b"\0").decode()
    if version[1] in (b"0", b"1", b"2"):
        raise OldVersion(old_version(path, number))
    if version[1] != b"3":
        raise NewVersion(new_version(path, number))
    if len(head) < 16:
        raise Truncated(f"{path} ends within its header: copy the log again, or take that of a run that ended normally")
    order = next((order for order in "<>" if struct.unpack_from(order + "q", head, 8)[0] == MAGIC), None)
    if order is None:
        raise NotDarshan(
            f"{path} begins like a Darshan log but has not its magic number: copy it again, in binary mode"
        )
    end = end_of_data(head, order)
    if end is not None and size < end:
        raise Truncated(
            f"{path} has {size} bytes and should have {end}: copy the log again, or take that of a run that ended normally"
        )


def new_version(path: str, version: str) -> str:
    return (
        f"{path} is a log of Darshan {version}, which the installed PyDarshan does not read: "
        f"install a newer one with `pip install --upgrade darshan`"
    )


def end_of_data(head: bytes, order: str) -> int | None:
    """Where the last piece of data ends, by the table in the header. None: the header has a form that is not known here.

    The header is a version, a magic number, a compression, a flag, and for the names and each module an offset and a length.
    Up to 3.21 there are 16 modules and the flag has 32 bits; later there are 64 modules.
    """
    for modules, table in ((16, 24), (64, 24), (64, 32)):
        header = table + 16 * (modules + 1) + 4 * modules
        if len(head) < table + 16:
            return header
        names = struct.unpack_from(order + "QQ", head, table)
        if not header <= names[0] < header + (1 << 20):
            continue
        if len(head) < header:
            return header
        entries = [struct.unpack_from(order + "QQ", head, table + 16 * i) for i in range(modules + 1)]
        return max([header] + [offset + length for offset, length in entries if length])
    return None
