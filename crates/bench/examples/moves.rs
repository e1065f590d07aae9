//! How many bytes have to move when servers come or leave: counted block by block from two layouts, without any server. The
//! formula beside what `bench-malleability` measures.
//!
//! Usage: `moves BLOCK COPIES BEFORE AFTER metadata|direct SIZExCOUNT...`; BEFORE and AFTER are numbers of servers, each on a
//! node of its own, of which those with the lowest numbers stay. Prints JSON: the bytes that move, how many of them each
//! server gives and takes, and how many bytes (with their copies) there are.

use bivouac_layout::{
    FileLayout, Founding, Growth, Ino, Map, MapChange, Node, NodeId, Rule, Server, ServerId, ServerState,
    ShardId, restripe,
};
use std::collections::BTreeMap;
use std::error::Error;

fn node(number: u16) -> Node {
    Node { id: NodeId(number), host: format!("n{number}"), agent: ([127, 0, 0, 1], 1).into(), domain: number }
}

fn server(number: u16) -> Server {
    Server {
        id: ServerId(number),
        node: NodeId(number),
        address: ([127, 0, 0, 1], number + 2).into(),
        state: ServerState::Up,
        joined: 0,
        former: Vec::new(),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [block, copies, before, after, rule, files @ ..] = &words[..] else {
        return Err("usage: moves BLOCK COPIES BEFORE AFTER metadata|direct SIZExCOUNT...".into());
    };
    let (block, copies): (u32, u8) = (block.parse()?, copies.parse()?);
    let (before, after): (u16, u16) = (before.parse()?, after.parse()?);
    let rule = match rule.as_str() {
        "metadata" => Rule::Metadata,
        "direct" => Rule::Direct,
        other => return Err(format!("{other:?} is no rule").into()),
    };
    let (nodes, servers) = ((0..before).map(node).collect(), (0..before).map(server).collect());
    let founding = Founding {
        block_size: block,
        replicas: copies,
        metadata_replicas: copies,
        ..Founding::new(1, "/bivouac", nodes, servers)
    };
    let old = founding.map()?;
    let new = changed(&old, before, after).ok_or("such a change is not possible")?;
    let (mut given, mut taken, mut stored) = (BTreeMap::new(), BTreeMap::new(), 0);
    let mut number = 0;
    for kind in files {
        let (size, count) = kind.split_once('x').ok_or("SIZExCOUNT")?;
        let (size, count): (u64, u64) = (size.parse()?, count.parse()?);
        stored += size * count * u64::from(copies);
        for _ in 0..count {
            number += 1;
            let ino = Ino::new(ShardId((number % 4096) as u16), number);
            let was =
                FileLayout { replicas: copies, ..FileLayout::spread(ino, block, old.newest_generation()) };
            let is = was.restriped(&new, ino, rule, &(0..u64::MAX));
            for me in new.servers.iter().map(|server| server.id) {
                for moved in restripe::moves(&new, (&was, &is), 0..size, me) {
                    *given.entry(moved.from.server.0).or_insert(0) += moved.from.len;
                    *taken.entry(me.0).or_insert(0) += moved.from.len;
                }
            }
        }
    }
    let moved: u64 = taken.values().sum();
    println!("{}", serde_json::json!({ "moved": moved, "given": given, "taken": taken, "stored": stored }));
    Ok(())
}

/// The map when servers have come, or are to leave.
fn changed(map: &Map, before: u16, after: u16) -> Option<Map> {
    if after < before {
        return MapChange::Depart { servers: (after..before).map(ServerId).collect() }.apply(map);
    }
    let growth =
        Growth { nodes: (before..after).map(node).collect(), servers: (before..after).map(server).collect() };
    let added = MapChange::Add(growth).apply(map)?;
    let states = (before..after).flat_map(|number| {
        [ServerState::Joining, ServerState::Up]
            .map(|state| MapChange::State { server: ServerId(number), state })
    });
    states.into_iter().try_fold(added, |map, change| change.apply(&map))
}
