//! Random operations on a cluster of three stores, against a plain tree that knows what POSIX says.

use crate::common::Cluster;
use crate::common::client::Client;
use bivouac_layout::ServerId;
use bivouac_proto::meta::RenameMode;
use bivouac_proto::{Errno, FileKind};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Op {
    Put(String, Vec<u8>),
    Mkdir(String),
    Rmdir(String),
    Unlink(String),
    Symlink(String),
    Link(String, String),
    Rename(String, String, RenameMode),
    List(String),
    Restart(u16),
    Keep,
}

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof!["a", "b", "c"], 1..4).prop_map(|parts| parts.join("/"))
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![
        4 => Just(RenameMode::Replace),
        1 => Just(RenameMode::NoReplace),
        1 => Just(RenameMode::Exchange)
    ];
    prop_oneof![
        6 => (path(), proptest::collection::vec(any::<u8>(), 0..20)).prop_map(|(p, d)| Op::Put(p, d)),
        8 => path().prop_map(Op::Mkdir),
        3 => path().prop_map(Op::Rmdir),
        3 => path().prop_map(Op::Unlink),
        1 => path().prop_map(Op::Symlink),
        4 => (path(), path()).prop_map(|(a, b)| Op::Link(a, b)),
        10 => (path(), path(), mode).prop_map(|(a, b, m)| Op::Rename(a, b, m)),
        2 => path().prop_map(Op::List),
        1 => (0u16..3).prop_map(Op::Restart),
        1 => Just(Op::Keep),
    ]
}

#[derive(Clone, Debug)]
enum Node {
    File(Vec<u8>),
    Link,
    Dir(BTreeMap<String, usize>),
}

