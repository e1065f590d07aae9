//! Many files by their names, in few requests ([`MetaRequest::Find`]).

use super::{Piece, State};
use crate::client::Client;
use crate::memory::Reached;
use crate::namespace::{Last, Place};
use crate::requests::{DataJob, To};
use bivouac_layout::{Ino, ServerId, ShardId, namespace};
use bivouac_proto::attr::{Attr, INLINE_MAX, NAME_MAX, Store};
use bivouac_proto::meta::{At, FIND_MAX, MetaReply, MetaRequest, Sighted, Sought};
use bivouac_proto::{Errno, Reply, Request};
use bivouac_transport::engine::Answered;
use std::borrow::Cow;
use std::collections::HashMap;

/// How often files are looked for together: the first time, a process may not know that a directory is split, nor, of the servers
/// that then have the names, which moves they have noted.
const ATTEMPTS: usize = 3;

/// A directory that a path leads to.
#[derive(Clone, Copy)]
struct Directory {
    ino: Ino,
    split: bool,
    reached: Reached,
}

/// How the file of a piece is asked for.
enum Subject<'p> {
    /// By the name that it has in a directory.
    Name(Directory, Cow<'p, [u8]>),
    Inode(Ino),
}

impl Subject<'_> {
    fn shard(&self) -> ShardId {
        match self {
            Subject::Name(dir, name) => namespace::entry_shard(dir.ino, dir.split, name),
            Subject::Inode(ino) => ino.shard(),
        }
    }

    fn sought(&self) -> Sought<'_> {
        match self {
            Subject::Name(dir, name) => Sought::Name(At { dir: dir.ino, split: dir.split, name }),
            Subject::Inode(ino) => Sought::Inode(*ino),
        }
    }

    fn reached(&self) -> Option<Reached> {
        match self {
            Subject::Name(dir, _) => Some(dir.reached),
            Subject::Inode(_) => None,
        }
    }
}

/// Files that one server is asked about together, and whose pieces they are.
struct Batch<'p> {
    shard: ShardId,
    files: Vec<(usize, Subject<'p>)>,
}

impl Batch<'_> {
    /// The request, with room for the data of all files.
    fn job<'b>(&self, room: &'b mut [u8]) -> DataJob<'b> {
        let files: Vec<Sought<'_>> = self.files.iter().map(|(_, subject)| subject.sought()).collect();
        let mut body = Vec::with_capacity(files.len() * 48);
        bivouac_proto::encode(&Request::Meta(MetaRequest::Find { files }), &mut body);
        // The server refuses if it has noted a move that somebody who has walked one of the paths has not heard of.
        let all = self.files.iter().filter_map(|(_, subject)| subject.reached()).reduce(Reached::and);
        let to = all.map_or(To::Shard(self.shard), |reached| To::Entry(self.shard, reached));
        DataJob::new(to, body, &[], room)
    }
}

