//! Giving servers up that do not come back, and waiting until others hold what these held.

use crate::args::HealArgs;
use crate::error::Error;
use crate::home::Home;
use crate::leader;
use crate::status;
use crate::text::plural;
use crate::verify;
use bivouac_daemon::controller::LinkError;
use bivouac_layout::{Group, Map, Server, ServerId, ServerState};
use bivouac_proto::auth::Key;
use bivouac_proto::control::ControlRequest;
use bivouac_transport::engine::budget::control;
use std::io::IsTerminal;
use std::time::Duration;

/// Time between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(200);

/// Gives up all servers that are down, and waits until everything has all its copies again.
pub fn heal(home: &Home, args: &HealArgs) -> Result<(), Error> {
    let directory = home.deployment(&args.name);
    let (record, key) = (directory.load()?, directory.key()?);
    record.check_runs()?;
    let unanswered = |error: LinkError| Error::Unanswered {
        cause: format!("the controller of {:?} does not answer: {error}", args.name),
        remedy: format!("see `bivouac status {}`", args.name),
    };
    let look = || status::overview(&record, &key).map(|overview| overview.map).map_err(unanswered);
    let map = look()?;
    let servers = to_give_up(&map, args, || verify::lost::tell(&map, &record, &key))?;
    if !servers.is_empty() {
        let request = ControlRequest::GiveUp { servers: servers.clone(), accept_loss: args.accept_loss };
        leader::ask(&record, &key, &request, control::INSTALL, control::ELECTION).map_err(unanswered)?;
        println!(
            "{} given up: others get what {} held",
            named(&servers),
            if servers.len() == 1 { "it" } else { "they" }
        );
    }
    wait(look, |map| without_room(map, record.deployment, &key), &args.name)
}

/// The servers that are down, if the others can do without them.
/// `tell_lost`: names the files that lose something by it.
fn to_give_up(
    map: &Map,
    args: &HealArgs,
    tell_lost: impl FnOnce() -> Result<(), Error>,
) -> Result<Vec<ServerId>, Error> {
    // One that has just been added holds nothing.
    let is_down = |server: &&bivouac_layout::Server| {
        server.state == ServerState::Down && !map.arriving.contains(&server.id)
    };
    let down = map.servers.iter().filter(is_down).map(|server| server.id);
    let down: Vec<ServerId> = down.filter(|server| !map.is_given_up(*server)).collect();
    if down.is_empty() {
        return Ok(down);
    }
    if map.copies == 1 {
        return Err(Error::refused(
            format!(
                "the deployment {:?} has one copy of everything: nobody else has what {} held",
                args.name,
                named(&down)
            ),
            format!("start it again: `bivouac restart {} {}`", args.name, numbers(&down)),
        ));
    }
    let Some(without) = map.without(&down) else {
        let left = map.servers.len() - map.lost.len() - down.len();
        return Err(Error::refused(
            format!(
                "without {} there are {} for {} copies",
                named(&down),
                plural(left, "server"),
                map.copies
            ),
            format!("start one again: `bivouac restart {} {}`", args.name, numbers(&down)),
        ));
    };
    if !without.lost.is_empty() {
        tell_lost()?;
    }
    if !without.lost.is_empty() && !args.accept_loss {
        let shards = without.lost.iter().filter(|group| matches!(group, Group::Shard(_))).count();
        return Err(Error::refused(
            format!(
                "only {} had what was acknowledged last in {} of the metadata and {} of blocks: the newest changes there would be lost",
                named(&down),
                plural(shards, "piece"),
                plural(without.lost.len() - shards, "group"),
            ),
            format!(
                "start it again: `bivouac restart {0} {1}`; or, if it never comes back, `bivouac heal --accept-loss {0}`",
                args.name,
                numbers(&down)
            ),
        ));
    }
    Ok(down)
}

fn numbers(servers: &[ServerId]) -> String {
    servers.iter().map(ServerId::to_string).collect::<Vec<_>>().join(" ")
}

fn named(servers: &[ServerId]) -> String {
    format!("server {}", servers.iter().map(ServerId::to_string).collect::<Vec<_>>().join(", "))
}

/// The servers that are getting what they lack.
fn lacking(map: &Map) -> impl Iterator<Item = &Server> {
    map.servers.iter().filter(|server| server.state != ServerState::Down && is_behind(map, server.id))
}

/// The servers whose storage is too full for what they lack.
pub fn without_room(map: &Map, deployment: u64, key: &Key) -> Vec<ServerId> {
    let is_full = |server: &&Server| {
        status::counted(server, deployment, key).is_some_and(|stats| stats.without_room > 0)
    };
    lacking(map).filter(is_full).map(|server| server.id).collect()
}

/// Waits until nobody has to catch up any more, or those that have cannot.
pub fn wait(
    look: impl Fn() -> Result<Map, Error>,
    full: impl Fn(&Map) -> Vec<ServerId>,
    name: &str,
) -> Result<(), Error> {
    let shows = std::io::stderr().is_terminal();
    loop {
        let map = look()?;
        let full = full(&map);
        if full.len() == map.servers.iter().filter(|server| is_behind(&map, server.id)).count()
            && !full.is_empty()
        {
            if shows {
                eprintln!();
            }
            let (incomplete, all) = status::incomplete(&map);
            return Err(Error::refused(
                format!(
                    "there is no room for more on {}: {incomplete} of {all} pieces have too few copies",
                    named(&full)
                ),
                format!(
                    "remove files that are not needed, or start servers again that are down (`bivouac status {name}`): the rest \
                     is copied as soon as there is room"
                ),
            ));
        }
        let (incomplete, all) = status::incomplete(&map);
        if shows {
            eprint!("\r{} of {all} have all copies ", all - incomplete);
        }
        if incomplete == 0 || lacking(&map).next().is_none() {
            if shows {
                eprintln!();
            }
            return match incomplete {
                0 => {
                    println!("everything has all its copies");
                    Ok(())
                }
                _ => Err(Error::refused(
                    format!(
                        "{incomplete} of {all} pieces have too few copies, and nobody is there to hold more"
                    ),
                    "start servers again that are down: `bivouac status` names them",
                )),
            };
        }
        std::thread::sleep(LOOK);
    }
}

fn is_behind(map: &Map, server: ServerId) -> bool {
    map.behind.iter().any(|lag| map.is_behind(lag.group, server))
}
