//! Sizes, times, appends, and the blocks of files that go.

use crate::common::client::Client;
use crate::common::{BLOCK, Cluster};
use bivouac_layout::{Ino, NodeId, ServerId};
use bivouac_proto::attr::Store;
use bivouac_proto::data::DataRequest;
use bivouac_proto::header::OpenId;
use bivouac_proto::meta::{MetaReply, MetaRequest, OpenHow, Reopened, SetAttr, SetTime, Wrote};
use bivouac_proto::status::Failure;
use bivouac_proto::{Attr, Errno, Refusal, Reply};
use std::sync::mpsc::channel;

const SETTLED: Store = Store::Blocks { settled: true };
const UNSETTLED: Store = Store::Blocks { settled: false };

/// A file in blocks, open for writing.
fn in_blocks(client: &Client, path: &str) -> (Attr, OpenId) {
    let (attr, open) = client.create(path, true).unwrap();
    (client.spill(attr.ino).unwrap(), open)
}

fn wrote(end: u64, size_version: u32) -> Option<Wrote> {
    Some(Wrote { end, size_version, age: 0, unsure: false })
}

fn set_mtime(client: &Client, ino: Ino, to: i64) {
    let set = SetAttr { mtime: Some(SetTime::To(to)), ..SetAttr::default() };
    client.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).unwrap();
}

#[test]
fn the_last_writer_settles_the_size() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, first) = in_blocks(&client, "f");
    let (_, second) = client.create("f", false).unwrap();
    assert_eq!(attr.store, UNSETTLED);
    client.release(attr.ino, first, wrote(100_000, 0)).unwrap();
    assert_eq!(client.attr(attr.ino).unwrap().store, UNSETTLED);
    client.release(attr.ino, second, wrote(50_000, 0)).unwrap();
    let attr = client.attr(attr.ino).unwrap();
    assert_eq!((attr.store, attr.size), (SETTLED, 100_000));
}

#[test]
fn a_late_report_of_an_older_size_is_ignored() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    client.write_blocks(&cluster, &attr, 0, &vec![1; 100_000]);
    let truncated = client.truncate(attr.ino, 0).unwrap();
    assert_eq!((truncated.size, truncated.size_version), (0, 1));
    // What is written after the truncation counts, although its writer has not heard of it.
    client.write_blocks(&cluster, &attr, 0, &[1; 10]);
    client.release(attr.ino, open, wrote(100_000, 0)).unwrap();
    let attr = client.attr(attr.ino).unwrap();
    assert_eq!((attr.store, attr.size), (SETTLED, 10));
}

#[test]
fn a_writer_that_cannot_vouch_makes_the_servers_be_asked() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    client.write_blocks(&cluster, &attr, 0, &vec![1; 77_777]);
    client.release(attr.ino, open, None).unwrap();
    let attr = client.attr(attr.ino).unwrap();
    assert_eq!((attr.store, attr.size), (SETTLED, 77_777));
}

#[test]
fn a_size_that_was_open_at_a_crash_is_settled_from_the_servers() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    client.write_blocks(&cluster, &attr, 0, &vec![1; 60_000]);
    let server = cluster.inner.map().primary(attr.ino.shard());
    // A server that does not answer: it stays unsettled, and is tried again.
    *cluster.inner.data_fault.lock().unwrap() = Some((None, Errno::IO));
    cluster.restart(server);
    assert_eq!(client.attr(attr.ino).unwrap().store, UNSETTLED);
    *cluster.inner.data_fault.lock().unwrap() = None;
    cluster.store(server).unwrap().keep();
    let settled = client.attr(attr.ino).unwrap();
    assert_eq!((settled.store, settled.size), (SETTLED, 60_000));
    // The writer is still there, registers again, and writes on.
    client.inode(attr.ino, MetaRequest::Reopen { ino: attr.ino, open, write: true }, &[]).unwrap();
    assert_eq!(client.attr(attr.ino).unwrap().store, UNSETTLED);
    client.write_blocks(&cluster, &attr, 60_000, &[2; 5000]);
    client.release(attr.ino, open, wrote(65_000, 0)).unwrap();
    assert_eq!(client.attr(attr.ino).unwrap().size, 65_000);
}

