//! A voter's journal: vote and log entries in one file, each record on stable storage before it is acknowledged.
//!
//! The file begins with a header: who the voter is, and the format's version. Then come records: four bytes length,
//! four bytes checksum of these, the record, four bytes checksum of it. A record says what changed: a new vote, an
//! entry, entries taken back, entries that a snapshot has replaced. With the last, and after a failed write, the file is
//! replaced by one with what is still needed ([`Journal::rewrite`]), so that it stays short.
//!
//! A record that a crash has torn off was never acknowledged, and is forgotten: one whose bytes end too early, or are
//! zeros from the beginning of some page on (a loss of power may leave a file longer than what was written of it).
//! Everything else that is not as it was written is damage, and an error.

use super::{Entry, Identity, LogId, Vote};
use crate::controller::ControllerError;
use bivouac_layout::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Name of the journal in the voter's directory.
pub(crate) const JOURNAL: &str = "journal";
/// Longest file that is read, bytes.
const LONGEST: usize = 1 << 30;
/// Longest record, bytes: far more than the greatest map.
const LONGEST_RECORD: usize = 64 << 20;
const VERSION: u32 = 6;
/// Magic, version, deployment, node, checksum of these.
const HEADER: usize = 8 + 4 + 8 + 2 + 4;
/// What a loss of power leaves unwritten are whole pages.
const PAGE: usize = 4096;

/// What a record says.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Record {
    /// For whom the voter has voted.
    Vote(Vote),
    /// The next entry.
    Entry(Entry),
    /// Entries from this one on are taken back.
    Truncated(u64),
    /// The snapshot has everything up to here.
    Purged(LogId),
}

/// What a journal says in the end.
#[derive(Clone, Default)]
pub(crate) struct Contents {
    /// For whom the voter has voted last.
    pub(crate) vote: Option<Vote>,
    /// The last entry that is not kept any more.
    pub(crate) purged: Option<LogId>,
    /// The entries, by their numbers, without a hole.
    pub(crate) entries: BTreeMap<u64, Entry>,
}

impl Contents {
    /// The last entry.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.entries.last_key_value().map(|(_, entry)| entry.log_id).or(self.purged)
    }

    /// Takes a record in. Why it does not fit, if it does not.
    pub(crate) fn take(&mut self, record: Record) -> Result<(), &'static str> {
        match record {
            Record::Vote(vote) => self.vote = Some(vote),
            Record::Entry(entry) => {
                let next = self.last().map_or(0, |last| last.index + 1);
                if entry.log_id.index != next && !(self.entries.is_empty() && self.purged.is_none()) {
                    return Err("an entry of the log is missing");
                }
                self.entries.insert(entry.log_id.index, entry);
            }
            Record::Truncated(from) => drop(self.entries.split_off(&from)),
            Record::Purged(last) => {
                self.entries = self.entries.split_off(&(last.index + 1));
                self.purged = Some(last);
            }
        }
        Ok(())
    }

    fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let vote = self.vote.iter().copied().map(Record::Vote);
        let purged = self.purged.iter().copied().map(Record::Purged);
        vote.chain(purged).chain(self.entries.values().cloned().map(Record::Entry))
    }
}

/// An open journal.
pub(crate) struct Journal {
    path: PathBuf,
    identity: Identity,
    file: File,
}

impl Journal {
    /// Opens what is in `directory`, and what it says. `None`: there is none, or it is another deployment's.
    pub(crate) fn open(
        directory: &Path,
        identity: Identity,
    ) -> Result<Option<(Journal, Contents)>, ControllerError> {
        let path = directory.join(JOURNAL);
        let Some(bytes) = read(&path)? else { return Ok(None) };
        let mut rest = &bytes[..];
        if !header(&path, &mut rest, identity)? {
            return Ok(None);
        }
        let mut contents = Contents::default();
        while let Some(record) = take_record(&path, &mut rest, bytes.len())? {
            contents.take(record).map_err(|what| damaged(&path, what))?;
        }
        // What was torn off must not stay in front of what follows.
        let mut journal = Journal::at(path, identity)?;
        let failed = |cause| ControllerError::Store { path: directory.join(JOURNAL), cause };
        if rest.is_empty() {
            journal.file = append_to(&journal.path).map_err(failed)?;
        } else {
            tracing::warn!(bytes = rest.len(), "the last record was torn off when this voter ended");
            journal.rewrite(&contents).map_err(failed)?;
        }
        Ok(Some((journal, contents)))
    }

    /// Begins a new one, in place of what is there.
    pub(crate) fn create(directory: &Path, identity: Identity) -> Result<Journal, ControllerError> {
        let path = directory.join(JOURNAL);
        let failed = |cause| ControllerError::Store { path: path.clone(), cause };
        let header = header_of(identity);
        write_whole(&path, &header).map_err(failed)?;
        let file = append_to(&path).map_err(failed)?;
        Ok(Journal { path, identity, file })
    }

