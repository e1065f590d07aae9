//! What a listing becomes: tasks, and work for later phases.

use super::decide::{Decision, Recorded, decide};
use super::{Coordinator, shown};
use crate::parts;
use crate::report::StageError;
use crate::tree::{Kind, Meta, join};
use crate::wire::{Direction, Entry, How, Item, Task};

/// Files longer than this are copied in sections.
pub(super) const LARGE: u64 = 16 << 20;
/// Most files of one task, and most bytes.
pub(super) const BATCH: usize = 32;
pub(super) const BATCH_BYTES: u64 = 4 << 20;

const CONFLICT: &str =
    "it was changed in the backend since it was staged, and is not overwritten (--force does)";

/// The first name of a file with several names.
pub(super) struct First {
    path: Vec<u8>,
    /// It was not copied: the inode that is at the destination, if any.
    kept: Option<Option<(u64, u64)>>,
}

/// Small files that become one task.
#[derive(Default)]
struct Batch {
    items: Vec<Item>,
    bytes: u64,
}

impl Coordinator<'_> {
    /// Begins with the root of what is copied.
    pub(super) fn root(&mut self, meta: Meta, there: Option<Meta>) {
        if meta.kind == Kind::Directory {
            self.directory(Vec::new(), meta);
            return;
        }
        let mut batch = Batch::default();
        self.entry(Vec::new(), meta, there, &mut batch, None);
        self.put_batch(batch, None);
    }

    pub(super) fn directory(&mut self, path: Vec<u8>, meta: Meta) {
        self.directories.push((path.clone(), meta));
        self.queue.put_list(Task::List { path, make: !self.options.dry_run });
    }

    /// Takes in what is in a directory, and on which node its entries are.
    pub(super) fn listed(&mut self, directory: &[u8], entries: Vec<Entry>, node: Option<u16>) {
        let node = node.filter(|node| self.crew.has(*node));
        let mut batch = Batch::default();
        let mut in_the_way = Vec::new();
        for Entry { name, here, there } in entries {
            if parts::is_part(&name) {
                continue;
            }
            let path = join(directory, &name);
            match here {
                None => self.extra(path, there),
                Some(Err(why)) => {
                    if self.takes(&path, false) {
                        self.failed(&path, &why);
                    }
                }
                Some(Ok(meta)) if self.takes(&path, meta.kind == Kind::Directory) => {
                    if meta.kind == Kind::Directory {
                        if let Some(there) = there.filter(|there| there.kind != Kind::Directory) {
                            in_the_way.push((path, meta, there));
                        } else {
                            self.directory(path, meta);
                        }
                    } else {
                        self.entry(path, meta, there, &mut batch, node);
                    }
                }
                Some(Ok(_)) => {}
            }
        }
        self.put_batch(batch, node);
        for (path, meta, there) in in_the_way {
            self.make_way(path, meta, there);
        }
    }

    /// A directory is to be made where something else is, which `--delete` removes first.
    fn make_way(&mut self, path: Vec<u8>, meta: Meta, there: Meta) {
        if self.options.delete && !self.options.dry_run {
            let item = Item { path: path.clone(), meta: there, how: How::Remove };
            self.before.insert(path, meta);
            self.queue.put_any(Task::Items(vec![item]));
        } else {
            self.directory(path, meta);
        }
    }

    fn takes(&mut self, path: &[u8], is_directory: bool) -> bool {
        let takes = self.options.filter.takes(path, is_directory);
        if takes && self.options.filter.lists(path) {
            self.seen.insert(path.to_vec());
        }
        takes
    }

    fn entry(
        &mut self,
        path: Vec<u8>,
        meta: Meta,
        there: Option<Meta>,
        batch: &mut Batch,
        node: Option<u16>,
    ) {
        self.progress.found(if meta.kind == Kind::File { meta.size } else { 0 });
        if meta.kind == Kind::File && meta.links > 1 && self.names.contains_key(&meta.identity) {
            return self.link(path, meta, there);
        }
        let recorded = self.recorded(&path, &meta);
        let decision = decide(&meta, there.as_ref(), recorded, self.options, self.crew.keeps_owners());
        let decision = match decision {
            // Only its name is there.
            Decision::Complete | Decision::Attributes if self.lacks_contents(there.as_ref()) => {
                Decision::Copy
            }
            decision => decision,
        };
        if meta.kind == Kind::File && meta.links > 1 {
            let kept = matches!(decision, Decision::Complete | Decision::Unchanged | Decision::Attributes)
                .then(|| there.map(|there| there.identity));
            self.names.insert(meta.identity, First { path: path.clone(), kept });
        }
        match decision {
            Decision::Conflict => self.failed(&path, CONFLICT),
            Decision::Unchanged => self.unchanged(&meta),
            Decision::Complete => {
                self.note_lazy(&path, there.as_ref());
                self.unchanged(&meta);
                if let Some(there) = there {
                    self.note(&path, (meta.identity.1, meta.state()), (there.identity.1, there.state()));
                }
            }
            Decision::Copy | Decision::Compare | Decision::Attributes => {
                if self.options.dry_run {
                    self.report.planned.push((shown(&path), "copy"));
                    return;
                }
                let how = match decision {
                    Decision::Compare => How::Compare,
                    Decision::Attributes => How::Attributes,
                    _ if self.options.lazy && meta.kind == Kind::File => How::Lazy,
                    _ => How::Copy,
                };
                if how == How::Attributes {
                    self.note_lazy(&path, there.as_ref());
                }
                if how == How::Copy && meta.kind == Kind::File && meta.size > LARGE {
                    self.queue.put_any(Task::Begin { path, meta });
                    return;
                }
                let bytes = if meta.kind == Kind::File && how != How::Lazy { meta.size } else { 0 };
                if !batch.items.is_empty() && batch.bytes + bytes > BATCH_BYTES || batch.items.len() == BATCH
                {
                    self.put_batch(std::mem::take(batch), node);
                }
                batch.bytes += bytes;
                batch.items.push(Item { path, meta, how });
            }
        }
    }

    fn put_batch(&mut self, batch: Batch, node: Option<u16>) {
        if !batch.items.is_empty() {
            self.queue.put_for(node, Task::Items(batch.items));
        }
    }

    pub(super) fn put_items(&mut self, items: Vec<Item>) {
        for some in items.chunks(BATCH) {
            self.queue.put_any(Task::Items(some.to_vec()));
        }
    }

    fn unchanged(&mut self, meta: &Meta) {
        self.report.unchanged += 1;
        self.progress.done();
        self.progress.moved(if meta.kind == Kind::File { meta.size } else { 0 });
    }

    /// A further name of a file. It is made when the file is there under its first name.
    fn link(&mut self, path: Vec<u8>, meta: Meta, there: Option<Meta>) {
        let Some(first) = self.names.get(&meta.identity) else { return };
        if first.kept.is_some_and(|kept| kept == there.map(|there| there.identity)) {
            self.report.unchanged += 1;
            return;
        }
        if self.options.dry_run {
            self.report.planned.push((shown(&path), "link"));
            return;
        }
        let how = How::Link(first.path.clone());
        self.links.push(Item { path, meta, how });
    }

    fn recorded(&self, path: &[u8], meta: &Meta) -> Recorded {
        if !self.options.changed || self.job.direction == Direction::In {
            return Recorded::default();
        }
        Recorded {
            inside: self.record.inside(meta.identity.1, &join(&self.job.source, path)),
            outside: self.record.outside(&join(&self.backend, path)),
        }
    }

    /// Something that only the destination has.
    fn extra(&mut self, path: Vec<u8>, there: Option<Meta>) {
        let Some(meta) = there.filter(|_| self.options.delete) else { return };
        if !self.options.filter.takes(&path, meta.kind == Kind::Directory) {
            return;
        }
        if self.options.dry_run {
            self.report.planned.push((shown(&path), "delete"));
        }
        if meta.kind == Kind::Directory {
            self.queue.put_list(Task::ListThere { path: path.clone() });
            self.deleted.1.push(Item { path, meta, how: How::Remove });
        } else {
            self.deleted.0.push(Item { path, meta, how: How::Remove });
        }
    }

    pub(super) fn listed_to_delete(&mut self, directory: &[u8], entries: Vec<Entry>) {
        for entry in entries.into_iter().filter(|entry| !parts::is_part(&entry.name)) {
            self.extra(join(directory, &entry.name), entry.there);
        }
    }

    /// Deletes what the source does not have; nothing if not all of the source could be seen.
    pub(super) fn delete(&mut self) -> Result<(), StageError> {
        let (files, mut directories) = std::mem::take(&mut self.deleted);
        if self.options.dry_run || files.is_empty() && directories.is_empty() {
            return Ok(());
        }
        if !self.report.failed.is_empty() {
            let why = "nothing was deleted, because not everything could be copied";
            self.report.failed.push((shown(&self.job.destination), why.to_owned()));
            return Ok(());
        }
        self.put_items(files);
        self.run()?;
        // What is inside first: its path is longer.
        directories.sort_by_key(|item| std::cmp::Reverse(item.path.len()));
        for directory in directories {
            self.queue.put_any(Task::Items(vec![directory]));
            self.run()?;
        }
        Ok(())
    }
}
