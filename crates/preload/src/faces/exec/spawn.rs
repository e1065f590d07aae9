//! `posix_spawn`, whose file actions the C library carries out by system calls of its own.
//!
//! The actions are rewritten into ones that the kernel can serve. A file of the mount is opened here, in the
//! parent, and the child gets its descriptor by `dup2`. A directory of the mount becomes its mirror (see
//! `vfs::cwd`). A program of the mount is copied ([`super::program`]). The rest, attributes included, is left
//! to the C library.
//!
//! The list of actions is opaque in C, but has had the same layout in glibc since `addchdir` was added, and
//! grew at the end only. A list with a tag that is not known is passed on unchanged.

use super::program::Program;
use super::{Strings, search, unreached};
use crate::faces::real::{handles, text};
use crate::vfs::{self, Errno};
use bivouac_node::Fd;
use libc::{posix_spawn_file_actions_t as Actions, posix_spawnattr_t as Attributes};
use rustix::fd::IntoRawFd;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;

real! {
    real_spawn = posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const Actions,
        attributes: *const Attributes, argv: Strings, envp: Strings) -> c_int, else libc::ENOSYS;
    real_spawnp = posix_spawnp(pid: *mut libc::pid_t, file: *const c_char, actions: *const Actions,
        attributes: *const Attributes, argv: Strings, envp: Strings) -> c_int, else libc::ENOSYS;
    add_chdir = posix_spawn_file_actions_addchdir_np(actions: *mut Actions, path: *const c_char) -> c_int,
        else libc::ENOSYS;
    add_fchdir = posix_spawn_file_actions_addfchdir_np(actions: *mut Actions, fd: c_int) -> c_int,
        else libc::ENOSYS;
    add_closefrom = posix_spawn_file_actions_addclosefrom_np(actions: *mut Actions, from: c_int) -> c_int,
        else libc::ENOSYS;
    add_tcsetpgrp = posix_spawn_file_actions_addtcsetpgrp_np(actions: *mut Actions, fd: c_int) -> c_int,
        else libc::ENOSYS;
}

/// glibc's list of actions.
#[repr(C)]
struct RawList {
    allocated: c_int,
    used: c_int,
    actions: *const RawAction,
}

/// One of them. `number` is the descriptor of those that have one.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawAction {
    tag: c_int,
    body: RawBody,
}

#[repr(C)]
#[derive(Clone, Copy)]
union RawBody {
    number: c_int,
    pair: [c_int; 2],
    path: *const c_char,
    open: RawOpen,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawOpen {
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: u32,
}

const _: () = assert!(size_of::<RawAction>() == 32);

/// What a child does before it executes the program.
enum Action<'a> {
    Close(c_int),
    Dup2(c_int, c_int),
    Open { fd: c_int, path: &'a CStr, flags: c_int, mode: u32 },
    Chdir(&'a CStr),
    Fchdir(c_int),
    CloseFrom(c_int),
    SetGroup(c_int),
}

/// Reads a list; `None` if it is not as we know it.
///
/// # Safety
/// `list` is null or an initialized list.
unsafe fn read<'a>(list: *const Actions) -> Option<Vec<Action<'a>>> {
    if list.is_null() {
        return Some(Vec::new());
    }
    // SAFETY: the caller's promise. Each tag says which member of the union was set; paths are C strings that
    // the list owns (copies of what the program passed).
    unsafe {
        let list = &*list.cast::<RawList>();
        if list.used <= 0 || list.actions.is_null() {
            return (list.used == 0).then(Vec::new);
        }
        if list.used > list.allocated {
            return None;
        }
        std::slice::from_raw_parts(list.actions, list.used as usize)
            .iter()
            .map(|action| {
                Some(match action.tag {
                    0 => Action::Close(action.body.number),
                    1 => Action::Dup2(action.body.pair[0], action.body.pair[1]),
                    2 => {
                        let open = action.body.open;
                        Action::Open {
                            fd: open.fd,
                            path: text(open.path).ok()?,
                            flags: open.flags,
                            mode: open.mode,
                        }
                    }
                    3 => Action::Chdir(text(action.body.path).ok()?),
                    4 => Action::Fchdir(action.body.number),
                    5 => Action::CloseFrom(action.body.number),
                    6 => Action::SetGroup(action.body.number),
                    _ => return None,
                })
            })
            .collect()
    }
}

/// A list being rewritten.
struct Rewritten {
    list: MaybeUninit<Actions>,
    /// Descriptors opened here for the child, and closed at the end.
    temporary: Vec<c_int>,
    /// Descriptors that are open here for the child, too, and that others close.
    spared: Vec<c_int>,
    /// Where relative paths start for the child, as a descriptor here.
    directory: c_int,
    /// Numbers from here on are not touched by any action.
    free: c_int,
    /// Something differs from the program's list.
    changed: bool,
    /// Descriptors of ours may have to outlive a `closefrom`.
    guarded: bool,
}

impl Drop for Rewritten {
    fn drop(&mut self) {
        // SAFETY: initialized in `new`.
        unsafe { libc::posix_spawn_file_actions_destroy(self.list.as_mut_ptr()) };
        for &fd in &self.temporary {
            let _ = vfs::close(fd);
        }
    }
}

fn checked(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno(code as u16)) }
}

