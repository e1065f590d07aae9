//! Fuzz targets: functions of bytes that panic if something is wrong. Run as tests (`tests.rs`), and by
//! `cargo fuzz` (in `fuzz/`).

use crate::auth::{Challenge, Hello, Proof, Welcome};
use crate::header::{HEADER_LEN, MAX_BODY, MAX_PAYLOAD};
use crate::{Header, Refusal, Reply, Request, decode, encode};
use bivouac_layout::map::NO_SERVER;
use bivouac_layout::{FileLayout, Ino, NodeId, SHARDS, ShardId};

/// Decodes a body as one type; what it gives must come back from its own encoding.
macro_rules! round_trip {
    ($body:expr, $($type:ty),*) => {
        $(if let Ok(value) = decode::<$type>($body) {
            let mut bytes = Vec::new();
            encode(&value, &mut bytes);
            assert_eq!(decode::<$type>(&bytes).as_ref(), Ok(&value));
        })*
    };
}

/// Whatever a peer sends as a message, decoding it neither panics nor runs out of memory, and what was
/// understood survives another trip.
pub fn messages(bytes: &[u8]) {
    let Some((head, body)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return;
    };
    if let Ok(header) = Header::from_bytes(head) {
        assert!(header.body_len <= MAX_BODY && header.payload_len <= MAX_PAYLOAD);
        assert_eq!(Header::from_bytes(&header.to_bytes()), Ok(header));
    }
    // Whatever the header says: every type of body gets its chance.
    round_trip!(body, Request, Reply, Refusal, Hello, Challenge, Proof, Welcome);
}

/// Whatever map comes from a peer or a file: it is refused, or everything that is asked of it has an answer.
pub fn map(bytes: &[u8]) {
    let Ok(map) = decode::<bivouac_layout::Map>(bytes) else {
        return;
    };
    // Also before it was checked.
    for shard in [0, SHARDS - 1, SHARDS, u16::MAX] {
        let _ = map.server(map.primary(ShardId(shard)));
    }
    if map.check().is_err() {
        return;
    }
    for shard in (0..SHARDS).map(ShardId) {
        assert!(map.server(map.primary(shard)).is_some(), "a shard's server is listed");
    }
    for file in [Ino::FORWARDED, Ino::forwarded(7)] {
        let server = map.io_node(NodeId(u16::MAX), file);
        assert!(server == NO_SERVER || map.server(server).is_some(), "an I/O node is listed");
    }
    assert!(map.generation(map.newest_generation()).is_some());
    let defaults = map.defaults();
    for ino in [Ino::ROOT, Ino(7), Ino(u64::MAX)] {
        let node = map.nodes.first().map_or(NodeId(0), |node| node.id);
        layout(&map, &defaults.placed(&map, node, ino).layout(ino, &map));
        layout(&map, &FileLayout::spread(ino, map.block_size, map.newest_generation()));
    }
}

/// The blocks of a file are where the map has servers.
fn layout(map: &bivouac_layout::Map, layout: &FileLayout) {
    assert!(layout.is_valid(map), "{layout:?}");
    // What had its only copy on a server that was replaced is held by nobody.
    // Older generations name servers that have left, too.
    let is_known = |server: bivouac_layout::ServerId| {
        map.server(server).is_some() || server.0 < map.numbers || map.copies > 1 && server == NO_SERVER
    };
    for offset in [0, 1, u64::from(map.block_size), 1 << 40, i64::MAX as u64] {
        let server = layout.server_at(map, offset);
        assert!(server.is_some_and(is_known), "{layout:?}: {offset}");
        for piece in layout.pieces(map, offset..offset.saturating_add(3 << 20)).take(8) {
            assert!(piece.len > 0 && is_known(piece.server));
        }
    }
    assert!(!layout.servers(map, 1 << 30).is_empty());
}
