//! The ways in which programs see a deployment.

use bivouac_testing::{can_mount, skip_part};
use std::path::PathBuf;

/// Values for `--access` that can be tested here.
pub fn accesses() -> &'static [&'static str] {
    if can_mount() {
        return &["preload", "fuse", "both"];
    }
    skip_part(
        "only the preload library is tested: mounting needs root, /dev/fuse and the permission to mount",
    );
    &["preload"]
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
