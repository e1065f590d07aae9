//! Direct access to sub-files on this node.
//!
//! A server on the client's node passes the descriptor of its sub-file of a file over its Unix socket; from
//! then on blocks that lie there are read and written without the server. One descriptor for each server,
//! taken at the first access that needs it, or with the open of a file that lies on one server and is only read; kept for as long
//! as the open file.
//!
//! Each access looks at the server's fence page before and after ([`bivouac_node::fences`]). If the page says
//! that the file must not be accessed directly, the server has to be asked instead. If it says that the
//! sub-file has become another local file, a new descriptor is asked for first. Blocks that have copies are only read,
//! and by descriptors that are good for nothing else: their servers order what is done to them.

use super::layouts::Known;
use crate::host::OwnFd;
use crate::requests::{Came, OUTDATED, Requests};
use bivouac_layout::{Ino, Map, Server, ServerId};
use bivouac_node::fences::{Reading, Under};
use bivouac_node::{ByServer, FencePage};
use bivouac_proto::Errno;
use bivouac_proto::data::{self as proto, Access, DataRequest};
use rustix::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// The sub-files of one file that were passed so far, by server number.
pub(crate) struct SubFiles {
    places: ByServer<Place>,
    /// The file's blocks have copies.
    are_copies: AtomicBool,
}

#[derive(Default)]
struct Place {
    passed: AtomicPtr<Passed>,
    /// There was no sub-file when one was needed for reading: from then on the server is asked.
    missing: AtomicBool,
}

/// A descriptor that was passed.
struct Passed {
    file: OwnFd,
    under: Under,
    /// The page of the server that passed it.
    fences: Arc<FencePage>,
    /// Which succession of the server passed it. Another one stores nothing in it.
    succession: u32,
    /// The epoch of a map by which that succession has the server's number: see [`Passed::is_of_now`].
    found_in: AtomicU64,
    /// An access has found out that it is stale.
    outdated: AtomicBool,
    /// The one before it, which has become stale. Others may be using it still.
    stale: *mut Passed,
}

/// A sub-file on this node.
#[derive(Clone, Copy)]
pub(crate) struct SubFile<'a> {
    passed: &'a Passed,
    file: BorrowedFd<'a>,
    is_copy: bool,
}

/// What became of a direct access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direct<T> {
    Done(T),
    /// It does not count: the server has to be asked.
    ThroughServer,
}

impl SubFiles {
    /// Of a file of which nothing is known yet.
    pub(crate) fn new() -> SubFiles {
        SubFiles { places: ByServer::default(), are_copies: AtomicBool::new(false) }
    }

    /// To be called before any is asked for: whether the file's blocks have copies.
    pub(crate) fn have_copies(&self, are_copies: bool) {
        self.are_copies.store(are_copies, Ordering::Release);
    }

    #[inline]
    fn are_copies(&self) -> bool {
        self.are_copies.load(Ordering::Relaxed)
    }

