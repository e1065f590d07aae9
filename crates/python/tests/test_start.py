"""Starting deployments from Python."""

import os
import signal
import subprocess
import sys
import time

import bivouac
import pytest


def running(name):
    done = subprocess.run([bivouac.program(), "status", name], capture_output=True, check=False)
    return done.returncode == 0


def test_up_and_down():
    with bivouac.up() as job:
        name = job.name
        job.write_text("/f", "x")
        assert running(name)
    assert not running(name)
    with pytest.raises(RuntimeError):
        with bivouac.up(servers="nonsense"):
            pass


def test_run_copies_in_and_out(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f").write_text("input")
    with bivouac.run(preload=f"{tmp_path}/in:/in", flush=f"/out:{tmp_path}/out") as job:
        name = job.name
        job.mkdir("/out")
        job.write_text("/out/f", job.read_text("/in/f") + " and output")
    assert (tmp_path / "out" / "f").read_text() == "input and output"
    assert not running(name)


def test_a_deployment_of_run_does_not_outlive_the_process():
    script = "import bivouac\nwith bivouac.run() as job:\n    print(job.name, flush=True)\n    import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        name = process.stdout.readline().strip()
        assert running(name)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    until = time.monotonic() + 30
    while running(name):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_forked_child_does_not_keep_the_deployment(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "in").mkdir()
    with bivouac.run(preload="~/in:/in", flush="/in:~/out"):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (tmp_path / "out").is_dir()


def test_the_command_is_on_the_path():
    beside = os.path.join(os.path.dirname(sys.executable), "bivouac")
    said = subprocess.run([beside, "--version"], capture_output=True, text=True, check=True).stdout
    assert bivouac.__version__ in said
