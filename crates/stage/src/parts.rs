//! Temporary names in the backend: `.bivouac-RUN-HASH.part`, beside the file that gets its final name when it
//! is complete.
//!
//! RUN is `DEPLOYMENT-NUMBER`, the number being one that each preload or flush makes up; HASH is the final
//! name's, so that all workers that fill one large file agree on it. What a run that was interrupted has left
//! is removed by the next one that comes through the directory. A deployment has one flush at a time, so that
//! all others of its own are over. It cannot know whether another deployment's flush is still at work there:
//! of that it leaves alone what was changed a short time ago.

use crate::tree::{file_name, parent};
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::xxh3_64;

const BEGIN: &str = ".bivouac-";
const END: &str = ".part";

/// Another deployment's file that was not written for so long belongs to nobody any more.
const ABANDONED: Duration = Duration::from_secs(60);

/// The temporary name of the file `path` in a run.
pub(crate) fn name(path: &[u8], run: &str) -> Vec<u8> {
    let name = format!("{BEGIN}{run}-{:016x}{END}", xxh3_64(file_name(path)));
    [parent(path), name.as_bytes()].concat()
}

/// Whether a name is a temporary one of any run.
pub(crate) fn is_part(name: &[u8]) -> bool {
    name.starts_with(BEGIN.as_bytes()) && name.ends_with(END.as_bytes())
}

/// Whether a file with a temporary name, last changed then (nanoseconds since 1970), was left by a run that
/// is over.
pub(crate) fn is_abandoned(name: &[u8], mtime: i64, run: &str) -> bool {
    let own = format!("{BEGIN}{run}-");
    let deployment = run.split_once('-').map_or(run, |(deployment, _)| deployment);
    let own_deployment = format!("{BEGIN}{deployment}-");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_nanos(mtime.max(0) as u64));
    let is_over = age > ABANDONED || name.starts_with(own_deployment.as_bytes());
    is_part(name) && !name.starts_with(own.as_bytes()) && is_over
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_other_runs_are_abandoned_and_those_of_other_deployments_when_they_are_old() {
        let part = name(b"/a/b", "d1-1");
        let part = file_name(&part);
        assert!(is_part(part) && !is_part(b"b") && !is_part(b".bivouac-note"));
        assert!(is_abandoned(part, 0, "d2-1"));
        assert!(!is_abandoned(part, 0, "d1-1"));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        assert!(!is_abandoned(part, now.as_nanos() as i64, "d2-1"));
        assert!(is_abandoned(part, now.as_nanos() as i64, "d1-2"), "a deployment has one flush at a time");
        assert_eq!(parent(&name(b"/a/b", "d1-1")), b"/a/");
    }
}
