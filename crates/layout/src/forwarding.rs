//! Forwarding: which I/O node serves a file of the site's storage.
//!
//! A deployment can forward a directory of a *backend*: programs reach it under its own path, and their requests go to
//! *I/O nodes*, which issue them to the backend. What lies there is the backend's own; the deployment keeps nothing of it.
//! Its inode numbers are told apart from the deployment's by a bit that no number of a shard's counter reaches
//! ([`Ino::forwarded`]), and belong to no shard.

use crate::hash::{self, Use};
use crate::ids::{GenerationId, Ino, NodeId, ServerId};
use crate::map::{Generation, Map, NO_SERVER};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// In place of a server: the I/O node of whoever asks. No server has this number.
const IO_NODE: ServerId = ServerId(u16::MAX - 1);

/// The list of servers behind [`GenerationId::FORWARDED`]: all bytes of a file are asked for at its I/O node.
#[cold]
pub(crate) fn generation(id: GenerationId) -> Option<&'static Generation> {
    static FORWARDED: LazyLock<Generation> = LazyLock::new(|| Generation { servers: vec![IO_NODE] });
    (id == GenerationId::FORWARDED).then(|| &*FORWARDED)
}

/// By what a request's I/O node is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
#[serde(rename_all = "snake_case")]
pub enum Assign {
    /// By the node that asks: each I/O node serves an equal share of the nodes.
    #[default]
    Node,
    /// By the file, so that all requests for it meet at one I/O node, where they can be merged. What concerns a name goes by its
    /// directory.
    File,
}

/// A directory of the backend that is forwarded.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Forwarding {
    /// The directory, as programs and I/O nodes see it: an absolute path in its plainest form.
    pub directory: String,
    /// The servers that forward, each once, in the order in which work is dealt to them. Without any, programs that are started
    /// use the directory themselves.
    pub io_nodes: Vec<ServerId>,
    /// Those that did before. They know what programs have open from that time; and where nobody forwards any more, they go on
    /// serving the programs that run still.
    pub former: Vec<ServerId>,
    /// How work is dealt.
    pub assign: Assign,
    /// The policy that orders the requests of an I/O node, by its name.
    pub scheduler: String,
}

impl Forwarding {
    /// The I/O node for what a node asks about a file or directory; [`NO_SERVER`] if there is none.
    pub fn io_node(&self, node: NodeId, file: Ino) -> ServerId {
        let number = match self.assign {
            Assign::Node => u64::from(node.0),
            Assign::File => hash::number(Use::IoNode, file.0),
        };
        let serving = if self.io_nodes.is_empty() { &self.former } else { &self.io_nodes };
        let count = serving.len().max(1) as u64;
        serving.get((number % count) as usize).copied().unwrap_or(NO_SERVER)
    }

    /// The servers that forward or did so before.
    pub fn all(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.io_nodes.iter().chain(&self.former).copied()
    }

    /// This forwarding after another one.
    pub(crate) fn after(mut self, before: Option<&Forwarding>) -> Forwarding {
        self.former = match before.filter(|before| before.directory == self.directory) {
            Some(before) => before.all().filter(|server| !self.io_nodes.contains(server)).collect(),
            None => Vec::new(),
        };
        self
    }
}

impl Map {
    /// The I/O node for what a node asks about a forwarded file or directory; [`NO_SERVER`] if there is none.
    pub fn io_node(&self, node: NodeId, file: Ino) -> ServerId {
        self.forwarding.as_ref().map_or(NO_SERVER, |forwarding| forwarding.io_node(node, file))
    }

    /// Servers that are not the deployment's any more do not forward. Where none is left, another server does, because the
    /// nodes of programs may not see the backend.
    pub(crate) fn replace_io_nodes(&mut self) {
        let Some(mut forwarding) = self.forwarding.take() else { return };
        let had_some = !forwarding.io_nodes.is_empty();
        forwarding.io_nodes.retain(|server| self.server(*server).is_some());
        forwarding.former.retain(|server| self.server(*server).is_some());
        if had_some && forwarding.io_nodes.is_empty() {
            let other = self.another_io_node().or(self.servers.first().map(|server| server.id));
            forwarding.io_nodes.extend(other);
        }
        self.forwarding = Some(forwarding);
    }

