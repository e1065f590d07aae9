//! Which files have given blocks to other servers, or are about to: what a server must still know after a restart.
//!
//! When a range of a file goes to other servers ([`bivouac_layout::restripe`]), the server that has had it keeps changes of it
//! out, first, and afterwards refuses everybody who goes by an older version of the file's layout. If it forgot that in a
//! restart, a program with an old layout would write to blocks that nobody reads any more, or read holes. So both are noted in
//! a journal, the file `bivouac-stripes` in the first storage directory, before they count:
//!
//! - A *fence*: a step, with its range. It is there until the step is finished or undone.
//! - The version that is *needed* of who asks for blocks of the file. It stays until the file is removed.
//!
//! Notes have 48 bytes and a checksum. A killed process has written the last one or not, or a part of it, which nobody counts
//! on yet. Room is allocated ahead, so that what was fenced can be finished or undone on a full storage. The journal is synced
//! only where blocks are about to be given up ([`Stripes::sync`]): before that a loss of power takes what was noted together with
//! the programs and the step itself. It is written anew when the store is opened, and when most of it is about steps that are
//! over.

use crate::error::DataError;
use crate::place;
use bivouac_layout::Ino;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// The journal's name in the first storage directory.
pub(crate) const NAME: &str = "bivouac-stripes";
/// A journal that is being written anew.
pub(crate) const DRAFT: &str = "bivouac-stripes.new";

const MAGIC: &[u8; 8] = b"BVKSTRP\n";
const VERSION: u32 = 1;
/// Magic, version, nothing.
const HEADER: usize = 48;
/// Inode, number, beginning, end, version, kind, checksum.
const NOTE: usize = 48;
/// Room is allocated ahead in steps of so many bytes.
const AHEAD: u64 = 64 << 10;
/// A note of a fence leaves so much of it to notes of what becomes of fences, bytes.
const RESERVE: u64 = 32 << 10;
/// The journal is written anew when it has twice as many notes as necessary, and so many more.
const SLACK: u64 = 16 << 10;

/// What is known is divided among so many locks.
const PARTS: usize = 64;

/// What is known of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Striped {
    /// Who asks for blocks has to go by this version of the layout, or a later one.
    pub needed: u32,
    /// Steps that keep changes out, by their numbers, with their ranges.
    pub fences: BTreeMap<u64, Range<u64>>,
}

/// What happens to a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StripeNote {
    /// A step keeps changes of a range out.
    Fenced {
        /// The step.
        number: u64,
        /// The range, bytes.
        range: Range<u64>,
    },
    /// A step is over, and from now on this version is needed.
    Finished {
        /// The step.
        number: u64,
        /// The version.
        needed: u32,
    },
    /// A step is over, and nothing has changed.
    Undone {
        /// The step.
        number: u64,
    },
    /// The file is gone.
    Forgotten,
}

/// See the module.
pub struct Stripes {
    root: OwnedFd,
    /// Changed under the lock of the journal only.
    parts: [RwLock<HashMap<Ino, Striped>>; PARTS],
    /// Locked before a part.
    journal: Mutex<Journal>,
    /// How many files are known: most often none is, and nobody needs to look.
    count: AtomicUsize,
}

#[derive(Default)]
struct Journal {
    file: Option<OwnedFd>,
    end: u64,
    allocated: u64,
    notes: u64,
}

impl Striped {
    fn is_nothing(&self) -> bool {
        self.needed == 0 && self.fences.is_empty()
    }

    fn apply(&mut self, note: &StripeNote) {
        match note {
            StripeNote::Fenced { number, range } => drop(self.fences.insert(*number, range.clone())),
            StripeNote::Finished { number, needed } => {
                self.fences.remove(number);
                self.needed = self.needed.max(*needed);
            }
            StripeNote::Undone { number } => drop(self.fences.remove(number)),
            StripeNote::Forgotten => *self = Striped::default(),
        }
    }

