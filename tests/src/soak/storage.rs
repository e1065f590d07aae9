//! The storage of one server fails for some seconds.

use super::Scene;
use crate::eventually;
use crate::failing::{Fault, On};
use crate::kills::Random;
use rustix::io::Errno;

/// What gives EIO, and the directories of the storage where it does.
const BROKEN: [(&str, On, &[&str]); 6] = [
    ("writing blocks", On::WRITE, &["sub/", "crc/"]),
    ("reading blocks", On::READ, &["sub/"]),
    ("syncing blocks", On::SYNC, &["sub/"]),
    ("writing logs", On::WRITE, &["meta/"]),
    ("syncing logs", On::SYNC, &["meta/"]),
    ("everything", On::READ.and(On::WRITE).and(On::SYNC), &[""]),
];

impl Scene<'_> {
    /// Operations on a server's storage get an error for a while.
    fn fail(
        &self,
        server: usize,
        (what, directories): (&str, &[&str]),
        on: On,
        error: Errno,
        random: &mut Random,
    ) {
        // This is how a server's directory ends, in the storage that was given for all.
        let path = |directory: &&str| format!("-{server}/{directory}");
        self.dir.fail(Fault { paths: directories.iter().map(path).collect(), on, error });
        eventually(&format!("{what}: server {server} meets the fault"), || self.dir.hits() > 0);
        std::thread::sleep(Scene::a_while(random));
        self.dir.heal();
    }

    pub(super) fn fail_storage(&self, random: &mut Random) -> String {
        let server = Scene::server(random);
        let (what, on, directories) = BROKEN[random.below(BROKEN.len() as u64) as usize];
        self.fail(server, (what, directories), on, Errno::IO, random);
        self.settle();
        format!("{what}, server {server}, {} times", self.dir.hits())
    }

    /// Who writes there gets ENOSPC, and has to remove something.
    pub(super) fn fill_storage(&self, random: &mut Random) -> String {
        let server = Scene::server(random);
        let _excuse = self.loads.excuse(Errno::NOSPC);
        self.fail(server, ("full", &[""]), On::FILL, Errno::NOSPC, random);
        self.settle();
        format!("server {server}, {} times", self.dir.hits())
    }

    pub(super) fn storage_takes_no_changes(&self, random: &mut Random) -> String {
        let server = Scene::server(random);
        self.fail(server, ("read-only", &[""]), On::WRITE.and(On::OPEN_TO_WRITE), Errno::ROFS, random);
        self.settle();
        format!("server {server}, {} times", self.dir.hits())
    }
}
