//! Which group the kernel is told that a file belongs to.
//!
//! Without root, a mount lies in a user namespace in which one user and one group have numbers. What belongs to anybody else, the
//! kernel shows as nobody's, and lets nobody write to: not even the user's own files, where they belong to another one of the user's
//! groups, as in the directory of a project. So the mount says of these that they belong to the group that the namespace has. That
//! gives no permission to anybody: only this user is in the namespace, and servers and I/O nodes check the user's real groups.

use bivouac_client::Client;

/// See the module.
pub(crate) struct Groups {
    own: u32,
    /// Those that are shown as the user's own.
    others: Vec<u32>,
}

impl Groups {
    /// `alone`: the mount lies in a user namespace that has one group.
    pub(crate) fn new(client: &Client, alone: bool) -> Groups {
        Groups { own: client.user().1, others: if alone { client.groups().to_vec() } else { Vec::new() } }
    }

    /// What the kernel is told instead of a group.
    pub(crate) fn shown(&self, group: u32) -> u32 {
        if self.others.contains(&group) { self.own } else { group }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_user_s_other_groups_are_shown_as_the_user_s_own() {
        let groups = Groups { own: 100, others: vec![60, 100, 2000] };
        assert_eq!([60, 100, 2000, 0, 61].map(|group| groups.shown(group)), [100, 100, 100, 0, 61]);
    }
}
