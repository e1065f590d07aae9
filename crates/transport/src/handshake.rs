//! The client's side of the authentication: two calls of kind `Auth`.
//!
//! The server proves itself first, so that a client with the wrong key, or at the wrong daemon, finds out for
//! itself. A daemon that knows its client but will not serve it says so with a status; everything else ends
//! in a closed connection.

use crate::connection::{Connection, Outgoing};
use crate::error::TransportError;
use crate::socket::now;
use bivouac_proto::auth::{Challenge, Hello, Key, NONCE_LEN, Proof, Role, Side, Welcome, prove, verify};
use bivouac_proto::{Errno, Header, Kind, Status, decode, encode};
use rustix::io::Errno as Sys;
use rustix::rand::GetRandomFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Authenticates a fresh connection, both ways.
pub(crate) fn introduce(
    connection: &mut Connection,
    key: &Key,
    deployment: u64,
    role: Role,
    deadline: Duration,
) -> Result<Welcome, TransportError> {
    let hello = Hello { nonce: nonce()?, deployment, role };
    let challenge: Challenge = ask(connection, &hello, deadline)?;
    if !verify(key, Side::Server, &hello, &challenge.nonce, &challenge.proof) {
        return Err(TransportError::Authentication);
    }
    let proof = Proof { proof: prove(key, Side::Client, &hello, &challenge.nonce) };
    ask(connection, &proof, deadline)
}

/// A fresh random number.
pub(crate) fn nonce() -> Result<[u8; NONCE_LEN], TransportError> {
    let mut nonce = [0; NONCE_LEN];
    let mut filled = 0;
    while let Some(rest) = nonce.get_mut(filled..)
        && !rest.is_empty()
    {
        match rustix::rand::getrandom(rest, GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(Sys::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(nonce)
}

fn ask<A: DeserializeOwned>(
    connection: &mut Connection,
    message: &impl Serialize,
    deadline: Duration,
) -> Result<A, TransportError> {
    let left = deadline.saturating_sub(now());
    if left.is_zero() {
        return Err(TransportError::TimedOut);
    }
    connection.set_silence(left)?;
    let mut body = Vec::new();
    encode(message, &mut body);
    let request = Outgoing { before: &[], header: Header::new(Kind::Auth), body: &body, payload: &[] };
    let answer = connection.call(&request, &mut [])?;
    match answer.header.status {
        Status::OK => decode(answer.body).map_err(|_| TransportError::Protocol("malformed authentication")),
        status if status.errno() == Some(Errno::ACCESS) => Err(TransportError::Authentication),
        _ => Err(TransportError::Protocol("the peer broke off the authentication")),
    }
}
