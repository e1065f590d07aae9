//! The log file of one partition.
//!
//! A log is a header and then records, each a length, a checksum and a body. A record is written with one
//! call and counts completely or not at all. The checksum covers the file's revision and the record's offset
//! in it, so that remains of earlier, failed writes are never taken for records. A snapshot is a file of the
//! same format, written anew and renamed over the old log: at one go ([`Log::replace`]), or while the old one is
//! in use ([`rewrite`]).
//!
//! The log survives the death of its process after every append, and the loss of power after [`Log::to_sync`]
//! was synced. Space is allocated ahead, so that changes that free something go through on a full storage.
//! Beside it lies its [mark](crate::mark), by which a log that has lost its end, or is gone, is distinguished
//! from a complete one.

mod rewrite;

use crate::error::{LogError, OpenError};
use crate::file::open_ordinary;
use crate::mark::{Mark, Owed};
use bivouac_node::Boot;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use rewrite::Rewrite;

const MAGIC: &[u8; 8] = b"BVKMETA\n";
const VERSION: u32 = 5;
/// Magic, version, partition, deployment, revision, checksum of these.
const HEADER: usize = 8 + 4 + 4 + 8 + 8 + 4;
/// Length and checksum of a record.
const PREFIX: usize = 8;
/// Longest body, bytes: a peer's longest message, several times over.
const MAX_RECORD: usize = 8 << 20;
/// Allocated ahead in steps of so many bytes.
const CHUNK: u64 = 64 << 10;
/// So much of the allocation is reserved for changes that free space, bytes.
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
    path: PathBuf,
    identity: Identity,
    file: Revision,
    mark: Mark,
}

/// The file of a log: the one that has its name, or one that is to get it.
#[derive(Debug)]
struct Revision {
    number: u64,
    file: Arc<File>,
    /// Where the next record goes.
    end: u64,
    /// Space is allocated up to here; `u64::MAX` where the storage cannot.
    allocated: u64,
    /// Whether its name is on stable storage.
    name_synced: bool,
}

/// What has to be synced so that a log survives a loss of power; the log need not be locked meanwhile.
#[derive(Debug)]
pub(crate) struct ToSync {
    file: Arc<File>,
    /// The directory, if the log's name is not on stable storage.
    directory: Option<PathBuf>,
    revision: u64,
    end: u64,
}

impl ToSync {
    /// Syncs it. [`Log::synced`] is to be told then.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if let Some(directory) = &self.directory {
            File::open(directory)?.sync_all()?;
        }
        self.file.sync_data()
    }
}

