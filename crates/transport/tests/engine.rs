//! The request engine over a network that loses, delays and cuts: whatever happens, a request whose answer
//! arrives was carried out exactly once, under one identity, and one that is given up not more than once, and
//! in time.

mod common;

use bivouac_layout::map::ServerState;
use bivouac_layout::{Epoch, Group, Lag, Map, News, SHARDS, ServerId, ShardId};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};
use bivouac_testing::is_quick;
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::refusing::GONE;
use bivouac_transport::engine::{
    Job, Message, Requester, To, Waited, ask_once, call, call_each, post, wait_until_up,
};
use common::ledger::*;
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FIRST: To = To::Server(ServerId(0), ShardId(0));
const SHARD: To = To::Shard(ShardId(7));
const EIO: Failure = Failure::Errno(Errno::IO);

fn whole(map: Map) -> News {
    News::Whole(Box::new(map))
}

#[test]

fn lost_answers_are_asked_for_again() {
    let remote = Remote::new(11);
    let asker = Patient::new(&[&remote.endpoint]);
    asker.done(FIRST, 0);
    remote.proxy.set(Faults { lose_one_in: 4, ..Faults::default() });
    (1..150).for_each(|operation| asker.done(FIRST, operation));
    let books = remote.books();
    books.assert_once(0..150);
    assert!(books.repeated > 20, "{}", books.repeated);
}

#[test]
fn a_request_on_which_nothing_depends_is_not_repeated() {
    let (mut dead, living) = (Remote::new(21), Remote::new(22));
    let asker = Patient::new(&[&dead.endpoint, &living.endpoint]);
    dead.stop();
    let (payload, second) = (patterned(1, PAYLOAD), To::Server(ServerId(1), ShardId(0)));
    let job = |to, operation| Job::new(to, operation_request(operation), &payload, &mut []);
    let mut jobs = [job(FIRST, 1).once(), job(second, 1)];
    let begun = Instant::now();
    call_each(&asker, &mut jobs);
    let [lost, done] = &mut jobs;
    assert_eq!(lost.take().err(), Some(EIO));
    assert_answers(done.take(), 1);
    assert!(begun.elapsed() < HANG / 4, "{:?}", begun.elapsed());
    assert_eq!(dead.books().repeated, 0);
}

#[test]
fn a_request_that_arrives_after_its_repetition_is_not_carried_out_again() {
    let remote = Remote::new(12);
    let asker = Patient::new(&[&remote.endpoint]);
    asker.done(FIRST, 0);
    let lateness = Duration::ZERO..Duration::from_millis(20);
    remote.proxy.set(Faults { late_one_in: 4, lateness, ..Faults::default() });
    (1..150).for_each(|operation| asker.done(FIRST, operation));
    // What is still on its way arrives.
    drop(remote.proxy);
    drop(remote.server);
    let books = lock(&remote.ledger.books);
    books.assert_once(0..150);
    assert!(books.overtaken > 5 && books.repeated > 20, "{} {}", books.overtaken, books.repeated);
}

#[test]
fn a_connection_may_be_cut_at_every_byte_of_request_and_answer() {
    let cut = Faults { cut_after: Some(0), ..Faults::default() };
    let (mut repeated, mut cuts) = (0, 0);
    for after in 0.. {
        let remote = Arc::new(Remote::new(after));
        let mut asker = Patient::new(&[&remote.endpoint]);
        remote.proxy.set(Faults { cut_after: Some(after), ..cut.clone() });
        // Only the first connection is cut.
        let (proxied, was_cut) = (remote.clone(), Arc::new(AtomicBool::new(false)));
        let noted = was_cut.clone();
        asker.connecting = Some(Box::new(move |number| {
            if number > 1 {
                noted.store(true, Ordering::SeqCst);
                proxied.proxy.set(Faults::default());
            }
        }));
        asker.done(FIRST, 5);
        let books = remote.books();
        books.assert_once([5]);
        repeated += books.repeated;
        if !was_cut.load(Ordering::SeqCst) {
            break;
        }
        cuts += 1;
    }
    // Every byte of both ways, the authentication included; those of the request's answer are repeated.
    assert!(cuts > 500 && repeated > 64, "{cuts} {repeated}");
}

