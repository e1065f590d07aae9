//! Files whose ranges go to other servers, and the crashes in between: at every step a file is whole, and every step is finished or
//! has not been.

use crate::common::client::Client;
use crate::common::{BLOCK, Cluster, SubFile};
use bivouac_layout::map::Generation;
use bivouac_layout::restripe::outdated;
use bivouac_layout::{FileLayout, GenerationId, Ino, MapChange, Rebuild, Rule, ServerId};
use bivouac_meta::Restriped;
use bivouac_proto::meta::{KERNEL, LockOwner, LockRange, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};
use std::sync::atomic::Ordering;

const DIRECT: Rebuild = Rebuild { number: 1, rule: Rule::Direct, rate: 0 };
/// One block in each step.
const SLOW: (&Rebuild, u64) = (&DIRECT, BLOCK as u64);

/// Four blocks in each step: two of them move.
const HALF: (&Rebuild, u64) = (&DIRECT, 4 * BLOCK as u64);
/// All of a file in one step.
const WHOLE: (&Rebuild, u64) = (&DIRECT, u64::MAX);

/// Four servers, and files on two of them.
fn two_of_four() -> Cluster {
    let servers = |numbers: &[u16]| Generation { servers: numbers.iter().copied().map(ServerId).collect() };
    Cluster::with_map(4, |_| {}, |map| map.generations = vec![servers(&[0, 1])])
}

/// From now on all four.
fn all_four(cluster: &Cluster) {
    let mut map = (*cluster.inner.map()).clone();
    map.generations.push(Generation { servers: map.servers.iter().map(|server| server.id).collect() });
    cluster.inner.set_map(map);
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + 1) as u8 | 1).collect()
}

/// A file in blocks, which the client has open and to which it has appended something.
fn file(client: &Client, name: &str, content: &[u8]) -> (Ino, bivouac_proto::OpenId) {
    let (attr, open) = client.create(name, true).unwrap();
    client.spill(attr.ino).unwrap();
    client.append(attr.ino, content).unwrap();
    (attr.ino, open)
}

/// What the data servers hold of a file, by its layout; and whether nobody has anything else.
fn content(cluster: &Cluster, client: &Client, ino: Ino) -> Vec<u8> {
    content_up_to(cluster, client, ino, 1 << 20)
}

fn content_up_to(cluster: &Cluster, client: &Client, ino: Ino, end: u64) -> Vec<u8> {
    let attr = client.attr(ino).unwrap();
    let layout = attr.layout.as_ref().expect("the file is in blocks");
    let map = cluster.inner.map();
    let mut found = Vec::new();
    let mut theirs: Vec<Vec<u8>> = cluster
        .inner
        .data
        .iter()
        .map(|files| files.lock().unwrap().get(&ino).map_or(Vec::new(), |file| file.bytes.clone()))
        .collect();
    for piece in layout.pieces(&map, 0..end) {
        let file = &mut theirs[piece.server.0 as usize];
        let end = (piece.offset + piece.len).min(file.len() as u64);
        if piece.offset < end {
            let part = &mut file[piece.offset as usize..end as usize];
            found.resize(piece.offset as usize, 0);
            found.extend_from_slice(part);
            part.fill(0);
        }
    }
    assert!(theirs.iter().flatten().all(|byte| *byte == 0), "somebody has what is not his");
    found
}

fn generation(client: &Client, ino: Ino) -> Vec<GenerationId> {
    let layout = client.attr(ino).unwrap().layout.expect("a layout");
    layout.ranges.iter().map(|range| range.generation).collect()
}

/// Makes steps until there is nothing to do.
fn finish(cluster: &Cluster, ino: Ino, by: (&Rebuild, u64)) -> u32 {
    let server = cluster.inner.map().primary(ino.shard());
    let mut steps = 0;
    while cluster.inner.serve(server, |store| store.restripe(ino, by)).unwrap() != Restriped::Done {
        steps += 1;
        assert!(steps < 1000);
    }
    steps
}

