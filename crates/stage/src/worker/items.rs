//! Files that are copied whole, links, special files, and what is removed.

use super::contents::{Buffers, settle};
use super::{LeftOut, Worker, lock};
use crate::tree::{Kind, Meta, Special, State};
use crate::wire::{Copied, How, Item};
use std::io;
use std::sync::atomic::Ordering;

/// How often a file that changes while it is read is read before it is given up.
const ATTEMPTS: usize = 3;

/// Attributes that say how a deployment spreads new files; another one may have too few servers for it.
const LAYOUT_ATTRIBUTES: &[u8] = b"user.bivouac.";

impl Worker {
    pub(super) fn item(&self, item: &Item, buffers: &mut Buffers, left_out: &mut LeftOut) -> Copied {
        let (here, there) = (self.source(&item.path), self.destination(&item.path));
        let done = match (&item.how, item.meta.kind) {
            (How::Remove, kind) => self.remove(&there, kind == Kind::Directory),
            (How::Link(first), _) => self
                .trees
                .to
                .make_link(&self.destination(first), &there)
                .and_then(|()| self.made(&there, &item.meta)),
            (How::Attributes, _) => self.settle_attributes(&here, &there, &item.meta, left_out),
            (How::Lazy, Kind::File) => self.lazy(&here, &there, &item.meta, left_out),
            (How::Compare, Kind::File) => self.compare(&here, &there, item, buffers, left_out),
            (_, Kind::File) => self.file(&here, &there, &item.meta, buffers, left_out),
            (_, Kind::Symlink) => self
                .trees
                .from
                .read_link(&here)
                .and_then(|target| self.trees.to.make_symlink(&there, &target, &item.meta))
                .and_then(|()| self.made(&there, &item.meta)),
            (_, Kind::Special(what)) => match self.special(&there, what, &item.meta) {
                Ok(None) => self.made(&there, &item.meta),
                Ok(Some(why)) => return Copied::LeftOut(why),
                Err(error) => Err(error),
            },
            (_, Kind::Directory) => Ok(Copied::Settled),
        };
        done.unwrap_or_else(|error| Copied::Failed(error.to_string()))
    }

    fn remove(&self, there: &[u8], is_directory: bool) -> io::Result<Copied> {
        let removed =
            if is_directory { self.trees.to.remove_directory(there) } else { self.trees.to.remove(there) };
        match removed {
            // Something in the directory was excluded; or another worker has removed it, and died.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound) =>
            {
                Ok(Copied::Settled)
            }
            other => other.map(|()| Copied::Settled),
        }
    }

    /// What is told of something without content that was made.
    fn made(&self, there: &[u8], meta: &Meta) -> io::Result<Copied> {
        let target = self.trees.to.stat(there, false)?;
        Ok(done(meta, &target, 0))
    }

    /// Copies a file. If it changes meanwhile, copies it again: what is there in the end is what the source
    /// was at one time.
    fn file(
        &self,
        here: &[u8],
        there: &[u8],
        listed: &Meta,
        buffers: &mut Buffers,
        left_out: &mut LeftOut,
    ) -> io::Result<Copied> {
        let mut before = *listed;
        if settle(before.mtime, before.ctime) {
            before = self.trees.from.stat(here, false)?;
        }
        for _ in 0..ATTEMPTS {
            let source = self.trees.from.open(here)?;
            let part = Part::of(self, there);
            let target = self.trees.to.create(&part.name)?;
            part.begun();
            self.attributes(here, &before, |name, value| target.set_attribute(name, value), left_out)?;
            let sparse = before.is_sparse();
            if sparse {
                // Also a hole at the end.
                target.set_len(before.size)?;
            }
            let copied = self.range(&*source, &*target, 0..before.size, sparse, buffers);
            let after = source.meta()?;
            if after.state() != before.state() {
                // Removes what it has written.
                drop(target);
                drop(part);
                before = if settle(after.mtime, after.ctime) { source.meta()? } else { after };
                continue;
            }
            let bytes = copied?;
            self.pulse.go_on()?;
            let set = target.set_meta(&before)?;
            // The last handle goes first: what its close reports belongs to the file as it was written.
            let placed = part.place(there, set)?;
            return Ok(done(&before, &placed, bytes));
        }
        Ok(Copied::Changed)
    }

    /// Makes a file without its contents.
    fn lazy(&self, here: &[u8], there: &[u8], listed: &Meta, left_out: &mut LeftOut) -> io::Result<Copied> {
        // A change in the same moment would not show later.
        let meta = match settle(listed.mtime, listed.ctime) {
            true => self.trees.from.stat(here, false)?,
            false => *listed,
        };
        if meta.kind != Kind::File {
            return Ok(Copied::Changed);
        }
        self.pulse.go_on()?;
        let mut made = self.trees.to.make_lazy(there, here, &meta)?;
        let has_some = std::cell::Cell::new(false);
        let set = |name: &[u8], value: &[u8]| {
            has_some.set(true);
            self.trees.to.set_attribute(there, name, value)
        };
        self.attributes(here, &meta, set, left_out)?;
        if has_some.get() {
            made = self.trees.to.stat(there, false)?;
        }
        Ok(done(&meta, &made, 0))
    }

