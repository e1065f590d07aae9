//! Finding out whether storage works: a small file is written, synced, read again and removed.
//!
//! A server whose storage has failed once asks this before it says that it fails as a whole, and before it trusts it
//! again. The file lies among the sub-files' directories, where it is on the same disk, and below the same mount, as they
//! are.

use crate::disk::Disk;
use crate::error::DataError;
use crate::store::DataStore;
use rustix::fs::{self, Advice, AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// Its name in the tree of sub-files, where no sub-file can have it.
pub(crate) const PROBE: &str = "probe";

const CONTENT: [u8; 512] = [0xb5; 512];

impl DataStore {
    /// Whether every storage directory takes changes and shows them again. A full one counts as one that works: what it
    /// has can be read and removed. It takes as long as syncing a file, and is to be called by one thread at a time.
    pub fn probe(&self) -> Result<(), DataError> {
        self.disks().iter().try_for_each(|disk| match try_out(disk) {
            Err(Errno::NOSPC | Errno::DQUOT) => Ok(()),
            tried => Ok(tried?),
        })
    }
}

fn try_out(disk: &Disk) -> Result<(), Errno> {
    remove(disk)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = fs::openat(&disk.sub, PROBE, flags, Mode::RUSR | Mode::WUSR)?;
    let tried = || {
        let mut found = [0; CONTENT.len()];
        let count = rustix::io::pwrite(&file, &CONTENT, 0)?;
        fs::fsync(&file)?;
        let _ = fs::fadvise(&file, 0, None, Advice::DontNeed);
        rustix::io::pread(&file, &mut found, 0)?;
        if found.starts_with(&CONTENT[..count]) { Ok(()) } else { Err(Errno::IO) }
    };
    let tried = tried();
    remove(disk).and(tried)
}

/// Removes the file; none is fine. (A server that was killed may have left one.)
pub(crate) fn remove(disk: &Disk) -> Result<(), Errno> {
    match fs::unlinkat(&disk.sub, PROBE, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::ServerId;

    #[test]
    fn storage_that_works_is_found_to_work_and_nothing_is_left_of_it() {
        let base = tempfile::tempdir().expect("a directory");
        let store = DataStore::open(&[base.path().to_owned()], 7, ServerId(1)).expect("opens");
        let probe = base.path().join("sub").join(PROBE);
        // Left by a server that was killed.
        std::fs::write(&probe, "x").expect("written");
        assert_eq!(store.probe(), Ok(()));
        assert!(!probe.exists());
        std::fs::create_dir(&probe).expect("made");
        assert!(store.probe().is_err(), "something else is in the way");
        std::fs::remove_dir(&probe).expect("removed");
        std::fs::write(&probe, "x").expect("written");
        store.destroy().expect("removed");
        assert!(!base.path().join("sub").exists());
    }
}
