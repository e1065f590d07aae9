//! The I/O nodes of a deployment while it is explored: how many there are is changed as by `bivouac forward`, and put
//! back in the end.
//!
//! What they were before stands in the file by which a deployment is explored once at a time (`exploring`, in the
//! deployment's directory). So an exploration that was killed is made good by the next one, unless somebody has
//! changed the I/O nodes meanwhile.

use crate::error::Error;
use crate::home::{Memory, Record};
use crate::{forward, rebuild, status};
use bivouac_explore::run::Counts;
use bivouac_layout::{Forwarding, Map, ServerId};
use bivouac_proto::auth::Key;
use serde::{Deserialize, Serialize};

/// The I/O nodes. When it is dropped, they are as they were before.
pub struct IoNodes<'a> {
    record: &'a Record,
    key: &'a Key,
    before: Forwarding,
    map: Map,
    memory: Memory,
    changed: bool,
}

/// What stands in the file.
#[derive(Serialize, Deserialize)]
struct Noted {
    /// The I/O nodes before the exploration.
    before: Vec<ServerId>,
    /// Those that it has set last, and those that it was going to set.
    set: [Vec<ServerId>; 2],
}

impl<'a> IoNodes<'a> {
    /// As they are. `memory`: the file of explorations, with its lock.
    pub fn of(record: &'a Record, key: &'a Key, memory: Memory) -> Result<IoNodes<'a>, Error> {
        let map = rebuild::look(record, key)?;
        let Some(mut before) = map.forwarding.clone() else {
            return Err(Error::refused(
                format!("{:?} forwards no directory", record.name),
                format!("`bivouac forward {} DIR` has it forward one", record.name),
            ));
        };
        let noted: Option<Noted> = serde_json::from_slice(&memory.read()).ok();
        let killed =
            noted.filter(|noted| noted.set.contains(&before.io_nodes) && noted.before != before.io_nodes);
        let changed = killed.is_some();
        if let Some(noted) = killed {
            before.io_nodes = noted.before;
        }
        Ok(IoNodes { record, key, before, map, memory, changed })
    }

    /// What is forwarded, and how, before anything was changed.
    pub fn before(&self) -> &Forwarding {
        &self.before
    }

    /// Refuses what the deployment has too few servers for.
    pub fn check(&self, count: u32) -> Result<(), Error> {
        forward::chosen(self.record, &self.map, &count.to_string()).map(drop)
    }

    /// Has so many servers forward.
    pub fn set(&mut self, count: u32) -> Result<(), Error> {
        let map = rebuild::look(self.record, self.key)?;
        let io_nodes = forward::chosen(self.record, &map, &count.to_string())?;
        let now = map.forwarding.as_ref();
        if now.map(|now| (&now.directory, &now.io_nodes)) == Some((&self.before.directory, &io_nodes)) {
            self.map = map;
            return Ok(());
        }
        let last = now.map_or(Vec::new(), |now| now.io_nodes.clone());
        let noted = Noted { before: self.before.io_nodes.clone(), set: [last, io_nodes.clone()] };
        let noted = serde_json::to_vec(&noted).unwrap_or_default();
        self.memory.write(&noted).map_err(|cause| Error::System {
            what: "cannot note how many I/O nodes there were before".into(),
            cause,
        })?;
        self.changed = true;
        let forwarding = Forwarding { io_nodes, former: Vec::new(), ..self.before.clone() };
        forward::install(self.record, self.key, &map, forwarding)?;
        self.map = rebuild::look(self.record, self.key)?;
        Ok(())
    }

    /// What the I/O nodes have counted so far. `None`: there are none, or one does not answer.
    pub fn counts(&self) -> Option<Counts> {
        let io_nodes = &self.map.forwarding.as_ref()?.io_nodes;
        let mut sum: Option<Counts> = None;
        for server in io_nodes {
            let stats =
                status::counted(self.map.server(*server)?, self.record.deployment, self.key)?.forwarded;
            sum.get_or_insert_default().add(Counts {
                requests_in: stats.requests_in,
                requests_out: stats.requests_out,
                bytes_in: stats.bytes_in,
                bytes_out: stats.bytes_out,
            });
        }
        sum
    }
}

impl Drop for IoNodes<'_> {
    fn drop(&mut self) {
        if !self.changed {
            return;
        }
        let put_back = rebuild::look(self.record, self.key).and_then(|map| {
            forward::install(
                self.record,
                self.key,
                &map,
                Forwarding { former: Vec::new(), ..self.before.clone() },
            )
        });
        match put_back {
            Ok(()) => _ = self.memory.write(b""),
            Err(error) => {
                eprintln!("bivouac: the I/O nodes are not as they were before:");
                error.show();
            }
        }
    }
}
