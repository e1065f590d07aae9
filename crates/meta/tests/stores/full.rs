//! A storage that is full: a small memory file system, where the test may mount one (as root; elsewhere it
//! says so).

use crate::common::Cluster;
use crate::common::client::Client;
use bivouac_layout::ServerId;
use bivouac_proto::Errno;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system, unmounted in the end.
struct Mounted(PathBuf);

impl Mounted {
    fn new(path: &Path, size: &str) -> Option<Mounted> {
        std::fs::create_dir_all(path).unwrap();
        let options = format!("size={size}");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(path).output().ok()?;
        mount.status.success().then(|| Mounted(path.into()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_storage_refuses_new_files_lets_old_ones_go_and_then_takes_new_ones() {
    let cluster = Cluster::new(1);
    let id = ServerId(0);
    cluster.kill(id);
    let Some(_mounted) = Mounted::new(&cluster.dir(id), "8m") else {
        bivouac_testing::skip("a file system cannot be mounted");
        return;
    };
    cluster.start(id);
    cluster.store(id).unwrap().adopt(cluster.inner.map().shards_of(id)).unwrap();
    let client = Client::new(&cluster);
    let mut made = 0;
    let refused = loop {
        let name = made.to_string();
        match client.create(&name, true).and_then(|(attr, open)| client.release(attr.ino, open, None)) {
            Ok(()) => {}
            Err(errno) => break errno,
        }
        // Inline data that does not fit leaves its file empty, and is an error.
        if client.put(&name, &[7; 4096]).is_err() {
            made += 1;
            break Errno::NOSPC;
        }
        made += 1;
        assert!(made < 1900, "it never gets full");
    };
    assert_eq!(refused, Errno::NOSPC);
    assert!(made > 100, "{made}");
    // Everything else fills up, too, to the last byte.
    let _ = std::fs::write(cluster.dir(id).join("filler"), vec![1; 8 << 20]);
    let before = client.names("").unwrap();
    cluster.restart(id);
    assert_eq!(client.names("").unwrap(), before);
    for name in &before {
        client.unlink(name).unwrap();
    }
    assert!(client.names("").unwrap().is_empty());
    for round in 0..300 {
        client.put(&format!("again{round}"), b"fits").unwrap();
    }
    cluster.restart(id);
    assert_eq!(client.names("").unwrap().len(), 300);
    cluster.kill(id);
}
