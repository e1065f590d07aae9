//! Blocks of many files: small pieces in few requests ([`Gather`]), long ones by requests of their own.

use super::{Piece, Room, State};
use crate::client::Client;
use crate::requests::{DataJob, To, read_job};
use bivouac_layout::{self as layout, FileLayout, Map, ServerId};
use bivouac_proto::attr::Attr;
use bivouac_proto::data::{DataReply, DataRequest, GATHER_MAX, Gather, SmallPiece};
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::{Reply, Request};
use bivouac_transport::engine::Answered;
use std::collections::HashMap;

/// Longest piece that goes together with others, bytes: a longer one is worth a request of its own, which brings it to where it is
/// wanted without a copy.
const SMALL: u64 = 64 << 10;
/// Most bytes that go together.
const GATHERED: usize = 1 << 20;

/// Small pieces that one server is asked for together.
struct Batch {
    server: ServerId,
    bytes: usize,
    pieces: Vec<(usize, SmallPiece)>,
}

impl Batch {
    fn has_room(&self, piece: &SmallPiece) -> bool {
        self.pieces.len() < GATHER_MAX && self.bytes + piece.len as usize <= GATHERED
    }

    fn job<'b>(&self, room: &'b mut [u8]) -> DataJob<'b> {
        let pieces = self.pieces.iter().map(|(_, piece)| *piece).collect();
        let mut body = Vec::with_capacity(self.pieces.len() * 16);
        bivouac_proto::encode(&Request::Gather(Gather { pieces }), &mut body);
        DataJob::new(To::Blocks(self.server, 0), body, &[], room)
    }
}

/// Small pieces, by server.
#[derive(Default)]
struct Batches {
    all: Vec<Batch>,
    /// The batch of each server that has room.
    open: HashMap<ServerId, usize>,
}

impl Batches {
    fn add(&mut self, index: usize, (server, piece): (ServerId, SmallPiece)) {
        let place = *self.open.entry(server).or_insert(usize::MAX);
        let batch = match self.all.get(place) {
            Some(batch) if batch.has_room(&piece) => place,
            _ => {
                self.open.insert(server, self.all.len());
                self.all.push(Batch { server, bytes: 0, pieces: Vec::new() });
                self.all.len() - 1
            }
        };
        let batch = &mut self.all[batch];
        batch.bytes += piece.len as usize;
        batch.pieces.push((index, piece));
    }
}

/// A piece that is read by requests of its own.
struct Long {
    index: usize,
    /// How many bytes each of them brings.
    lengths: Vec<usize>,
}

impl Client {
    /// Reads the pieces that are known to lie in blocks.
    pub(super) fn read_blocks(&self, pieces: &mut [Piece<'_>]) {
        let map = self.session().map();
        let mut small = Batches::default();
        let mut long = Vec::new();
        let mut jobs: Vec<DataJob<'_>> = Vec::new();
        for (index, Piece { offset, room, state, .. }) in pieces.iter_mut().enumerate() {
            let State::InBlocks(attr) = state else { continue };
            let Some((layout, parts)) = parts(&map, attr, *offset, room) else {
                *state = State::Left;
                continue;
            };
            match parts[..] {
                [one] if one.len <= SMALL && layout.version == 0 => {
                    let piece = SmallPiece { ino: attr.ino, offset: one.offset, len: one.len as u32 };
                    small.add(index, (one.server, piece));
                }
                _ => {
                    let lengths: Vec<usize> = parts.iter().map(|part| part.len as usize).collect();
                    let mut rest = room.bytes(lengths.iter().sum());
                    for part in &parts {
                        let (now, later) = rest.split_at_mut(part.len as usize);
                        let request =
                            DataRequest::Read { ino: attr.ino, offset: part.offset, len: part.len as u32 };
                        jobs.push(read_job((part, layout.version), request, now));
                        rest = later;
                    }
                    long.push(Long { index, lengths });
                }
            }
        }
        let mut rooms: Vec<Vec<u8>> = small.all.iter().map(|batch| vec![0; batch.bytes]).collect();
        jobs.extend(small.all.iter().zip(&mut rooms).map(|(batch, room)| batch.job(room)));
        self.requests().data_jobs(&mut jobs);
        let answers: Vec<_> = jobs.iter_mut().map(DataJob::take).collect();
        drop(jobs);
        let mut answers = answers.into_iter();

        for Long { index, lengths } in long {
            // All its answers are looked at, also behind one that will not do.
            let is_whole = |answer: &Option<_>, length| {
                matches!(answer, Some(Ok(Answered { reply: Reply::Data(DataReply::Read { .. }), payload_len, .. }))
                    if *payload_len == length)
            };
            let lacking = lengths.iter().filter(|length| !is_whole(&answers.next(), **length)).count();
            let bytes = lengths.iter().sum();
            pieces[index].state = if lacking == 0 { State::Done(Ok(bytes)) } else { State::Left };
        }
        for ((batch, answer), room) in small.all.iter().zip(answers).zip(&rooms) {
            let (there, mut rest) = match answer {
                Ok(Answered { reply: Reply::Gathered(there), payload_len, .. }) => {
                    (there, &room[..payload_len])
                }
                _ => (Vec::new(), &[][..]),
            };
            let there = there.into_iter().chain(std::iter::repeat(false));
            for ((index, piece), is_there) in batch.pieces.iter().zip(there) {
                let data = is_there.then(|| rest.split_off(..piece.len as usize)).flatten();
                pieces[*index].state = match data {
                    Some(data) => State::Done(Ok(pieces[*index].room.take(data))),
                    None => State::Left,
                };
            }
        }
    }
}

/// Where the wanted range of a file lies. (Holes are asked for in the ordinary way: only who knows how long the file is can tell
/// them from what is missing.) `None`: it cannot be read so.
fn parts<'a>(
    map: &Map,
    attr: &'a Attr,
    offset: u64,
    room: &Room<'_>,
) -> Option<(&'a FileLayout, Vec<layout::Piece>)> {
    let layout = attr.layout.as_deref().filter(|layout| layout.replicas == 1 && layout.is_valid(map))?;
    let wanted = room.wants(attr.size, offset);
    if matches!(room, Room::Whole(_)) && wanted > u64::from(MAX_PAYLOAD) {
        return None;
    }
    let parts: Vec<_> = layout.pieces(map, offset..offset + wanted).collect();
    let covered: u64 = parts.iter().map(|part| part.len).sum();
    let fits = covered == wanted && parts.iter().all(|part| part.len <= u64::from(MAX_PAYLOAD));
    fits.then_some((layout, parts))
}
