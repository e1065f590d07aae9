//! `getdents64(2)`: entries of a directory as the kernel lays them out.

use crate::vfs::{self, Errno, fds};

/// Bytes of a `struct linux_dirent64` before its name: inode, position, length, type.
const ENTRY_HEAD: usize = 19;

/// `getdents64(2)` on a directory of ours.
///
/// # Safety
/// `buffer` has room for `size` bytes.
pub unsafe fn list(fd: i32, buffer: *mut u8, size: usize) -> Result<usize, Errno> {
    let Some(file) = fds::get(fd)? else {
        return sys!(SYS_getdents64, fd, buffer, size);
    };
    let before = vfs::lseek(fd, 0, libc::SEEK_CUR)?;
    // The smallest entry takes 24 bytes; entries that do not fit are listed again by the next call.
    let entries = vfs::state::apart(|| file.list((size / 48).max(1)))?.entries;
    let mut used = 0;
    // Where the run of entries with the current cookie began, and the cookie before it: a listing never stops
    // within one.
    let mut run = (0, before);
    let mut last = None;
    for entry in &entries {
        let length = (ENTRY_HEAD + entry.name.len() + 1).next_multiple_of(8);
        if last != Some(entry.cookie as i64) {
            run = (used, last.unwrap_or(before));
        }
        if used + length > size {
            vfs::lseek(fd, run.1, libc::SEEK_SET)?;
            if run.0 == 0 {
                return Err(Errno::INVAL);
            }
            used = run.0;
            break;
        }
        let cookie = entry.cookie as i64;
        // SAFETY: the entry fits into what is left.
        unsafe {
            let to = buffer.add(used);
            to.write_bytes(0, length);
            to.cast::<u64>().write_unaligned(entry.ino.0);
            to.add(8).cast::<i64>().write_unaligned(cookie);
            to.add(16).cast::<u16>().write_unaligned(length as u16);
            to.add(18).write(entry.kind.d_type());
            std::ptr::copy_nonoverlapping(entry.name.as_ptr(), to.add(ENTRY_HEAD), entry.name.len());
        }
        used += length;
        last = Some(cookie);
    }
    Ok(used)
}
