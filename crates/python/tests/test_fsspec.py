"""fsspec: its own suite, and what only this file system has."""

import os
import pickle

import fsspec
import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)


class Fixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, running):
        return fsspec.filesystem("bivouac", deployment=running.name, auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, fs):
        path = "/fsspec"
        fs.makedirs(path, exist_ok=True)
        return path

    @pytest.fixture(autouse=True)
    def nothing_left(self, fs):
        yield
        fs.rm("/fsspec", recursive=True) if fs.exists("/fsspec") else None


class TestCopy(AbstractCopyTests, Fixtures):
    pass


class TestGet(AbstractGetTests, Fixtures):
    pass


class TestPut(AbstractPutTests, Fixtures):
    pass


class TestOpen(AbstractOpenTests, Fixtures):
    pass


class TestPipe(AbstractPipeTests, Fixtures):
    pass


def test_urls(job, url):
    with fsspec.open(f"{url}/a/b.txt", "w", auto_mkdir=True) as file:
        file.write("text")
    with fsspec.open(f"{url}/a/b.txt") as file:
        assert file.read() == b"text"
    fs, path = fsspec.core.url_to_fs(f"{url}/a/b.txt")
    assert fs.unstrip_protocol(path) == f"{url}/a/b.txt"
    assert fs.deployment.name == job.name
    assert pickle.loads(pickle.dumps(fs)).cat(path) == b"text"
    assert fs._strip_protocol("bivouac://x/") == "/"
    assert fsspec.get_mapper(f"{url}/a")["b.txt"] == b"text"


def test_many_at_once(url):
    fs, root = fsspec.core.url_to_fs(url)
    contents = {f"{root}/{number}": os.urandom(number * 50) for number in range(300)}
    fs.pipe(contents)
    assert fs.cat(list(contents)) == contents
    assert fs.cat(f"{root}/*") == contents
    assert fs.cat(root, recursive=True) == contents
    paths = list(contents)
    ranges = fs.cat_ranges(paths, [3] * 300, [-2] * 300)
    assert ranges == [contents[path][3:-2] for path in paths]
    assert isinstance(fs.cat([paths[1], f"{root}/missing"], on_error="return")[f"{root}/missing"], FileNotFoundError)
    assert list(fs.cat([paths[1], f"{root}/missing"], on_error="omit")) == [paths[1]]
    with pytest.raises(FileNotFoundError):
        fs.cat([paths[1], f"{root}/missing"])


def test_what_others_change_is_seen_at_once(job, url):
    fs, root = fsspec.core.url_to_fs(url)
    assert fs.ls(root) == []
    job.write_bytes(f"{root}/f", b"one")
    assert fs.ls(root, detail=False) == [f"{root}/f"]
    assert fs.info(f"{root}/f")["size"] == 3
    job.write_bytes(f"{root}/f", b"longer")
    assert fs.size(f"{root}/f") == 6
    assert fs.cat_file(f"{root}/f", -3) == b"ger"
    assert fs.tail(f"{root}/f", 2) == b"er"


def test_transactions_and_links(url):
    fs, root = fsspec.core.url_to_fs(url)
    with fs.transaction:
        with fs.open(f"{root}/f", "wb") as file:
            file.write(b"all or nothing")
        assert not fs.exists(f"{root}/f")
    assert fs.cat(f"{root}/f") == b"all or nothing"
    fs.deployment.symlink("f", f"{root}/link")
    shown = fs.info(f"{root}/link")
    assert (shown["type"], shown["islink"], shown["destination"], shown["size"]) == ("file", True, "f", 14)
    with pytest.raises(IsADirectoryError):
        fs.rm(root)
    fs.mv(f"{root}/f", f"{root}/new/g")
    assert fs.find(root) == [f"{root}/link", f"{root}/new/g"]
    assert fs.locate(f"{root}/new/g")[0].length == 14
