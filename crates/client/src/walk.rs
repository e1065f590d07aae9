//! From a path to a directory and a last name.
//!
//! Directories on the way are cached ([`crate::paths`]). A request along a cached path says which moves of
//! directories this process has heard of; a server that has noted later ones refuses, what they concern is
//! forgotten, and the walk begins again ([`crate::moves`]). If a cached directory was removed, its server
//! says that it does not know the directory. A walk that was refused several times takes nothing from the
//! cache any more: then no server refuses it, however many directories move meanwhile. All other names,
//! including symbolic links, are looked up each time, unless a fact about them is still valid
//! ([`crate::facts`]).

use crate::error::Fail;
use crate::moves::Reached;
use crate::paths::Known;
use crate::rpc::To;
use crate::session::Client;
use bivouac_layout::{Ino, namespace};
use bivouac_proto::attr::{Attr, FileKind, NAME_MAX, PATH_MAX};
use bivouac_proto::meta::{At, MetaReply, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};
use std::borrow::Cow;

/// Symbolic links followed before ELOOP.
const MAX_LINKS: u32 = 40;
/// After a path was walked so often because directories moved, nothing is taken from the cache any more.
/// (Then no server refuses.)
const STALE_WALKS: u32 = 8;
/// How often a name is looked up again because the inode that it led to was gone when asked for: the name was
/// replaced or removed in between. After so many times it counts as removed.
pub(crate) const MAX_GONE: u32 = 100;

/// Where a walk arrived.
#[derive(Debug)]
pub(crate) enum Last {
    /// At a directory itself: the path ended in nothing, `.` or `..`.
    Directory(Ino),
    /// Before the last name, which was not looked up.
    Name(Place),
}

impl Last {
    /// ENAMETOOLONG for a name that no entry can have.
    pub(crate) fn check_length(&self) -> Result<(), Errno> {
        match self {
            Last::Name(place) if place.name.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
            _ => Ok(()),
        }
    }
}

/// A name in a directory, and how it was reached.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) dir: Ino,
    pub(crate) name: Vec<u8>,
    /// A slash follows: it has to be a directory.
    pub(crate) slash: bool,
    /// How the directory was reached.
    pub(crate) reached: Reached,
}

/// A path that is being walked.
pub(crate) struct Walk<'c, 'p> {
    client: &'c Client,
    start: Ino,
    dir: Ino,
    rest: Cow<'p, [u8]>,
    links: u32,
    reached: Reached,
    /// Nothing is taken from the cache at all.
    always_asks: bool,
    /// No name is taken from the cache, because no request about an entry follows that would be refused if
    /// the cache is out of date.
    fresh: bool,
    /// The present directory is known to be one that this process may pass through. (Otherwise the server of
    /// its entries will say.)
    entered: bool,
}

impl<'c, 'p> Walk<'c, 'p> {
    /// Begins at `start`; leading slashes of `path` mean nothing. A path without names is `start` itself,
    /// whatever that is. `always_asks`: nothing is taken from the cache.
    fn new(client: &'c Client, start: Ino, path: &'p [u8], always_asks: bool) -> Result<Walk<'c, 'p>, Fail> {
        if path.len() > PATH_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        Ok(Walk {
            client,
            start,
            dir: start,
            rest: Cow::Borrowed(path),
            links: 0,
            reached: Reached { era: client.era(), cached: false },
            always_asks,
            fresh: always_asks || needs_no_request(path),
            entered: false,
        })
    }

    /// Where it began.
    pub(crate) fn start(&self) -> Ino {
        self.start
    }

    /// Goes on through the target of a symbolic link that lies in `dir`; `slash`: a directory is wanted.
    pub(crate) fn follow(&mut self, dir: Ino, target: &[u8], slash: bool) -> Result<(), Fail> {
        self.expand(dir, target, if slash { b"/" } else { b"" })
    }

