//! What an operation is about, and what it leaves behind.

use bivouac_layout::Ino;
use bivouac_proto::OpenId;
use bivouac_proto::attr::Attr;

/// What an operation is about: an inode by its number, or what a path names. Made from an inode's number, or from where a path
/// starts, the path, and whether a symbolic link at its end is followed.
///
/// Who names an inode by its number has walked the path himself, and checked what a path's walk would have: a kernel, for a
/// mount. Servers check the permissions of this process in either case.
#[derive(Clone, Copy, Debug)]
pub enum Target<'p> {
    /// The inode of this number.
    Inode(Ino),
    /// What a path names.
    Path {
        /// The directory that the path starts from. Leading slashes mean nothing.
        start: Ino,
        /// The path. Without any names in it, it is `start` itself.
        path: &'p [u8],
        /// Whether a symbolic link at its end is followed.
        follow: bool,
    },
}

impl From<Ino> for Target<'_> {
    fn from(ino: Ino) -> Self {
        Target::Inode(ino)
    }
}

impl<'p, P: AsRef<[u8]> + ?Sized> From<(Ino, &'p P, bool)> for Target<'p> {
    fn from((start, path, follow): (Ino, &'p P, bool)) -> Self {
        Target::Path { start, path: path.as_ref(), follow }
    }
}

/// An inode that an operation has made or changed. Its attributes as they are now: `Client::attr_after`.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The inode.
    pub ino: Ino,
    /// Its attributes as its server has them, if the answer came from there. (Of a file that is being written to, others
    /// know more.)
    pub attr: Option<Box<Attr>>,
    /// The only description that writes to the file, if the server knows it.
    pub(crate) writer: Option<OpenId>,
}
