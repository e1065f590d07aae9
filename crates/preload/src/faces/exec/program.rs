//! From a path to what the kernel is to execute.
//!
//! A program of the mount is copied into anonymous memory (`memfd`), whose name carries the program's path,
//! so that `/proc/self/exe` still says where it came from ([`program_of_link`]). A script gives its
//! interpreter, and arguments that go before the program's own. A file outside, found by a path that the
//! kernel can't follow, is given to it by its own path.

use super::Strings;
use super::script::{self, HEAD, MAX_DEPTH};
use crate::faces::real::handles;
use crate::vfs::{self, Errno};
use std::ffi::{CStr, CString, c_char, c_int};

/// What the memory's name begins with, before the program's path.
const NAME: &[u8] = b"bivouac:";
/// Longest name of such memory, bytes.
const NAME_MAX: usize = 249;
/// Bytes copied at a time.
const PIECE: usize = 1 << 20;
/// `MFD_EXEC`: the memory is to be executed. Unknown before Linux 6.3.
const MFD_EXEC: u32 = 0x10;

/// Something that the kernel can execute.
pub struct Program {
    /// The memory that holds it, or -1. Closed when this value goes; closed by the kernel when it is
    /// executed.
    memory: c_int,
    /// What to give to the kernel.
    path: CString,
    /// Arguments that take the place of the first one; none, if it is not a script.
    prefix: Vec<CString>,
    /// Whether the kernel could not have found it by itself.
    special: bool,
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.memory >= 0 {
            let _ = vfs::close(self.memory);
        }
    }
}

impl Program {
    /// The program at a path. Errors as `execve` has them.
    pub fn find(dirfd: c_int, path: &CStr) -> Result<Program, Errno> {
        Program::open(dirfd, path, path.to_owned(), 0, 0)
    }

    /// Likewise for `execveat`, whose scripts are named through the directory's descriptor.
    pub fn find_at(dirfd: c_int, path: &CStr, flags: c_int) -> Result<Program, Errno> {
        let name = if dirfd == libc::AT_FDCWD || path.to_bytes().starts_with(b"/") {
            path.to_owned()
        } else {
            let text = [format!("/dev/fd/{dirfd}/").as_bytes(), path.to_bytes()].concat();
            CString::new(text).map_err(|_| Errno::INVAL)?
        };
        let nofollow = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
        Program::open(dirfd, path, name, nofollow, 0)
    }

    /// The program of a descriptor of ours.
    pub fn of_descriptor(fd: c_int) -> Result<Program, Errno> {
        let name = CString::new(format!("/dev/fd/{fd}")).map_err(|_| Errno::INVAL)?;
        if vfs::fstat(fd)?.st_mode & 0o111 == 0 {
            return Err(Errno::ACCESS);
        }
        Program::read(fd, &name, 0)
    }

    fn open(dirfd: c_int, path: &CStr, name: CString, flags: c_int, depth: usize) -> Result<Program, Errno> {
        let fd = vfs::openat(dirfd, path, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | flags, 0)?;
        let fd = out_of_the_way(fd)?;
        let program = if vfs::is_ours(fd) {
            vfs::faccessat(dirfd, path, libc::X_OK).and_then(|()| Program::read(fd, &name, depth))
        } else {
            Program::outside(fd, &name, depth)
        };
        let _ = vfs::close(fd);
        program
    }

    /// A file of the kernel's. It is special only if its interpreter is in the mount.
    fn outside(fd: c_int, name: &CStr, depth: usize) -> Result<Program, Errno> {
        let mut head = [0u8; HEAD];
        let count = vfs::pread(fd, &mut head, 0).unwrap_or(0);
        if let Ok(Some(line)) = script::parse(head.get(..count).unwrap_or_default())
            && let Ok(interpreter) = CString::new(line.interpreter)
            && handles(libc::AT_FDCWD, &interpreter)
        {
            return Program::interpreted(interpreter, line.argument, name, depth);
        }
        let mut target = [0u8; 4096];
        let link = CString::new(format!("/proc/self/fd/{fd}")).map_err(|_| Errno::INVAL)?;
        let length = vfs::readlinkat(libc::AT_FDCWD, &link, &mut target)?;
        let path = CString::new(target.get(..length).unwrap_or_default()).map_err(|_| Errno::NOENT)?;
        Ok(Program { memory: -1, path, prefix: Vec::new(), special: false })
    }