    fn expand(&mut self, dir: Ino, target: &[u8], rest: &[u8]) -> Result<(), Fail> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        if target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let mut path = Vec::with_capacity(target.len() + 1 + rest.len());
        path.extend_from_slice(target);
        if !rest.is_empty() {
            path.push(b'/');
            path.extend_from_slice(rest);
        }
        self.fresh = self.always_asks || needs_no_request(&path);
        if target[0] == b'/' {
            let Some((root, inside)) = self.client.below(&path) else {
                return Err(Fail::Outside(path));
            };
            self.dir = root;
            self.rest = Cow::Owned(inside.to_vec());
            self.entered = false;
        } else {
            self.rest = Cow::Owned(path);
            // The link was looked up there.
            (self.dir, self.entered) = (dir, true);
        }
        Ok(())
    }

    /// Walks to the last name.
    fn last(&mut self) -> Result<Last, Failing> {
        loop {
            let begin = self.rest.iter().position(|&b| b != b'/').unwrap_or(self.rest.len());
            let end =
                self.rest[begin..].iter().position(|&b| b == b'/').map_or(self.rest.len(), |i| begin + i);
            let after = self.rest[end..].iter().position(|&b| b != b'/').map(|i| end + i);
            if begin == end {
                return Ok(Last::Directory(self.dir));
            }
            let name = &self.rest[begin..end];
            let asks_nothing = name == b".." || name == b"." && after.is_none() || name.len() > NAME_MAX;
            if asks_nothing && !self.entered {
                // No request follows in which it would show.
                self.client.check_passage(self.dir)?;
                self.entered = true;
            }
            match name {
                b"." => {}
                b".." if matches!(self.dir, Ino::ROOT | Ino::FORWARDED) => {
                    let mut path = parent_of(self.client.path_to(self.dir)).to_vec();
                    path.push(b'/');
                    path.extend_from_slice(&self.rest[after.unwrap_or(self.rest.len())..]);
                    return Err(Fail::Outside(path).into());
                }
                b".." => {
                    self.dir = self.client.parent(self.dir).map_err(unknown_if_stale)?.0;
                    self.entered = false;
                }
                _ if after.is_none() => {
                    return Ok(Last::Name(Place {
                        dir: self.dir,
                        name: name.to_vec(),
                        slash: end < self.rest.len(),
                        reached: self.reached,
                    }));
                }
                _ if name.len() > NAME_MAX => return Err(Errno::NAMETOOLONG.into()),
                _ => match self.step(self.dir, name)? {
                    Step::Directory(ino) => (self.dir, self.entered) = (ino, true),
                    Step::Known(ino) => {
                        (self.dir, self.entered) = (ino, true);
                        self.reached.cached = true;
                    }
                    Step::Link(target) => {
                        let rest = self.rest[after.unwrap_or(self.rest.len())..].to_vec();
                        self.expand(self.dir, &target, &rest)?;
                        continue;
                    }
                },
            }
            match (&mut self.rest, after) {
                (_, None) => return Ok(Last::Directory(self.dir)),
                (Cow::Borrowed(rest), Some(after)) => *rest = &rest[after..],
                (Cow::Owned(rest), Some(after)) => drop(rest.drain(..after)),
            }
        }
    }

    /// Looks up a name on the way.
    fn step(&self, dir: Ino, name: &[u8]) -> Result<Step, Failing> {
        let client = self.client;
        if !self.fresh
            && let Some(known) = client.paths().child(dir, name)
            // An EACCES has to come from a server: after it, no request follows that would find out that the
            // name leads elsewhere now.
            && client.may_enter(known.owner).is_ok()
        {
            return Ok(Step::Known(known.ino));
        }
        let era = client.era();
        let (attr, target) = client.lookup(self.reached, dir, name)?;
        match attr.kind {
            FileKind::Symlink => Ok(Step::Link(target)),
            FileKind::Directory => {
                let owner = (client.credentials().uid != 0).then_some((attr.mode, attr.uid, attr.gid));
                // Nobody tells who moves directories of the backend.
                if !dir.is_forwarded() {
                    client.paths().learn(era, dir, name, Known { ino: attr.ino, owner });
                }
                client.may_enter(owner)?;
                Ok(Step::Directory(attr.ino))
            }
            _ => Err(Errno::NOTDIR.into()),
        }
    }
}

enum Step {
    Directory(Ino),
    /// From the cache.
    Known(Ino),
    Link(Vec<u8>),
}