    /// A server that can forward where no I/O node is left.
    fn another_io_node(&self) -> Option<ServerId> {
        let can =
            |server: &&crate::Server| server.state == crate::ServerState::Up && !self.is_departing(server.id);
        self.servers.iter().find(can).map(|server| server.id)
    }

    /// The other I/O nodes forward in the place of a server that is down, or another server if there are none. It is declared
    /// down when its process has ended or its lease has run out: without a lease, an I/O node that lives after all issues nothing.
    pub(crate) fn relieve_io_node(&mut self, server: ServerId) {
        let Some(before) = self.forwarding.as_ref().filter(|before| before.io_nodes.contains(&server)) else {
            return;
        };
        let mut io_nodes = before.io_nodes.clone();
        io_nodes.retain(|io_node| *io_node != server);
        if io_nodes.is_empty() {
            let Some(other) = self.another_io_node() else { return };
            io_nodes.push(other);
        }
        self.forwarding = Some(Forwarding { io_nodes, ..before.clone() }.after(Some(before)));
    }

    /// Whether others take a server's place, so that servers need leases.
    pub fn has_leases(&self) -> bool {
        self.copies > 1 || self.forwarding.is_some()
    }

    /// Whether the forwarding makes sense with the rest of the map.
    pub(crate) fn check_forwarding(&self) -> Result<(), &'static str> {
        let Some(forwarding) = &self.forwarding else { return Ok(()) };
        let directory = &forwarding.directory;
        let is_plain = directory.len() > 1
            && directory.starts_with('/')
            && directory.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
        let lies_in = |path: &str, above: &str| {
            path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mut sorted: Vec<ServerId> = forwarding.all().collect();
        sorted.sort_unstable();
        if !is_plain {
            Err("the forwarded directory is not an absolute path below /")
        } else if lies_in(directory, &self.mount) || lies_in(&self.mount, directory) {
            Err("the forwarded directory and the mount point lie in one another")
        } else if !sorted.iter().all(|server| self.server(*server).is_some()) {
            Err("an I/O node is an unknown server")
        } else if sorted.windows(2).any(|two| two[0] == two[1]) {
            Err("an I/O node is named twice")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::fixture::uniform;

    fn forwarding(io_nodes: &[u16], assign: Assign) -> Forwarding {
        let io_nodes = io_nodes.iter().copied().map(ServerId).collect();
        Forwarding {
            directory: "/scratch/me".into(),
            io_nodes,
            former: Vec::new(),
            assign,
            scheduler: "fifo".into(),
        }
    }

    #[test]
    fn nodes_are_dealt_evenly_and_files_meet_at_one_io_node() {
        let by_node = forwarding(&[4, 2, 7], Assign::Node);
        let mut shares = [0; 8];
        for node in 0..30 {
            let io_node = by_node.io_node(NodeId(node), Ino::FORWARDED);
            assert_eq!(by_node.io_node(NodeId(node), Ino::forwarded(77)), io_node);
            shares[usize::from(io_node.0)] += 1;
        }
        assert_eq!(shares, [0, 0, 10, 0, 10, 0, 0, 10]);
        let by_file = forwarding(&[4, 2, 7], Assign::File);
        let mut shares = [0; 8];
        for file in 0..3000 {
            let file = Ino::forwarded(file);
            let io_node = by_file.io_node(NodeId(0), file);
            assert!((1..30).all(|node| by_file.io_node(NodeId(node), file) == io_node));
            shares[usize::from(io_node.0)] += 1;
        }
        assert!([4, 2, 7].iter().all(|io_node| (900..1100).contains(&shares[*io_node])), "{shares:?}");
        assert_eq!(forwarding(&[], Assign::Node).io_node(NodeId(3), Ino::FORWARDED), NO_SERVER);
    }

    #[test]
    fn a_forwarding_that_makes_no_sense_is_refused() {
        let with = |change: fn(&mut Forwarding)| {
            let mut forwarding = forwarding(&[0, 2], Assign::Node);
            change(&mut forwarding);
            Map { forwarding: Some(forwarding), ..uniform(3) }.check()
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|f| f.io_nodes.clear()), Ok(()), "programs use the directory themselves");
        assert_eq!(with(|f| f.directory = "/bivouac2".into()), Ok(()));
        for directory in ["", "/", "scratch", "/a/", "/a//b", "/a/../b", "/bivouac", "/bivouac/x"] {
            let map = Map {
                forwarding: Some(Forwarding {
                    directory: directory.into(),
                    ..forwarding(&[0], Assign::Node)
                }),
                ..uniform(3)
            };
            assert!(map.check().is_err(), "{directory:?}");
        }
        assert!(with(|f| f.io_nodes = vec![ServerId(9)]).is_err());
        assert!(with(|f| f.io_nodes = vec![ServerId(1), ServerId(1)]).is_err());
    }

    #[test]
    fn those_that_forwarded_before_are_known_and_serve_where_nobody_does_any_more() {
        let first = forwarding(&[0, 1], Assign::Node).after(None);
        let second = forwarding(&[1, 2], Assign::Node).after(Some(&first));
        assert_eq!(second.former, [ServerId(0)]);
        let third = forwarding(&[0], Assign::Node).after(Some(&second));
        assert_eq!(third.former, [ServerId(1), ServerId(2)]);
        let none = forwarding(&[], Assign::Node).after(Some(&third));
        assert_eq!(none.io_node(NodeId(1), Ino::FORWARDED), ServerId(1));
        let other = Forwarding { directory: "/other".into(), ..forwarding(&[0], Assign::Node) };
        assert_eq!(other.after(Some(&none)).former, []);
    }

    #[test]
    fn the_others_forward_for_an_io_node_that_is_down() {
        use crate::map::fixture::replicated;
        let after_death = |map: &Map, io_nodes: &[u16], server: u16| {
            let map = Map { forwarding: Some(forwarding(io_nodes, Assign::Node)), ..map.clone() };
            let change =
                crate::MapChange::State { server: ServerId(server), state: crate::ServerState::Down };
            let after = change.apply(&map).expect("a change").forwarding.expect("it forwards");
            let numbers = |servers: Vec<ServerId>| servers.iter().map(|server| server.0).collect::<Vec<_>>();
            (numbers(after.io_nodes), numbers(after.former))
        };
        let copied = replicated(4, 2, &[&[0, 1, 2, 3]]);
        assert_eq!(after_death(&copied, &[1, 2, 3], 2), (vec![1, 3], vec![2]));
        assert_eq!(after_death(&copied, &[1], 1), (vec![0], vec![1]));
        assert_eq!(after_death(&copied, &[1], 3), (vec![1], vec![]));
        assert_eq!(after_death(&copied, &[], 3), (vec![], vec![]));
        let mut alone = copied.clone();
        alone.servers.iter_mut().for_each(|server| server.state = crate::ServerState::Down);
        assert_eq!(after_death(&alone, &[1], 1), (vec![1], vec![]), "nobody is left");
        assert_eq!(after_death(&uniform(4), &[1, 2], 2), (vec![1], vec![2]), "without copies, too");
    }

    #[test]
    fn the_numbers_of_forwarded_files_belong_to_no_shard_and_are_told_apart() {
        for number in [0, 1, 77, (1 << 51) - 1, 1 << 51, (1 << 52) + 5, (1 << 63) - 1] {
            let ino = Ino::forwarded(number);
            assert!(ino.is_forwarded() && ino.shard().0 >= crate::SHARDS, "{number}");
            assert_ne!(ino, Ino::forwarded(number ^ 1));
        }
        assert!(Ino::FORWARDED.is_forwarded() && !Ino::ROOT.is_forwarded());
        assert!(!Ino::new(crate::ShardId(4095), (1 << 51) - 1).is_forwarded());
    }
}
