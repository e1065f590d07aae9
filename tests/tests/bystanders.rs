//! Programs that never touch the mount, with the library loaded.

use bivouac_tests::{Site, bivouac, finish};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Most stack that a call may take more than without the library, bytes. The smallest alternate stack for
/// signal handlers (`MINSIGSTKSZ`) leaves little more.
const MOST: i64 = 640;

fn built(site: &Site, name: &str) -> PathBuf {
    let program = site.path(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c"));
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-Wl,-z,now", "-o"]).arg(&program).arg(source);
    finish(compiler).ok();
    program
}

fn depths(said: &str) -> Vec<(&str, i64)> {
    said.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(call, depth)| (call, depth.parse().expect("a number")))
        .collect()
}

#[test]
fn calls_in_signal_handlers_need_little_stack() {
    let site = Site::new("stack-depth");
    let program = built(&site, "stack_depth");
    let run = |with_library: bool| {
        let dir = site.path(if with_library { "with" } else { "without" });
        std::fs::create_dir(&dir).expect("a directory");
        let mut command = Command::new(&program);
        command.arg(dir);
        if with_library {
            let library = bivouac().with_file_name("libbivouac_preload.so");
            command.env("LD_PRELOAD", library).env("BIVOUAC_DEPLOYMENT", "no-such-deployment");
            command.env("BIVOUAC_MOUNT", "/bivouac").env("BIVOUAC_KEY", "/nonexistent/key");
        }
        finish(command).ok()
    };
    let (without, with) = (run(false), run(true));
    let (without, with) = (depths(&without), depths(&with));
    assert!(with.len() > 30 && with.len() == without.len(), "{with:?}");
    let deep: Vec<_> = std::iter::zip(&with, &without).filter(|(a, b)| a.1 - b.1 > MOST).collect();
    assert!(deep.is_empty(), "{deep:?}");
}