impl Client {
    /// Finds the files. Pieces of those that are inline are read then; of others it is known where they are.
    pub(super) fn find_pieces(&self, start: Ino, pieces: &mut [Piece<'_>]) {
        for _ in 0..ATTEMPTS {
            // Where a server has shown nothing, a directory is split meanwhile, or has moved. Who asks for one of the files alone
            // hears of that.
            let Some(first) = self.find_names(start, pieces) else { break };
            let _ = self.stat((start, pieces[first].path, false));
        }
        // An entry's inode may be at another server, if the entry has moved.
        let known = |(index, piece): (usize, &Piece<'_>)| match piece.state {
            State::Known(ino) => Some((index, Subject::Inode(ino))),
            _ => None,
        };
        let known: Vec<_> = pieces.iter().enumerate().filter_map(known).collect();
        self.find_files(known, pieces);
    }

    /// Finds by their names the files of all pieces of which nothing is known. Of a piece of which a server has shown nothing, and
    /// nothing of any other that it was asked about together with, its index.
    fn find_names(&self, start: Ino, pieces: &mut [Piece<'_>]) -> Option<usize> {
        let mut last = None;
        let mut names = Vec::with_capacity(pieces.len());
        for (index, piece) in pieces.iter().enumerate() {
            if let State::Left = piece.state
                && let Some((dir, name)) = self.name_of(start, piece.path, &mut last)
            {
                names.push((index, Subject::Name(dir, name)));
            }
        }
        self.find_files(names, pieces)
    }

    /// Asks for files, each server for those that it has. Returns as [`Client::find_names`].
    fn find_files<'p>(&self, files: Vec<(usize, Subject<'p>)>, pieces: &mut [Piece<'p>]) -> Option<usize> {
        let batches = self.batches(files);
        let mut rooms: Vec<Vec<u8>> =
            batches.iter().map(|batch| vec![0; batch.files.len() * INLINE_MAX]).collect();
        let mut jobs: Vec<DataJob<'_>> =
            batches.iter().zip(&mut rooms).map(|(batch, room)| batch.job(room)).collect();
        self.requests().data_jobs(&mut jobs);
        let answers: Vec<_> = jobs.iter_mut().map(DataJob::take).collect();
        let mut nothing = None;
        for ((batch, answer), room) in batches.iter().zip(answers).zip(&rooms) {
            let (found, payload) = match answer {
                Ok(Answered { reply: Reply::Meta(MetaReply::Found(found)), payload_len, .. }) => {
                    (found, &room[..payload_len])
                }
                _ => (Vec::new(), &[][..]),
            };
            if found.iter().all(|file| matches!(file, Sighted::Untold)) {
                nothing = nothing.or(batch.files.first().map(|(index, _)| *index));
            }
            let mut rest = payload;
            for ((index, _), file) in batch.files.iter().zip(found) {
                let piece = &mut pieces[*index];
                match file {
                    Sighted::Untold => {}
                    Sighted::Elsewhere(ino) => piece.state = State::Known(ino),
                    Sighted::File { attr, with_data } => {
                        let len = if with_data { attr.size as usize } else { 0 };
                        let Some((data, behind)) = rest.split_at_checked(len) else { break };
                        rest = behind;
                        piece.state = self.found(attr, with_data.then_some(data), piece);
                    }
                }
            }
        }
        nothing
    }

    /// Whom to ask about which files.
    fn batches<'p>(&self, files: Vec<(usize, Subject<'p>)>) -> Vec<Batch<'p>> {
        let map = self.session().map();
        let mut batches: Vec<Batch<'p>> = Vec::new();
        // The batch of each server that is not full yet.
        let mut open: HashMap<ServerId, usize> = HashMap::new();
        for (index, subject) in files {
            let shard = subject.shard();
            let place = *open.entry(map.primary(shard)).or_insert(usize::MAX);
            match batches.get_mut(place).filter(|batch| batch.files.len() < FIND_MAX) {
                Some(batch) => batch.files.push((index, subject)),
                None => {
                    open.insert(map.primary(shard), batches.len());
                    batches.push(Batch { shard, files: vec![(index, subject)] });
                }
            }
        }
        batches
    }

    /// How far a piece is whose file was found; `data` are the file's, if they came along.
    fn found(&self, attr: Box<Attr>, data: Option<&[u8]>, piece: &mut Piece<'_>) -> State {
        if !self.session().allowed(attr.mode, attr.uid, attr.gid, 4, false) {
            return State::Done(Err(Errno::ACCESS));
        }
        match (attr.store, data) {
            (Store::Inline, Some(data)) => {
                let start = usize::try_from(piece.offset).unwrap_or(usize::MAX).min(data.len());
                State::Done(Ok(piece.room.take(&data[start..])))
            }
            (Store::Blocks { settled: true }, _) => match piece.room.wants(attr.size, piece.offset) {
                0 => State::Done(Ok(0)),
                _ => State::InBlocks(attr),
            },
            _ => State::Left,
        }
    }

    /// The directory that a path leads to, and the name in it. `last`: the same of the path before, with the directory as that
    /// has it. `None`: the path leads elsewhere.
    fn name_of<'p>(
        &self,
        start: Ino,
        path: &'p [u8],
        last: &mut Option<(&'p [u8], Directory)>,
    ) -> Option<(Directory, Cow<'p, [u8]>)> {
        let (above, name) = path.split_at(path.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1));
        let is_name = !matches!(name, b"" | b"." | b"..") && name.len() <= NAME_MAX;
        if let (true, Some((known, dir))) = (is_name, &last)
            && *known == above
        {
            return Some((*dir, Cow::Borrowed(name)));
        }
        let walked = self.namespace().at_any_last(start, path, false, |_, last| Ok(last));
        let Ok(Last::Name(Place { dir, name, slash: false, reached })) = walked else { return None };
        if dir.is_forwarded() {
            return None;
        }
        let dir = Directory { ino: dir, split: self.memory().paths().is_split(dir), reached };
        *last = is_name.then_some((above, dir));
        Some((dir, Cow::Owned(name)))
    }
}