#[test]
fn a_size_that_was_settled_without_a_writer_who_lived_on_is_found_out_again_when_he_reports_or_closes() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    for reports in [false, true] {
        let (attr, open) = in_blocks(&client, &format!("f-{reports}"));
        let server = cluster.inner.map().primary(attr.ino.shard());
        client.write_blocks(&cluster, &attr, 0, &vec![1; 100_000]);
        cluster.restart(server);
        // There is no grace time here: the writer is taken for dead.
        cluster.store(server).unwrap().keep();
        let settled = client.attr(attr.ino).unwrap();
        assert_eq!((settled.store, settled.size), (SETTLED, 100_000));
        if reports {
            let opens = vec![Reopened { ino: attr.ino, open, write: true, append: false }];
            let report = MetaRequest::Report {
                node: NodeId(0),
                start: client.start(attr.ino.shard()),
                epoch: bivouac_layout::Epoch(0),
                opens,
                more: false,
            };
            client.send(attr.ino.shard(), &report, &[]).unwrap();
            assert_eq!(client.attr(attr.ino).unwrap().store, UNSETTLED);
        }
        client.write_blocks(&cluster, &attr, 100_000, &vec![2; 100_000]);
        client.release(attr.ino, open, wrote(200_000, 0)).unwrap();
        let settled = client.attr(attr.ino).unwrap();
        assert_eq!((settled.store, settled.size), (SETTLED, 200_000), "{reports}");
    }
}

#[test]
fn a_time_set_after_the_last_write_stays_and_one_before_it_does_not() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    let ino = attr.ino;
    client.write_blocks(&cluster, &attr, 0, &[1; 100]);
    cluster.tick(1000);
    set_mtime(&client, ino, 12345);
    cluster.tick(1000);
    let report = Wrote { end: 100, size_version: 0, age: 2000, unsure: true };
    client.release(ino, open, Some(report)).unwrap();
    assert_eq!(client.attr(ino).unwrap().mtime, 12345);
    let (_, open) = client.create("f", false).unwrap();
    cluster.tick(1000);
    let report = Wrote { end: 200, size_version: 0, age: 10, unsure: false };
    let before = cluster.now();
    client.release(ino, open, Some(report)).unwrap();
    let mtime = client.attr(ino).unwrap().mtime;
    assert!((before - 20..=before).contains(&mtime), "{mtime} {before}");
}

#[test]
fn a_short_append_counts_what_fitted_and_so_does_the_size() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    cluster.inner.room.store(3 * BLOCK as usize - 100, std::sync::atomic::Ordering::SeqCst);
    let written = client.append(attr.ino, &vec![7; 5 * BLOCK as usize]).unwrap();
    assert_eq!(written, (0, 3 * BLOCK - 100));
    assert_eq!(client.append(attr.ino, b"more"), Err(Errno::NOSPC));
    client.release(attr.ino, open, wrote(u64::from(written.1), 0)).unwrap();
    assert_eq!(client.attr(attr.ino).unwrap().size, u64::from(3 * BLOCK - 100));
}

#[test]
fn an_append_beside_a_plain_write_past_the_end_does_not_overwrite_it() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    assert_eq!(client.append(attr.ino, b"0123456789").unwrap(), (0, 10));
    client.write_blocks(&cluster, &attr, 30_000, b"far");
    assert_eq!(client.append(attr.ino, b"end").unwrap(), (30_003, 3));
    client.release(attr.ino, open, wrote(30_003, 0)).unwrap();
    assert_eq!(client.attr(attr.ino).unwrap().size, 30_006);
}

