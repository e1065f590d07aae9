"""Reads as a Python program makes them, from a deployment (through the package) or from plain files. Row 24 runs it on both sides.

reads.py pieces api|plain WHERE FILE SECONDS       reads a file from its beginning to its end, again and again, by `readinto` of 1 MiB
reads.py small  cat|read_files|plain WHERE FILES BYTES    reads all of many small files once
reads.py make   DEPLOYMENT DIRECTORY FILES BYTES   makes these files in a deployment and in a directory, in turns
WHERE is the deployment's name or, for plain files, a directory. Prints MiB/s or files/s. What was read is compared with what was written,
outside of the time that is measured.
"""

import os
import sys
import time

PIECE = 1 << 20
IN_A_DIRECTORY = 1000


def content(number, size):
    """What is in a small file: no two of them are the same."""
    return (b"%d " % number * (size // 2))[:size]


def names(files):
    """Small files, a thousand in a directory."""
    return [f"small/{number // IN_A_DIRECTORY}/{number}" for number in range(files)]


def pieces(how, where, path, seconds):
    buffer = memoryview(bytearray(PIECE))
    if how == "api":
        import bivouac

        file = bivouac.Deployment(where).open(path, "rb", buffering=0)
    else:
        file = open(f"{where}/{path}", "rb", buffering=0)

    def whole():
        count = 0
        file.seek(0)
        while got := file.readinto(buffer):
            count += got
        return count

    size = whole()
    if size != file.seek(0, os.SEEK_END) or size % PIECE:
        raise SystemExit(f"{size} bytes of {path} were read")
    moved, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < float(seconds):
        moved += whole()
    # harness.FILL writes bytes(range(256)) again and again.
    if bytes(buffer) != bytes(range(256)) * (PIECE // 256):
        raise SystemExit(f"{path} has other bytes than were written")
    return moved / took / 2**20


def small(how, where, files, size):
    files, size = int(files), int(size)
    paths = names(files)
    if how == "plain":
        paths = [f"{where}/{path}" for path in paths]

        def read():
            found = []
            for path in paths:
                with open(path, "rb") as file:
                    found.append(file.read())
            return found
    elif how == "read_files":
        import bivouac

        job = bivouac.Deployment(where)
        job.stat("/")
        read = lambda: job.read_files(paths)  # noqa: E731
    else:
        import fsspec

        fs = fsspec.filesystem("bivouac")
        fs.deployment(where).stat("/")
        paths = [f"{where}/{path}" for path in paths]

        def read():
            found = fs.cat(paths)
            return [found[path] for path in paths]

    begun = time.perf_counter()
    found = read()
    took = time.perf_counter() - begun
    if found != [content(number, size) for number in range(files)]:
        raise SystemExit(f"{how}: files have other bytes than were written")
    return files / took


def make(deployment, directory, files, size):
    import bivouac

    files, size = int(files), int(size)
    with bivouac.Deployment(deployment) as job:
        for number, name in enumerate(names(files)):
            if number % IN_A_DIRECTORY == 0:
                job.makedirs(os.path.dirname(name), exist_ok=True)
                os.makedirs(f"{directory}/{os.path.dirname(name)}", exist_ok=True)
            data = content(number, size)
            job.write_bytes(name, data)
            with open(f"{directory}/{name}", "wb") as file:
                file.write(data)


if __name__ == "__main__":
    figure = {"pieces": pieces, "small": small, "make": make}[sys.argv[1]](*sys.argv[2:])
    if figure is not None:
        print(figure)
