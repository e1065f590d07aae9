//! Tests of the bodies: every message comes back as it went out, whatever is decoded never panics, and the
//! format does not change unseen.

mod golden;
mod samples;

use crate::auth::{Challenge, Hello, Proof, Welcome};
use crate::{DirEntry, Family, Refusal, Reply, Request, codec::Malformed, decode, encode};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(value, &mut bytes);
    bytes
}

fn round_trip<'a, T: Serialize + Deserialize<'a> + PartialEq + Debug>(value: &T, bytes: &'a mut Vec<u8>) {
    encode(value, bytes);
    assert_eq!(decode(bytes).as_ref(), Ok(value));
}

/// Decodes as everything that a body can be.
fn decode_all(bytes: &[u8]) {
    fn one<'a, T: Serialize + Deserialize<'a>>(bytes: &'a [u8]) {
        if let Ok(value) = decode::<T>(bytes) {
            // What was understood can be said again. (Not in the same bytes: numbers have longer forms.)
            assert!(!encoded(&value).is_empty());
        }
    }
    one::<Request>(bytes);
    one::<Reply>(bytes);
    one::<Refusal>(bytes);
    one::<Hello>(bytes);
    one::<Challenge>(bytes);
    one::<Proof>(bytes);
    one::<Welcome>(bytes);
}

#[test]
fn the_family_of_a_request_is_known_without_decoding_it() {
    let mut seen = Vec::new();
    for request in samples::requests() {
        let family = match &request {
            Request::Meta(_) => Family::Meta,
            Request::Data(_) => Family::Data,
            Request::Peer(_) => Family::Peer,
            Request::Agent(_) => Family::Agent,
            Request::Control(_) => Family::Control,
            Request::Node(_) => Family::Node,
            Request::Copied(_) => Family::Copied,
            Request::Copy(_) => Family::Copy,
            Request::Raft(_) => Family::Raft,
            Request::Restripe(_) => Family::Restripe,
            Request::Fetch(_) => Family::Fetch,
            Request::Gather(_) => Family::Gather,
        };
        assert_eq!(Family::of(&encoded(&request)), Some(family));
        if !seen.contains(&family) {
            seen.push(family);
        }
    }
    assert_eq!(seen.len(), 12, "there are samples of all of them");
    assert_eq!((Family::of(&[]), Family::of(&[12])), (None, None));
}

#[test]
fn every_request_comes_back_as_it_went_out() {
    samples::requests().iter().for_each(|request| round_trip(request, &mut Vec::new()));
}