#[test]
fn a_silent_server_is_waited_for_while_the_map_says_that_it_is_up() {
    let remote = Remote::new(14);
    let asker = Patient::new(&[&remote.endpoint]);
    asker.done(FIRST, 0);
    remote.proxy.set(Faults { silent: true, ..Faults::default() });
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| asker.done(FIRST, 1));
        std::thread::sleep(5 * Patient::BUDGET.silence);
        assert!(!asked.is_finished());
        remote.proxy.set(Faults::default());
    });
    assert!(begun.elapsed() >= 5 * Patient::BUDGET.silence);
    remote.books().assert_once([0, 1]);
    assert_eq!(remote.books().repeated, 0, "silence is no reason to repeat");
}

#[test]
fn a_silent_server_is_given_up_when_a_newer_map_says_that_it_is_down() {
    let remote = Remote::new(15);
    let asker = Patient::new(&[&remote.endpoint, &remote.endpoint]);
    asker.done(FIRST, 0);
    remote.proxy.set(Faults { silent: true, ..Faults::default() });
    std::thread::scope(|scope| {
        let one = scope.spawn(|| asker.ask(FIRST, 1));
        let each = scope.spawn(|| asker.ask_each(&[(FIRST, 2), (FIRST, 3)]));
        std::thread::sleep(3 * Patient::BUDGET.silence);
        assert!(!one.is_finished() && !each.is_finished());
        let mut newest = map(2);
        (newest.epoch, newest.servers[0].state) = (Epoch(2), ServerState::Down);
        *asker.newest.lock().unwrap() = Some(newest);
        assert_eq!(one.join().unwrap().err(), Some(EIO));
        assert!(each.join().unwrap().into_iter().all(|failed| failed.err() == Some(EIO)));
    });
    let begun = Instant::now();
    assert_eq!(asker.ask(FIRST, 4).err(), Some(EIO), "it is not asked again");
    assert!(begun.elapsed() < HANG / 2);
    remote.books().assert_at_most_once();
}

#[test]
fn what_a_cut_link_has_lost_is_sent_again_when_it_is_back_and_not_when_the_kernel_does() {
    let remote = Arc::new(Remote::new(24));
    let mut asker = Patient::new(&[&remote.endpoint]);
    asker.done(FIRST, 0);
    remote.proxy.set(Faults { silent: true, ..Faults::default() });
    // The old connection stays silent until there is a new one.
    let proxied = remote.clone();
    asker.connecting = Some(Box::new(move |_| proxied.proxy.set(Faults::default())));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| asker.done(FIRST, 1));
        std::thread::sleep(3 * Patient::BUDGET.silence);
        assert!(!asked.is_finished());
        asker.relinked.store(true, Ordering::SeqCst);
    });
    remote.books().assert_once([0, 1]);
    assert_eq!(remote.books().repeated, 1);
}

#[test]
fn what_nothing_depends_on_is_asked_once_and_not_waited_for() {
    let remote = Remote::new(25);
    let asker = Patient::new(&[&remote.endpoint]);
    let ask = |operation| ask_once(&asker, FIRST, &operation_request(operation));
    assert!(ask(1).is_some());
    remote.ledger.refuse([Refusal::OldServer]);
    assert_eq!(ask(2), None);
    assert!(ask(3).is_some(), "the refusal was for one attempt");
    remote.proxy.set(Faults { silent: true, ..Faults::default() });
    let begun = Instant::now();
    assert_eq!(ask(4), None);
    assert!(begun.elapsed() < HANG / 2, "{:?}", begun.elapsed());
}

#[test]
fn who_may_not_send_a_request_any_more_neither_waits_for_an_answer_nor_repeats_it() {
    let remote = Remote::new(23);
    let asker = Patient::new(&[&remote.endpoint, &remote.endpoint]);
    asker.done(FIRST, 0);
    remote.proxy.set(Faults { silent: true, ..Faults::default() });
    std::thread::scope(|scope| {
        let one = scope.spawn(|| asker.ask(FIRST, 1));
        let each = scope.spawn(|| asker.ask_each(&[(FIRST, 2), (FIRST, 3)]));
        std::thread::sleep(3 * Patient::BUDGET.silence);
        assert!(!one.is_finished() && !each.is_finished());
        asker.replaced.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        let old = || Some(Refusal::OldServer.into());
        assert_eq!(one.join().unwrap().err(), old());
        assert!(each.join().unwrap().into_iter().all(|failed| failed.err() == old()));
        assert!(begun.elapsed() < HANG / 2, "{:?}", begun.elapsed());
    });
    assert_eq!(remote.books().repeated, 0);
}