    /// The sub-file on `server`, if it was passed already.
    pub(crate) fn known(&self, map: &Map, server: ServerId) -> Option<SubFile<'_>> {
        let passed = self.places.get(server)?.latest()?;
        self.of_now(map, server, passed)
    }

    /// `None`: the process that passed it has the server's number no more.
    #[inline]
    fn of_now<'a>(&self, map: &Map, server: ServerId, passed: &'a Passed) -> Option<SubFile<'a>> {
        if passed.is_of_now(map, server) { self.sub_file(passed) } else { None }
    }

    /// `None`: the program has taken the descriptor's number for itself.
    #[inline]
    fn sub_file<'a>(&self, passed: &'a Passed) -> Option<SubFile<'a>> {
        Some(SubFile { passed, file: passed.file.get()?, is_copy: self.are_copies() })
    }

    /// The sub-file on `server`, if the server is on this node and passes it. With `create` a missing one is
    /// made; otherwise a missing one (a hole) is `None`, too, and the server is asked each time.
    #[inline]
    pub(crate) fn get(
        &self,
        (requests, map): (&Requests, &Map),
        server: ServerId,
        (ino, known): (Ino, &Known),
        create: bool,
    ) -> Option<SubFile<'_>> {
        let place = self.places.get(server)?;
        if let Some(passed) = place.latest()
            && !passed.outdated.load(Ordering::Relaxed)
        {
            // What another process has of the file by now is asked for at that one.
            return self.of_now(map, server, passed);
        }
        if !create && place.missing.load(Ordering::Relaxed) {
            return None;
        }
        let access = match (self.are_copies(), create) {
            (true, _) => Access::Read,
            (false, false) => Access::Write,
            (false, true) => Access::Make,
        };
        place.fetch((requests, map), server, (ino, known), access)?;
        self.sub_file(place.latest()?)
    }

    /// Takes over a descriptor that came with the answer to the open, for a description that only reads.
    pub(crate) fn came(&self, (requests, map): (&Requests, &Map), ino: Ino, came: Came) {
        let Came { of: proto::SubFile { server, succession, moved }, fd } = came;
        // By this map, another one may have the server's number.
        let is_here =
            |host: &&Server| host.succession() == succession && host.node == requests.session().node();
        let file = OwnFd::new(requests.session().host(), fd);
        if !requests.session().local_access() || map.server(server).filter(is_here).is_none() {
            return;
        }
        if let (Some(fences), Some(place)) =
            (requests.fetch_fences(server, succession), self.places.get(server))
        {
            let under = fences.passed(ino, moved);
            place.install(ptr::null_mut(), Passed::new(file, (under, fences), succession, map));
        }
    }
}

impl Place {
    #[inline]
    fn latest(&self) -> Option<&Passed> {
        let passed = self.passed.load(Ordering::Acquire);
        // SAFETY: null, or installed from Box::into_raw and freed only when `self` is dropped.
        unsafe { passed.as_ref() }
    }

    #[cold]
    fn fetch(
        &self,
        (requests, map): (&Requests, &Map),
        server: ServerId,
        (ino, known): (Ino, &Known),
        access: Access,
    ) -> Option<()> {
        let host = map.server(server)?;
        let succession = host.succession();
        if !requests.session().local_access() || host.node != requests.session().node() {
            return None;
        }
        let fences = requests.fetch_fences(server, succession)?;
        let before = self.passed.load(Ordering::Acquire);
        // In this order: the descriptor is at least as new.
        let under = fences.before_pass(ino);
        let version = known.layout.version;
        let fd = match requests.data((server, version), DataRequest::Pass { ino, access }, &[], &mut []) {
            Ok((_, _, fd)) => fd?,
            Err(OUTDATED) => {
                known.outdate();
                return None;
            }
            Err(errno) => {
                self.missing.store(errno == Errno::NOENT, Ordering::Relaxed);
                return None;
            }
        };
        let file = OwnFd::new(requests.session().host(), fd);
        self.install(before, Passed::new(file, (under, fences), succession, map));
        Some(())
    }

