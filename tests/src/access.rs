//! The ways in which programs see a deployment.

use std::path::PathBuf;

/// Whether tests can mount here: as root, where there is a `/dev/fuse`.
pub fn can_mount() -> bool {
    let possible = rustix::process::geteuid().is_root() && PathBuf::from("/dev/fuse").exists();
    if !possible {
        eprintln!("not tested: mounting needs root and /dev/fuse");
    }
    possible
}

/// Values for `--access` that can be tested here.
pub fn accesses() -> &'static [&'static str] {
    if can_mount() { &["preload", "fuse", "both"] } else { &["preload"] }
}

/// A program that `make setup` installs with cargo, or that stands in `BIVOUAC_TEST_TOOLS`.
pub fn tool(name: &str) -> PathBuf {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    let tools = std::env::var_os("BIVOUAC_TEST_TOOLS").map_or_else(|| target.join("tools"), PathBuf::from);
    let path = tools.join("bin").join(name);
    assert!(path.exists(), "{name} is not at {}: `make setup` installs it", path.display());
    path
}