#[test]
fn a_size_is_not_put_together_from_answers_by_different_maps() {
    let cluster = Cluster::replicated_with_blocks(4, 2);
    let client = Client::new(&cluster);
    let map = cluster.inner.map();
    // The primary of its first block, if that is not the server of its inode.
    let is_apt = |attr: &Attr| {
        let piece = attr.layout.as_ref().unwrap().pieces(&map, 0..1).next().unwrap();
        (piece.server != cluster.inner.primary(attr.ino.shard())).then_some(piece.server)
    };
    let mut files = (0..50).map(|number| in_blocks(&client, &format!("f{number}")).0);
    let (attr, primary) = files.find_map(|attr| Some((attr.clone(), is_apt(&attr)?))).unwrap();
    assert_eq!(client.append(attr.ino, b"0123456789").unwrap(), (0, 10));
    *cluster.inner.dies_asked.lock().unwrap() = Some((primary, 0));
    assert_eq!(client.append(attr.ino, b"end").unwrap(), (10, 3));
}

#[test]
fn appenders_never_meet_whether_inline_or_in_blocks() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let ino = client.put("log", b"").unwrap();
    std::thread::scope(|scope| {
        for who in 0..4u8 {
            let cluster = &cluster;
            scope.spawn(move || {
                let client = Client::new(cluster);
                let how = OpenHow { write: true, append: true, ..OpenHow::default() };
                let (_, open, _) = client.open("log", how).unwrap();
                for _ in 0..100 {
                    assert_eq!(client.append(ino, &[who + 1; 61]).unwrap().1, 61);
                }
                client.release(ino, open, wrote(0, 0)).unwrap();
            });
        }
    });
    let attr = client.attr(ino).unwrap();
    assert_eq!((attr.store, attr.size), (SETTLED, 4 * 100 * 61));
    let mut whole = vec![0; attr.size as usize];
    for piece in attr.layout.unwrap().pieces(&cluster.inner.map(), 0..attr.size) {
        let range = piece.offset as usize..(piece.offset + piece.len) as usize;
        let files = cluster.inner.data[piece.server.0 as usize].lock().unwrap();
        whole[range.clone()].copy_from_slice(&files[&ino].bytes[range]);
    }
    for record in whole.chunks(61) {
        assert!(record[0] != 0 && record.iter().all(|b| *b == record[0]), "records mix");
    }
}

#[test]
fn inline_data_moves_out_once_while_others_write_to_it() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = client.create("f", true).unwrap();
    let ino = attr.ino;
    client.inode(ino, MetaRequest::WriteInline { ino, offset: 0 }, &[1; 4096]).unwrap();
    let refused = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3u8)
            .map(|who| {
                let cluster = &cluster;
                scope.spawn(move || {
                    let client = Client::new(cluster);
                    for n in 0..10_000u32 {
                        let request = MetaRequest::WriteInline { ino, offset: u64::from(who) };
                        match client.send(ino.shard(), &request, &[n as u8]) {
                            Ok(_) => {}
                            Err(Failure::Refused(Refusal::NotInline)) => return n as u8,
                            other => panic!("{other:?}"),
                        }
                    }
                    panic!("it never moved out");
                })
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let a = scope.spawn(|| Client::new(&cluster).spill(ino).unwrap());
        let b = scope.spawn(|| Client::new(&cluster).spill(ino).unwrap());
        assert_eq!(a.join().unwrap().layout, b.join().unwrap().layout);
        writers.into_iter().map(|w| w.join().unwrap()).collect::<Vec<u8>>()
    });
    let holder = cluster.holders(ino);
    assert_eq!(holder.len(), 1);
    let bytes = cluster.inner.data[holder[0].0 as usize].lock().unwrap()[&ino].bytes.clone();
    assert_eq!(bytes.len(), 4096);
    for (who, stopped_at) in refused.iter().enumerate() {
        // The last write that was accepted is there.
        assert_eq!(bytes[who], if *stopped_at == 0 { bytes[who] } else { stopped_at.wrapping_sub(1) });
    }
    let writes = cluster.requests().iter().filter(|(_, r)| matches!(r, DataRequest::Write { .. })).count();
    assert_eq!(writes, 1);
    client.release(ino, open, wrote(4096, 0)).unwrap();
}

