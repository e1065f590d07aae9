"""Names and attributes: functions as those of `os`, paths as those of `pathlib`."""

import os
import stat

import pytest


def test_names_are_made_moved_and_removed_as_with_os(job):
    job.makedirs("/a/b/c")
    job.makedirs("/a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        job.makedirs("/a/b/c")
    job.write_text("/a/f", "text")
    job.link("/a/f", "/a/g")
    job.symlink("f", "/a/link")
    assert job.readlink("/a/link") == "f"
    assert job.stat("/a/link").st_nlink == 2
    assert stat.S_ISLNK(job.lstat("/a/link").st_mode)
    assert job.realpath("/a/b/../link") == "/a/f"
    assert job.realpath("/") == "/"
    assert sorted(job.listdir("/a")) == ["b", "f", "g", "link"]
    kinds = {entry.name: (entry.is_dir(), entry.is_file(), entry.is_symlink()) for entry in job.scandir("/a")}
    assert kinds["link"] == (False, True, True)
    assert kinds["b"] == (True, False, False)
    walked = {top: (sorted(directories), sorted(files)) for top, directories, files in job.walk("/a")}
    assert walked == {"/a": (["b"], ["f", "g", "link"]), "/a/b": (["c"], []), "/a/b/c": ([], [])}
    job.rename("/a/g", "/a/b/h")
    with pytest.raises(OSError):
        job.rmdir("/a")
    job.rmtree("/a")
    assert not job.exists("/a")
    with pytest.raises(NotADirectoryError):
        job.write_text("/f", "")
        list(job.scandir("/f"))


def test_links_lead_inside_the_deployment_or_are_no_obstacle(job):
    job.write_text("/f", "text")
    job.mkdir("/d")
    job.symlink("/f", "/d/absolute")
    (job / "d" / "path").symlink_to(job / "f")
    job._deployment.symlink(b"/etc/passwd", b"/d/outside")
    job.symlink("circle", "/d/circle")
    assert (job.readlink("/d/absolute"), job.read_text("/d/absolute"), job.read_text("/d/path")) == ("/f", "text", "text")
    assert job.readlink("/d/outside") == "/etc/passwd"
    assert not job.exists("/d/outside") and not job.isdir("/d/circle")
    assert sorted(job.walk("/d"))[0][2] != []
    assert {entry.name for entry in job.scandir("/d") if entry.is_file()} == {"absolute", "path"}
    with pytest.raises(OSError, match="out of the deployment"):
        job.stat("/d/outside")


def test_attributes_are_set_and_shown_as_with_os(job):
    before = os.umask(0o027)
    try:
        job.write_text("/f", "0123456789")
        job.mkdir("/d")
    finally:
        os.umask(before)
    assert stat.S_IMODE(job.stat("/f").st_mode) == 0o640
    assert stat.S_IMODE(job.stat("/d").st_mode) == 0o750
    job.chmod("/f", 0o600)
    job.utime("/f", ns=(5_000_000_001, 7_000_000_002))
    job.chown("/f", -1, os.getgid())
    shown = job.stat("/f")
    assert (shown.st_size, shown.st_mode, shown.st_uid) == (10, stat.S_IFREG | 0o600, os.getuid())
    assert (shown.st_atime_ns, shown.st_mtime_ns) == (5_000_000_001, 7_000_000_002)
    assert (int(shown.st_mtime), shown.st_mtime) == (7, pytest.approx(7.000000002))
    job.utime("/f", (3, 4.5))
    assert job.stat("/f").st_mtime_ns == 4_500_000_000
    job.utime("/f")
    assert job.stat("/f").st_mtime > 1_000_000_000
    job.truncate("/f", 3)
    assert job.read_text("/f") == "012"
    assert job.access("/f", os.R_OK | os.W_OK)
    assert not job.access("/f", os.X_OK)
    job.setxattr("/f", "user.one", b"first")
    assert job.getxattr("/f", "user.one") == b"first"
    assert "user.one" in job.listxattr("/f")
    job.removexattr("/f", "user.one")
    assert job.disk_usage().free > 0


def test_layouts_and_places(job):
    job.mkdir("/local")
    assert job.layout("/local") == ""
    job.set_layout("/local", "width=1 first=local")
    assert "width=1" in job.layout("/local")
    job.write_bytes("/local/f", bytes(300_000))
    assert job.locate("/local/f") == [(0, 300_000, [job.host])]
    job.write_bytes("/spread", bytes(1_000_000))
    found = job.locate("/spread", 100, 500_000)
    assert found[0].offset == 100
    assert sum(location.length for location in found) == 500_000


def test_paths(job):
    root = job.path()
    place = job / "data" / "set"
    place.mkdir(parents=True)
    for name in ["a.csv", "b.csv", "c.txt"]:
        (place / name).write_text(name)
    (place / "deep").mkdir()
    (place / "deep" / "d.csv").write_bytes(b"d")
    assert str(place) == "/data/set"
    assert (place.name, place.parent.name, (place / "a.csv").suffix) == ("set", "data", ".csv")
    assert sorted(path.name for path in place.glob("*.csv")) == ["a.csv", "b.csv"]
    assert sorted(path.name for path in root.rglob("*.csv")) == ["a.csv", "b.csv", "d.csv"]
    assert sorted(path.name for path in root.glob("data/*/c.*")) == ["c.txt"]
    assert (place / "a.csv").read_text() == "a.csv"
    assert (place / "a.csv").as_uri() == f"bivouac://{job.name}/data/set/a.csv"
    moved = (place / "a.csv").rename(place / "moved")
    assert moved.exists() and moved.is_file() and not moved.is_dir()
    (place / "link").symlink_to("moved")
    assert (place / "link").resolve() == moved
    moved.unlink()
    moved.unlink(missing_ok=True)
    (place / "touched").touch()
    assert (place / "touched").stat().st_size == 0
    with (place / "touched").open("w") as file:
        print("printed", file=file)
    assert (place / "touched").read_text() == "printed\n"
    assert {path.name for path in place.iterdir()} == {"b.csv", "c.txt", "deep", "link", "touched"}


def test_a_directory_of_many_entries_is_listed_whole(job):
    job.mkdir("/large")
    for number in range(5000):
        job.open(f"/large/{number}", "xb", 0).close()
    assert sorted(map(int, job.listdir("/large"))) == list(range(5000))
