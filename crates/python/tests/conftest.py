"""Each test has a deployment of its own process's making; most of them share one of three servers."""

import os
import uuid

import bivouac
import pytest


@pytest.fixture(scope="session")
def running():
    """A deployment of three servers, which small blocks spread everything over."""
    with bivouac.up(servers=3, block_size="64K") as job:
        yield job


@pytest.fixture
def job(running):
    """The deployment, with nothing in it."""
    yield running
    for entry in running.scandir("/"):
        if entry.is_dir(follow_symlinks=False):
            running.rmtree(entry.path)
        else:
            running.remove(entry.path)


@pytest.fixture
def url(job):
    """A directory for fsspec."""
    name = f"/url-{uuid.uuid4().hex[:8]}"
    job.mkdir(name)
    return f"bivouac://{job.name}{name}"


@pytest.fixture(autouse=True, scope="session")
def no_deployment_of_others():
    for name in [name for name in os.environ if name.startswith("BIVOUAC_") and name != "BIVOUAC_TEST"]:
        del os.environ[name]