#[test]
fn a_file_goes_to_other_servers_and_nothing_is_left_behind() {
    for (len, closed) in [(0, true), (700, true), (5 * BLOCK as usize, true), (9 * BLOCK as usize + 3, false)]
    {
        let cluster = two_of_four();
        let client = Client::new(&cluster);
        let (ino, open) = file(&client, "f", &bytes(len));
        if closed {
            client.release(ino, open, None).unwrap();
        }
        all_four(&cluster);
        let server = cluster.inner.map().primary(ino.shard());
        let to_move = |rule| cluster.store(server).unwrap().to_restripe(rule).0.len();
        assert_eq!((to_move(Rule::Direct), to_move(Rule::Metadata)), (1, usize::from(!closed)));
        finish(&cluster, ino, SLOW);
        assert_eq!(to_move(Rule::Direct), 0);
        assert_eq!(content(&cluster, &client, ino), bytes(len));
        assert_eq!(generation(&client, ino), [GenerationId(1)]);
        assert!(!closed || client.attr(ino).unwrap().size == len as u64);
        client.append(ino, b"more").unwrap();
        assert_eq!(content(&cluster, &client, ino), [bytes(len), b"more".to_vec()].concat());
        client.truncate(ino, 3).unwrap();
        assert_eq!(content(&cluster, &client, ino), [bytes(len), b"more".to_vec()].concat()[..3]);
    }
}

#[test]
fn whenever_the_server_that_drives_it_dies_the_step_is_finished_or_undone() {
    for closed in [true, false] {
        let mut crashes = 0;
        for n in 0.. {
            let cluster = two_of_four();
            let client = Client::new(&cluster);
            let (ino, open) = file(&client, "f", &bytes(6 * BLOCK as usize));
            if closed {
                client.release(ino, open, None).unwrap();
            }
            all_four(&cluster);
            let server = cluster.inner.map().primary(ino.shard());
            cluster.crash_at(n);
            let _ = cluster.inner.serve(server, |store| store.restripe(ino, HALF));
            let crashed = cluster.stores().len() < 4;
            cluster.heal();
            assert_eq!(content(&cluster, &client, ino), bytes(6 * BLOCK as usize), "crash at {n}");
            assert!(!closed || client.attr(ino).unwrap().size == 6 * u64::from(BLOCK));
            client.append(ino, b"x").unwrap();
            finish(&cluster, ino, SLOW);
            assert_eq!(generation(&client, ino), [GenerationId(1)], "crash at {n}");
            assert_eq!(content(&cluster, &client, ino), [bytes(6 * BLOCK as usize), b"x".to_vec()].concat());
            if !crashed {
                break;
            }
            crashes += 1;
        }
        assert!(crashes > 8, "{crashes}");
    }
}

#[test]
fn a_data_server_that_fails_leaves_the_file_as_it_was() {
    for failing in 0..4 {
        let cluster = two_of_four();
        let client = Client::new(&cluster);
        let (ino, open) = file(&client, "f", &bytes(6 * BLOCK as usize));
        client.release(ino, open, None).unwrap();
        all_four(&cluster);
        let server = cluster.inner.map().primary(ino.shard());
        *cluster.inner.data_fault.lock().unwrap() = Some((Some(ServerId(failing)), Errno::NOSPC));
        let step = || cluster.inner.serve(server, |store| store.restripe(ino, WHOLE));
        assert_eq!(step(), Err(Failure::Errno(Errno::NOSPC)), "server {failing}");
        *cluster.inner.data_fault.lock().unwrap() = None;
        cluster.heal();
        assert_eq!(generation(&client, ino), [GenerationId(0)]);
        assert_eq!(content(&cluster, &client, ino), bytes(6 * BLOCK as usize));
        finish(&cluster, ino, WHOLE);
        assert_eq!(content(&cluster, &client, ino), bytes(6 * BLOCK as usize));
    }
}

#[test]
fn a_file_that_a_kernel_holds_stays_until_it_is_let_go() {
    let cluster = two_of_four();
    let client = Client::new(&cluster);
    let (ino, open) = file(&client, "f", &bytes(3 * BLOCK as usize));
    client.release(ino, open, None).unwrap();
    all_four(&cluster);
    let server = cluster.inner.map().primary(ino.shard());
    let owner = LockOwner::Process { session: 77, pid: KERNEL | 5 };
    let range = LockRange { start: 0, end: u64::MAX, exclusive: false };
    client.send(ino.shard(), &MetaRequest::Lock { ino, owner, range, wait_ms: 0 }, &[]).unwrap();
    let step = || cluster.inner.serve(server, |store| store.restripe(ino, WHOLE));
    assert_eq!(step(), Ok(Restriped::Held));
    assert_eq!(generation(&client, ino), [GenerationId(0)]);
    // Programs' locks are others.
    let program = LockOwner::Process { session: 78, pid: 5 };
    let all = LockRange { exclusive: true, ..range };
    client
        .send(ino.shard(), &MetaRequest::Lock { ino, owner: program, range: all, wait_ms: 0 }, &[])
        .unwrap();
    client.send(ino.shard(), &MetaRequest::Unlock { ino, owner, start: 0, end: u64::MAX }, &[]).unwrap();
    finish(&cluster, ino, WHOLE);
    assert_eq!(content(&cluster, &client, ino), bytes(3 * BLOCK as usize));
}

