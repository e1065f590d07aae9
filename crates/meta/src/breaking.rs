//! Logs that the storage fails to take records of, or to sync.
//!
//! Nothing is changed in memory by a record that was not written, so such a log is whole, but no use any more: its shards
//! cannot be changed here. Where they have copies, this server says that it cannot be relied on in any shard of that log,
//! and others take its place ([`Partitions::gives_up`]). It does not try to catch up before it has written the log anew
//! from memory, which also shows that the storage works again ([`Partitions::mend`]). That makes good what a failed sync
//! may have dropped.
//!
//! Storage that fails most often fails for all logs. So a probe follows the first failure, and if that fails, too, all
//! logs count as broken: programs wait once, and not once for each log.

use crate::outside::Outside;
use crate::partition::{PARTITIONS, Partitions};
use bivouac_layout::{Group, ServerId, ShardId};
use std::io::Write;
use std::path::Path;

/// The probe's name, in the logs' directory.
const PROBE: &str = "probe";

impl Partitions {
    /// The log of a shard is broken. Whether others can take this server's place in the shard: they are about to.
    pub(crate) fn gives_up(&self, id: ShardId) -> bool {
        let Some(outside) = self.outside.as_deref() else { return false };
        let map = outside.map();
        if map.holders(Group::Shard(id)).all().len() < 2 || map.copies == 1 && map.primary(id) == outside.me()
        {
            // Nobody can take its place.
            return false;
        }
        let number = usize::from(id.0) % PARTITIONS;
        let (was_broken, path) = {
            let mut guard = self.lock(number);
            (std::mem::replace(&mut guard.broken, true), guard.journal.log.path().to_owned())
        };
        outside.distrust(Group::Shard(id), outside.me());
        if !was_broken {
            let all = path.parent().is_some_and(|directory| !takes_files(directory));
            let broken = if all { 0..PARTITIONS } else { number..number + 1 };
            tracing::error!(path = %path.display(), all, "the storage does not take what is to be logged");
            broken.for_each(|number| self.distrust(outside, number));
        }
        outside.map().serving(Group::Shard(id)).any(|holder| holder != outside.me())
    }

    /// Nothing that this server has of the shards of a log can be relied on.
    fn distrust(&self, outside: &dyn Outside, number: usize) {
        let shards: Vec<u16> = {
            let mut guard = self.lock(number);
            guard.broken = true;
            guard.shards.keys().copied().collect()
        };
        let (map, me) = (outside.map(), outside.me());
        let in_step = |group: &Group| map.holders(*group).in_step().any(|holder: ServerId| holder == me);
        let groups = shards.into_iter().map(|shard| Group::Shard(ShardId(shard))).filter(in_step);
        groups.for_each(|group| outside.distrust(group, me));
    }

    /// Writes broken logs anew. Says whether none is left.
    pub(crate) fn mend(&self) -> bool {
        (0..PARTITIONS).all(|number| self.mend_one(number))
    }

    fn mend_one(&self, number: usize) -> bool {
        let revision = {
            let mut guard = self.lock(number);
            if !guard.broken {
                return true;
            }
            if let Err(error) = guard.journal.log.renew_mark() {
                tracing::debug!(%error, number, "the log stays broken");
                return false;
            }
            guard.journal.log.written().revision()
        };
        self.compact(number);
        let mut guard = self.lock(number);
        let is_new = guard.journal.log.written().revision() != revision;
        guard.broken = !is_new;
        if is_new {
            tracing::info!(number, "the log was written anew");
        }
        is_new
    }
}

/// Whether a file can be made in a directory, written, synced and removed.
fn takes_files(directory: &Path) -> bool {
    let path = directory.join(PROBE);
    let tried = || {
        let mut file = std::fs::File::create(&path)?;
        file.write_all(&[0xb5; 512])?;
        file.sync_all()?;
        std::fs::remove_file(&path)
    };
    tried().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_gone_takes_no_files() {
        let base = tempfile::tempdir().expect("a directory");
        assert!(takes_files(base.path()) && takes_files(base.path()));
        assert_eq!(std::fs::read_dir(base.path()).expect("a list").count(), 0);
        assert!(!takes_files(&base.path().join("gone")));
    }
}
