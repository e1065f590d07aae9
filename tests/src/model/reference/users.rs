//! Who owns what, and what others may do with it.
use super::*;

impl Reference {
    /// Whether a client that goes elsewhere can return to the directory that programs work in.
    pub(super) fn may_come_back(&self, client: usize) -> bool {
        let (user, group) = self.users[client];
        let top = self.tree.node(TOP);
        let bits = match top.owner {
            (owner, _) if owner == user => top.mode >> 6,
            (_, owner) if owner == group => top.mode >> 3,
            _ => top.mode,
        };
        user == 0 || bits & EXECUTE != 0
    }

    pub(super) fn chown(&mut self, node: u64, uid: u32, gid: u32) -> Outcome {
        self.alive(node)?;
        let ((user, group), owner) = (self.tree.caller, self.tree.node(node).owner);
        let given = |id: u32, old: u32| if id == u32::MAX { old } else { id };
        let own = user == owner.0;
        let user_ok = uid == u32::MAX || own && uid == owner.0;
        let group_ok = gid == u32::MAX || own && (gid == group || gid == owner.1);
        if user != 0 && !(user_ok && group_ok) {
            return Err(libc::EPERM);
        }
        let now = (given(uid, owner.0), given(gid, owner.1));
        let drops_group = self.tree.drops_group_bit(node);
        let inode = self.tree.node_mut(node);
        (inode.owner, inode.rights_changed) = (now, true);
        if !matches!(inode.kind, Kind::Directory(..)) {
            inode.mode &= !(libc::S_ISUID | if drops_group { libc::S_ISGID } else { 0 });
        }
        done()
    }

    pub(super) fn chmod(&mut self, node: u64, mode: u32) -> Outcome {
        // Only who is in a file's group may give it that group's rights.
        let foreign = !self.tree.is_of_group(node);
        self.next += 1;
        let (now, inode) = (self.next, self.tree.node_mut(node));
        inode.mode = if foreign { mode & !libc::S_ISGID } else { mode };
        inode.rights_changed = true;
        if inode.mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
            inode.set_id = now;
        }
        done()
    }

    /// Whether this is a write by a descriptor that is older than the set-id bits of its file: then they may
    /// stay.
    pub(super) fn may_leave_set_id_bits(&self, client: usize, call: &Call) -> bool {
        let slot = match call {
            Call::Write { slot, .. } | Call::Pwrite { slot, .. } | Call::MapWrite { slot, .. } => *slot,
            Call::Copy { to, .. } => *to,
            _ => return false,
        };
        let description = self.description(client, slot);
        let node = self.tree.node(description.node);
        let set = node.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        self.users[client].0 != 0 && set && description.number < node.set_id
    }

    /// Whether this is a change by a descriptor of what has another owner or mode than it had: the kernel of
    /// another mount may not have heard of that yet.
    pub(super) fn depends_on_an_old_look(&self, client: usize, call: &Call) -> bool {
        let slot = match call {
            Call::Chmod { target: Target::Slot(slot), .. }
            | Call::Chown { target: Target::Slot(slot), .. }
            | Call::Times { target: Target::Slot(slot), .. }
            | Call::SetXattr { target: Target::Slot(slot), .. }
            | Call::RemoveXattr { target: Target::Slot(slot), .. }
            | Call::TimesEmpty { slot, .. } => *slot,
            _ => return false,
        };
        self.users[client].0 != 0 && self.tree.node(self.description(client, slot).node).rights_changed
    }

    /// Extended attributes of users are for what has contents; in a sticky directory's case for its owner.
    pub(super) fn may_set_xattr(&self, node: u64) -> Result<(), i32> {
        let sticky = self.tree.is_directory(node) && self.tree.node(node).mode & libc::S_ISVTX != 0;
        if self.is_link(node) || sticky && !self.tree.owns(node) {
            return Err(libc::EPERM);
        }
        self.tree.may(node, WRITE)
    }
}
