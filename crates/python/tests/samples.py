"""Samples of a training set, and data sets of PyTorch over them: what test_torch.py gives to workers, which import this module.

As a program, which `bivouac exec` runs with the preload library or in a mount: samples.py DIRECTORY WORKERS METHOD
"""

import os
import sys
import time

import fsspec
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

COUNT = 90
EPOCHS = 3
BATCH = 8


def content(index):
    """What is in a sample's file: bytes that no other sample has, and in some files more than a block of them."""
    return np.random.default_rng(index).bytes(200_000 if index % 10 == 0 else 20_000)


def name(index):
    return f"{index:03}.bin"


def tensor_of(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class OfPaths(Dataset):
    """Files of a mount: what any program does."""

    def __init__(self, directory):
        self.directory = directory

    def __len__(self):
        return COUNT

    def data(self, index):
        with open(os.path.join(self.directory, name(index)), "rb") as file:
            return file.read()

    def __getitem__(self, index):
        return index, tensor_of(self.data(index))


class OfUrls(OfPaths):
    """fsspec, which finds the file system in each worker by the URL."""

    def data(self, index):
        with fsspec.open(f"{self.directory}/{name(index)}", "rb") as file:
            return file.read()


class OfFileSystem(OfPaths):
    """fsspec, with a file system that was made before the workers were."""

    def __init__(self, url):
        self.fs, root = fsspec.core.url_to_fs(url)
        super().__init__(root)

    def data(self, index):
        return self.fs.cat_file(f"{self.directory}/{name(index)}")


class OfDeployment(OfPaths):
    """A deployment that was attached to before the workers were there, and a tensor that is filled where it is."""

    def __init__(self, job, directory):
        super().__init__(directory)
        self.job = job

    def __getitem__(self, index):
        with self.job.open(f"{self.directory}/{name(index)}", "rb", buffering=0) as file:
            data = torch.empty(file.stat().st_size, dtype=torch.uint8)
            assert file.readinto(data.numpy()) == len(data)
            return index, data


class OfBatches(OfDeployment):
    """A whole batch in one exchange: what is asked for is a list."""

    def __getitem__(self, indexes):
        files = self.job.read_files([f"{self.directory}/{name(index)}" for index in indexes])
        return [(index, tensor_of(file)) for index, file in zip(indexes, files)]


class OfHolder(OfDeployment):
    """A worker that has a file open and locked, and does not come to an end."""

    def __getitem__(self, index):
        if index != 0:
            return super().__getitem__(index)
        file = self.job.open(f"{self.directory}/held", "rb+", buffering=0)
        with file.locked():
            self.job.write_text(f"{self.directory}/pid", str(os.getpid()))
            time.sleep(120)
        return index, None


def as_they_are(batch):
    """Samples have different lengths: they are not stacked."""
    return batch


def loader(dataset, workers, method):
    """What is trained with."""
    options = {"num_workers": workers, "collate_fn": as_they_are}
    if workers:
        options |= {"multiprocessing_context": method, "persistent_workers": True}
    if isinstance(dataset, OfBatches):
        batches = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
        return DataLoader(dataset, sampler=batches, batch_size=None, **options)
    return DataLoader(dataset, batch_size=BATCH, shuffle=True, **options)


def trained(dataset, workers, method):
    """Goes through all samples in several epochs, each in an order of its own, and looks at every byte."""
    torch.manual_seed(7)
    loads = loader(dataset, workers, method)
    orders = []
    for _ in range(EPOCHS):
        order = []
        for batch in loads:
            for index, data in batch:
                assert data.numpy().tobytes() == content(index), f"sample {index} is not what was written"
                order.append(index)
        assert sorted(order) == list(range(COUNT))
        orders.append(order)
    assert len(set(map(tuple, orders))) == EPOCHS


if __name__ == "__main__":
    trained(OfPaths(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    print("all samples were read")