impl Rewritten {
    fn new(actions: &[Action<'_>], program: &CStr) -> Result<Rewritten, Errno> {
        let mut list = MaybeUninit::uninit();
        // SAFETY: initializes the list.
        checked(unsafe { libc::posix_spawn_file_actions_init(list.as_mut_ptr()) })?;
        let highest = actions.iter().map(|action| match *action {
            Action::Close(fd) | Action::Fchdir(fd) | Action::CloseFrom(fd) | Action::SetGroup(fd) => fd,
            Action::Dup2(from, to) => from.max(to),
            Action::Open { fd, .. } => fd,
            Action::Chdir(_) => 0,
        });
        let free = highest.max().unwrap_or(0).saturating_add(1).max(64);
        let guarded = handles(libc::AT_FDCWD, program)
            || actions.iter().any(|action| match *action {
                Action::Open { path, .. } => handles(libc::AT_FDCWD, path),
                Action::Chdir(_) | Action::Fchdir(_) => true,
                _ => false,
            });
        let (temporary, spared) = (Vec::new(), Vec::new());
        Ok(Rewritten { list, temporary, spared, directory: libc::AT_FDCWD, free, changed: false, guarded })
    }

    /// Moves a descriptor out of the way of all actions. It is closed at the end.
    fn keep(&mut self, fd: c_int) -> Result<c_int, Errno> {
        let moved = vfs::fcntl(fd, libc::F_DUPFD_CLOEXEC, self.free as usize);
        let _ = vfs::close(fd);
        let moved = moved?;
        self.temporary.push(moved);
        Ok(moved)
    }

    fn close(&mut self, fd: c_int) -> Result<(), Errno> {
        // SAFETY: an initialized list.
        checked(unsafe { libc::posix_spawn_file_actions_addclose(self.list.as_mut_ptr(), fd) })
    }

    fn enter(&mut self, path: &CStr) -> Result<(), Errno> {
        let mirror = vfs::cwd::kernel_directory(self.directory, path)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // For a directory outside that may be entered but not read, the child returns the error.
        if let Ok(fd) = vfs::openat(self.directory, path, flags, 0) {
            self.directory = self.keep(fd)?;
        }
        match mirror {
            Some(mirror) => self.enter_mirror(mirror),
            // SAFETY: an initialized list, which copies the path.
            None => checked(unsafe { add_chdir(self.list.as_mut_ptr(), path.as_ptr()) }),
        }
    }

    /// The child goes to the mirror of a directory.
    fn enter_mirror(&mut self, mirror: Fd) -> Result<(), Errno> {
        self.changed = true;
        let mirror = self.keep(mirror.into_raw_fd())?;
        // SAFETY: an initialized list.
        checked(unsafe { add_fchdir(self.list.as_mut_ptr(), mirror) })
    }

    fn add(&mut self, action: &Action<'_>) -> Result<(), Errno> {
        let list = self.list.as_mut_ptr();
        // SAFETY: an initialized list; paths are copied.
        unsafe {
            match *action {
                Action::Close(fd) => self.close(fd),
                Action::Dup2(from, to) => checked(libc::posix_spawn_file_actions_adddup2(list, from, to)),
                Action::Open { fd, path, flags, mode } if handles(self.directory, path) => {
                    self.changed = true;
                    let opened = vfs::openat(self.directory, path, flags | libc::O_CLOEXEC, mode)?;
                    let kept = self.keep(opened)?;
                    if flags & libc::O_CLOEXEC != 0 {
                        return self.close(fd);
                    }
                    checked(libc::posix_spawn_file_actions_adddup2(list, kept, fd))
                }
                Action::Open { fd, path, flags, mode } => {
                    checked(libc::posix_spawn_file_actions_addopen(list, fd, path.as_ptr(), flags, mode))
                }
                Action::Chdir(path) => self.enter(path),
                Action::Fchdir(fd) if vfs::is_ours(fd) => {
                    let mirror = vfs::cwd::kernel_directory(fd, c".")?.ok_or(Errno::NOTDIR)?;
                    self.directory = fd;
                    self.enter_mirror(mirror)
                }
                Action::Fchdir(fd) => {
                    self.directory = fd;
                    checked(add_fchdir(list, fd))
                }
                Action::SetGroup(fd) => checked(add_tcsetpgrp(list, fd)),
                Action::CloseFrom(from) if !self.guarded => checked(add_closefrom(list, from)),
                // Descriptors of ours that the child still needs are above all numbers that the program
                // names, so close what is open one by one.
                Action::CloseFrom(from) => {
                    self.changed = true;
                    for fd in open_descriptors(from)? {
                        if !self.temporary.contains(&fd) && !self.spared.contains(&fd) {
                            self.close(fd)?;
                        }
                    }
                    Ok(())
                }
            }
        }
    }
}

/// The open descriptors from a number on, those of the library included (they close on exec anyway).
fn open_descriptors(from: c_int) -> Result<Vec<c_int>, Errno> {
    const ROOM: usize = 32 * 1024;
    const NAME: usize = 19;
    let directory = c"/proc/self/fd";
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let fd = sys!(SYS_openat, libc::AT_FDCWD, directory.as_ptr(), flags)?;
    let mut found = Vec::new();
    let mut buffer = vec![0u8; ROOM];
    while let Ok(count @ 1..) = sys!(SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()) {
        let mut records = buffer.get(..count).unwrap_or_default();
        while let Some(&[low, high]) = records.get(16..18) {
            let (record, rest) =
                records.split_at(usize::from(u16::from_ne_bytes([low, high])).min(records.len()));
            let name = record.get(NAME..).and_then(|name| CStr::from_bytes_until_nul(name).ok());
            let number = name.and_then(|name| name.to_str().ok()?.parse::<c_int>().ok());
            found.extend(number.filter(|&number| number >= from && number as usize != fd));
            records = rest;
        }
    }
    let _ = sys!(SYS_close, fd);
    Ok(found)
}

/// Everything that `posix_spawn` is called with.
struct Call {
    pid: *mut libc::pid_t,
    actions: *const Actions,
    attributes: *const Attributes,
    argv: Strings,
    envp: Strings,
}

impl Call {
    /// Spawns the program at a path.
    ///
    /// # Safety
    /// The arguments are as for `posix_spawn`.
    unsafe fn spawn(&self, path: &CStr) -> Result<c_int, Errno> {
        // SAFETY: the caller's promise.
        unsafe {
            let unchanged = |directory: c_int| {
                unreached::warn(directory, path);
                real_spawn(self.pid, path.as_ptr(), self.actions, self.attributes, self.argv, self.envp)
            };
            let Some(actions) = read(self.actions) else {
                return Ok(unchanged(libc::AT_FDCWD));
            };
            let mut rewritten = Rewritten::new(&actions, path)?;
            // What is left open by `closefrom` for the child has to be open before, so the program comes
            // first; but relative paths start from where the actions lead.
            let moves = |action: &Action<'_>| matches!(action, Action::Chdir(_) | Action::Fchdir(_));
            let mut program = None;
            let mut rest = actions.iter().peekable();
            while let Some(action) = rest.next() {
                if matches!(action, Action::CloseFrom(_)) && program.is_none() && !rest.clone().any(moves) {
                    program = Some(rewritten.program(path)?);
                }
                rewritten.add(action)?;
            }
            let program = match program {
                Some(program) => program,
                None => rewritten.program(path)?,
            };
            if program.is_none() && !rewritten.changed {
                let code = unchanged(rewritten.directory);
                if !matches!(code, libc::ENOENT | libc::ENOTDIR) {
                    return Ok(code);
                }
                // A link into the mount, or a script whose interpreter is there.
                return match rewritten.find(path) {
                    Ok(found) if found.is_special() => self.with(&rewritten, &found),
                    _ => Ok(code),
                };
            }
            match program {
                Some(program) => self.with(&rewritten, &program),
                None => {
                    unreached::warn(rewritten.directory, path);
                    let actions = rewritten.list.as_ptr();
                    Ok(real_spawn(self.pid, path.as_ptr(), actions, self.attributes, self.argv, self.envp))
                }
            }
        }
    }