    /// The next accesses go by this descriptor, unless another thread has installed one after `before` already.
    fn install(&self, before: *mut Passed, new: Passed) {
        let new = Box::into_raw(Box::new(Passed { stale: before, ..new }));
        if self.passed.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread was first; ours is still ours alone, and the stale one is theirs now.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

impl Passed {
    fn new(file: OwnFd, (under, fences): (Under, Arc<FencePage>), succession: u32, map: &Map) -> Passed {
        Passed {
            file,
            under,
            fences,
            succession,
            found_in: AtomicU64::new(map.epoch.0),
            outdated: AtomicBool::new(false),
            stale: ptr::null_mut(),
        }
    }

    /// Whether the server's number still belongs, by the map of this access, to who passed the descriptor. That map is mostly the
    /// one in which this was found last. (Maps do not change, and an epoch is that of one map: a relaxed order does.)
    #[inline]
    fn is_of_now(&self, map: &Map, server: ServerId) -> bool {
        self.found_in.load(Ordering::Relaxed) == map.epoch.0 || self.is_in(map, server)
    }

    #[cold]
    fn is_in(&self, map: &Map, server: ServerId) -> bool {
        let found = map.server(server).is_some_and(|known| known.succession() == self.succession);
        if found {
            self.found_in.store(map.epoch.0, Ordering::Relaxed);
        }
        found
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut next = *self.passed.get_mut();
        while !next.is_null() {
            // SAFETY: installed from Box::into_raw; `&mut self` excludes users.
            let passed = unsafe { Box::from_raw(next) };
            next = passed.stale;
        }
    }
}

impl<'a> SubFile<'a> {
    /// Its descriptor, for accesses that look at no fence.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'a> {
        self.file
    }

    /// Its length, bytes.
    pub(crate) fn length(&self) -> Direct<u64> {
        let Some(reading) = self.reading() else { return Direct::ThroughServer };
        match rustix::fs::fstat(self.file) {
            Ok(stat) if reading.counts() => Direct::Done(stat.st_size as u64),
            _ => Direct::ThroughServer,
        }
    }

    #[inline]
    fn reading(&self) -> Option<Reading<'a>> {
        match self.is_copy {
            true => self.passed.fences.read_copy(&self.passed.under),
            false => self.passed.fences.read(&self.passed.under),
        }
    }

    /// Reads as far as it goes. (Inlined: see the module `blocks`.)
    #[inline(always)]
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<Direct<usize>, Errno> {
        let Some(reading) = self.reading() else { return Ok(self.refused()) };
        let count = match read(self.file, offset, buffer) {
            Ok(count) if reading.counts() => count,
            // Another copy may be readable.
            Err(errno) if errno != Errno::BADF && self.is_copy => return Ok(Direct::ThroughServer),
            Err(errno) if errno != Errno::BADF => return Err(errno),
            failed => return Ok(self.not_done(failed.is_err())),
        };
        self.passed.fences.count_read(count);
        Ok(Direct::Done(count))
    }

    /// Writes; fewer bytes than given where the storage fills up. What does not count may have been written
    /// all the same. (Inlined: see the module `blocks`.)
    #[inline(always)]
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<Direct<usize>, Errno> {
        let Some(writing) = self.passed.fences.write(&self.passed.under) else { return Ok(self.refused()) };
        let written = write(self.file, offset, data);
        if !writing.counts() {
            return Ok(Direct::ThroughServer);
        }
        let count = match written {
            Ok(count) => count,
            Err(Errno::BADF) => return Ok(self.not_done(true)),
            Err(errno) => return Err(errno),
        };
        writing.wrote(count);
        Ok(Direct::Done(count))
    }

    /// The fence page does not let it begin. Should the sub-file be another local file now, the next access
    /// asks for that first.
    #[cold]
    fn refused<T>(&self) -> Direct<T> {
        if self.passed.fences.is_stale(&self.passed.under) {
            self.passed.outdated.store(true, Ordering::Relaxed);
        }
        Direct::ThroughServer
    }

    /// The server has to do it. `lost`: the kernel answers EBADF, because the program has closed the
    /// descriptor without the library noticing; from now on the server reads and writes.
    #[cold]
    fn not_done(&self, lost: bool) -> Direct<usize> {
        if lost {
            self.passed.file.lost();
        }
        Direct::ThroughServer
    }
}

#[inline(always)]
fn read(file: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(filled)
}

#[inline(always)]
fn write(file: BorrowedFd<'_>, offset: u64, data: &[u8]) -> Result<usize, Errno> {
    let mut written = 0;
    while written < data.len() {
        match rustix::io::pwrite(file, &data[written..], offset + written as u64) {
            Ok(n) => written += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) if written > 0 => break,
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(written)
}

/// A system call's error as the program sees it.
fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error() as u16)
}
