//! The entries of a shard's directories, in the order of listings, so that a listing is a contiguous range of
//! them.

use crate::runs::{Record, Runs};
use crate::shard::Named;
use bivouac_layout::{Ino, namespace};
use bivouac_proto::FileKind;

/// The kinds by their numbers in memory.
const KINDS: [FileKind; 7] = [
    FileKind::File,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::Fifo,
    FileKind::Socket,
    FileKind::CharDevice,
    FileKind::BlockDevice,
];

/// All entries of a shard. A record's key is directory and cookie; its bytes are the kind, the inode and the
/// name.
#[derive(Debug, Default)]
pub(crate) struct Entries(Runs);

/// An entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub dir: Ino,
    pub cookie: u64,
    pub name: &'a [u8],
    pub named: Named,
}

impl Entries {
    /// What `name` names in `dir`.
    pub(crate) fn find(&self, dir: Ino, name: &[u8]) -> Option<Named> {
        let cookie = namespace::cookie(dir, name);
        self.0
            .with((dir.0, cookie))
            .filter_map(open)
            .find(|(_, found)| *found == name)
            .map(|(named, _)| named)
    }

    /// Makes `name` name this, whatever it named before.
    pub(crate) fn put(&mut self, dir: Ino, name: &[u8], named: Named) {
        let key = (dir.0, namespace::cookie(dir, name));
        let mut bytes = [0; 12 + 256];
        let Some(bytes) = close(&mut bytes, named, name) else { return };
        self.0.put(key, |found| is(found, name), bytes);
    }

    /// Takes a name away.
    pub(crate) fn remove(&mut self, dir: Ino, name: &[u8]) {
        self.0.remove((dir.0, namespace::cookie(dir, name)), |found| is(found, name));
    }

    /// Takes away the entries of a directory whose cookies are `gone`.
    pub(crate) fn remove_if(&mut self, dir: Ino, gone: impl Fn(u64) -> bool) {
        self.0.remove_if(dir.0, gone);
    }

    /// A directory's entries from a cookie on.
    pub(crate) fn of(&self, dir: Ino, cookie: u64) -> impl Iterator<Item = Entry<'_>> {
        self.0.from((dir.0, cookie)).take_while(move |record| record.key.0 == dir.0).filter_map(entry)
    }

    /// All entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        self.0.from((0, 0)).filter_map(entry)
    }
}

fn entry(record: Record<'_>) -> Option<Entry<'_>> {
    let (named, name) = open(record.bytes)?;
    Some(Entry { dir: Ino(record.key.0), cookie: record.key.1, name, named })
}

fn is(found: &[u8], name: &[u8]) -> bool {
    found.ends_with(name) && open(found).is_some_and(|(_, found)| found == name)
}

/// Writes an entry's bytes. (`None`: longer than a name can be.)
fn close<'a>(room: &'a mut [u8], named: Named, name: &[u8]) -> Option<&'a [u8]> {
    let kind = KINDS.iter().position(|kind| *kind == named.kind)? as u8;
    // Numbers count up from 1 in each shard: with the shard last, they are short.
    let ino = named.ino.0.rotate_left(12).to_le_bytes();
    let len = ino.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let (head, rest) = room.split_first_mut()?;
    *head = kind << 4 | len as u8;
    rest.get_mut(..len)?.copy_from_slice(&ino[..len]);
    rest.get_mut(len..len + name.len())?.copy_from_slice(name);
    room.get(..1 + len + name.len())
}

/// Reads an entry's bytes.
fn open(bytes: &[u8]) -> Option<(Named, &[u8])> {
    let (head, rest) = bytes.split_first()?;
    let kind = *KINDS.get(usize::from(head >> 4))?;
    let (number, name) = rest.split_at_checked(usize::from(head & 15))?;
    let mut ino = [0; 8];
    ino.get_mut(..number.len())?.copy_from_slice(number);
    Some((Named { ino: Ino(u64::from_le_bytes(ino).rotate_right(12)), kind }, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::ShardId;

    #[test]
    fn an_entry_comes_back_as_it_was_put() {
        let mut entries = Entries::default();
        let dir = Ino::new(ShardId(4095), 77);
        let long = [b'n'; 255];
        for (index, kind) in KINDS.into_iter().enumerate() {
            for counter in [0, 1, 255, 256, (1 << 52) - 1] {
                let named = Named { ino: Ino::new(ShardId(index as u16 * 682), counter), kind };
                entries.put(dir, &long, named);
                entries.put(dir, b"\xff", named);
                assert_eq!(entries.find(dir, &long), Some(named));
                assert_eq!(entries.find(dir, b"\xff"), Some(named));
            }
        }
        assert_eq!(entries.iter().count(), 2);
        assert_eq!(entries.find(dir, b"n"), None);
        entries.remove(dir, &long);
        assert_eq!(entries.of(dir, 0).map(|e| e.name.to_vec()).collect::<Vec<_>>(), [b"\xff"]);
    }
}
