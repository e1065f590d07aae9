//! How both ends prove that they know the deployment's key, before anything else.
//!
//! 1. The client sends [`Hello`]: a fresh random number, and who it is.
//! 2. The server sends [`Challenge`]: its own random number, and its proof over both numbers.
//! 3. The client checks the proof, and sends [`Proof`], its own.
//! 4. The server checks it, and sends [`Welcome`].
//!
//! Proofs are HMAC-SHA-256 with the key over a label (different for each side, so that neither can be
//! reflected), both numbers and the [`Hello`]'s encoding, so that nothing in it can be changed on the way.
//! The four messages are bodies of [`crate::Kind::Auth`] messages; a peer that fails gets no reason, and the
//! connection is closed. What follows is neither encrypted nor signed: the job's network is trusted not to
//! alter established connections.

use bivouac_layout::{NodeId, ServerId};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// Bytes of a deployment's key.
pub const KEY_LEN: usize = 32;
/// Bytes of a random number.
pub const NONCE_LEN: usize = 32;

/// In a [`Hello`]: any deployment that has the key. (A process that attaches knows the key, but not yet the
/// number.)
pub const ANY_DEPLOYMENT: u64 = 0;

/// A deployment's key. It is never shown, not even by `Debug`.
#[derive(Clone)]
pub struct Key(pub [u8; KEY_LEN]);

impl Key {
    /// From its hexadecimal digits, exactly so many as it has; `None` for anything else.
    pub fn from_hex(digits: &[u8]) -> Option<Key> {
        if digits.len() != 2 * KEY_LEN {
            return None;
        }
        let mut key = [0; KEY_LEN];
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Some(Key(key))
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What a connection is for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Role {
    /// A process that uses the file system.
    Client {
        /// For permission checks.
        credentials: Credentials,
        /// The machine that it runs on, as its agent said: files of directories with `first = local` begin
        /// there. [`NodeId::NONE`] as long as no agent was asked.
        node: NodeId,
        /// The job that it belongs to, for I/O nodes whose scheduler tells jobs apart; 0: it did not say.
        job: u64,
    },
    /// Another server.
    Server(ServerId),
    /// An agent.
    Agent(u64),
    /// The controller, or the command line.
    Control,
}

/// Whose requests these are.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct Credentials {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// First message, from the client.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Hello {
    /// Fresh and random.
    pub nonce: [u8; NONCE_LEN],
    /// The deployment that the client means, or [`ANY_DEPLOYMENT`].
    pub deployment: u64,
    /// What the connection is for.
    pub role: Role,
}

/// Second message, from the server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Challenge {
    /// Fresh and random.
    pub nonce: [u8; NONCE_LEN],
    /// The server's proof.
    pub proof: [u8; 32],
}

/// Third message, from the client.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Proof {
    /// The client's proof.
    pub proof: [u8; 32],
}

/// Fourth message, from the server: requests may follow.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Welcome {
    /// The server's map epoch.
    pub epoch: bivouac_layout::Epoch,
    /// The server's namespace version: see [`crate::Refusal::StaleNamespace`].
    pub namespace: u64,
    /// A random number of the daemon's process: what it remembers of requests, no other process does.
    pub process: u64,
}

/// Whose proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

/// The proof of one side.
pub fn prove(key: &Key, side: Side, hello: &Hello, server_nonce: &[u8; NONCE_LEN]) -> [u8; 32] {
    mac(key, side, hello, server_nonce).finalize().into_bytes().into()
}

/// Whether a proof is valid. Takes the same time in all cases.
pub fn verify(
    key: &Key,
    side: Side,
    hello: &Hello,
    server_nonce: &[u8; NONCE_LEN],
    proof: &[u8; 32],
) -> bool {
    mac(key, side, hello, server_nonce).verify_slice(proof).is_ok()
}

fn mac(key: &Key, side: Side, hello: &Hello, server_nonce: &[u8; NONCE_LEN]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).expect("HMAC takes keys of any length");
    mac.update(match side {
        Side::Client => b"bivouac client",
        Side::Server => b"bivouac server",
    });
    mac.update(server_nonce);
    let mut encoded = Vec::new();
    crate::encode(hello, &mut encoded);
    mac.update(&encoded);
    mac
}

