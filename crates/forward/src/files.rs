//! Files of the backend that programs have open through this I/O node.
//!
//! However many have a file open, it is open once for reading and once for writing, so that their requests can be merged. An open
//! that the backend refuses is refused: permission to read and to write is asked for when a program opens, as ever.

use crate::backend::File;
use crate::kernel;
use crate::outbox::Outbox;
use crate::recent::Recent;
use crate::resident::Residence;
use crate::special::Direct;
use crate::tree::{Place, Tree};
use bivouac_layout::Ino;
use bivouac_proto::{Errno, OpenId};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Files that are kept open for descriptions of other I/O nodes, at most.
const ADOPTED: usize = 1024;

/// What a descriptor may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rights {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// A file that is open.
pub(crate) struct Open {
    /// Its number.
    pub(crate) ino: Ino,
    first: OwnedFd,
    rights: Rights,
    /// For what the first one may not be used for.
    second: OnceLock<OwnedFd>,
    /// Descriptors that go past the page cache.
    pub(crate) direct: Direct,
    appending: Mutex<()>,
    pub(crate) residence: Residence,
}

impl Open {
    fn new((ino, of): (Ino, &impl AsFd), wanted: Rights) -> Result<Open, Errno> {
        let Rights { read, write } = wanted;
        let flags = match (read, write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        let rights = Rights { read: read || !write, write };
        Ok(Open {
            ino,
            first: kernel::reopen(of, flags)?,
            rights,
            second: OnceLock::new(),
            direct: Direct::default(),
            appending: Mutex::default(),
            residence: Residence::default(),
        })
    }

    /// The same of a number that is known from before: for whatever the backend allows.
    fn anyhow(place: &Place) -> Result<Open, Errno> {
        let rights = |read, write| Rights { read, write };
        let tries = [rights(true, true), rights(true, false), rights(false, true)];
        let mut last = Err(Errno::IO);
        for wanted in tries {
            last = Open::new((place.ino, place), wanted);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// A descriptor for reading.
    pub(crate) fn reader(&self) -> Result<&OwnedFd, Errno> {
        if self.rights.read { Ok(&self.first) } else { self.second(OFlags::RDONLY) }
    }

    /// A descriptor for writing.
    pub(crate) fn writer(&self) -> Result<&OwnedFd, Errno> {
        if self.rights.write { Ok(&self.first) } else { self.second(OFlags::WRONLY) }
    }

    /// Appends; where, and how many bytes.
    pub(crate) fn append(&self, bytes: &[u8]) -> Result<(u64, u64), Errno> {
        let fd = self.writer()?;
        // The kernel says where it appended by the descriptor's position, which nobody else uses.
        let _alone = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let written = rustix::io::pwritev2(fd, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::APPEND);
        let written = written.map_err(kernel::errno)? as u64;
        let end = rustix::fs::tell(fd).map_err(kernel::errno)?;
        Ok((end.saturating_sub(written), written))
    }

    fn second(&self, flags: OFlags) -> Result<&OwnedFd, Errno> {
        if let Some(fd) = self.second.get() {
            return Ok(fd);
        }
        // If two threads are here, one's descriptor is closed again.
        let new = kernel::reopen(&self.first, flags)?;
        Ok(self.second.get_or_init(|| new))
    }
}

impl AsFd for Open {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.first.as_fd()
    }
}

impl File for Open {
    fn read_at(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        rustix::io::preadv(self.reader()?, into, offset).map_err(kernel::errno)
    }

    fn write_at(&self, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        rustix::io::pwritev(self.writer()?, from, offset).map_err(kernel::errno)
    }
}

/// An open description of a program.
struct Description {
    file: Ino,
    /// The session of the process that has opened it; 0 until that is told.
    session: u64,
}

struct Table {
    files: HashMap<Ino, (Arc<Open>, usize)>,
    descriptions: HashMap<OpenId, Description>,
    /// Files that programs have open, as far as is known, by descriptions that another I/O node has registered.
    adopted: Recent<Arc<Open>>,
}

/// See the module.
pub(crate) struct Files {
    table: Mutex<Table>,
    /// Who has a file open here is told of to others.
    outbox: Arc<Outbox>,
}

impl Files {
    pub(crate) fn new(outbox: Arc<Outbox>) -> Files {
        let (files, descriptions, adopted) = (HashMap::new(), HashMap::new(), Recent::new(ADOPTED));
        Files { table: Mutex::new(Table { files, descriptions, adopted }), outbox }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Ignores poisoning: nothing that can panic runs under the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an open description of a file.
    pub(crate) fn register(
        &self,
        (ino, of): (Ino, &impl AsFd),
        open: OpenId,
        wanted: Rights,
    ) -> Result<Arc<Open>, Errno> {
        let file = match self.get(ino) {
            Some(file) => file,
            None => Arc::new(Open::new((ino, of), wanted)?),
        };
        if wanted.read {
            file.reader()?;
        }
        if wanted.write {
            file.writer()?;
        }
        Ok(self.note(open, file))
    }

    /// Registers the description with which a file was made. Its descriptor may be used for everything.
    pub(crate) fn register_made(&self, ino: Ino, open: OpenId, first: OwnedFd) {
        let rights = Rights { read: true, write: true };
        let (second, direct, appending, residence) = <(_, _, _, _)>::default();
        self.note(open, Arc::new(Open { ino, first, rights, second, direct, appending, residence }));
    }

    fn note(&self, open: OpenId, file: Arc<Open>) -> Arc<Open> {
        let mut table = self.table();
        let Table { files, descriptions, .. } = &mut *table;
        let ino = file.ino;
        // Another thread may have registered the first one meanwhile.
        let (file, count) = files.entry(ino).or_insert((file, 0));
        let is_first = *count == 0;
        if descriptions.insert(open, Description { file: ino, session: 0 }).is_none() {
            *count += 1;
        }
        let file = file.clone();
        drop(table);
        if is_first {
            self.outbox.add(&file);
        }
        file
    }

    /// A name has changed: others hear of the file's new one, or of all, where what was renamed is no file that is open.
    pub(crate) fn was_renamed(&self, ino: Ino, directory: bool) {
        let table = self.table();
        let moved: Vec<Arc<Open>> = match directory {
            true => table.files.values().map(|(file, _)| file.clone()).collect(),
            false => table.files.get(&ino).map(|(file, _)| file.clone()).into_iter().collect(),
        };
        drop(table);
        moved.iter().for_each(|file| self.outbox.add(file));
    }

    /// Others that have heard nothing yet hear of all files that are open.
    pub(crate) fn tell_all(&self) {
        self.was_renamed(Ino::FORWARDED, true);
    }

    /// A description of a file is gone. Whether it was known.
    pub(crate) fn release(&self, open: OpenId) -> bool {
        let mut table = self.table();
        let Some(Description { file: ino, .. }) = table.descriptions.remove(&open) else { return false };
        let last = match table.files.get_mut(&ino) {
            Some((_, count)) if *count > 1 => {
                *count -= 1;
                None
            }
            _ => table.files.remove(&ino),
        };
        drop(table);
        // Closed without the lock: the backend may take its time.
        drop(last);
        true
    }

    /// A file that was kept open for descriptions of other I/O nodes does not have to be any more.
    pub(crate) fn let_adopted_go(&self, ino: Ino) {
        let adopted = self.table().adopted.remove(ino);
        // Closed without the lock.
        drop(adopted);
    }

    /// A file that is open.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Open>> {
        let Table { files, adopted, .. } = &mut *self.table();
        files.get(&ino).map(|(file, _)| file).or_else(|| adopted.get(ino)).cloned()
    }

    /// A file by its number, for one operation.
    pub(crate) fn once(&self, tree: &Tree, ino: Ino) -> Result<Arc<Open>, Errno> {
        match self.get(ino) {
            Some(open) => Ok(open),
            None => Ok(Arc::new(Open::anyhow(&*tree.place(ino).map_err(|_| Errno::STALE)?)?)),
        }
    }

    /// A file that a program has open, also if by a description that another I/O node has registered.
    pub(crate) fn find(&self, tree: &Tree, ino: Ino) -> Result<Arc<Open>, Errno> {
        match self.get(ino) {
            Some(open) => Ok(open),
            None => {
                let open = Open::anyhow(&*tree.place(ino).map_err(|_| Errno::STALE)?)?;
                tree.let_go(ino);
                Ok(self.adopt(open))
            }
        }
    }

    /// Keeps a file open for descriptions that are not known here ([`Files::let_adopted_go`]).
    fn adopt(&self, file: Open) -> Arc<Open> {
        let file = Arc::new(file);
        self.outbox.add(&file);
        let dropped = self.table().adopted.insert(file.ino, file.clone());
        // Closed without the lock.
        drop(dropped);
        file
    }

    /// A description belongs to a session.
    pub(crate) fn belongs(&self, open: OpenId, session: u64) {
        if let Some(description) = self.table().descriptions.get_mut(&open) {
            description.session = session;
        }
    }

    /// All open descriptions' files, and the sessions that have opened them.
    pub(crate) fn described(&self) -> Vec<(Arc<Open>, u64)> {
        let table = self.table();
        let all = table.descriptions.values();
        all.filter_map(|one| Some((table.files.get(&one.file)?.0.clone(), one.session))).collect()
    }

    /// Descriptions that are open.
    pub(crate) fn count(&self) -> usize {
        self.table().descriptions.len()
    }
}
