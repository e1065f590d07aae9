//! The ways in which programs see a deployment.

use bivouac_testing::{can_mount, skip_part};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// The same command, where an empty directory lies in the place of one: its node does not see that. Needs root.
pub fn hiding(directory: &Path, command: &Command) -> Command {
    let mut hidden = Command::new("unshare");
    hidden.args(["--mount", "sh", "-c", "mount -t tmpfs none \"$0\" && exec \"$@\""]).arg(directory);
    hidden.arg(command.get_program()).args(command.get_args());
    hidden.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    hidden.stdin(Stdio::null());
    hidden
}
