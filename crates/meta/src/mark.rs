//! The high-water mark of one log: how long the log is known to have been.
//!
//! A log that is truncated between two records looks like a complete shorter log, and a log that is gone
//! looks like one that was never made. So each log has a small file beside it, `partition-NN.mark`, that says
//! how many bytes of it were acknowledged (*committed*), how many of these were put on stable storage
//! (*synced*), and in which boot of the machine that was. While the machine has not been started anew, a log
//! must have all committed bytes; afterwards, all synced ones, because a loss of power may have taken the
//! others.
//!
//! The mark is written after the record that it counts, with one system call that a killed process has either
//! made or not made (0.3 µs; its block is allocated from the start, so that this also works on a full
//! storage). So it never claims more than the log has. If a mark cannot be written, it claims less than it
//! could: the check is weaker then, but never wrong.
//!
//! A snapshot is another file with another *revision* ([`crate::log`]). Before the snapshot is renamed over
//! the old log, and until its name is on stable storage, the mark describes both files, because a crash may
//! leave either.
//!
//! An administrator who removes the mark decides to go on with the log as it is.

use crate::error::OpenError;
use crate::file::open_ordinary;
use crate::log::Identity;
use bivouac_node::Boot;
use rustix::fd::AsRawFd;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"BVKMARK\n";
const VERSION: u32 = 1;
/// Magic, version, partition, deployment, boot, two heights, checksum of these.
const LENGTH: usize = 8 + 4 + 4 + 8 + 16 + 2 * 24 + 4;

/// How long one revision of a log was.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Height {
    /// Which revision; 0 for none.
    pub revision: u64,
    /// Acknowledged, bytes.
    pub committed: u64,
    /// Of these on stable storage, bytes.
    pub synced: u64,
}

/// What a mark says, and the file that it is kept in.
#[derive(Debug)]
pub(crate) struct Mark {
    file: Arc<File>,
    path: PathBuf,
    identity: Identity,
    boot: Option<Boot>,
    /// The log that is in use.
    current: Height,
    /// A snapshot whose name may or may not be on stable storage.
    next: Height,
    /// Its file was there already.
    found: bool,
    /// The last attempt to write failed, and that was logged.
    failed: bool,
}

/// What a log must have, according to its mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    /// There was no mark: any log is accepted.
    Unknown,
    /// There was a mark, and it has lost its content.
    Lost,
    /// So many bytes.
    Bytes(u64),
    /// The log is not the one that was in use last.
    Another,
}

impl Mark {
    /// Reads the mark at `path`, or makes one that knows nothing.
    pub(crate) fn open(path: &Path, identity: Identity, boot: Option<Boot>) -> Result<Mark, OpenError> {
        let (current, next) = (Height::default(), Height::default());
        let of = |file: File, found| Mark {
            file: Arc::new(file),
            path: path.into(),
            identity,
            boot,
            current,
            next,
            found,
            failed: false,
        };
        let Some(file) = open_ordinary(path)? else {
            let file = File::options().read(true).write(true).create_new(true).open(path);
            return Ok(of(file.map_err(OpenError::io(path))?, false));
        };
        let mut bytes = Vec::with_capacity(LENGTH);
        (&file).take(LENGTH as u64).read_to_end(&mut bytes).map_err(OpenError::io(path))?;
        let mut mark = of(file, true);
        // A server that was killed, or a loss of power, may leave a mark without its content, but only before
        // its log has a name (see `announce`).
        if bytes.iter().any(|byte| *byte != 0) {
            let whole =
                <&[u8; LENGTH]>::try_from(&bytes[..]).map_err(|_| OpenError::MarkDamaged(path.into()))?;
            mark.take(whole)?;
        }
        Ok(mark)
    }

    /// Takes over what the file says.
    fn take(&mut self, bytes: &[u8; LENGTH]) -> Result<(), OpenError> {
        let (content, sum) = bytes.split_at(LENGTH - 4);
        if content.get(..8) != Some(&MAGIC[..]) || sum != crc32c::crc32c(content).to_le_bytes() {
            return Err(OpenError::MarkDamaged(self.path.clone()));
        }
        let identity = self.identity;
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        let versioned = u64::from(VERSION) | u64::from(identity.partition) << 32;
        if (number(8), number(16)) != (versioned, identity.deployment) {
            let what =
                "it belongs to another version of Bivouac, another deployment, or another place in this one";
            return Err(OpenError::Foreign { path: self.path.clone(), what });
        }
        let height = |at| Height { revision: number(at), committed: number(at + 8), synced: number(at + 16) };
        (self.current, self.next) = (height(40), height(64));
        let mut boot = [0; Boot::LEN];
        boot.copy_from_slice(&bytes[24..40]);
        if !Boot::is_since(self.boot, Boot::from_bytes(boot)) {
            // A loss of power may have taken what was not synced; that is no damage.
            for height in [&mut self.current, &mut self.next] {
                height.committed = height.synced;
            }
        }
        Ok(())
    }