    fn notes(&self) -> impl Iterator<Item = StripeNote> + '_ {
        let needed = (self.needed > 0).then_some(StripeNote::Finished { number: 0, needed: self.needed });
        let fences = self.fences.iter();
        let fences =
            fences.map(|(number, range)| StripeNote::Fenced { number: *number, range: range.clone() });
        needed.into_iter().chain(fences)
    }
}

impl Stripes {
    /// Opens the journal in this directory. It is made when something is noted first.
    pub(crate) fn open(root: &OwnedFd, path: &Path) -> Result<Stripes, DataError> {
        let files = read(root).map_err(|found| match found {
            Found::Damaged(what) => DataError::Damaged { path: path.join(NAME), what },
            Found::Error(errno) => errno.into(),
        })?;
        let root = rustix::io::fcntl_dupfd_cloexec(root, 0)?;
        let count = AtomicUsize::new(files.len());
        let parts = std::array::from_fn(|_| RwLock::default());
        let stripes = Stripes { root, parts, journal: Mutex::default(), count };
        for (ino, striped) in files {
            stripes.part(ino).write().unwrap_or_else(PoisonError::into_inner).insert(ino, striped);
        }
        let mut journal = stripes.journal();
        if journal.write_anew(stripes.root.as_fd(), &stripes.all()).is_err() {
            // A full storage: the old one goes on.
            journal.resume(stripes.root.as_fd())?;
        }
        drop(journal);
        Ok(stripes)
    }

    fn part(&self, ino: Ino) -> &RwLock<HashMap<Ino, Striped>> {
        &self.parts[place::mix(ino) as usize % PARTS]
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is known of any file: then nothing has to be looked up.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Calls `look` with what is known of a file, if anything is.
    pub fn with<T>(&self, ino: Ino, look: impl FnOnce(&Striped) -> T) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        self.part(ino).read().unwrap_or_else(PoisonError::into_inner).get(&ino).map(look)
    }

    /// What is known of a file.
    pub fn of(&self, ino: Ino) -> Option<Striped> {
        self.with(ino, Striped::clone)
    }

