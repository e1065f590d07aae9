//! An I/O node: requests of clients for what lies in the forwarded directory, carried out at the backend.
//!
//! Each request is answered with what the backend said. Reads and writes go through the queue ([`crate::engine`]); everything else
//! is carried out at once, by the thread that has received it.

use crate::engine::{Alone, Bounds, Engine, Transfer};
use crate::files::{Files, Open};
use crate::kernel;
use crate::locks::Locks;
use crate::outbox::Outbox;
use crate::request::{Asked, By, Kind};
use crate::resident::Resident;
use crate::spec::Spec;
use crate::special::{Special, Way, is_aligned};
use crate::tree::Tree;
use crate::{Counts, stale};
use bivouac_layout::Ino;
use bivouac_proto::data::{DataReply, DataRequest, Fallocate, LastWrite};
use bivouac_proto::meta::{LockOwner, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, OpenId, Reply};
use rustix::fs::{FallocateFlags, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// ENOTCONN: who serves a file system has died.
const NOT_CONNECTED: Errno = Errno(107);
/// ESHUTDOWN: the file system itself was shut down.
const SHUT_DOWN: Errno = Errno(108);

/// With what an I/O node begins.
pub struct Options {
    /// What orders its requests.
    pub scheduler: Spec,
    /// How much may wait.
    pub bounds: Bounds,
    /// Descriptors that are kept of directories, at most, and as many of other files that are not open.
    pub places: usize,
    /// Whether it is still the one that forwards: asked before each read or write is issued.
    pub may_issue: Box<dyn Fn() -> bool + Send + Sync>,
    /// The file by which it knows, when it is started again, what it has shown before.
    pub journal: Option<PathBuf>,
}

/// See the module.
pub struct IoNode {
    pub(crate) tree: Tree,
    pub(crate) files: Files,
    pub(crate) locks: Locks,
    engine: Engine,
    outbox: Arc<Outbox>,
    /// Something has failed as if the backend were gone.
    suspected: AtomicBool,
}

/// Where something is that a number means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// At this path, relative to the directory.
    At(PathBuf),
    /// Nowhere any more; it is open here.
    Kept,
}

impl IoNode {
    /// Serves a directory of the backend.
    ///
    /// # Errors
    /// What the backend says of the directory, or EAGAIN if there can be no more threads.
    pub fn open(directory: &Path, options: Options) -> Result<IoNode, Errno> {
        let engine = Engine::start(
            options.scheduler.scheduler(),
            options.scheduler.dispatchers,
            options.bounds,
            options.may_issue,
        );
        let tree = Tree::open(directory, options.places, options.journal.as_deref())?;
        let outbox = Arc::new(Outbox::new(tree.path().to_path_buf()));
        Ok(IoNode {
            files: Files::new(outbox.clone()),
            outbox,
            tree,
            locks: Locks::default(),
            suspected: AtomicBool::new(false),
            engine: engine.map_err(|_| Errno::AGAIN)?,
        })
    }

    /// Carries out a request about names, attributes, opens or locks. What it reads goes into `buffer`.
    pub fn meta(
        &self,
        request: &MetaRequest<'_>,
        payload: &[u8],
        buffer: &mut Vec<u8>,
    ) -> Result<Reply, Failure> {
        stale::carry_out(self, request, payload, buffer)
    }