/// The reference: nodes by number, the root is 0.
struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    fn dir(&self, node: usize) -> Result<&BTreeMap<String, usize>, Errno> {
        match &self.nodes[node] {
            Node::Dir(entries) => Ok(entries),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn dir_mut(&mut self, node: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.nodes[node] {
            Node::Dir(entries) => entries,
            other => panic!("{other:?}"),
        }
    }

    fn walk(&self, path: &str) -> Result<usize, Errno> {
        path.split('/').filter(|n| !n.is_empty()).try_fold(0, |at, name| {
            let node = *self.dir(at)?.get(name).ok_or(Errno::NOENT)?;
            Ok(node)
        })
    }

    fn place<'a>(&self, path: &'a str) -> Result<(usize, &'a str), Errno> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.walk(dir)?;
        self.dir(dir)?;
        Ok((dir, name))
    }

    fn is_dir(&self, node: usize) -> bool {
        matches!(self.nodes[node], Node::Dir(_))
    }

    fn links(&self, node: usize) -> u32 {
        let count =
            |entries: &BTreeMap<String, usize>| entries.values().filter(|n| **n == node).count() as u32;
        let reachable = self.reachable(0);
        reachable.iter().map(|n| if let Node::Dir(e) = &self.nodes[*n] { count(e) } else { 0 }).sum()
    }

    fn reachable(&self, from: usize) -> Vec<usize> {
        let mut all = vec![from];
        if let Node::Dir(entries) = &self.nodes[from] {
            for node in entries.values() {
                if self.is_dir(*node) {
                    all.extend(self.reachable(*node));
                }
            }
        }
        all
    }

    fn make(&mut self, path: &str, node: Node) -> Result<(), Errno> {
        let (dir, name) = self.place(path)?;
        if self.dir(dir)?.contains_key(name) {
            return Err(Errno::EXIST);
        }
        self.nodes.push(node);
        let node = self.nodes.len() - 1;
        self.dir_mut(dir).insert(name.into(), node);
        Ok(())
    }

    fn put(&mut self, path: &str, data: &[u8]) -> Result<(), Errno> {
        match self.make(path, Node::File(data.into())) {
            Err(Errno::EXIST) => {
                let node = self.walk(path)?;
                match &mut self.nodes[node] {
                    Node::File(known) => *known = data.into(),
                    Node::Link => return Err(Errno::LOOP),
                    Node::Dir(_) => return Err(Errno::ISDIR),
                }
                Ok(())
            }
            other => other,
        }
    }

    fn remove(&mut self, path: &str, directory: bool) -> Result<(), Errno> {
        let (dir, name) = self.place(path)?;
        let node = *self.dir(dir)?.get(name).ok_or(Errno::NOENT)?;
        match (&self.nodes[node], directory) {
            (Node::Dir(_), false) => return Err(Errno::ISDIR),
            (Node::Dir(entries), true) if !entries.is_empty() => return Err(Errno::NOTEMPTY),
            (Node::Dir(_), true) => {}
            (_, true) => return Err(Errno::NOTDIR),
            _ => {}
        }
        self.dir_mut(dir).remove(name);
        Ok(())
    }

    fn link(&mut self, old: &str, new: &str) -> Result<(), Errno> {
        let node = self.walk(old)?;
        let (dir, name) = self.place(new)?;
        if self.dir(dir)?.contains_key(name) {
            return Err(Errno::EXIST);
        }
        if self.is_dir(node) {
            return Err(Errno::PERM);
        }
        self.dir_mut(dir).insert(name.into(), node);
        Ok(())
    }

    fn rename(&mut self, old: &str, new: &str, mode: RenameMode) -> Result<(), Errno> {
        let (from, from_name) = self.place(old)?;
        let (to, to_name) = self.place(new)?;
        let source = *self.dir(from)?.get(from_name).ok_or(Errno::NOENT)?;
        let target = self.dir(to)?.get(to_name).copied();
        let exchange = mode == RenameMode::Exchange;
        match target {
            Some(_) if mode == RenameMode::NoReplace => return Err(Errno::EXIST),
            None if exchange => return Err(Errno::NOENT),
            Some(target) if target == source => return Ok(()),
            Some(target) if !exchange => match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if target == from => return Err(Errno::NOTEMPTY),
                _ => {}
            },
            _ => {}
        }
        if self.is_dir(source) && self.reachable(source).contains(&to) {
            return Err(Errno::INVAL);
        }
        if let Some(target) = target {
            if exchange && self.is_dir(target) && self.reachable(target).contains(&from) {
                return Err(Errno::INVAL);
            }
            if !exchange && self.is_dir(target) && !self.dir(target)?.is_empty() {
                return Err(Errno::NOTEMPTY);
            }
        }
        match target {
            Some(target) if exchange => self.dir_mut(from).insert(from_name.into(), target),
            _ => self.dir_mut(from).remove(from_name),
        };
        self.dir_mut(to).insert(to_name.into(), source);
        Ok(())
    }
}

/// Kills a server. Where there are copies it stays away, and the one that was away before comes back.
fn kill(cluster: &Cluster, server: ServerId) {
    if cluster.inner.map().copies == 1 {
        return cluster.restart(server);
    }
    if let Some(away) = (0..3).map(ServerId).find(|id| cluster.store(*id).is_none()) {
        cluster.come_back(away);
    }
    cluster.kill(server);
    cluster.inner.failover();
}

fn run(client: &Client, cluster: &Cluster, tree: &mut Tree, op: &Op) {
    let (found, expected) = match op {
        Op::Put(path, data) => (client.put(path, data).map(drop), tree.put(path, data)),
        Op::Mkdir(path) => (client.mkdir(path), tree.make(path, Node::Dir(BTreeMap::new()))),
        Op::Rmdir(path) => (client.rmdir(path), tree.remove(path, true)),
        Op::Unlink(path) => (client.unlink(path), tree.remove(path, false)),
        Op::Symlink(path) => (client.symlink("x", path), tree.make(path, Node::Link)),
        Op::Link(old, new) => (client.link(old, new), tree.link(old, new)),
        Op::Rename(old, new, mode) => (client.rename(old, new, *mode), tree.rename(old, new, *mode)),
        Op::List(path) => {
            let found = client.names(path);
            let expected = tree.walk(path).and_then(|n| Ok(tree.dir(n)?.keys().cloned().collect::<Vec<_>>()));
            assert_eq!(found, expected, "list {path}");
            return;
        }
        Op::Restart(server) => return kill(cluster, ServerId(*server)),
        Op::Keep => return cluster.stores().iter().for_each(|s| s.keep()),
    };
    assert_eq!(found, expected, "{op:?}");
}

