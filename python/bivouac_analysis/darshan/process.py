"""Has `child.py` read a log in a process of its own, and ends it if it takes too long.

The C library behind PyDarshan aborts on some damaged logs and can crash. The child is started by its path, so the package need not be
importable where it runs.
"""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from .errors import Damaged, LibraryMissing, NewVersion, TooSlow, Unreadable
from .header import new_version

CHILD = Path(__file__).with_name("child.py")


def run_child(path: str, time_limit: float) -> dict:
    """What `child.py` found. It is started in a session of its own, so that it can be ended with all that it started."""
    try:
        log = open(path, "rb")
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}. Check the path and the permissions") from None
    read_end, write_end = os.pipe()
    with log, tempfile.TemporaryFile() as errors, os.fdopen(read_end, "rb") as answer:
        try:
            # PyDarshan takes only paths that are UTF-8, so it gets one of the open file.
            # -P: the directory of the package must not hide modules of the standard library.
            process = subprocess.Popen(
                [sys.executable, "-P", str(CHILD), f"/dev/fd/{log.fileno()}", str(write_end)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(log.fileno(), write_end),
                start_new_session=True,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        finally:
            os.close(write_end)
        text = collect(process, answer, time_limit, path)
        errors.seek(0)
        said = errors.read(1 << 16).decode("utf-8", "replace")
    if "incompatible darshan file" in said:
        with open(path, "rb") as file:
            raise NewVersion(new_version(path, file.read(4).decode("ascii", "replace")))
    if process.returncode != 0:
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        raise Damaged(damaged(path, f"Darshan's library ended with {how}"))
    try:
        found = json.loads(text)
    except ValueError:
        raise Damaged(damaged(path, "Darshan's library gave no answer")) from None
    if found.get("error") == "no-library":
        raise LibraryMissing(
            f"PyDarshan is needed to read {path}: install it with `pip install darshan` ({found['text']})"
        )
    complaints = [line for line in said.splitlines() if line.startswith("Error:")]
    # Nothing but the types of file systems depends on the mount table.
    found["mounts_read"] = not any("mount table" in line for line in complaints)
    complaint = next((line for line in complaints if "mount table" not in line), None)
    if complaint or "error" in found:
        raise Damaged(damaged(path, complaint or found["text"] or "Darshan's library does not open it"))
    return found


def collect(process: subprocess.Popen, answer: io.BufferedReader, time_limit: float, path: str) -> bytes:
    """Reads all that the child writes, and waits for its end. After the time limit, the child is killed."""
    parts: list[bytes] = []
    reader = threading.Thread(target=lambda: parts.append(answer.read()), daemon=True)
    reader.start()
    try:
        process.wait(timeout=time_limit)
    except subprocess.TimeoutExpired:
        raise TooSlow(
            f"{path} was not read within {time_limit:g} s: use a log of a shorter run, or one without DXT"
        ) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join()
    return b"".join(parts)


def damaged(path: str, reason: str) -> str:
    reason = " ".join(reason.split())[:200]
    return f"{path} is damaged ({reason}): copy the log again, or take that of another run"