    fn at(path: PathBuf, identity: Identity) -> Result<Journal, ControllerError> {
        let file = File::open(&path).map_err(|cause| ControllerError::Store { path: path.clone(), cause })?;
        Ok(Journal { path, identity, file })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Has every append fail from now on, until the file is replaced.
    #[cfg(test)]
    pub(crate) fn fill_up(&mut self) {
        self.file = append_to(Path::new("/dev/full")).expect("opens");
    }

    /// Appends records; they are on stable storage when it returns. After an error, nobody knows what the file has:
    /// [`Journal::rewrite`].
    pub(crate) fn append(&mut self, records: &[Record]) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        records.iter().try_for_each(|record| put_record(record, &mut bytes))?;
        self.file.write_all(&bytes)?;
        self.file.sync_data()
    }

    /// Replaces the file by one that says the same in short. After a crash there is the old one or the new one.
    pub(crate) fn rewrite(&mut self, contents: &Contents) -> std::io::Result<()> {
        let mut bytes = header_of(self.identity);
        contents.records().try_for_each(|record| put_record(&record, &mut bytes))?;
        write_whole(&self.path, &bytes)?;
        self.file = append_to(&self.path)?;
        Ok(())
    }
}

/// The beginning of each of a voter's files.
pub(crate) fn header_of(identity: Identity) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER);
    bytes.extend_from_slice(b"BVKVOTE\n");
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&identity.deployment.to_le_bytes());
    bytes.extend_from_slice(&identity.node.0.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Takes the header off. `false`: the file is another deployment's.
pub(crate) fn header(path: &Path, rest: &mut &[u8], identity: Identity) -> Result<bool, ControllerError> {
    // Files get their name when they are complete: no header is ever torn.
    let Some((header, after)) = rest.split_at_checked(HEADER) else {
        return Err(damaged(path, "it is too short"));
    };
    let (content, sum) = header.split_at(HEADER - 4);
    if !content.starts_with(b"BVKVOTE\n") || sum != crc32c::crc32c(content).to_le_bytes() {
        return Err(damaged(path, "its header is not what was written"));
    }
    if content[8..12] != VERSION.to_le_bytes() {
        return Err(damaged(path, "it was written by another version of Bivouac"));
    }
    *rest = after;
    if content[12..20] != identity.deployment.to_le_bytes() {
        return Ok(false);
    }
    let node = NodeId(u16::from_le_bytes([content[20], content[21]]));
    if node != identity.node {
        return Err(damaged(path, "it is another node's"));
    }
    Ok(true)
}

/// Appends a record with its checksums.
pub(crate) fn put_record<T: Serialize>(record: &T, out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut body = Vec::new();
    bivouac_proto::encode(record, &mut body);
    let length = u32::try_from(body.len()).ok().filter(|length| *length as usize <= LONGEST_RECORD);
    let length = length.ok_or_else(|| std::io::Error::from(ErrorKind::FileTooLarge))?.to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&crc32c::crc32c(&length).to_le_bytes());
    out.extend_from_slice(&body);
    out.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    Ok(())
}

/// Takes the next record off. `None`: there is none, or only what a crash has left of one (then something is left
/// of `rest`). `whole`: the file's length.
pub(crate) fn take_record<T: for<'a> Deserialize<'a>>(
    path: &Path,
    rest: &mut &[u8],
    whole: usize,
) -> Result<Option<T>, ControllerError> {
    let all = *rest;
    let at = whole - all.len();
    let Some((prefix, after)) = all.split_at_checked(8) else { return Ok(None) };
    let (length, sum) = prefix.split_at(4);
    if sum != crc32c::crc32c(length).to_le_bytes() {
        return if is_unwritten(all, at) {
            Ok(None)
        } else {
            Err(damaged(path, "a record's length is wrong"))
        };
    }
    let length = length.try_into().map_or(usize::MAX, |bytes| u32::from_le_bytes(bytes) as usize);
    if length > LONGEST_RECORD {
        return Err(damaged(path, "a record is too long"));
    }
    let Some((body, after)) = after.split_at_checked(length) else { return Ok(None) };
    let Some((sum, after)) = after.split_at_checked(4) else { return Ok(None) };
    if sum != crc32c::crc32c(body).to_le_bytes() {
        return if after.is_empty() && is_unwritten(all, at) {
            Ok(None)
        } else {
            Err(damaged(path, "a record is not what was written"))
        };
    }
    let record = bivouac_proto::decode(body).map_err(|_| damaged(path, "a record makes no sense"))?;
    *rest = after;
    Ok(Some(record))
}

/// Whether the end of a file, which begins `at` this place, was never written: zeros from its beginning, or from the
/// beginning of a page, on.
fn is_unwritten(end: &[u8], at: usize) -> bool {
    let zeros = end.iter().rev().take_while(|byte| **byte == 0).count();
    let first_zero = at + end.len() - zeros;
    let from = if zeros == end.len() { first_zero } else { first_zero.next_multiple_of(PAGE) };
    from < at + end.len()
}

/// Replaces a file: readers see the old one or the new one, also after a crash.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let fresh = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(0o600);
    let mut file = options.open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// All of a file that a voter of this user has written; `None`: there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, ControllerError> {
    match bivouac_node::file::read(path, LONGEST).map_err(std::io::Error::from) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(ControllerError::Store { path: path.into(), cause }),
    }
}

pub(crate) fn damaged(path: &Path, what: &str) -> ControllerError {
    ControllerError::Damaged { path: path.into(), what: what.into() }
}

fn append_to(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).open(path)
}