#[test]
fn a_request_between_servers_that_is_not_copied_is_encoded_the_same() {
    let requests = samples::requests();
    let of_peers = requests.iter().filter_map(|request| match request {
        Request::Peer(peer) => Some((request, peer)),
        _ => None,
    });
    let mut count = 0;
    for (request, peer) in of_peers {
        assert_eq!(encoded(&crate::peer::Borrowed(peer)), encoded(request));
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn every_reply_and_refusal_comes_back_as_it_went_out() {
    samples::replies().iter().for_each(|reply| round_trip(reply, &mut Vec::new()));
    samples::refusals().iter().for_each(|refusal| round_trip(refusal, &mut Vec::new()));
}

#[test]
fn every_step_of_the_authentication_comes_back_as_it_went_out() {
    samples::hellos().iter().for_each(|hello| round_trip(hello, &mut Vec::new()));
    let (nonce, proof) = ([0xfe; 32], [0x80; 32]);
    round_trip(&Challenge { nonce, proof }, &mut Vec::new());
    round_trip(&Proof { proof }, &mut Vec::new());
    let welcome = Welcome { epoch: bivouac_layout::Epoch(u64::MAX), namespace: 1, process: 0 };
    round_trip(&welcome, &mut Vec::new());
}

/// The variants of each family, told by the first bytes: no two samples lists may leave one out.
#[test]
fn there_is_a_sample_of_every_variant() {
    fn check<T: for<'a> Deserialize<'a>>(what: &str, family: &[u8], samples: &[Vec<u8>]) {
        let known = |bytes: &Vec<u8>| bytes.starts_with(family).then(|| bytes.get(family.len()).copied());
        let present: std::collections::BTreeSet<u8> = samples.iter().filter_map(known).flatten().collect();
        let count = u8::try_from(present.len()).unwrap();
        assert!(present.iter().copied().eq(0..count), "{what}: variants {present:?}");
        // An unknown variant is refused whatever follows; zeros are something in every known one.
        let next: Vec<u8> = family.iter().copied().chain([count]).chain([0; 4096]).collect();
        let unknown = postcard::take_from_bytes::<T>(&next).is_err();
        assert!(unknown, "{what}: variant {count} has no sample");
    }
    let requests: Vec<_> = samples::requests().iter().map(encoded).collect();
    let replies: Vec<_> = samples::replies().iter().map(encoded).collect();
    for (family, reply) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (7, 7), (9, 8)] {
        check_request(family, &requests);
        check::<Reply>("reply", &[reply], &replies);
    }
    check::<Reply>("replies", &[], &replies);
    check::<Refusal>("refusals", &[], &samples::refusals().iter().map(encoded).collect::<Vec<_>>());

    // `Request` borrows, so it is no `for<'a> Deserialize<'a>`.
    fn check_request(family: u8, samples: &[Vec<u8>]) {
        let known = |bytes: &Vec<u8>| (bytes[0] == family).then(|| bytes[1]);
        let present: std::collections::BTreeSet<u8> = samples.iter().filter_map(known).collect();
        let count = u8::try_from(present.len()).unwrap();
        assert!(present.iter().copied().eq(0..count), "family {family}: variants {present:?}");
        let next: Vec<u8> = [family, count].into_iter().chain([0; 4096]).collect();
        let unknown = postcard::take_from_bytes::<Request>(&next).is_err();
        assert!(unknown, "family {family}: request {count} has no sample");
    }
}

#[test]
fn a_message_truncated_anywhere_is_malformed() {
    for bytes in samples::requests().iter().map(encoded) {
        for cut in 0..bytes.len() {
            assert_eq!(decode::<Request>(&bytes[..cut]), Err(Malformed));
        }
    }
    for bytes in samples::replies().iter().map(encoded).filter(|bytes| bytes.len() < 2000) {
        for cut in 0..bytes.len() {
            assert_eq!(decode::<Reply>(&bytes[..cut]), Err(Malformed));
        }
    }
}

#[test]
fn trailing_bytes_are_malformed() {
    for mut bytes in samples::requests().iter().map(encoded) {
        bytes.push(0);
        assert_eq!(decode::<Request>(&bytes), Err(Malformed));
    }
}

#[test]
fn encoding_appends() {
    let mut bytes = b"before".to_vec();
    encode(&Reply::Done, &mut bytes);
    assert_eq!(bytes, b"before\0");
}

#[test]
fn a_claimed_length_allocates_nothing() {
    // A listing of 2^60 entries, of which none follows; were it believed, the process would end here.
    let entries: Vec<DirEntry> = Vec::new();
    let listing = encoded(&Reply::Meta(crate::meta::MetaReply::Listing { entries, end: true }));
    let claimed = [&listing[..2], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10, 1]].concat();
    assert_eq!(decode::<Reply>(&claimed), Err(Malformed));
}

#[test]
fn names_of_any_bytes_travel() {
    let all: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    for name in [&all[..], b"\xff\xfe", &[b'x'; 255]] {
        let at = crate::meta::At { dir: bivouac_layout::Ino(u64::MAX), split: true, name };
        round_trip(&Request::Meta(crate::meta::MetaRequest::Lookup { at }), &mut Vec::new());
    }
}

#[test]
fn frequent_messages_stay_small() {
    for request in samples::requests() {
        let (limit, frequent) = match &request {
            // With a name of 20 bytes, and every number as long as it can get.
            Request::Meta(crate::meta::MetaRequest::Open { .. }) => (80, true),
            Request::Meta(crate::meta::MetaRequest::Release { .. }) => (80, true),
            Request::Data(_) => (40, true),
            _ => (0, false),
        };
        let len = encoded(&request).len();
        assert!(!frequent || len < limit, "{len} bytes: {request:?}");
    }
    let attr = Reply::Meta(crate::meta::MetaReply::Attr(Box::new(samples::largest_attr())));
    assert!(encoded(&attr).len() < 160, "{}", encoded(&attr).len());
}

