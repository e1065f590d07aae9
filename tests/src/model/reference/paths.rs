//! Descriptors that were opened with O_PATH: what they refuse, and what is lost although they are there.
use super::*;

impl Description {
    /// Opened with O_PATH.
    pub(super) fn path_only(&self) -> bool {
        self.flags & libc::O_PATH != 0
    }
}

impl Reference {
    /// What comes of a call by its descriptor alone, if that is one that can do little.
    pub(super) fn through_a_path(&self, client: usize, call: &Call) -> Option<Expected> {
        let refused = Some(Expected::Exactly(Answer::Failed(libc::EBADF)));
        match call {
            // libc looks at what it is first, which a mount may not know any more.
            Call::List { target: Target::Slot(slot) }
                if self.description(client, *slot).path_only()
                    && self.tree.node(self.description(client, *slot).node).links == 0 =>
            {
                Some(Expected::Anything)
            }
            Call::Read { slot, .. }
            | Call::Pread { slot, .. }
            | Call::Write { slot, .. }
            | Call::Pwrite { slot, .. }
            | Call::Seek { slot, .. }
            | Call::Append { slot, .. }
            | Call::Allocate { slot, .. }
            | Call::Sync { slot }
            | Call::Lock { slot, .. }
            | Call::TestLock { slot, .. }
            | Call::Chmod { target: Target::Slot(slot), .. }
            | Call::Chown { target: Target::Slot(slot), .. }
            | Call::List { target: Target::Slot(slot) }
            | Call::SetXattr { target: Target::Slot(slot), .. }
            | Call::GetXattr { target: Target::Slot(slot), .. }
            | Call::ListXattr { target: Target::Slot(slot) }
            | Call::RemoveXattr { target: Target::Slot(slot), .. }
                if self.description(client, *slot).path_only() =>
            {
                refused
            }
            // The size is looked at first.
            Call::Truncate { target: Target::Slot(slot), size: 0.. }
                if self.description(client, *slot).path_only() =>
            {
                refused
            }
            // Nothing is looked at if both are left.
            Call::Times { target: Target::Slot(slot), atime, mtime }
                if (*atime, *mtime) != (Stamp::Omit, Stamp::Omit)
                    && self.description(client, *slot).path_only() =>
            {
                refused
            }
            Call::Copy { from, to, len: 1.., .. }
                if self.description(client, *from).path_only()
                    || self.description(client, *to).path_only() =>
            {
                refused
            }
            _ => None,
        }
    }

    /// Nothing but O_PATH holds it, which is not enough everywhere.
    pub(super) fn lost(&self, node: u64) -> bool {
        let inode = self.tree.node(node);
        !self.rules.paths_keep && inode.links == 0 && inode.opens == 0
    }
}
