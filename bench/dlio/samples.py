"""Samples for DLIO whose bytes follow from their numbers, and readers of DLIO that compare what they read with that.

As a program: samples.py DIRECTORY FORMAT FIRST END FILES SAMPLES BYTES DEVIATION makes the files FIRST to END of FILES in a directory, each with so many
samples of so many bytes; the lengths of files deviate from that. Prints how many bytes it has written.
"""

import os
import struct
import sys

import numpy as np


def side(file, size, deviation):
    """A sample is a square of bytes, as DLIO makes them. This is its side."""
    if deviation:
        size = max(np.random.default_rng([1, file]).normal(size, deviation), size / 4)
    return int(size**0.5)


def sample(file, number, size, deviation):
    length = side(file, size, deviation)
    return np.frombuffer(np.random.default_rng([file, number]).bytes(length * length), dtype=np.uint8).reshape(length, length)


def made(path, kind, file, samples, size, deviation):
    """Makes a file as DLIO's generator does."""
    records = np.array([sample(file, number, size, deviation) for number in range(samples)])
    if kind == "npz":
        np.savez(path, x=np.moveaxis(records, 0, -1), y=[0] * samples)
    elif kind == "hdf5":
        import h5py

        with h5py.File(path, "w") as container:
            container.create_dataset("records", data=records)
            container.create_dataset("labels", data=[0] * samples)
    elif kind == "indexed_binary":
        length = records[0].size
        with open(path, "wb") as data, open(path + ".off.idx", "wb") as offsets, open(path + ".sz.idx", "wb") as sizes:
            data.write(records.tobytes())
            offsets.write(struct.pack(f"{samples}Q", *range(0, length * samples, length)))
            sizes.write(struct.pack(f"{samples}Q", *[length] * samples))
    else:
        raise SystemExit(f"no such format: {kind}")


def main(directory, kind, *numbers):
    first, end, files, samples, size, deviation = map(int, numbers)
    os.makedirs(directory, exist_ok=True)
    # DLIO wants to see a directory for evaluation, too.
    os.makedirs(os.path.join(directory, "../../valid"), exist_ok=True)
    written = 0
    for file in range(first, end):
        path = os.path.join(directory, f"img_{file:06}_of_{files}.{kind}")
        made(path, kind, file, samples, size, deviation)
        written += os.path.getsize(path)
    print(written)


# Which samples were compared is written here, one a line, by all processes.
JOURNAL = "DLIO_SAMPLES_JOURNAL"


def compared(path, number, found):
    """Fails unless this is the sample."""
    file = int(os.path.basename(path).split("_")[1])
    size, deviation = map(int, os.environ["DLIO_SAMPLES_SHAPE"].split())
    if not np.array_equal(found.reshape(-1), sample(file, number, size, deviation).reshape(-1)):
        raise AssertionError(f"sample {number} of {path} is not what was written")
    journal = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(journal, f"{file} {number}\n".encode())
    os.close(journal)


if __name__ == "__main__":
    main(*sys.argv[1:])
else:
    from dlio_benchmark.reader.hdf5_reader import HDF5Reader
    from dlio_benchmark.reader.indexed_binary_reader import IndexedBinaryReader
    from dlio_benchmark.reader.npz_reader import NPZReader

    class Checkednpz(NPZReader):
        def get_sample(self, filename, sample_index):
            super().get_sample(filename, sample_index)
            compared(filename, sample_index, self.open_file_map[filename][..., sample_index])

    class Checkedhdf5(HDF5Reader):
        def get_sample(self, filename, sample_index):
            super().get_sample(filename, sample_index)
            compared(filename, sample_index, self.open_file_map[filename]["records"][sample_index])

    class Checkedindexed_binary(IndexedBinaryReader):  # noqa: N801: as the format is called
        def get_sample(self, filename, sample_index):
            super().get_sample(filename, sample_index)
            offset, length = (part[sample_index] for part in self.file_map_ibr[filename])
            file = self.open_file_map[filename]
            file.seek(offset)
            compared(filename, sample_index, np.frombuffer(file.read(length), dtype=np.uint8))
