//! Whatever a peer sends as a message, decoding it neither panics nor runs out of memory, and what was
//! understood survives another trip.
#![no_main]

use bivouac_proto::auth::{Challenge, Hello, Proof, Welcome};
use bivouac_proto::header::{HEADER_LEN, MAX_BODY, MAX_PAYLOAD};
use bivouac_proto::{Header, Refusal, Reply, Request, decode, encode};
use libfuzzer_sys::fuzz_target;

/// Decodes a body as one type; what it gives must come back from its own encoding.
macro_rules! round_trip {
    ($body:expr, $($type:ty),*) => {
        $(if let Ok(value) = decode::<$type>($body) {
            let mut bytes = Vec::new();
            encode(&value, &mut bytes);
            assert_eq!(decode::<$type>(&bytes).as_ref(), Ok(&value));
        })*
    };
}

fuzz_target!(|bytes: &[u8]| {
    let Some((head, body)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return;
    };
    if let Ok(header) = Header::from_bytes(head) {
        assert!(header.body_len <= MAX_BODY && header.payload_len <= MAX_PAYLOAD);
        assert_eq!(Header::from_bytes(&header.to_bytes()), Ok(header));
    }
    // Whatever the header says: every type of body gets its chance.
    round_trip!(body, Request, Reply, Refusal, Hello, Challenge, Proof, Welcome);
});