#[test]
fn small_files_ask_only_the_servers_that_can_hold_something() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    // In the record: nobody.
    client.put("record", b"small").unwrap();
    client.unlink("record").unwrap();
    // In blocks, but empty: nobody.
    let (attr, open) = in_blocks(&client, "empty");
    client.release(attr.ino, open, wrote(0, 0)).unwrap();
    client.truncate(attr.ino, 0).unwrap();
    client.unlink("empty").unwrap();
    cluster.stores().iter().for_each(|s| s.keep());
    assert_eq!(cluster.requests(), []);
    // One block: one server.
    let (attr, open) = in_blocks(&client, "one");
    client.write_blocks(&cluster, &attr, 0, &[1; 5000]);
    client.release(attr.ino, open, wrote(5000, 0)).unwrap();
    client.truncate(attr.ino, 10).unwrap();
    client.unlink("one").unwrap();
    cluster.stores().iter().for_each(|s| s.keep());
    let holder = attr.layout.unwrap().server_at(&cluster.inner.map(), 0).unwrap();
    let asked = cluster.requests();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.iter().all(|(server, _)| *server == holder));
    assert_eq!(cluster.holders(attr.ino), []);
}

#[test]
fn blocks_of_a_removed_file_go_also_when_the_server_dies_in_between() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    client.write_blocks(&cluster, &attr, 0, &vec![1; 100_000]);
    client.release(attr.ino, open, wrote(100_000, 0)).unwrap();
    // The truncation leaves empty sub-files, which have to be removed, too.
    client.truncate(attr.ino, 1).unwrap();
    assert_eq!(cluster.holders(attr.ino).len(), 3);
    client.unlink("f").unwrap();
    assert_eq!(cluster.holders(attr.ino).len(), 3);
    cluster.restart(cluster.inner.map().primary(attr.ino.shard()));
    assert_eq!(cluster.holders(attr.ino), []);
}

#[test]
fn truncating_to_any_size_gives_exactly_that_size() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let ino = client.put("f", b"hello").unwrap();
    assert_eq!(client.truncate(ino, 3).unwrap().size, 3);
    assert_eq!(client.truncate(ino, 4000).unwrap().size, 4000);
    assert_eq!(client.get("f").unwrap(), [b"hel".to_vec(), vec![0; 3997]].concat());
    // The data moves out of the inode into many blocks.
    for size in [100_000, 5, 20_000, 0] {
        assert_eq!(client.truncate(ino, size).unwrap().size, size);
        let longest =
            cluster.inner.data.iter().filter_map(|d| d.lock().unwrap().get(&ino).map(|f| f.bytes.len()));
        assert_eq!(longest.max().unwrap() as u64, size, "the servers agree");
    }
    assert_eq!(client.truncate(ino, 1 << 63), Err(Errno::FBIG));
    client.mkdir("d").unwrap();
    assert_eq!(client.truncate(client.stat("d").unwrap().ino, 0), Err(Errno::ISDIR));
}

#[test]
fn a_truncation_that_a_crash_interrupts_is_finished() {
    for n in 0..40 {
        let cluster = Cluster::new(3);
        let client = Client::new(&cluster);
        let (attr, open) = in_blocks(&client, "f");
        client.write_blocks(&cluster, &attr, 0, &vec![1; 100_000]);
        client.release(attr.ino, open, wrote(100_000, 0)).unwrap();
        cluster.crash_at(n);
        let result = client.truncate(attr.ino, 10_000);
        let crashed = cluster.stores().len() < 3;
        cluster.heal();
        let size = client.attr(attr.ino).unwrap().size;
        let longest =
            cluster.inner.data.iter().map(|d| d.lock().unwrap()[&attr.ino].bytes.len() as u64).max();
        assert_eq!(longest, Some(size));
        assert!(size == 10_000 || (size == 100_000 && result.is_err()), "{size}");
        if !crashed {
            return;
        }
    }
    panic!("the truncation never came through");
}

