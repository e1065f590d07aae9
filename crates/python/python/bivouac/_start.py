"""Starting deployments, by the program `bivouac` that is in this package (or on PATH)."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
import weakref
from contextlib import contextmanager

from ._deployment import Deployment


# Options that are given once for each of several values.
REPEATED = {"preload", "flush"}


def program() -> str:
    """The program `bivouac`: the one that BIVOUAC names, this package's own, or the first on PATH."""
    own = os.path.join(os.path.dirname(__file__), "bin", "bivouac")
    found = os.environ.get("BIVOUAC") or (own if os.access(own, os.X_OK) else shutil.which("bivouac"))
    if not found:
        raise FileNotFoundError("the program bivouac is not in this package, nor on PATH: set BIVOUAC to it")
    return found


def main():
    """The command `bivouac`."""
    os.execv(program(), ["bivouac", *sys.argv[1:]])


def _words(options):
    """Options of the program: `replicas=2` is `--replicas 2`, `hosts=["a", "b"]` is `--hosts a,b`, True is the option alone."""
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            yield option
        elif name in REPEATED and isinstance(value, (list, tuple)):
            for one in value:
                yield from (option, _expanded(name, one))
        elif name in REPEATED and value:
            yield from (option, _expanded(name, value))
        elif value is not None and value is not False:
            yield from (option, ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


def _expanded(name, trees):
    """Trees that are copied, FROM:TO, with `~` in the one that is outside."""
    outside, colon, inside = str(trees).partition(":")
    if name == "preload":
        return os.path.expanduser(outside) + colon + inside
    return outside + colon + os.path.expanduser(inside)


# Pipes that say, when they are closed, that this process is gone: a forked child must not hold them open.
_LIFELINES = weakref.WeakSet()


def _let_go():
    for pipe in list(_LIFELINES):
        pipe.close()


os.register_at_fork(after_in_child=_let_go)


def _run(words):
    done = subprocess.run([program(), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"bivouac {words[0]} has failed")


def _name():
    return f"python-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@contextmanager
def up(name: str | None = None, **options):
    """Starts a deployment (`bivouac up`), attaches to it, and takes it down at the end. Options are those of the command:
    `up(hosts=["a", "b"], replicas=2)`."""
    name = name or _name()
    _run(["up", name, *_words(options)])
    try:
        with Deployment(name) as deployment:
            yield deployment
    finally:
        _run(["down", name])


@contextmanager
def run(name: str | None = None, **options):
    """The same with `bivouac run`: the deployment is taken down also if this process dies, however it dies. Options are those of
    the command: `run(preload="~/input", flush="/results:~/results")`."""
    name = name or _name()
    # It says that it has begun, and ends when this process closes its end of the pipe, or is gone.
    waits = [sys.executable, "-c", "import os, sys; os.write(1, b'begun\\n'); sys.stdin.buffer.read()"]
    command = [program(), "run", "--name", name, *_words(options), "--", *waits]
    with tempfile.TemporaryFile() as errors:

        def failed(what):
            errors.seek(0)
            return RuntimeError(errors.read().decode(errors="replace").strip() or what)

        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as process:
            begun = False
            _LIFELINES.add(process.stdin)
            try:
                begun = process.stdout.readline() == b"begun\n"
                if begun:
                    with Deployment(name) as deployment:
                        yield deployment
            except BaseException:
                # What is to be flushed at the end would be half a result.
                process.send_signal(signal.SIGTERM)
                raise
            finally:
                process.stdin.close()
                code = process.wait()
            if not begun or code != 0:
                raise failed(f"bivouac run has ended with {code}")
