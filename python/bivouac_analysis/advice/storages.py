"""Which kinds of storage there are, which of them a program uses, and which it cannot use."""

from ..characterize.results import Storage
from ..darshan.log import LogSummary
from ..darshan.phases import Phase
from ..darshan.use import FileUse
from .nearest import size

MEMORY = ("tmpfs", "ramfs")
NODE_LOCAL = MEMORY + (
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "f2fs",
    "zfs",
    "overlay",
    "overlayfs",
    "rootfs",
    "jfs",
    "reiserfs",
)
BACKENDS = (
    "lustre",
    "gpfs",
    "nfs",
    "nfs4",
    "beegfs",
    "ceph",
    "cephfs",
    "panfs",
    "wekafs",
    "pvfs2",
    "orangefs",
    "afs",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.ceph",
    "cifs",
    "smb2",
    "smb3",
    "9p",
    "dvs",
    "daos",
    "fuse.daos",
    "fuse.dfuse",
)
KINDS = {
    "backend": "the site's file system",
    "deployment": "a deployment of Bivouac",
    "node-local": "storage of the node itself",
    "unknown": "of a kind that is not known",
}
SMALL_FILE = 1 << 20
MANY_FILES = 1000


def kind_of(storage: Storage) -> str:
    if "bivouac" in storage.file_system or storage.directory == "/bivouac" or storage.directory.startswith("/bivouac/"):
        return "deployment"
    if storage.file_system in NODE_LOCAL:
        return "node-local"
    return "backend" if storage.file_system in BACKENDS else "unknown"


def flood_of(summary: LogSummary) -> list[FileUse]:
    """The files of a program that makes many small ones, or spends most of its time on their names; otherwise none."""
    own = [file for file in summary.files if file.opens]
    if len(own) < MANY_FILES:
        return []
    mean = sum(file.bytes for file in own) / len(own)
    return own if mean < SMALL_FILE or summary.metadata_seconds > summary.data_seconds else []


def unsuitable(storage: Storage, summary: LogSummary, phases: list[Phase]) -> str | None:
    """Why the program cannot use the storage."""
    if kind_of(storage) != "node-local":
        return None
    single = summary.job.nodes == 1
    if any(phase.layout == "shared" for phase in phases) and not single:
        return "processes share files, and " + (
            "the log does not say that they are on one node"
            if summary.job.nodes is None
            else f"they are on {summary.job.nodes} nodes"
        )
    needed = sum(phase.total for phase in phases if phase.operation != "read") // (summary.job.nodes or 1)
    if needed > storage.free:
        return (
            f"the program writes {size(needed)}{'' if summary.job.nodes else ', as far as is known to one node,'} "
            f"and {size(storage.free)} are free"
        )
    return None


def storage_of_program(summary: LogSummary, storages: list[Storage]) -> Storage | None:
    """The storage that holds most of the program's bytes: by its directory, or else by the type of its file system."""
    heaviest = max(summary.files, key=lambda file: file.bytes, default=None)
    if heaviest is None:
        return None
    above = [storage for storage in storages if heaviest.path.startswith(storage.directory.rstrip("/") + "/")]
    kind = summary.file_system_of(heaviest.path)
    if kind:
        above = [storage for storage in above if storage.file_system == kind]
    if above:
        return max(above, key=lambda storage: len(storage.directory))
    same = [storage for storage in storages if kind and storage.file_system == kind]
    return same[0] if len(same) == 1 else None