#[test]
fn what_an_interrupted_move_out_left_is_never_read() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let ino = client.put("f", &[1; 3000]).unwrap();
    // The server dies after the data was written to blocks, before the inode says so.
    cluster.inner.crash_after_write.store(true, std::sync::atomic::Ordering::SeqCst);
    client.spill(ino).unwrap_err();
    assert_eq!(cluster.holders(ino).len(), 1);
    cluster.heal();
    assert_eq!(cluster.holders(ino), []);
    assert_eq!(client.get("f").unwrap(), [1; 3000]);
    client.truncate(ino, 5).unwrap();
    let attr = client.spill(ino).unwrap();
    assert_eq!((attr.size, attr.store), (5, SETTLED));
    let holder = cluster.holders(ino)[0];
    assert_eq!(cluster.inner.data[holder.0 as usize].lock().unwrap()[&ino].bytes, [1; 5]);
}

#[test]
fn moving_out_to_a_server_that_is_away_fails_at_once_every_time_until_it_is_back() {
    let cluster = Cluster::with(3, |options| options.patience = std::time::Duration::from_secs(60));
    let client = Client::new(&cluster);
    let ino = client.put("f", &[1; 3000]).unwrap();
    *cluster.inner.data_fault.lock().unwrap() = Some((None, Errno::IO));
    let begun = std::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(client.spill(ino), Err(Errno::IO));
        // What may be there of the first try cannot be removed.
        cluster.stores().iter().for_each(|s| s.keep());
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
    *cluster.inner.data_fault.lock().unwrap() = None;
    cluster.stores().iter().for_each(|s| s.keep());
    assert_eq!(client.get("f").unwrap(), [1; 3000]);
    assert_eq!(client.spill(ino).unwrap().size, 3000);
}

#[test]
fn moving_out_reports_a_full_storage_and_keeps_the_data() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let ino = client.put("f", &[1; 3000]).unwrap();
    cluster.inner.room.store(100, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(client.spill(ino), Err(Errno::NOSPC));
    assert_eq!(client.get("f").unwrap(), [1; 3000]);
    cluster.inner.room.store(100_000, std::sync::atomic::Ordering::SeqCst);
    cluster.stores().iter().for_each(|s| s.keep());
    assert_eq!(client.spill(ino).unwrap().size, 3000);
}

#[test]
fn opening_with_truncate_empties_files_in_blocks_and_inline_files() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let how = OpenHow { write: true, truncate: true, ..OpenHow::default() };
    client.put("r", b"data").unwrap();
    let (attr, open, _) = client.open("r", how).unwrap();
    assert_eq!((attr.size, attr.size_version), (0, 1));
    client.release(attr.ino, open, None).unwrap();
    let (attr, open) = in_blocks(&client, "b");
    client.write_blocks(&cluster, &attr, 0, &vec![1; 50_000]);
    client.release(attr.ino, open, wrote(50_000, 0)).unwrap();
    let (attr, open, _) = client.open("b", how).unwrap();
    assert_eq!((attr.size, attr.size_version, attr.store), (0, 1, UNSETTLED));
    client.release(attr.ino, open, wrote(0, 1)).unwrap();
    let attr = client.attr(attr.ino).unwrap();
    assert_eq!((attr.size, attr.store), (0, SETTLED));
}

#[test]
fn a_repeated_append_is_done_once() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    for path in ["record", "blocks"] {
        let (attr, _) =
            if path == "record" { client.create(path, true).unwrap() } else { in_blocks(&client, path) };
        let id = client.next_id();
        let request = MetaRequest::Append { ino: attr.ino };
        let first = client.send_as(id, attr.ino.shard(), &request, b"once").unwrap();
        cluster.restart(cluster.inner.map().primary(attr.ino.shard()));
        let again = client.send_as(id, attr.ino.shard(), &request, b"once").unwrap();
        assert_eq!(first, again);
        assert!(matches!(again.0, Reply::Meta(MetaReply::Appended { offset: 0, written: 4, .. })));
        assert_eq!(client.append(attr.ino, b"next").unwrap(), (4, 4), "{path}");
    }
}

