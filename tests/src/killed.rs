//! A server that a test has killed, and that its agent starts again.

use crate::site::Site;
use bivouac_testing::eventually;
use rustix::process::Signal;
use std::time::Duration;

/// A server's process and the map's epoch, before it was killed.
pub struct Killed {
    id: usize,
    pid: i32,
    epoch: u64,
}

impl Killed {
    /// Kills a server's process.
    pub fn server(site: &Site, name: &str, id: usize) -> Self {
        let status = site.status(name);
        let pid = status["servers"][id]["pid"].as_i64().expect("a process") as i32;
        Site::kill(pid, Signal::KILL);
        Self { id, pid, epoch: status["epoch"].as_u64().expect("a map") }
    }

    /// Waits until the server is up with another process, and answers; how long that took.
    pub fn is_back(&self, site: &Site, name: &str) -> Duration {
        eventually("the server is back", || {
            let status = site.status(name);
            let now = &status["servers"][self.id];
            // It has begun to join since then, and has been taken in. (Until the death is noticed, the map has it as it was.)
            let joined = status["epoch"].as_u64().is_some_and(|epoch| epoch >= self.epoch + 2);
            let serves = now["capacity"].is_u64() && now["pid"].as_i64() != Some(self.pid.into());
            joined && serves && now["state"] == "up" && now["behind"] == 0
        })
    }
}