/// Everything is as the tree says, also what no operation's answer shows.
fn compare(client: &Client, tree: &Tree, path: &str, node: usize, parent: bivouac_layout::Ino) {
    let attr = client.stat(path).unwrap_or_else(|e| panic!("{path}: {e:?}"));
    match &tree.nodes[node] {
        Node::File(data) => {
            assert_eq!((attr.kind, attr.size), (FileKind::File, data.len() as u64), "{path}");
            assert_eq!(&client.get(path).unwrap(), data, "{path}");
            assert_eq!(attr.nlink, tree.links(node), "links of {path}");
        }
        Node::Link => {
            assert_eq!(attr.kind, FileKind::Symlink, "{path}");
            assert_eq!(attr.nlink, tree.links(node), "links of {path}");
        }
        Node::Dir(entries) => {
            assert_eq!(attr.kind, FileKind::Directory, "{path}");
            assert_eq!(client.names(path).unwrap(), entries.keys().cloned().collect::<Vec<_>>(), "{path}");
            assert_eq!(attr.size, entries.len() as u64, "entries of {path}");
            let directories = entries.values().filter(|n| tree.is_dir(**n)).count();
            assert_eq!(attr.nlink as usize, 2 + directories, "links of {path}");
            let request = bivouac_proto::meta::MetaRequest::Parent { ino: attr.ino };
            match client.inode(attr.ino, request, &[]).unwrap().0 {
                bivouac_proto::Reply::Meta(bivouac_proto::meta::MetaReply::Parent {
                    parent: found,
                    name,
                }) => {
                    assert_eq!(found, parent, "parent of {path}");
                    assert_eq!(name, path.rsplit('/').next().unwrap().as_bytes());
                }
                other => panic!("{other:?}"),
            }
            for (name, node) in entries {
                let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                compare(client, tree, &below, *node, attr.ino);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations_and_restarts_agrees_with_the_reference(
        ops in proptest::collection::vec(op(), 1..80),
        background in any::<bool>(),
    ) {
        let cluster = Cluster::with(3, |options| {
            options.compact_at = Some(3000);
            options.background = background;
        });
        let client = Client::new(&cluster);
        let mut tree = Tree { nodes: vec![Node::Dir(BTreeMap::new())] };
        for op in &ops {
            run(&client, &cluster, &mut tree, op);
        }
        compare(&client, &tree, "", 0, bivouac_layout::Ino::ROOT);
        for server in 0..3 {
            cluster.restart(ServerId(server));
        }
        compare(&client, &tree, "", 0, bivouac_layout::Ino::ROOT);
        // Nothing is left over: as many inodes as the tree has, once all decisions are heard.
        cluster.stores().iter().for_each(|s| s.keep());
        let inodes: u64 = cluster.stores().iter().map(|s| s.counts().inodes).sum();
        let mut nodes: Vec<usize> = Vec::new();
        for dir in tree.reachable(0) {
            nodes.push(dir);
            nodes.extend(tree.dir(dir).unwrap().values());
        }
        nodes.sort();
        nodes.dedup();
        prop_assert_eq!(inodes, nodes.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations_and_failovers_agrees_with_the_reference(
        ops in proptest::collection::vec(op(), 1..80),
        copies in 2u16..4,
    ) {
        let cluster = Cluster::replicated(3, copies);
        let client = Client::new(&cluster);
        let mut tree = Tree { nodes: vec![Node::Dir(BTreeMap::new())] };
        for op in &ops {
            run(&client, &cluster, &mut tree, op);
        }
        compare(&client, &tree, "", 0, bivouac_layout::Ino::ROOT);
        cluster.check_copies();
        for server in 0..3 {
            kill(&cluster, ServerId(server));
            compare(&client, &tree, "", 0, bivouac_layout::Ino::ROOT);
        }
        cluster.stores().iter().for_each(|s| s.keep());
        cluster.check_copies();
    }
}
