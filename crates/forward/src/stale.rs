//! What the backend remembers, and is not so any more.
//!
//! Clients of network file systems remember names for a while (GlusterFS for a second, NFS for up to a minute), and say ESTALE when
//! they use one that others have removed meanwhile. A program that uses the backend itself sees none of that, though what it names is
//! there again: it gives the kernel the whole path, which the kernel walks once more without believing anything. I/O nodes look up
//! single names in directories that they have found before, so they have to see to it themselves: when the answer is ESTALE, the kernel
//! gets the whole path by which they have found what the request names. After that, either all of it is as it was, and the request is
//! done again, or the client is told ESTALE, and walks its path once more, too.

use crate::io_node::IoNode;
use crate::names;
use bivouac_layout::Ino;
use bivouac_proto::meta::{At, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply};

/// Carries out a request about names, attributes, opens or locks. What it reads goes into `buffer`.
pub(crate) fn carry_out(
    node: &IoNode,
    request: &MetaRequest<'_>,
    payload: &[u8],
    buffer: &mut Vec<u8>,
) -> Result<Reply, Failure> {
    let outcome = names::carry_out(node, request, payload, buffer);
    if !matches!(outcome, Err(Failure::Errno(Errno::STALE))) {
        return outcome;
    }
    let unchanged = match named(request) {
        Named::Entries(entries) => {
            // All, so that the next walk finds the new ones.
            let found: Vec<bool> =
                entries.iter().map(|at| node.tree.look_again_at(at.dir, at.name)).collect();
            found.iter().all(|unchanged| *unchanged)
        }
        Named::Number(ino) => node.tree.look_again(ino),
        Named::Nothing => false,
    };
    if unchanged {
        buffer.clear();
        names::carry_out(node, request, payload, buffer)
    } else {
        outcome
    }
}

/// What a request names.
enum Named<'r> {
    /// Entries of directories.
    Entries(Vec<At<'r>>),
    /// Something that was found before.
    Number(Ino),
    /// Nothing, or what is open.
    Nothing,
}

fn named<'r>(request: &MetaRequest<'r>) -> Named<'r> {
    use MetaRequest as R;
    match *request {
        R::Lookup { at }
        | R::Open { at, .. }
        | R::Mkdir { at, .. }
        | R::MakeNode { at, .. }
        | R::Link { at, .. }
        | R::Unlink { at }
        | R::Rmdir { at } => Named::Entries(vec![at]),
        R::Rename { from, to, .. } => Named::Entries(vec![from, to]),
        R::GetAttr { ino }
        | R::SetAttr { ino, .. }
        | R::OpenInode { ino, .. }
        | R::MakeTemporary { dir: ino, .. }
        | R::ReadDir { dir: ino, .. }
        | R::Parent { ino }
        | R::ReadLink { ino }
        | R::Truncate { ino, .. }
        | R::GetXattr { ino, .. }
        | R::ListXattr { ino }
        | R::SetXattr { ino, .. }
        | R::RemoveXattr { ino, .. } => Named::Number(ino),
        _ => Named::Nothing,
    }
}
