//! The programs that work meanwhile, and check everything that they do.

use crate::Site;
use crate::load::{APPENDS, BLOCKS, Excuse, Load, NAMES, SYNCS};
use rustix::io::Errno;
use std::time::Duration;

/// Longest time that an operation may take, seconds.
const WORST: f64 = 30.0;

/// Errors are excused for so long after everything is whole again: an answer may be under way.
const LATE: Duration = Duration::from_millis(500);

/// All of them.
pub(super) struct Loads {
    names: Load,
    blocks: Load,
    appends: Load,
    /// Has every server sync its logs: also those for whose shards nobody else does.
    syncs: Load,
    /// On the node of server 0, which can be cut off; the others are on the machine itself, which cannot.
    far: Load,
}

/// While this lives, an error is no failure for some programs.
pub(super) struct Excuses {
    _each: Vec<Excuse>,
}

impl Drop for Excuses {
    fn drop(&mut self) {
        std::thread::sleep(LATE);
    }
}

impl Loads {
    /// Starts them; `node` is that of server 0.
    pub(super) fn start(site: &Site, name: &str, node: &str) -> Loads {
        Loads {
            names: Load::start(site, name, NAMES, "names"),
            blocks: Load::start(site, name, BLOCKS, "blocks"),
            appends: Load::start(site, name, APPENDS, "appends"),
            syncs: Load::start(site, name, SYNCS, "syncs"),
            far: Load::start_on(node, site, name, NAMES, "far"),
        }
    }

    fn all(&mut self) -> [&mut Load; 5] {
        [&mut self.names, &mut self.blocks, &mut self.appends, &mut self.syncs, &mut self.far]
    }

    /// Panics if one has failed already.
    pub(super) fn assert_alive(&mut self) {
        self.all().into_iter().for_each(Load::assert_alive);
    }

    /// All may get this error for a while, and have to repeat what they did.
    pub(super) fn excuse(&self, error: Errno) -> Excuses {
        let all = [&self.names, &self.blocks, &self.appends, &self.syncs, &self.far];
        Excuses { _each: all.map(|load| load.excuse(error)).into() }
    }

    /// The same for the one on the node of server 0.
    pub(super) fn excuse_far(&self, error: Errno) -> Excuses {
        Excuses { _each: vec![self.far.excuse(error)] }
    }

    /// Ends the work: nothing may have failed, been lost or been wrong.
    pub(super) fn stop(&mut self) {
        for load in self.all() {
            let done = load.stop();
            assert!(done.operations > 100.0, "too little was done to prove anything");
            assert!(done.worst < WORST, "{}: an operation took {} s", load.home, done.worst);
        }
    }

    /// Looks at all blocks again.
    pub(super) fn look(&mut self, when: &str) {
        self.blocks.sees_the_same(when);
    }

    /// When nobody has to look any more.
    pub(super) fn end(self) {
        [self.names, self.blocks, self.appends, self.syncs, self.far].into_iter().for_each(Load::succeeds);
    }
}
