use super::*;
use crate::copies;
use bivouac_data::DataStore;
use bivouac_layout::{Epoch, Founding, Ino, MapChange, Node, Server, ServerState};
use bivouac_meta::Standing;
use bivouac_proto::auth::{Credentials, Key};
use bivouac_proto::copies::{Change, CopyReply};
use bivouac_proto::data::DataRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};

#[test]
fn a_copy_on_the_programs_node_is_the_last_of_the_chain() {
    let server = |id: u16| Server {
        id: ServerId(id),
        node: NodeId(id / 2),
        address: std::net::SocketAddr::from(([127, 0, 0, 1], 1)),
        state: ServerState::Up,
        joined: 0,
        former: Vec::new(),
    };
    let map = Map { servers: (0..6).map(server).collect(), ..Map::before_the_first(7) };
    let order = |others: &[u16], node: Option<u16>| -> Vec<u16> {
        let others: Vec<ServerId> = others.iter().copied().map(ServerId).collect();
        in_order(&map, &others, node.map(NodeId)).iter().map(|server| server.0).collect()
    };
    assert_eq!(order(&[4, 1, 2], Some(2)), [1, 2, 4]);
    assert_eq!(order(&[4, 1, 2], Some(0)), [4, 2, 1]);
    assert_eq!(order(&[4, 1, 2], None), [4, 1, 2]);
    assert_eq!(order(&[], Some(0)), [0u16; 0]);
}

#[test]
fn a_server_that_did_not_get_what_was_sent_is_doubted_for_a_while() {
    let chain = Chain::new(5);
    let servers = [ServerId(1), ServerId(2)];
    assert!(chain.trusts(&servers));
    chain.doubt(ServerId(2));
    assert!(!chain.trusts(&servers) && chain.trusts(&servers[..1]));
    let long_ago = Instant::now().checked_sub(DOUBTED).expect("the machine runs for longer");
    chain.doubts.lock().expect("sound").insert(ServerId(2), long_ago);
    assert!(chain.trusts(&servers));
}

const FILE: Ino = Ino(5 << 52 | 7);

/// Bytes that a server sends ahead.
fn ahead(by: ServerId, number: u64) -> CopyRequest {
    CopyRequest::Ahead { sent: Sent { by: Sender::Server(by), number }, rest: Vec::new() }
}

/// A server that holds copies of a group; the group's primary, and another holder.
struct Holder {
    copies: Copies,
    group: Group,
    primary: ServerId,
    other: ServerId,
    /// The epoch that requests state.
    since: Epoch,
    _storage: tempfile::TempDir,
}

impl Holder {
    fn new() -> Holder {
        let server = |id: u16| Server {
            id: ServerId(id),
            node: NodeId(id),
            address: ([127, 0, 0, 1], 1).into(),
            state: ServerState::Up,
            joined: 0,
            former: Vec::new(),
        };
        let node = |id: u16| {
            let agent = ([127, 0, 0, 1], 1).into();
            Node { id: NodeId(id), host: format!("node{id}"), agent, domain: id }
        };
        let (nodes, servers) = ((0..3).map(node).collect(), (0..3).map(server).collect());
        let founding =
            Founding { replicas: 3, metadata_replicas: 3, ..Founding::new(7, "/bivouac", nodes, servers) };
        let map = founding.map().expect("a sound map");
        let is_whole =
            |group: &Group| super::super::holder::is_of_blocks(group) && map.holders(*group).all().len() == 3;
        let group = map.replicated().find(is_whole).expect("a group of blocks with three copies");
        let holders = map.holders(group).all().to_vec();
        let [primary, me, other] = holders[..] else { panic!("{holders:?}") };
        let storage = tempfile::tempdir().expect("made");
        let store = Arc::new(DataStore::open(&[storage.path().into()], 7, me).expect("opened"));
        store.keep_sums().expect("kept");
        let since = map.epoch;
        let links = Links::new(Key([1; 32]), (Role::Server(me), 0), map, None, 1);
        let copies = Copies::new(Arc::new(links), store, me);
        Holder { copies, group, primary, other, since, _storage: storage }
    }

