//! How an attempt along a path ends short, and whether the path is walked again then.

use crate::error::Fail;
use bivouac_layout::Ino;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};

/// After a path was walked so often because directories moved, nothing is taken from the cache any more.
/// (Then no server refuses.)
const STALE_WALKS: u32 = 8;

/// How often a name is looked up again because the inode that it led to was gone when asked for: the name was
/// replaced or removed in between. After so many times it counts as removed.
pub(crate) const MAX_GONE: u32 = 100;

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

/// If the request is about a directory itself, its server gives this answer when it does not know the
/// directory.
pub(super) fn unknown_if_stale(errno: Errno) -> Failing {
    if errno == Errno::STALE { Refusal::UnknownDirectory.into() } else { errno.into() }
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
    /// Before the first attempt. `always_asks`: nothing is taken from the cache.
    pub(crate) fn new(always_asks: bool) -> Again {
        Again { always_asks, ..Again::default() }
    }

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
