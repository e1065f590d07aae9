//! The preload library: libc calls of unmodified programs, served by the client core.
//!
//! `LD_PRELOAD` puts this library before libc, so that a program's `open`, `read`, `stat`, ... arrive here.
//! What concerns the mount goes to the client core; everything else goes to the kernel, by a raw system call
//! with the same arguments, as if the library were not there.
//!
//! - [`faces`]: the libc symbols, by family. Each translates C's arguments and results, and nothing more.
//! - [`vfs`]: decides for each path and each descriptor between the mount and the kernel, and keeps the
//!   little that belongs to the process: what its descriptors are, its working directory, its umask.
//! - [`catch`]: an option: system calls that libc makes inside itself come here, too.
//! - [`boundary`]: keeps panics from getting out.
//! - [`raw`]: system calls, errno, and the message on stderr.
//!
//! In the comments of this crate, a path, descriptor, file or stream is *ours* if it is in the mount, and
//! *foreign* or *the kernel's* otherwise. A *face* is this library's definition of a libc function. The
//! library is *asleep* if no deployment is configured.
//!
//! Rules for all of it: if no deployment is configured, a face only looks at a flag and passes the call on; a
//! foreign descriptor costs one look into a table; the library never calls libc's file functions, because
//! these are its own faces; a panic becomes EIO; only a call that fails sets `errno`.
//!
//! The functions of the C library are in it, too (`bivouac_capi`): a program that is linked with that one, and preloaded, has
//! one client for both.

#[macro_use]
mod macros;
#[macro_use]
mod real;

mod boundary;
mod catch;
mod faces;
mod hidden;
mod raw;
mod vfs;

/// Runs when the library is loaded, before other libraries begin (`-z initfirst`): completes the standard
/// streams, finds out whether a deployment is configured, and makes those standard streams ours whose files
/// are in the mount.
extern "C" fn begin(_argc: libc::c_int, _argv: *const *const libc::c_char, envp: *const *const libc::c_char) {
    vfs::state::quiet_panics();
    let _ = boundary::attempt(|| start(envp));
}

fn start(envp: *const *const libc::c_char) {
    real::find_all();
    faces::stdio::begin();
    // SAFETY: the environment that the kernel made; nothing else of the program runs yet.
    let closed = unsafe { vfs::carried::take(envp) };
    bivouac_capi::share(vfs::state::shared, &hidden::Preloaded);
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
