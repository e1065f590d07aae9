//! A program that works in a deployment whose daemons are killed, or looks at what is left. See
//! `bivouac_tests::kills`.

fn main() {
    bivouac_tests::kills::serve();
}
