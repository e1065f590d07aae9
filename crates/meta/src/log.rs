//! The log file of one partition.
//!
//! A log is a header and then records, each a length, a checksum and a body. A record is written with one call and
//! counts whole or not at all. The checksum covers the file's revision and the record's place in it, so that remains of
//! earlier, failed writes are never taken for records. A snapshot is the same file, written anew and renamed over the old.
//!
//! The log survives the death of its process after every append, and the loss of power after [`Log::sync_handle`]'s
//! file was synced. Space is allocated ahead, so that changes that free something go through on a full storage.

use crate::error::{LogError, OpenError};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"BVKMETA\n";
const VERSION: u32 = 2;
/// Magic, version, partition, deployment, revision, checksum of these.
const HEADER: usize = 8 + 4 + 4 + 8 + 8 + 4;
/// Length and checksum of a record.
const PREFIX: usize = 8;
/// Longest body, bytes: a peer's longest message, several times over.
const MAX_RECORD: usize = 8 << 20;
/// Allocated ahead in steps of so many bytes.
const CHUNK: u64 = 64 << 10;
/// Ordinary changes leave so much of the allocation to those that free something. Bytes.
const RESERVE: u64 = 32 << 10;

/// Which log it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub deployment: u64,
    pub partition: u32,
}

/// A log, open for appending.
#[derive(Debug)]
pub(crate) struct Log {
    file: Arc<File>,
    path: PathBuf,
    identity: Identity,
    revision: u64,
    /// Where the next record goes.
    end: u64,
    /// Space is allocated up to here; `u64::MAX` where the storage cannot.
    allocated: u64,
}