    /// # Safety
    /// As for [`Call::spawn`].
    unsafe fn with(&self, rewritten: &Rewritten, program: &Program) -> Result<c_int, Errno> {
        // SAFETY: the caller's promise; the new lists live to the end of the call.
        unsafe {
            let arguments = program.arguments(self.argv);
            let argv = if arguments.is_empty() { self.argv } else { arguments.as_ptr() };
            let path = program.path();
            unreached::warn(libc::AT_FDCWD, path);
            Ok(real_spawn(self.pid, path.as_ptr(), rewritten.list.as_ptr(), self.attributes, argv, self.envp))
        }
    }
}

impl Rewritten {
    /// The program, if the kernel can't find it by itself, out of the way of all actions.
    fn program(&mut self, path: &CStr) -> Result<Option<Program>, Errno> {
        if handles(self.directory, path) { self.find(path).map(Some) } else { Ok(None) }
    }

    fn find(&mut self, path: &CStr) -> Result<Program, Errno> {
        let mut program = Program::find(self.directory, path)?;
        if program.memory().is_some() {
            program.move_memory(self.free)?;
            self.spared.extend(program.memory());
        }
        Ok(program)
    }
}

/// Where `posix_spawnp` finds a file, if a directory of the mount is in `PATH`; `None`: the C library may
/// search.
fn searched(file: &CStr) -> Result<Option<CString>, Errno> {
    let candidates = search::Candidates::of(file);
    if !candidates.iter().any(|candidate| handles(libc::AT_FDCWD, &candidate)) {
        return Ok(None);
    }
    let mut error = Errno::NOENT;
    for candidate in candidates.iter() {
        let Ok(stat) = vfs::fstatat(libc::AT_FDCWD, &candidate, 0) else {
            continue;
        };
        match vfs::faccessat(libc::AT_FDCWD, &candidate, libc::X_OK) {
            Ok(()) if stat.st_mode & libc::S_IFMT == libc::S_IFREG => return Ok(Some(candidate)),
            _ => error = Errno::ACCESS,
        }
    }
    Err(error)
}

fn code(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| c_int::from(errno.0))
}

