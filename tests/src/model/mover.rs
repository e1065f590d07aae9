//! A client that has nothing to do with the others, and moves directories to and fro all the time: what
//! others find must not depend on that.

use std::process::{Child, Command, Stdio};

/// Moves a directory, and ends with its parent. About a thousand times a second: others are to get on, too.
const SCRIPT: &str = "import os, sys, time
parent, above = os.getppid(), sys.argv[1] + '/moving'
os.makedirs(above + '/a/in')
while os.getppid() == parent:
    os.rename(above + '/a', above + '/b')
    os.rename(above + '/b', above + '/a')
    time.sleep(0.001)";

/// Such a client, until it is dropped.
pub struct Mover(Child);

impl Mover {
    /// Begins to move. `command` runs programs where the file system is at `mount`.
    pub fn start(mut command: Command, mount: &str) -> Mover {
        command.args(["python3", "-c", SCRIPT, mount]).stdin(Stdio::null());
        Mover(command.spawn().expect("it starts"))
    }

    /// Panics unless it still moves: what it did would be no test then.
    pub fn is_at_it(&mut self) {
        let ended = self.0.try_wait().expect("asked");
        assert!(ended.is_none(), "who moves directories has ended: {ended:?}");
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
