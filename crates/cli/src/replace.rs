//! Replacing a server: another process, on another host or on new storage, gets its number.
//!
//! The new process is started first, where it has no part in anything yet. Then the old server is stopped, if it is up and
//! others have everything that it has, and the controller commits that its number is the new process's. From then on
//! the old process is nobody: it is refused by all who know, and ends as soon as it hears of it
//! (`bivouac_daemon::lookout`). A host that the deployment does not have gets an agent, and is added to the map by the
//! same change.
//!
//! The record names what was started before the controller is asked, among what is removed with the deployment. If this
//! command is killed in between, [`reconcile`] finds by the map whether the new process counts.

use crate::args::ReplaceArgs;
use crate::error::Error;
use crate::home::{DaemonRecord, Home, Record};
use crate::joining::{self, Place, Started, clean, free_port};
use crate::launch::Leave;
use crate::text::plural;
use crate::{heal, leader, restart, status, up, verify};
use bivouac_daemon::controller::{ControlLink, LinkError};
use bivouac_layout::map::{Node, Server, ServerState};
use bivouac_layout::{Group, Map, NodeId, Replacement, ServerId};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use std::time::{Duration, Instant};

/// How long a server that was asked to stop may take until the map says that it is down.
const STOPPING: Duration = Duration::from_secs(20);
/// Replaces a server, and waits until everything has all its copies again.
pub fn replace(home: &Home, args: &ReplaceArgs) -> Result<(), Error> {
    let directory = home.deployment(&args.name);
    let _lock = directory.lock()?;
    let (mut record, key) = (directory.load()?, directory.key()?);
    record.check_runs()?;
    let id = ServerId(args.server);
    restart::position(&record, id)?;
    let map = look(&record, &key)?;
    if reconcile(&mut record, &map) {
        directory.save(&record)?;
    }
    let at = restart::position(&record, id)?;
    let old = record.daemons[at].clone();
    let known = map.server(id).ok_or_else(|| nobody(&record.name, "does not know the server"))?;
    let place = joining::place(&record, &args.host, args.launcher)?;
    check(&record, &key, &map, known, &place, args)?;

    let new = DaemonRecord {
        succession: known.succession() + 1,
        domain: place.domain,
        listen: (place.host.listen, free_port(&record, &old, place.node)).into(),
        storage_in: storage(args, &old)?,
        ..up::record_of(&place.host, place.node, Some(id), 0, &[], &directory)
    };
    let new = DaemonRecord { log: directory.logs().join(format!("{}.log", new.label())), ..new };
    let agent = place.is_new.then(|| DaemonRecord {
        domain: place.domain,
        ..up::record_of(&place.host, place.node, None, 0, &[], &directory)
    });
    // A process of the old server must not be in the way on the new one's host: that of its socket, for example.
    for former in record.all().filter(|d| d.server == Some(id) && d.host == new.host) {
        if former.succession < known.succession() || known.state == ServerState::Down {
            clean(&record, former, Leave::Storage)?;
        }
    }
    let mut started = Started::new(&directory, &key);
    let replaced = started
        .start(&mut record, agent.into_iter().collect())
        .and_then(|()| started.start(&mut record, vec![new]))
        .and_then(|()| stop(&record, &key, &old, id))
        .and_then(|()| commit(&record, &key, &started.daemons, id, args.accept_loss));
    if let Err(error) = replaced {
        started.take_back(&mut record);
        return Err(error);
    }
    let map = look(&record, &key)?;
    reconcile(&mut record, &map);
    directory.save(&record)?;
    let new = record.daemons.iter().find(|d| d.server == Some(id)).unwrap_or(&old).clone();
    restart::wait_until_up(&record, &key, &new, id)?;
    println!("server {id} of {} is on {} now, and gets what it lacks", args.name, new.host);
    let look = || look(&record, &key);
    heal::wait(look, |map| heal::without_room(map, record.deployment, &key), &args.name)
}

/// The map, from the controller.
fn look(record: &Record, key: &Key) -> Result<Map, Error> {
    status::overview(record, key)
        .map(|overview| overview.map)
        .map_err(|error| unanswered(&record.name, &error))
}

