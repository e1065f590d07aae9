//! Calls made through the client core, in this process.
//!
//! The client core leaves some things to its users (the preload library, the kernel mount); this module does
//! them as they do: descriptors, their duplicates, and releasing the process's locks on a file when a
//! descriptor of it is closed.

use super::call::{Answer, Call, Domain, Hold, Order, SLOTS, Seen, Stamp, Target, pattern};
use super::system::attribute_names;
use bivouac_client::host::Plain;
use bivouac_client::{Client, Fail, Handle, LockKind};
use bivouac_layout::Ino;
use bivouac_node::Environment;
use bivouac_proto::attr::{Attr, FileKind};
use bivouac_proto::meta::{SetAttr, SetTime};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// One client of a deployment.
pub struct Library {
    client: Arc<Client>,
    here: Ino,
    slots: [Option<Open>; SLOTS as usize],
}

/// An open description, shared by the slots that are duplicates. The placeholder is what holds it.
#[derive(Clone)]
struct Open {
    handle: Arc<Handle>,
    placeholder: Arc<bivouac_node::Fd>,
}

type Outcome = Result<Answer, i32>;

fn failed(fail: impl Into<Fail>) -> i32 {
    i32::from(fail.into().errno().0)
}

fn done<T, E: Into<Fail>>(result: Result<T, E>) -> Outcome {
    result.map(|_| Answer::Done).map_err(failed)
}

impl Library {
    /// A client of a deployment, by the variables that its programs have.
    pub fn attach(environment: &Environment) -> Library {
        let client = Client::attach(environment, &Plain).expect("the deployment answers");
        Library { client, here: Ino::ROOT, slots: Default::default() }
    }

    /// Carries an order out. Paths of directories are absolute.
    pub fn obey(&mut self, order: &Order) -> Answer {
        let outcome = match order {
            Order::Do(call) => self.call(call),
            Order::Enter(path) => {
                for slot in 0..SLOTS {
                    self.close(slot);
                }
                let inside =
                    bivouac_client::strip_mount(self.client.mount(), path.as_bytes()).unwrap_or_default();
                let found =
                    self.client.stat((Ino::ROOT, if inside.is_empty() { b"." } else { inside }, true));
                found.map(|attr| self.here = attr.ino).map(|()| Answer::Done).map_err(failed)
            }
            Order::Make(_) | Order::Remove(_) | Order::Split(_) | Order::Clear(_) | Order::Identify => {
                Err(libc::ENOSYS)
            }
        };
        outcome.unwrap_or_else(Answer::Failed)
    }

    fn close(&mut self, slot: u8) {
        let Some(Open { handle, placeholder }) = self.slots[slot as usize].take() else { return };
        if handle.flags() & libc::O_PATH == 0 {
            self.client.release_process_locks(handle.ino());
        }
        if let Some(placeholder) = Arc::into_inner(placeholder) {
            drop(placeholder);
            self.client.closed(handle.id());
        }
    }

    fn handle(&self, slot: u8) -> Result<&Handle, i32> {
        self.slots[slot as usize].as_ref().map(|open| &*open.handle).ok_or(libc::EBADF)
    }