#[test]
fn who_believes_that_nobody_is_up_asks_for_a_newer_map() {
    let remote = Remote::new(16);
    let asker = Patient::new(&[&remote.endpoint, &remote.endpoint]);
    let mut none = map(2);
    (none.epoch, none.servers[0].state, none.servers[1].state) =
        (Epoch(2), ServerState::Down, ServerState::Down);
    asker.learn(whole(none));
    assert_eq!(asker.ask(FIRST, 0).err(), Some(EIO));
    let mut newest = map(2);
    newest.epoch = Epoch(3);
    *asker.newest.lock().unwrap() = Some(newest.clone());
    asker.done(FIRST, 1);
    asker.learn(whole({
        newest.epoch = Epoch(4);
        newest.servers.iter_mut().for_each(|server| server.state = ServerState::Down);
        newest.clone()
    }));
    newest.epoch = Epoch(5);
    newest.servers.iter_mut().for_each(|server| server.state = ServerState::Up);
    *asker.newest.lock().unwrap() = Some(newest);
    assert!(asker.ask_each(&[(FIRST, 2), (FIRST, 3)]).into_iter().all(|answer| answer.is_ok()));
    remote.books().assert_once([1, 2, 3]);
}

#[test]
fn a_server_that_joins_is_waited_for_unless_it_never_gets_up() {
    let remote = Remote::new(17);
    let asker = Patient::new(&[&remote.endpoint, &remote.endpoint]);
    let known = |epoch, state| {
        let mut newest = map(2);
        (newest.epoch, newest.servers[0].state) = (Epoch(epoch), state);
        newest
    };
    asker.learn(whole(known(2, ServerState::Joining)));
    std::thread::scope(|scope| {
        let one = scope.spawn(|| asker.ask(FIRST, 1));
        let each = scope.spawn(|| asker.ask_each(&[(FIRST, 2), (FIRST, 3)]));
        std::thread::sleep(GONE / 4);
        assert!(!one.is_finished() && !each.is_finished());
        *asker.newest.lock().unwrap() = Some(known(3, ServerState::Up));
        assert!(one.join().unwrap().is_ok());
        assert!(each.join().unwrap().into_iter().all(|answer| answer.is_ok()));
    });
    remote.books().assert_once([1, 2, 3]);
    asker.learn(whole(known(4, ServerState::Joining)));
    let begun = Instant::now();
    assert_eq!(asker.ask(FIRST, 4).err(), Some(EIO));
    assert!(begun.elapsed() >= GONE && begun.elapsed() < HANG / 2, "{:?}", begun.elapsed());
    // With copies, who names a server that joins may ask others: nobody waits for it.
    let shards = (0..SHARDS).flat_map(|_| [ServerId(0), ServerId(1)]).collect();
    asker.learn(whole(Map { copies: 2, shards, ..known(5, ServerState::Joining) }));
    assert_eq!(asker.map().epoch, Epoch(5), "a sound map");
    let begun = Instant::now();
    assert_eq!(asker.ask(FIRST, 5).err(), Some(EIO));
    assert!(begun.elapsed() < GONE, "{:?}", begun.elapsed());
}

/// Two servers hold everything, and are in these states; the first one lacks what was acknowledged last.
fn held_twice(epoch: u64, first: ServerState, second: ServerState) -> Map {
    let shards = (0..SHARDS).flat_map(|_| [ServerId(0), ServerId(1)]).collect();
    let mut map = Map { copies: 2, shards, epoch: Epoch(epoch), ..map(2) };
    (map.servers[0].state, map.servers[1].state) = (first, second);
    map.behind = (0..SHARDS)
        .map(|shard| Lag { group: Group::Shard(ShardId(shard)), holders: 0b01, since: Epoch(epoch) })
        .collect();
    map
}