    /// What a log of this revision must have.
    pub(crate) fn owed(&self, revision: u64) -> Owed {
        match [self.current, self.next].into_iter().find(|height| height.revision == revision) {
            _ if self.is_blank() => {
                if self.found {
                    Owed::Lost
                } else {
                    Owed::Unknown
                }
            }
            Some(height) => Owed::Bytes(height.committed),
            None => Owed::Another,
        }
    }

    /// What any log must have, whatever its revision; `None` if there need not be a log.
    pub(crate) fn least(&self) -> Option<u64> {
        let known = [self.current, self.next].into_iter().filter(|height| height.revision > 0);
        // Before the first log has its name, it is only the next one, and need not be there.
        known.map(|height| height.committed).min().filter(|_| self.current.revision > 0)
    }

    fn is_blank(&self) -> bool {
        self.current.revision == 0 && self.next.revision == 0
    }

    /// The log was read, and is in use from now on.
    pub(crate) fn begin(&mut self, revision: u64, length: u64) {
        let known = [self.current, self.next].into_iter().find(|height| height.revision == revision);
        let synced = known.map_or(0, |height| height.synced).min(length);
        self.current = Height { revision, committed: length, synced };
        self.next = Height::default();
        self.write_or_warn();
    }

    /// So much of the log is acknowledged from now on.
    pub(crate) fn committed(&mut self, revision: u64, length: u64) {
        if let Some(height) = self.height(revision) {
            height.committed = length;
            self.write_or_warn();
        }
    }

    /// So much of the log is on stable storage.
    pub(crate) fn synced(&mut self, revision: u64, length: u64) {
        if let Some(height) = self.height(revision).filter(|height| height.synced < length) {
            height.synced = length;
            self.write_or_warn();
            self.start_write_back();
        }
    }

    /// A snapshot of this length, which is synced, is about to get the log's name. The mark's file, which is
    /// returned, has to be synced before: after a loss of power the snapshot may have the name, and then it must
    /// be known.
    pub(crate) fn announce(&mut self, revision: u64, length: u64) -> io::Result<Arc<File>> {
        self.next = Height { revision, committed: length, synced: length };
        self.write()?;
        Ok(Arc::clone(&self.file))
    }

    /// The announced snapshot will not get the log's name.
    pub(crate) fn withdraw(&mut self) {
        if self.next.revision > 0 && self.current.revision > 0 {
            self.next = Height::default();
            self.write_or_warn();
        }
    }

    /// The snapshot has the log's name, on stable storage: the old log cannot come back.
    pub(crate) fn replaced(&mut self) {
        if self.next.revision > 0 {
            self.current = std::mem::take(&mut self.next);
            self.write_or_warn();
        }
    }

    fn height(&mut self, revision: u64) -> Option<&mut Height> {
        [&mut self.current, &mut self.next].into_iter().find(|height| height.revision == revision)
    }

    /// Whether the file says what it should.
    pub(crate) fn is_stored(&self) -> bool {
        let mut bytes = Vec::with_capacity(LENGTH);
        let read = File::open(&self.path).and_then(|file| file.take(LENGTH as u64).read_to_end(&mut bytes));
        read.is_ok() && bytes == self.to_bytes()
    }

    /// Writes it to the file of its name, which may be another one or none.
    pub(crate) fn renew(&mut self) -> io::Result<()> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&self.path)?;
        self.file = Arc::new(file);
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        self.file.write_all_at(&self.to_bytes(), 0)
    }

    fn to_bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.identity.partition.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.identity.deployment.to_le_bytes());
        bytes[24..40].copy_from_slice(&Boot::to_bytes(self.boot));
        for (at, height) in [(40, self.current), (64, self.next)] {
            bytes[at..at + 8].copy_from_slice(&height.revision.to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&height.committed.to_le_bytes());
            bytes[at + 16..at + 24].copy_from_slice(&height.synced.to_le_bytes());
        }
        let sum = crc32c::crc32c(&bytes[..LENGTH - 4]);
        bytes[LENGTH - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn write_or_warn(&mut self) {
        match self.write() {
            Ok(()) => self.failed = false,
            Err(error) if !self.failed => {
                tracing::warn!(%error, path = %self.path.display(), "the mark of a log stays behind");
                self.failed = true;
            }
            Err(_) => {}
        }
    }

    /// Lets the kernel bring the mark to the storage soon. Waiting for it would make every `fsync` take twice
    /// as long.
    fn start_write_back(&self) {
        // SAFETY: the descriptor is open for as long as `self`, and the call touches no memory of this
        // process.
        let _ = unsafe { libc::sync_file_range(self.file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    }
}
