//! Few descriptors. A process of its own: its descriptor limit is lowered.

mod common;

use bivouac_data::DataStore;
use bivouac_layout::{Ino, ServerId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn more_files_than_descriptors_can_be_written_and_read() {
    let place = tempfile::tempdir().unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum }).unwrap();
    // Allowed to keep more open than the process may have: the limit is met, and the store gives way.
    let store = DataStore::open_with(&[place.path().to_owned()], 1, ServerId(1), 100_000).unwrap();
    for n in 0u64..1000 {
        assert_eq!(store.write(Ino(n), n, &n.to_le_bytes(), false).map(|wrote| wrote.count), Ok(8));
    }
    for n in 0u64..1000 {
        let mut got = [0; 8];
        assert_eq!(store.read(Ino(n), n, &mut got), Ok(8));
        assert_eq!(u64::from_le_bytes(got), n);
    }
    store.destroy().unwrap();
}
