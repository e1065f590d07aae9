//! See `bivouac_node::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bivouac_node::fuzzing::fences(bytes));
