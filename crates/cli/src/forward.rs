//! `forward`: which directory of the site's storage is forwarded, by which servers, and how.

pub mod draining;

use self::draining::Draining;
use crate::args::{AssignChoice, ForwardArgs, ForwardingArgs};
use crate::error::Error;
use crate::home::{Home, Record};
use crate::text::{plural, size};
use crate::{leader, rebuild, status};
use bivouac_daemon::controller::{ControlLink, LinkError};
use bivouac_forward::schedulers;
use bivouac_layout::{Assign, Forwarding, Map, NodeId, Server, ServerId, ServerState};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest, Forwarded};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use serde::Serialize;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an agent may take to hear of a change: maps go out at once, and to those that were cut off with the next ping.
const KNOWN: Duration = Duration::from_secs(3);
/// Time between two looks whether an agent has heard of it.
const PAUSE: Duration = Duration::from_millis(2);

/// Shows what is forwarded, or changes it.
pub fn forward(home: &Home, args: &ForwardArgs) -> Result<(), Error> {
    let directory = home.deployment(&args.name);
    let (record, key) = (directory.load()?, directory.key()?);
    record.check_runs()?;
    let map = rebuild::look(&record, &key)?;
    let ForwardingArgs { io_nodes, scheduler, assign } = &args.how;
    let changes = args.directory.is_some() || io_nodes.is_some() || scheduler.is_some() || assign.is_some();
    if !changes {
        return show(&record, &key, &map, args.json);
    }
    change(&record, &key, &map, args.directory.as_deref(), &args.how)?;
    draining::wait(&record, &key, Duration::from_secs(args.timeout))?;
    show(&record, &key, &rebuild::look(&record, &key)?, args.json)
}

/// Forwards a directory, the present one if none is given. What is not given stays as it is.
pub fn change(
    record: &Record,
    key: &Key,
    map: &Map,
    directory: Option<&Path>,
    how: &ForwardingArgs,
) -> Result<(), Error> {
    let before = map.forwarding.as_ref();
    let directory = match (directory, before) {
        (Some(directory), _) => plain(directory)?,
        (None, Some(before)) => before.directory.clone(),
        (None, None) => {
            return Err(Error::refused(
                "no directory is forwarded yet",
                format!("name one: `bivouac forward {} DIR --io-nodes N`", record.name),
            ));
        }
    };
    let io_nodes = match (&how.io_nodes, before) {
        (Some(wanted), _) => chosen(record, map, wanted)?,
        (None, Some(before)) => before.io_nodes.clone(),
        (None, None) => chosen(record, map, "1")?,
    };
    let forwarding = Forwarding {
        directory,
        io_nodes,
        former: Vec::new(),
        assign: match (how.assign, before) {
            (Some(AssignChoice::File), _) => Assign::File,
            (Some(AssignChoice::Node), _) | (None, None) => Assign::Node,
            (None, Some(before)) => before.assign,
        },
        scheduler: how
            .scheduler
            .clone()
            .or(before.map(|before| before.scheduler.clone()))
            .unwrap_or_else(|| schedulers::USUAL.into()),
    };
    install(record, key, map, forwarding)
}

/// Has the deployment forward, if all that are to forward can use the directory.
pub fn install(record: &Record, key: &Key, map: &Map, forwarding: Forwarding) -> Result<(), Error> {
    for server in &forwarding.io_nodes {
        check(record, key, map, *server, &forwarding.directory)?;
    }
    let refused = |error| match error {
        LinkError::Failed(cause) => Error::refused(cause, format!("see `bivouac status {}`", record.name)),
        error => rebuild::unanswered(record, &error),
    };
    let request = ControlRequest::Forward { forwarding: Some(forwarding.clone()) };
    leader::ask(record, key, &request, control::INSTALL, control::ELECTION).map_err(refused)?;
    wait_for_agents(record, key, &forwarding);
    Ok(())
}

