//! Checksums of stored bytes, for sub-files that have copies on other servers.
//!
//! Of each [`CHUNK`] bytes of such a sub-file there is a checksum, in a *sums file* beside it: `crc/` has the names of
//! `sub/`. `bivouac verify` reads both. If they do not agree, the storage has changed something by itself, or lost a
//! change, and another server's copy that agrees with its own checksums is the right one. Reads do not look at
//! checksums: that would make every read as slow as one of whole chunks.
//!
//! - **The size of a chunk** is the smallest block of a file, so a chunk never has bytes of two blocks, whose copies may
//!   be on different servers.
//! - **The checksum** is the linear part of CRC-32C (no initial value, no final inversion) of the chunk, zeros behind
//!   the sub-file's end included. It is 0 for zeros: holes of a sub-file are holes of its sums file. And it is linear:
//!   the checksum of `a xor b` is that of `a` xor that of `b`. So a write to a part of a chunk needs to read only what
//!   it overwrites, and if other bytes of the chunk are damaged, the new checksum still does not fit them.
//! - **Order.** All changes of one sub-file and its sums take turns (the kernel has them take turns anyway). The
//!   checksums are written first: if the storage has no room for them, nothing has been changed.
//! - **A killed server** may leave a chunk whose checksum was changed and whose bytes were not, or only half of them.
//!   That is not damage. So every change first notes its chunks ([`changing`]), and takes the note away at the end.
//!   When the store is opened again, the checksums of noted chunks are computed from what is there. Whether that is what
//!   it should be, comparing the copies shows.
//! - **A full or failing storage** may take neither a change nor the old checksums back. Such chunks stay noted, too, and
//!   the file's next change or comparison computes their checksums.
//! - **A loss of power** may leave bytes and checksums of different ages, because checksums are not synced with the
//!   bytes (that would take a second `fsync`). Where all copies have the same bytes, `verify` writes the checksum
//!   anew.
//!
//! Sums take 4 bytes for each 4 KiB, and one more local file for each sub-file that has copies. Stores of deployments
//! without copies have neither ([`DataStore::keep_sums`] is not called there), and pay one comparison for each change.
//!
//! Lock order: truncations, a file's turn here, the descriptor cache.

pub(crate) mod changing;

use crate::cache::{Cache, Lookup};
use crate::disk::{self, Disk};
use crate::error::DataError;
use crate::file::SubFile;
use crate::place::{self, SubPath};
use crate::store::DataStore;
use crate::undo::Wrote;
use bivouac_layout::Ino;
use bivouac_layout::placement::MIN_BLOCK;
use bivouac_proto::attr::FILE_MAX;
use bivouac_proto::data::Fallocate;
use changing::{Changing, Slot};
use rustix::fd::OwnedFd;
use rustix::fs::{self, Advice, AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that have one checksum.
pub const CHUNK: u64 = MIN_BLOCK as u64;
/// The tree of sums files.
pub(crate) const TREE: &str = "crc";
/// Bytes of a checksum.
const SUM: u64 = 4;
/// Files that share one of these take turns, too.
const TURNS: usize = 256;
/// Sums that are read at once.
const AT_ONCE: u64 = 1 << 16;

/// What is stored of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    /// The checksum of its bytes.
    pub bytes: u32,
    /// The checksum that was stored for it.
    pub stored: u32,
}

impl Sum {
    /// Whether the bytes are those that were written.
    pub fn is_sound(self) -> bool {
        self.bytes == self.stored
    }
}

/// The checksum of a chunk that begins with these bytes, and has zeros behind them.
pub fn sum_of(bytes: &[u8]) -> u32 {
    behind(linear(bytes), CHUNK.saturating_sub(bytes.len() as u64))
}

/// The linear part of CRC-32C.
fn linear(bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!0, bytes)
}

/// A matrix over bits, by columns.
type Matrix = [u32; 32];

const fn times(matrix: &Matrix, mut vector: u32) -> u32 {
    let (mut product, mut column) = (0, 0);
    while vector != 0 {
        if vector & 1 == 1 {
            product ^= matrix[column];
        }
        vector >>= 1;
        column += 1;
    }
    product
}

