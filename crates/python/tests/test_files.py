"""Open files: what Python's own files do, the same with those of a deployment."""

import array
import errno
import io
import os
import pickle
import signal
import threading

import bivouac
import pytest

MODES = ["r", "w", "a", "x", "r+", "w+", "a+", "x+", "rb", "wb", "ab", "xb", "rb+", "wb+", "ab+", "xb+", "rt", "wt+"]


def tried(function):
    """What a call returns, or how it fails."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001: the comparison is about which
        return type(error).__name__, getattr(error, "errno", None)


def story(opener, path, mode):
    """All that happens to a file that is opened in a mode."""
    told = []
    try:
        file = opener(path, mode)
    except Exception as error:  # noqa: BLE001
        return [type(error).__name__, getattr(error, "errno", None)]
    data = b"bytes\n" if "b" in mode else "text\n"
    with file:
        told += [file.readable(), file.writable(), file.seekable(), file.tell()]
        told += [tried(lambda: file.write(data)), tried(file.flush), tried(file.tell)]
        told += [tried(lambda: file.seek(0)), tried(lambda: file.read(3)), tried(file.readline), tried(file.read)]
        told += [tried(lambda: file.seek(0, os.SEEK_END)), tried(lambda: file.truncate(4)), tried(lambda: file.seek(2))]
        told += [tried(file.readlines), tried(lambda: list(file))]
    told += [file.closed, tried(file.read), tried(lambda: file.write(data))]
    return told


@pytest.mark.parametrize("mode", [*MODES, "", "rw", "br+t", "z", "rr"])
@pytest.mark.parametrize("there", [b"", b"what was there\nbefore\n", None])
def test_a_file_of_each_mode_does_what_a_local_one_does(job, tmp_path, mode, there):
    local = tmp_path / "file"
    if there is not None:
        local.write_bytes(there)
        job.write_bytes("/file", there)
    assert story(job.open, "/file", mode) == story(open, local, mode)
    left = lambda read: tried(read)  # noqa: E731
    assert left(lambda: job.read_bytes("/file")) == left(local.read_bytes)


def test_memory_of_any_kind_is_filled_where_it_is_and_written_from_there(job):
    numbers = array.array("d", range(50_000))
    with job.open("numbers", "wb", 0) as file:
        assert file.write(numbers) == 400_000
    into = array.array("d", bytes(400_000))
    with job.open("numbers", "rb", 0) as file:
        assert file.readinto(into) == 400_000
        assert into == numbers
        part = memoryview(bytearray(100))
        assert file.preadinto(part[10:20], 80) == 10
        assert bytes(part[10:20]) == numbers.tobytes()[80:90]
        assert bytes(part[:10]) == bytes(10)
        with pytest.raises(BufferError):
            file.readinto(memoryview(bytearray(100))[::2])
        with pytest.raises(TypeError):
            file.readinto(b"read-only")
        assert file.readinto(bytearray()) == 0


def test_positions_and_offsets_do_not_disturb_each_other(job):
    with job.open("f", "wb+", 0) as file:
        file.write(b"0123456789")
        assert file.pread(4, 3) == b"3456"
        assert file.pread(4, 8) == b"89"
        assert file.pread(4, 20) == b""
        assert file.pwrite(b"XY", 1) == 2
        assert file.tell() == 10
        assert file.append(b"end") == 10
        file.seek(0)
        assert file.readall() == b"0XY3456789end"
        assert file.stat().st_size == 13
        file.allocate(100)
        assert file.stat().st_size == 100
        file.sync()


def test_what_cannot_be_done_says_so(job):
    with pytest.raises(FileNotFoundError) as missing:
        job.open("/missing")
    assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, "/missing")
    job.mkdir("/d")
    with pytest.raises(IsADirectoryError):
        job.open("/d", "w")
    with pytest.raises(FileExistsError):
        job.mkdir("/d")
    with pytest.raises(ValueError):
        job.open("/nul\0", "w")
    with job.open("/f", "wb", 0) as file:
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        with pytest.raises(io.UnsupportedOperation):
            file.read(1)
    with pytest.raises(ValueError):
        file.write(b"closed")
    with pytest.raises(OSError, match="no deployment 'not-there'"):
        bivouac.Deployment("not-there")
    with pytest.raises(OSError, match="no deployment is named"):
        bivouac.Deployment()
    with pytest.raises(ValueError, match="hexadecimal"):
        bivouac.Deployment(job.name, key="12")


def test_threads_read_and_write_at_once(job):
    wrong = []

    def work(number):
        data = os.urandom(300_000)
        for turn in range(10):
            name = f"/t{number}-{turn}"
            job.write_bytes(name, data)
            if job.read_bytes(name) != data:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_locks_hold_between_open_files(job):
    with job.open("f", "wb+", 0) as one, job.open("f", "rb+", 0) as other:
        with one.locked(0, 10):
            with pytest.raises(TimeoutError), other.locked(5, 10, timeout=0.1):
                pass
            with other.locked(10, 5, timeout=0.1):
                pass
        with other.locked(timeout=5), pytest.raises(TimeoutError), one.locked(shared=True, timeout=0):
            pass


def test_a_forked_child_goes_on_with_the_deployment_and_not_with_files(job):
    job.write_bytes("/f", b"of the parent")
    file = job.open("/f", "rb", 0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(OSError, match="before a fork"):
                file.read(1)
            assert job.read_bytes("/f") == b"of the parent"
            job.write_bytes("/g", b"of the child")
            file.close()
            os.write(writer, b"good")
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 10) == b"good"
    os.close(reader)
    os.waitpid(child, 0)
    assert file.read() == b"of the parent"
    file.close()
    assert job.read_bytes("/g") == b"of the child"


def test_children_that_are_forked_while_threads_are_busy_go_on(job):
    for number in range(20):
        job.write_bytes(f"/{number}", b"%d" % number * 3000)
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            job.read_files([f"/{number}" for number in range(20)])
            job.write_bytes(f"/of-{threading.get_ident()}", b"x" * 100_000)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(20):
            child = os.fork()
            if child == 0:
                # What hangs is ended, and seen.
                signal.alarm(60)
                good = job.read_bytes(f"/{number}") == b"%d" % number * 3000
                with bivouac.Deployment(job.name) as second:
                    good = good and second.read_bytes(f"/{number}") == b"%d" % number * 3000
                os._exit(0 if good else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_paths_and_files_that_are_read_can_be_pickled(job):
    job.write_bytes("/d-f", b"0123456789")
    path = job / "d-f"
    again = pickle.loads(pickle.dumps(path))
    assert (again, hash(again), again.read_bytes()) == (path, hash(path), b"0123456789")
    other = pickle.loads(pickle.dumps(job / "other"))
    # They are in one deployment, which is not this one, and stays when this one is closed.
    assert other.deployment is again.deployment is not job
    for buffering in (0, -1):
        with job.open("/d-f", "rb", buffering) as file:
            file.seek(4)
            with pickle.loads(pickle.dumps(file)) as reopened:
                assert (reopened.read(3), file.read(3)) == (b"456", b"456")
    with job.open("/d-f", "rb+", 0) as file, pytest.raises(TypeError, match="open for writing"):
        pickle.dumps(file)
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(file)


def test_a_deployment_that_is_closed_still_says_what_it_was(job):
    second = bivouac.Deployment(job.name)
    second.close()
    assert (second.name, repr(second)) == (job.name, f"<bivouac.Deployment {job.name!r}>")


def test_a_deployment_that_is_closed_closes_its_files_and_one_that_is_pickled_attaches_again(job):
    job.write_bytes("/f", b"here")
    second = pickle.loads(pickle.dumps(job))
    with second:
        file = second.open("/f", "rb", 0)
        assert second.read_bytes("/f") == b"here"
    with pytest.raises(ValueError, match="closed"):
        file.read()
    with pytest.raises(ValueError, match="closed"):
        second.stat("/f")
    assert second.closed
    assert job.read_bytes("/f") == b"here"


def test_what_is_in_buffers_is_written_when_the_deployment_is_closed(job):
    with bivouac.Deployment(job.name) as second:
        text = second.open("/text", "w")
        text.write("in a buffer")
        data = second.open("/data", "wb")
        data.write(b"in a buffer, too")
    assert text.closed and data.closed
    assert (job.read_text("/text"), job.read_bytes("/data")) == ("in a buffer", b"in a buffer, too")


def test_more_than_there_is_can_be_asked_for(job):
    job.write_bytes("/f", b"12345")
    assert job.read_many([("/f", 1, 1 << 50), ("/f", 9, 1 << 40)]) == [b"2345", b""]
    with job.open("/f", "rb", 0) as file:
        assert file.pread(1 << 50, 2) == b"345"


def test_many_pieces_at_once(job):
    sizes = [0, 1, 4096, 4097, 70_000, 500_000]
    contents = {f"/many/{number}": os.urandom(sizes[number % len(sizes)]) for number in range(2500)}
    job.mkdir("/many")
    for name, data in contents.items():
        job.write_bytes(name, data)
    assert job.read_files(contents) == list(contents.values())
    pieces = [(name, number % 7, 5000) for number, name in enumerate(contents)]
    expected = [data[number % 7 : number % 7 + 5000] for number, data in enumerate(contents.values())]
    assert job.read_many(pieces) == expected
    found = job.read_files(["/many/1", "/missing", "/many"], on_error="return")
    assert found[0] == contents["/many/1"]
    assert isinstance(found[1], FileNotFoundError)
    assert isinstance(found[2], IsADirectoryError)
    with pytest.raises(FileNotFoundError):
        job.read_files(["/many/1", "/missing"])
