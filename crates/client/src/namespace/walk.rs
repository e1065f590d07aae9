//! From a path to a directory and a last name.
//!
//! Directories on the way are cached ([`crate::memory::paths`]). A request along a cached path says which moves of
//! directories this process has heard of; a server that has noted later ones refuses, what they concern is
//! forgotten, and the walk begins again (`memory::heard`). If a cached directory was removed, its server
//! says that it does not know the directory. A walk that was refused several times takes nothing from the
//! cache any more: then no server refuses it, however many directories move meanwhile. All other names,
//! including symbolic links, are looked up each time, unless a fact about them is still valid
//! (`requests::known`).

use super::Namespace;
use super::again::{Again, Failing, unknown_if_stale};
use crate::error::Fail;
use crate::memory::Reached;
use crate::memory::paths::Known;
use bivouac_layout::Ino;
use bivouac_proto::attr::{FileKind, NAME_MAX, PATH_MAX};
use bivouac_proto::{Errno, Refusal};
use std::borrow::Cow;

/// Symbolic links followed before ELOOP.
const MAX_LINKS: u32 = 40;

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
    namespace: &'c Namespace,
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
    fn new(
        namespace: &'c Namespace,
        start: Ino,
        path: &'p [u8],
        always_asks: bool,
    ) -> Result<Walk<'c, 'p>, Fail> {
        if path.len() > PATH_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        Ok(Walk {
            namespace,
            start,
            dir: start,
            rest: Cow::Borrowed(path),
            links: 0,
            reached: Reached { era: namespace.memory().era(), cached: false },
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
            let Some((root, inside)) = self.namespace.session().below(&path) else {
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
                self.namespace.check_passage(self.dir)?;
                self.entered = true;
            }
            match name {
                b"." => {}
                b".." if matches!(self.dir, Ino::ROOT | Ino::FORWARDED) => {
                    let mut path = parent_of(self.namespace.session().path_to(self.dir)).to_vec();
                    path.push(b'/');
                    path.extend_from_slice(&self.rest[after.unwrap_or(self.rest.len())..]);
                    return Err(Fail::Outside(path).into());
                }
                b".." => {
                    self.dir = self.namespace.parent(self.dir).map_err(unknown_if_stale)?.0;
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
        let namespace = self.namespace;
        if !self.fresh
            && let Some(known) = namespace.memory().paths().child(dir, name)
            // An EACCES has to come from a server: after it, no request follows that would find out that the
            // name leads elsewhere now.
            && namespace.may_enter(known.owner).is_ok()
        {
            return Ok(Step::Known(known.ino));
        }
        let era = namespace.memory().era();
        let (attr, target) = namespace.lookup(self.reached, dir, name)?;
        match attr.kind {
            FileKind::Symlink => Ok(Step::Link(target)),
            FileKind::Directory => {
                let owner =
                    (namespace.session().credentials().uid != 0).then_some((attr.mode, attr.uid, attr.gid));
                // Nobody tells who moves directories of the backend.
                if !dir.is_forwarded() {
                    namespace.memory().paths().learn(era, dir, name, Known { ino: attr.ino, owner });
                }
                namespace.may_enter(owner)?;
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

impl Namespace {
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
        let mut again = Again::new(always_asks);
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
                self.memory().paths().forget_directory(walk.dir);
            }
            again.after(failing, walk.dir, walk.dir == start)?;
        }
    }

    /// EACCES unless this process may pass through a directory. One that was removed lets everybody pass.
    fn check_passage(&self, dir: Ino) -> Result<(), Errno> {
        if self.session().credentials().uid == 0 {
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
            Some((mode, uid, gid)) if !self.session().allowed(mode, uid, gid, 1, true) => Err(Errno::ACCESS),
            _ => Ok(()),
        }
    }
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
