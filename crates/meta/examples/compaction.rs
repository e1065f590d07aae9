//! How long requests wait while the log of a large partition is compacted: small files are made, all in one
//! partition, and the longest requests are shown.
//!
//! `cargo run --release -p bivouac-meta --example compaction [FILES] [DIRECTORY]`

#[path = "../tests/alone/mod.rs"]
mod alone;

use bivouac_layout::namespace::directory_shard;
use bivouac_layout::{Ino, NodeId, ShardId};
use bivouac_meta::{Caller, Options};
use bivouac_proto::Reply;
use bivouac_proto::auth::Credentials;
use bivouac_proto::header::RequestId;
use bivouac_proto::meta::{At, MetaReply, MetaRequest};
use bivouac_proto::{FileKind, status::Failure};
use std::time::Instant;

/// Log partitions of a server.
const PARTITIONS: u16 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let files: usize = arguments.next().map_or(Ok(400_000), |n| n.parse())?;
    let dir = tempfile::tempdir_in(arguments.next().unwrap_or_else(|| ".".into()))?;
    let store = alone::open(dir.path(), Options::new(1))?;
    let send = |shard: ShardId, request: MetaRequest<'_>| -> Result<Reply, Failure> {
        let caller = Caller {
            credentials: Credentials::default(),
            node: NodeId::NONE,
            id: RequestId { session: 0, slot: 0, sequence: 0 },
            shard,
            change: Default::default(),
        };
        store.meta(&caller, &request, &[], &mut Vec::new())
    };
    let names = (0..).map(|n| format!("directory-{n}"));
    let mine = |name: &String| directory_shard(Ino::ROOT, name.as_bytes()).0 % PARTITIONS == 5;
    let mut directories = Vec::new();
    for name in names.filter(mine).take(files.div_ceil(1000)) {
        let at = At { dir: Ino::ROOT, split: false, name: name.as_bytes() };
        match send(Ino::ROOT.shard(), MetaRequest::Mkdir { at, mode: 0o755 }) {
            Ok(Reply::Meta(MetaReply::Entry { attr, .. })) => directories.push(attr.ino),
            other => return Err(format!("{other:?}").into()),
        }
    }
    let mut times = Vec::with_capacity(files);
    let started = Instant::now();
    for n in 0..files {
        let (name, dir) = (format!("name-{n:07}"), directories[n % directories.len()]);
        let at = At { dir, split: false, name: name.as_bytes() };
        let begun = Instant::now();
        let request = MetaRequest::MakeNode { at, kind: FileKind::File, mode: 0o644, target: &[] };
        send(dir.shard(), request).map_err(|e| format!("{e:?}"))?;
        times.push(begun.elapsed());
    }
    println!("{:.0} files a second", files as f64 / started.elapsed().as_secs_f64());
    times.sort();
    println!("longest requests: {:.1?}", times.iter().rev().take(8).collect::<Vec<_>>());
    println!("99.9% were shorter than {:.1?}", times[times.len() * 999 / 1000]);
    store.close();
    Ok(())
}