faces! {
    /// Starts a program in a new process.
    fn posix_spawn(
        pid: *mut libc::pid_t,
        path: *const c_char,
        actions: *const Actions,
        attributes: *const Attributes,
        argv: Strings,
        envp: Strings,
    ) -> c_int, else (libc::EIO) {
        match text(path) {
            Ok(name) if vfs::active() => code(Call { pid, actions, attributes, argv, envp }.spawn(name)),
            _ => real_spawn(pid, path, actions, attributes, argv, envp),
        }
    }

    /// Likewise, with the program searched for in `PATH`.
    fn posix_spawnp(
        pid: *mut libc::pid_t,
        file: *const c_char,
        actions: *const Actions,
        attributes: *const Attributes,
        argv: Strings,
        envp: Strings,
    ) -> c_int, else (libc::EIO) {
        let Ok(name) = text(file) else { return real_spawnp(pid, file, actions, attributes, argv, envp) };
        if !vfs::active() {
            return real_spawnp(pid, file, actions, attributes, argv, envp);
        }
        let call = Call { pid, actions, attributes, argv, envp };
        if name.to_bytes().contains(&b'/') {
            return code(call.spawn(name));
        }
        // Without a directory of the mount in PATH, the path that the C library finds is one that the kernel
        // can execute, and only the actions are ours.
        code(searched(name).and_then(|found| match found {
            Some(path) => call.spawn(&path),
            None => call.spawn_searched(name),
        }))
    }
}

impl Call {
    /// Spawns a program that the C library searches for.
    ///
    /// # Safety
    /// As for [`Call::spawn`].
    unsafe fn spawn_searched(&self, file: &CStr) -> Result<c_int, Errno> {
        // SAFETY: the caller's promise.
        unsafe {
            let forward = |actions: *const Actions| {
                // The first one that there is: where that cannot be executed, a warning too many does no
                // harm.
                let candidates = search::Candidates::of(file);
                let there = |path: &CStr| vfs::faccessat(libc::AT_FDCWD, path, libc::X_OK).is_ok();
                if let Some(program) = candidates.iter().find(|path| there(path)) {
                    unreached::warn(libc::AT_FDCWD, &program);
                }
                real_spawnp(self.pid, file.as_ptr(), actions, self.attributes, self.argv, self.envp)
            };
            let Some(actions) = read(self.actions) else {
                return Ok(forward(self.actions));
            };
            let mut rewritten = Rewritten::new(&actions, file)?;
            for action in &actions {
                rewritten.add(action)?;
            }
            Ok(forward(if rewritten.changed { rewritten.list.as_ptr() } else { self.actions }))
        }
    }
}
