//! The reference: what there should be below one program's directory.

use super::step::{Step, pattern};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A file or directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// It is a directory.
    pub directory: bool,
    /// What is in the file.
    pub content: Vec<u8>,
}

/// An open file.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Which.
    pub node: u32,
    /// It was opened with O_APPEND.
    pub append: bool,
}

/// Names, files, and what is open. A path has no slash at its beginning; the directory itself is the empty
/// path.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tree {
    /// What every name leads to.
    pub names: BTreeMap<String, u32>,
    /// Files and directories.
    pub nodes: BTreeMap<u32, Node>,
    /// Descriptors.
    #[serde(skip)]
    pub slots: BTreeMap<u8, Slot>,
    /// Names of which something is not known.
    #[serde(skip)]
    pub unknown_names: BTreeSet<String>,
    /// Files and directories of which something is not known.
    #[serde(skip)]
    pub unknown_nodes: BTreeSet<u32>,
    next: u32,
}

/// The directory that a path lies in.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

impl Tree {
    /// What a path leads to.
    pub fn at(&self, path: &str) -> Option<(u32, &Node)> {
        let number = *self.names.get(path)?;
        Some((number, &self.nodes[&number]))
    }

    /// Whether the path is that of a directory.
    pub fn is_directory(&self, path: &str) -> bool {
        path.is_empty() || self.at(path).is_some_and(|(_, node)| node.directory)
    }

    /// Names below a directory, at any depth.
    pub fn below<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = &'a String> {
        self.names.keys().filter(move |path| directory.is_empty() || is_below(path, directory))
    }

    /// Names of a file.
    pub fn names_of(&self, node: u32) -> Vec<String> {
        let names = self.names.iter().filter(|(_, number)| **number == node);
        names.map(|(name, _)| name.clone()).collect()
    }

    /// The file that a step is about, if that has one that is there.
    pub fn node_of(&self, step: &Step) -> Option<u32> {
        match step {
            Step::Close { slot }
            | Step::Write { slot, .. }
            | Step::Append { slot, .. }
            | Step::TruncateOpen { slot, .. }
            | Step::Sync { slot }
            | Step::Lock { slot }
            | Step::ReadOpen { slot } => self.slots.get(slot).map(|slot| slot.node),
            Step::Create { path, .. }
            | Step::Open { path, .. }
            | Step::Truncate { path, .. }
            | Step::Read { path }
            | Step::List { path }
            | Step::Unlink { path }
            | Step::Mkdir { path }
            | Step::Rmdir { path } => self.names.get(path).copied(),
            Step::Rename { from, .. } | Step::Link { from, .. } => self.names.get(from).copied(),
            Step::Share { .. } => None,
        }
    }

    /// The names that a step is about.
    fn paths_of(&self, step: &Step) -> Vec<String> {
        let mut paths = self.node_of(step).map(|node| self.names_of(node)).unwrap_or_default();
        match step {
            Step::Create { path, .. } | Step::Mkdir { path } => paths.push(path.clone()),
            Step::Link { to, .. } => paths.push(to.clone()),
            Step::Rename { to, .. } => {
                paths.push(to.clone());
                paths.extend(self.names.get(to).map(|node| self.names_of(*node)).unwrap_or_default());
            }
            _ => {}
        }
        paths
    }

    /// Whether all that the step is about is known.
    pub fn knows(&self, step: &Step) -> bool {
        let moves = matches!(step, Step::Rename { .. } | Step::Rmdir { .. } | Step::List { .. });
        let in_the_way = |path: &String, unknown: &String| {
            path == unknown
                || is_below(path, unknown)
                || moves && (path.is_empty() || is_below(unknown, path))
        };
        let listed = matches!(step, Step::List { path } if path.is_empty());
        let node = self.node_of(step);
        if node.is_some_and(|node| self.unknown_nodes.contains(&node))
            || listed && !self.unknown_names.is_empty()
        {
            return false;
        }
        let paths = self.paths_of(step);
        paths.iter().all(|path| !self.unknown_names.iter().any(|unknown| in_the_way(path, unknown)))
    }

    /// Nobody knows whether this step was done.
    pub fn doubt(&mut self, step: &Step) {
        let paths = self.paths_of(step);
        self.unknown_nodes.extend(self.node_of(step));
        self.unknown_nodes.extend(paths.iter().filter_map(|path| self.names.get(path).copied()));
        self.unknown_names.extend(paths);
        if let Step::Close { slot } = step {
            // The descriptor is gone in any case, and closing changes nothing.
            self.slots.remove(slot);
        }
    }

    /// The step was done; a write wrote so many bytes.
    pub fn apply(&mut self, step: &Step, count: u64) {
        match step {
            Step::Create { slot, path, append } => {
                let node = self.make(path, false);
                self.slots.insert(*slot, Slot { node, append: *append });
            }
            Step::Open { slot, path, append, truncate } => {
                let node = self.names[path];
                if *truncate {
                    self.node(node).content.clear();
                }
                self.slots.insert(*slot, Slot { node, append: *append });
            }
            Step::Close { slot } => {
                self.slots.remove(slot);
                self.forget();
            }
            Step::Write { slot, offset, seed, .. } => {
                let node = self.slots[slot].node;
                self.node(node).write(*offset, &pattern(*seed, count));
            }
            Step::Append { slot, seed, .. } => {
                let node = self.slots[slot].node;
                let end = self.nodes[&node].content.len() as u64;
                self.node(node).write(end, &pattern(*seed, count));
            }
            Step::Truncate { path, size } => {
                let node = self.names[path];
                self.node(node).content.resize(*size as usize, 0);
            }
            Step::TruncateOpen { slot, size } => {
                let node = self.slots[slot].node;
                self.node(node).content.resize(*size as usize, 0);
            }
            Step::Rename { from, to } => self.rename(from, to),
            Step::Link { from, to } => {
                let node = self.names[from];
                self.names.insert(to.clone(), node);
            }
            Step::Unlink { path } | Step::Rmdir { path } => {
                self.names.remove(path);
                self.forget();
            }
            Step::Mkdir { path } => {
                self.make(path, true);
            }
            Step::Sync { .. }
            | Step::Lock { .. }
            | Step::Read { .. }
            | Step::ReadOpen { .. }
            | Step::List { .. }
            | Step::Share { .. } => {}
        }
    }

    fn node(&mut self, number: u32) -> &mut Node {
        self.nodes.get_mut(&number).expect("files stay while names or descriptors lead to them")
    }

    fn make(&mut self, path: &str, directory: bool) -> u32 {
        self.next += 1;
        self.nodes.insert(self.next, Node { directory, ..Node::default() });
        self.names.insert(path.to_owned(), self.next);
        self.next
    }

    fn rename(&mut self, from: &str, to: &str) {
        if self.names.get(from) == self.names.get(to) {
            // Two names of one file both stay.
            return;
        }
        let moved: Vec<String> = self.below(from).cloned().chain([from.to_owned()]).collect();
        for path in moved {
            let node = self.names.remove(&path).expect("it was just listed");
            self.names.insert(format!("{to}{}", &path[from.len()..]), node);
        }
        self.forget();
    }

    /// Forgets what neither a name nor a descriptor leads to.
    fn forget(&mut self) {
        let kept: BTreeSet<u32> =
            self.names.values().copied().chain(self.slots.values().map(|s| s.node)).collect();
        self.nodes.retain(|number, _| kept.contains(number));
    }

    /// All programs have ended: nothing is open any more.
    pub fn end(&mut self) {
        self.slots.clear();
        self.forget();
    }
}