    /// Reads the program of a descriptor of ours.
    fn read(fd: c_int, name: &CStr, depth: usize) -> Result<Program, Errno> {
        if vfs::fstat(fd)?.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Errno::ACCESS);
        }
        let mut head = [0u8; HEAD];
        let mut length = 0;
        while let Some(rest) = head.get_mut(length..).filter(|rest| !rest.is_empty()) {
            match vfs::pread(fd, rest, length as i64)? {
                0 => break,
                count => length += count,
            }
        }
        let head = head.get(..length).unwrap_or_default();
        if let Some(line) = script::parse(head)? {
            let interpreter = CString::new(line.interpreter).map_err(|_| Errno::NOENT)?;
            return Program::interpreted(interpreter, line.argument, name, depth);
        }
        let memory = copy(fd, name)?;
        let path = CString::new(format!("/proc/self/fd/{memory}")).map_err(|_| Errno::INVAL)?;
        Ok(Program { memory, path, prefix: Vec::new(), special: true })
    }

    /// The interpreter of the script called `name`.
    fn interpreted(
        interpreter: CString,
        argument: Option<&[u8]>,
        name: &CStr,
        depth: usize,
    ) -> Result<Program, Errno> {
        if depth >= MAX_DEPTH {
            return Err(Errno::LOOP);
        }
        let mut own = vec![interpreter.clone()];
        if let Some(argument) = argument {
            own.push(CString::new(argument).map_err(|_| Errno::INVAL)?);
        }
        own.push(name.to_owned());
        if !handles(libc::AT_FDCWD, &interpreter) {
            return Ok(Program { memory: -1, path: interpreter, prefix: own, special: true });
        }
        let mut program = Program::open(libc::AT_FDCWD, &interpreter, interpreter.clone(), 0, depth + 1)?;
        if program.prefix.is_empty() {
            program.prefix = own;
        } else {
            // The interpreter is a script: its arguments, the last of which is its own path, then ours
            // without it.
            program.prefix.extend(own.into_iter().skip(1));
        }
        program.special = true;
        Ok(program)
    }

    /// What to give to the kernel.
    pub fn path(&self) -> &CStr {
        &self.path
    }

    /// The memory that the program is in, if it is.
    pub fn memory(&self) -> Option<c_int> {
        (self.memory >= 0).then_some(self.memory)
    }

    /// Moves the memory to a descriptor of at least `least`.
    pub fn move_memory(&mut self, least: c_int) -> Result<(), Errno> {
        let moved = vfs::fcntl(self.memory, libc::F_DUPFD_CLOEXEC, least as usize)?;
        let _ = vfs::close(self.memory);
        self.memory = moved;
        self.path = CString::new(format!("/proc/self/fd/{moved}")).map_err(|_| Errno::INVAL)?;
        Ok(())
    }

    /// Whether the kernel could not have found it by itself.
    pub fn is_special(&self) -> bool {
        self.special
    }

    /// The arguments to give it, ended by null; empty when they are the program's own.
    ///
    /// # Safety
    /// `argv` is null or a valid list. The result points into it and into `self`.
    pub unsafe fn arguments(&self, argv: Strings) -> Vec<*const c_char> {
        if self.prefix.is_empty() {
            return Vec::new();
        }
        let mut all: Vec<*const c_char> = self.prefix.iter().map(|argument| argument.as_ptr()).collect();
        // SAFETY: the caller's promise: read up to the null that ends the list.
        unsafe {
            if !argv.is_null() && !(*argv).is_null() {
                let mut at = argv.add(1);
                while !(*at).is_null() {
                    all.push(*at);
                    at = at.add(1);
                }
            }
        }
        all.push(std::ptr::null());
        all
    }
}

