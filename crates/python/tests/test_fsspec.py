"""fsspec: its own suite, and what only this file system has."""

import gc
import os
import pickle
import signal

import bivouac
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
        return fsspec.filesystem("bivouac")

    @pytest.fixture
    def fs_path(self, fs, running):
        path = f"{running.name}/fsspec"
        fs.makedirs(path, exist_ok=True)
        return path

    @pytest.fixture(autouse=True)
    def nothing_left(self, fs, fs_path):
        yield
        fs.rm(fs_path, recursive=True)


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
    assert path == f"{job.name}/{url.rpartition('/')[2]}/a/b.txt"
    assert fs.deployment(path).name == job.name
    assert pickle.loads(pickle.dumps(fs)).cat(path) == b"text"
    assert fs._strip_protocol("bivouac://x/") == "x"
    with pytest.raises(ValueError, match="names no deployment"):
        fs.ls("bivouac:///x")
    with pytest.raises(OSError, match="not-there"):
        fs.ls("bivouac://not-there/x")
    assert not fs.exists("bivouac://not-there/x")
    assert fsspec.get_mapper(f"{url}/a")["b.txt"] == b"text"


def test_open_files_are_pickled_as_those_of_other_file_systems(url):
    fs, root = fsspec.core.url_to_fs(url)
    fs.pipe(f"{root}/f", b"one\ntwo\n")
    with fs.open(f"{root}/f") as file:
        assert file.readline() == b"one\n"
        with pickle.loads(pickle.dumps(file)) as again:
            assert again.read() == b"two\n"
    with fsspec.open(f"{url}/f", "r") as file, pickle.loads(pickle.dumps(file)) as again:
        assert again.read() == "one\ntwo\n"


