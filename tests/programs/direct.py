# Writers and readers who hold their files' blocks directly, while others truncate, remove, replace and rename those files. Each file
# has a number of its own, and each 4 KiB of it say the number and their offset: whatever is read is that, or zeros.
import os, random, struct, sys, time

place, seconds, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
UNIT, SPAN, NAMES = 4096, 3 << 20, 6
os.makedirs(place, exist_ok=True)


def content(number, offset):
    return struct.pack("<QQ", number, offset) * (UNIT // 16)


def whole(number, offset, length):
    return b"".join(content(number, offset + at) for at in range(0, length, UNIT))[:length]


def path(name):
    return f"{place}/f{name}"


def check(what, number, offset, data):
    if data == whole(number, offset, len(data)) or not any(data):
        return
    for at in range(0, len(data), UNIT):
        unit = data[at : at + UNIT]
        # A write is not atomic towards a read, a truncation or a hole: each half of a unit is whole, or zeros.
        right = content(number, offset + at)[: len(unit)]
        for i in range(0, len(unit), 16):
            if unit[i : i + 16] not in (right[i : i + 16], bytes(len(unit[i : i + 16]))):
                found = struct.unpack("<QQ", unit[i : i + 16].ljust(16, b"\0"))
                sys.exit(f"{what}: file {number} at {offset + at + i} has what belongs to {found}")


def make(name, number):
    # Under a name of its own first, so that whoever finds it finds its number.
    fresh = f"{place}/.new-{number}"
    fd = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    os.setxattr(fresh, "user.number", str(number).encode())
    os.rename(fresh, path(name))
    return fd


def opened(name):
    """A file and its number, or None where there is none just now."""
    try:
        fd = os.open(path(name), os.O_RDWR)
    except FileNotFoundError:
        return None
    return fd, int(os.getxattr(fd, "user.number"))


def writer(chance, until):
    writes = 0
    while time.time() < until:
        found = opened(chance.randrange(NAMES))
        if not found:
            continue
        fd, number = found
        # Goes on for a while, also when the name is gone or the file was cut.
        for _ in range(chance.randrange(1, 40)):
            offset = chance.randrange(SPAN // UNIT) * UNIT
            count = chance.choice((1, 1, 3, 32, 200))
            data = whole(number, offset, count * UNIT)
            if os.pwrite(fd, data, offset) != len(data):
                sys.exit("a short write")
            writes += 1
            check("a read", number, offset, os.pread(fd, len(data), offset))
        os.close(fd)
    if writes < 20:
        sys.exit(f"only {writes} writes: no load")


def breaker(chance, until, base):
    number = base
    while time.time() < until:
        name = chance.randrange(NAMES)
        what = chance.randrange(6)
        try:
            if what == 0:
                os.truncate(path(name), chance.randrange(SPAN // 16) * 16)
            elif what == 1:
                os.unlink(path(name))
            elif what in (2, 3):
                number += 1
                os.close(make(name, number))
            elif what == 4:
                os.rename(path(name), path(chance.randrange(NAMES)))
            else:
                # What is cut off never comes back.
                found = opened(name)
                if found:
                    os.ftruncate(found[0], 0)
                    os.ftruncate(found[0], SPAN)
                    check("after a cut", found[1], 0, os.pread(found[0], SPAN, 0))
                    os.close(found[0])
        except FileNotFoundError:
            pass


until = time.time() + seconds
children = []
for i in range(5):
    pid = os.fork()
    if pid == 0:
        chance = random.Random(seed * 100 + i)
        if i < 3:
            writer(chance, until)
        else:
            breaker(chance, until, (i + 1) << 32)
        os._exit(0)
    children.append(pid)
failed = [pid for pid in children if os.waitpid(pid, 0)[1] != 0]
# When all is quiet, what was cut is zeros for good, and the rest is whole.
for name in range(NAMES):
    found = opened(name)
    if found:
        fd, number = found
        size = os.fstat(fd).st_size
        check("at the end", number, 0, os.pread(fd, size, 0))
        os.ftruncate(fd, size // 2)
        os.ftruncate(fd, size)
        if any(os.pread(fd, size, size // 2)):
            failed.append(name)
        os.close(fd)
print("failed" if failed else "whole")
sys.exit(1 if failed else 0)