    fn call(&mut self, call: &Call) -> Outcome {
        let (client, here) = (self.client.clone(), self.here);
        if let Some(slot) = more_than_a_path(call)
            && self.handle(slot)?.flags() & libc::O_PATH != 0
        {
            return Err(libc::EBADF);
        }
        match call {
            Call::Open { slot, path, flags, mode } => {
                let handle = client.open(here, path.as_bytes(), *flags, *mode).map_err(failed)?;
                let placeholder =
                    client.table().placeholder(handle.id(), true).expect("a descriptor is left");
                self.slots[*slot as usize] = Some(Open { handle, placeholder: Arc::new(placeholder) });
                Ok(Answer::Done)
            }
            Call::Close { slot } => {
                self.handle(*slot)?;
                self.close(*slot);
                Ok(Answer::Done)
            }
            Call::Dup { from, to } => {
                let open = self.slots[*from as usize].clone().ok_or(libc::EBADF)?;
                self.close(*to);
                self.slots[*to as usize] = Some(open);
                Ok(Answer::Done)
            }
            Call::Append { slot, on } => {
                let handle = self.handle(*slot)?;
                let flags = handle.flags();
                handle.set_flags(if *on { flags | libc::O_APPEND } else { flags & !libc::O_APPEND });
                Ok(Answer::Done)
            }
            Call::Read { slot, len } => self
                .read(*slot, *len, |handle, into| handle.read(&mut [IoSliceMut::new(into)]).map_err(failed)),
            Call::Pread { slot, offset, len } => self.read(*slot, *len, |handle, into| {
                handle.pread(*offset, &mut [IoSliceMut::new(into)]).map_err(failed)
            }),
            Call::Write { slot, len, seed } => {
                let wrote = self.handle(*slot)?.write(&[IoSlice::new(&pattern(*seed, *len))]);
                wrote.map(|count| Answer::Count(count as u64)).map_err(failed)
            }
            Call::Pwrite { slot, offset, len, seed } => {
                let wrote = self.handle(*slot)?.pwrite(*offset, &[IoSlice::new(&pattern(*seed, *len))]);
                wrote.map(|count| Answer::Count(count as u64)).map_err(failed)
            }
            Call::Seek { slot, offset, whence } => {
                self.handle(*slot)?.seek(*offset, *whence).map(Answer::Count).map_err(failed)
            }
            Call::Reopen { .. } | Call::ReadlinkSlot { .. } => Err(libc::ENOSYS),
            Call::Copy { .. } | Call::MapRead { .. } | Call::MapWrite { .. } => Err(libc::ENOSYS),
            Call::At { slot, call, .. } => {
                // Its users see to it that paths start from directories.
                let handle = self.handle(*slot)?;
                let starts = match handle.flags() & libc::O_PATH {
                    0 => handle.is_directory(),
                    _ => handle.attr().map_err(failed)?.kind == FileKind::Directory,
                };
                if !starts {
                    return Err(libc::ENOTDIR);
                }
                self.here = handle.ino();
                let outcome = self.call(call);
                self.here = here;
                outcome
            }
            Call::Truncate { target, size } => {
                let size = u64::try_from(*size).map_err(|_| libc::EINVAL)?;
                match target {
                    Target::Slot(slot) => done(self.handle(*slot)?.truncate(size)),
                    Target::Path(path) | Target::Link(path) => {
                        done(client.truncate((here, path.as_bytes(), true), size))
                    }
                }
            }
            Call::Allocate { slot, mode, offset, len } => {
                done(self.handle(*slot)?.fallocate(*mode, *offset, *len))
            }
            Call::Sync { slot } => done(self.handle(*slot)?.sync()),
            Call::StatEmpty { slot } => {
                self.handle(*slot)?.attr().map(|attr| Answer::Seen(seen(&attr))).map_err(failed)
            }
            Call::Stat { target } => {
                let attr = match target {
                    Target::Path(path) => client.stat((here, path.as_bytes(), true)).map_err(failed)?,
                    Target::Link(path) => client.stat((here, path.as_bytes(), false)).map_err(failed)?,
                    Target::Slot(slot) => self.handle(*slot)?.attr().map_err(failed)?,
                };
                Ok(Answer::Seen(seen(&attr)))
            }
            Call::Chmod { target, mode } => {
                self.set(target, SetAttr { mode: Some(*mode as u16), ..SetAttr::default() }, true)
            }
            Call::Times { atime: Stamp::Omit, mtime: Stamp::Omit, .. }
            | Call::TimesEmpty { atime: Stamp::Omit, mtime: Stamp::Omit, .. } => Ok(Answer::Done),
            Call::Chown { target, uid, gid } => {
                let given = |id: u32| (id != u32::MAX).then_some(id);
                self.set(target, SetAttr { uid: given(*uid), gid: given(*gid), ..SetAttr::default() }, false)
            }
            Call::TimesEmpty { slot, atime, mtime } => {
                let (atime, mtime) = (set_time(*atime), set_time(*mtime));
                done(self.handle(*slot)?.set_attr(SetAttr { atime, mtime, ..SetAttr::default() }))
            }
            Call::Times { target, atime, mtime } => {
                let (atime, mtime) = (set_time(*atime), set_time(*mtime));
                self.set(target, SetAttr { atime, mtime, ..SetAttr::default() }, false)
            }
            Call::Rename { from, to, flags } => {
                done(client.rename(here, from.as_bytes(), here, to.as_bytes(), *flags))
            }
            Call::Link { from, to, follow } => {
                done(client.link((here, from.as_bytes(), *follow), here, to.as_bytes()))
            }
            Call::LinkSlot { slot, to, .. } => done(self.handle(*slot)?.link(here, to.as_bytes())),
            Call::Symlink { target, path } => done(client.symlink(target.as_bytes(), here, path.as_bytes())),
            Call::Readlink { path } => {
                client.readlink((here, path.as_bytes(), false)).map(Answer::Bytes).map_err(failed)
            }
            Call::Unlink { path } => done(client.unlink(here, path.as_bytes())),
            Call::Mkdir { path, mode } => done(client.mkdir(here, path.as_bytes(), *mode)),
            Call::Mknod { path, mode } => done(client.mknod(here, path.as_bytes(), *mode)),
            Call::Rmdir { path } => done(client.rmdir(here, path.as_bytes())),
            Call::List { target } => match target {
                Target::Slot(slot) => {
                    let handle = self.handle(*slot)?;
                    handle.seek(0, libc::SEEK_SET).map_err(failed)?;
                    list(handle)
                }
                Target::Path(path) | Target::Link(path) => {
                    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
                    let handle = client.open(here, path.as_bytes(), flags, 0).map_err(failed)?;
                    let listed = list(&handle);
                    client.closed(handle.id());
                    listed
                }
            },
            Call::SetXattr { target, name, value, flags } => {
                let name = name.as_bytes();
                match target {
                    Target::Slot(slot) => done(self.handle(*slot)?.set_xattr(name, value, *flags)),
                    Target::Path(path) => {
                        done(client.set_xattr((here, path.as_bytes(), true), name, value, *flags))
                    }
                    Target::Link(path) => {
                        done(client.set_xattr((here, path.as_bytes(), false), name, value, *flags))
                    }
                }
            }
            Call::GetXattr { target, name } => {
                let name = name.as_bytes();
                let value = match target {
                    Target::Slot(slot) => self.handle(*slot)?.get_xattr(name).map_err(failed)?,
                    Target::Path(path) => {
                        client.get_xattr((here, path.as_bytes(), true), name).map_err(failed)?
                    }
                    Target::Link(path) => {
                        client.get_xattr((here, path.as_bytes(), false), name).map_err(failed)?
                    }
                };
                Ok(Answer::Bytes(value))
            }
            Call::ListXattr { target } => {
                let names = match target {
                    Target::Slot(slot) => self.handle(*slot)?.list_xattr().map_err(failed)?,
                    Target::Path(path) => client.list_xattr((here, path.as_bytes(), true)).map_err(failed)?,
                    Target::Link(path) => {
                        client.list_xattr((here, path.as_bytes(), false)).map_err(failed)?
                    }
                };
                Ok(Answer::Names(attribute_names(&names)))
            }
            Call::RemoveXattr { target, name } => {
                let name = name.as_bytes();
                match target {
                    Target::Slot(slot) => done(self.handle(*slot)?.remove_xattr(name)),
                    Target::Path(path) => done(client.remove_xattr((here, path.as_bytes(), true), name)),
                    Target::Link(path) => done(client.remove_xattr((here, path.as_bytes(), false), name)),
                }
            }
            Call::Lock { slot, domain, hold, start, len, .. } => {
                let handle = self.handle(*slot)?;
                let kind = kind(*domain);
                let (start, end) = if *domain == Domain::Whole { (0, u64::MAX) } else { range(*start, *len) };
                let exclusive = *hold == Hold::Exclusive;
                if *hold == Hold::Nothing {
                    return done(handle.unlock(kind, start, end));
                }
                let access = handle.flags() & libc::O_ACCMODE;
                if *domain != Domain::Whole
                    && access == if exclusive { libc::O_RDONLY } else { libc::O_WRONLY }
                {
                    return Err(libc::EBADF);
                }
                done(handle.lock(kind, exclusive, start, end))
            }
            Call::Interrupt => Err(libc::ENOSYS),
            Call::TestLock { slot, domain, exclusive, start, len } => {
                let (start, end) = range(*start, *len);
                let found =
                    self.handle(*slot)?.test_lock(kind(*domain), *exclusive, start, end).map_err(failed)?;
                Ok(Answer::Held(found.map(|(_, range)| (range.exclusive, range.start, range.end))))
            }
        }
    }

