//! The rooms of the client know each other one way: what lies lower names nothing that lies above it.

use std::path::{Path, PathBuf};

/// From the lowest to the highest. What belongs to no room lies below all of them, or, as the rest of this crate, above.
const ROOMS: [&str; 6] = ["below", "memory", "session", "requests", "namespace", "data"];

/// Which modules lie below all rooms.
const BELOW: [&str; 3] = ["error", "host", "spare"];

fn height(module: &str) -> usize {
    let room = if BELOW.contains(&module) { "below" } else { module };
    ROOMS.iter().position(|known| *known == room).unwrap_or(ROOMS.len())
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn no_room_names_one_above_it() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&sources, &mut all);
    let mut looked_at = 0;
    for file in all {
        let inside = file.strip_prefix(&sources).expect("a source").with_extension("");
        let module = inside.iter().next().and_then(|name| name.to_str()).expect("a module").to_owned();
        let text = std::fs::read_to_string(&file).expect("a source file");
        // A comment may say who uses what is there.
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let text = code.join("\n");
        for (at, _) in text.match_indices("crate::") {
            let named: String = text[at + "crate::".len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_' || *c == '{')
                .collect();
            assert!(
                height(&named) <= height(&module),
                "{} names {named}, which lies above {module}",
                file.display()
            );
            looked_at += 1;
        }
    }
    assert!(looked_at > 100, "the sources are not where they were");
}