impl Log {
    /// Opens the log at `path`, or makes it, and hands every record to `replay`, which says whether it understood it.
    pub(crate) fn open(
        path: &Path,
        identity: Identity,
        mut replay: impl FnMut(&[u8]) -> bool,
    ) -> Result<Log, OpenError> {
        // A snapshot that was not finished is nothing.
        let _ = std::fs::remove_file(temporary(path));
        let mut file = match File::options().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Log::create(path, identity, 1, std::iter::empty::<Vec<u8>>())
                    .map_err(|e| OpenError::io(path)(into_io(e)));
            }
            Err(error) => return Err(OpenError::io(path)(error)),
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(OpenError::io(path))?;
        let revision = check_header(path, identity, &bytes)?;
        let mut at = HEADER;
        while at < bytes.len() {
            match body_at(&bytes, at, revision) {
                Some(body) if replay(body) => at += PREFIX + body.len(),
                // A whole record that makes no sense, or damage with records behind it: stop rather than lose them.
                Some(_) => return Err(damaged(path, at, bytes.len())),
                None if has_record_after(&bytes, at, revision) => {
                    return Err(damaged(path, at, bytes.len()));
                }
                None => {
                    tracing::info!(path = %path.display(), at, "dropped an unfinished record at the log's end");
                    break;
                }
            }
        }
        file.set_len(at as u64).map_err(OpenError::io(path))?;
        Ok(Log {
            file: Arc::new(file),
            path: path.into(),
            identity,
            revision,
            end: at as u64,
            allocated: at as u64,
        })
    }

    /// Writes a new log next to `path` and renames it there. The result is synced.
    fn create<B: AsRef<[u8]>>(
        path: &Path,
        identity: Identity,
        revision: u64,
        bodies: impl IntoIterator<Item = B>,
    ) -> Result<Log, LogError> {
        let temporary = temporary(path);
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&temporary)?;
        let mut log = Log {
            file: Arc::new(file),
            path: path.into(),
            identity,
            revision,
            end: HEADER as u64,
            allocated: 0,
        };
        let written = (|| {
            log.file.write_all_at(&header(identity, revision), 0)?;
            let mut record = Vec::new();
            for body in bodies {
                record.clear();
                record.extend_from_slice(&[0; PREFIX]);
                record.extend_from_slice(body.as_ref());
                // On a full storage a snapshot does without space ahead.
                log.append(&mut record, true)?;
            }
            log.reserve(0, revision > 1)?;
            log.file.sync_data()?;
            std::fs::rename(&temporary, path)?;
            if let Some(dir) = path.parent() {
                File::open(dir)?.sync_all()?;
            }
            Ok(())
        })();
        if let Err(error) = written {
            let _ = std::fs::remove_file(&temporary);
            return Err(error);
        }
        Ok(log)
    }

    /// Replaces the log by one that holds `bodies` only. On failure the old one stays.
    pub(crate) fn replace<B: AsRef<[u8]>>(
        &mut self,
        bodies: impl IntoIterator<Item = B>,
    ) -> Result<(), LogError> {
        *self = Log::create(&self.path, self.identity, self.revision + 1, bodies)?;
        Ok(())
    }

    /// Gives the space that is allocated ahead back, for a snapshot on a full storage to use.
    pub(crate) fn release_reserve(&mut self) {
        if self.allocated == u64::MAX || self.allocated <= self.end {
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.file, flags, self.end, self.allocated - self.end).is_ok() {
            self.allocated = self.end;
        }
    }

    /// Starts a record in `buffer`: the body is to be appended to it, then [`Log::append`] writes it.
    pub(crate) fn start(buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.extend_from_slice(&[0; PREFIX]);
    }

    /// Writes a started record. `frees`: the change makes room, and may take what is kept for that. When it fails the
    /// log is as before.
    pub(crate) fn append(&mut self, record: &mut [u8], frees: bool) -> Result<(), LogError> {
        let Some((prefix, body)) = record.split_at_mut_checked(PREFIX) else {
            return Err(LogError::Full);
        };
        if body.len() > MAX_RECORD {
            return Err(LogError::Full);
        }
        prefix[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        prefix[4..].copy_from_slice(&checksum(body, self.revision, self.end).to_le_bytes());
        let length = record.len() as u64;
        self.reserve(length, frees)?;
        // A write that stops short leaves an invalid tail, which the next one overwrites.
        self.file.write_all_at(record, self.end)?;
        self.end += length;
        Ok(())
    }

    fn reserve(&mut self, length: u64, frees: bool) -> Result<(), LogError> {
        let wanted = self.end + length + RESERVE;
        if wanted <= self.allocated {
            return Ok(());
        }
        let from = self.allocated.max(self.end);
        let more = (wanted - from).next_multiple_of(CHUNK);
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, from, more) {
            Ok(()) => self.allocated = from + more,
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => self.allocated = u64::MAX,
            // There may be room after all for the record itself; without, the write says so.
            Err(_) if frees => {}
            Err(rustix::io::Errno::NOSPC) => return Err(LogError::Full),
            Err(error) => return Err(LogError::Io(error.into())),
        }
        Ok(())
    }

    /// The file to sync, without holding the log meanwhile. After [`Log::replace`] the old one need not be.
    pub(crate) fn sync_handle(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Bytes in the log.
    pub(crate) fn len(&self) -> u64 {
        self.end
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn temporary(path: &Path) -> PathBuf {
    path.with_extension("tmp")
}

fn into_io(error: LogError) -> io::Error {
    match error {
        LogError::Full => io::ErrorKind::StorageFull.into(),
        LogError::Io(error) => error,
    }
}

fn damaged(path: &Path, at: usize, length: usize) -> OpenError {
    OpenError::Damaged { path: path.into(), offset: at as u64, length: length as u64 }
}

fn header(identity: Identity, revision: u64) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&identity.partition.to_le_bytes());
    out[16..24].copy_from_slice(&identity.deployment.to_le_bytes());
    out[24..32].copy_from_slice(&revision.to_le_bytes());
    let sum = crc32c::crc32c(&out[..32]);
    out[32..].copy_from_slice(&sum.to_le_bytes());
    out
}

fn check_header(path: &Path, identity: Identity, bytes: &[u8]) -> Result<u64, OpenError> {
    let foreign = |what| OpenError::Foreign { path: path.into(), what };
    let found = bytes.get(..HEADER).ok_or_else(|| foreign("it is too short for a log"))?;
    if found[..8] != MAGIC[..] {
        return Err(foreign("it is not a metadata log"));
    }
    if u32_at(found, 8) != Some(VERSION) {
        return Err(foreign("its format is that of another version of Bivouac"));
    }
    if u32_at(found, 32) != Some(crc32c::crc32c(&found[..32])) {
        return Err(damaged(path, 0, bytes.len()));
    }
    let mut number = [0; 8];
    number.copy_from_slice(&found[24..32]);
    let revision = u64::from_le_bytes(number);
    if found[..32] != header(identity, revision)[..32] {
        return Err(foreign("it belongs to another deployment, or to another place in this one"));
    }
    Ok(revision)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

fn checksum(body: &[u8], revision: u64, at: u64) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(body), &revision.to_le_bytes());
    crc32c::crc32c_append(sum, &at.to_le_bytes())
}

