//! The one hash behind every placement: XXH3, 64 bits, seeded by what it is used for.
//!
//! It is stable: a deployment's data is found by it, so a different result after an upgrade would lose files.
//! `tests::values_never_change` pins it.

use crate::ids::Ino;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What a hash is used for; distinct uses must not correlate.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    Entry = 1,
    DirectoryShard = 2,
    PartShard = 3,
    FirstServer = 4,
    Copies = 5,
    IoNode = 6,
    Job = 7,
}

/// Hash of a number.
pub(crate) fn number(what: Use, n: u64) -> u64 {
    xxh3_64_with_seed(&n.to_le_bytes(), what as u64)
}

/// Hash of a name within a directory.
pub(crate) fn name(what: Use, dir: Ino, name: &[u8]) -> u64 {
    // The directory goes in as the seed: equal names in different directories must not meet on one server.
    xxh3_64_with_seed(name, number(what, dir.0))
}

/// The number of a job that a program says it belongs to, by the job's name. Programs that say nothing are of job 0.
pub fn job_number(name: &str) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), Use::Job as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_never_change() {
        assert_eq!(number(Use::FirstServer, 1), 0xa8da_a04c_73c3_2675);
        assert_eq!(name(Use::Entry, Ino::ROOT, b"a"), 0x9c8f_fcaf_4bec_9f7e);
    }
}