    /// Bytes come that were sent ahead.
    fn get(&self, by: ServerId, number: u64, bytes: &[u8]) {
        self.copies.keep(None, &ahead(by, number), bytes);
    }

    /// A server has it write bytes that were sent ahead, 100 at offset 1000.
    fn write(&self, from: ServerId, number: u64) -> Result<CopyReply, Failure> {
        self.write_bytes(from, number, &[number as u8; 100])
    }

    /// The same; which bytes the primary has.
    fn write_bytes(&self, from: ServerId, number: u64, bytes: &[u8]) -> Result<CopyReply, Failure> {
        let sent = Sent { by: Sender::Server(from), number };
        let change = Change::Sent { sent, sum: crc32c::crc32c(bytes), sync: false };
        let request = CopyRequest::Forward {
            group: self.group,
            slot: 1,
            turn: number,
            ino: FILE,
            offset: 1000,
            len: 100,
            change,
        };
        self.copies.serve((from, self.since, 0), &request, &[], &mut Vec::new())
    }

    /// A server is down, comes back and catches up: all is as before, by a newer map.
    fn comes_and_goes(&self, server: ServerId) {
        let links = &self.copies.links;
        let learn = |change: MapChange| links.learn(change.apply(&links.map()).expect("a change"));
        for state in [ServerState::Down, ServerState::Joining, ServerState::Up] {
            learn(MapChange::State { server, state });
        }
        let map = links.map();
        let behind = map.replicated().filter(|group| map.is_behind(*group, server)).collect();
        learn(MapChange::InStep { servers: vec![(server, behind)] });
    }

    /// What it has at offset 1000; whether it has a mark, too.
    fn has(&self) -> (Vec<u8>, bool) {
        let mut bytes = vec![0; 200];
        let count = self.copies.store.read(FILE, 1000, &mut bytes).expect("read");
        bytes.truncate(count);
        (bytes, !self.copies.marks.all().is_empty())
    }
}

#[test]
fn bytes_that_were_sent_ahead_change_nothing_before_their_change_and_then_as_if_they_had_come_with_it() {
    let holder = Holder::new();
    holder.get(holder.primary, 1, &[1; 100]);
    assert_eq!(holder.has(), (Vec::new(), false));
    assert_eq!(holder.write(holder.primary, 1), Ok(CopyReply::Made));
    assert_eq!(holder.has(), (vec![1; 100], true));
    assert_eq!(holder.write(holder.primary, 1), Ok(CopyReply::Missing), "they are used once");
    assert_eq!(holder.has(), (vec![1; 100], true));
}

#[test]
fn what_has_waited_here_while_its_primary_was_replaced_is_not_made_when_it_is_the_primary_again() {
    let mut holder = Holder::new();
    holder.get(holder.primary, 1, &[1; 100]);
    // It was taken by the map that its sender had; then it waited, for the bytes for example.
    holder.comes_and_goes(holder.primary);
    let map = holder.copies.links.map();
    assert_eq!(map.primary_of(holder.group), Some(holder.primary), "it is as before");
    assert_eq!(holder.write(holder.primary, 1), Err(Refusal::Busy.into()));
    assert_eq!(holder.has().0, Vec::<u8>::new());
    holder.since = map.epoch;
    holder.get(holder.primary, 2, &[2; 100]);
    assert_eq!(holder.write(holder.primary, 2), Ok(CopyReply::Made));
    assert_eq!(holder.has().0, vec![2; 100]);
}

#[test]
fn the_server_of_a_files_shard_that_was_replaced_meanwhile_changes_nothing_by_its_former_right() {
    let holder = Holder::new();
    let (links, shard) = (&holder.copies.links, FILE.shard());
    let server = links.map().primary(shard);
    let sender =
        |since| copies::Sender { server, standing: Some(Standing { group: Group::Shard(shard), since }) };
    let write = DataRequest::Write { ino: FILE, offset: 0, sync: false };
    let check = |since| holder.copies.check_sender(sender(since), &write);
    assert_eq!(check(holder.since), Ok(()));
    holder.comes_and_goes(server);
    assert_eq!(links.map().primary(shard), server, "it is as before");
    assert_eq!(check(holder.since), Err(Refusal::Busy));
    assert_eq!(check(links.epoch()), Ok(()));
}