    fn read(
        &self,
        slot: u8,
        len: u64,
        read: impl FnOnce(&Handle, &mut [u8]) -> Result<usize, i32>,
    ) -> Outcome {
        let mut data = vec![0u8; len as usize];
        let count = read(self.handle(slot)?, &mut data)?;
        data.truncate(count);
        Ok(Answer::Bytes(data))
    }

    fn set(&self, target: &Target, set: SetAttr, always_follow: bool) -> Outcome {
        match target {
            Target::Slot(slot) => done(self.handle(*slot)?.set_attr(set)),
            Target::Path(path) => done(self.client.set_attr((self.here, path.as_bytes(), true), set)),
            Target::Link(path) => {
                done(self.client.set_attr((self.here, path.as_bytes(), always_follow), set))
            }
        }
    }
}

fn set_time(stamp: Stamp) -> Option<SetTime> {
    match stamp {
        Stamp::Now => Some(SetTime::Now),
        Stamp::Omit => None,
        Stamp::To(time) => Some(SetTime::To(time)),
    }
}

fn kind(domain: Domain) -> LockKind {
    match domain {
        Domain::Process => LockKind::Process,
        Domain::Description => LockKind::Description,
        Domain::Whole => LockKind::Flock,
    }
}

/// The descriptor of a call that O_PATH is not enough for: as libc's faces, it does not come to the client
/// core then.
fn more_than_a_path(call: &Call) -> Option<u8> {
    match call {
        Call::Append { slot, .. }
        | Call::Lock { slot, .. }
        | Call::TestLock { slot, .. }
        | Call::Chmod { target: Target::Slot(slot), .. }
        | Call::Chown { target: Target::Slot(slot), .. }
        | Call::SetXattr { target: Target::Slot(slot), .. }
        | Call::GetXattr { target: Target::Slot(slot), .. }
        | Call::ListXattr { target: Target::Slot(slot) }
        | Call::RemoveXattr { target: Target::Slot(slot), .. } => Some(*slot),
        Call::Times { atime: Stamp::Omit, mtime: Stamp::Omit, .. } => None,
        Call::Times { target: Target::Slot(slot), .. } => Some(*slot),
        _ => None,
    }
}

fn range(start: u64, len: u64) -> (u64, u64) {
    (start, if len == 0 { u64::MAX } else { start + len })
}

fn seen(attr: &Attr) -> Seen {
    Seen {
        ino: attr.ino.0,
        kind: attr.kind.d_type(),
        mode: u32::from(attr.mode),
        owner: (attr.uid, attr.gid),
        links: u64::from(attr.nlink),
        size: attr.st_size(),
        atime: attr.atime,
        mtime: attr.mtime,
    }
}

fn list(handle: &Handle) -> Outcome {
    let mut names = Vec::new();
    loop {
        let entries = handle.list(1000).map_err(failed)?.entries;
        if entries.is_empty() {
            names.retain(|(name, _): &(Vec<u8>, u8)| name != b"." && name != b"..");
            names.sort();
            return Ok(Answer::Names(names));
        }
        names.extend(entries.into_iter().map(|entry| (entry.name, entry.kind.d_type())));
    }
}