const fn squared(matrix: &Matrix) -> Matrix {
    let (mut square, mut column) = ([0; 32], 0);
    while column < 32 {
        square[column] = times(matrix, matrix[column]);
        column += 1;
    }
    square
}

/// What one zero byte, two, four and so on behind them do to a checksum.
const ZEROS: [Matrix; 13] = {
    // One zero bit: a step of the shift register with the polynomial of CRC-32C.
    let mut one: Matrix = [0; 32];
    one[0] = 0x82f6_3b78;
    let mut column = 1;
    while column < 32 {
        one[column] = 1 << (column - 1);
        column += 1;
    }
    let mut zeros = [squared(&squared(&squared(&one))); 13];
    let mut power = 1;
    while power < 13 {
        zeros[power] = squared(&zeros[power - 1]);
        power += 1;
    }
    zeros
};

/// A checksum when so many zero bytes follow, at most a chunk's.
fn behind(sum: u32, zeros: u64) -> u32 {
    let used = ZEROS.iter().enumerate().filter(|(power, _)| zeros >> power & 1 == 1);
    used.fold(sum, |sum, (_, matrix)| times(matrix, sum))
}

/// The chunks that have bytes of a range.
fn chunks(range: &Range<u64>) -> Range<u64> {
    range.start / CHUNK..range.end.div_ceil(CHUNK)
}

/// Parts of chunks at the ends of a range that it does not cover as wholes. None is empty.
fn parts(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let (start, end) = (range.start, range.end);
    let first = start..end.min(start.next_multiple_of(CHUNK));
    let last = first.end.max(end - end % CHUNK)..end;
    let is_part = |part: &Range<u64>| part.start < part.end && part.end - part.start < CHUNK;
    [first, last].into_iter().filter(is_part)
}

/// The sums files of a store.
pub(crate) struct Sums {
    /// For each directory of the store.
    trees: Vec<OwnedFd>,
    files: Cache,
    turns: [Mutex<()>; TURNS],
    changing: Changing,
}

/// Checksums of some chunks of a sub-file, which are about to change.
struct Change {
    first: u64,
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Change {
    fn at(&mut self, chunk: u64) -> Option<&mut u32> {
        self.after.get_mut(chunk.checked_sub(self.first)? as usize)
    }

    /// Bytes of one chunk differ by this, as a checksum of the part alone.
    fn differ(&mut self, part: &Range<u64>, by: u32) {
        if let Some(sum) = self.at(part.start / CHUNK) {
            *sum ^= behind(by, part.end.next_multiple_of(CHUNK) - part.end);
        }
    }
}

impl Sums {
    /// Makes what is missing, and opens it.
    fn open(disks: &[Disk], descriptors: usize) -> Result<Sums, DataError> {
        let mut trees = Vec::new();
        for disk in disks {
            trees.push(disk::open_tree(&disk.root, disk.path(), TREE)?);
        }
        let first = disks.first().ok_or(DataError::NoDirectory)?;
        let changing = Changing::open(&first.root)?;
        let turns = [const { Mutex::new(()) }; TURNS];
        Ok(Sums { trees, files: Cache::new(descriptors), turns, changing })
    }

    fn turn(&self, ino: Ino) -> MutexGuard<'_, ()> {
        let turn = &self.turns[(place::mix(ino) >> 40) as usize % TURNS];
        turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tree(&self, mixed: u64) -> Result<&OwnedFd, DataError> {
        self.trees.get(place::directory(mixed, self.trees.len())).ok_or(DataError::NoDirectory)
    }

