//! The `bivouac` command.
fn main() {}