impl Log {
    /// Opens the log at `path`, or makes it, and hands every record to `replay`, which says whether it
    /// understood it.
    pub(crate) fn open(
        path: &Path,
        identity: Identity,
        boot: Option<Boot>,
        mut replay: impl FnMut(&[u8]) -> bool,
    ) -> Result<Log, OpenError> {
        // An unfinished snapshot is removed.
        let _ = std::fs::remove_file(temporary(path));
        let mark_path = path.with_extension("mark");
        let mut mark = Mark::open(&mark_path, identity, boot)?;
        let Some(mut file) = open_ordinary(path)? else {
            if let Some(owed) = mark.least() {
                return Err(OpenError::Missing { path: path.into(), owed, mark: mark_path });
            }
            let file = Revision::create(path, identity, 1, std::iter::empty::<Vec<u8>>(), &mut mark)
                .map_err(|e| OpenError::io(path)(e.into()))?;
            return Ok(Log { path: path.into(), identity, file, mark });
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(OpenError::io(path))?;
        let short =
            |length: u64, owed| OpenError::Short { path: path.into(), length, owed, mark: mark_path.clone() };
        if let Some(owed) = mark.least().filter(|owed| *owed > bytes.len() as u64) {
            return Err(short(bytes.len() as u64, owed));
        }
        let number = check_header(path, identity, &bytes)?;
        let end = replay_all(path, &bytes, number, &mut replay)?;
        match mark.owed(number) {
            Owed::Bytes(owed) if owed > end => return Err(short(end, owed)),
            Owed::Another => return Err(OpenError::Outdated { path: path.into(), mark: mark_path }),
            Owed::Lost => return Err(OpenError::MarkDamaged(mark_path)),
            Owed::Bytes(_) | Owed::Unknown => {}
        }
        file.set_len(end).map_err(OpenError::io(path))?;
        mark.begin(number, end);
        // A crash may have left its name unsynced: that cannot be known.
        let file = Revision { number, file: Arc::new(file), end, allocated: end, name_synced: false };
        Ok(Log { path: path.into(), identity, file, mark })
    }

    /// Replaces the log by one that holds `bodies` only. On failure the old one stays.
    pub(crate) fn replace<B: AsRef<[u8]>>(
        &mut self,
        bodies: impl IntoIterator<Item = B>,
    ) -> Result<(), LogError> {
        let number = self.file.number + 1;
        self.file = Revision::create(&self.path, self.identity, number, bodies, &mut self.mark)?;
        Ok(())
    }

    /// Frees the space that is allocated ahead, so that a snapshot can use it on a full storage.
    pub(crate) fn release_reserve(&mut self) {
        self.file.release_reserve();
    }

    /// Starts a record in `buffer`: the body is to be appended to it, then [`Log::append`] writes it.
    pub(crate) fn start(buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.extend_from_slice(&[0; PREFIX]);
    }

    /// Writes a started record. `frees`: the change frees space, and may use what is reserved for such
    /// changes. If this fails, the log is as before.
    pub(crate) fn append(&mut self, record: &mut [u8], frees: bool) -> Result<(), LogError> {
        self.file.append(record, frees)?;
        self.mark.committed(self.file.number, self.file.end);
        Ok(())
    }

    /// What is to be synced so that everything appended so far survives the loss of power.
    pub(crate) fn to_sync(&self) -> ToSync {
        let directory = self.path.parent().filter(|_| !self.file.name_synced).map(Path::to_owned);
        ToSync { file: self.file.file.clone(), directory, revision: self.file.number, end: self.file.end }
    }

    /// Takes note of what was synced. (A log that was replaced meanwhile is synced as a whole.)
    pub(crate) fn synced(&mut self, done: &ToSync) {
        if done.revision == self.file.number {
            self.file.name_synced = true;
            self.mark.replaced();
            self.mark.synced(done.revision, done.end);
        }
    }

    /// What is in the file, so that it can be read again without the log's lock.
    pub(crate) fn written(&self) -> Written {
        let Revision { number, ref file, end, .. } = self.file;
        Written {
            path: self.path.clone(),
            identity: self.identity,
            revision: number,
            file: file.clone(),
            end,
        }
    }

    /// Whether the mark is as it was written.
    pub(crate) fn has_its_mark(&self) -> bool {
        self.mark.is_stored()
    }

    /// Writes the mark anew.
    pub(crate) fn renew_mark(&mut self) -> io::Result<()> {
        self.mark.renew()
    }

    /// Bytes in the log.
    pub(crate) fn len(&self) -> u64 {
        self.file.end
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// A log's file and how much was written to it. That does not change any more, whatever follows.
#[derive(Debug)]
pub(crate) struct Written {
    path: PathBuf,
    identity: Identity,
    revision: u64,
    file: Arc<File>,
    end: u64,
}

impl Written {
    /// Which revision of the log it is.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Bytes.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The log's name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all records again: whether they have their checksums, and the file its name.
    pub(crate) fn is_whole(&self) -> io::Result<bool> {
        let named = match std::fs::symlink_metadata(&self.path) {
            Ok(named) => named,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let own = self.file.metadata()?;
        if (named.dev(), named.ino()) != (own.dev(), own.ino()) {
            return Ok(false);
        }
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
        let mut bytes = vec![0; usize::try_from(self.end).unwrap_or(usize::MAX)];
        match self.file.read_exact_at(&mut bytes, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
        if check_header(&self.path, self.identity, &bytes).ok() != Some(self.revision) {
            return Ok(false);
        }
        let mut at = HEADER;
        while let Some(body) = body_at(&bytes, at, self.revision) {
            at += PREFIX + body.len();
        }
        Ok(at as u64 == self.end)
    }
}

impl Revision {
    /// Writes a new log next to `path` and renames it there. The result is synced. On failure the log that
    /// had the name before still has it.
    fn create<B: AsRef<[u8]>>(
        path: &Path,
        identity: Identity,
        number: u64,
        bodies: impl IntoIterator<Item = B>,
        mark: &mut Mark,
    ) -> Result<Revision, LogError> {
        let temporary = temporary(path);
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&temporary)?;
        let file = Arc::new(file);
        let mut made = Revision { number, file, end: HEADER as u64, allocated: 0, name_synced: false };
        let renamed = made.fill(identity, bodies).and_then(|()| {
            mark.announce(number, made.end)?.sync_data()?;
            Ok(std::fs::rename(&temporary, path)?)
        });
        if let Err(error) = renamed {
            let _ = std::fs::remove_file(&temporary);
            return Err(error);
        }
        // From here on it is the log, even if something fails below: a restart would find it by its name.
        match path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all()) {
            Ok(()) => {
                made.name_synced = true;
                mark.replaced();
            }
            // The next sync of the log tries again, and returns the error.
            Err(error) => tracing::warn!(%error, path = %path.display(), "a log's name is not synced"),
        }
        Ok(made)
    }

    /// Writes header and records, and syncs them.
    fn fill<B: AsRef<[u8]>>(
        &mut self,
        identity: Identity,
        bodies: impl IntoIterator<Item = B>,
    ) -> Result<(), LogError> {
        self.file.write_all_at(&header(identity, self.number), 0)?;
        let mut record = Vec::new();
        for body in bodies {
            Log::start(&mut record);
            record.extend_from_slice(body.as_ref());
            // On a full storage, a snapshot does without space allocated ahead.
            self.append(&mut record, true)?;
        }
        self.reserve(0, self.number > 1)?;
        Ok(self.file.sync_data()?)
    }

    fn append(&mut self, record: &mut [u8], frees: bool) -> Result<(), LogError> {
        let Some((prefix, body)) = record.split_at_mut_checked(PREFIX) else {
            return Err(LogError::Full);
        };
        if body.len() > MAX_RECORD {
            return Err(LogError::Full);
        }
        prefix[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        prefix[4..].copy_from_slice(&checksum(body, self.number, self.end).to_le_bytes());
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
            // There may still be space for the record itself; if not, the write fails.
            Err(_) if frees => {}
            Err(rustix::io::Errno::NOSPC) => return Err(LogError::Full),
            Err(error) => return Err(LogError::Io(error.into())),
        }
        Ok(())
    }

    fn release_reserve(&mut self) {
        if self.allocated == u64::MAX || self.allocated <= self.end {
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.file, flags, self.end, self.allocated - self.end).is_ok() {
            self.allocated = self.end;
        }
    }
}

/// Hands the records behind the header to `replay`, and says where they end.
fn replay_all(
    path: &Path,
    bytes: &[u8],
    revision: u64,
    replay: &mut impl FnMut(&[u8]) -> bool,
) -> Result<u64, OpenError> {
    let mut at = HEADER;
    while at < bytes.len() {
        match body_at(bytes, at, revision) {
            Some(body) if replay(body) => at += PREFIX + body.len(),
            // A whole record that makes no sense, or damage with records behind it: stop rather than lose
            // them.
            Some(_) => return Err(damaged(path, at, bytes.len())),
            None if has_record_after(bytes, at, revision) => return Err(damaged(path, at, bytes.len())),
            None => {
                tracing::info!(path = %path.display(), at, "dropped an unfinished record at the log's end");
                break;
            }
        }
    }
    Ok(at as u64)
}

/// Reads the records in the bytes of a log file; where they end.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn records(bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<u64, OpenError> {
    let path = Path::new("fuzzed");
    let revision = check_header(path, Identity { deployment: 7, partition: 3 }, bytes)?;
    replay_all(path, bytes, revision, &mut |body| {
        each(body);
        true
    })
}

fn temporary(path: &Path) -> PathBuf {
    path.with_extension("tmp")
}

fn damaged(path: &Path, at: usize, length: usize) -> OpenError {
    let mark = path.with_extension("mark");
    OpenError::Damaged { path: path.into(), offset: at as u64, length: length as u64, mark }
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

/// Whether there is anything valid behind damage at `at`. An unfinished record is the last and is shorter
/// than the longest; damage in the middle has records behind it.
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
mod tests;