    /// The sums file of a sub-file. To be called in the file's turn.
    fn file(&self, ino: Ino, create: bool) -> Result<Option<Arc<SubFile>>, DataError> {
        let mixed = place::mix(ino);
        let mut seen = match self.files.get(mixed) {
            Lookup::Hit(file) => return Ok(Some(file)),
            Lookup::Miss(seen) => seen,
        };
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        flags.set(OFlags::CREATE, create);
        let path = SubPath::new(ino, mixed);
        let tree = self.tree(mixed)?;
        let open = || fs::openat(tree, path.as_c_str(), flags, Mode::RUSR | Mode::WUSR);
        let opened = match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.files.clear();
                open()
            }
            Err(Errno::NOENT) if create => Err(Errno::IO),
            opened => opened,
        };
        let file = match opened {
            Ok(descriptor) => Arc::new(SubFile::new(descriptor)),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // Nobody else opens or removes it meanwhile: others of the same part of the cache do not matter.
        loop {
            match self.files.insert(mixed, &file, seen) {
                Ok(kept) => return Ok(Some(kept)),
                Err(now) => seen = now,
            }
        }
    }

    /// Reads checksums; behind the file's end they are 0.
    fn read(&self, ino: Ino, chunks: &Range<u64>) -> Result<Vec<u32>, DataError> {
        let mut bytes = vec![0; (chunks.end.saturating_sub(chunks.start) * SUM) as usize];
        if let Some(file) = self.file(ino, false)? {
            let count = file.read_at(chunks.start * SUM, &mut bytes)?;
            bytes[count..].fill(0);
        }
        Ok(bytes.as_chunks::<4>().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect())
    }

    /// Writes checksums, from the first chunk on.
    fn write(&self, ino: Ino, first: u64, sums: &[u32]) -> Result<(), DataError> {
        let is_hole = sums.iter().all(|sum| *sum == 0);
        let Some(file) = self.file(ino, !is_hole)? else { return Ok(()) };
        if is_hole && file.length()? <= first * SUM {
            return Ok(());
        }
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        match file.write_at(first * SUM, &bytes)? {
            count if count == bytes.len() => Ok(()),
            _ => Err(Errno::NOSPC.into()),
        }
    }

