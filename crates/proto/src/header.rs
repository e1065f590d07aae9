//! The fixed part of every message: 64 bytes, little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `BVWK` |
//! | 4..6 | protocol version |
//! | 6 | kind |
//! | 7 | flags |
//! | 8..12 | length of the body |
//! | 12..16 | length of the payload |
//! | 16..18 | status (replies) |
//! | 18..20 | shard (requests to the metadata) |
//! | 20..24 | slot of the request's identity |
//! | 24..32 | map epoch of the sender |
//! | 32..40 | namespace version of the sender |
//! | 40..48 | session of the request's identity |
//! | 48..56 | sequence of the request's identity |
//! | 56..58 | attempt at the request |
//! | 58..60 | reserved, zero |
//! | 60..64 | version of the file's layout that the sender goes by (requests for blocks) |

use crate::status::Status;
use bivouac_layout::{Epoch, ShardId};
use serde::{Deserialize, Serialize};

/// First bytes of every message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"BVWK");
/// Version of the whole wire format.
pub const VERSION: u16 = 28;
/// Bytes of a header.
pub const HEADER_LEN: usize = 64;
/// Longest body, bytes.
pub const MAX_BODY: u32 = 1 << 20;
/// Longest payload, bytes: longer transfers go in several requests.
pub const MAX_PAYLOAD: u32 = 8 << 20;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Asks for something.
    Request = 0,
    /// Answers the oldest unanswered request of the connection.
    Reply = 1,
    /// From a server to an agent, unasked (invalidate, revoke). Reserved: nobody sends one yet, and who
    /// receives one drops the connection.
    Callback = 2,
    /// A message of the authentication. Nothing else is accepted before it has succeeded.
    Auth = 3,
}

/// Flag: the sender expects no reply, and none is sent.
pub const NO_REPLY: u8 = 1;
/// Flag: an earlier attempt at the request was not answered by another process than the one that it is sent to now. It may have
/// been carried out there.
pub const LOST: u8 = 2;

/// The identity of a request. If a request is repeated under the same identity, the server repeats the answer
/// and does not carry the request out again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Debug, Default)]
pub struct RequestId {
    /// The client's session, unique in the deployment; 0 for requests that need no identity.
    pub session: u64,
    /// One of the session's request slots, each of which has at most one request under way.
    pub slot: u32,
    /// Counts the slot's requests.
    pub sequence: u64,
}

/// An open file description, as servers know it: a slot of a node's table of open descriptions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Debug, Default)]
pub struct OpenId {
    /// The agent of its node (by a random number that the agent draws at its start).
    pub agent: u64,
    /// Slot in the node's table.
    pub slot: u32,
    /// How often the slot had been used before.
    pub incarnation: u32,
}

/// The fixed part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// [`NO_REPLY`], [`LOST`], both or 0.
    pub flags: u8,
    /// Bytes of the body, at most [`MAX_BODY`].
    pub body_len: u32,
    /// Bytes of the payload, at most [`MAX_PAYLOAD`].
    pub payload_len: u32,
    /// How the request ended (replies).
    pub status: Status,
    /// Which shard a request to the metadata addresses.
    pub shard: ShardId,
    /// The sender's map epoch.
    pub epoch: Epoch,
    /// The sender's namespace version.
    pub namespace: u64,
    /// Identity of the request.
    pub id: RequestId,
    /// How often the request was sent before: 0, unless an answer was lost or the request was refused.
    pub attempt: u16,
    /// Which version of the file's layout the sender of a request for blocks goes by.
    pub layout: u32,
}

/// Why bytes are not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The peer does not speak this protocol.
    #[error("not a Bivouac peer (magic {0:#010x})")]
    Magic(u32),
    /// The peer speaks another version of it.
    #[error(
        "the peer speaks protocol version {theirs}, this program {VERSION}: install the same Bivouac on all nodes"
    )]
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// Unknown kind.
    #[error("unknown message kind {0}")]
    Kind(u8),
    /// A length beyond its bound.
    #[error("message too long (body {body}, payload {payload} bytes)")]
    Length {
        /// Bytes of the body.
        body: u32,
        /// Bytes of the payload.
        payload: u32,
    },
}

impl Header {
    /// A header of `kind` with everything else zero.
    pub fn new(kind: Kind) -> Header {
        Header {
            kind,
            flags: 0,
            body_len: 0,
            payload_len: 0,
            status: Status::OK,
            shard: ShardId(0),
            epoch: Epoch(0),
            namespace: 0,
            id: RequestId::default(),
            attempt: 0,
            layout: 0,
        }
    }

