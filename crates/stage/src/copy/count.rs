//! Counting what there is to copy, ahead of the copying.
//!
//! The threads that copy find files as they go, so that what they have found so far says nothing about how
//! many there are. This walk only lists directories and reads attributes, and is soon far ahead. It leaves
//! out what it cannot look at: the copying threads will report that.

use crate::progress::Progress;
use crate::tree::{Kind, Meta, Tree, join};
use std::collections::HashSet;

/// Counts files and bytes below `source`, until all are counted or the copy is over.
pub(super) fn count(tree: &dyn Tree, source: &[u8], meta: Meta, progress: &Progress) {
    if meta.kind == Kind::File {
        progress.found(meta.size);
    }
    // A file with several names is copied once.
    let mut seen = HashSet::new();
    let mut directories = vec![source.to_vec()];
    while let Some(directory) = directories.pop().filter(|_| meta.kind == Kind::Directory) {
        for name in tree.list(&directory).unwrap_or_default() {
            if !progress.is_counting() {
                return;
            }
            let path = join(&directory, &name);
            match tree.stat(&path, false) {
                Ok(meta) if meta.kind == Kind::Directory => directories.push(path),
                Ok(meta) if meta.kind == Kind::File => {
                    let again = meta.links > 1 && !seen.insert(meta.identity);
                    progress.found(if again { 0 } else { meta.size });
                }
                _ => {}
            }
        }
    }
    progress.stop_counting();
}
