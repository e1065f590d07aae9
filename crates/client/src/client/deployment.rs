//! What a client says of its process and its deployment.

use super::Client;
use crate::session::MapRef;
use bivouac_layout::{Ino, NodeId};
use bivouac_node::OpenTable;

impl Client {
    /// The node's table of open descriptions.
    pub fn table(&self) -> &OpenTable {
        self.session().table()
    }

    /// Directory of what this node's processes share.
    pub fn node_dir(&self) -> &[u8] {
        self.session().node_dir()
    }

    /// Where programs see the file system.
    pub fn mount(&self) -> &[u8] {
        self.session().mount()
    }

    /// The directory of the site's storage that is forwarded, if one is.
    pub fn forwarded(&self) -> Option<&[u8]> {
        self.session().forwarded()
    }

    /// How often the process had been forked, counted from where this client began: another number in each child.
    pub fn forks(&self) -> u64 {
        self.session().forks()
    }

    /// A child process begins (also noticed without this call, where the kernel is 4.14 or newer).
    pub fn after_fork(&self) {
        self.session().after_fork()
    }

    /// Another process takes over, with memory, but no descriptors, of the one before it: as after a fork.
    ///
    /// # Safety
    /// Nobody else uses this client now, and nobody will but the caller, until it is passed on in the same
    /// way.
    pub unsafe fn begin_again(&self) {
        // SAFETY: as the caller says.
        unsafe { self.session().begin_again() }
    }

    /// Whether it acts for who this process is now.
    pub fn acts_for_this_user(&self) -> bool {
        self.session().acts_for_this_user()
    }

    /// The node that this process runs on.
    pub fn node(&self) -> NodeId {
        self.session().node()
    }

    /// Where an absolute path leads that lies below the mount point or the forwarded directory: the inode of that one, and the
    /// rest of the path.
    pub fn below<'p>(&self, path: &'p [u8]) -> Option<(Ino, &'p [u8])> {
        self.session().below(path)
    }

    /// Sends all servers what was kept for them, because the process ends or executes another program.
    pub fn tell_closes(&self) {
        self.requests().tell_closes()
    }

    /// The inode that paths below the mount start from.
    pub fn root(&self) -> Ino {
        Ino::ROOT
    }

    /// User and group that the servers check this process's requests for.
    pub fn user(&self) -> (u32, u32) {
        let credentials = self.session().credentials();
        (credentials.uid, credentials.gid)
    }

    /// The further groups of this process.
    pub fn groups(&self) -> &[u32] {
        &self.session().credentials().groups
    }

    /// The newest map known: servers, nodes, and the deployment's defaults for new files.
    pub fn deployment_map(&self) -> MapRef<'_> {
        self.session().map()
    }
}