#[test]
fn a_file_that_is_removed_on_its_way_is_gone_everywhere() {
    for n in 0.. {
        let cluster = two_of_four();
        let client = Client::new(&cluster);
        let (ino, open) = file(&client, "f", &bytes(6 * BLOCK as usize));
        client.release(ino, open, None).unwrap();
        all_four(&cluster);
        let server = cluster.inner.map().primary(ino.shard());
        cluster.crash_at(n);
        let _ = cluster.inner.serve(server, |store| store.restripe(ino, SLOW));
        let crashed = cluster.stores().len() < 4;
        cluster.inner.crash_at.store(usize::MAX, Ordering::SeqCst);
        if cluster.store(server).is_none() {
            cluster.start(server);
        }
        client.unlink("f").unwrap();
        cluster.heal();
        assert!(client.attr(ino).is_err());
        let has = |files: &std::sync::Mutex<std::collections::HashMap<Ino, SubFile>>| {
            files.lock().unwrap().get(&ino).is_some_and(|file| !file.bytes.is_empty())
        };
        assert!(!cluster.inner.data.iter().any(has), "crash at {n}");
        let step = cluster.inner.serve(server, |store| store.restripe(ino, WHOLE));
        assert!(matches!(step, Ok(Restriped::Done) | Err(Failure::Refused(Refusal::Busy))), "{step:?}");
        if !crashed {
            break;
        }
    }
}

#[test]
fn what_a_file_grows_by_goes_to_the_newest_servers() {
    let metadata = Rebuild { rule: Rule::Metadata, ..DIRECT };
    let cluster = two_of_four();
    let client = Client::new(&cluster);
    let (closed, open) = file(&client, "closed", &bytes(3 * BLOCK as usize - 5));
    client.release(closed, open, None).unwrap();
    let (written, _) = file(&client, "written", &bytes(3 * BLOCK as usize));
    all_four(&cluster);
    for ino in [closed, written] {
        finish(&cluster, ino, (&metadata, u64::MAX));
    }
    assert_eq!(generation(&client, closed), [GenerationId(0)], "nobody has changed it");
    assert_eq!(generation(&client, written), [0, 1].map(GenerationId));
    let how = bivouac_proto::meta::OpenHow { write: true, ..Default::default() };
    let (attr, ..) = client.open("closed", how).unwrap();
    let layout = attr.layout.expect("a layout");
    let starts: Vec<u64> = layout.ranges.iter().map(|range| range.start).collect();
    assert_eq!(starts, [0, 3 * u64::from(BLOCK)]);
    assert_eq!(layout.ranges[1].generation, GenerationId(1));
    for (ino, len) in [(closed, 3 * BLOCK as usize - 5), (written, 3 * BLOCK as usize)] {
        let more = bytes(90 * BLOCK as usize);
        client.append(ino, &more).unwrap();
        let all = content_up_to(&cluster, &client, ino, 4 << 20);
        assert_eq!(all, [bytes(len), more].concat());
    }
    // One that is opened only for reading stays as it is.
    let (attr, _) = client.create("read", true).unwrap();
    assert!(attr.layout.is_none());
}

/// What it would grow by has been dealt to newer servers ahead of its end, and newer ones still have come since.
#[test]
fn a_file_that_is_open_and_does_not_grow_needs_no_more_steps_after_each_change() {
    for rule in [Rule::Metadata, Rule::Direct] {
        let rebuild = Rebuild { rule, ..DIRECT };
        let cluster = two_of_four();
        let client = Client::new(&cluster);
        let (ino, _) = file(&client, "f", &bytes(3 * BLOCK as usize));
        let server = cluster.inner.map().primary(ino.shard());
        for (number, servers) in [(1, [0, 1, 2, 3]), (2, [1, 2, 3, 0]), (3, [3, 2, 1, 0])] {
            let mut map = (*cluster.inner.map()).clone();
            map.generations.push(Generation { servers: servers.map(ServerId).into() });
            cluster.inner.set_map(map);
            finish(&cluster, ino, (&rebuild, u64::MAX));
            assert_eq!(cluster.store(server).unwrap().to_restripe(rule).0, [], "generation {number}");
            assert_eq!(generation(&client, ino).last(), Some(&GenerationId(number)));
            assert_eq!(content(&cluster, &client, ino), bytes(3 * BLOCK as usize));
        }
        client.append(ino, b"more").unwrap();
        assert_eq!(content(&cluster, &client, ino), [bytes(3 * BLOCK as usize), b"more".to_vec()].concat());
    }
}

