//! The layer below the faces: decides for each path and each descriptor between the mount and the kernel.
//!
//! Every call comes down to one of two questions. *Which path is this?* ([`place`]): one below the mount goes
//! to the client, any other to the kernel, and where the kernel does not find it, its symbolic links are
//! walked ([`links`]) to see whether they lead into the mount; the other way round the client says when a
//! link leads out. *Which descriptor is this?* ([`fds`]): a flat table says foreign, ours, or not yet known.
//!
//! - [`state`]: whether a deployment is configured; the one client of the process, attached when first
//!   needed.
//! - [`fds`]: the table of descriptors, and the handles behind ours.
//! - [`place`], [`links`], [`at`]: paths; [`scratch`]: room for them.
//! - [`cwd`]: the working directory, also when it is in the mount.
//! - [`borrow`]: what `vfork` children use and leave behind.
//! - [`beside`]: data past a kernel mount.
//! - [`carried`]: process locks across an exec.
//! - [`signals`]: what they do to a call that waits.
//! - [`open`], [`data`], [`names`], [`attrs`], [`xattr`], [`locks`], [`map`], [`copy`], [`control`]: the
//!   operations.
//!
//! A `vfork` child shares this memory with its parent, but has its own descriptors and working directory. In
//! such a child, calls that change those only make the kernel's system call, and leave the tables here alone:
//! see [`state::borrowed`].

pub mod at;
pub mod attrs;
pub mod beside;
pub mod borrow;
pub mod carried;
pub mod control;
pub mod copy;
pub mod cwd;
pub mod data;
pub mod fds;
pub mod links;
pub mod locks;
pub mod map;
pub mod names;
pub mod open;
pub mod place;
pub mod scratch;
pub mod signals;
pub mod state;
pub mod xattr;

pub use at::in_mount;
pub use attrs::{
    faccessat, fchmod, fchmodat, fchown, fchownat, fstat, fstatat, fstatfs, futimens, statfs, statx,
    truncate, utimensat,
};
pub use control::fcntl_number as fcntl;
pub use cwd::{chdir, fchdir, getcwd, path_inside};
pub use data::{fallocate, fsync, ftruncate, list, lseek, pread, read, write};
pub use fds::is_ours;
pub use names::{linkat, mkdirat, mknodat, readlinkat, real_path, renameat2, symlinkat, unlinkat};
pub use open::{close, close_range, dup, dup3, openat};
pub use state::{active, begin, learn_file_size_limit, tracking};

pub use bivouac_proto::Errno;
