//! From inode numbers to paths: servers know the names in the directories that they have.

use super::{connect, up};
use crate::home::Record;
use bivouac_layout::{Ino, Map};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_proto::verify::{Finding, IN_MESSAGE, VerifyRequest};
use std::collections::{BTreeMap, BTreeSet};

/// Deepest directory that is looked for.
const DEPTH: usize = 4096;

/// The paths of those files among findings for which there are any; of several, one.
pub fn find(map: &Map, record: &Record, key: &Key, findings: &[Finding]) -> BTreeMap<Ino, String> {
    let files: BTreeSet<Ino> = findings.iter().filter_map(file_of).collect();
    let mut links: Vec<_> = up(map).filter_map(|server| connect(server.address, record, key).ok()).collect();
    let (mut names, mut wanted) = (BTreeMap::new(), files.clone());
    for _ in 0..DEPTH {
        let inos: Vec<Ino> = wanted.iter().copied().collect();
        let mut found = BTreeMap::new();
        for some in inos.chunks(IN_MESSAGE) {
            for link in &mut links {
                let request = VerifyRequest::Names { inos: some.to_vec() };
                if let Ok(Some(ControlReply::Names(list))) = link.request(ControlRequest::Verify(request)) {
                    found.extend(list.into_iter().map(|name| (name.ino, (name.dir, name.name))));
                }
            }
        }
        let is_new = |dir: &Ino| *dir != Ino::ROOT && !names.contains_key(dir) && !found.contains_key(dir);
        wanted = found.values().map(|(dir, _)| *dir).filter(is_new).collect();
        names.extend(found);
        if wanted.is_empty() {
            break;
        }
    }
    let path = |ino: &Ino| Some((*ino, path_of(&names, &map.mount, *ino)?));
    files.iter().filter_map(path).collect()
}

/// The file that something was found of.
pub fn file_of(finding: &Finding) -> Option<Ino> {
    match finding {
        Finding::SubFile { ino, .. } | Finding::Away { ino } => Some(*ino),
        Finding::Log { .. } | Finding::Shard { .. } => None,
    }
}

fn path_of(names: &BTreeMap<Ino, (Ino, Vec<u8>)>, mount: &str, ino: Ino) -> Option<String> {
    let (mut parts, mut at) = (Vec::new(), ino);
    while at != Ino::ROOT {
        let (dir, name) = names.get(&at)?;
        parts.push(String::from_utf8_lossy(name));
        at = *dir;
        if parts.len() > DEPTH {
            return None;
        }
    }
    parts.push(mount.into());
    parts.reverse();
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_from_the_mount_to_the_file() {
        let name = |dir, name: &[u8]| (Ino(dir), name.to_vec());
        let mut names =
            BTreeMap::from([(Ino(9), name(5, b"f")), (Ino(5), name(1, b"d")), (Ino(7), name(8, b"x"))]);
        assert_eq!(path_of(&names, "/bivouac", Ino(9)), Some("/bivouac/d/f".into()));
        assert_eq!(path_of(&names, "/bivouac", Ino(7)), None, "its directory is not known");
        // As it may be told while directories move.
        names.insert(Ino(5), name(9, b"loop"));
        assert_eq!(path_of(&names, "/bivouac", Ino(9)), None);
    }
}