fn unanswered(name: &str, error: &LinkError) -> Error {
    nobody(name, &format!("does not answer: {error}"))
}

fn nobody(name: &str, what: &str) -> Error {
    Error::Unanswered {
        cause: format!("the controller of {name:?} {what}"),
        remedy: format!(
            "a server can be replaced only while most of those agents live that keep the map: see `bivouac status {name}`"
        ),
    }
}

/// Makes the record say what the map says, after a command that was killed: which process has a server's number, and
/// which nodes there are. Says whether anything has changed.
pub fn reconcile(record: &mut Record, map: &Map) -> bool {
    let counts = |daemon: &DaemonRecord| match daemon.server {
        // A command that was repeated may have started several, and one of them has the number.
        Some(id) => map.server(id).is_some_and(|server| {
            server.succession() == daemon.succession && Some(server.address) == daemon.address
        }),
        None => map.node(daemon.node).is_some_and(|node| Some(node.agent) == daemon.address),
    };
    let mut changed = false;
    while let Some(at) = record.former.iter().position(counts) {
        let new = record.former.remove(at);
        changed = true;
        match record.daemons.iter_mut().find(|d| d.server.is_some() && d.server == new.server) {
            Some(place) => {
                let old = std::mem::replace(place, new);
                if !counts(&old) {
                    record.former.push(old);
                }
            }
            None => record.daemons.push(new),
        }
    }
    changed
}

fn storage(args: &ReplaceArgs, old: &DaemonRecord) -> Result<Vec<std::path::PathBuf>, Error> {
    if args.storage.is_empty() {
        return Ok(old.storage_in.clone());
    }
    let absolute = |path: &std::path::PathBuf| {
        std::path::absolute(path).map_err(|cause| Error::file("find", path, cause))
    };
    args.storage.iter().map(absolute).collect()
}

/// Refuses what would lose something that was not accepted, and what is not needed.
fn check(
    record: &Record,
    key: &Key,
    map: &Map,
    known: &Server,
    place: &Place,
    args: &ReplaceArgs,
) -> Result<(), Error> {
    let (name, id) = (&record.name, known.id);
    let is_up = known.state != ServerState::Down;
    if map.copies == 1 {
        return Err(Error::refused(
            format!(
                "the deployment {name:?} has one copy of everything: nobody else has what server {id} holds"
            ),
            format!("start it again: `bivouac restart {name} {id}`; or copy the files to another deployment"),
        ));
    }
    if is_up && known.node == place.node {
        return Err(Error::refused(
            format!("server {id} is on {} already, and runs", place.host.name),
            format!("`bivouac restart {name} {id}` starts it again with the data that it has"),
        ));
    }
    let (files, example) = alone(record, key, map, id)?;
    if is_up {
        let is_needed = |group: &Group| {
            let mut others = map.serving(*group).filter(|other| *other != id);
            map.holders(*group).all().contains(&id) && others.next().is_none()
        };
        let needed = map.replicated().filter(is_needed).count();
        if needed > 0 {
            return Err(Error::refused(
                format!("only server {id} has everything of {} now", plural(needed, "piece")),
                format!(
                    "wait until the others have caught up (`bivouac status {name}`), and repeat the command"
                ),
            ));
        }
    } else {
        // What is lost does not depend on where the new server is.
        let replaced = map.node(known.node).and_then(|node| map.replaced(id, node, known.address));
        let lost = replaced.map_or(Vec::new(), |replaced| replaced.lost);
        if !lost.is_empty() || files > 0 {
            verify::lost::tell(map, record, key)?;
        }
        if !lost.is_empty() && !args.accept_loss {
            let shards = lost.iter().filter(|group| matches!(group, Group::Shard(_))).count();
            return Err(Error::refused(
                format!(
                    "only server {id} had what was acknowledged last in {} of the metadata and {} of blocks: the newest \
                     changes there would be lost",
                    plural(shards, "piece"),
                    plural(lost.len() - shards, "group"),
                ),
                format!(
                    "start it again: `bivouac restart {name} {id}`; or, if it never comes back, give --accept-loss"
                ),
            ));
        }
    }
    if files == 0 || (!is_up && args.accept_loss) {
        return Ok(());
    }
    let files = plural(files as usize, "file");
    let cause = format!(
        "{files} had blocks without a copy on server {id} (inode {example}, for example), which would be lost"
    );
    let find = format!("`find {} -inum {example}` and `bivouac verify {name}` name files", record.mount);
    Err(Error::refused(
        cause,
        match is_up {
            true => format!(
                "{find}: copy them into a directory with copies (`bivouac layout --replicas`), or remove them"
            ),
            false => format!(
                "start it again: `bivouac restart {name} {id}`; or, if it never comes back, give --accept-loss: {find}"
            ),
        },
    ))
}