/// Waits until all nodes' agents that answer know of it: programs that are started there from then on go this way.
fn wait_for_agents(record: &Record, key: &Key, forwarding: &Forwarding) {
    let wanted = |known: &Forwarding| {
        (&known.directory, &known.io_nodes) == (&forwarding.directory, &forwarding.io_nodes)
    };
    leader::of_all(record, |agent| {
        let endpoint = agent.endpoint(&record.name, key);
        let mut link = ControlLink::connect(&endpoint, key, record.deployment, control::PRESENCE).ok()?;
        let until = Instant::now() + KNOWN;
        while Instant::now() < until {
            match link.request(ControlRequest::Forwarding).ok()? {
                Some(ControlReply::Forwarding(Some(known))) if wanted(&known) => break,
                _ => std::thread::sleep(PAUSE),
            }
        }
        Some(())
    });
}

/// The directory in its plainest form. Where this machine has it, without symbolic links.
fn plain(directory: &Path) -> Result<String, Error> {
    let absolute = std::path::absolute(directory).map_err(|e| Error::file("find", directory, e))?;
    let real = absolute.canonicalize().unwrap_or(absolute);
    let text = real.to_str().filter(|text| bivouac_node::names::is_valid_mount(text));
    text.map(str::to_owned).ok_or_else(|| {
        Error::refused(
            format!("{} cannot be forwarded", real.display()),
            "give the absolute path of a directory below /, without `.` and `..`",
        )
    })
}

/// Whether a server can be made an I/O node.
pub fn can_forward(map: &Map, server: &Server) -> bool {
    server.state == ServerState::Up && !map.is_departing(server.id)
}

/// The servers that are to forward: so many, on different hosts as far as possible, or one on each of these hosts.
pub fn chosen(record: &Record, map: &Map, wanted: &str) -> Result<Vec<ServerId>, Error> {
    let usable = |server: &&Server| can_forward(map, server);
    if let Ok(count) = wanted.parse::<usize>() {
        let mut servers: Vec<(usize, NodeId, ServerId)> = Vec::new();
        for server in map.servers.iter().filter(usable) {
            let round = servers.iter().filter(|(_, node, _)| *node == server.node).count();
            servers.push((round, server.node, server.id));
        }
        servers.sort_unstable();
        if count > servers.len() {
            return Err(Error::refused(
                format!("{} cannot forward: there are {}", plural(count, "server"), servers.len()),
                format!("give fewer, or add servers: `bivouac expand {} ...`", record.name),
            ));
        }
        return Ok(servers.into_iter().take(count).map(|(_, _, server)| server).collect());
    }
    wanted
        .split(',')
        .map(|host| {
            let node = map.nodes.iter().filter(|node| node.host == host);
            let mut servers =
                node.flat_map(|node| map.servers.iter().filter(move |server| server.node == node.id));
            servers.find(usable).map(|server| server.id).ok_or_else(|| {
                Error::refused(
                    format!("no server that is up runs on {host:?}"),
                    format!("`bivouac status {}` lists the servers with their hosts", record.name),
                )
            })
        })
        .collect()
}

/// Refuses a server that cannot use the directory.
fn check(record: &Record, key: &Key, map: &Map, server: ServerId, directory: &str) -> Result<(), Error> {
    let Some(known) = map.server(server) else { return Ok(()) };
    let host = map.node(known.node).map_or("", |node| &node.host);
    let request = ControlRequest::Backend { directory: directory.to_owned() };
    let asked = ControlLink::connect(&Endpoint::Tcp(known.address), key, record.deployment, control::AGENT)
        .and_then(|mut link| link.request(request));
    match asked {
        Err(LinkError::Failed(cause)) => Err(Error::refused(
            format!("server {server} on {host} cannot forward {directory}: {cause}"),
            "name hosts that see it with --io-nodes, or another directory",
        )),
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Unanswered {
            cause: format!("server {server} on {host} does not answer: {error}"),
            remedy: format!("see `bivouac status {}`, or name other hosts with --io-nodes", record.name),
        }),
    }
}

/// What is forwarded, and what came of it so far.
#[derive(Serialize, Debug)]
pub struct Shown {
    directory: String,
    scheduler: String,
    assign: &'static str,
    io_nodes: Vec<IoNode>,
    /// Servers that have been I/O nodes before, and still serve files that no other one can open.
    draining: Vec<Draining>,
}

