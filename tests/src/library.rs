//! The C library, and programs that are linked with it.

use crate::site::{bivouac, finish};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory with the header and the library, beside the release build.
pub fn library() -> PathBuf {
    let target = bivouac().parent().and_then(Path::parent).expect("TARGET/release/bivouac");
    let library = target.join("library");
    assert!(
        library.join("lib/libbivouac.so.1").exists(),
        "there is no C library beside the program: make build, or make portable"
    );
    library
}

/// Compiles a program that uses the library as its users do, by pkg-config. `compiler` may have options behind it.
pub fn linked(compiler: &str, source: &Path, program: &Path) {
    let library = library();
    let script = format!(
        "{compiler} -g -Wall -Wextra -Werror -D_GNU_SOURCE {source} -o {program} $(pkg-config --cflags --libs bivouac) -pthread \
         -Wl,-rpath,{lib}",
        source = source.display(),
        program = program.display(),
        lib = library.join("lib").display()
    );
    let mut shell = Command::new("sh");
    shell.args(["-ec", &script]).env("PKG_CONFIG_PATH", library.join("lib/pkgconfig"));
    finish(shell).ok();
}

/// The snippets of a page of the documentation that are marked with a language, in their order.
pub fn snippets(page: &str, language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let text = std::fs::read_to_string(&path).expect("a page");
    let begin = format!("```{language}\n");
    text.split(&begin)
        .skip(1)
        .filter_map(|rest| Some(rest.split_once("\n```")?.0.to_owned() + "\n"))
        .collect()
}
