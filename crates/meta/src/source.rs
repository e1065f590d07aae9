//! Reading a file of the backend whose contents become those of a lazy file.
//!
//! It is read only as long as it is what it was when the name was made: whoever has read some of it [checks](SourceFile::check)
//! that afterwards, before anybody can see what was read. Then it is neither a mixture of old and new, nor something else.

use bivouac_layout::{FileLayout, Map, Piece};
use bivouac_proto::Errno;
use bivouac_proto::lazy::{Source, Unfetchable};
use rustix::fs::{Mode, OFlags, SeekFrom, Stat};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file of the backend, open for reading.
#[derive(Debug)]
pub struct SourceFile<'s> {
    file: File,
    source: &'s Source,
}

impl<'s> SourceFile<'s> {
    /// Opens it, if it is still what it was.
    pub fn open(source: &'s Source) -> Result<SourceFile<'s>, Unfetchable> {
        // Without waiting: somebody may have put a pipe in its place.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path(source), flags, Mode::empty());
        let file = SourceFile { file: File::from(opened.map_err(|error| failed(source, error))?), source };
        file.check()?;
        Ok(file)
    }

    /// Whether it is still what it was.
    pub fn check(&self) -> Result<(), Unfetchable> {
        let stat = rustix::fs::fstat(&self.file).map_err(|error| failed(self.source, error))?;
        if is_as_it_was(&stat, self.source) { Ok(()) } else { Err(changed(self.source)) }
    }

    /// Whether it has no holes, as far as the storage that it takes tells.
    pub fn is_dense(&self) -> bool {
        let stat = rustix::fs::fstat(&self.file);
        stat.is_ok_and(|stat| {
            u64::try_from(stat.st_blocks).is_ok_and(|blocks| blocks.saturating_mul(512) >= self.source.size)
        })
    }

    /// Where its next data is in a range; nothing but holes if there is none.
    pub fn next_data(&self, range: Range<u64>) -> Result<Option<Range<u64>>, Unfetchable> {
        let seek = |from| rustix::fs::seek(&self.file, from);
        let start = match seek(SeekFrom::Data(range.start)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            // A file system that does not tell holes.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => return Ok(Some(range)),
            Err(error) => return Err(failed(self.source, error)),
        };
        if start >= range.end {
            return Ok(None);
        }
        let end = seek(SeekFrom::Hole(start)).map_err(|error| failed(self.source, error))?;
        Ok(Some(start..end.min(range.end)))
    }

    /// Fills a buffer from a place in it.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Unfetchable> {
        self.file.read_exact_at(into, offset).map_err(|error| match error.raw_os_error() {
            // It ends before its end.
            None => changed(self.source),
            Some(errno) => failed(self.source, rustix::io::Errno::from_raw_os_error(errno)),
        })
    }
}

/// Most bytes that are read and written at once.
const AT_ONCE: u64 = 4 << 20;

/// Takes a piece's bytes.
type Write<'w> = dyn FnMut(&Piece, &[u8]) -> Result<(), Unfetchable> + 'w;

/// Copies those pieces of a range of a file that are wanted. What the source has as holes stays holes; but the last byte of the
/// file is written, so that a sub-file says how long the file is.
pub fn copy_pieces(
    file: &SourceFile<'_>,
    (layout, map): (&FileLayout, &Map),
    range: Range<u64>,
    is_wanted: impl Fn(&Piece) -> bool,
    mut write: impl FnMut(&Piece, &[u8]) -> Result<(), Unfetchable>,
) -> Result<(), Unfetchable> {
    let mut buffer = Vec::new();
    let mut copy = |range: Range<u64>, write: &mut Write<'_>| {
        let mut at = range.start;
        while at < range.end {
            let piece = layout.piece_at(map, at, range.end.min(at.saturating_add(AT_ONCE)));
            let piece = piece.filter(|piece| piece.len > 0).ok_or(Errno::IO)?;
            if is_wanted(&piece) {
                buffer.resize(piece.len as usize, 0);
                file.read(at, &mut buffer)?;
                write(&piece, &buffer)?;
            }
            at += piece.len;
        }
        Ok::<(), Unfetchable>(())
    };
    let mut at = range.start;
    while let Some(data) = file.next_data(at..range.end)? {
        at = data.end;
        copy(data, &mut write)?;
    }
    if range.end == file.source.size && at < range.end {
        copy(range.end - 1..range.end, &mut write)?;
    }
    Ok(())
}

fn path(source: &Source) -> &Path {
    Path::new(OsStr::from_bytes(&source.path))
}

fn is_as_it_was(stat: &Stat, source: &Source) -> bool {
    let mtime = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
    rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
        && stat.st_ino == source.ino
        && u64::try_from(stat.st_size) == Ok(source.size)
        && mtime == i128::from(source.mtime)
}

fn changed(source: &Source) -> Unfetchable {
    let why = format!(
        "{} is not what it was when the name was made: it was changed or replaced in the backend",
        path(source).display()
    );
    Unfetchable { errno: Errno::IO, why, unseen: false }
}

fn failed(source: &Source, error: rustix::io::Errno) -> Unfetchable {
    let unseen = matches!(error, rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR);
    // Whatever it is, the file cannot be read: errors like ENOENT or EACCES would say something about the name.
    Unfetchable {
        errno: Errno::IO,
        why: format!("{} cannot be read: {error}", path(source).display()),
        unseen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    fn source(path: &PathBuf) -> Source {
        let meta = std::fs::metadata(path).expect("there");
        let mtime = meta.mtime() * 1_000_000_000 + meta.mtime_nsec();
        Source { path: path.as_os_str().as_bytes().to_vec(), ino: meta.ino(), size: meta.size(), mtime }
    }

    #[test]
    fn a_file_that_was_changed_replaced_or_removed_is_not_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, b"contents").expect("written");
        let is = source(&path);
        let open = SourceFile::open(&is).expect("as it was");
        let mut bytes = [0; 8];
        open.read(0, &mut bytes).expect("read");
        assert_eq!(&bytes, b"contents");
        let why = |failed: Result<(), Unfetchable>| failed.expect_err("not as it was");
        // While it is open; the size is the same.
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
        std::fs::File::options().write(true).open(&path).and_then(|f| f.set_modified(later)).expect("set");
        assert!(why(open.check()).why.contains("changed or replaced"));
        assert!(why(SourceFile::open(&is).map(drop)).why.contains("changed or replaced"));
        let again = source(&path);
        std::fs::write(&path, b"short").expect("written");
        let open = SourceFile { file: File::open(&path).expect("opens"), source: &again };
        assert!(why(open.read(0, &mut bytes)).why.contains("changed or replaced"), "short data is none");
        std::fs::remove_file(&path).expect("removed");
        let gone = why(SourceFile::open(&again).map(drop));
        assert!(gone.unseen && gone.errno == Errno::IO && gone.why.contains("No such file"), "{gone:?}");
        std::fs::create_dir(&path).expect("made");
        assert!(!why(SourceFile::open(&again).map(drop)).unseen);
    }

    #[test]
    fn holes_are_told_from_data() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let file = File::create(&path).expect("made");
        file.set_len(4 << 20).expect("set");
        file.write_all_at(&[7; 4096], 1 << 20).expect("written");
        let is = source(&path);
        let open = SourceFile::open(&is).expect("opens");
        let data = open.next_data(0..4 << 20).expect("told");
        assert!(data.is_some_and(|data| data.start <= 1 << 20 && data.end >= (1 << 20) + 4096));
        let Ok(None) = open.next_data(2 << 20..4 << 20) else { panic!("a hole") };
    }
}
