//! Process locks across an exec.
//!
//! `fcntl`'s locks of the process outlive an exec, but those on a file of which the exec closes a descriptor
//! go, as with any close. What the exec closed, the new program cannot see any more. So before it, the files
//! concerned are written into an environment variable ([`variable`]), which the library takes out of the new
//! program's environment before that looks at it ([`take`]); the locks are given up there ([`give_up`]). If
//! the exec fails, nothing has happened.
//!
//! That there are locks at all the new program's client learns from the agent when it attaches. A program
//! without the library keeps all of them until it ends.

use super::{fds, state};
use crate::boundary;
use bivouac_layout::Ino;
use bivouac_node::process;
use std::ffi::{CStr, CString, c_char};

/// `BIVOUAC_LOCKS=<process>:<inode>,<inode>...`, numbers hexadecimal.
const NAME: &[u8] = b"BIVOUAC_LOCKS=";
/// Most files that fit into one variable (the kernel takes 128 KiB). The locks on more are given up before
/// the exec.
const MOST: usize = 7_000;
/// A program that has inherited locks may not know its descriptors yet: so many are looked at before an exec.
const LOOKED_AT: i32 = 1_024;

/// What the program that is about to be executed has to be told; `None` if there are no such locks, as in
/// most cases.
pub fn variable() -> Option<CString> {
    if !state::has_client() || state::borrowed() {
        return None;
    }
    let client = state::client().ok()?;
    if !client.may_have_process_locks() {
        return None;
    }
    let mut closed: Vec<Ino> = Vec::new();
    for fd in 0..=fds::highest().max(LOOKED_AT) {
        let Ok(Some(file)) = fds::get(fd) else { continue };
        let closes =
            sys!(SYS_fcntl, fd, libc::F_GETFD).is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize != 0);
        if closes
            && !file.is_path_only()
            && client.may_have_process_locks_on(file.ino())
            && !closed.contains(&file.ino())
        {
            closed.push(file.ino());
        }
    }
    for ino in closed.iter().skip(MOST) {
        client.release_process_locks(*ino);
    }
    closed.truncate(MOST);
    let inodes: Vec<String> = closed.iter().map(|ino| format!("{:x}", ino.0)).collect();
    let value = format!("{:x}:{}", process::real_pid(), inodes.join(","));
    CString::new([NAME, value.as_bytes()].concat()).ok()
}

/// An environment with the variable in the place of any older one. It points into what it is given.
///
/// # Safety
/// `envp` is null or a valid list of C strings, ended by null.
pub unsafe fn with(envp: *const *const c_char, variable: &CStr) -> Vec<*const c_char> {
    let mut all = vec![variable.as_ptr()];
    let mut at = envp;
    // SAFETY: the caller's promise: read up to the null that ends the list.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            if value(*at).is_none() {
                all.push(*at);
            }
            at = at.add(1);
        }
    }
    all.push(std::ptr::null());
    all
}

/// Takes the variable out of the environment that the process was started with. Returns the files on which to
/// release locks, if the variable was set in this same process.
///
/// # Safety
/// `envp` is null or the environment as the kernel made it, which nobody else reads now.
pub unsafe fn take(envp: *const *const c_char) -> Option<Vec<Ino>> {
    let mut found = None;
    let mut from = envp.cast_mut();
    // SAFETY: the caller's promise: the list ends with null, lies in writable memory, and only moves towards
    // its start.
    unsafe {
        let mut to = from;
        while !from.is_null() {
            if let Some(text) = (!(*from).is_null()).then(|| value(*from)).flatten() {
                found = parse(text, process::real_pid());
            } else {
                *to = *from;
                to = to.add(1);
            }
            if (*from).is_null() {
                break;
            }
            from = from.add(1);
        }
    }
    found
}

/// Gives up the locks on files of which the exec has closed a descriptor.
pub fn give_up(closed: &[Ino]) {
    for ino in closed {
        // One after the other in any case.
        let _ = boundary::attempt(|| state::client().map(|client| client.release_process_locks(*ino)));
    }
}

/// The variable's value, if an entry is it.
///
/// # Safety
/// `entry` is a C string.
unsafe fn value<'a>(entry: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(entry) }.to_bytes().strip_prefix(NAME)
}

fn parse(text: &[u8], pid: u32) -> Option<Vec<Ino>> {
    let text = std::str::from_utf8(text).ok()?;
    let (process, inodes) = text.split_once(':')?;
    if u32::from_str_radix(process, 16) != Ok(pid) {
        return None;
    }
    Some(inodes.split(',').filter_map(|ino| u64::from_str_radix(ino, 16).ok()).map(Ino).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[*const c_char]) -> Vec<String> {
        let ended = list.iter().take_while(|entry| !entry.is_null());
        // SAFETY: the tests' lists hold C strings.
        ended.map(|entry| unsafe { CStr::from_ptr(*entry) }.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_variable_is_put_in_once_and_taken_out_again() {
        let pid = format!("BIVOUAC_LOCKS={:x}:1f,20", std::process::id());
        let variable = CString::new(pid).unwrap();
        let old = [c"A=1".as_ptr(), c"BIVOUAC_LOCKS=1:5".as_ptr(), c"B=2".as_ptr(), std::ptr::null()];
        // SAFETY: valid lists, ended by null.
        unsafe {
            let mut list = with(old.as_ptr(), &variable);
            assert_eq!(texts(&list).len(), 3);
            assert_eq!(take(list.as_mut_ptr()), Some(vec![Ino(0x1f), Ino(0x20)]));
            assert_eq!(texts(&list), ["A=1", "B=2"]);
            assert_eq!(take(list.as_mut_ptr()), None);
            assert_eq!(with(std::ptr::null(), &variable).len(), 2);
            assert_eq!(take(std::ptr::null()), None);
        }
    }

    #[test]
    fn what_was_meant_for_another_process_is_not_done() {
        assert_eq!(parse(b"10:1", 0x10), Some(vec![Ino(1)]));
        assert_eq!(parse(b"10:", 0x10), Some(vec![]));
        for other in [&b"11:1"[..], b"10", b"", b":1"] {
            assert_eq!(parse(other, 0x10), None);
        }
    }
}