/// Two copies: files on three servers, and from now on on all four. A file, and its layout before and after.
fn copied_file() -> (Cluster, Ino, [FileLayout; 2]) {
    let cluster = Cluster::replicated_with_blocks(4, 2);
    let mut map = (*cluster.inner.map()).clone();
    map.generations = vec![Generation { servers: (0..3).map(ServerId).collect() }];
    cluster.inner.set_map(map);
    let client = Client::new(&cluster);
    let (ino, open) = file(&client, "f", &bytes(40 * BLOCK as usize));
    client.release(ino, open, None).unwrap();
    let old = client.attr(ino).unwrap().layout.unwrap();
    all_four(&cluster);
    let new = old.restriped(&cluster.inner.map(), ino, Rule::Direct, &(0..u64::MAX));
    drop(client);
    (cluster, ino, [*old, new])
}

fn step(cluster: &Cluster, ino: Ino) -> Result<Restriped, Failure> {
    let server = cluster.inner.map().primary(ino.shard());
    cluster.inner.serve(server, |store| store.restripe(ino, WHOLE))
}

#[test]
fn a_copy_that_has_missed_changes_does_not_count_as_whole_because_its_group_is_another_one() {
    let (cluster, ino, [old, new]) = copied_file();
    let length = 40 * u64::from(BLOCK);
    let outdated = || {
        let map = cluster.inner.map();
        let mut found: Vec<_> = outdated(&map, (&old, &new), 0..length).collect();
        found.sort_unstable();
        found.dedup();
        found
    };
    assert_eq!(outdated(), []);
    // Some holder stays where it is.
    let map = cluster.inner.map();
    let all = old
        .groups(&map, length)
        .flat_map(|group| map.holders(group).all().to_vec().into_iter().map(move |h| (group, h)));
    let missed = all.into_iter().find(|missed| {
        cluster.inner.set_map((*map).clone());
        cluster.inner.change(&MapChange::Behind { copies: vec![*missed] });
        !outdated().is_empty()
    });
    let (_, holder) = missed.expect("somebody stays");
    assert_eq!(step(&cluster, ino), Err(Refusal::Busy.into()));
    let told = std::mem::take(&mut *cluster.inner.distrusted.lock().unwrap());
    assert_eq!(told, outdated());
    assert!(told.iter().all(|(_, of)| *of == holder));
    // The controller has heard of it: that one has to catch up with all that it has by now, and the others go on.
    cluster.inner.change(&MapChange::Behind { copies: told });
    assert_eq!(outdated(), []);
    assert!(matches!(step(&cluster, ino), Ok(Restriped::Moved(_))));
    assert_eq!(step(&cluster, ino), Ok(Restriped::Done));
}

#[test]
fn a_step_goes_on_without_a_server_whose_storage_fails_when_the_map_says_that_it_is_behind() {
    let (cluster, ino, [old, new]) = copied_file();
    let map = cluster.inner.map();
    let failing = ServerId(1);
    *cluster.inner.excused.lock().unwrap() = Some(failing);
    assert_eq!(step(&cluster, ino), Err(Refusal::Busy.into()));
    let groups = old.groups(&map, u64::MAX).chain(new.groups(&map, u64::MAX));
    let copies =
        groups.filter(|group| map.holders(*group).all().contains(&failing)).map(|group| (group, failing));
    cluster.inner.change(&MapChange::Behind { copies: copies.collect() });
    assert!(matches!(step(&cluster, ino), Ok(Restriped::Moved(1..))));
    assert_eq!(step(&cluster, ino), Ok(Restriped::Done));
    let client = Client::new(&cluster);
    assert_eq!(client.attr(ino).unwrap().layout.unwrap().ranges, new.ranges);
}