/// How many files have their only copy of something on a server, and the inode of one.
fn alone(record: &Record, key: &Key, map: &Map, id: ServerId) -> Result<(u64, u64), Error> {
    let (mut all, mut example) = (0, 0);
    for server in map.servers.iter().filter(|server| server.state == ServerState::Up) {
        let endpoint = Endpoint::Tcp(server.address);
        let asked = ControlLink::connect(&endpoint, key, record.deployment, control::INSTALL)
            .and_then(|mut link| link.request(ControlRequest::Alone { server: id }));
        match asked {
            Ok(Some(ControlReply::Alone { files, example: one })) => {
                all += files;
                example = one.map_or(example, |ino| ino.0);
            }
            // What it does not answer for, others do by the next map.
            Err(error) if server.id == id => drop(error),
            other => {
                let said =
                    other.err().map_or_else(|| LinkError::Unexpected.to_string(), |error| error.to_string());
                return Err(Error::Unanswered {
                    cause: format!("server {} does not say which files have one copy: {said}", server.id),
                    remedy: format!("see `bivouac status {}`, and repeat the command", record.name),
                });
            }
        }
    }
    Ok((all, example))
}

/// Has a server stop that is up, and waits until the map says that it is down.
pub fn stop(record: &Record, key: &Key, old: &DaemonRecord, id: ServerId) -> Result<(), Error> {
    let until = Instant::now() + STOPPING;
    let mut told = false;
    loop {
        let map = look(record, key)?;
        if map.server(id).is_some_and(|server| server.state == ServerState::Down) {
            return Ok(());
        }
        if !told {
            let endpoint = old.endpoint(&record.name, key);
            told = ControlLink::connect(&endpoint, key, record.deployment, control::LOOK)
                .and_then(|mut link| link.tell(ControlRequest::Shutdown { keep: true }))
                .is_ok();
        }
        if Instant::now() >= until {
            return Err(restart::does_not_end(record, old));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Has the controller give the server's number to the process that was started last.
fn commit(
    record: &Record,
    key: &Key,
    started: &[DaemonRecord],
    id: ServerId,
    accept_loss: bool,
) -> Result<(), Error> {
    let again = || format!("start it again (`bivouac restart {} {id}`), or repeat the command", record.name);
    let refused = |cause: String| Error::refused(cause, again());
    let new = started.iter().rev().find(|d| d.server == Some(id));
    let agent = |node: NodeId| {
        let known = started.iter().chain(&record.daemons).find(|d| d.agent && d.node == node)?;
        Some(Node { id: node, host: known.host.clone(), agent: known.address?, domain: known.domain })
    };
    let change = new.and_then(|new| Some((new.succession, agent(new.node)?, new.address?)));
    let (succession, node, address) =
        change.ok_or_else(|| refused(format!("nobody knows where the new server {id} listens")))?;
    let replacement = Replacement { server: id, succession, node, address, accept_loss };
    let request = ControlRequest::Replace(Box::new(replacement));
    let asked = leader::ask(record, key, &request, control::INSTALL, control::ELECTION);
    let is_done = |map: &Map| map.server(id).is_some_and(|server| server.succession() == succession);
    match asked {
        Ok(_) => Ok(()),
        // The answer may have been lost, or the change was committed later.
        Err(_) if look(record, key).is_ok_and(|map| is_done(&map)) => Ok(()),
        Err(LinkError::Errno(_) | LinkError::Failed(_)) => Err(refused(format!(
            "server {id} cannot be replaced: it came back, or others went down, or it was replaced, meanwhile"
        ))),
        Err(error) => Err(unanswered(&record.name, &error)),
    }
}
