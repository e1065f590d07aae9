//! Reading directories, with the attributes of what is in them.

use crate::deployment::{Deployment, Open, owned};
use crate::error::{Failed, answer, status};
use crate::stat::{bivouac_stat, shown};
use crate::text::{path, put};
use bivouac_client::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, DirEntry, FileKind, NAME_MAX};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

/// Entries that are asked for at once.
const AT_ONCE: u32 = 2048;
/// The position of a directory's first entry: behind `.` and `..`.
const FIRST: u64 = 2;

/// A directory that is being read.
pub struct Dir {
    deployment: Arc<Deployment>,
    ino: Ino,
    /// How often the process had been forked.
    forks: u64,
    at: Mutex<Position>,
}

struct Position {
    /// Entries that the program has not got yet.
    next: VecDeque<DirEntry>,
    /// Where listing goes on behind these.
    after: u64,
    end: bool,
}

/// `struct bivouac_entry`.
#[repr(C)]
pub struct bivouac_entry {
    attributes: bivouac_stat,
    name: [u8; NAME_MAX + 1],
    reserved: [u64; 4],
}

impl Dir {
    /// The next entry with its attributes; one that is gone meanwhile is left out.
    fn next(&self, position: &mut Position) -> Result<Option<(DirEntry, Attr)>, Failed> {
        let client = &self.deployment.client;
        loop {
            while position.next.is_empty() && !position.end {
                let listed = client.list_after(self.ino, position.after, AT_ONCE, true)?;
                position.end = listed.end || listed.entries.is_empty();
                position.after = listed.entries.last().map_or(position.after, |entry| entry.cookie);
                position.next = listed.entries.into();
            }
            let Some(mut entry) = position.next.pop_front() else { return Ok(None) };
            let found = match entry.attr.take() {
                Some(attr) => client.exact(*attr).map_err(Fail::from),
                None => client.stat((self.ino, &entry.name, false)),
            };
            match found {
                Ok(attr) => return Ok(Some((entry, attr))),
                Err(Fail::Errno(Errno::NOENT | Errno::STALE)) => {}
                Err(fail) => {
                    position.next.push_front(entry);
                    return Err(fail.into());
                }
            }
        }
    }
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL; `directory` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_opendir(
    deployment: *const Deployment,
    name: *const c_char,
    directory: *mut *mut Dir,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, path) = unsafe { (owned(deployment)?, path(name)?) };
        let attr = deployment.client.stat((Ino::ROOT, path, true))?;
        if attr.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        deployment.client.access((Ino::ROOT, path, true), libc::R_OK as u32)?;
        let forks = deployment.client.forks();
        let at = Mutex::new(Position { next: VecDeque::new(), after: FIRST, end: false });
        let open = Box::into_raw(Box::new(Dir { deployment: deployment.clone(), ino: attr.ino, forks, at }));
        // SAFETY: as the caller says.
        unsafe { put(directory, open) }.inspect_err(|_| {
            // SAFETY: nobody else has it.
            drop(unsafe { Box::from_raw(open) });
        })?;
        deployment.opens.add(forks, Open::Dir(open));
        Ok(())
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `directory` is NULL or open; `entries` is valid for `most` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_readdir(
    directory: *const Dir,
    entries: *mut bivouac_entry,
    most: usize,
) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let dir = unsafe { directory.as_ref() }.ok_or(Errno::BADF)?;
        if dir.forks != dir.deployment.client.forks() {
            return Err(Failed::new(
                Errno::BADF,
                "the directory was opened before a fork: open it in this process",
            ));
        }
        if entries.is_null() {
            return Err(Errno::INVAL.into());
        }
        let mut position = dir.at.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = 0;
        while count < most {
            let (entry, attr) = match dir.next(&mut position) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(_) if count > 0 => break,
                Err(failed) => return Err(failed),
            };
            let mut name = [0; NAME_MAX + 1];
            let length = entry.name.len().min(NAME_MAX);
            name[..length].copy_from_slice(&entry.name[..length]);
            let attributes = shown(&dir.deployment.client.deployment_map(), &attr);
            // SAFETY: as the caller says.
            unsafe { entries.add(count).write(bivouac_entry { attributes, name, reserved: [0; 4] }) };
            count += 1;
        }
        Ok(count as i64)
    }) as isize
}

/// See `bivouac.h`.
///
/// # Safety
/// `directory` is NULL, or came from [`bivouac_opendir`], and nobody uses it from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_closedir(directory: *mut Dir) {
    answer(|| {
        // SAFETY: as the caller says.
        let Some(dir) = (unsafe { directory.as_ref() }) else { return Ok(0) };
        let is_own = dir.forks == dir.deployment.client.forks();
        if !is_own || dir.deployment.opens.take(dir.forks, Open::Dir(directory)) {
            // SAFETY: as the caller says; from Box::into_raw.
            drop(unsafe { Box::from_raw(directory) });
        }
        Ok(0)
    });
}
