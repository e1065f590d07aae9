//! What was staged: by which `flush --changed` knows what was created or changed since.
//!
//! For each file the record has its state on both sides when it was copied: size, time of the last change of
//! data, and time of the last change of the inode. A program can set back the second, but not the third.
//! Inside, a file is known by its inode number and its path, so that one that was renamed, or that took
//! another's place, counts as new; outside by its path.
//!
//! The record is one file in the deployment's directory, to which each copy appends entries of a fixed length
//! with a checksum; later ones replace earlier ones. What a crash has torn off at the end is ignored: what is
//! missing is copied once more. When most entries have been replaced, who reads the record writes it anew.
//! (What another copy notes at that moment may be lost, and with it the same as by a crash.)

use crate::tree::State;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// An entry: key, size, two times, checksum.
const ENTRY: usize = 16 + 3 * 8 + 8;
/// So many entries may have been replaced, besides as many as there are, before the record is written anew.
const REPLACED: usize = 10_000;
/// So much is collected before it is written, bytes.
const COLLECTED: usize = 64 << 10;

/// What was staged.
#[derive(Debug, Default)]
pub struct Record {
    states: HashMap<u128, State>,
    file: Option<File>,
    pending: Vec<u8>,
    failed: Option<io::Error>,
}

impl Record {
    /// Opens the record of a deployment for appending, or makes it; with `load`, reads what is in it.
    pub fn open(path: &Path, load: bool) -> io::Result<Record> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
        let mut file = options.open(path)?;
        let mut states = HashMap::new();
        if load {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            states = bytes.chunks_exact(ENTRY).filter_map(decode).collect();
            if bytes.len() / ENTRY > 2 * states.len() + REPLACED {
                file = write_anew(path, &states)?;
            }
        }
        // After an entry that was torn off, entries would not be found at their places.
        let torn = file.metadata()?.len() % ENTRY as u64;
        let pending = if torn > 0 { vec![0; ENTRY - torn as usize] } else { Vec::new() };
        Ok(Record { states, file: Some(file), pending, failed: None })
    }

    pub(crate) fn inside(&self, ino: u64, path: &[u8]) -> Option<State> {
        self.states.get(&inside_key(ino, path)).copied()
    }

    pub(crate) fn outside(&self, path: &[u8]) -> Option<State> {
        self.states.get(&outside_key(path)).copied()
    }

    /// Notes a file that is the same on both sides.
    pub(crate) fn note(&mut self, (ino, inside): (u64, &[u8]), is: State, outside: &[u8], was: State) {
        for (key, state) in [(inside_key(ino, inside), is), (outside_key(outside), was)] {
            // As far as it was read. A preload does not read what was staged before.
            if self.states.get(&key) != Some(&state) {
                self.pending.extend(encode(key, state));
            }
        }
        if self.pending.len() >= COLLECTED {
            self.write();
        }
    }

    /// Writes what was noted. An error is kept for [`Record::end`].
    pub(crate) fn write(&mut self) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write_all(&std::mem::take(&mut self.pending)) {
            self.failed.get_or_insert(error);
        }
    }

    /// Writes the rest; the first error of all.
    pub(crate) fn end(&mut self) -> Option<io::Error> {
        self.write();
        self.failed.take()
    }
}

/// Writes a record with the entries that count, and opens it.
fn write_anew(path: &Path, states: &HashMap<u128, State>) -> io::Result<File> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let mut options = OpenOptions::new();
    options.append(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    let mut file = options.open(&fresh)?;
    // A command that was killed may have left something.
    file.set_len(0)?;
    for some in states.iter().collect::<Vec<_>>().chunks(COLLECTED / ENTRY) {
        let bytes: Vec<u8> = some.iter().flat_map(|(key, state)| encode(**key, **state)).collect();
        file.write_all(&bytes)?;
    }
    std::fs::rename(&fresh, path)?;
    Ok(file)
}

fn inside_key(ino: u64, path: &[u8]) -> u128 {
    key(b"i", ino, path)
}

fn outside_key(path: &[u8]) -> u128 {
    key(b"o", 0, path)
}

fn key(side: &[u8], ino: u64, path: &[u8]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(side);
    hash.update(&ino.to_le_bytes());
    hash.update(path);
    hash.digest128()
}

fn encode(key: u128, state: State) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[..16].copy_from_slice(&key.to_le_bytes());
    entry[16..24].copy_from_slice(&state.size.to_le_bytes());
    entry[24..32].copy_from_slice(&state.mtime.to_le_bytes());
    entry[32..40].copy_from_slice(&state.ctime.to_le_bytes());
    let sum = xxh3_64(&entry[..40]);
    entry[40..].copy_from_slice(&sum.to_le_bytes());
    entry
}

fn decode(entry: &[u8]) -> Option<(u128, State)> {
    let number = |at: usize| Some(u64::from_le_bytes(entry.get(at..at + 8)?.try_into().ok()?));
    if number(40)? != xxh3_64(entry.get(..40)?) {
        return None;
    }
    let key = u128::from_le_bytes(entry.get(..16)?.try_into().ok()?);
    Some((key, State { size: number(16)?, mtime: number(24)? as i64, ctime: number(32)? as i64 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(size: u64) -> State {
        State { size, mtime: -5, ctime: 7 }
    }

    #[test]
    fn what_was_noted_last_counts_and_a_torn_entry_hides_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("staged");
        let mut record = Record::open(&path, true).expect("made");
        record.note((7, b"a"), state(1), b"/out/a", state(2));
        record.note((7, b"a"), state(3), b"/out/a", state(4));
        assert!(record.end().is_none());
        // A crash in the middle of an entry.
        let mut bytes = std::fs::read(&path).expect("read");
        bytes.extend_from_slice(&encode(1, state(9))[..20]);
        std::fs::write(&path, bytes).expect("written");
        let mut record = Record::open(&path, false).expect("opened");
        record.note((8, b"b"), state(5), b"/out/b", state(6));
        assert!(record.end().is_none());
        let record = Record::open(&path, true).expect("opened");
        assert_eq!(record.inside(7, b"a"), Some(state(3)));
        assert_eq!(record.outside(b"/out/a"), Some(state(4)));
        assert_eq!(record.inside(8, b"b"), Some(state(5)));
        assert_eq!((record.inside(8, b"a"), record.outside(b"a")), (None, None));
    }

    #[test]
    fn a_record_does_not_grow_with_each_repetition() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("staged");
        let length = || std::fs::metadata(&path).expect("there").len();
        // A copy that does not read the record notes everything again.
        for _ in 0..10 {
            let mut record = Record::open(&path, false).expect("opened");
            for number in 0..1000 {
                record.note((number, b"a"), state(number), b"/out", state(number));
            }
            assert!(record.end().is_none());
        }
        assert_eq!(length(), 20_000 * ENTRY as u64);
        let mut record = Record::open(&path, true).expect("opened");
        assert_eq!(length(), 1001 * ENTRY as u64);
        for number in 0..1000 {
            assert_eq!(record.inside(number, b"a"), Some(state(number)));
            record.note((number, b"a"), state(number), b"/out", state(999));
        }
        record.note((7, b"b"), state(1), b"/out", state(999));
        assert!(record.end().is_none());
        assert_eq!(length(), 1002 * ENTRY as u64, "what is known is not noted again");
        assert_eq!(Record::open(&path, true).expect("opened").inside(7, b"b"), Some(state(1)));
    }
}