def test_forked_children_use_file_systems_that_were_there_and_new_ones(url):
    fs, root = fsspec.core.url_to_fs(url)
    fs.pipe(f"{root}/f", b"of the parent")
    for number in range(5):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            good = fs.cat(f"{root}/f") == b"of the parent"
            # fsspec forgets its file systems in a child: this is another one, and the first one goes away.
            new = fsspec.filesystem("bivouac")
            good = good and new is not fs and new.cat([f"{root}/f"]) == {f"{root}/f": b"of the parent"}
            new.pipe(f"{root}/{number}", b"of a child")
            del fs
            gc.collect()
            os._exit(0 if good and new.exists(f"{root}/{number}") else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert fs.cat(f"{root}/4") == b"of a child"
    assert len(fs.ls(root)) == 6


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
    inside = root.partition("/")[2]
    job.write_bytes(f"{inside}/f", b"one")
    assert fs.ls(root, detail=False) == [f"{root}/f"]
    assert fs.info(f"{root}/f")["size"] == 3
    job.write_bytes(f"{inside}/f", b"longer")
    assert fs.size(f"{root}/f") == 6
    assert fs.cat_file(f"{root}/f", -3) == b"ger"
    assert fs.tail(f"{root}/f", 2) == b"er"


def test_the_environments_deployment_needs_no_name(job, url, monkeypatch):
    monkeypatch.setenv("BIVOUAC_DEPLOYMENT", job.name)
    with fsspec.open("bivouac:///of-environment", "w") as file:
        file.write("x")
    assert job.read_text("/of-environment") == "x"


def test_two_deployments_are_used_at_once(job, url):
    with bivouac.up() as other:
        fs, root = fsspec.core.url_to_fs(url)
        fs.pipe({f"{root}/a": b"first", f"{other.name}/d/b": b"second"})
        assert fs.cat([f"{root}/a", f"{other.name}/d/b"]) == {f"{root}/a": b"first", f"{other.name}/d/b": b"second"}
        fs.cp(f"{root}/a", f"{other.name}/copy")
        fs.mv(f"{other.name}/d", f"{root}/moved", recursive=True)
        assert fs.find(other.name) == [f"{other.name}/copy"]
        assert fs.cat(f"{root}/moved/b") == b"second"
        fs.close()


def test_directories_are_made_unless_that_is_not_wanted(job, url):
    fs, root = fsspec.core.url_to_fs(url)
    fs.pipe(f"{root}/a/b/c", b"x")
    with fs.open(f"{root}/d/e", "wb") as file:
        file.write(b"y")
    assert fs.find(root) == [f"{root}/a/b/c", f"{root}/d/e"]
    strict = fsspec.filesystem("bivouac", auto_mkdir=False)
    with pytest.raises(FileNotFoundError):
        strict.pipe(f"{root}/f/g", b"x")


def test_links_to_directories_are_neither_walked_nor_emptied(job, url):
    fs, root = fsspec.core.url_to_fs(url)
    inside = "/" + root.partition("/")[2]
    fs.pipe({f"{root}/precious/f": b"x", f"{root}/d/g": b"y"})
    job.symlink(f"{inside}/precious", f"{inside}/d/link")
    job.symlink("..", f"{inside}/d/up")
    assert sorted(fs.find(root)) == [f"{root}/d/g", f"{root}/d/link", f"{root}/d/up", f"{root}/precious/f"]
    fs.rm(f"{root}/d/link", recursive=True)
    job.symlink(f"{inside}/precious", f"{inside}/d/link")
    fs.rm(f"{root}/d", recursive=True)
    assert fs.find(root) == [f"{root}/precious/f"]
    job.symlink("precious", f"{inside}/link")
    with pytest.raises(NotADirectoryError):
        job.rmtree(f"{inside}/link")
    assert fs.cat(f"{root}/link/f") == b"x"


def test_nothing_is_lost_by_copying_or_moving_onto_itself(url):
    fs, root = fsspec.core.url_to_fs(url)
    fs.pipe(f"{root}/a/f", b"precious")
    for copy in (fs.cp, fs.cp_file):
        with pytest.raises(OSError):
            copy(f"{root}/a/f", f"{root}/a/f")
    with pytest.raises(OSError):
        fs.cp(f"{root}/a/f", f"{root}/a")
    fs.mv(f"{root}/a/f", f"{root}/a")
    fs.mv(f"{root}/a/f", f"{root}/a/")
    fs.mkdir(f"{root}/a/b")
    with pytest.raises(OSError):
        fs.mv(f"{root}/a", f"{root}/a/b", recursive=True)
    assert fs.cat(f"{root}/a/f") == b"precious"
    fs.mv([f"{root}/a/f"], f"{root}/c")
    fs.mv(f"{root}/c/*", f"{root}/d")
    assert fs.find(root) == [f"{root}/d/f"]


def test_transactions_append_and_refuse_as_without_one(url):
    fs, root = fsspec.core.url_to_fs(url)
    fs.pipe(f"{root}/f", b"one")
    with fs.transaction, fs.open(f"{root}/f", "ab") as file:
        file.write(b" two")
    assert fs.cat(f"{root}/f") == b"one two"
    with fs.transaction, pytest.raises(FileExistsError):
        fs.open(f"{root}/f", "xb")
    assert fs.find(root) == [f"{root}/f"]


def test_transactions_and_links(url):
    fs, root = fsspec.core.url_to_fs(url)
    with fs.transaction:
        with fs.open(f"{root}/f", "wb") as file:
            file.write(b"all or nothing")
        assert not fs.exists(f"{root}/f")
    assert fs.cat(f"{root}/f") == b"all or nothing"
    fs.deployment(root).symlink("f", f"{root.partition('/')[2]}/link")
    shown = fs.info(f"{root}/link")
    assert (shown["type"], shown["islink"], shown["destination"], shown["size"]) == ("file", True, "f", 14)
    with pytest.raises(IsADirectoryError):
        fs.rm(root)
    fs.mv(f"{root}/f", f"{root}/new/g")
    assert fs.find(root) == [f"{root}/link", f"{root}/new/g"]
    assert fs.locate(f"{root}/new/g")[0].length == 14
