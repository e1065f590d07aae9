//! Bodies to bytes and back: postcard, a compact stable format whose lengths cannot exceed the input's.

use serde::{Deserialize, Serialize};

/// The bytes were not a message of the expected type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed message body")]
pub struct Malformed;

/// Appends the encoding of `value` to `out`.
pub fn encode<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    let taken = std::mem::take(out);
    // Encoding plain data into memory fails for no type of this crate.
    *out = postcard::to_extend(value, taken).unwrap_or_default();
}

/// Decodes a whole body; trailing bytes are an error.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(Malformed),
    }
}
