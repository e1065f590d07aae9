//! Listing directories.
//!
//! A listing goes in the order of cookies, which depend on names alone, so that a position stays good while
//! others make and remove entries, and while the directory splits. Names that share a cookie come together.

use crate::access::READ;
use crate::entries::Entry;
use crate::inode::{Directory, Spread};
use crate::names::shown;
use crate::partition::LockedShard;
use crate::store::{Caller, Core};
use bivouac_layout::namespace::{PARTS, part_of, part_shard};
use bivouac_layout::{FileLayout, Ino};
use bivouac_proto::attr::Store;
use bivouac_proto::meta::{LOOK_MAX, Looked, MetaReply};
use bivouac_proto::status::Failure;
use bivouac_proto::{Attr, DirEntry, Errno, Refusal, Reply};
use serde_bytes::ByteBuf;

/// Most bytes of a listing's encoding, far enough below the longest body that a run of equal cookies fits on
/// top.
const MAX_BYTES: usize = 512 << 10;

/// A listing in the making.
struct Listing {
    entries: Vec<DirEntry>,
    after: u64,
    limit: usize,
    bytes: usize,
    attrs: bool,
    full: bool,
}

impl Core {
    /// Permissions are not checked here: whoever lists a directory has opened it. The client core (or the
    /// kernel, in a mount) has checked read permission then, and the listing may go on if that is taken away
    /// later.
    pub(crate) fn read_dir(
        &self,
        dir: Ino,
        split: bool,
        after: u64,
        limit: u32,
        attrs: bool,
    ) -> Result<Reply, Failure> {
        let limit = (limit as usize).max(1);
        let mut listing = Listing { entries: Vec::new(), after, limit, bytes: 0, attrs, full: false };
        if split {
            self.list_parts(dir, &mut listing)?;
        } else {
            self.partitions.with(dir.shard(), |locked| {
                let inode = locked.shard.inodes.get(dir);
                if inode.is_some_and(|i| i.nlink == 0 && i.as_directory().is_some()) {
                    // It was removed while it is open: it is empty.
                    return Ok(());
                }
                locked.shard.home(dir, false, b"")?;
                listing.take(locked, dir, 0, u64::MAX);
                Ok(())
            })?;
        }
        if attrs {
            self.fill_in(&mut listing.entries);
        }
        Ok(Reply::Meta(MetaReply::Listing { entries: listing.entries, end: !listing.full }))
    }

    /// Several inodes at once, with the beginnings of their listings.
    pub(crate) fn look(
        &self,
        caller: &Caller,
        inos: &[Ino],
        limit: u32,
        attrs: bool,
    ) -> Result<Reply, Failure> {
        if inos.len() > LOOK_MAX {
            return Err(Errno::INVAL.into());
        }
        let mut bytes = 0;
        let looked = inos.iter().map(|ino| self.look_at(caller, *ino, limit, attrs, &mut bytes)).collect();
        Ok(Reply::Meta(MetaReply::Looked(looked)))
    }

    /// One of them. `bytes`: of all listings so far.
    fn look_at(
        &self,
        caller: &Caller,
        ino: Ino,
        limit: u32,
        attrs: bool,
        bytes: &mut usize,
    ) -> Option<Looked> {
        if !self.is_mine(ino.shard()) {
            return None;
        }
        let found = self.partitions.with(ino.shard(), |locked| {
            if locked.shard.is_not_leaving(ino).is_err() {
                // Looking ahead never waits.
                return Err(Errno::AGAIN.into());
            }
            let shown = shown(locked, ino)?;
            let limit = limit as usize;
            let mut listing =
                Listing { entries: Vec::new(), after: 0, limit, bytes: *bytes, attrs, full: false };
            let inode = locked.shard.inode(ino)?;
            let listed = limit > 0
                && *bytes < MAX_BYTES
                && inode.nlink > 0
                && inode.as_directory().is_some_and(|d| d.state != Spread::Split)
                && inode.owner().check(&caller.credentials, READ).is_ok();
            if listed {
                listing.take(locked, ino, 0, u64::MAX);
            }
            let place = |d: &Directory| (d.parent, ByteBuf::from(&d.name[..]));
            Ok((shown, inode.as_directory().map(place), listed.then_some(listing)))
        });
        // Of a split directory only the whole is worth showing.
        let (shown, place, listing) = found.ok().filter(|(shown, ..)| !shown.attr.split)?;
        let listing = listing.map(|mut listing| {
            *bytes = listing.bytes;
            if attrs {
                self.fill_in(&mut listing.entries);
            }
            (listing.entries, !listing.full)
        });
        Some(Looked { attr: Box::new(shown.attr), target: shown.target, place, listing })
    }

