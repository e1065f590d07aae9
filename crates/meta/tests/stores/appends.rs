//! Appends whose server dies at any step: done once when they are repeated, by the server that was started again or
//! by the shard's next primary.

use crate::common::client::Client;
use crate::common::{BLOCK, Cluster};
use bivouac_layout::{Group, Ino, ServerId};
use bivouac_proto::meta::{MetaReply, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Refusal, Reply};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Of a record that lies in three blocks.
const LONG: usize = 2 * BLOCK as usize + 700;

/// A file in blocks, which the client has open and to which it has appended something.
fn begun(client: &Client) -> Ino {
    let (attr, _) = client.create("f", true).unwrap();
    client.spill(attr.ino).unwrap();
    client.append(attr.ino, &[1; 1000]).unwrap();
    attr.ino
}

/// What the data servers hold of a file.
fn content(cluster: &Cluster, client: &Client, ino: Ino) -> Vec<u8> {
    let attr = client.attr(ino).unwrap();
    let layout = attr.layout.as_ref().expect("the file is in blocks");
    let map = cluster.inner.map();
    let mut found = Vec::new();
    for piece in layout.pieces(&map, 0..1 << 20) {
        let holder = match piece.group {
            group @ Group::Blocks { copies: 2.., .. } => map.holders(group).all()[0],
            _ => piece.server,
        };
        let files = cluster.inner.data[holder.0 as usize].lock().unwrap();
        let Some(file) = files.get(&ino) else { continue };
        let (from, to) = (piece.offset as usize, (piece.offset + piece.len) as usize);
        found.extend(file.bytes.get(from..to.min(file.bytes.len())).unwrap_or_default());
    }
    found
}

/// Appends under an identity, as often as a server that is starting says that it is busy.
fn append_as(client: &Client, id: bivouac_proto::RequestId, ino: Ino, data: &[u8]) -> Result<u64, Failure> {
    match client.send_as(id, ino.shard(), &MetaRequest::Append { ino }, data)? {
        (Reply::Meta(MetaReply::Appended { offset, written, .. }), _) => {
            assert_eq!(written as usize, data.len());
            Ok(offset)
        }
        other => panic!("{other:?}"),
    }
}

fn expected(parts: &[(u8, usize)]) -> Vec<u8> {
    parts.iter().flat_map(|(byte, count)| std::iter::repeat_n(*byte, *count)).collect()
}

#[test]
fn an_append_whose_server_is_started_again_is_done_once() {
    let (mut crashes, mut placed) = (0, 0);
    for n in 0.. {
        let cluster = Cluster::new(3);
        let client = Client::new(&cluster);
        let ino = begun(&client);
        let id = client.next_id();
        cluster.crash_at(n);
        let first = append_as(&client, id, ino, &[2; LONG]);
        let crashed = cluster.stores().len() < 3;
        assert_eq!(first.is_err(), crashed);
        cluster.heal();
        placed += u32::from(crashed && content(&cluster, &client, ino).len() > 1000);
        assert_eq!(append_as(&client, id, ino, &[2; LONG]), Ok(1000), "crash at {n}");
        client.append(ino, &[3; 10]).unwrap();
        assert_eq!(
            content(&cluster, &client, ino),
            expected(&[(1, 1000), (2, LONG), (3, 10)]),
            "crash at {n}"
        );
        if !crashed {
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 3 && placed > 1, "{crashes} steps were broken, {placed} after something was written");
}

#[test]
fn an_append_that_goes_on_at_the_next_primary_is_done_once() {
    for copies in [2, 3] {
        let mut crashes = 0;
        for n in 0.. {
            let cluster = Cluster::replicated(3, copies);
            let client = Client::new(&cluster);
            let ino = begun(&client);
            cluster.crash_at(n);
            let (offset, _) = client.append(ino, &[2; LONG]).unwrap();
            let crashed = cluster.stores().len() < 3;
            cluster.inner.crash_at.store(usize::MAX, Ordering::SeqCst);
            assert_eq!(offset, 1000, "crash at {n}");
            client.append(ino, &[3; 10]).unwrap();
            let found = content(&cluster, &client, ino);
            assert_eq!(found, expected(&[(1, 1000), (2, LONG), (3, 10)]), "crash at {n}");
            cluster.inner.failover();
            cluster.stores().iter().for_each(|store| store.recover());
            cluster.check_copies();
            if !crashed {
                break;
            }
            crashes += 1;
        }
        assert!(crashes > 3, "only {crashes} steps were broken");
    }
}

/// A file to which an append was begun whose server has died since, with the program.
fn abandoned(cluster: &Cluster, client: &Client) -> Ino {
    let ino = begun(client);
    let server = cluster.inner.primary(ino.shard());
    cluster.inner.crash_after_write.store(true, Ordering::SeqCst);
    assert!(append_as(client, client.next_id(), ino, &[2; LONG]).is_err());
    assert!(cluster.store(server).is_none(), "{:?} has not died", ServerId(server.0));
    cluster.heal();
    ino
}

#[test]
fn what_was_begun_and_is_not_repeated_is_not_written_over() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let ino = abandoned(&cluster, &client);
    let begun = Instant::now();
    let another = Client::new(&cluster);
    let id = another.next_id();
    let offset = loop {
        match append_as(&another, id, ino, &[3; 10]) {
            Err(Failure::Refused(Refusal::Busy)) => std::thread::sleep(Duration::from_millis(50)),
            offset => break offset.unwrap(),
        }
        assert!(begun.elapsed() < bivouac_testing::HANG, "nobody may append any more");
    };
    assert!(begun.elapsed() > Duration::from_secs(3), "its repetition was not waited for");
    let found = content(&cluster, &client, ino);
    assert_eq!(offset as usize, found.len() - 10);
    assert!(found.starts_with(&expected(&[(1, 1000), (2, 1)])) && found.ends_with(&[3; 10]));
}

#[test]
fn who_goes_on_after_an_append_that_failed_keeps_nobody_waiting() {
    for other_first in [false, true] {
        let cluster = Cluster::new(3);
        let client = Client::new(&cluster);
        let ino = abandoned(&cluster, &client);
        let (appender, before) = match other_first {
            true => {
                // Any later request of its slot shows that it does not repeat the earlier one.
                client.truncate(ino, 100).unwrap();
                (Client::new(&cluster), 100)
            }
            false => (client, content(&cluster, &Client::new(&cluster), ino).len()),
        };
        assert_eq!(append_as(&appender, appender.next_id(), ino, &[3; 10]), Ok(before as u64));
        let found = content(&cluster, &appender, ino);
        assert!(found.len() == before + 10 && found.ends_with(&[3; 10]));
    }
}

#[test]
fn what_is_repeated_after_a_truncation_is_appended_to_what_that_has_left() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let ino = begun(&client);
    let id = client.next_id();
    cluster.inner.crash_after_write.store(true, Ordering::SeqCst);
    assert!(append_as(&client, id, ino, &[2; LONG]).is_err());
    cluster.heal();
    // By another program.
    Client::new(&cluster).truncate(ino, 100).unwrap();
    assert_eq!(append_as(&client, id, ino, &[2; LONG]), Ok(100));
    assert_eq!(content(&cluster, &client, ino), expected(&[(1, 100), (2, LONG)]));
}
