//! How a request ends.
//!
//! A reply's [`Status`] is 0, an errno (what the program gets), or a refusal (what the client core has to
//! change before it tries again; the program never sees one). A refusal's body is a [`Refusal`] with the
//! details.

use bivouac_layout::{Ino, News};
use serde::{Deserialize, Serialize};

/// A Linux error number, as the program will see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Errno(pub u16);

macro_rules! errnos {
    ($($name:ident = $value:literal),* $(,)?) => {
        #[allow(missing_docs)] // the names are POSIX's
        impl Errno {
            $(pub const $name: Errno = Errno($value);)*

            /// Its symbolic name, if it is one that Bivouac gives out.
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $($value => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

errnos! {
    PERM = 1, NOENT = 2, INTR = 4, IO = 5, NXIO = 6, TOOBIG = 7, BADF = 9, AGAIN = 11, NOMEM = 12, ACCESS = 13, BUSY = 16,
    EXIST = 17, XDEV = 18, NODEV = 19, NOTDIR = 20, ISDIR = 21, INVAL = 22, NFILE = 23, MFILE = 24, FBIG = 27,
    NOSPC = 28, SPIPE = 29, ROFS = 30, MLINK = 31, RANGE = 34, DEADLK = 35, NAMETOOLONG = 36, NOLCK = 37,
    NOSYS = 38, NOTEMPTY = 39, LOOP = 40, NODATA = 61, PROTO = 71, OVERFLOW = 75, OPNOTSUPP = 95,
    ADDRINUSE = 98, ADDRNOTAVAIL = 99, TIMEDOUT = 110, STALE = 116, DQUOT = 122,
}

impl Errno {
    /// Whether storage that answers so cannot be relied on: it is broken, gone, or takes no changes. (That it is full, or
    /// refuses a single request, is no failure.)
    pub fn is_of_broken_storage(self) -> bool {
        /// EUCLEAN, ENOTCONN, ESHUTDOWN, EREMOTEIO: what a damaged, or a remote, file system says.
        const OTHERS: [u16; 4] = [117, 107, 108, 121];
        matches!(
            self,
            Errno::IO | Errno::ROFS | Errno::NXIO | Errno::NODEV | Errno::STALE | Errno::PERM | Errno::ACCESS
        ) || OTHERS.contains(&self.0)
    }
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => write!(f, "E{name}"),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(i32::from(self.0)).fmt(f)
    }
}

impl std::error::Error for Errno {}

/// The header's status field: 0, an errno, or [`Status::REFUSED`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u16);

impl Status {
    /// The body is a [`crate::Reply`].
    pub const OK: Status = Status(0);
    /// The body is a [`Refusal`].
    pub const REFUSED: Status = Status(0x8000);

    /// The errno, when it is one.
    pub fn errno(self) -> Option<Errno> {
        (self.0 > 0 && self.0 < 4096).then_some(Errno(self.0))
    }
}

impl From<Errno> for Status {
    fn from(errno: Errno) -> Status {
        Status(errno.0)
    }
}

/// Why the server did not do what was asked. It has changed nothing; the client adapts and asks again.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub enum Refusal {
    /// What the request is about is not as the sender's map says any more: what has changed since then.
    StaleMap(News),
    /// The sender's map is newer than the server's, which is getting the newer one; or the server has just been
    /// started and is not ready yet. Try again shortly.
    OldServer,
    /// Directories were renamed, or lost search permission, since the namespace version that the request
    /// carries: forget cached paths through them and walk again.
    StaleNamespace {
        /// The server's namespace version now.
        version: u64,
        /// The directories; `None`: too many, or the server does not know which. Then forget all cached
        /// paths.
        moved: Option<Vec<Ino>>,
    },
    /// The server does not know the directory, because it was removed. Drop the cached path and walk again.
    UnknownDirectory,
    /// The directory is split: send the request to the shard of the name's part.
    DirectorySplit,
    /// The sender is wrong about where the file's data is: it is no longer inline data (or not yet in
    /// blocks).
    NotInline,
    /// What this needs is locked by something else (an intent, a split): try again shortly.
    Busy,
    /// Blocks have left this server since the version of the file's layout by which the sender goes: ask the file's inode
    /// for the newer one.
    StaleLayout,
    /// The file is [lazy](crate::lazy): have its contents fetched first ([`crate::meta::MetaRequest::Fetch`]).
    Unfetched {
        /// Which.
        ino: Ino,
    },
}

/// How a served request ends: what handlers return.
#[derive(Clone, PartialEq, Debug)]
pub enum Failure {
    /// The program gets this.
    Errno(Errno),
    /// The client redoes it.
    Refused(Refusal),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Errno(errno)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_done_or_an_errno_or_a_refusal() {
        for n in 0..=u16::MAX {
            let status = Status(n);
            let kinds = [status == Status::OK, status.errno().is_some(), status == Status::REFUSED];
            assert!(kinds.iter().filter(|kind| **kind).count() <= 1, "{n}");
        }
        assert_eq!(Status::from(Errno::NOENT).errno(), Some(Errno::NOENT));
        assert_eq!(Status(4095).errno(), Some(Errno(4095)));
        assert_eq!(Status(4096).errno(), None);
    }

    #[test]
    fn errnos_are_the_kernels() {
        for (errno, text) in
            [(Errno::NOENT, "No such file"), (Errno::DQUOT, "quota"), (Errno::STALE, "Stale")]
        {
            assert!(errno.to_string().contains(text), "{errno}");
        }
        assert_eq!(format!("{:?} {:?}", Errno::NOSPC, Errno(3000)), "ENOSPC errno 3000");
    }
}
