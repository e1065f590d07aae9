//! What a mount shows: the deployment, or the directory of the site's storage that the deployment forwards.
//!
//! Both are trees of inodes that the client core serves by their numbers, and a number says which tree it belongs to. So a mount
//! serves either in the same way. What differs is the number of the root: the kernel calls the root of every mount 1, which only
//! the deployment's root is called by the client core, too. Numbers are translated where they come from the kernel and where they
//! go to it, and nowhere else.

use crate::abi;
use bivouac_layout::Ino;

/// A tree of inodes that can be mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tree {
    /// What lies in the deployment itself.
    Deployment,
    /// The directory of the site's storage that the deployment forwards through I/O nodes.
    Forwarded,
}

impl Tree {
    /// The inode of its root, as the client core and programs know it.
    pub fn root(self) -> Ino {
        match self {
            Tree::Deployment => Ino::ROOT,
            Tree::Forwarded => Ino::FORWARDED,
        }
    }

    /// The inode that the kernel means.
    pub(crate) fn inode(self, node: u64) -> Ino {
        if node == abi::ROOT { self.root() } else { Ino(node) }
    }

    /// What the kernel calls an inode.
    pub(crate) fn node(self, ino: Ino) -> u64 {
        if ino == self.root() { abi::ROOT } else { ino.0 }
    }

    /// Whether files of it can be this node's own, for the kernel to read and write them itself: what the backend has goes through
    /// I/O nodes.
    pub(crate) fn is_local(self) -> bool {
        self == Tree::Deployment
    }

    /// Whether its files can have access control lists, which the kernel has to look at for whoever asks.
    pub(crate) fn has_access_lists(self) -> bool {
        self == Tree::Forwarded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_root_is_the_tree_s_own_and_other_numbers_stay() {
        for tree in [Tree::Deployment, Tree::Forwarded] {
            assert_eq!((tree.inode(1), tree.node(tree.root())), (tree.root(), 1));
            for other in [Ino::forwarded(1), Ino::forwarded(u64::MAX >> 1), Ino(2)] {
                assert_eq!(tree.inode(tree.node(other)), other);
                assert_eq!(tree.node(other), other.0);
            }
        }
    }
}