#[test]
fn what_was_not_sent_ahead_is_missing_and_nothing_is_changed() {
    let holder = Holder::new();
    // Another number; another server's; and some of which the rest does not come.
    holder.get(holder.primary, 2, &[2; 100]);
    holder.get(holder.other, 1, &[1; 100]);
    assert_eq!(holder.write(holder.primary, 1), Ok(CopyReply::Missing));
    drop(holder.copies.begin_keeping(&ahead(holder.primary, 4), 100));
    assert_eq!(holder.write(holder.primary, 4), Ok(CopyReply::Missing));
    // A program has changed its buffer between sending it here and to the primary.
    holder.get(holder.primary, 5, &[5; 100]);
    assert_eq!(holder.write_bytes(holder.primary, 5, &[6; 100]), Ok(CopyReply::Missing));
    assert_eq!(holder.has(), (Vec::new(), false), "no mark either");
}

#[test]
fn bytes_of_another_length_than_their_range_are_refused() {
    for length in [0, 99, 101] {
        let holder = Holder::new();
        let bytes = vec![1; length];
        holder.get(holder.primary, 1, &bytes);
        assert_eq!(
            holder.write_bytes(holder.primary, 1, &bytes),
            Err(Failure::Errno(Errno::INVAL)),
            "{length}"
        );
        assert_eq!(holder.has(), (Vec::new(), false));
    }
}

#[test]
fn who_is_not_the_primary_has_nothing_written_by_what_it_sent_ahead() {
    let holder = Holder::new();
    holder.get(holder.other, 1, &[1; 100]);
    assert_eq!(holder.write(holder.other, 1), Err(Failure::Refused(Refusal::Busy)));
    assert!(holder.has().0.is_empty());
}

#[test]
fn programs_send_ahead_only_in_their_own_name_and_to_one_copy() {
    let program = Role::Client { credentials: Credentials::default(), node: NodeId(0), job: 0 };
    let request =
        |by, rest: &[ServerId]| CopyRequest::Ahead { sent: Sent { by, number: 1 }, rest: rest.to_vec() };
    let server = ServerId(1);
    assert!(may_send_ahead(&program, 7, &request(Sender::Program(7), &[])));
    assert!(!may_send_ahead(&program, 8, &request(Sender::Program(7), &[])));
    assert!(!may_send_ahead(&program, 7, &request(Sender::Server(server), &[])));
    assert!(!may_send_ahead(&program, 7, &request(Sender::Program(7), &[server])));
    assert!(!may_send_ahead(&program, 7, &CopyRequest::Marks));
    assert!(may_send_ahead(&Role::Server(server), 0, &request(Sender::Server(server), &[server])));
    assert!(!may_send_ahead(&Role::Control, 0, &request(Sender::Server(server), &[])));
}

#[test]
fn only_a_primary_sends_bytes_ahead_and_only_many() {
    let holder = Holder::new();
    let program = Program::default();
    assert!(holder.copies.begin_ahead(holder.group, &program, LEAST).is_none(), "another one is");
    assert!(holder.copies.send_ahead(holder.group, &program, &[0; LEAST]).is_none());
    let is_own = |group: &Group| holder.copies.is_primary_of(*group);
    let own = holder.copies.links.map().replicated().find(is_own).expect("a group");
    assert!(holder.copies.begin_ahead(own, &program, LEAST - 1).is_none());
    assert!(holder.copies.chain.doubts.lock().expect("sound").is_empty(), "nothing was tried");
    // Nobody listens at the others' addresses: the bytes go with the change.
    assert!(holder.copies.begin_ahead(own, &program, LEAST).is_none());
    assert_eq!(holder.copies.chain.doubts.lock().expect("sound").len(), 1);
}