    /// The parts follow each other in the order of their cookies.
    fn list_parts(&self, dir: Ino, listing: &mut Listing) -> Result<(), Failure> {
        let (mut mine, mut found) = (0, 0);
        let map = self.outside.map();
        let me = self.outside.me();
        for part in part_of(listing.after)..PARTS {
            if listing.full {
                return Ok(());
            }
            let shard = part_shard(dir, part);
            if map.primary(shard) != me {
                continue;
            }
            mine += 1;
            let known = self.partitions.with(shard, |locked| {
                if !locked.shard.parts.contains_key(&(dir, part)) {
                    return Ok(false);
                }
                listing.take(locked, dir, first_cookie(part), first_cookie(part + 1) - 1);
                Ok(true)
            })?;
            found += usize::from(known);
        }
        if mine > 0 && found == 0 { Err(Refusal::UnknownDirectory.into()) } else { Ok(()) }
    }

    /// Attributes of inodes that are in other shards of this server.
    fn fill_in(&self, entries: &mut [DirEntry]) {
        for entry in entries {
            if entry.attr.is_none() && self.is_mine(entry.ino.shard()) {
                let found: Result<Option<Box<Attr>>, Failure> =
                    self.partitions.with(entry.ino.shard(), |locked| Ok(listed(locked, entry.ino)));
                entry.attr = found.ok().flatten();
            }
        }
    }
}

/// The lowest cookie of a part.
fn first_cookie(part: u16) -> u64 {
    u64::from(part) << (63 - PARTS.trailing_zeros())
}

/// What a listing shows of an inode: nothing of a split directory, of which only the whole is worth showing, and
/// nothing of a file without a size.
fn listed(locked: &LockedShard<'_>, ino: Ino) -> Option<Box<Attr>> {
    let inode = locked.shard.inodes.get(ino)?;
    locked.shard.has_a_size(ino, &inode).ok()?;
    let attr = inode.attr(ino);
    (!attr.split).then(|| Box::new(attr))
}

impl Listing {
    /// Takes a directory's entries with cookies from `low` to `high` from one shard, as far as there is room.
    fn take(&mut self, locked: &LockedShard<'_>, dir: Ino, low: u64, high: u64) {
        let first = self.after.saturating_add(1).max(low);
        for entry in locked.shard.entries.of(dir, first).take_while(|entry| entry.cookie <= high) {
            let enough = self.entries.len() >= self.limit || self.bytes >= MAX_BYTES;
            if enough && self.after != entry.cookie {
                self.full = true;
                return;
            }
            self.push(locked, entry);
        }
    }

    fn push(&mut self, locked: &LockedShard<'_>, entry: Entry<'_>) {
        let named = entry.named;
        let here = self.attrs && named.ino.shard() == locked.id;
        let attr = if here { listed(locked, named.ino) } else { None };
        // An upper bound of the encoding; attributes may still be filled in later.
        let layout = attr
            .as_ref()
            .and_then(|a| a.layout.as_deref())
            .map_or(0, |l: &FileLayout| 24 + 16 * l.ranges.len());
        let in_blocks = attr.as_ref().is_some_and(|a| !matches!(a.store, Store::Inline));
        self.bytes +=
            entry.name.len() + 32 + if self.attrs { 128 + layout + usize::from(in_blocks) } else { 0 };
        self.after = entry.cookie;
        self.entries.push(DirEntry {
            name: entry.name.to_vec(),
            ino: named.ino,
            kind: named.kind,
            cookie: entry.cookie,
            attr,
        });
    }
}
