//! See `bivouac_meta::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bivouac_meta::fuzzing::copy(bytes));
