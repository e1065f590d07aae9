//! Reading pieces of many files at once, without opening them.
//!
//! What a program reads from a thousand small files costs it several round trips for each, if it asks for one after the
//! other. Here all names are looked up in a few requests, each to one server about many names, which also bring the data of files
//! that are kept in their inodes ([`MetaRequest::Find`]); then the blocks of the others are read in a few more ([`Gather`]), and long
//! pieces by a request each. That is how most files are read. A file for which it does not do (a symbolic link, one that somebody
//! writes to, one with copies, a map or a layout that has changed meanwhile) is opened and read in the ordinary way.

mod blocks;
mod finding;

use crate::client::Client;
use crate::error::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::Attr;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Pieces that are read together at most: there is memory for the answers about all of them.
const TOGETHER: usize = 1024;

/// A piece of a file that is to be read.
pub struct Wanted<'a> {
    /// The file, from the directory that all paths start from.
    pub path: &'a [u8],
    /// Where the piece begins, bytes.
    pub offset: u64,
    /// Where it goes; its length is the piece's.
    pub into: &'a mut [u8],
    /// How many bytes there are; fewer than wanted only at the end of the file.
    pub result: Result<usize, Errno>,
}

/// One of the pieces, while it is being read.
struct Piece<'w> {
    path: &'w [u8],
    offset: u64,
    room: Room<'w>,
    state: State,
}

/// How far a piece is.
enum State {
    /// Nothing is known of it. If it stays so, it is read in the ordinary way.
    Left,
    /// This is its file's number. (The same holds if it stays so.)
    Known(Ino),
    /// It lies in blocks of a file with these attributes.
    InBlocks(Box<Attr>),
    Done(Result<usize, Errno>),
}

/// Where a piece goes.
enum Room<'w> {
    Given(&'w mut [u8]),
    /// Wherever all of a file finds room.
    Whole(Vec<u8>),
}

impl Room<'_> {
    /// How many bytes are wanted of a file of this size, from `offset` on.
    fn wants(&self, size: u64, offset: u64) -> u64 {
        let there = size.saturating_sub(offset);
        match self {
            Room::Given(room) => there.min(room.len() as u64),
            Room::Whole(_) => there,
        }
    }

    /// Takes in as much of `data` as is wanted; how many bytes.
    fn take(&mut self, data: &[u8]) -> usize {
        match self {
            Room::Given(room) => {
                let count = data.len().min(room.len());
                room[..count].copy_from_slice(&data[..count]);
                count
            }
            Room::Whole(bytes) => {
                *bytes = data.to_vec();
                data.len()
            }
        }
    }

    /// Room for so many bytes, no more than are wanted.
    fn bytes(&mut self, len: usize) -> &mut [u8] {
        match self {
            Room::Given(room) => &mut room[..len],
            Room::Whole(bytes) => {
                bytes.resize(len, 0);
                bytes
            }
        }
    }
}

impl Client {
    /// Reads pieces of files. Each has its own result.
    pub fn read_many(self: &Arc<Self>, start: Ino, wanted: &mut [Wanted<'_>]) {
        for some in wanted.chunks_mut(TOGETHER) {
            let mut pieces: Vec<Piece<'_>> = Vec::with_capacity(some.len());
            for Wanted { path, offset, into, .. } in some.iter_mut() {
                pieces.push(Piece { path, offset: *offset, room: Room::Given(into), state: State::Left });
            }
            self.read_together(start, &mut pieces);
            let states: Vec<State> = pieces.into_iter().map(|piece| piece.state).collect();
            for (one, state) in some.iter_mut().zip(states) {
                one.result = match state {
                    State::Done(result) => result,
                    _ => self.read_opened(start, one).map_err(Fail::errno),
                };
            }
        }
    }

    /// Reads all of many files.
    pub fn read_files(self: &Arc<Self>, start: Ino, paths: &[&[u8]]) -> Vec<Result<Vec<u8>, Errno>> {
        let whole = |path| Piece { path, offset: 0, room: Room::Whole(Vec::new()), state: State::Left };
        let mut all = Vec::with_capacity(paths.len());
        for some in paths.chunks(TOGETHER) {
            let mut pieces: Vec<Piece<'_>> = some.iter().map(|path| whole(*path)).collect();
            self.read_together(start, &mut pieces);
            all.extend(pieces.into_iter().map(|piece| match (piece.state, piece.room) {
                (State::Done(Ok(_)), Room::Whole(bytes)) => Ok(bytes),
                (State::Done(Err(errno)), _) => Err(errno),
                _ => self.read_whole(start, piece.path).map_err(Fail::errno),
            }));
        }
        all
    }

    /// Reads what can be read in few requests.
    fn read_together(&self, start: Ino, pieces: &mut [Piece<'_>]) {
        self.find_pieces(start, pieces);
        self.read_blocks(pieces);
    }

    /// Reads all of one file in the ordinary way.
    fn read_whole(self: &Arc<Self>, start: Ino, path: &[u8]) -> Result<Vec<u8>, Fail> {
        let file = self.open(start, path, libc::O_RDONLY, 0)?;
        let read = || -> Result<Vec<u8>, Errno> {
            let mut bytes = vec![0; file.attr()?.size as usize];
            let mut filled = 0;
            loop {
                let count = file.pread(filled as u64, &mut [IoSliceMut::new(&mut bytes[filled..])])?;
                filled += count;
                // It may have become shorter or longer meanwhile.
                if count == 0 && filled < bytes.len() {
                    bytes.truncate(filled);
                }
                if filled == bytes.len() {
                    match file.attr()?.size as usize {
                        size if size > filled => bytes.resize(size, 0),
                        _ => return Ok(bytes),
                    }
                }
            }
        };
        let bytes = read();
        self.close_alone(file.id());
        Ok(bytes?)
    }

    /// Reads one in the ordinary way.
    fn read_opened(self: &Arc<Self>, start: Ino, one: &mut Wanted<'_>) -> Result<usize, Fail> {
        let file = self.open(start, one.path, libc::O_RDONLY, 0)?;
        let mut filled = 0;
        let read = loop {
            // A call transfers 2 GiB at most.
            match file.pread(one.offset + filled as u64, &mut [IoSliceMut::new(&mut one.into[filled..])]) {
                Ok(0) => break Ok(filled),
                Ok(count) => filled += count,
                Err(errno) => break Err(errno),
            }
        };
        self.close_alone(file.id());
        Ok(read?)
    }
}
