//! What all operations share, and which one a request is.

use crate::abi::{Asked, Fields, Reply, Short, init, op};
use crate::dirs::OpenDirectory;
use crate::files::OpenFile;
use crate::groups::Groups;
use crate::lockers::Lockers;
use crate::locks::Interruptions;
use crate::passthrough::Passthrough;
use crate::session::{Channel, Terms};
use crate::shortcuts::Shortcuts;
use crate::tree::Tree;
use crate::writers::Writers;
use bivouac_client::Client;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::Attr;
use slab::Slab;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A served mount.
pub(crate) struct Face {
    pub(crate) client: Arc<Client>,
    /// What is mounted.
    pub(crate) tree: Tree,
    /// Files can be read past the page cache and still be mapped.
    pub(crate) direct: bool,
    /// The kernel looks at access control lists.
    pub(crate) lists: bool,
    /// The user and group for which the servers make this process's files.
    pub(crate) user: (u32, u32),
    pub(crate) groups: Groups,
    pub(crate) files: Handles<OpenFile>,
    pub(crate) directories: Handles<OpenDirectory>,
    pub(crate) lockers: Lockers,
    pub(crate) interruptions: Interruptions,
    pub(crate) privileged: Privileged,
    pub(crate) removed: Removed,
    /// The forwarded directory that was found to be gone last.
    pub(crate) gone: Mutex<Option<Ino>>,
    pub(crate) writers: Writers,
    pub(crate) shortcuts: Shortcuts,
    pub(crate) passthrough: Passthrough<Channel>,
}

/// One request being served.
pub(crate) struct Call<'a> {
    pub(crate) face: &'a Arc<Face>,
    pub(crate) channel: &'a Channel,
    pub(crate) asked: Asked,
    pub(crate) fields: Fields<'a>,
    /// Room for [`crate::session::LARGEST`] bytes of data.
    pub(crate) scratch: &'a mut [u8],
}

/// How a request ends.
pub(crate) enum Answer {
    /// Done, with nothing to tell.
    Empty,
    /// Done, and this is the reply.
    Told(Reply),
    /// Done, and the reply is so much of the scratch buffer.
    Data(usize),
    /// No answer is sent here: this kind of request has none, or another thread answers it.
    None,
}

impl From<Short> for Errno {
    fn from(_: Short) -> Errno {
        Errno::INVAL
    }
}

impl Face {
    /// `capabilities`: what the kernel agreed to; `device`: a way to it.
    pub(crate) fn new(client: Arc<Client>, terms: Terms, capabilities: u64, device: Channel) -> Face {
        let direct = capabilities & init::DIRECT_IO_ALLOW_MMAP != 0;
        Face {
            tree: terms.tree,
            direct,
            lists: capabilities & init::POSIX_ACL != 0,
            user: client.user(),
            groups: Groups::new(&client, terms.alone),
            client,
            files: Handles::default(),
            directories: Handles::default(),
            lockers: Lockers::default(),
            interruptions: Interruptions::default(),
            privileged: Privileged::default(),
            removed: Removed::default(),
            gone: Mutex::default(),
            writers: Writers::default(),
            shortcuts: Shortcuts::default(),
            passthrough: Passthrough::new(device, direct && capabilities & init::PASSTHROUGH != 0),
        }
    }

    /// Serves one request and answers it.
    pub(crate) fn serve(
        self: &Arc<Face>,
        channel: &Channel,
        asked: Asked,
        fields: Fields<'_>,
        scratch: &mut [u8],
    ) {
        let mut call = Call { face: self, channel, asked, fields, scratch };
        let answer = call.dispatch();
        tracing::trace!(?asked, failed = ?answer.as_ref().err(), "served");
        match answer {
            Ok(Answer::Empty) => channel.answer(asked.unique, Ok(&[])),
            Ok(Answer::Told(reply)) => channel.answer(asked.unique, Ok(&reply.0)),
            Ok(Answer::Data(length)) => {
                channel.answer(asked.unique, Ok(call.scratch.get(..length).unwrap_or_default()));
            }
            Ok(Answer::None) => {}
            // The inode was removed. If its name has been replaced since the kernel looked it up, the name
            // leads to another inode now. With ESTALE the kernel walks the path once more.
            Err(Errno::STALE | Errno::NOENT) if by_number(asked.operation) => {
                channel.answer(asked.unique, Err(Errno::STALE));
            }
            // So may the name of a forwarded directory, which the backend has remembered.
            Err(Errno::STALE) if !call.ino().is_forwarded() => {
                channel.answer(asked.unique, Err(Errno::NOENT))
            }
            Err(errno) => channel.answer(asked.unique, Err(errno)),
        }
    }
}

/// Whether an operation is one on an inode that the kernel found by its path just before.
fn by_number(operation: u32) -> bool {
    matches!(
        operation,
        op::GETATTR
            | op::STATX
            | op::SETATTR
            | op::OPEN
            | op::OPENDIR
            | op::READLINK
            | op::GETXATTR
            | op::SETXATTR
            | op::LISTXATTR
            | op::REMOVEXATTR
    )
}

