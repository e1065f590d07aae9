//! What a library needs: names and search paths from its dynamic section.
//!
//! The file is the user's, so every number in it is checked before it is used, and lengths are bounded. A
//! file that makes no sense needs nothing: the loader will say what is wrong with it.

use crate::vfs;
use std::ffi::c_int;

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const NEEDED: u64 = 1;
const STRTAB: u64 = 5;
const STRSZ: u64 = 10;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;
/// Bounds: program headers, bytes of the dynamic section, bytes of the string table.
const MAX_HEADERS: usize = 256;
const MAX_DYNAMIC: u64 = 1 << 20;
const MAX_STRINGS: u64 = 64 << 20;

/// What a library needs.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Needed {
    /// Names, most without a slash.
    pub names: Vec<Vec<u8>>,
    /// Directories to search, with `$ORIGIN` not replaced yet.
    pub directories: Vec<Vec<u8>>,
}

/// Reads what the library of an open descriptor needs.
pub fn of(fd: c_int) -> Needed {
    parse(|offset, buffer| read(fd, offset, buffer)).unwrap_or_default()
}

/// Fills the buffer; `None` if the file is too short.
fn read(fd: c_int, offset: u64, buffer: &mut [u8]) -> Option<()> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = i64::try_from(offset.checked_add(done as u64)?).ok()?;
        match vfs::pread(fd, rest, at) {
            Ok(count) if count > 0 => done += count,
            _ => return None,
        }
    }
    Some(())
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn quarter(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?)))
}

fn string(strings: &[u8], at: u64) -> Option<&[u8]> {
    let rest = strings.get(usize::try_from(at).ok()?..)?;
    rest.get(..rest.iter().position(|&byte| byte == 0)?)
}

/// A piece of the file, if it is no longer than `most`.
fn piece(
    read: &impl Fn(u64, &mut [u8]) -> Option<()>,
    offset: u64,
    length: u64,
    most: u64,
) -> Option<Vec<u8>> {
    if length > most {
        return None;
    }
    let mut bytes = vec![0u8; usize::try_from(length).ok()?];
    read(offset, &mut bytes)?;
    Some(bytes)
}

fn parse(read: impl Fn(u64, &mut [u8]) -> Option<()>) -> Option<Needed> {
    let header = piece(&read, 0, 64, 64)?;
    // 64 bits, little-endian.
    if header.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (size, count) = (quarter(&header, 54)?, quarter(&header, 56)?);
    if size < 56 || count > MAX_HEADERS {
        return None;
    }
    let table = piece(&read, word(&header, 32)?, (size * count) as u64, 1 << 20)?;
    let mut loads = Vec::new();
    let mut dynamic = None;
    for entry in table.chunks_exact(size) {
        let (offset, address, length) = (word(entry, 8)?, word(entry, 16)?, word(entry, 32)?);
        match half(entry, 0)? {
            LOAD => loads.push((address, length, offset)),
            DYNAMIC => dynamic = Some(piece(&read, offset, length, MAX_DYNAMIC)?),
            _ => {}
        }
    }
    let dynamic = dynamic?;
    let entries = || {
        dynamic
            .chunks_exact(16)
            .filter_map(|entry| Some((word(entry, 0)?, word(entry, 8)?)))
            .take_while(|(tag, _)| *tag != 0)
    };
    let value = |wanted: u64| entries().find(|(tag, _)| *tag == wanted).map(|(_, value)| value);
    let (address, length) = (value(STRTAB)?, value(STRSZ)?);
    let place = loads.iter().find_map(|&(start, length, offset)| {
        let inside = address.checked_sub(start).filter(|&inside| inside < length)?;
        offset.checked_add(inside)
    })?;
    let strings = piece(&read, place, length, MAX_STRINGS)?;
    let names = entries().filter(|(tag, _)| *tag == NEEDED);
    let names = names.filter_map(|(_, value)| Some(string(&strings, value)?.to_vec())).collect();
    let path =
        value(RUNPATH).or_else(|| value(RPATH)).and_then(|path| string(&strings, path)).unwrap_or_default();
    let directories = path.split(|&byte| byte == b':').filter(|directory| !directory.is_empty());
    Some(Needed { names, directories: directories.map(<[u8]>::to_vec).collect() })
}