#[test]
fn the_last_server_that_has_everything_is_waited_for_while_it_starts_and_joins() {
    let remote = Remote::new(23);
    let asker = Patient::new(&[&remote.endpoint, &remote.endpoint]);
    asker.learn(whole(held_twice(2, ServerState::Up, ServerState::Down)));
    assert_eq!(asker.map().epoch, Epoch(2), "a sound map");
    std::thread::scope(|scope| {
        let one = scope.spawn(|| asker.ask(SHARD, 1));
        let each = scope.spawn(|| asker.ask_each(&[(SHARD, 2), (SHARD, 3)]));
        for (epoch, state) in [(3, ServerState::Joining), (4, ServerState::Up)] {
            std::thread::sleep(GONE / 4);
            assert!(!one.is_finished() && !each.is_finished());
            *asker.newest.lock().unwrap() = Some(held_twice(epoch, ServerState::Up, state));
        }
        assert!(one.join().unwrap().is_ok());
        assert!(each.join().unwrap().into_iter().all(|answer| answer.is_ok()));
    });
    remote.books().assert_once([1, 2, 3]);
}

#[test]
fn the_last_server_that_has_everything_is_waited_for_once_if_it_stays_away() {
    let remote = Remote::new(24);
    let asker = Patient::new(&[&remote.endpoint, &remote.endpoint]);
    asker.learn(whole(held_twice(2, ServerState::Joining, ServerState::Down)));
    let begun = Instant::now();
    assert_eq!(asker.ask(SHARD, 1).err(), Some(EIO));
    assert!(begun.elapsed() >= GONE && begun.elapsed() < HANG / 2, "{:?}", begun.elapsed());
    assert!(is_quick(GONE, || {
        let begun = Instant::now();
        assert_eq!(asker.ask(SHARD, 2).err(), Some(EIO));
        assert!(
            asker.ask_each(&[(SHARD, 3), (SHARD, 4)]).into_iter().all(|answer| answer.err() == Some(EIO))
        );
        begun.elapsed()
    }));
    // It is back, and dies again.
    asker.learn(whole(held_twice(3, ServerState::Up, ServerState::Up)));
    asker.learn(whole(held_twice(4, ServerState::Up, ServerState::Down)));
    let begun = Instant::now();
    assert_eq!(asker.ask(SHARD, 5).err(), Some(EIO));
    assert!(begun.elapsed() >= GONE, "{:?}", begun.elapsed());
    remote.books().assert_once([]);
}

#[test]
fn who_names_a_server_itself_does_not_wait_for_it_where_others_may_be_in_its_place() {
    let remote = Remote::new(26);
    let asker = Patient::new(&[&remote.endpoint, &remote.endpoint]);
    asker.learn(whole(held_twice(2, ServerState::Down, ServerState::Up)));
    let begun = Instant::now();
    assert_eq!(asker.ask(FIRST, 1).err(), Some(EIO));
    assert!(begun.elapsed() < GONE, "{:?}", begun.elapsed());
    asker.done(SHARD, 2);
}

#[test]
fn servers_are_waited_for_until_they_are_up_or_one_stays_away() {
    let remote = Remote::new(25);
    let asker = Patient::new(&[&remote.endpoint, &remote.endpoint]);
    let waits = || wait_until_up(&asker, &asker.map(), &[ServerId(0), ServerId(1)]);
    assert_eq!(waits(), Waited::Up);
    asker.learn(whole(held_twice(2, ServerState::Up, ServerState::Down)));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(waits);
        std::thread::sleep(GONE / 4);
        assert!(!waiting.is_finished());
        *asker.newest.lock().unwrap() = Some(held_twice(3, ServerState::Up, ServerState::Joining));
        assert_eq!(waiting.join().unwrap(), Waited::NewerMap);
    });
    asker.learn(whole(held_twice(4, ServerState::Up, ServerState::Down)));
    let begun = Instant::now();
    assert_eq!(waits(), Waited::GivenUp);
    assert!(begun.elapsed() >= GONE && begun.elapsed() < HANG / 2, "{:?}", begun.elapsed());
    // One is enough for which it is in vain to wait; and a newer map is heard of all the same.
    asker.learn(whole(held_twice(5, ServerState::Joining, ServerState::Down)));
    let begun = Instant::now();
    assert_eq!(waits(), Waited::GivenUp);
    assert!(begun.elapsed() < GONE, "{:?}", begun.elapsed());
    *asker.newest.lock().unwrap() = Some(held_twice(6, ServerState::Up, ServerState::Up));
    assert_eq!((waits(), waits()), (Waited::NewerMap, Waited::Up));
}

