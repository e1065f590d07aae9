//! The daemons that a deployment is to have after a rebuild through the backend: those that it has, without
//! those that leave, and with those that come. They are new ones, numbered from 0 on.

use crate::home::{DaemonRecord, Directory, LauncherKind, Record};
use crate::hosts::Host;
use crate::joining::Place;
use crate::up;
use bivouac_layout::{NodeId, ServerId};
use std::path::PathBuf;

/// A host, and what it is to have.
struct Slot {
    host: Host,
    /// Its number until now, by which places name it.
    node: NodeId,
    domain: u16,
    first: bool,
    /// The storage directories of each of its servers.
    servers: Vec<Vec<PathBuf>>,
}

/// Plans. `storage`: where servers that come have theirs.
pub fn planned(
    record: &Record,
    leaving: &[ServerId],
    places: &[Place],
    storage: &[PathBuf],
    directory: &Directory,
) -> Vec<DaemonRecord> {
    let mut slots: Vec<Slot> = Vec::new();
    for agent in record.daemons.iter().filter(|daemon| daemon.agent) {
        let here = record.daemons.iter().filter(|daemon| daemon.node == agent.node);
        let servers: Vec<&DaemonRecord> = here.filter(|daemon| daemon.server.is_some()).collect();
        let stays = |server: &&&DaemonRecord| server.server.is_some_and(|id| !leaving.contains(&id));
        let staying: Vec<Vec<PathBuf>> = servers.iter().filter(stays).map(|s| s.storage_in.clone()).collect();
        // The machine that it is started from has an agent in any case.
        let is_needed = servers.is_empty() || agent.launcher == LauncherKind::Local;
        let comes = places.iter().any(|place| place.node == agent.node);
        if staying.is_empty() && !is_needed && !comes {
            continue;
        }
        let host = Host {
            name: agent.host.clone(),
            launcher: agent.launcher,
            listen: agent.listen.ip(),
            reach: agent.reach,
            here: agent.launcher == LauncherKind::Local,
        };
        let (node, domain, first) = (agent.node, agent.domain, agent.first);
        slots.push(Slot { host, node, domain, first, servers: staying });
    }
    for place in places {
        match slots.iter_mut().find(|slot| slot.node == place.node) {
            Some(slot) => slot.servers.push(storage.to_vec()),
            None => slots.push(Slot {
                host: place.host.clone(),
                node: place.node,
                domain: place.domain,
                first: false,
                servers: vec![storage.to_vec()],
            }),
        }
    }
    if !slots.iter().any(|slot| slot.first) {
        let here = slots.iter().position(|slot| slot.host.here).unwrap_or(0);
        slots.iter_mut().skip(here).take(1).for_each(|slot| slot.first = true);
    }
    number(&slots, port(record), directory)
}

/// The first port of each host's servers, where ports were given.
fn port(record: &Record) -> u16 {
    let ports = record.daemons.iter().filter(|daemon| daemon.server.is_some()).map(|d| d.listen.port());
    ports.min().unwrap_or(0)
}

/// Numbers servers host by host and then round again, so that neighbours are on different hosts.
fn number(slots: &[Slot], port: u16, directory: &Directory) -> Vec<DaemonRecord> {
    let port_of = |round: usize| match port {
        0 => 0,
        port => u16::try_from(round).ok().and_then(|round| port.checked_add(round)).unwrap_or(0),
    };
    let rounds = slots.iter().map(|slot| slot.servers.len()).max().unwrap_or(0);
    let mut servers: Vec<(usize, DaemonRecord)> = Vec::new();
    for round in 0..rounds {
        for (node, slot) in slots.iter().enumerate() {
            if let Some(storage) = slot.servers.get(round) {
                let id = ServerId(servers.len() as u16);
                let node_id = NodeId(node as u16);
                let server = up::record_of(&slot.host, node_id, Some(id), port_of(round), storage, directory);
                servers.push((node, DaemonRecord { domain: slot.domain, ..server }));
            }
        }
    }
    let mut daemons = Vec::new();
    for (node, slot) in slots.iter().enumerate() {
        let agent = up::record_of(&slot.host, NodeId(node as u16), None, port_of(rounds), &[], directory);
        daemons.push(DaemonRecord { domain: slot.domain, first: slot.first, ..agent });
        daemons.extend(servers.iter().filter(|(of, _)| *of == node).map(|(_, server)| server.clone()));
    }
    daemons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_leave_are_left_out_and_the_others_numbered_anew() {
        let directory = Directory { name: "job".into(), path: "/home/u/.bivouac/job".into() };
        let host = |name: &str, here: bool| Host {
            name: name.into(),
            launcher: if here { LauncherKind::Local } else { LauncherKind::Ssh },
            listen: "0.0.0.0".parse().expect("address"),
            reach: None,
            here,
        };
        let mut record = Record::new("job", 7, "/m", 4096, "info");
        for (node, name) in ["a", "b", "c"].into_iter().enumerate() {
            let (host, node) = (host(name, node == 0), NodeId(node as u16));
            let agent = up::record_of(&host, node, None, 0, &[], &directory);
            record.daemons.push(DaemonRecord { first: node.0 == 0, ..agent });
            record.daemons.push(up::record_of(
                &host,
                node,
                Some(ServerId(node.0)),
                0,
                &["/s".into()],
                &directory,
            ));
        }
        let shown = |daemons: &[DaemonRecord]| -> Vec<(String, u16, Option<u16>, bool)> {
            daemons.iter().map(|d| (d.host.clone(), d.node.0, d.server.map(|s| s.0), d.first)).collect()
        };
        let without = planned(&record, &[ServerId(0), ServerId(1)], &[], &[], &directory);
        let expected = [("a", 0, None, true), ("c", 1, None, false), ("c", 1, Some(0), false)];
        assert_eq!(
            shown(&without),
            expected.map(|(host, node, id, first)| (host.to_owned(), node, id, first))
        );
        let place = |node: u16, name: &str, is_new| Place {
            host: host(name, false),
            node: NodeId(node),
            domain: node,
            is_new,
        };
        let more =
            planned(&record, &[], &[place(1, "b", false), place(3, "d", true)], &["/t".into()], &directory);
        let servers: Vec<(String, u16)> =
            more.iter().filter_map(|d| Some((d.host.clone(), d.server?.0))).collect();
        let expected = [("a", 0), ("b", 1), ("b", 4), ("c", 2), ("d", 3)];
        assert_eq!(servers, expected.map(|(host, id)| (host.to_owned(), id)));
        assert_eq!(more.last().map(|d| d.storage_in.clone()), Some(vec!["/t".into()]));
    }
}