/// A search directory with `$ORIGIN` replaced by the directory of the library at `path`.
pub fn expand(directory: &[u8], path: &[u8]) -> Vec<u8> {
    let origin = path.iter().rposition(|&byte| byte == b'/').and_then(|at| path.get(..at)).unwrap_or(b".");
    let mut expanded = Vec::new();
    let mut rest = directory;
    while let Some((&first, behind)) = rest.split_first() {
        let after = rest.strip_prefix(b"$ORIGIN").or_else(|| rest.strip_prefix(b"${ORIGIN}"));
        if let Some(after) = after {
            expanded.extend_from_slice(origin);
            rest = after;
        } else {
            expanded.push(first);
            rest = behind;
        }
    }
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library with these strings in its table and these dynamic entries, mapped at 0x1000 from offset 0.
    fn library(strings: &[u8], entries: &[(u64, u64)]) -> Vec<u8> {
        let mut file = vec![0u8; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54..56].copy_from_slice(&56u16.to_le_bytes());
        file[56..58].copy_from_slice(&2u16.to_le_bytes());
        let strings_at = 64 + 2 * 56;
        let dynamic_at = strings_at + strings.len();
        let mut entries = entries.to_vec();
        entries.extend([
            (STRTAB, 0x1000 + strings_at as u64),
            (STRSZ, strings.len() as u64),
            (0, 0),
            (NEEDED, 1),
        ]);
        let total = dynamic_at + entries.len() * 16;
        for (kind, offset, length) in [(LOAD, 0, total), (DYNAMIC, dynamic_at, entries.len() * 16)] {
            let mut header = [0u8; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&(offset as u64).to_le_bytes());
            header[16..24].copy_from_slice(&(0x1000 + offset as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(length as u64).to_le_bytes());
            file.extend_from_slice(&header);
        }
        file.extend_from_slice(strings);
        for (tag, value) in entries {
            file.extend_from_slice(&tag.to_le_bytes());
            file.extend_from_slice(&value.to_le_bytes());
        }
        file
    }

    fn parsed(file: &[u8]) -> Option<Needed> {
        parse(|offset, buffer| {
            let start = usize::try_from(offset).ok()?;
            buffer.copy_from_slice(file.get(start..start.checked_add(buffer.len())?)?);
            Some(())
        })
    }

    #[test]
    fn names_and_search_path_are_read() {
        let file =
            library(b"\0liba.so\0libb.so\0$ORIGIN/lib:/x\0", &[(NEEDED, 1), (NEEDED, 9), (RUNPATH, 17)]);
        let needed = parsed(&file).unwrap();
        assert_eq!(needed.names, [b"liba.so".to_vec(), b"libb.so".to_vec()]);
        assert_eq!(needed.directories, [b"$ORIGIN/lib".to_vec(), b"/x".to_vec()]);
    }

    #[test]
    fn damaged_files_need_nothing_and_do_not_panic() {
        let file = library(b"\0liba.so\0", &[(NEEDED, 1), (NEEDED, u64::MAX)]);
        for length in 0..file.len() {
            let _ = parsed(&file[..length]);
        }
        for at in 0..file.len() {
            for value in [0, 0x7f, 0xff] {
                let mut damaged = file.clone();
                damaged[at] = value;
                let _ = parsed(&damaged);
            }
        }
        assert_eq!(parsed(b"#!/bin/sh"), None);
    }

    #[test]
    fn origin_is_the_directory_of_the_library() {
        assert_eq!(expand(b"$ORIGIN/../libs", b"/m/a/x.so"), b"/m/a/../libs");
        assert_eq!(expand(b"${ORIGIN}", b"/m/a/x.so"), b"/m/a");
        assert_eq!(expand(b"/plain", b"/m/a/x.so"), b"/plain");
    }
}
