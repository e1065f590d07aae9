//! The C interface (`include/bivouac.h` says what each function promises).
//!
//! Pointers that programs get are to a [`Deployment`], an open [`file::File`], or a [`dir::Dir`]. A deployment knows which
//! files and directories of it are open ([`deployment::Opens`]), so that detaching frees them. Each function turns its
//! arguments into safe values, calls the client core, and turns what comes of it into a number and a text
//! ([`error::answer`]); no panic leaves it.
//!
//! The library is linked from the static one by `scripts/library.sh`, which gives its symbols their version. The preload
//! library contains these functions, too: in a program that has both, the dynamic linker finds those of the preload library
//! first, and they use that library's client ([`deployment::share`]).

#![allow(non_camel_case_types, reason = "the names of C")]

mod deployment;
mod dir;
mod error;
mod file;
mod layout;
mod locks;
mod many;
mod names;
mod stat;
mod text;
mod xattr;

pub use deployment::{Deployment, share};
