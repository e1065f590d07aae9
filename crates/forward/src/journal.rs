//! Where things were found, on disk: so an I/O node that is started again knows what clients mean by numbers.
//!
//! A record for each find, one behind the other; the last one of a number counts. A record that was cut off, because the process was
//! killed, ends the file. When there are many more records than numbers, the file is written anew. Nothing depends on it but that
//! clients need not open files again: where it cannot be written, that is noted in the log, and memory alone has it.

use crate::tree::{Found, check_name};
use bivouac_layout::Ino;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Two numbers, and the length of the name.
const HEAD: usize = 17;
/// A file with fewer records is not written anew.
const FEW: usize = 4096;

/// See the module.
pub(crate) struct Journal {
    path: PathBuf,
    /// `None` after it could not be written.
    file: Option<File>,
    records: usize,
}

impl Journal {
    /// The one at a path, or a new one, and what is in it in the order in which it was found.
    pub(crate) fn open(path: &Path) -> (Journal, Vec<(Ino, Found)>) {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(path) {
            let _ = file.read_to_end(&mut bytes);
        }
        let found = records(&bytes);
        let mut journal = Journal { path: path.to_path_buf(), file: None, records: 0 };
        // What was cut off goes.
        journal.rewrite(found.iter().map(|(ino, found)| (*ino, found)));
        (journal, found)
    }

    /// Notes where something was found.
    pub(crate) fn note(&mut self, ino: Ino, found: &Found) {
        let Some(file) = &mut self.file else { return };
        match file.write_all(&record(ino, found)) {
            Ok(()) => self.records += 1,
            Err(error) => self.give_up(&error),
        }
    }

    /// Whether it has so many more records than there are numbers that it should be written anew.
    pub(crate) fn is_long(&self, numbers: usize) -> bool {
        self.file.is_some() && self.records > FEW.max(4 * numbers)
    }

    /// Writes it anew.
    pub(crate) fn rewrite<'f>(&mut self, all: impl Iterator<Item = (Ino, &'f Found)>) {
        let mut bytes = Vec::new();
        self.records = 0;
        for (ino, found) in all {
            bytes.extend_from_slice(&record(ino, found));
            self.records += 1;
        }
        let draft = self.path.with_extension("new");
        let options = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&draft);
        let written = options.and_then(|mut file| {
            file.write_all(&bytes)?;
            std::fs::rename(&draft, &self.path)?;
            Ok(file)
        });
        match written {
            Ok(file) => self.file = Some(file),
            Err(error) => self.give_up(&error),
        }
    }

    fn give_up(&mut self, error: &std::io::Error) {
        tracing::warn!(%error, path = %self.path.display(), "numbers of forwarded files will not be known after a restart");
        self.file = None;
    }
}

fn record(ino: Ino, found: &Found) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD + found.name.len());
    record.extend_from_slice(&ino.0.to_le_bytes());
    record.extend_from_slice(&found.parent.0.to_le_bytes());
    // No name is longer.
    record.push(found.name.len() as u8);
    record.extend_from_slice(&found.name);
    record
}

fn records(mut bytes: &[u8]) -> Vec<(Ino, Found)> {
    let mut all = Vec::new();
    let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| Ino(u64::from_le_bytes(*bytes)));
    while let Some((head, rest)) = bytes.split_at_checked(HEAD)
        && let (Some(ino), Some(parent)) = (number(head), number(&head[8..]))
        && let Some((name, rest)) = rest.split_at_checked(usize::from(head[HEAD - 1]))
        && ino.is_forwarded()
        && parent.is_forwarded()
        && check_name(name).is_ok()
    {
        all.push((ino, Found { parent, name: name.into() }));
        bytes = rest;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(parent: u64, name: &str) -> Found {
        Found { parent: Ino::forwarded(parent), name: name.as_bytes().into() }
    }

    #[test]
    fn what_was_noted_is_there_again_up_to_a_record_that_was_cut_off() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("forwarded");
        let all: Vec<_> =
            (1..50).map(|n| (Ino::forwarded(n), found(n / 7, &"x".repeat(n as usize)))).collect();
        let (mut journal, empty) = Journal::open(&path);
        assert_eq!(empty, []);
        all.iter().for_each(|(ino, found)| journal.note(*ino, found));
        let whole = std::fs::read(&path).expect("written");
        for cut in (0..whole.len()).rev().step_by(7) {
            std::fs::write(&path, &whole[..cut]).expect("cut");
            let (mut journal, there) = Journal::open(&path);
            let lengths = all.iter().map(|(ino, found)| record(*ino, found).len());
            let ends = lengths.scan(0, |end, length| {
                *end += length;
                Some(*end)
            });
            assert_eq!(there, all[..ends.filter(|end| *end <= cut).count()]);
            // It goes on behind what is whole.
            journal.note(Ino::forwarded(99), &found(9, "last"));
            let (_, again) = Journal::open(&path);
            assert_eq!(
                (again.len(), again.last()),
                (there.len() + 1, Some(&(Ino::forwarded(99), found(9, "last"))))
            );
        }
        for garbage in [&b"garbage of more than seventeen bytes"[..], &[0; 64], &[255; 200]] {
            std::fs::write(&path, garbage).expect("written");
            assert_eq!(Journal::open(&path).1, []);
        }
    }

    #[test]
    fn it_is_written_anew_when_it_is_long_and_lives_without_its_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("forwarded");
        let (mut journal, _) = Journal::open(&path);
        (0..FEW + 1).for_each(|n| journal.note(Ino::forwarded(7), &found(1, &format!("{n}"))));
        assert!(journal.is_long(1) && !journal.is_long(FEW));
        let last = found(1, "last");
        journal.rewrite([(Ino::forwarded(7), &last)].into_iter());
        assert!(!journal.is_long(1));
        assert_eq!(Journal::open(&path).1, [(Ino::forwarded(7), last)]);
        let (mut nowhere, none) = Journal::open(&directory.path().join("no/such"));
        nowhere.note(Ino::forwarded(7), &found(1, "x"));
        assert!(none.is_empty() && !nowhere.is_long(0));
    }
}
