//! Reading pieces of many files at once, without opening them.
//!
//! What a program reads from a thousand small files costs it a round trip for each request, if it asks for one after the
//! other. Here names are looked up at all servers concerned at the same time, and then data is read from all of them; each server
//! has the next request there when it is done with one. That is how most files are read. A file for which it does not do (a symbolic link, one that somebody writes to, a map or a layout that
//! has changed meanwhile) is opened and read in the ordinary way.

use crate::client::Client;
use crate::error::Fail;
use crate::namespace::{Last, Place};
use crate::requests::{DataJob, To, read_job};
use bivouac_layout::{Ino, Map};
use bivouac_proto::attr::{Attr, FileKind, INLINE_MAX, Store};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::meta::{At, MetaReply, MetaRequest};
use bivouac_proto::{Errno, Reply, Request};
use bivouac_transport::engine::Answered;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Pieces that are read together at most: each has a request under way, and memory for it.
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

impl Client {
    /// Reads pieces of files. Each has its own result.
    pub fn read_many(self: &Arc<Self>, start: Ino, wanted: &mut [Wanted<'_>]) {
        for some in wanted.chunks_mut(TOGETHER) {
            let found = self.find_many(start, some.iter().map(|one| one.path));
            let is_left = self.read_found(some, found);
            for (one, _) in some.iter_mut().zip(is_left).filter(|(_, is_left)| *is_left) {
                one.result = self.read_opened(start, one).map_err(Fail::errno);
            }
        }
    }

    /// Reads all of many files.
    pub fn read_files(self: &Arc<Self>, start: Ino, paths: &[&[u8]]) -> Vec<Result<Vec<u8>, Errno>> {
        let mut all = Vec::with_capacity(paths.len());
        for some in paths.chunks(TOGETHER) {
            let found = self.find_many(start, some.iter().copied());
            let length = |attr: &Option<Box<Attr>>| {
                // What is longer than a message is read alone.
                let attr = attr.as_deref().filter(|attr| attr.size <= u64::from(MAX_PAYLOAD));
                attr.map_or(0, |attr| attr.size as usize)
            };
            let mut buffers: Vec<Vec<u8>> = found.iter().map(|attr| vec![0; length(attr)]).collect();
            let whole = |attr: Option<Box<Attr>>| attr.filter(|attr| attr.size <= u64::from(MAX_PAYLOAD));
            let mut wanted: Vec<Wanted<'_>> = some
                .iter()
                .zip(&mut buffers)
                .map(|(path, into)| Wanted { path, offset: 0, into, result: Err(Errno::IO) })
                .collect();
            let is_left = self.read_found(&mut wanted, found.into_iter().map(whole).collect());
            let results: Vec<_> = wanted.into_iter().map(|one| one.result).collect();
            let done = results.into_iter().zip(buffers).map(|(result, buffer)| result.map(|_| buffer));
            all.extend(done.zip(some).zip(is_left).map(|((done, path), is_left)| match is_left {
                true => self.read_whole(start, path).map_err(Fail::errno),
                false => done,
            }));
        }
        all
    }

    /// Attributes of the files, where one exchange tells.
    fn find_many<'p>(&self, start: Ino, paths: impl Iterator<Item = &'p [u8]>) -> Vec<Option<Box<Attr>>> {
        let place = |path| match self.namespace().at_any_last(start, path, false, |_, last| Ok(last)) {
            Ok(Last::Name(place)) if !place.slash && !place.dir.is_forwarded() => Some(place),
            _ => None,
        };
        let places: Vec<Option<Place>> = paths.map(place).collect();
        let job = |place: &Place| {
            let split = self.memory().paths().is_split(place.dir);
            let request = MetaRequest::Lookup { at: At { dir: place.dir, split, name: &place.name } };
            let mut body = Vec::with_capacity(64);
            bivouac_proto::encode(&Request::Meta(request), &mut body);
            DataJob::new(To::entry(place.dir, split, &place.name, place.reached), body, &[], &mut [])
        };
        let mut jobs: Vec<DataJob<'_>> = places.iter().flatten().map(job).collect();
        self.requests().data_jobs(&mut jobs);
        let mut answers = jobs.iter_mut().map(|job| match job.take() {
            Ok(Answered { reply: Reply::Meta(MetaReply::Entry { attr, .. }), .. }) => Some(attr),
            _ => None,
        });
        places.iter().map(|place| place.as_ref().and_then(|_| answers.next().flatten())).collect()
    }