    /// Hands in a read or write of `len` bytes of a program. If nothing else comes before it or goes with it, it is the caller's to
    /// carry out; otherwise `later` is queued, and answers it.
    ///
    /// # Errors
    /// ESTALE where there is no such file, EOPNOTSUPP if it is neither a read nor a write.
    pub fn transfer<T: Transfer + 'static>(
        &self,
        by: By,
        request: &DataRequest,
        len: u64,
        later: impl FnOnce() -> Box<T>,
    ) -> Result<Option<Now<'_>>, Errno> {
        let (plain, direct) = request.plain();
        let (kind, ino, offset, sync) = match plain {
            DataRequest::Read { ino, offset, .. } => (Kind::Read, ino, offset, false),
            DataRequest::Write { ino, offset, sync } => (Kind::Write, ino, offset, sync),
            _ => return Err(Errno::OPNOTSUPP),
        };
        let file = self.files.find(&self.tree, ino)?;
        let By { job, process } = by;
        let way = Way { direct: direct && is_aligned(offset, len), sync };
        let merges = !sync && way.direct == direct;
        let asked = Asked { job, process, file: ino.0, kind, offset, len, merges };
        let alone = match way == Way::default() {
            true => self.engine.hand_in(asked, &file, later),
            false => self.engine.hand_in(asked, &Arc::new(Special(file.clone(), way)), later),
        };
        Ok(alone.map(|alone| Now { alone, file, asked, way }))
    }

    /// Carries out a request about a file's bytes that is no read or write.
    pub fn data(&self, request: &DataRequest) -> Result<DataReply, Errno> {
        let find = |ino: Ino| self.files.find(&self.tree, ino);
        match *request {
            DataRequest::Extent { ino } => extent(&*find(ino)?),
            DataRequest::Fallocate { ino, offset, len, mode } => {
                let flags = match mode {
                    Fallocate::Extend => FallocateFlags::empty(),
                    Fallocate::KeepSize => FallocateFlags::KEEP_SIZE,
                    Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    Fallocate::Zero => FallocateFlags::ZERO_RANGE,
                };
                rustix::fs::fallocate(find(ino)?.writer()?, flags, offset, len).map_err(kernel::errno)?;
                Ok(DataReply::Done)
            }
            DataRequest::Seek { ino, offset, end, hole, .. } => {
                let from = if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) };
                // Nobody uses the descriptor's own position.
                let at = rustix::fs::seek(&*find(ino)?, from).map_err(kernel::errno)?;
                if at < end { Ok(DataReply::Position { offset: at }) } else { Err(Errno::NXIO) }
            }
            DataRequest::Sync { ino } => {
                sync(&*find(ino)?)?;
                Ok(DataReply::Done)
            }
            DataRequest::Space => {
                let figures = rustix::fs::fstatvfs(self.tree.root()).map_err(kernel::errno)?;
                let inodes = figures.f_files.saturating_sub(figures.f_ffree);
                let bytes = |blocks: u64| blocks.saturating_mul(figures.f_frsize);
                let (total, available) = (bytes(figures.f_blocks), bytes(figures.f_bavail));
                Ok(DataReply::Space { total, available, device: figures.f_fsid, inodes })
            }
            // The backend keeps what it has written, also what comes behind a part of a long write that has failed.
            DataRequest::TakeBack { .. } => Ok(DataReply::Done),
            // A descriptor of the backend's would go past the queue.
            DataRequest::Pass { .. } => Err(Errno::NOENT),
            DataRequest::Read { .. }
            | DataRequest::ReadDirect { .. }
            | DataRequest::Write { .. }
            | DataRequest::WriteDirect { .. }
            | DataRequest::Truncate { .. }
            | DataRequest::Remove { .. }
            | DataRequest::Close { .. }
            | DataRequest::Open { .. } => Err(Errno::OPNOTSUPP),
        }
    }

    /// How long a file is, bytes.
    pub fn length(&self, ino: Ino) -> Result<u64, Errno> {
        Ok(kernel::stat(&*self.files.find(&self.tree, ino)?)?.stx_size)
    }

    /// Whether it reaches what a number means: it has it open, or finds it where it was. What the backend does not let it look for
    /// nobody else is asked about.
    pub fn reaches(&self, ino: Ino) -> bool {
        self.files.get(ino).is_some() || !matches!(self.tree.place(ino), Err(Errno::NOENT))
    }

    /// Where something is, for another I/O node. What programs have open is on the backend's storage then: the other one may see the
    /// backend otherwise than through this one's memory.
    ///
    /// # Errors
    /// ENOENT if it is not known, or nowhere in the directory and not open; and what the backend says.
    pub fn locate(&self, ino: Ino) -> Result<Whereabouts, Errno> {
        let Some(file) = self.files.get(ino) else {
            let place = self.tree.place(ino)?;
            return self.tree.path_to(&place).map(Whereabouts::At);
        };
        match self.path_of(&file)? {
            Some(path) => {
                sync(&file)?;
                Ok(Whereabouts::At(path))
            }
            None => Ok(Whereabouts::Kept),
        }
    }

    /// The path by which others find a file that is open; none if it is nowhere in the directory, or was opened by a name that is gone.
    fn path_of(&self, file: &Open) -> Result<Option<PathBuf>, Errno> {
        let path = self.tree.path_to(file);
        match path.and_then(|path| self.tree.learn(file.ino, &path).map(|()| path)) {
            Ok(path) => Ok(Some(path)),
            // The kernel says of a name that is gone that it is, which makes it longer.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// A description of a file is gone that is not known here. `elsewhere`: another I/O node has registered it. If none has, that
    /// one is dead, and nobody knows whether there are other descriptions: then a file that has no name stays open, because nobody
    /// could open it again.
    pub fn closed(&self, file: Ino, elsewhere: bool) {
        let has_name = || self.files.get(file).is_none_or(|file| matches!(self.path_of(&file), Ok(Some(_))));
        if elsewhere || has_name() {
            self.files.let_adopted_go(file);
            self.tree.let_go(file);
        }
    }

    /// A description that was opened belongs to a session.
    pub fn belongs(&self, open: OpenId, session: u64) {
        self.files.belongs(open, session);
    }

    /// Files that programs have open and that no other I/O node can open, because they are nowhere in the directory any more: once for
    /// each open description, with the session that has opened it.
    pub fn kept(&self) -> Vec<(Ino, u64)> {
        let all = self.files.described().into_iter();
        all.filter(|(file, _)| matches!(self.path_of(file), Ok(None)))
            .map(|(file, session)| (file.ino, session))
            .collect()
    }

    /// The backend has failed in a way in which it does when it is not the one any more that this I/O node has opened.
    pub fn suspect(&self, errno: Errno) {
        if matches!(errno, NOT_CONNECTED | Errno::STALE | Errno::NODEV | SHUT_DOWN) {
            self.suspected.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the directory that it has opened is gone, because the backend was unmounted or who serves it has died, and is at its path
    /// again: then it has to be opened anew. The mount point of a backend that is gone is another directory. That is looked for only
    /// after something has failed so.
    pub fn is_outlived(&self) -> bool {
        if !self.suspected.load(Ordering::Relaxed) {
            return false;
        }
        let is_gone = kernel::stat(self.tree.root()).is_err();
        self.suspected.store(is_gone, Ordering::Relaxed);
        is_gone && self.tree.is_there_again()
    }

    /// Whether it has locks of an owner on a file.
    pub fn has_locks(&self, ino: Ino, owner: LockOwner) -> bool {
        self.locks.has(ino, owner)
    }

    /// Learns where something is that another I/O node has shown.
    ///
    /// # Errors
    /// ENOENT if something else is at that path, and what the backend says of the way there.
    pub fn learn(&self, ino: Ino, path: &Path) -> Result<(), Errno> {
        self.tree.learn(ino, path)
    }

    /// What others are to be told.
    pub fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// Puts all files that are open into the outbox: for others than those who were told of them.
    pub fn tell_all(&self) {
        self.files.tell_all();
    }

    /// Has another scheduler order what waits, and what will come.
    pub fn set_scheduler(&self, spec: &Spec) {
        self.engine.set_scheduler(spec.scheduler());
        if let Err(error) = self.engine.set_dispatchers(spec.dispatchers) {
            tracing::error!(%error, spec.dispatchers, "there are fewer dispatchers than there should be");
        }
    }

    /// Gives back what it has only because somebody asked for it a while ago: the bytes of files that others have removed from the
    /// backend among it. To be called every second or so.
    pub fn tidy(&self) {
        self.tree.tidy();
    }

    /// Requests in and out.
    pub fn counts(&self) -> Counts {
        self.engine.counts()
    }

    /// Descriptions that programs have open here.
    pub fn opens(&self) -> usize {
        self.files.count()
    }
}

impl Drop for IoNode {
    fn drop(&mut self) {
        self.outbox.close();
    }
}

/// A read or write that is to be carried out now.
pub struct Now<'e> {
    alone: Alone<'e>,
    file: Arc<Open>,
    asked: Asked,
    way: Way,
}

impl Now<'_> {
    /// The file, if all that is to be read is there and in memory: then the backend has nothing to do with it.
    pub fn in_memory(&self) -> Option<Resident> {
        if self.way.direct {
            return None;
        }
        let Asked { offset, len, .. } = self.asked;
        let file = self.file.reader().ok()?;
        self.file.residence.has(file, offset, len).then(|| Resident(self.file.clone()))
    }

    /// Carries it out. `buffer`: what is to be written, or the room for what is read; as long as was said.
    ///
    /// # Errors
    /// What the backend says.
    pub fn carry_out(self, buffer: &mut [u8]) -> Result<u64, Errno> {
        match self.way == Way::default() {
            true => self.alone.carry_out(&*self.file, buffer),
            false => self.alone.carry_out(&Special(self.file, self.way), buffer),
        }
    }
}

/// Whether a directory could be forwarded here.
///
/// # Errors
/// What the file system says of it: ENOENT or ENOTDIR where there is no such directory. ELOOP where it is a kernel mount of what an
/// I/O node forwards.
pub fn check(directory: &Path) -> Result<(), Errno> {
    Tree::open(directory, 1, None).map(drop)
}

/// Puts a file on stable storage.
pub(crate) fn sync(file: &Open) -> Result<(), Errno> {
    rustix::fs::fsync(file).map_err(kernel::errno)
}

fn extent(file: &Open) -> Result<DataReply, Errno> {
    let attr = kernel::attr(file.ino, &kernel::stat(file)?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i64);
    let age = u64::try_from(now.saturating_sub(attr.mtime)).unwrap_or(0);
    let written = Some(LastWrite { age, at: attr.mtime });
    Ok(DataReply::Extent { length: attr.size, allocated: attr.allocated.unwrap_or(0), written })
}
