#!/usr/bin/env python3
"""Marks a shared library as `-z initfirst` does, for linkers that do not know the option: its constructors run before those of
all other libraries. Usage: initfirst.py LIBRARY"""

import struct
import sys

PT_DYNAMIC, DT_NULL, DT_FLAGS_1, DF_1_INITFIRST = 2, 0, 0x6FFFFFFB, 0x20


def main(path):
    with open(path, "r+b") as file:
        elf = bytearray(file.read())
        if elf[:6] != b"\x7fELF\x02\x01":
            sys.exit(f"{path} is no 64-bit little-endian ELF file")
        (table,) = struct.unpack_from("<Q", elf, 32)
        size, count = struct.unpack_from("<HH", elf, 54)
        for header in range(table, table + size * count, size):
            kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", elf, header)
            for entry in range(at, at + length, 16) if kind == PT_DYNAMIC else ():
                tag, value = struct.unpack_from("<QQ", elf, entry)
                if tag == DT_FLAGS_1:
                    file.seek(entry + 8)
                    file.write(struct.pack("<Q", value | DF_1_INITFIRST))
                    return
                if tag == DT_NULL:
                    break
    sys.exit(f"{path} has no flags to set: link it with `-z nodelete`, which makes them")


main(sys.argv[1])