/// Bytes that begin like a message of some family and variant.
fn nearly_a_message() -> impl Strategy<Value = Vec<u8>> {
    (0u8..7, 0u8..40, prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(family, variant, mut rest)| {
        rest.splice(0..0, [family, variant]);
        rest
    })
}

/// A message with some bytes changed, inserted or cut off.
fn damaged_message() -> impl Strategy<Value = Vec<u8>> {
    let messages: Vec<Vec<u8>> =
        samples::requests().iter().map(encoded).chain(samples::replies().iter().map(encoded)).collect();
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..6);
    (prop::sample::select(messages), damage).prop_map(|(mut bytes, damage)| {
        for (at, byte, how) in damage {
            let at = at.index(bytes.len().max(1)).min(bytes.len());
            match (how, bytes.get_mut(at)) {
                (0, Some(old)) => *old = byte,
                (1, _) => bytes.insert(at, byte),
                _ => bytes.truncate(bytes.len() - usize::from(byte % 4).min(bytes.len())),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        decode_all(&bytes);
    }

    #[test]
    fn bytes_that_begin_well_do_not_panic(bytes in nearly_a_message()) {
        decode_all(&bytes);
    }

    #[test]
    fn damaged_messages_do_not_panic(bytes in damaged_message()) {
        decode_all(&bytes);
    }
}

#[global_allocator]
static ALLOCATOR: bivouac_testing::fuzz::Counting = bivouac_testing::fuzz::Counting;

#[test]
fn whatever_a_peer_sends_is_decoded_or_refused() {
    let header = crate::Header::from_bytes(&[0; crate::header::HEADER_LEN]).map(|header| header.to_bytes());
    let header = header.unwrap_or([0; crate::header::HEADER_LEN]);
    let mut bodies: Vec<Vec<u8>> = samples::requests().iter().map(encoded).collect();
    bodies.extend(samples::replies().iter().map(encoded));
    bodies.extend(samples::refusals().iter().map(encoded));
    bodies.extend(samples::hellos().iter().map(encoded));
    let messages: Vec<_> = bodies.iter().map(|body| [&header[..], body].concat()).collect();
    // A body may take this many times its own length: an empty string takes 24 bytes, and is encoded in one.
    bivouac_testing::fuzz::run("messages", &messages, 16 << 20, crate::fuzzing::messages);
}

#[test]
fn whatever_is_taken_for_a_map_is_refused_or_can_be_used() {
    let sound = |servers: u16| {
        let mut map = samples::map();
        let (server, node) = (map.servers[0].clone(), map.nodes[0].clone());
        map.servers = (0..servers)
            .map(|id| {
                let mut s = server.clone();
                s.id = bivouac_layout::ServerId(id);
                s.node = node.id;
                s
            })
            .collect();
        map.nodes = vec![node.clone()];
        map.away = vec![node.id];
        map.vacated.clear();
        (map.copies, map.replicas, map.min_copies) = (1, 1, 1);
        map.behind.clear();
        map.arriving.clear();
        map.departing.clear();
        map.moving.retain(|_| servers > 1);
        map.numbers = servers;
        map.spares.retain(|spare| spare.server.0 < servers);
        map.successors.clear();
        if let Some(forwarding) = &mut map.forwarding {
            forwarding.io_nodes = vec![bivouac_layout::ServerId(0)];
            forwarding.former.clear();
        }
        map.emptied.clear();
        map.block_size = 1 << 20;
        map.width = 0;
        map.first = bivouac_layout::First::Hashed;
        map.shards = (0..bivouac_layout::SHARDS).map(|s| bivouac_layout::ServerId(s % servers)).collect();
        map.generations = vec![bivouac_layout::map::Generation {
            servers: (0..servers).map(bivouac_layout::ServerId).collect(),
        }];
        assert_eq!(map.check(), Ok(()));
        encoded(&*map)
    };
    let samples = [sound(1), sound(5), encoded(&*samples::map())];
    bivouac_testing::fuzz::run("map", &samples, 16 << 20, crate::fuzzing::map);
}