/// What went through an I/O node: requests of programs, and those that it issued to the backend for them.
#[derive(Serialize, Debug)]
struct IoNode {
    server: u16,
    host: String,
    opens: u64,
    requests_in: u64,
    requests_out: u64,
    bytes_in: u64,
    bytes_out: u64,
}

impl Shown {
    /// Asks the I/O nodes. `None`: no directory is forwarded.
    pub fn of(record: &Record, key: &Key, map: &Map) -> Option<Shown> {
        let forwarding = map.forwarding.as_ref()?;
        let servers = forwarding.io_nodes.iter().filter_map(|server| map.server(*server));
        let io_nodes = servers.map(|server| {
            let host = map.node(server.node).map_or(String::new(), |node| node.host.clone());
            let counts = status::counted(server, record.deployment, key).unwrap_or_default().forwarded;
            let Forwarded { opens, requests_in, requests_out, bytes_in, bytes_out } = counts;
            IoNode { server: server.id.0, host, opens, requests_in, requests_out, bytes_in, bytes_out }
        });
        Some(Shown {
            directory: forwarding.directory.clone(),
            scheduler: forwarding.scheduler.clone(),
            assign: match forwarding.assign {
                Assign::Node => "node",
                Assign::File => "file",
            },
            io_nodes: io_nodes.collect(),
            draining: draining::find(record, key, map),
        })
    }

    /// For a person, in a line.
    pub fn line(&self) -> String {
        let sum = |of: fn(&IoNode) -> u64| self.io_nodes.iter().map(of).sum::<u64>();
        if self.io_nodes.is_empty() {
            return format!("{} is forwarded by no I/O node: programs use it themselves", self.directory);
        }
        let each = |bytes: u64, requests: u64| size(bytes.checked_div(requests).unwrap_or(0));
        let (asked, issued) = (sum(|node| node.requests_in), sum(|node| node.requests_out));
        format!(
            "{} is forwarded by {}: {} of {} each came, {} of {} each went to it",
            self.directory,
            plural(self.io_nodes.len(), "I/O node"),
            plural(asked as usize, "request"),
            each(sum(|node| node.bytes_in), asked),
            issued,
            each(sum(|node| node.bytes_out), issued),
        )
    }

    /// For a person, in a table.
    fn table(&self) -> String {
        let drain = draining::lines(&self.draining).into_iter().map(|line| format!("\n{line}"));
        if self.io_nodes.is_empty() {
            let text = format!("{}: programs use it themselves (no I/O nodes)", self.directory);
            return text + &drain.collect::<String>();
        }
        let mut text = format!(
            "{}: {}, scheduler {}, assigned by {}\n{:<8}{:<16}{:>8}{:>12}{:>12}{:>12}{:>12}",
            self.directory,
            plural(self.io_nodes.len(), "I/O node"),
            self.scheduler,
            self.assign,
            "SERVER",
            "HOST",
            "OPEN",
            "REQUESTS",
            "ISSUED",
            "BYTES",
            "EACH"
        );
        for node in &self.io_nodes {
            let each = node.bytes_out.checked_div(node.requests_out).unwrap_or(0);
            let (bytes, each) = (size(node.bytes_in), size(each));
            let IoNode { server, host, opens, requests_in, requests_out, .. } = node;
            text.push_str(&format!(
                "\n{server:<8}{host:<16}{opens:>8}{requests_in:>12}{requests_out:>12}{bytes:>12}{each:>12}"
            ));
        }
        text.extend(drain);
        text
    }
}

fn show(record: &Record, key: &Key, map: &Map, as_json: bool) -> Result<(), Error> {
    match (Shown::of(record, key, map), as_json) {
        (None, true) => println!("{}", json!({ "version": 1, "directory": null })),
        (None, false) => println!("no directory is forwarded"),
        (Some(shown), true) => {
            let mut shown = json!(shown);
            shown["version"] = 1.into();
            println!("{shown}");
        }
        (Some(shown), false) => println!("{}", shown.table()),
    }
    Ok(())
}