impl Node {
    fn write(&mut self, offset: u64, data: &[u8]) {
        let (begin, end) = (offset as usize, offset as usize + data.len());
        if self.content.len() < end && !data.is_empty() {
            self.content.resize(end, 0);
        }
        self.content[begin.min(end)..end].copy_from_slice(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(tree: &mut Tree, path: &str) {
        tree.apply(&Step::Create { slot: 0, path: path.into(), append: false }, 0);
    }

    #[test]
    fn what_is_below_a_directory_moves_with_it_and_nothing_else() {
        let mut tree = Tree::default();
        tree.apply(&Step::Mkdir { path: "d".into() }, 0);
        file(&mut tree, "d/f");
        file(&mut tree, "dd");
        tree.apply(&Step::Rename { from: "d".into(), to: "e".into() }, 0);
        assert_eq!(tree.names.keys().collect::<Vec<_>>(), ["dd", "e", "e/f"]);
    }

    #[test]
    fn what_is_not_known_is_left_alone_with_all_above_and_below_it() {
        let mut tree = Tree::default();
        tree.apply(&Step::Mkdir { path: "d".into() }, 0);
        file(&mut tree, "d/f");
        file(&mut tree, "d/g");
        tree.apply(&Step::Link { from: "d/f".into(), to: "h".into() }, 0);
        tree.doubt(&Step::Truncate { path: "d/f".into(), size: 0 });
        assert!(!tree.knows(&Step::Unlink { path: "h".into() }), "another name of the same file");
        assert!(!tree.knows(&Step::Rename { from: "d".into(), to: "e".into() }));
        assert!(tree.knows(&Step::Unlink { path: "d/g".into() }));
    }
}