#[test]
fn a_server_that_restarts_in_between_is_asked_again() {
    let mut remote = Remote::new(16);
    let asker = Patient::new(&[&remote.endpoint]);
    asker.done(FIRST, 0);
    // It carries the request out, and dies before it answers.
    remote.proxy.set(Faults { lose_one_in: 1, ..Faults::default() });
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| asker.done(FIRST, 1));
        eventually("it was carried out", || remote.books().has(1));
        remote.stop();
        remote.proxy.set(Faults::default());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!asked.is_finished());
        remote.restart();
    });
    asker.done(FIRST, 2);
    remote.books().assert_once([0, 1, 2]);
}

#[test]
fn a_server_that_takes_no_connections_is_given_up_after_the_time_for_that() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let asker = Patient::new(&[&Endpoint::Tcp(closed)]);
    let begun = Instant::now();
    assert_eq!(asker.ask(FIRST, 1).err(), Some(EIO));
    assert!(begun.elapsed() >= GONE && begun.elapsed() < HANG / 2, "{:?}", begun.elapsed());
    // The next one does not wait for it again.
    assert!(is_quick(GONE, || {
        let begun = Instant::now();
        assert_eq!(asker.ask(FIRST, 2).err(), Some(EIO));
        begun.elapsed()
    }));
}

#[test]
fn patience_ends() {
    let mut remote = Remote::new(18);
    remote.stop();
    let asker = Hasty::new(&[&remote.endpoint]);
    let patience = Hasty::BUDGET.patience;
    assert!(is_quick(patience * 3, || {
        let begun = Instant::now();
        assert_eq!(asker.ask(FIRST, 1).err(), Some(EIO));
        assert!(begun.elapsed() >= patience, "{:?}", begun.elapsed());
        begun.elapsed()
    }));
    remote.restart();
    remote.ledger.refuse(std::iter::repeat_n(Refusal::OldServer, 10_000));
    assert_eq!(asker.ask(FIRST, 2).err(), Some(Refusal::OldServer.into()));
    remote.ledger.refusals.lock().unwrap().clear();
    asker.done(FIRST, 3);
    remote.books().assert_once([3]);
}

#[test]
fn a_sender_that_closes_repeats_nothing() {
    let mut remote = Remote::new(19);
    let asker = Patient::new(&[&remote.endpoint]);
    asker.done(FIRST, 0);
    remote.stop();
    std::thread::scope(|scope| {
        let one = scope.spawn(|| asker.ask(FIRST, 1));
        let each = scope.spawn(|| asker.ask_each(&[(FIRST, 2), (FIRST, 3)]));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!one.is_finished() && !each.is_finished());
        asker.closing.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        assert!(one.join().unwrap().is_err() && each.join().unwrap().iter().all(Result::is_err));
        assert!(begun.elapsed() < Patient::BUDGET.patience / 2);
    });
}

#[test]
fn refusals_that_time_mends_are_repeated_and_others_handed_over() {
    let remote = Remote::new(20);
    let asker = Patient::new(&[&remote.endpoint]);
    remote.ledger.refuse([Refusal::Busy, Refusal::OldServer, Refusal::Busy]);
    asker.done(FIRST, 1);
    let attempts: Vec<u16> = remote.ledger.seen.lock().unwrap().iter().map(|header| header.attempt).collect();
    assert_eq!(attempts, [0, 1, 2, 3]);
    remote.ledger.refuse([Refusal::DirectorySplit]);
    assert_eq!(asker.ask(FIRST, 2).err(), Some(Refusal::DirectorySplit.into()));
    asker.done(FIRST, 3);
    remote.books().assert_once([1, 3]);
}

#[test]
fn the_slot_of_a_request_that_is_refused_is_not_used_by_others() {
    let remote = Remote::new(21);
    let asker = Patient::new(&[&remote.endpoint]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (asker, remote) = (&asker, &remote);
            scope.spawn(move || {
                for operation in thread * 100..thread * 100 + 50 {
                    remote.ledger.refuse([Refusal::Busy]);
                    asker.done(FIRST, operation);
                }
            });
        }
    });
    let books = remote.books();
    (0..4).for_each(|thread| books.assert_once(thread * 100..thread * 100 + 50));
    assert_eq!(books.overtaken, 0);
}

