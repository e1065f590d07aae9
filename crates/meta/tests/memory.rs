//! What a store takes of the system's memory. (One test alone in its process, which it measures.)

mod alone;

use bivouac_layout::{Ino, NodeId};
use bivouac_meta::{Caller, Options};
use bivouac_proto::FileKind;
use bivouac_proto::auth::Credentials;
use bivouac_proto::header::RequestId;
use bivouac_proto::meta::{At, MetaRequest};

const FILES: usize = 60_000;

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    1024 * kilobytes.and_then(|n| n.parse::<usize>().ok()).expect("a number")
}

#[test]
fn files_take_little_memory_and_give_it_back_when_they_are_removed() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let store = alone::open(dir.path(), Options::new(1)).expect("opened");
    let mut sequence = 0;
    let mut send = |request: MetaRequest<'_>| {
        sequence += 1;
        let id = RequestId { session: 1, slot: 0, sequence };
        let shard = Ino::ROOT.shard();
        let caller = Caller {
            credentials: Credentials::default(),
            node: NodeId::NONE,
            id,
            shard,
            change: Default::default(),
        };
        store.meta(&caller, &request, &[], &mut Vec::new()).expect("done");
    };
    let names: Vec<String> = (0..FILES).map(|n| format!("file-{n:06}")).collect();
    // The directory must not split meanwhile, which has memory of its own: names in many directories.
    let directories: Vec<_> = (0..FILES / 1000)
        .map(|n| {
            let name = format!("directory-{n}");
            send(MetaRequest::Mkdir { at: at(Ino::ROOT, &name), mode: 0o755 });
            name
        })
        .collect();
    let inos: Vec<Ino> = directories.iter().map(|name| ino_of(&store, name)).collect();
    let before = resident();
    for (n, name) in names.iter().enumerate() {
        let at = at(inos[n / 1000], name);
        send(MetaRequest::MakeNode { at, kind: FileKind::File, mode: 0o644, target: b"" });
    }
    let full = resident() - before;
    assert!(full / FILES < 200, "{} bytes a file", full / FILES);
    for (n, name) in names.iter().enumerate() {
        send(MetaRequest::Unlink { at: at(inos[n / 1000], name) });
    }
    bivouac_testing::eventually("most of the memory is given back", || resident() <= before + full / 2);
}

fn at(dir: Ino, name: &str) -> At<'_> {
    At { dir, split: false, name: name.as_bytes() }
}

fn ino_of(store: &bivouac_meta::MetaStore, name: &str) -> Ino {
    use bivouac_proto::Reply;
    use bivouac_proto::meta::MetaReply;
    let caller = Caller {
        credentials: Credentials::default(),
        node: NodeId::NONE,
        id: RequestId::default(),
        shard: Ino::ROOT.shard(),
        change: Default::default(),
    };
    match store.meta(&caller, &MetaRequest::Lookup { at: at(Ino::ROOT, name) }, &[], &mut Vec::new()) {
        Ok(Reply::Meta(MetaReply::Entry { attr, .. })) => attr.ino,
        other => panic!("{other:?}"),
    }
}