    /// Has the contents of a file fetched.
    pub(super) fn fetch(&self, path: &[u8], size: u64) -> Result<bool, String> {
        self.pulse.go_on().map_err(|error| error.to_string())?;
        self.throttle.take(size);
        let fetched = self.trees.to.fetch(&self.destination(path));
        self.moved.fetch_add(size, Ordering::Relaxed);
        fetched
    }

    /// Compares a file with the one that is there, and copies it if they differ.
    fn compare(
        &self,
        here: &[u8],
        there: &[u8],
        item: &Item,
        buffers: &mut Buffers,
        left_out: &mut LeftOut,
    ) -> io::Result<Copied> {
        let source = self.trees.from.open(here)?;
        let before = source.meta()?;
        let same = match self.trees.to.open(there) {
            Ok(target) => {
                target.meta()?.size == before.size
                    && self.is_same(&*source, &*target, before.size, buffers)?
                    && source.meta()?.state() == before.state()
            }
            Err(_) => false,
        };
        drop(source);
        if !same {
            return self.file(here, there, &item.meta, buffers, left_out);
        }
        self.settle_attributes(here, there, &before, left_out)
    }

    /// Brings attributes up to date where the content is right.
    fn settle_attributes(
        &self,
        here: &[u8],
        there: &[u8],
        meta: &Meta,
        left_out: &mut LeftOut,
    ) -> io::Result<Copied> {
        self.attributes(here, meta, |name, value| self.trees.to.set_attribute(there, name, value), left_out)?;
        self.trees.to.set_meta(there, meta)?;
        let target = self.trees.to.stat(there, false)?;
        Ok(Copied::Same {
            source: meta.state(),
            target: target.state(),
            identity: meta.identity.1,
            target_identity: target.identity.1,
        })
    }

    /// Makes a special file; or says why the destination cannot have it.
    fn special(&self, there: &[u8], what: Special, meta: &Meta) -> io::Result<Option<String>> {
        match self.trees.to.make_special(there, what, meta) {
            Ok(()) => Ok(None),
            Err(error) if is_not_offered(&error) => {
                Ok(Some(format!("a {}, which cannot be made at the destination: {error}", what.name())))
            }
            Err(error) => Err(error),
        }
    }

    /// Copies the user's extended attributes of a file or directory.
    pub(super) fn attributes(
        &self,
        here: &[u8],
        meta: &Meta,
        set: impl Fn(&[u8], &[u8]) -> io::Result<()>,
        left_out: &mut LeftOut,
    ) -> io::Result<()> {
        if !meta.attributes {
            return Ok(());
        }
        for (name, value) in self.trees.from.attributes(here)? {
            let Err(error) = set(&name, &value) else { continue };
            let layout = name.starts_with(LAYOUT_ATTRIBUTES);
            if !is_not_offered(&error) && !layout {
                return Err(error);
            }
            let name = String::from_utf8_lossy(&name);
            let what = format!("its attribute {name}, which cannot be set at the destination: {error}");
            left_out.0.push((here.to_vec(), what));
        }
        Ok(())
    }
}

/// What is told of a file that was copied.
pub(super) fn done(source: &Meta, target: &Meta, bytes: u64) -> Copied {
    let (source_state, target_state): (State, State) = (source.state(), target.state());
    Copied::Done {
        kind: source.kind,
        bytes,
        source: source_state,
        target: target_state,
        identity: source.identity.1,
        target_identity: target.identity.1,
    }
}

/// A file that is not complete yet. It is removed if it does not get its place.
struct Part<'a> {
    worker: &'a Worker,
    name: Vec<u8>,
    exists: std::cell::Cell<bool>,
}

impl Part<'_> {
    fn of<'a>(worker: &'a Worker, there: &[u8]) -> Part<'a> {
        // Another worker may be copying the same file by mistake: not under the same name.
        let run = format!("{}-{}", worker.setup.run, worker.trees.node);
        let name = worker.trees.to.part_name(there, &run);
        lock(&worker.parts).insert(name.clone());
        Part { worker, name, exists: std::cell::Cell::new(false) }
    }

    fn begun(&self) {
        self.exists.set(true);
    }

    /// Gives the file its final name. `meta` is what it has before that.
    fn place(self, there: &[u8], meta: Meta) -> io::Result<Meta> {
        let placed = if self.name == there { meta } else { self.worker.trees.to.place(&self.name, there)? };
        self.exists.set(false);
        Ok(placed)
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if self.exists.get() {
            let _ = self.worker.trees.to.remove(&self.name);
        }
        lock(&self.worker.parts).remove(&self.name);
    }
}

/// Whether an error says that a file system does not offer something, or not to this user.
fn is_not_offered(error: &io::Error) -> bool {
    let not_permitted = rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::PERM);
    not_permitted || error.kind() == io::ErrorKind::Unsupported
}
