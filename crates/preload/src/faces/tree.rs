//! Functions of the C library that look at many names in one call: `glob`, `ftw` and `nftw`, `realpath`.
//!
//! - [`mod@glob`]: the C library's own, made to read directories through our faces, which it allows.
//! - [`walk`]: `ftw` and `nftw`, anew, for trees in the mount.
//! - [`canonical`]: paths without links, by `realpath`.
//!
//! `fts` is not replaced: programs that walk trees by it (`find`, `rm`, `du`, `grep`, ..) bring their own
//! copy, which calls `openat`, `fdopendir` and `fstatat`. `wordexp` expands no names in the mount, for the
//! same reason that `glob` needs help.

pub mod canonical;
pub mod glob;
pub mod walk;