#[test]
fn a_request_follows_its_shard_with_its_identity() {
    let books = Arc::default();
    let [first, second] = [22, 23].map(|seed| Remote::with_books(seed, Arc::clone(&books)));
    let asker = Patient::new(&[&first.endpoint, &second.endpoint]);
    asker.done(SHARD, 0);
    // The first server has carried it out when the shard moves; nobody gets to know.
    first.proxy.set(Faults { lose_one_in: 1, ..Faults::default() });
    let mut newer = map(2);
    (newer.epoch, newer.shards) = (Epoch(2), vec![ServerId(1); newer.shards.len()]);
    std::thread::scope(|scope| {
        scope.spawn(|| asker.done(SHARD, 1));
        eventually("it was carried out", || lock(&books).has(1));
        *asker.newest.lock().unwrap() = Some(newer.clone());
    });
    assert_eq!(second.ledger.seen.lock().unwrap().last().unwrap().epoch, Epoch(2));
    // A map that comes with a refusal counts at once.
    let mut newest = map(2);
    newest.epoch = Epoch(3);
    first.proxy.set(Faults::default());
    second.ledger.refuse([Refusal::StaleMap(whole(newest))]);
    asker.done(SHARD, 2);
    let seen = first.ledger.seen.lock().unwrap().last().copied().unwrap();
    assert_eq!((seen.epoch, seen.attempt), (Epoch(3), 1));
    lock(&books).assert_once([0, 1, 2]);
}

#[test]
fn a_map_that_does_not_help_is_no_reason_to_ask_without_a_pause() {
    let remote = Remote::new(24);
    let asker = Hasty::new(&[&remote.endpoint]);
    let mut broken = map(1);
    (broken.epoch, broken.shards) = (Epoch(9), Vec::new());
    let useless = [Refusal::StaleMap(whole(map(1))), Refusal::StaleMap(whole(broken))];
    remote.ledger.refuse(useless.clone());
    asker.done(FIRST, 1);
    remote.ledger.refuse((0..5_000).flat_map(|_| useless.clone()));
    let begun = Instant::now();
    assert_eq!(asker.ask(FIRST, 2).err(), Some(EIO));
    assert!(begun.elapsed() >= Hasty::BUDGET.patience);
    let attempts = remote.ledger.seen.lock().unwrap().len();
    assert!(attempts < 100, "{attempts}");
    remote.books().assert_once([1]);
}

#[test]
fn several_at_once_are_each_carried_out_once_though_connections_break() {
    let remotes = [31, 32, 33].map(Remote::new);
    let asker = Patient::new(&remotes.each_ref().map(|remote| &remote.endpoint));
    let to = |operation: u64| To::Server(ServerId((operation % 3) as u16), ShardId(0));
    let mut operations = (0..).map(|operation| (to(operation), operation));
    for round in 0..40 {
        let faults = Faults { lose_one_in: 5, cut_one_in: 12, ..Faults::default() };
        // In the first rounds one server, later all: more requests than go out together, and a single one.
        let broken = if round < 10 { 1 } else { 3 };
        remotes[..broken].iter().for_each(|remote| remote.proxy.set(faults.clone()));
        let now: Vec<_> = operations.by_ref().take([9, 4, 1][round % 3]).collect();
        for (answered, (_, operation)) in asker.ask_each(&now).into_iter().zip(&now) {
            assert_answers(answered, *operation);
        }
    }
    let all = operations.next().unwrap().1;
    for (server, remote) in remotes.iter().enumerate() {
        let books = remote.books();
        books.assert_once((0..all).filter(|operation| operation % 3 == server as u64));
        assert!(books.repeated > 3, "{}", books.repeated);
    }
}

#[test]
fn several_at_once_are_refused_for_themselves() {
    let remotes = [34, 35].map(Remote::new);
    let asker = Patient::new(&remotes.each_ref().map(|remote| &remote.endpoint));
    let second = To::Server(ServerId(1), ShardId(0));
    remotes[0].ledger.refuse([Refusal::Busy, Refusal::OldServer]);
    remotes[1].ledger.refuse([Refusal::OldServer]);
    let answers = asker.ask_each(&[(FIRST, 1), (second, 2), (FIRST, 3), (second, 4)]);
    answers.into_iter().zip(1..).for_each(|(answered, operation)| assert_answers(answered, operation));
    // A server that is down by the map is not asked, and the others are.
    let mut newest = map(2);
    (newest.epoch, newest.servers[0].state) = (Epoch(2), ServerState::Down);
    asker.learn(whole(newest));
    let asked = remotes[0].ledger.seen.lock().unwrap().len();
    let mut answers = asker.ask_each(&[(FIRST, 5), (second, 6)]);
    assert_answers(answers.pop().unwrap(), 6);
    assert_eq!(answers.pop().unwrap().err(), Some(EIO));
    assert_eq!(remotes[0].ledger.seen.lock().unwrap().len(), asked);
    for remote in &remotes {
        remote.books().assert_at_most_once();
    }
}

