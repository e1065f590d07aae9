//! What one copy stores changes, or is gone, behind its server's back, and `bivouac verify` repairs it.
//!
//! Reads do not look at checksums. So it happens to files that no program reads before it is repaired.

use super::Scene;
use crate::Site;
use crate::kills::Random;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// So often `verify` is asked: it cannot compare everything while servers or files change.
const ATTEMPTS: u32 = 20;

/// Files of some blocks that stay as they are.
pub(super) struct Kept {
    /// By their paths: what the servers' sub-files of each are called.
    sub_files: Vec<(String, String)>,
    sums: String,
}

const SUMS: &str = "md5sum /bivouac/kept/*";

impl Kept {
    /// Makes them.
    pub(super) fn new(site: &Site, name: &str) -> Kept {
        let make = "mkdir /bivouac/kept && cd /bivouac/kept && \
                    for i in 1 2 3 4 5 6; do head -c $((i * 123457)) /dev/urandom > f$i; done; stat -c '%i %n' *";
        let made = site.sh(name, make).ok();
        let sub_file = |line: &str| {
            let (inode, path) = line.split_once(' ').expect("two words");
            let inode: u64 = inode.parse().expect("a number");
            (format!("/bivouac/kept/{path}"), format!("{inode:016x}"))
        };
        Kept { sub_files: made.lines().map(sub_file).collect(), sums: site.sh(name, SUMS).ok() }
    }

    /// Panics if one is not as it was.
    #[track_caller]
    pub(super) fn look(&self, site: &Site, name: &str) {
        assert_eq!(site.sh(name, SUMS).ok(), self.sums);
    }
}

/// One copy's part of a file.
struct Copy {
    path: String,
    server: usize,
    sub_file: PathBuf,
}

impl Scene<'_> {
    /// The sub-file of a kept file at a server, if it has blocks of it.
    fn sub_file(&self, server: usize, called: &str) -> Option<PathBuf> {
        let tree = self.dir.path().join(format!("bivouac-{}-{server}/sub", self.name));
        let directories = std::fs::read_dir(tree).expect("is there").flatten();
        let mut files = directories.map(|directory| directory.path().join(called));
        files.find(|file| file.exists())
    }

    fn a_copy(&self, random: &mut Random) -> Copy {
        loop {
            let (path, called) = random.of(&self.kept.sub_files).expect("there are some");
            let server = Scene::server(random);
            if let Some(sub_file) = self.sub_file(server, called) {
                return Copy { path: path.clone(), server, sub_file };
            }
        }
    }

    /// `verify` finds this, nothing else, and repairs it.
    fn is_repaired(&self, kind: &str, copy: &Copy) {
        let expected = serde_json::json!([kind, copy.path, copy.server, "repaired"]);
        for _ in 0..ATTEMPTS {
            let done = self.site.bivouac(["verify", &self.name, "--rate", "0", "--json"]);
            let told: Value =
                serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{} {}", done.out, done.err));
            let findings = told["findings"].as_array().expect("a list").iter();
            let findings: Vec<Value> = findings
                .map(|f| serde_json::json!([f["kind"], f["path"], f["server"], f["outcome"]]))
                .collect();
            let others: Vec<&Value> = findings.iter().filter(|finding| **finding != expected).collect();
            assert!(others.is_empty(), "there is damage that nobody has made: {told}");
            if findings.len() == 1 {
                self.settle();
                self.kept.look(&self.site, &self.name);
                return;
            }
            assert_eq!(told["complete"], false, "it was not found: {expected} {told}");
        }
        panic!("not found in {ATTEMPTS} attempts: {expected}");
    }

    pub(super) fn flip_a_byte(&self, random: &mut Random) -> String {
        let copy = self.a_copy(random);
        let at = flip(&copy.sub_file, random);
        self.is_repaired("bytes", &copy);
        format!("byte {at} of {}, server {}", copy.path, copy.server)
    }

    pub(super) fn remove_a_sub_file(&self, random: &mut Random) -> String {
        let copy = self.a_copy(random);
        std::fs::remove_file(&copy.sub_file).expect("removed");
        self.is_repaired("missing", &copy);
        format!("{}, server {}", copy.path, copy.server)
    }
}

/// Changes a bit of a byte that the server holds: elsewhere there are zeros. Where.
fn flip(path: &Path, random: &mut Random) -> u64 {
    let file = std::fs::File::options().read(true).write(true).open(path).expect("opens");
    let length = file.metadata().expect("is there").len();
    let mut byte = [0];
    loop {
        let at = random.below(length);
        file.read_exact_at(&mut byte, at).expect("reads");
        if byte != [0] {
            file.write_all_at(&[byte[0] ^ 1 << random.below(8)], at).expect("writes");
            return at;
        }
    }
}
