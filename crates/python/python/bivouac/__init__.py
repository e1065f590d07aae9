"""Bivouac from Python: a parallel file system made of a job's own nodes, without a mount.

    import bivouac

    with bivouac.Deployment("job") as job:
        job.write_text("/hello", "hello")
        print(job.read_text("/hello"))

A `Deployment` has functions that are named as those of `os`, `open`, and paths as those of `pathlib` (`job / "a" / "b"`).
`up` and `run` start deployments. With fsspec, `bivouac://job/path` works in everything that uses it.
"""

from ._bivouac import __version__
from ._deployment import Deployment, Entry, Location
from ._file import RawFile
from ._path import Path
from ._start import program, run, up

__all__ = ["Deployment", "Entry", "Location", "Path", "RawFile", "__version__", "program", "run", "up"]