#[test]
fn an_unlinked_open_file_in_blocks_keeps_its_blocks_until_closed() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    client.write_blocks(&cluster, &attr, 0, &[1; 100]);
    client.unlink("f").unwrap();
    cluster.restart(ServerId(0));
    cluster.stores().iter().for_each(|s| s.keep());
    assert_eq!(cluster.holders(attr.ino).len(), 1);
    client.release(attr.ino, open, wrote(100, 0)).unwrap();
    cluster.stores().iter().for_each(|s| s.keep());
    assert_eq!(cluster.holders(attr.ino), []);
    assert_eq!(client.attr(attr.ino), Err(Errno::NOENT));
}

#[test]
fn blocks_of_a_file_that_is_unlinked_in_the_middle_of_a_change_are_removed() {
    let cluster = Cluster::new(3);
    let (client, other) = (Client::new(&cluster), Client::new(&cluster));
    type Change = fn(&Client, &Attr, OpenId);
    let changes: [Change; 3] = [
        // The servers are asked for the size that its last writer did not know.
        |client, attr, open| {
            let report = Wrote { end: 1, size_version: 0, age: 0, unsure: true };
            client.release(attr.ino, open, Some(report)).unwrap();
        },
        |client, attr, _| drop(client.truncate(attr.ino, 5).unwrap()),
        |client, attr, _| assert_eq!(client.append(attr.ino, &[1; 100]).unwrap().1, 100),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let (attr, open) = in_blocks(&client, "f");
        client.write_blocks(&cluster, &attr, 0, &[7; 3 * BLOCK as usize]);
        if number > 0 {
            client.release(attr.ino, open, wrote(u64::from(3 * BLOCK), 0)).unwrap();
        }
        let ((here, is_here), (leave, has_leave)) = (channel(), channel());
        *cluster.inner.data_pause.lock().unwrap() = Some((here, has_leave));
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| change(&client, &attr, open));
            is_here.recv().unwrap();
            other.unlink("f").unwrap();
            leave.send(()).unwrap();
            changing.join().unwrap();
        });
        cluster.stores().iter().for_each(|store| store.keep());
        let left = cluster.inner.data.iter().filter(|files| files.lock().unwrap().contains_key(&attr.ino));
        assert_eq!(left.count(), 0, "change {number}");
    }
}

#[test]
fn the_storage_of_a_file_with_holes_is_asked_for_when_it_is_settled_and_kept() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let uneven = |end| Some(Wrote { unsure: true, ..wrote(end, 0).unwrap() });
    let takes = |ino| {
        let attr = client.attr(ino).unwrap();
        (attr.store, attr.size, attr.st_blocks() * 512)
    };
    let (attr, open) = in_blocks(&client, "f");
    client.write_blocks(&cluster, &attr, 200_704, &[1; 4096]);
    client.release(attr.ino, open, uneven(204_800)).unwrap();
    assert_eq!(takes(attr.ino), (SETTLED, 204_800, 4096));
    // Of a settled file it is known what a truncation leaves, or asked.
    client.truncate(attr.ino, 1_000_000).unwrap();
    assert_eq!(takes(attr.ino), (SETTLED, 1_000_000, 4096));
    client.truncate(attr.ino, 100_000).unwrap();
    assert_eq!(takes(attr.ino), (SETTLED, 100_000, 0));
    // Who writes on need not know that there were holes.
    let (_, open) = client.create("f", false).unwrap();
    client.write_blocks(&cluster, &attr, 0, &vec![1; 100_000]);
    client.release(attr.ino, open, wrote(100_000, 2)).unwrap();
    assert_eq!(takes(attr.ino), (SETTLED, 100_000, 25 * 4096));
    client.truncate(attr.ino, 0).unwrap();
    assert_eq!(takes(attr.ino), (SETTLED, 0, 0));
}

#[test]
fn a_file_without_holes_is_settled_without_asking() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    // What is said counts, and nobody looks whether it is so.
    client.release(attr.ino, open, wrote(100_000, 0)).unwrap();
    let attr = client.attr(attr.ino).unwrap();
    assert_eq!((attr.store, attr.st_blocks() * 512), (SETTLED, 25 * 4096));
}

