//! What a process does before and after a direct access.

use super::FencePage;
use super::lane::Lane;
use super::protocol::{self, Number, READS, WRITES, Word};
use bivouac_layout::Ino;
use std::sync::atomic::AtomicU64;

/// What a descriptor was passed under: of which file it is, and how often a sub-file of the file's word had
/// become another local file before.
#[derive(Clone, Copy, Debug)]
pub struct Under {
    ino: Ino,
    word: usize,
    moved: u64,
}

/// A direct read that has begun.
pub struct Reading<'p> {
    word: &'p Word<AtomicU64>,
    state: u64,
}

/// A direct write that has begun: the server waits for its end.
pub struct Writing<'p> {
    word: &'p Word<AtomicU64>,
    moved: u64,
    lane: &'p Lane,
    mark: &'p AtomicU64,
}

impl FencePage {
    /// To be called before the server is asked for a descriptor of its sub-file.
    pub fn before_pass(&self, ino: Ino) -> Under {
        let (index, word) = self.word(ino);
        Under { ino, word: index, moved: word.moved() }
    }

    /// The server's part: how often a sub-file of the file's word has become another local file. To be read before the descriptor
    /// is opened that is passed with this ([`FencePage::passed`]).
    pub fn moved(&self, ino: Ino) -> u64 {
        self.word(ino).1.moved()
    }

    /// What a descriptor was passed under, by what the server has read before ([`FencePage::moved`]).
    pub fn passed(&self, ino: Ino, moved: u64) -> Under {
        Under { ino, word: self.word(ino).0, moved }
    }

    /// Whether a descriptor may be of a local file that is not the sub-file any more. It has to be asked for
    /// again.
    #[inline]
    pub fn is_stale(&self, under: &Under) -> bool {
        self.words()[under.word].moved() != under.moved
    }

    /// Begins a direct read of what has one copy. `None`: the server has to be asked.
    #[inline]
    pub fn read(&self, under: &Under) -> Option<Reading<'_>> {
        let word = &self.words()[under.word];
        let state = word.enter(READS, under.moved)?;
        Some(Reading { word, state })
    }

    /// The same for what has several copies. (It is enough to look at the lease once: what is read is at least as new as
    /// at that moment.)
    #[inline]
    pub fn read_copy(&self, under: &Under) -> Option<Reading<'_>> {
        self.read(under).filter(|_| self.is_leased())
    }

    /// Begins a direct write. `None`: the server has to be asked.
    #[inline]
    pub fn write(&self, under: &Under) -> Option<Writing<'_>> {
        let word = &self.words()[under.word];
        let lane = self.lane()?;
        let mark = lane.marks.iter().find(|mark| protocol::mark(*mark, under.ino.0))?;
        // From here on the mark is taken off, however this ends.
        let writing = Writing { word, moved: under.moved, lane, mark };
        word.enter(WRITES, under.moved).is_some().then_some(writing)
    }
}

impl Reading<'_> {
    /// To be called after the read: whether it counts. If not, the server has to be asked.
    #[inline]
    pub fn counts(self) -> bool {
        self.word.is_still(self.state)
    }
}

impl Writing<'_> {
    /// To be called after the write: whether it counts. If not, it has to be repeated through the server.
    #[inline]
    pub fn counts(&self) -> bool {
        self.word.moved() == self.moved
    }

    /// So many bytes were written.
    #[inline]
    pub fn wrote(&self, bytes: usize) {
        self.lane.count_written(bytes);
    }
}

impl Drop for Writing<'_> {
    #[inline]
    fn drop(&mut self) {
        self.mark.release();
    }
}