    /// Everything that is known.
    pub fn all(&self) -> Vec<(Ino, Striped)> {
        let of_part = |part: &RwLock<HashMap<Ino, Striped>>| {
            let part = part.read().unwrap_or_else(PoisonError::into_inner);
            part.iter().map(|(ino, striped)| (*ino, striped.clone())).collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(of_part).collect()
    }

    /// Notes what happens to a file; from then on it counts. What changes nothing is not noted.
    pub fn note(&self, ino: Ino, note: &StripeNote) -> Result<(), DataError> {
        let mut journal = self.journal();
        let before = self.of(ino).unwrap_or_default();
        let mut after = before.clone();
        after.apply(note);
        if after == before {
            return Ok(());
        }
        journal.append(self.root.as_fd(), ino, note)?;
        let count = self.count.load(Ordering::SeqCst);
        let mut part = self.part(ino).write().unwrap_or_else(PoisonError::into_inner);
        let (is_new, stays) = (before.is_nothing(), !after.is_nothing());
        match stays {
            true => drop(part.insert(ino, after)),
            false => drop(part.remove(&ino)),
        }
        self.count.store(count + usize::from(is_new) - usize::from(!stays), Ordering::SeqCst);
        drop(part);
        // Each file takes a note at least. (All of them are not gathered each time.)
        if journal.notes > 2 * count as u64 + SLACK {
            journal.shorten_if_long(self.root.as_fd(), &self.all());
        }
        Ok(())
    }

    /// Puts what was noted on stable storage.
    pub fn sync(&self) -> Result<(), DataError> {
        match &self.journal().file {
            Some(file) => Ok(fs::fdatasync(file)?),
            None => Ok(()),
        }
    }
}

impl Journal {
    /// Writes a journal of what is known, and gives it the name. If that is nothing, there is to be none.
    fn write_anew(&mut self, root: BorrowedFd<'_>, files: &[(Ino, Striped)]) -> Result<(), Errno> {
        if files.is_empty() {
            match fs::unlinkat(root, NAME, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
            (self.file, self.end, self.allocated, self.notes) = (None, 0, 0, 0);
            return Ok(());
        }
        let mut bytes = head();
        let mut notes = 0;
        for (ino, striped) in files {
            for note in striped.notes() {
                bytes.extend_from_slice(&encoded(*ino, &note));
                notes += 1;
            }
        }
        let file = make(root, DRAFT)?;
        let written = write_all(&file, &bytes, 0)
            .and_then(|()| fs::fdatasync(&file))
            .and_then(|()| fs::renameat(root, DRAFT, root, NAME));
        if let Err(errno) = written {
            let _ = fs::unlinkat(root, DRAFT, AtFlags::empty());
            return Err(errno);
        }
        let end = bytes.len() as u64;
        (self.file, self.end, self.allocated, self.notes) = (Some(file), end, end, notes);
        Ok(())
    }

    /// Goes on with the journal that is there.
    fn resume(&mut self, root: BorrowedFd<'_>) -> Result<(), Errno> {
        let file = fs::openat(root, NAME, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
        let length = u64::try_from(fs::fstat(&file)?.st_size).unwrap_or(0);
        self.notes = length.saturating_sub(HEADER as u64) / NOTE as u64;
        // A torn note at the end is written over.
        self.end = HEADER as u64 + self.notes * NOTE as u64;
        (self.allocated, self.file) = (self.end, Some(file));
        Ok(())
    }

    fn append(&mut self, root: BorrowedFd<'_>, ino: Ino, note: &StripeNote) -> Result<(), Errno> {
        if self.file.is_none() {
            let file = make(root, NAME)?;
            write_all(&file, &head(), 0)?;
            (self.end, self.allocated, self.notes) = (HEADER as u64, HEADER as u64, 0);
            self.file = Some(file);
        }
        let file = self.file.as_ref().ok_or(Errno::IO)?;
        let room = if matches!(note, StripeNote::Fenced { .. }) { RESERVE } else { 0 };
        let wanted = self.end + NOTE as u64 + room;
        if wanted > self.allocated {
            match fs::fallocate(file, FallocateFlags::KEEP_SIZE, self.allocated, AHEAD) {
                Ok(()) => self.allocated += AHEAD,
                // It cannot allocate ahead.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.allocated = u64::MAX / 2,
                Err(errno) => return Err(errno),
            }
        }
        write_all(file, &encoded(ino, note), self.end)?;
        self.end += NOTE as u64;
        self.notes += 1;
        Ok(())
    }

    fn shorten_if_long(&mut self, root: BorrowedFd<'_>, files: &[(Ino, Striped)]) {
        let needed: u64 = files.iter().map(|(_, striped)| striped.notes().count() as u64).sum();
        if self.notes > 2 * needed + SLACK
            && let Err(error) = self.write_anew(root, files)
        {
            tracing::debug!(%error, "the journal of restriped files could not be shortened");
        }
    }
}

fn make(root: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    fs::openat(root, name, flags, Mode::RUSR | Mode::WUSR)
}

fn head() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.resize(HEADER, 0);
    bytes
}

fn encoded(ino: Ino, note: &StripeNote) -> [u8; NOTE] {
    let (kind, number, range, version) = match note {
        StripeNote::Fenced { number, range } => (1u32, *number, range.clone(), 0),
        StripeNote::Finished { number, needed } => (2, *number, 0..0, *needed),
        StripeNote::Undone { number } => (3, *number, 0..0, 0),
        StripeNote::Forgotten => (4, 0, 0..0, 0),
    };
    let mut bytes = [0; NOTE];
    bytes[..8].copy_from_slice(&ino.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..24].copy_from_slice(&range.start.to_le_bytes());
    bytes[24..32].copy_from_slice(&range.end.to_le_bytes());
    bytes[32..36].copy_from_slice(&version.to_le_bytes());
    bytes[36..40].copy_from_slice(&kind.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..40]);
    bytes[40..44].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// `None`: that is no note.
fn decoded(bytes: &[u8; NOTE]) -> Option<(Ino, StripeNote)> {
    let (words, _) = bytes.as_chunks::<8>();
    let (halves, _) = bytes.as_chunks::<4>();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
    let half = |at: usize| halves.get(at).map_or(0, |half| u32::from_le_bytes(*half));
    if half(10) != crc32c::crc32c(&bytes[..40]) {
        return None;
    }
    let number = word(1);
    let note = match half(9) {
        1 => StripeNote::Fenced { number, range: word(2)..word(3) },
        2 => StripeNote::Finished { number, needed: half(8) },
        3 => StripeNote::Undone { number },
        4 => StripeNote::Forgotten,
        _ => return None,
    };
    Some((Ino(word(0)), note))
}

enum Found {
    Damaged(&'static str),
    Error(Errno),
}

impl From<Errno> for Found {
    fn from(errno: Errno) -> Found {
        Found::Error(errno)
    }
}

/// What a journal says.
fn read(root: &OwnedFd) -> Result<HashMap<Ino, Striped>, Found> {
    let file =
        match fs::openat(root, NAME, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(HashMap::new()),
            opened => opened?,
        };
    let length = u64::try_from(fs::fstat(&file)?.st_size).unwrap_or(0);
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| Found::Damaged("it is too long"))?];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(&file, &mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    bytes.truncate(filled);
    if bytes.len() < HEADER {
        // Nothing was noted yet.
        return Ok(HashMap::new());
    }
    if bytes[..12] != head()[..12] {
        return Err(Found::Damaged("it is not a journal of restriped files of this version"));
    }
    let (notes, _) = bytes[HEADER..].as_chunks::<NOTE>();
    let notes: Vec<Option<(Ino, StripeNote)>> = notes.iter().map(decoded).collect();
    let whole = notes.iter().position(Option::is_none).unwrap_or(notes.len());
    if notes[whole..].iter().any(Option::is_some) {
        return Err(Found::Damaged("a note in its middle is damaged"));
    }
    let mut files: HashMap<Ino, Striped> = HashMap::new();
    for (ino, note) in notes.into_iter().flatten() {
        files.entry(ino).or_default().apply(&note);
    }
    files.retain(|_, striped| !striped.is_nothing());
    Ok(files)
}

fn write_all(file: impl AsFd, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pwrite(&file, rest, offset + done as u64) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt;

    struct Dir(tempfile::TempDir);

    impl Dir {
        fn new() -> Dir {
            Dir(tempfile::tempdir().expect("a directory"))
        }

        fn open(&self) -> Result<Stripes, DataError> {
            let root = std::fs::File::open(self.0.path()).expect("opens");
            Stripes::open(&root.into(), self.0.path())
        }

        fn journal(&self) -> std::path::PathBuf {
            self.0.path().join(NAME)
        }
    }

    fn fenced(number: u64, range: Range<u64>) -> StripeNote {
        StripeNote::Fenced { number, range }
    }

    #[test]
    fn fences_and_needed_versions_outlive_a_restart_and_go_with_the_file() {
        let dir = Dir::new();
        let stripes = dir.open().expect("opens");
        assert!(stripes.is_empty() && !dir.journal().exists(), "nothing is made before it is needed");
        let (one, two) = (Ino(1), Ino(2));
        stripes.note(one, &fenced(7, 0..100)).expect("noted");
        stripes.note(one, &fenced(8, 100..u64::MAX)).expect("noted");
        stripes.note(one, &StripeNote::Finished { number: 7, needed: 3 }).expect("noted");
        stripes.note(two, &fenced(9, 5..6)).expect("noted");
        stripes.note(two, &StripeNote::Undone { number: 9 }).expect("noted");
        let expected = Striped { needed: 3, fences: BTreeMap::from([(8, 100..u64::MAX)]) };
        assert_eq!(stripes.all(), [(one, expected.clone())]);
        drop(stripes);
        let again = dir.open().expect("opens");
        assert_eq!((again.of(one), again.of(two)), (Some(expected), None));
        // An older version that comes late does not count.
        again.note(one, &StripeNote::Finished { number: 8, needed: 2 }).expect("noted");
        assert_eq!(again.of(one), Some(Striped { needed: 3, ..Striped::default() }));
        again.note(one, &StripeNote::Forgotten).expect("noted");
        assert!(again.is_empty());
        drop(again);
        assert!(dir.open().expect("opens").is_empty() && !dir.journal().exists());
    }

    #[test]
    fn a_torn_note_does_not_count_and_a_damaged_one_in_the_middle_is_an_error() {
        let dir = Dir::new();
        let stripes = dir.open().expect("opens");
        for number in 1..4 {
            stripes.note(Ino(number), &fenced(number, 0..number)).expect("noted");
        }
        drop(stripes);
        let whole = std::fs::read(dir.journal()).expect("reads");
        for cut in HEADER..whole.len() {
            std::fs::write(dir.journal(), &whole[..cut]).expect("writes");
            let stripes = dir.open().expect("opens");
            assert_eq!(stripes.all().len(), (cut - HEADER) / NOTE, "cut at {cut}");
            // It goes on behind what is whole.
            stripes.note(Ino(9), &fenced(1, 0..1)).expect("noted");
            drop(stripes);
            assert!(dir.open().expect("opens").of(Ino(9)).is_some());
        }
        std::fs::write(dir.journal(), &whole).expect("writes");
        let file = std::fs::OpenOptions::new().write(true).open(dir.journal()).expect("opens");
        file.write_all_at(b"x", HEADER as u64 + 20).expect("writes");
        assert!(matches!(dir.open(), Err(DataError::Damaged { .. })));
    }

    #[test]
    fn the_journal_does_not_grow_with_what_is_over() {
        let dir = Dir::new();
        let stripes = dir.open().expect("opens");
        stripes.note(Ino(5), &StripeNote::Finished { number: 1, needed: 9 }).expect("noted");
        for number in 0..SLACK {
            stripes.note(Ino(7), &fenced(number, 0..1)).expect("noted");
            stripes.note(Ino(7), &StripeNote::Undone { number }).expect("noted");
        }
        let length = std::fs::metadata(dir.journal()).expect("there").len();
        assert!(length < (SLACK + 100) * NOTE as u64, "{length}");
        drop(stripes);
        assert_eq!(dir.open().expect("opens").all().len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

        #[test]
        fn what_is_read_is_what_was_noted(
            notes in prop::collection::vec((1u64..4, 0u8..4, 1u64..4, 0u64..9, 1u32..9), 0..60),
        ) {
            let dir = Dir::new();
            let stripes = dir.open().expect("opens");
            let mut model: HashMap<Ino, Striped> = HashMap::new();
            for (ino, kind, number, start, needed) in notes {
                let note = match kind {
                    0 => fenced(number, start..start + 10),
                    1 => StripeNote::Finished { number, needed },
                    2 => StripeNote::Undone { number },
                    _ => StripeNote::Forgotten,
                };
                stripes.note(Ino(ino), &note).expect("noted");
                model.entry(Ino(ino)).or_default().apply(&note);
            }
            model.retain(|_, striped| !striped.is_nothing());
            for stripes in [&stripes, &dir.open().expect("opens")] {
                let known: HashMap<Ino, Striped> = stripes.all().into_iter().collect();
                prop_assert_eq!(&known, &model);
            }
        }

        #[test]
        fn whatever_is_found_does_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), well: bool) {
            let dir = Dir::new();
            if well && bytes.len() >= HEADER {
                bytes[..HEADER].copy_from_slice(&head());
            }
            std::fs::write(dir.journal(), &bytes).expect("writes");
            let _ = dir.open();
        }
    }
}
