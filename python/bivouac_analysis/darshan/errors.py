"""What can be wrong with a Darshan log. Each is an `Unusable`, whose text is one line that says why, and what to do."""

from ..errors import Unusable


class LogError(Unusable):
    """The log cannot be used."""


class Unreadable(LogError):
    """The file is not there, not a regular file, or may not be read."""


class NotDarshan(LogError):
    """The file is something else."""


class Compressed(LogError):
    """The file is compressed as a whole. Darshan compresses inside of its logs, and the library reads only these."""


class OldVersion(LogError):
    """A log of Darshan 1 or 2."""


class NewVersion(LogError):
    """A log of a version that the installed library does not read."""


class Truncated(LogError):
    """The file ends before the data that its header lists."""


class Damaged(LogError):
    """The library does not get through the log."""


class TooSlow(LogError):
    """The library took longer than the time limit."""


class NoPosix(LogError):
    """The log has no POSIX module, so it says nothing about requests."""


class LibraryMissing(LogError):
    """PyDarshan is not installed."""
