//! Which files have blocks that no server has that is up: what is lost if those that are down do not come back.

use super::{Found, metadata_away, paths, run};
use crate::error::Error;
use crate::home::Record;
use crate::text::plural;
use bivouac_layout::{Ino, Map, SHARDS};
use bivouac_proto::auth::Key;
use bivouac_proto::verify::{Finding, Stage, VerifyRequest};
use std::collections::BTreeSet;

/// So many files are named; `bivouac verify` names more.
const NAMED: usize = 20;

/// Names the files for the user, on standard error.
pub fn tell(map: &Map, record: &Record, key: &Key) -> Result<(), Error> {
    let start = VerifyRequest::Start { stage: Stage::Away, dry_run: true, rate: 0 };
    let found = run(map, record, key, &start)?;
    let paths = paths::find(map, record, key, &found.findings);
    lines(map, &found, |ino| paths.get(&ino).cloned(), &record.name)
        .iter()
        .for_each(|line| eprintln!("{line}"));
    Ok(())
}

fn lines(map: &Map, found: &Found, path: impl Fn(Ino) -> Option<String>, name: &str) -> Vec<String> {
    let away = found.findings.iter().filter_map(|finding| match finding {
        Finding::Away { ino } => Some(*ino),
        _ => None,
    });
    let files: BTreeSet<Ino> = away.collect();
    let count = files.len() + found.more as usize;
    let mut lines = Vec::new();
    if count > 0 {
        let have = if count == 1 { "has" } else { "have" };
        lines.push(format!(
            "bivouac: {} {have} blocks, or their newest changes, on no other server:",
            plural(count, "file")
        ));
        let mut named: Vec<String> =
            files.iter().map(|ino| path(*ino).unwrap_or_else(|| format!("inode {}", ino.0))).collect();
        named.sort_unstable();
        lines.extend(named.into_iter().take(NAMED).map(|file| format!("  {file}")));
        if count > NAMED {
            lines.push(format!("  and {} more: `bivouac verify --dry-run {name}` names them", count - NAMED));
        }
    }
    if !found.silent.is_empty() {
        let silent: Vec<String> = found.silent.iter().map(ToString::to_string).collect();
        lines.push(format!("bivouac: server {} did not answer: there may be more", silent.join(", ")));
    }
    let pieces = metadata_away(map);
    if pieces > 0 {
        lines.push(format!(
            "bivouac: {pieces} of {SHARDS} pieces of the metadata are on no other server: names and files in these cannot be listed"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_path_and_not_too_many() {
        let map = map();
        let found = |count: u64, more| Found {
            findings: (1..=count).map(|n| Finding::Away { ino: Ino(n) }).collect(),
            more,
            ..Found::default()
        };
        let path = |ino: Ino| (ino.0 != 2).then(|| format!("/bivouac/f{}", ino.0));
        assert!(lines(&map, &found(0, 0), path, "job").is_empty());
        let few = lines(&map, &found(2, 0), path, "job");
        assert_eq!(few[1..], ["  /bivouac/f1", "  inode 2"]);
        let many = lines(&map, &found(30, 5), path, "job");
        assert_eq!(many.len(), NAMED + 2);
        assert!(many[0].contains("35 files have") && many[NAMED + 1].contains("15 more"), "{many:?}");
    }

    fn map() -> Map {
        let address = ([127, 0, 0, 1], 1).into();
        let node = bivouac_layout::NodeId(0);
        let nodes = vec![bivouac_layout::map::Node { id: node, host: "a".into(), agent: address, domain: 0 }];
        let servers = vec![bivouac_layout::Server {
            id: bivouac_layout::ServerId(0),
            node,
            address,
            state: bivouac_layout::ServerState::Up,
            joined: 0,
            former: Vec::new(),
        }];
        bivouac_layout::Founding::new(7, "/bivouac", nodes, servers).map().expect("a map")
    }
}