impl Client {
    /// Where an absolute path leads that lies below the mount point or the forwarded directory: the inode of that one, and the
    /// rest of the path.
    pub fn below<'p>(&self, path: &'p [u8]) -> Option<(Ino, &'p [u8])> {
        let inside = strip_mount(self.mount(), path).map(|inside| (Ino::ROOT, inside));
        inside.or_else(|| Some((Ino::FORWARDED, strip_mount(self.forwarded()?, path)?)))
    }

    /// The path of the directory that paths to an inode begin with.
    pub(crate) fn path_to(&self, ino: Ino) -> &[u8] {
        match self.forwarded() {
            Some(forwarded) if ino.is_forwarded() => forwarded,
            _ => self.mount(),
        }
    }

    /// Runs an operation on the last name of a path, again as often as directories move under the walk.
    /// `operation` gets the walk (to follow links with) and where it arrived.
    pub(crate) fn at_last<T>(
        &self,
        start: Ino,
        path: &[u8],
        mut operation: impl FnMut(&mut Walk<'_, '_>, Last) -> Result<T, Failing>,
    ) -> Result<T, Fail> {
        self.at_any_last(start, path, false, |walk, last| {
            last.check_length()?;
            operation(walk, last)
        })
    }

    /// The same for an operation that looks at the length of the name itself: it comes late in the order in
    /// which Linux finds errors. `always_asks`: nothing on the way is taken from the cache.
    pub(crate) fn at_any_last<T>(
        &self,
        start: Ino,
        path: &[u8],
        always_asks: bool,
        mut operation: impl FnMut(&mut Walk<'_, '_>, Last) -> Result<T, Failing>,
    ) -> Result<T, Fail> {
        let mut again = Again { always_asks, ..Again::default() };
        loop {
            let mut walk = Walk::new(self, start, path, again.always_asks)?;
            let failing = loop {
                match walk.last().and_then(|last| operation(&mut walk, last)) {
                    Ok(done) => return Ok(done),
                    Err(Failing::Follow) => {}
                    Err(failing) => break failing,
                }
            };
            if let Failing::Refused(Refusal::UnknownDirectory) = failing {
                self.paths().forget_directory(walk.dir);
            }
            again.after(failing, walk.dir, walk.dir == start)?;
        }
    }

    /// Sends a request about an entry to the shard of its name, wherever that is now.
    pub(crate) fn entry<'n>(
        &self,
        place: &'n Place,
        into: &mut [std::io::IoSliceMut<'_>],
        request: impl Fn(At<'n>) -> MetaRequest<'n>,
    ) -> Result<(MetaReply, usize), Failing> {
        let (dir, name) = (place.dir, &place.name[..]);
        for _ in 0..3 {
            let split = self.paths().is_split(dir);
            let to = To::entry(dir, split, name, place.reached);
            match self.meta(to, &request(At { dir, split, name }), &[], into) {
                Err(Failure::Refused(Refusal::DirectorySplit)) => self.paths().learn_split(dir),
                other => return other.map_err(Failing::from),
            }
        }
        Err(Errno::IO.into())
    }

    /// What a name leads to: attributes as the inode's server has them, and the target of a symbolic link.
    pub(crate) fn lookup(
        &self,
        reached: Reached,
        dir: Ino,
        name: &[u8],
    ) -> Result<(Box<Attr>, Vec<u8>), Failing> {
        let mut splits = 0;
        for _ in 0..MAX_GONE {
            let split = self.paths().is_split(dir);
            let shard = namespace::entry_shard(dir, split, name);
            match self.known_name(reached, dir, shard, name) {
                Some(None) => return Err(Errno::NOENT.into()),
                Some(Some((ino, kind))) => {
                    if let Some(known) = self.known_inode(ino) {
                        self.listing.used(dir);
                        return Ok(known);
                    }
                    self.look_ahead(dir, ino, false);
                    if let Some(known) = self.known_inode(ino) {
                        self.listing.missed(dir);
                        return Ok(known);
                    }
                    // The entry's server would only say where to ask. (If the inode is gone, the name is
                    // looked up again.)
                    if self.map().primary(ino.shard()) != self.map().primary(shard)
                        && let Ok(found) = self.inode(ino, kind)
                    {
                        self.listing.missed(dir);
                        return Ok(found);
                    }
                }
                None => {}
            }
            self.listing.missed(dir);
            let before = self.before(shard);
            let request = MetaRequest::Lookup { at: At { dir, split, name } };
            match self.meta(To::entry(dir, split, name, reached), &request, &[], &mut []) {
                Ok((MetaReply::Entry { attr, target }, _)) => {
                    self.learn_name(before, dir, name, Some((attr.ino, attr.kind)));
                    self.learn_inode(before, &attr, &target);
                    return Ok((attr, target));
                }
                Ok((MetaReply::Elsewhere { ino, kind }, _)) => {
                    match self.inode(ino, kind) {
                        // Its name leads to another inode now, or to none: ask the entry's server.
                        Err(Errno::NOENT) => continue,
                        found => {
                            self.learn_name(before, dir, name, Some((ino, kind)));
                            return Ok(found?);
                        }
                    }
                }
                Ok(_) => return Err(Errno::PROTO.into()),
                Err(Failure::Refused(Refusal::DirectorySplit)) if splits < 3 => {
                    splits += 1;
                    self.paths().learn_split(dir);
                }
                Err(Failure::Refused(Refusal::DirectorySplit)) => return Err(Errno::IO.into()),
                Err(Failure::Errno(Errno::NOENT)) => {
                    self.learn_name(before, dir, name, None);
                    self.was_absent(dir);
                    return Err(Errno::NOENT.into());
                }
                Err(other) => return Err(other.into()),
            }
        }
        Err(Errno::NOENT.into())
    }

    /// Attributes of an inode in another shard than its entry, and the target of a symbolic link.
    pub(crate) fn inode(&self, ino: Ino, kind: FileKind) -> Result<(Box<Attr>, Vec<u8>), Errno> {
        if kind != FileKind::Symlink {
            return Ok((self.attr_of(ino)?, Vec::new()));
        }
        if let Some(known) = self.known_inode(ino) {
            return Ok(known);
        }
        // A symbolic link's target never changes.
        let before = self.before(ino.shard());
        let (attr, target) = (self.attr_of(ino)?, self.link_target(ino)?);
        self.learn_inode(before, &attr, &target);
        Ok((attr, target))
    }

    /// The target of a symbolic link.
    pub fn link_target(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let mut target = vec![0; PATH_MAX + 1];
        let mut into = [std::io::IoSliceMut::new(&mut target)];
        let (_, len) = self.meta_with(ino, &MetaRequest::ReadLink { ino }, &[], &mut into)?;
        target.truncate(len);
        Ok(target)
    }

    /// Attributes as the inode's server has them.
    pub(crate) fn attr_of(&self, ino: Ino) -> Result<Box<Attr>, Errno> {
        if let Some((attr, _)) = self.known_inode(ino) {
            return Ok(attr);
        }
        let before = self.before(ino.shard());
        match self.meta_on(ino, &MetaRequest::GetAttr { ino })? {
            MetaReply::Attr(attr) => {
                if attr.kind != FileKind::Symlink {
                    self.learn_inode(before, &attr, b"");
                }
                Ok(attr)
            }
            _ => Err(Errno::PROTO),
        }
    }

    /// The directory above, and the name in it.
    pub(crate) fn parent(&self, ino: Ino) -> Result<(Ino, Vec<u8>), Errno> {
        if let Some(known) = self.known_parent(ino) {
            return Ok(known);
        }
        let before = self.before(ino.shard());
        match self.meta_on(ino, &MetaRequest::Parent { ino })? {
            MetaReply::Parent { parent, name } => {
                self.learn_parent(before, ino, parent, &name);
                Ok((parent, name))
            }
            _ => Err(Errno::PROTO),
        }
    }

    /// EACCES unless this process may pass through a directory. One that was removed lets everybody pass.
    fn check_passage(&self, dir: Ino) -> Result<(), Errno> {
        if self.credentials().uid == 0 {
            return Ok(());
        }
        match self.attr_of(dir) {
            Ok(attr) => self.may_enter(Some((attr.mode, attr.uid, attr.gid))),
            Err(Errno::NOENT | Errno::STALE) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Whether this process may pass through a directory.
    fn may_enter(&self, owner: Option<(u16, u32, u32)>) -> Result<(), Errno> {
        match owner {
            Some((mode, uid, gid)) if !self.allowed(mode, uid, gid, 1, true) => Err(Errno::ACCESS),
            _ => Ok(()),
        }
    }

    /// Whether permission bits grant `mask` (4 read, 2 write, 1 execute) to this process.
    pub(crate) fn allowed(&self, mode: u16, uid: u32, gid: u32, mask: u32, directory: bool) -> bool {
        let me = self.credentials();
        if me.uid == 0 {
            return mask & 1 == 0 || directory || mode & 0o111 != 0;
        }
        let shift = if me.uid == uid {
            6
        } else if me.gid == gid || me.groups.contains(&gid) {
            3
        } else {
            0
        };
        (u32::from(mode) >> shift) & mask == mask
    }
}

/// Decides whether a path is walked again after an attempt has failed, and how.
#[derive(Default)]
pub(crate) struct Again {
    /// Nothing is taken from the cache any more.
    pub(crate) always_asks: bool,
    stale: u32,
    gone: u32,
    /// The path led through something forwarded that was out of date.
    outdated: bool,
    /// The directory that was unknown last.
    unknown: Option<Ino>,
}

impl Again {
    /// After a failure at `dir`; the error, if it is final. `given`: the path was not what led there, it
    /// starts there.
    pub(crate) fn after(&mut self, failing: Failing, dir: Ino, given: bool) -> Result<(), Fail> {
        match failing {
            // The backend remembered what others have replaced there meanwhile. The I/O node has had it look again.
            Failing::Fail(Fail::Errno(Errno::STALE)) if !given && !self.outdated => {
                self.outdated = true;
            }
            Failing::Fail(fail) => return Err(fail),
            Failing::Refused(Refusal::UnknownDirectory) => {
                // Inode numbers are never reused, so the directory was removed. Its name may lead to another
                // one now.
                let found_again = self.always_asks && self.unknown == Some(dir);
                if given || found_again {
                    return Err(Errno::NOENT.into());
                }
                self.unknown = Some(dir);
                self.always_asks = true;
                self.gone += 1;
            }
            Failing::Refused(_) => {
                self.stale += 1;
                self.always_asks |= self.stale >= STALE_WALKS;
                if self.stale > 2 * STALE_WALKS {
                    return Err(Errno::IO.into());
                }
            }
            Failing::Gone | Failing::Follow => self.gone += 1,
        }
        if self.gone > MAX_GONE { Err(Errno::NOENT.into()) } else { Ok(()) }
    }
}

/// If the request is about a directory itself, its server gives this answer when it does not know the
/// directory.
fn unknown_if_stale(errno: Errno) -> Failing {
    if errno == Errno::STALE { Refusal::UnknownDirectory.into() } else { errno.into() }
}

/// How one attempt of an operation ends short.
pub(crate) enum Failing {
    /// For good.
    Fail(Fail),
    /// The walk was sent on through a link: go on.
    Follow,
    /// The server says what changed.
    Refused(Refusal),
    /// The inode that the name led to is gone: look where the name leads now.
    Gone,
}

/// An error about the inode that an entry led to. If the inode is gone, its name was replaced or removed
/// meanwhile.
pub(crate) fn led_to(errno: Errno) -> Failing {
    if errno == Errno::NOENT { Failing::Gone } else { errno.into() }
}

impl From<Failure> for Failing {
    fn from(failure: Failure) -> Failing {
        match failure {
            Failure::Errno(errno) => Failing::Fail(errno.into()),
            Failure::Refused(refusal) => Failing::Refused(refusal),
        }
    }
}

impl From<Refusal> for Failing {
    fn from(refusal: Refusal) -> Failing {
        Failing::Refused(refusal)
    }
}

impl From<Errno> for Failing {
    fn from(errno: Errno) -> Failing {
        Failing::Fail(errno.into())
    }
}

impl From<Fail> for Failing {
    fn from(fail: Fail) -> Failing {
        Failing::Fail(fail)
    }
}

/// What follows the mount point in an absolute path below it (or at it: empty).
pub fn strip_mount<'p>(mount: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let mut at = 0;
    for component in mount.split(|&b| b == b'/').filter(|c| !c.is_empty()) {
        while path.get(at) == Some(&b'/') {
            at += 1;
        }
        if !path[at..].starts_with(component) {
            return None;
        }
        at += component.len();
        if path.get(at).is_some_and(|&b| b != b'/') {
            return None;
        }
    }
    Some(&path[at..])
}

/// Whether a walk can end without a request about its last name: it ends in `.` or `..`, or a name is too
/// long.
fn needs_no_request(path: &[u8]) -> bool {
    let mut names = path.rsplit(|b| *b == b'/').filter(|name| !name.is_empty());
    names.next().is_some_and(|name| matches!(name, b"." | b".."))
        || path.len() > NAME_MAX && path.split(|b| *b == b'/').any(|name| name.len() > NAME_MAX)
}

fn parent_of(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
    &path[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_components_are_the_mount() {
        assert_eq!(strip_mount(b"/bivouac", b"/bivouac/a"), Some(&b"/a"[..]));
        assert_eq!(strip_mount(b"/bivouac", b"//bivouac"), Some(&b""[..]));
        assert_eq!(strip_mount(b"/bivouac", b"/bivouac2/a"), None);
        assert_eq!(strip_mount(b"/a/b", b"/a//b/c"), Some(&b"/c"[..]));
        assert_eq!(strip_mount(b"/a/b", b"/a"), None);
    }
}