impl Call<'_> {
    fn dispatch(&mut self) -> Result<Answer, Errno> {
        match self.asked.operation {
            op::FORGET => self.forget(),
            op::BATCH_FORGET => self.batch_forget(),
            op::INTERRUPT => self.interrupt(),
            op::LOOKUP => self.lookup(),
            op::SYMLINK => self.symlink(),
            op::MKNOD => self.mknod(),
            op::MKDIR => self.mkdir(),
            op::UNLINK => self.unlink(),
            op::RMDIR => self.rmdir(),
            op::RENAME => self.rename(false),
            op::RENAME2 => self.rename(true),
            op::LINK => self.link(),
            op::READLINK => self.readlink(),
            op::GETATTR => self.getattr(),
            op::STATX => self.statx(),
            op::SETATTR => self.setattr(),
            op::STATFS => self.statfs(),
            op::OPEN => self.open(),
            op::CREATE => self.create(),
            op::TMPFILE => self.create_nameless(),
            op::READ => self.read(),
            op::WRITE => self.write(),
            op::FLUSH => self.flush(),
            op::RELEASE => self.release(),
            op::FSYNC => self.fsync(),
            op::IOCTL => self.ioctl(),
            op::FALLOCATE => self.fallocate(),
            op::LSEEK => self.lseek(),
            op::COPY_FILE_RANGE => self.copy_file_range(),
            op::OPENDIR => self.opendir(),
            op::READDIR => self.readdir(),
            op::RELEASEDIR => self.releasedir(),
            op::FSYNCDIR => self.fsyncdir(),
            op::GETLK => self.getlk(),
            op::SETLK => self.setlk(false),
            op::SETLKW => self.setlk(true),
            op::SETXATTR => self.setxattr(),
            op::GETXATTR => self.getxattr(),
            op::LISTXATTR => self.listxattr(),
            op::REMOVEXATTR => self.removexattr(),
            _ => Err(Errno::NOSYS),
        }
    }

    /// The inode that the request is about.
    pub(crate) fn ino(&self) -> Ino {
        self.face.tree.inode(self.asked.node)
    }

    /// The next field, which names another inode.
    pub(crate) fn other_ino(&mut self) -> Result<Ino, Errno> {
        Ok(self.face.tree.inode(self.fields.u64()?))
    }
}

/// Locks a mutex whose holders do not panic in between changes that belong together.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the kernel has open, by the numbers that it was told.
pub(crate) struct Handles<T>(RwLock<Slab<Arc<T>>>);

impl<T> Default for Handles<T> {
    fn default() -> Handles<T> {
        Handles(RwLock::new(Slab::new()))
    }
}

impl<T> Handles<T> {
    pub(crate) fn add(&self, value: Arc<T>) -> u64 {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(value) as u64
    }

    pub(crate) fn get(&self, number: u64) -> Result<Arc<T>, Errno> {
        let key = usize::try_from(number).map_err(|_| Errno::BADF)?;
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned().ok_or(Errno::BADF)
    }

    pub(crate) fn any(&self, is: impl Fn(&T) -> bool) -> bool {
        let handles = self.0.read().unwrap_or_else(PoisonError::into_inner);
        handles.iter().any(|(_, value)| is(value))
    }

    pub(crate) fn remove(&self, number: u64) -> Result<Arc<T>, Errno> {
        let key = usize::try_from(number).map_err(|_| Errno::BADF)?;
        self.0.write().unwrap_or_else(PoisonError::into_inner).try_remove(key).ok_or(Errno::BADF)
    }
}

/// Directories that were removed through this mount, with the attributes that they had, for processes whose
/// working directory they are or that have them open. They are kept until the kernel forgets them.
#[derive(Default)]
pub(crate) struct Removed(Mutex<HashMap<Ino, Attr>>);

impl Removed {
    pub(crate) fn note(&self, attr: Attr) {
        lock(&self.0).insert(attr.ino, Attr { nlink: 0, size: 0, ..attr });
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<Attr> {
        lock(&self.0).get(&ino).cloned()
    }

    pub(crate) fn forget(&self, ino: Ino) {
        lock(&self.0).remove(&ino);
    }
}

/// Regular files that were seen with set-user-ID or set-group-ID bits: a write to one clears them.
#[derive(Default)]
pub(crate) struct Privileged {
    count: AtomicUsize,
    files: Mutex<HashSet<Ino>>,
}

impl Privileged {
    /// Notes what an inode's mode is.
    pub(crate) fn note(&self, ino: Ino, privileged: bool) {
        if !privileged && self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut files = lock(&self.files);
        if privileged {
            files.insert(ino);
        } else {
            files.remove(&ino);
        }
        self.count.store(files.len(), Ordering::Release);
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.count.load(Ordering::Acquire) != 0 && lock(&self.files).contains(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_closed_files_are_bad_until_they_are_given_again() {
        let handles: Handles<&str> = Handles::default();
        let (a, b) = (handles.add(Arc::new("a")), handles.add(Arc::new("b")));
        assert_eq!(handles.remove(a).as_deref(), Ok(&"a"));
        assert_eq!(handles.get(a), Err(Errno::BADF));
        assert_eq!(handles.remove(a), Err(Errno::BADF));
        assert_eq!(handles.get(b).as_deref(), Ok(&"b"));
        assert_eq!(handles.add(Arc::new("c")), a);
        assert_eq!(handles.get(a).as_deref(), Ok(&"c"));
        assert_eq!(handles.get(u64::MAX), Err(Errno::BADF));
    }
}
