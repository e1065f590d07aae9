//! The preload library: libc calls of unmodified programs, served by the client core.
//!
//! `LD_PRELOAD` puts this library before libc, so that a program's `open`, `read`, `stat`, ... arrive here.
//! What concerns the mount goes to the client core; everything else goes to the kernel, by a raw system call
//! with the same arguments, as if the library were not there.
//!
//! - [`faces`]: the libc symbols, by family. Each translates C's arguments and results, and nothing more.
//! - [`vfs`]: decides for each path and each descriptor between the mount and the kernel, and keeps the
//!   little that belongs to the process: what its descriptors are, its working directory, its umask.
//! - [`catch`]: an option: what libc does inside itself comes here, too.
//! - [`boundary`]: keeps panics from getting out.
//! - [`raw`]: system calls, errno, and the message on stderr.
//!
//! Rules for all of it: nothing is done when no deployment is configured but one look at a flag; a descriptor
//! that is not ours costs one look into a table; libc's file functions are never called (they are these very
//! faces); a panic becomes EIO; `errno` is written only by a call that fails.

#[macro_use]
mod macros;
#[macro_use]
mod real;

mod boundary;
mod catch;
mod faces;
mod raw;
mod vfs;

/// Runs when the library is loaded, before other libraries begin (`-z initfirst`): completes the standard
/// streams, decides whether a deployment is configured, and gives it those that lie in the mount.
extern "C" fn begin(_argc: libc::c_int, _argv: *const *const libc::c_char, envp: *const *const libc::c_char) {
    vfs::state::quiet_panics();
    let _ = boundary::attempt(|| start(envp));
}

fn start(envp: *const *const libc::c_char) {
    real::find_all();
    faces::stdio::begin();
    // SAFETY: the environment that the kernel made; nothing else of the program runs yet.
    let closed = unsafe { vfs::carried::take(envp) };
    if vfs::begin(envp) {
        if let Some(closed) = closed {
            vfs::carried::give_up(&closed);
        }
        faces::stdio::at_start();
        catch::begin(vfs::state::variable(envp, bivouac_node::CATCH_VARIABLE));
    }
}

/// Runs when the process ends by `exit`; `_exit` has a face.
extern "C" fn end() {
    let _ = boundary::attempt(|| {
        vfs::fds::leave(faces::stdio::flush_ours);
        vfs::state::tell_closes();
    });
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
#[cfg(test)]
const _: extern "C" fn() = end;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(libc::c_int, *const *const libc::c_char, *const *const libc::c_char) = begin;
#[cfg(test)]
const _: extern "C" fn(libc::c_int, *const *const libc::c_char, *const *const libc::c_char) = begin;
