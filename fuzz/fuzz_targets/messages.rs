//! See `bivouac_proto::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bivouac_proto::fuzzing::messages(bytes));
