//! The preload library: libc calls of unmodified programs, served by the client core.