    /// Reads those whose attributes are known, in one exchange. Whether each is left for another way.
    fn read_found(&self, wanted: &mut [Wanted<'_>], found: Vec<Option<Box<Attr>>>) -> Vec<bool> {
        let map = self.session().map();
        let mut is_left = vec![false; wanted.len()];
        let mut jobs: Vec<DataJob<'_>> = Vec::with_capacity(wanted.len());
        // The index of each file that is read, and for its pieces in blocks what is expected of each.
        let mut reads: Vec<(usize, Vec<usize>)> = Vec::new();
        for (index, (one, attr)) in wanted.iter_mut().zip(&found).enumerate() {
            let Some(attr) = attr.as_deref().filter(|attr| attr.kind == FileKind::File) else {
                is_left[index] = true;
                continue;
            };
            if !self.session().allowed(attr.mode, attr.uid, attr.gid, 4, false) {
                one.result = Err(Errno::ACCESS);
                continue;
            }
            let inside = attr.size.saturating_sub(one.offset).min(one.into.len() as u64) as usize;
            match self.jobs_for(&map, attr, one.offset, &mut one.into[..inside], &mut jobs) {
                Some(lengths) => {
                    one.result = Ok(inside);
                    reads.push((index, lengths));
                }
                None => is_left[index] = true,
            }
        }
        self.requests().data_jobs(&mut jobs);
        let mut answers = jobs.iter_mut();
        for (index, lengths) in reads {
            // All its answers are looked at, also behind one that will not do.
            let lacking = lengths.iter().filter(|length| !is_whole(answers.next(), **length)).count();
            is_left[index] = lacking > 0;
        }
        is_left
    }

    /// The requests for a range that lies within a file, and how long each answer has to be. `None`: it cannot be read so.
    fn jobs_for<'b>(
        &self,
        map: &Map,
        attr: &Attr,
        offset: u64,
        into: &'b mut [u8],
        jobs: &mut Vec<DataJob<'b>>,
    ) -> Option<Vec<usize>> {
        if into.is_empty() {
            return (attr.store != Store::Blocks { settled: false }).then(Vec::new);
        }
        let layout = match (attr.store, attr.layout.as_deref()) {
            (Store::Inline, _) if into.len() <= INLINE_MAX => {
                let request = MetaRequest::ReadInline { ino: attr.ino, offset, len: into.len() as u32 };
                let mut body = Vec::with_capacity(32);
                bivouac_proto::encode(&Request::Meta(request), &mut body);
                let lengths = vec![into.len()];
                jobs.push(DataJob::new(To::inode(attr.ino), body, &[], into));
                return Some(lengths);
            }
            (Store::Blocks { settled: true }, Some(layout))
                if layout.replicas == 1 && layout.is_valid(map) =>
            {
                layout
            }
            _ => return None,
        };
        let pieces: Vec<_> = layout.pieces(map, offset..offset + into.len() as u64).collect();
        let covered: u64 = pieces.iter().map(|piece| piece.len).sum();
        if covered != into.len() as u64 || pieces.iter().any(|piece| piece.len > u64::from(MAX_PAYLOAD)) {
            return None;
        }
        let mut rest = into;
        for piece in &pieces {
            let (now, later) = rest.split_at_mut(piece.len as usize);
            let request = DataRequest::Read { ino: attr.ino, offset: piece.offset, len: piece.len as u32 };
            jobs.push(read_job((piece, layout.version), request, now));
            rest = later;
        }
        Some(pieces.iter().map(|piece| piece.len as usize).collect())
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

/// Whether an answer has brought all that was asked for. (Holes are asked for again: only who knows how long the file is can
/// tell them from what is missing.)
fn is_whole(job: Option<&mut DataJob<'_>>, length: usize) -> bool {
    let Some(job) = job else { return false };
    match job.take() {
        Ok(Answered {
            reply: Reply::Data(DataReply::Read { .. }) | Reply::Meta(MetaReply::Attr(_)),
            payload_len,
            ..
        }) => payload_len == length,
        _ => false,
    }
}