#[test]
fn a_file_that_was_truncated_twice_does_not_regain_the_first_size() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    client.write_blocks(&cluster, &attr, 0, &vec![1; 100_000]);
    // Within the first block, so that the others' servers hold nothing any more.
    client.truncate(attr.ino, 5000).unwrap();
    client.release(attr.ino, open, wrote(100_000, 0)).unwrap();
    client.truncate(attr.ino, 3).unwrap();
    let lengths =
        cluster.inner.data.iter().filter_map(|d| Some(d.lock().unwrap().get(&attr.ino)?.bytes.len()));
    assert_eq!(lengths.max(), Some(3), "no sub-file is longer than the file");
}

#[test]
fn a_truncation_that_fails_on_one_server_is_eio_until_it_is_finished() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    let ino = attr.ino;
    client.write_blocks(&cluster, &attr, 0, &vec![1; 100_000]);
    client.release(ino, open, wrote(100_000, 0)).unwrap();
    let fault = |fault| *cluster.inner.data_fault.lock().unwrap() = fault;
    for server in cluster.holders(ino) {
        client.truncate(ino, 100_000).unwrap();
        fault(Some((Some(server), Errno::IO)));
        assert_eq!(client.truncate(ino, 10_000), Err(Errno::IO));
        // Some of the data is gone: neither size would be true.
        assert_eq!(client.attr(ino), Err(Errno::IO));
        let read = OpenHow { read: true, ..OpenHow::default() };
        assert_eq!(client.open("f", read).map(drop), Err(Errno::IO));
        assert_eq!(client.append(ino, b"x"), Err(Errno::IO));
        assert_eq!(client.spill(ino), Err(Errno::IO));
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        assert_eq!(client.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).map(drop), Err(Errno::IO));
        let shown = |name: &str| {
            client.list("", 10).unwrap().into_iter().find(|e| e.name == name.as_bytes()).unwrap().attr
        };
        assert_eq!(shown("f"), None, "a listing shows no size, either");
        assert_eq!(client.truncate(ino, 20_000), Err(Errno::IO), "that one has to be finished first");
        fault(None);
        // A repeat finishes it, a shorter one takes its place, and the keeper finishes it, too.
        let size = match server.0 {
            0 => client.truncate(ino, 20_000).unwrap().size,
            1 => {
                cluster.requests();
                let size = client.truncate(ino, 5000).unwrap().size;
                let of_other_size = |request: &DataRequest| matches!(request, DataRequest::Truncate { size, .. } if *size > 5000);
                assert!(!cluster.requests().iter().any(|(_, request)| of_other_size(request)));
                size
            }
            _ => {
                cluster.stores().iter().for_each(|store| store.keep());
                10_000
            }
        };
        assert_eq!(client.attr(ino).unwrap().size, size);
        let longest = cluster.inner.data.iter().map(|d| d.lock().unwrap()[&ino].bytes.len() as u64).max();
        assert_eq!(longest, Some(size));
    }
    // It can be removed all the same.
    fault(Some((Some(cluster.holders(ino)[0]), Errno::IO)));
    assert_eq!(client.truncate(ino, 1), Err(Errno::IO));
    client.unlink("f").unwrap();
    fault(None);
    cluster.stores().iter().for_each(|store| store.keep());
    assert_eq!(cluster.holders(ino), []);
}

#[test]
fn an_open_whose_truncation_fails_leaves_nothing_open() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, open) = in_blocks(&client, "f");
    client.write_blocks(&cluster, &attr, 0, &vec![1; 100_000]);
    client.release(attr.ino, open, wrote(100_000, 0)).unwrap();
    *cluster.inner.data_fault.lock().unwrap() = Some((None, Errno::IO));
    let how = OpenHow { write: true, truncate: true, ..OpenHow::default() };
    assert_eq!(client.open("f", how).map(drop), Err(Errno::IO));
    let opens = cluster.stores().iter().map(|s| s.counts().opens).sum::<u64>();
    assert_eq!(opens, 0);
}