/// The body of the record at `at`, if a whole and valid one is there.
fn body_at(bytes: &[u8], at: usize, revision: u64) -> Option<&[u8]> {
    let length = u32_at(bytes, at)? as usize;
    let sum = u32_at(bytes, at + 4)?;
    if length == 0 || length > MAX_RECORD {
        return None;
    }
    let body = bytes.get(at + PREFIX..at + PREFIX + length)?;
    (checksum(body, revision, at as u64) == sum).then_some(body)
}

/// Whether there is anything valid behind damage at `at`. An unfinished record is the last and is shorter than the
/// longest; damage in the middle has records behind it.
fn has_record_after(bytes: &[u8], at: usize, revision: u64) -> bool {
    if bytes.len() - at > PREFIX + MAX_RECORD {
        return true;
    }
    // Sums of lengths that happen to fit cost time: when too many do, it is not worth finding out.
    let mut budget: usize = 1 << 31;
    for place in at + 1..bytes.len() {
        let length = u32_at(bytes, place).map_or(0, |l| l as usize);
        if length == 0 || length > bytes.len() - place {
            continue;
        }
        match budget.checked_sub(length) {
            Some(left) => budget = left,
            None => return true,
        }
        if body_at(bytes, place, revision).is_some() {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity { deployment: 7, partition: 3 };

    fn add(log: &mut Log, body: &[u8]) {
        let mut record = Vec::new();
        Log::start(&mut record);
        record.extend_from_slice(body);
        log.append(&mut record, false).unwrap();
    }

    fn read(path: &Path) -> Result<Vec<Vec<u8>>, OpenError> {
        let mut found = Vec::new();
        Log::open(path, IDENTITY, |body| {
            found.push(body.to_vec());
            true
        })?;
        Ok(found)
    }

    #[test]
    fn a_log_cut_at_any_byte_keeps_every_whole_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("partition.log");
        let mut log = Log::open(&path, IDENTITY, |_| true).unwrap();
        let bodies: Vec<Vec<u8>> = (1..20u8).map(|n| vec![n; n as usize * 3]).collect();
        let mut ends = Vec::new();
        for body in &bodies {
            add(&mut log, body);
            ends.push(log.len());
        }
        let whole = std::fs::read(&path).unwrap();
        for cut in HEADER..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let expected = ends.iter().filter(|end| **end <= cut as u64).count();
            assert_eq!(read(&path).unwrap(), bodies[..expected], "cut at {cut}");
        }
    }

    #[test]
    fn damage_before_the_end_is_refused_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("partition.log");
        let mut log = Log::open(&path, IDENTITY, |_| true).unwrap();
        for n in 0..10u8 {
            add(&mut log, &[n; 40]);
        }
        let whole = std::fs::read(&path).unwrap();
        for at in HEADER..whole.len() - 48 {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            std::fs::write(&path, &bytes).unwrap();
            let record = HEADER + (at - HEADER) / 48 * 48;
            match read(&path) {
                Err(OpenError::Damaged { offset, .. }) => assert_eq!(offset, record as u64),
                other => panic!("damage at {at} gave {other:?}"),
            }
        }
    }

    #[test]
    fn logs_of_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("partition.log");
        Log::open(&path, IDENTITY, |_| true).unwrap();
        for other in [Identity { deployment: 8, ..IDENTITY }, Identity { partition: 4, ..IDENTITY }] {
            assert!(matches!(Log::open(&path, other, |_| true), Err(OpenError::Foreign { .. })));
        }
        std::fs::write(&path, b"something else entirely, and long enough to be a header").unwrap();
        assert!(matches!(Log::open(&path, IDENTITY, |_| true), Err(OpenError::Foreign { .. })));
    }

    #[test]
    fn a_replaced_log_holds_the_snapshot_and_what_follows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("partition.log");
        let mut log = Log::open(&path, IDENTITY, |_| true).unwrap();
        add(&mut log, b"old");
        log.replace([b"snapshot"]).unwrap();
        add(&mut log, b"new");
        drop(log);
        // Half a snapshot lies around.
        std::fs::write(temporary(&path), b"half").unwrap();
        assert_eq!(read(&path).unwrap(), [b"snapshot".to_vec(), b"new".to_vec()]);
        assert!(!temporary(&path).exists());
    }
}