/// In a `vfork` child the table of descriptors is the parent's: a number that the child has closed and got
/// again still stands for the parent's file there. So what is opened there moves to a number of which the
/// parent knows nothing.
fn out_of_the_way(fd: c_int) -> Result<c_int, Errno> {
    if !vfs::state::borrowed() {
        return Ok(fd);
    }
    let least = vfs::fds::highest().saturating_add(1);
    let moved = vfs::fcntl(fd, libc::F_DUPFD_CLOEXEC, least as usize);
    let _ = vfs::close(fd);
    moved
}

/// Copies a file of ours into memory named after it, which closes on exec. Also used for libraries.
pub fn copy(fd: c_int, name: &CStr) -> Result<c_int, Errno> {
    let memory = create(&memory_name(name))?;
    let copied = fill(fd, memory);
    if copied.is_err() {
        let _ = vfs::close(memory);
    }
    copied.map(|()| memory)
}

fn create(name: &CStr) -> Result<c_int, Errno> {
    match sys!(SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC | MFD_EXEC) {
        Err(Errno::INVAL) => sys!(SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC),
        other => other,
    }
    .map(|fd| fd as c_int)
}

fn fill(from: c_int, to: c_int) -> Result<(), Errno> {
    let size = usize::try_from(vfs::fstat(from)?.st_size).unwrap_or(0);
    let mut piece = vec![0u8; size.clamp(4096, PIECE)];
    let mut offset = 0i64;
    loop {
        let count = vfs::pread(from, &mut piece, offset)?;
        if count == 0 {
            return Ok(());
        }
        offset += count as i64;
        let mut rest = piece.get(..count).unwrap_or_default();
        while !rest.is_empty() {
            let written = sys!(SYS_write, to, rest.as_ptr(), rest.len())?;
            rest = rest.get(written..).unwrap_or_default();
        }
    }
}

/// The name of the memory for a program: its absolute path, if that fits; else the end of it.
fn memory_name(path: &CStr) -> CString {
    // As the kernel would have it: without links, `.` and `..`.
    let canonical = vfs::real_path(libc::AT_FDCWD, path).ok().flatten();
    let mut whole = canonical.unwrap_or_else(|| match path.to_bytes() {
        absolute if absolute.starts_with(b"/") => absolute.to_vec(),
        relative => [&vfs::getcwd().unwrap_or_default()[..], b"/", relative].concat(),
    });
    let room = NAME_MAX - NAME.len();
    if whole.len() > room {
        let start = whole.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        whole = whole.split_off(start.max(whole.len() - room));
    }
    CString::new([NAME, &whole[..]].concat()).unwrap_or_default()
}

/// What `/proc/self/exe` begins with for programs of the mount.
pub const PROGRAM_LINK: &[u8] = b"/memfd:bivouac:/";

/// The path of the program in the mount, from what the kernel says `/proc/self/exe` is; `None` for other
/// programs.
pub fn program_of_link(target: &[u8]) -> Option<&[u8]> {
    let path = target.strip_prefix(b"/memfd:")?.strip_prefix(NAME)?;
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    path.starts_with(b"/").then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_of_a_copied_program_tells_its_path() {
        assert_eq!(program_of_link(b"/memfd:bivouac:/bivouac/a.out (deleted)"), Some(&b"/bivouac/a.out"[..]));
        assert_eq!(program_of_link(b"/memfd:bivouac:cut (deleted)"), None);
        assert_eq!(program_of_link(b"/usr/bin/ls"), None);
    }

    #[test]
    fn names_too_long_for_the_kernel_keep_their_end() {
        let path = CString::new([&b"/a/"[..], &[b'x'; 300]].concat()).unwrap();
        let name = memory_name(&path);
        assert_eq!(name.to_bytes().len(), NAME_MAX);
        assert_eq!(memory_name(c"/a/b").as_c_str(), c"bivouac:/a/b");
    }

    #[test]
    fn nested_interpreters_stack_their_arguments() {
        let program = Program {
            memory: -1,
            path: c"/bin/sh".to_owned(),
            prefix: vec![c"/bin/sh".to_owned(), c"/m/script".to_owned()],
            special: true,
        };
        let argv = [c"script".as_ptr(), c"one".as_ptr(), std::ptr::null()];
        // SAFETY: a valid list.
        let all = unsafe { program.arguments(argv.as_ptr()) };
        assert_eq!(all.len(), 4);
        assert_eq!(all[2], argv[1]);
    }
}