/// The sub-files of what was written before a truncation are empty after it, and are removed with the file all
/// the same: whoever is the last to close it, and whatever he reports.
#[test]
fn what_was_written_before_a_truncation_is_removed_with_the_file() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    for (n, report) in [None, wrote(600_000, 0), wrote(0, 1)].into_iter().enumerate() {
        for writer_is_last in [false, true] {
            let name = format!("f-{n}-{writer_is_last}");
            let (attr, writer) = in_blocks(&client, &name);
            let ino = attr.ino;
            client.write_blocks(&cluster, &attr, 0, &vec![1; 600_000]);
            let how = OpenHow { write: true, truncate: true, ..OpenHow::default() };
            let (_, emptied, _) = client.open(&name, how).unwrap();
            let releases = [(writer, report), (emptied, wrote(0, 1))];
            for (open, report) in if writer_is_last { [releases[1], releases[0]] } else { releases } {
                client.release(ino, open, report).unwrap();
            }
            assert_eq!((client.attr(ino).unwrap().store, client.attr(ino).unwrap().size), (SETTLED, 0));
            assert!(!cluster.holders(ino).is_empty());
            client.unlink(&name).unwrap();
            cluster.stores().iter().for_each(|store| store.keep());
            assert_eq!(cluster.holders(ino), [], "{name}");
        }
    }
}

/// What a description that was closed before a restart has reported is forgotten with it: who reports one that is
/// still open does not know of it.
#[test]
fn a_size_that_a_closed_description_reported_before_a_restart_is_found_out_again() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (attr, first) = in_blocks(&client, "f");
    let server = cluster.inner.map().primary(attr.ino.shard());
    let (_, second) = client.create("f", false).unwrap();
    client.write_blocks(&cluster, &attr, 0, &vec![1; 100_000]);
    client.release(attr.ino, first, wrote(100_000, 0)).unwrap();
    cluster.restart(server);
    let opens = vec![Reopened { ino: attr.ino, open: second, write: true, append: false }];
    client
        .send(
            attr.ino.shard(),
            &MetaRequest::Report {
                node: NodeId(0),
                start: client.start(attr.ino.shard()),
                epoch: bivouac_layout::Epoch(0),
                opens,
                more: false,
            },
            &[],
        )
        .unwrap();
    client.release(attr.ino, second, wrote(0, 0)).unwrap();
    let settled = client.attr(attr.ino).unwrap();
    assert_eq!((settled.store, settled.size), (SETTLED, 100_000));
}

/// Who opens a file while the keeper asks for its size after a restart knows no more than anybody else.
#[test]
fn an_open_while_the_size_is_found_out_after_a_restart_does_not_settle_it_at_the_old_one() {
    for reopened in [false, true] {
        let cluster = Cluster::new(3);
        let client = Client::new(&cluster);
        let (attr, first) = in_blocks(&client, "f");
        client.write_blocks(&cluster, &attr, 0, &vec![1; 100_000]);
        let server = cluster.inner.map().primary(attr.ino.shard());
        cluster.kill(server);
        cluster.start(server);
        let ((here, arrived), (leave, wait)) = (channel(), channel());
        *cluster.inner.data_pause.lock().unwrap() = Some((here, wait));
        let open = std::thread::scope(|scope| {
            scope.spawn(|| cluster.store(server).unwrap().recover());
            arrived.recv().unwrap();
            let open = if reopened {
                client
                    .inode(attr.ino, MetaRequest::Reopen { ino: attr.ino, open: first, write: true }, &[])
                    .unwrap();
                first
            } else {
                client.create("f", false).unwrap().1
            };
            leave.send(()).unwrap();
            open
        });
        client.release(attr.ino, open, wrote(0, 0)).unwrap();
        let settled = client.attr(attr.ino).unwrap();
        assert_eq!((settled.store, settled.size), (SETTLED, 100_000), "reopened: {reopened}");
    }
}
