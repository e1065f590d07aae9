"""PyTorch's data loaders over a deployment: workers that are forked, spawned, and forked by a server, shuffled, several epochs, by content."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import bivouac
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed here: scripts/torch-test.sh installs it and runs these tests")

import samples  # noqa: E402

WORKERS = [(0, None), (2, "fork"), (4, "fork"), (2, "spawn"), (4, "spawn"), (2, "forkserver"), (4, "forkserver")]


@pytest.fixture
def directory(job, url):
    """A directory of samples."""
    path = url.partition("//")[2].partition("/")[2]
    for index in range(samples.COUNT):
        job.write_bytes(f"/{path}/{samples.name(index)}", samples.content(index))
    return f"/{path}"


def opens(job):
    """Files that are open in a deployment, wherever."""
    said = subprocess.run([bivouac.program(), "status", job.name, "--json"], capture_output=True, check=True).stdout
    return sum(server["opens"] for server in json.loads(said)["deployments"][0]["servers"])


def eventually(what, holds):
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.1)


@pytest.mark.parametrize(("workers", "method"), WORKERS)
@pytest.mark.parametrize("kind", ["OfUrls", "OfFileSystem", "OfDeployment", "OfBatches"])
def test_every_epoch_has_all_samples(job, url, directory, kind, workers, method):
    of = getattr(samples, kind)
    samples.trained(of(job, directory) if issubclass(of, samples.OfDeployment) else of(url), workers, method)
    eventually("all files are closed", lambda: opens(job) == 0)


@pytest.mark.parametrize(("workers", "method"), WORKERS)
@pytest.mark.parametrize("access", ["preload", "fuse"])
def test_programs_that_know_only_paths_have_all_samples_too(job, directory, access, workers, method):
    if access == "fuse" and not os.access("/dev/fuse", os.W_OK):
        pytest.skip("no mounts here: /dev/fuse cannot be opened")
    program = [sys.executable, os.path.abspath(samples.__file__), job.mount + directory, str(workers), str(method)]
    command = [bivouac.program(), "exec", job.name, "--access", access, "--", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "all samples were read\n"), done.stderr
    eventually("all files are closed", lambda: opens(job) == 0)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_that_is_killed_leaves_no_open_file_and_no_lock(job, directory, method):
    job.write_bytes(f"{directory}/held", b"held")
    killed = []

    def kill():
        pid = pathlib.PurePosixPath(directory) / "pid"
        eventually("the worker holds the file", lambda: job.exists(pid) and job.getsize(pid) > 0)
        killed.append(opens(job))
        os.kill(int(job.read_text(pid)), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        for _ in samples.loader(samples.OfHolder(job, directory), 2, method):
            pass
    killer.join()
    assert killed[0] >= 1
    eventually("its file is closed", lambda: opens(job) == 0)
    with job.open(f"{directory}/held", "rb+", buffering=0) as file, file.locked(timeout=60):
        assert file.read() == b"held"
    # The parent goes on.
    samples.trained(samples.OfDeployment(job, directory), 2, method)


def test_a_program_that_is_killed_with_its_worker_leaves_no_open_file_and_no_lock(job, directory):
    job.write_bytes(f"{directory}/held", b"held")
    script = (
        f"import sys; sys.path.insert(0, {os.path.dirname(samples.__file__)!r})\n"
        "import bivouac, samples\n"
        f"job = bivouac.Deployment({job.name!r})\n"
        f"for _ in samples.loader(samples.OfHolder(job, {directory!r}), 2, 'fork'): pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL) as program:
        eventually("the worker holds the file", lambda: job.exists(f"{directory}/pid") and job.getsize(f"{directory}/pid") > 0)
        program.kill()
    worker = int(job.read_text(f"{directory}/pid"))
    # PyTorch's workers look now and then whether their parent is there, but not one that sleeps in a sample.
    os.kill(worker, signal.SIGKILL)
    eventually("its file is closed", lambda: opens(job) == 0)
    with job.open(f"{directory}/held", "rb+", buffering=0) as file, file.locked(timeout=60):
        pass
