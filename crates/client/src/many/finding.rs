//! Many files by their names, in few requests ([`MetaRequest::Find`]).

use super::{Piece, State};
use crate::client::Client;
use crate::memory::Reached;
use crate::namespace::{Last, Place};
use crate::requests::{DataJob, To};
use bivouac_layout::{Ino, ServerId, ShardId, namespace};
use bivouac_proto::attr::{INLINE_MAX, NAME_MAX, Store};
use bivouac_proto::meta::{At, FIND_MAX, FoundFile, MetaReply, MetaRequest};
use bivouac_proto::{Errno, Reply, Request};
use bivouac_transport::engine::Answered;
use std::borrow::Cow;
use std::collections::HashMap;

/// A directory that a path leads to.
#[derive(Clone, Copy)]
struct Directory {
    ino: Ino,
    split: bool,
    reached: Reached,
}

/// The name that one of the pieces has there.
struct Name<'p> {
    piece: usize,
    dir: Directory,
    name: Cow<'p, [u8]>,
}

/// Names that one server is asked about together.
struct Batch<'p> {
    shard: ShardId,
    names: Vec<Name<'p>>,
}

impl Batch<'_> {
    /// The request, with room for the data of all files.
    fn job<'b>(&self, room: &'b mut [u8]) -> DataJob<'b> {
        let mut names: Vec<At<'_>> = Vec::with_capacity(self.names.len());
        for Name { dir, name, .. } in &self.names {
            names.push(At { dir: dir.ino, split: dir.split, name });
        }
        let mut body = Vec::with_capacity(names.len() * 48);
        bivouac_proto::encode(&Request::Meta(MetaRequest::Find { names }), &mut body);
        // The server refuses if it has noted a move that somebody who has walked one of the paths has not heard of.
        let all = self.names.iter().map(|name| name.dir.reached).reduce(Reached::and);
        let to = all.map_or(To::Shard(self.shard), |reached| To::Entry(self.shard, reached));
        DataJob::new(to, body, &[], room)
    }
}

impl Client {
    /// Finds the files. Pieces of those that are inline are read then; of others it is known where they are.
    pub(super) fn find_pieces(&self, start: Ino, pieces: &mut [Piece<'_>]) {
        let all: Vec<usize> = (0..pieces.len()).collect();
        let Some(first) = self.find_some(start, &all, pieces) else { return };
        // A server has shown nothing: perhaps a directory is split meanwhile, or has moved. Who asks for one of the files alone
        // hears of that.
        let _ = self.stat(start, pieces[first].path, false);
        let left = |index: &usize| matches!(pieces[*index].state, State::Left);
        let left: Vec<usize> = all.into_iter().filter(left).collect();
        self.find_some(start, &left, pieces);
    }

    /// The same for some of the pieces. Names one of which a server has shown nothing, and nothing of any other that it was asked
    /// about together with.
    fn find_some(&self, start: Ino, some: &[usize], pieces: &mut [Piece<'_>]) -> Option<usize> {
        let batches = self.batches(start, some, pieces);
        let mut rooms: Vec<Vec<u8>> =
            batches.iter().map(|batch| vec![0; batch.names.len() * INLINE_MAX]).collect();
        let mut jobs: Vec<DataJob<'_>> =
            batches.iter().zip(&mut rooms).map(|(batch, room)| batch.job(room)).collect();
        self.requests().data_jobs(&mut jobs);
        let answers: Vec<_> = jobs.iter_mut().map(DataJob::take).collect();
        // What was found goes to the pieces, whose paths the names are.
        let asked: Vec<Vec<usize>> =
            batches.into_iter().map(|batch| batch.names.iter().map(|name| name.piece).collect()).collect();
        let mut nothing = None;
        for ((asked, answer), room) in asked.iter().zip(answers).zip(&rooms) {
            let (found, payload) = match answer {
                Ok(Answered { reply: Reply::Meta(MetaReply::Found(found)), payload_len, .. })
                    if found.len() == asked.len() =>
                {
                    (found, &room[..payload_len])
                }
                _ => (Vec::new(), &[][..]),
            };
            if found.iter().all(Option::is_none) {
                nothing = nothing.or(asked.first().copied());
            }
            let mut rest = payload;
            for (index, file) in asked.iter().zip(found) {
                let Some(file) = file else { continue };
                let len = if file.with_data { file.attr.size as usize } else { 0 };
                let Some((data, behind)) = rest.split_at_checked(len) else { break };
                rest = behind;
                pieces[*index].state = self.state_of(file, data, &mut pieces[*index]);
            }
        }
        nothing
    }

    /// How far a piece is whose file was found; `data` are the file's, if they came along.
    fn state_of(&self, file: FoundFile, data: &[u8], piece: &mut Piece<'_>) -> State {
        let FoundFile { attr, with_data } = file;
        if !self.session().allowed(attr.mode, attr.uid, attr.gid, 4, false) {
            return State::Done(Err(Errno::ACCESS));
        }
        match attr.store {
            Store::Inline if with_data => {
                let start = usize::try_from(piece.offset).unwrap_or(usize::MAX).min(data.len());
                State::Done(Ok(piece.room.take(&data[start..])))
            }
            Store::Blocks { settled: true } if piece.room.wants(attr.size, piece.offset) == 0 => {
                State::Done(Ok(0))
            }
            Store::Blocks { settled: true } => State::InBlocks(attr),
            _ => State::Left,
        }
    }

    /// Whom to ask about which names.
    fn batches<'p>(&self, start: Ino, some: &[usize], pieces: &[Piece<'p>]) -> Vec<Batch<'p>> {
        let map = self.session().map();
        let mut batches: Vec<Batch<'p>> = Vec::new();
        // The batch of each server that is not full yet.
        let mut open: HashMap<ServerId, usize> = HashMap::new();
        let mut last = None;
        for &piece in some {
            let Some((dir, name)) = self.name_of(start, pieces[piece].path, &mut last) else { continue };
            let shard = namespace::entry_shard(dir.ino, dir.split, &name);
            let name = Name { piece, dir, name };
            let place = *open.entry(map.primary(shard)).or_insert(usize::MAX);
            match batches.get_mut(place).filter(|batch| batch.names.len() < FIND_MAX) {
                Some(batch) => batch.names.push(name),
                None => {
                    open.insert(map.primary(shard), batches.len());
                    batches.push(Batch { shard, names: vec![name] });
                }
            }
        }
        batches
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