#[test]
fn everything_at_once() {
    for seed in [41, 42, 43] {
        let remotes = [seed, seed + 10].map(Remote::new);
        let asker = Patient::new(&remotes.each_ref().map(|remote| &remote.endpoint));
        let ms = Duration::from_millis;
        let faults = Faults {
            delay: ms(0)..ms(2),
            cut_one_in: 20,
            lose_one_in: 20,
            late_one_in: 20,
            lateness: ms(0)..ms(20),
            ..Faults::default()
        };
        remotes.iter().for_each(|remote| remote.proxy.set(faults.clone()));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let asker = &asker;
                let to = |operation: u64| To::Server(ServerId((operation % 2) as u16), ShardId(0));
                scope.spawn(move || {
                    let mut operations = thread * 1000..thread * 1000 + 60;
                    while let Some(operation) = operations.next() {
                        asker.done(to(operation), operation);
                        let each: Vec<_> = operations.by_ref().take(4).map(|o| (to(o), o)).collect();
                        for (answered, (_, operation)) in asker.ask_each(&each).into_iter().zip(&each) {
                            assert_answers(answered, *operation);
                        }
                    }
                });
            }
        });
        for (server, remote) in remotes.into_iter().enumerate() {
            drop(remote.proxy);
            drop(remote.server);
            let all = (0..4).flat_map(|thread| thread * 1000..thread * 1000 + 60);
            let books = lock(&remote.ledger.books);
            books.assert_once(all.filter(|operation| operation % 2 == server as u64));
            assert!(books.repeated > 5, "{}", books.repeated);
        }
    }
}

#[test]
fn what_no_repetition_changes_ends_at_once() {
    let remote = Remote::new(51);
    let asker = Patient::with_key(&remote.endpoint, key(2));
    assert_eq!(asker.ask(FIRST, 1).err(), Some(Failure::Errno(Errno::ACCESS)));
    let asker = Patient::new(&[&remote.endpoint]);
    let message = Message { body: &vec![0; 2 << 20], payload: &[], watch: None };
    let too_long = call(&asker, FIRST, &message, &mut []);
    assert_eq!(too_long.err(), Some(Failure::Errno(Errno::INVAL)));
    assert_eq!(asker.ask(To::Server(ServerId(9), ShardId(0)), 1).err(), Some(EIO), "there is no such server");
    asker.done(FIRST, 2);
    remote.books().assert_once([2]);
}

#[test]
fn an_answer_may_be_waited_for_by_somebody_else() {
    let remote = Remote::new(52);
    let asker = Patient::new(&[&remote.endpoint]);
    let (body, payload) = (operation_request(1), patterned(1, PAYLOAD));
    let watched = std::cell::Cell::new(0);
    let watch = |_: std::os::fd::BorrowedFd<'_>| {
        eventually("the request is out", || remote.ledger.seen.lock().unwrap().len() > watched.get());
        watched.set(watched.get() + 1);
    };
    remote.ledger.refuse([Refusal::Busy]);
    let message = Message { body: &body, payload: &[std::io::IoSlice::new(&payload)], watch: Some(&watch) };
    assert_answers(call(&asker, FIRST, &message, &mut []), 1);
    assert_eq!(watched.get(), 2, "at each attempt");
}

#[test]
fn a_request_without_an_answer_is_sent_or_not() {
    let mut remote = Remote::new(53);
    let asker = Patient::new(&[&remote.endpoint]);
    asker.done(FIRST, 1);
    assert!(post(&asker, FIRST, &operation_request(2)));
    eventually("it arrives", || remote.ledger.posted.load(Ordering::SeqCst) == 1);
    remote.stop();
    eventually("it is noticed", || !post(&asker, FIRST, &operation_request(3)));
    remote.restart();
    assert!(post(&asker, FIRST, &operation_request(4)));
    eventually("it arrives", || remote.ledger.posted.load(Ordering::SeqCst) == 2);
}
