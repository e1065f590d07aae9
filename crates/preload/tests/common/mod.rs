//! What the tests share that run real programs with the library. (Each test program uses some of it.)
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that cargo built beside this test.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join("libbivouac_preload.so");
    assert!(path.exists(), "{} is missing", path.display());
    path
}

/// Builds `tests/c/NAME.c`.
pub fn compiled(name: &str, into: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/c/{name}.c"));
    let program = into.join(name);
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-w", "-pthread", "-fexceptions", "-o"]).arg(&program).arg(source).arg("-ldl");
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Puts the library into a program, awake: for a deployment whose daemon does not exist, so that nothing ever
/// reaches a client.
pub fn awake(command: &mut Command) {
    command
        .env("LD_PRELOAD", library())
        .env("BIVOUAC_DEPLOYMENT", "no-such-deployment")
        .env("BIVOUAC_MOUNT", "/bivouac-test/mount")
        .env("BIVOUAC_KEY", "/nonexistent/key");
}