    /// The checksums of these chunks become 0.
    fn clear(&self, ino: Ino, chunks: Range<u64>) -> Result<(), DataError> {
        let Some(file) = self.file(ino, false)? else { return Ok(()) };
        let end = chunks.end.min(file.length()?.div_ceil(SUM));
        if chunks.start >= end {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fs::fallocate(&file, flags, chunks.start * SUM, (end - chunks.start) * SUM) {
            Err(Errno::OPNOTSUPP) => {
                let zeros = vec![0; (end - chunks.start).min(AT_ONCE) as usize];
                let mut at = chunks.start;
                while at < end {
                    let count = (end - at).min(AT_ONCE);
                    self.write(ino, at, &zeros[..count as usize])?;
                    at += count;
                }
                Ok(())
            }
            done => Ok(done?),
        }
    }

    /// There are no chunks from this one on.
    fn cut(&self, ino: Ino, end: u64) -> Result<(), DataError> {
        let Some(file) = self.file(ino, false)? else { return Ok(()) };
        if file.length()? > end * SUM {
            fs::ftruncate(&file, end * SUM)?;
        }
        Ok(())
    }

    /// Removes a sums file; missing is fine.
    pub(crate) fn remove(&self, ino: Ino) {
        let _turn = self.turn(ino);
        self.changing.take_owed(ino).into_iter().for_each(Slot::end);
        let mixed = place::mix(ino);
        if let Ok(tree) = self.tree(mixed) {
            match fs::unlinkat(tree, SubPath::new(ino, mixed).as_c_str(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                // It is removed at the next start.
                Err(error) => tracing::warn!(%ino, %error, "the checksums of a removed sub-file stay"),
            }
        }
        self.files.removed(mixed);
    }

    /// Cuts a sub-file with `cut`, which says whether it has. `from` is the new length.
    pub(crate) fn cutting(
        &self,
        ino: Ino,
        file: &SubFile,
        from: u64,
        cut: impl FnOnce() -> Result<bool, DataError>,
    ) -> Result<bool, DataError> {
        let _turn = self.turn(ino);
        self.settle(ino, Some(file));
        let length = file.length()?;
        if from >= length || self.file(ino, false)?.is_none() {
            return cut();
        }
        // What is left of a chunk that is cut: the first byte that goes may also be a chunk's first.
        let part = from..length.min(from.next_multiple_of(CHUNK));
        let mut change = self.change(ino, chunks(&part))?;
        if !part.is_empty() {
            change.differ(&part, linear(&read_part(file, &part)?));
        }
        let slot = self.changing.begin(ino, &chunks(&(from..length)))?;
        let is_cut = cut();
        if is_cut == Ok(true) {
            self.cut(ino, from.div_ceil(CHUNK))?;
            self.write(ino, change.first, &change.after)?;
        }
        slot.end();
        is_cut
    }

    /// Computes the checksums that are owed of a file. In the file's turn. Returns those that still are.
    fn settle(&self, ino: Ino, file: Option<&SubFile>) -> Vec<Range<u64>> {
        let mut left = Vec::new();
        for slot in self.changing.take_owed(ino) {
            match self.renew(ino, file, slot.chunks()) {
                Ok(()) => slot.end(),
                Err(_) => left.push(slot.chunks()),
            }
        }
        left
    }

    fn change(&self, ino: Ino, chunks: Range<u64>) -> Result<Change, DataError> {
        let before = self.read(ino, &chunks)?;
        Ok(Change { first: chunks.start, after: before.clone(), before })
    }

    /// Computes the checksums of chunks from what is stored. In the file's turn.
    fn renew(&self, ino: Ino, file: Option<&SubFile>, chunks: Range<u64>) -> Result<(), DataError> {
        let length = file.map_or(Ok(0), SubFile::length)?;
        let end = chunks.end.min(length.div_ceil(CHUNK));
        let mut at = chunks.start;
        while let Some(file) = file.filter(|_| at < end) {
            let batch = at..end.min(at + AT_ONCE / 64);
            self.write(ino, at, &sums_of(file, &batch)?)?;
            at = batch.end;
        }
        self.clear(ino, end.max(chunks.start)..chunks.end)
    }
}

/// The checksums of what is stored in chunks.
fn sums_of(file: &SubFile, chunks: &Range<u64>) -> Result<Vec<u32>, DataError> {
    let mut bytes = vec![0; ((chunks.end - chunks.start) * CHUNK) as usize];
    let count = file.read_at(chunks.start * CHUNK, &mut bytes)?;
    bytes[count..].fill(0);
    Ok(bytes.chunks_exact(CHUNK as usize).map(linear).collect())
}

/// A part of a chunk as it is stored; zeros behind the sub-file's end.
fn read_part(file: &SubFile, part: &Range<u64>) -> Result<Vec<u8>, DataError> {
    let mut bytes = vec![0; part.end.saturating_sub(part.start) as usize];
    let count = file.read_at(part.start, &mut bytes)?;
    bytes[count..].fill(0);
    Ok(bytes)
}

impl DataStore {
    /// From now on there are checksums of what is written with [`DataStore::write_summed`] and changed otherwise. To be
    /// called before the store is used, where files may have copies.
    pub fn keep_sums(&self) -> Result<(), DataError> {
        let sums = self.set_sums(Sums::open(self.disks(), self.descriptors())?);
        for ino in sums.changing.files() {
            let _turn = sums.turn(ino);
            match self.existing(ino) {
                // What the storage does not take now is owed on.
                Ok(file) => drop(sums.settle(ino, file.as_deref())),
                // What is lost is found by whoever asks for it.
                Err(error) => {
                    tracing::warn!(%ino, %error, "chunks that were being changed were not summed");
                    sums.changing.take_owed(ino).into_iter().for_each(Slot::end);
                }
            }
        }
        // Left by a server that was killed while it removed a sub-file.
        for (disk, tree) in self.disks().iter().zip(&sums.trees) {
            disk::remove_names(tree, |ino| !disk.inventory.knows(ino))?;
        }
        Ok(())
    }

    /// [`DataStore::write`], for a sub-file that has copies.
    pub fn write_summed(&self, ino: Ino, offset: u64, from: &[u8], sync: bool) -> Result<Wrote, DataError> {
        let Some(sums) = self.sums() else { return self.write(ino, offset, from, sync) };
        let end = offset.saturating_add(from.len() as u64).min(FILE_MAX);
        let range = offset..end;
        if range.is_empty() {
            return self.write(ino, offset, from, sync);
        }
        let span = chunks(&range);
        let bytes = |part: &Range<u64>| {
            let place = (part.start - offset) as usize..(part.end - offset) as usize;
            from.get(place).unwrap_or_default()
        };
        // Long writes are summed before it is their turn.
        let whole = offset.next_multiple_of(CHUNK)..end - end % CHUNK;
        let whole_sums: Vec<u32> = match whole.is_empty() {
            true => Vec::new(),
            false => bytes(&whole).chunks_exact(CHUNK as usize).map(linear).collect(),
        };
        let turn = sums.turn(ino);
        let file = self.existing(ino)?;
        sums.settle(ino, file.as_deref());
        let mut change = sums.change(ino, span.clone())?;
        for part in parts(&range) {
            let old = match &file {
                Some(file) => linear(&read_part(file, &part)?),
                None => 0,
            };
            change.differ(&part, old ^ linear(bytes(&part)));
        }
        for (chunk, sum) in chunks(&whole).zip(whole_sums) {
            if let Some(place) = change.at(chunk) {
                *place = sum;
            }
        }
        let slot = sums.changing.begin(ino, &span)?;
        if change.after != change.before
            && let Err(error) = sums.write(ino, span.start, &change.after)
        {
            // A part of them may have been written.
            if sums.write(ino, span.start, &change.before).is_ok() {
                slot.end();
            }
            return Err(error);
        }
        let wrote = self.write(ino, offset, from, false);
        let is_whole = wrote.as_ref().is_ok_and(|wrote| wrote.count as u64 == end - offset);
        if is_whole || self.correct_sums(sums, (ino, offset), &change, wrote.as_ref()).is_ok() {
            slot.end();
        } else {
            // While nobody else sees that the checksums do not fit.
            drop(slot);
        }
        drop(turn);
        if sync && wrote.is_ok() {
            self.sync(ino)?;
        }
        wrote
    }

    /// A write stored less than it was given: what it has not reached keeps its checksums.
    fn correct_sums(
        &self,
        sums: &Sums,
        (ino, offset): (Ino, u64),
        change: &Change,
        wrote: Result<&Wrote, &DataError>,
    ) -> Result<(), DataError> {
        use bivouac_proto::Errno as Wire;
        let span = change.first..change.first + change.before.len() as u64;
        let unsure = match wrote {
            Ok(wrote) => {
                let end = offset + wrote.count as u64;
                let reached = end.div_ceil(CHUNK);
                let kept = change.before.get((reached - span.start) as usize..).unwrap_or_default();
                sums.write(ino, reached, kept)?;
                // The one chunk of which a part was stored: what it had before is not known any more.
                end / CHUNK..reached
            }
            Err(error) if matches!(error.errno(), Wire::NOSPC | Wire::DQUOT | Wire::FBIG) => {
                return sums.write(ino, span.start, &change.before);
            }
            // Nobody knows how much was stored.
            Err(_) => span,
        };
        sums.renew(ino, self.existing(ino)?.as_deref(), unsure)
    }

    /// [`DataStore::fallocate`], for a sub-file that has copies.
    pub fn fallocate_summed(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: Fallocate,
    ) -> Result<(), DataError> {
        let Some(sums) = self.sums().filter(|_| matches!(mode, Fallocate::PunchHole | Fallocate::Zero))
        else {
            // What is added are zeros.
            return self.fallocate(ino, offset, len, mode);
        };
        let _turn = sums.turn(ino);
        let Some(file) = self.existing(ino)? else { return self.fallocate(ino, offset, len, mode) };
        sums.settle(ino, Some(&file));
        let (length, end) = (file.length()?, offset.saturating_add(len));
        if offset >= length {
            return self.fallocate(ino, offset, len, mode);
        }
        // Behind the sub-file's end are zeros anyway.
        let range = offset..if end < length { end } else { length.next_multiple_of(CHUNK) };
        let span = chunks(&range);
        let mut changed = Vec::new();
        for part in parts(&range) {
            let chunk = part.start / CHUNK;
            let mut change = sums.change(ino, chunk..chunk + 1)?;
            // Two parts are of different chunks, or else one part covers both ends.
            change.differ(&part, linear(&read_part(&file, &part)?));
            changed.push(change);
        }
        let slot = sums.changing.begin(ino, &span)?;
        if let Err(error) = self.fallocate(ino, offset, len, mode) {
            // Making a hole may have been the half of it.
            let is_same = error.errno() == bivouac_proto::Errno::OPNOTSUPP;
            if is_same || sums.renew(ino, Some(&file), span).is_ok() {
                slot.end();
            }
            return Err(error);
        }
        for change in changed {
            sums.write(ino, change.first, &change.after)?;
        }
        sums.clear(ino, range.start.div_ceil(CHUNK)..range.end / CHUNK)?;
        slot.end();
        Ok(())
    }

    /// Computes the checksums of a range's chunks from what is stored: it was compared with other copies.
    pub fn renew_sums(&self, ino: Ino, range: Range<u64>) -> Result<(), DataError> {
        let Some(sums) = self.sums().filter(|_| !range.is_empty()) else { return Ok(()) };
        let _turn = sums.turn(ino);
        let file = self.existing(ino)?;
        sums.settle(ino, file.as_deref());
        let slot = sums.changing.begin(ino, &chunks(&range))?;
        sums.renew(ino, file.as_deref(), chunks(&range))?;
        slot.end();
        Ok(())
    }

    /// The first byte at or behind an offset that may not be a hole, or whose checksum says so. `None`: there is none.
    pub fn next_used(&self, ino: Ino, offset: u64) -> Result<Option<u64>, DataError> {
        let next = |file: &SubFile, offset| match fs::seek(file, fs::SeekFrom::Data(offset)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(DataError::from(errno)),
        };
        let data = self.existing(ino)?.map_or(Ok(None), |file| next(&file, offset))?;
        let Some(sums) = self.sums() else { return Ok(data) };
        let _turn = sums.turn(ino);
        let summed = sums.file(ino, false)?.map_or(Ok(None), |file| next(&file, offset / CHUNK * SUM))?;
        let summed = summed.map(|at| offset.max(at / SUM * CHUNK));
        Ok(data.into_iter().chain(summed).min())
    }

    /// Whether checksums are as old as the bytes: the machine has not been started anew since the store was last open.
    pub fn are_sums_sure(&self) -> bool {
        self.sums().is_some_and(|sums| sums.changing.is_sure)
    }

    /// The checksums of a range's chunks, and the sub-file's length. The range begins with a chunk. The bytes come from
    /// the storage, as far as its file system does not hold changes of them in memory. A chunk whose checksum could not
    /// be stored counts as sound.
    pub fn sums_in(&self, ino: Ino, range: Range<u64>) -> Result<(u64, Vec<Sum>), DataError> {
        let Some(sums) = self.sums() else { return Err(Errno::OPNOTSUPP.into()) };
        let span = chunks(&range);
        let _turn = sums.turn(ino);
        let file = self.existing(ino)?;
        let owed = sums.settle(ino, file.as_deref());
        let stored = sums.read(ino, &span)?;
        let (length, bytes) = match file {
            Some(file) => {
                let len = std::num::NonZeroU64::new(range.end.saturating_sub(range.start));
                let _ = fs::fadvise(&file, range.start, len, Advice::DontNeed);
                (file.length()?, sums_of(&file, &span)?)
            }
            None => (0, vec![0; stored.len()]),
        };
        let sum = |(chunk, (bytes, stored))| match owed.iter().any(|owed| owed.contains(&chunk)) {
            true => Sum { bytes, stored: bytes },
            false => Sum { bytes, stored },
        };
        Ok((length, span.zip(bytes.into_iter().zip(stored)).map(sum).collect()))
    }
}

#[cfg(test)]
mod tests;