/// A number for `purpose` that nobody can compute without the key: for names that others must not be able to
/// take beforehand.
pub fn derive(key: &Key, purpose: &[u8]) -> u64 {
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).expect("HMAC takes keys of any length");
    mac.update(b"bivouac name");
    mac.update(purpose);
    let digest: [u8; 32] = mac.finalize().into_bytes().into();
    let [a, b, c, d, e, f, g, h, ..] = digest;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONCE: [u8; NONCE_LEN] = [2; NONCE_LEN];

    fn key() -> Key {
        Key([1; KEY_LEN])
    }

    fn hello() -> Hello {
        let credentials = Credentials { uid: 1000, gid: 100, groups: vec![4, 27] };
        Hello {
            nonce: [3; NONCE_LEN],
            deployment: 99,
            role: Role::Client { credentials, node: NodeId(3), job: 5 },
        }
    }

    #[test]
    fn both_sides_accept_each_other() {
        for side in [Side::Client, Side::Server] {
            let proof = prove(&key(), side, &hello(), &NONCE);
            assert!(verify(&key(), side, &hello(), &NONCE, &proof));
        }
    }

    #[test]
    fn a_reflected_proof_is_rejected() {
        let servers = prove(&key(), Side::Server, &hello(), &NONCE);
        assert!(!verify(&key(), Side::Client, &hello(), &NONCE, &servers));
        // Nor with the numbers swapped, as on a connection in the other direction.
        let swapped = Hello { nonce: NONCE, ..hello() };
        assert!(!verify(&key(), Side::Client, &swapped, &hello().nonce, &servers));
    }

    #[test]
    fn a_changed_hello_is_rejected() {
        let proof = prove(&key(), Side::Client, &hello(), &NONCE);
        let root = Credentials { uid: 0, ..Credentials::default() };
        let fewer = Credentials { uid: 1000, gid: 100, groups: vec![4] };
        let changed = [
            Hello { deployment: 98, ..hello() },
            Hello { nonce: [4; NONCE_LEN], ..hello() },
            Hello { role: Role::Client { credentials: root, node: NodeId(3), job: 5 }, ..hello() },
            Hello { role: Role::Client { credentials: fewer, node: NodeId(3), job: 5 }, ..hello() },
            Hello { role: Role::Server(ServerId(1)), ..hello() },
            Hello { role: Role::Agent(1), ..hello() },
            Hello { role: Role::Control, ..hello() },
        ];
        for hello in changed {
            assert!(!verify(&key(), Side::Client, &hello, &NONCE, &proof), "{hello:?}");
        }
    }

    #[test]
    fn an_old_proof_is_rejected_for_a_new_challenge() {
        let proof = prove(&key(), Side::Client, &hello(), &NONCE);
        assert!(!verify(&key(), Side::Client, &hello(), &[5; NONCE_LEN], &proof));
    }

    #[test]
    fn a_key_is_never_shown() {
        let shown = format!("{:?} {:#?}", key(), Some(key()));
        assert!(!shown.contains('1'), "{shown}");
    }

    #[test]
    fn values_never_change() {
        let proof = prove(&key(), Side::Client, &hello(), &NONCE);
        // Worked out by another implementation, from the description above.
        assert_eq!(proof[..8], [188, 244, 34, 2, 18, 149, 87, 46]);
    }

    proptest! {
        #[test]
        fn one_wrong_bit_anywhere_is_rejected(bit in 0usize..256, what in 0..4) {
            let (mut key, mut hello, mut nonce) = (key(), hello(), NONCE);
            let mut proof = prove(&key, Side::Server, &hello, &nonce);
            let field = match what {
                0 => &mut key.0,
                1 => &mut hello.nonce,
                2 => &mut nonce,
                _ => &mut proof,
            };
            field[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!verify(&key, Side::Server, &hello, &nonce, &proof));
        }
    }
}