    /// The wire form.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[6] = self.kind as u8;
        out[7] = self.flags;
        out[8..12].copy_from_slice(&self.body_len.to_le_bytes());
        out[12..16].copy_from_slice(&self.payload_len.to_le_bytes());
        out[16..18].copy_from_slice(&self.status.0.to_le_bytes());
        out[18..20].copy_from_slice(&self.shard.0.to_le_bytes());
        out[20..24].copy_from_slice(&self.id.slot.to_le_bytes());
        out[24..32].copy_from_slice(&self.epoch.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.namespace.to_le_bytes());
        out[40..48].copy_from_slice(&self.id.session.to_le_bytes());
        out[48..56].copy_from_slice(&self.id.sequence.to_le_bytes());
        out[56..58].copy_from_slice(&self.attempt.to_le_bytes());
        out[60..64].copy_from_slice(&self.layout.to_le_bytes());
        out
    }

    /// Reads the wire form and checks it. The version is checked before anything that a later version may
    /// change.
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Result<Header, HeaderError> {
        let u16_at = |i: usize| u16::from_le_bytes([bytes[i], bytes[i + 1]]);
        let u32_at = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        if u32_at(0) != MAGIC {
            return Err(HeaderError::Magic(u32_at(0)));
        }
        if u16_at(4) != VERSION {
            return Err(HeaderError::Version { theirs: u16_at(4) });
        }
        let kind = match bytes[6] {
            0 => Kind::Request,
            1 => Kind::Reply,
            2 => Kind::Callback,
            3 => Kind::Auth,
            other => return Err(HeaderError::Kind(other)),
        };
        let (body_len, payload_len) = (u32_at(8), u32_at(12));
        if body_len > MAX_BODY || payload_len > MAX_PAYLOAD {
            return Err(HeaderError::Length { body: body_len, payload: payload_len });
        }
        Ok(Header {
            kind,
            flags: bytes[7],
            body_len,
            payload_len,
            status: Status(u16_at(16)),
            shard: ShardId(u16_at(18)),
            epoch: Epoch(u64_at(24)),
            namespace: u64_at(32),
            id: RequestId { session: u64_at(40), slot: u32_at(20), sequence: u64_at(48) },
            attempt: u16_at(56),
            layout: u32_at(60),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_header() -> impl Strategy<Value = Header> {
        let kind = prop::sample::select(vec![Kind::Request, Kind::Reply, Kind::Callback, Kind::Auth]);
        let lengths = (0..=MAX_BODY, 0..=MAX_PAYLOAD);
        let id = (any::<u64>(), any::<u32>(), any::<u64>());
        let rest = (any::<u8>(), any::<u16>(), any::<u16>(), any::<u64>(), any::<u64>(), any::<(u16, u32)>());
        (kind, lengths, id, rest).prop_map(|(kind, (body_len, payload_len), id, rest)| {
            let (session, slot, sequence) = id;
            let (flags, status, shard, epoch, namespace, (attempt, layout)) = rest;
            Header {
                kind,
                flags,
                body_len,
                payload_len,
                status: Status(status),
                shard: ShardId(shard),
                epoch: Epoch(epoch),
                namespace,
                id: RequestId { session, slot, sequence },
                attempt,
                layout,
            }
        })
    }

    proptest! {
        #[test]
        fn a_header_survives_the_wire(header in any_header()) {
            prop_assert_eq!(Header::from_bytes(&header.to_bytes()), Ok(header));
        }

        #[test]
        fn random_bytes_do_not_panic(mut bytes: [u8; HEADER_LEN], magic: bool, version: bool) {
            if magic {
                bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            }
            if version {
                bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
            }
            if let Ok(header) = Header::from_bytes(&bytes) {
                prop_assert!(header.body_len <= MAX_BODY && header.payload_len <= MAX_PAYLOAD);
            }
        }

        #[test]
        fn another_version_is_named_whatever_follows(mut bytes: [u8; HEADER_LEN], theirs: u16) {
            prop_assume!(theirs != VERSION);
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[4..6].copy_from_slice(&theirs.to_le_bytes());
            prop_assert_eq!(Header::from_bytes(&bytes), Err(HeaderError::Version { theirs }));
        }
    }

    #[test]
    fn lengths_are_accepted_up_to_their_bounds() {
        let header = |body_len, payload_len| Header { body_len, payload_len, ..Header::new(Kind::Request) };
        let parsed = |body, payload| Header::from_bytes(&header(body, payload).to_bytes());
        assert!(parsed(MAX_BODY, MAX_PAYLOAD).is_ok());
        for (body, payload) in [(MAX_BODY + 1, 0), (0, MAX_PAYLOAD + 1), (u32::MAX, 0), (0, u32::MAX)] {
            assert_eq!(parsed(body, payload), Err(HeaderError::Length { body, payload }));
        }
    }

    #[test]
    fn unknown_kinds_are_refused() {
        let mut bytes = Header::new(Kind::Request).to_bytes();
        for kind in 0..=u8::MAX {
            bytes[6] = kind;
            match Header::from_bytes(&bytes) {
                Ok(header) => assert!(kind < 4 && header.kind as u8 == kind),
                Err(error) => assert!(kind >= 4 && error == HeaderError::Kind(kind)),
            }
        }
    }

    #[test]
    fn other_protocols_are_refused() {
        let mut bytes = [0; HEADER_LEN];
        bytes[..14].copy_from_slice(b"GET / HTTP/1.1");
        assert!(matches!(Header::from_bytes(&bytes), Err(HeaderError::Magic(_))));
    }
}
