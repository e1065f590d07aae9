//! Servers that leave at once, with whatever is still on them: `shrink --force`, and `shrink --deadline` when
//! the time is up.
//!
//! Their metadata leaves them first, which takes a moment: names are never lost. Then the servers are
//! stopped, so that nobody writes there any more; the files are listed that lose something, by what the
//! servers that stay know; and the controller takes the others off the map. From then on reading what was
//! lost gives EIO. Each of these steps can be repeated: a command that was killed goes on when it is given
//! again, and until the last step nothing is lost, because `bivouac restart` brings the servers back.

use crate::args::ShrinkArgs;
use crate::error::Error;
use crate::home::Record;
use crate::shrink::look;
use crate::text::{count, plural, size};
use crate::{leader, rebuild, replace, verify};
use bivouac_daemon::controller::{ControlLink, LinkError};
use bivouac_layout::{Ino, Map, ServerId, ServerState};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest, FileLoss, LOSSES_MAX};
use bivouac_proto::verify::Finding;
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// The metadata of servers that leave is waited for as long as some of it leaves within this time.
const METADATA: Duration = Duration::from_secs(30);
/// How long ranges of files may take that are on their way from server to server.
const ON_THEIR_WAY: Duration = Duration::from_secs(20);
/// So many files are named for a person; JSON has all.
const NAMED: usize = 20;

/// Something that can happen to bytes of a file, and how many of it.
type Kind = (&'static str, fn(&FileLoss) -> u64);

const LOST: Kind = ("lost", |file| file.lost);
const FEWER: Kind = ("in fewer copies", |file| file.fewer);

/// What is lost if servers leave as they are.
#[derive(Default)]
pub struct Losses {
    /// Files that lose something.
    files: Vec<FileLoss>,
    /// Their paths, as far as these are known.
    paths: BTreeMap<Ino, String>,
    /// Servers that could not be asked: there may be more.
    silent: Vec<ServerId>,
    /// Files with ranges on their way from server to server.
    on_their_way: u64,
}

/// The same for programs.
#[derive(Serialize)]
struct Report<'r> {
    deployment: &'r str,
    dry_run: bool,
    servers: Vec<u16>,
    lost_bytes: u64,
    fewer_copies_bytes: u64,
    servers_not_asked: Vec<u16>,
    lost: Vec<Entry<'r>>,
    fewer_copies: Vec<Entry<'r>>,
}

#[derive(Serialize)]
struct Entry<'r> {
    path: Option<&'r str>,
    inode: u64,
    size: u64,
    bytes: u64,
}

/// Says what would be lost if servers left now.
pub fn dry_run(record: &Record, key: &Key, servers: &[ServerId], args: &ShrinkArgs) -> Result<bool, Error> {
    let losses = Losses::find(&look(record, key)?, record, key, servers, true);
    losses.tell(&record.name, servers, args)?;
    Ok(losses.is_loss())
}

/// Has servers leave that are to leave; what they still hold stays behind. Returns what that is.
pub fn leave_now(record: &Record, key: &Key, servers: &[ServerId]) -> Result<Losses, Error> {
    let map = wait_for_metadata(record, key, servers)?;
    if let Some(rebuild) = map.rebuild {
        rebuild::end(record, key, rebuild.number)?;
    }
    let until = Instant::now() + ON_THEIR_WAY;
    loop {
        // What is under way is finished: it would be neither here nor there otherwise until it is.
        let losses = Losses::find(&map, record, key, servers, false);
        if losses.on_their_way == 0 || Instant::now() >= until {
            losses.announce(servers);
            break;
        }
        std::thread::sleep(LOOK);
    }
    stop(record, key, servers)?;
    let losses = Losses::find(&look(record, key)?, record, key, servers, true);
    let request = ControlRequest::Abandon { servers: servers.to_vec() };
    if let Err(error) = leader::ask(record, key, &request, control::INSTALL, control::ELECTION) {
        // The answer may have been lost, or the change was committed later.
        let now = look(record, key)?;
        if servers.iter().any(|server| now.server(*server).is_some()) {
            return Err(cannot_leave(record, servers, &error));
        }
    }
    if let Some(rebuild) = map.rebuild {
        rebuild::begin(record, key, rebuild.rule, rebuild.rate)?;
    }
    Ok(losses)
}

fn cannot_leave(record: &Record, servers: &[ServerId], error: &LinkError) -> Error {
    Error::refused(
        format!("{} cannot leave yet, and nothing is lost: {error}", named(servers)),
        format!(
            "repeat the command, or start them again with `bivouac restart {} {}`",
            record.name,
            numbers(servers)
        ),
    )
}

fn numbers(servers: &[ServerId]) -> String {
    servers.iter().map(ServerId::to_string).collect::<Vec<_>>().join(" ")
}

fn named(servers: &[ServerId]) -> String {
    format!("server {}", servers.iter().map(ServerId::to_string).collect::<Vec<_>>().join(", "))
}

/// Waits until nobody needs servers for metadata. The map by which that is so.
fn wait_for_metadata(record: &Record, key: &Key, servers: &[ServerId]) -> Result<Map, Error> {
    let mut last = (usize::MAX, Instant::now());
    loop {
        let map = look(record, key)?;
        let is_up = |server: &ServerId| map.server(*server).is_some_and(|s| s.state != ServerState::Down);
        // Where others have the same, they take the place of one that is down.
        let holds = |server: &&ServerId| map.copies == 1 || is_up(server);
        let held: usize = servers.iter().filter(holds).map(|server| map.held_by(*server)).sum();
        let moving = |server: &ServerId| map.moving.iter().any(|m| m.from == *server || m.to == *server);
        let left = held + servers.iter().filter(holds).filter(|server| moving(server)).count();
        if left == 0 {
            return Ok(map);
        }
        if left != last.0 {
            last = (left, Instant::now());
        }
        let down = servers.iter().find(|server| !is_up(server) && map.held_by(**server) > 0);
        if let Some(down) = down.filter(|_| map.copies == 1) {
            return Err(Error::refused(
                format!(
                    "server {down} is down, and nobody else has {} of the metadata that it holds: without these, names and whole \
                     directories would be lost",
                    plural(map.held_by(*down), "piece")
                ),
                format!("start it again: `bivouac restart {} {down}`; and repeat the command", record.name),
            ));
        }
        if last.1.elapsed() >= METADATA {
            return Err(Error::Unanswered {
                cause: format!("the metadata does not leave {}, and nothing is lost", named(servers)),
                remedy: format!("see `bivouac status {}`, and repeat the command", record.name),
            });
        }
        std::thread::sleep(LOOK);
    }
}

/// Stops servers, and waits until the map says that they are down.
fn stop(record: &Record, key: &Key, servers: &[ServerId]) -> Result<(), Error> {
    let daemons = record.daemons.iter().filter_map(|daemon| Some((daemon, daemon.server?)));
    let ours = daemons.filter(|(_, server)| servers.contains(server));
    std::thread::scope(|scope| {
        let stops: Vec<_> =
            ours.map(|(daemon, id)| scope.spawn(move || replace::stop(record, key, daemon, id))).collect();
        Error::of_all(stops.into_iter().filter_map(|stop| stop.join().ok()))
    })
}

impl Losses {
    /// Asks all servers that stay, for the files whose inodes they have. `names`: also for their paths.
    fn find(map: &Map, record: &Record, key: &Key, servers: &[ServerId], names: bool) -> Losses {
        let mut losses = Losses::default();
        for server in map.servers.iter().filter(|server| map.shards_of(server.id).next().is_some()) {
            if losses.ask(server.address, record, key, servers).is_err() {
                losses.silent.push(server.id);
            }
        }
        if names {
            let findings: Vec<Finding> =
                losses.files.iter().map(|file| Finding::Away { ino: file.ino }).collect();
            losses.paths = verify::paths::find(map, record, key, &findings);
        }
        losses
    }

    fn ask(
        &mut self,
        address: std::net::SocketAddr,
        record: &Record,
        key: &Key,
        servers: &[ServerId],
    ) -> Result<(), LinkError> {
        let endpoint = Endpoint::Tcp(address);
        let mut link = ControlLink::connect(&endpoint, key, record.deployment, control::INSTALL)?;
        let mut after = Ino(0);
        loop {
            let request = ControlRequest::Losses { servers: servers.to_vec(), after };
            let Some(ControlReply::Losses { files, on_their_way }) = link.request(request)? else {
                return Err(LinkError::Unexpected);
            };
            let all = files.len() < LOSSES_MAX;
            after = files.last().map_or(after, |file| file.ino);
            self.files.extend(files);
            if all {
                self.on_their_way += on_their_way;
                return Ok(());
            }
        }
    }

    /// Whether anything is lost for good.
    pub fn is_loss(&self) -> bool {
        self.files.iter().any(|file| file.lost > 0)
    }

    fn sum(&self, bytes: impl Fn(&FileLoss) -> u64) -> (usize, u64) {
        let concerned = self.files.iter().map(bytes).filter(|bytes| *bytes > 0);
        concerned.fold((0, 0), |(files, all), bytes| (files + 1, all + bytes))
    }

    /// Says before it happens how much it is.
    fn announce(&self, servers: &[ServerId]) {
        let ((lost, bytes), (fewer, _)) = (self.sum(|file| file.lost), self.sum(|file| file.fewer));
        let with = |files: usize| if files == 1 { "file has" } else { "files have" };
        if lost > 0 {
            eprintln!(
                "bivouac: {lost} {} {} on no other server than {}",
                with(lost),
                size(bytes),
                named(servers)
            );
        }
        if fewer > 0 {
            eprintln!("bivouac: {fewer} {} fewer copies without {}", with(fewer), named(servers));
        }
    }

    /// Tells what is, or would be, lost.
    pub fn tell(&self, name: &str, servers: &[ServerId], args: &ShrinkArgs) -> Result<(), Error> {
        if args.json {
            return self.print_json(name, servers, args.dry_run);
        }
        let lines = self.lines(servers, args.dry_run);
        lines.iter().for_each(|line| println!("{line}"));
        Ok(())
    }

    fn lines(&self, servers: &[ServerId], dry_run: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for (what, of) in [LOST, FEWER] {
            let (files, bytes) = self.sum(of);
            if files == 0 {
                continue;
            }
            let tense = if dry_run { "would be" } else { "are" };
            lines.push(format!("{} of {} {tense} {what}:", size(bytes), plural(files, "file")));
            let concerned = self.files.iter().filter(|file| of(file) > 0);
            let mut named: Vec<String> = concerned
                .map(|file| {
                    let path = self.paths.get(&file.ino).cloned();
                    let path = path.unwrap_or_else(|| format!("inode {}", file.ino.0));
                    format!("  {path}: {} of {} bytes", count(of(file)), count(file.size))
                })
                .collect();
            named.sort_unstable();
            lines.extend(named.into_iter().take(NAMED));
            if files > NAMED {
                lines.push(format!("  and {} more, which --json names", files - NAMED));
            }
        }
        if lines.is_empty() {
            lines.push(format!("nothing of any file is on no other server than {}", named(servers)));
        }
        if !self.silent.is_empty() {
            lines.push(format!("{} did not answer: there may be more", self::named(&self.silent)));
        }
        lines
    }

    fn print_json(&self, name: &str, servers: &[ServerId], dry_run: bool) -> Result<(), Error> {
        let entries = |of: fn(&FileLoss) -> u64| -> Vec<Entry<'_>> {
            let concerned = self.files.iter().filter(|file| of(file) > 0);
            let path = |ino: Ino| self.paths.get(&ino).map(String::as_str);
            let entry = |file: &FileLoss| Entry {
                path: path(file.ino),
                inode: file.ino.0,
                size: file.size,
                bytes: of(file),
            };
            concerned.map(entry).collect()
        };
        let report = Report {
            deployment: name,
            dry_run,
            servers: servers.iter().map(|server| server.0).collect(),
            lost_bytes: self.sum(|file| file.lost).1,
            fewer_copies_bytes: self.sum(|file| file.fewer).1,
            servers_not_asked: self.silent.iter().map(|server| server.0).collect(),
            lost: entries(|file| file.lost),
            fewer_copies: entries(|file| file.fewer),
        };
        let text = serde_json::to_string_pretty(&report)
            .map_err(|cause| Error::System { what: "cannot print".into(), cause: cause.into() })?;
        println!("{text}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_listed_by_path_with_what_of_them_is_lost() {
        let file = |ino, lost, fewer| FileLoss { ino: Ino(ino), size: 5000, lost, fewer };
        let losses = Losses {
            files: vec![file(1, 4096, 0), file(2, 0, 10), file(3, 4, 0)],
            paths: BTreeMap::from([(Ino(1), "/bivouac/a".into()), (Ino(2), "/bivouac/b".into())]),
            silent: vec![ServerId(7)],
            on_their_way: 0,
        };
        assert!(losses.is_loss());
        assert_eq!(
            losses.lines(&[ServerId(3)], false),
            [
                "4.0 KiB of 2 files are lost:",
                "  /bivouac/a: 4 096 of 5 000 bytes",
                "  inode 3: 4 of 5 000 bytes",
                "10 B of 1 file are in fewer copies:",
                "  /bivouac/b: 10 of 5 000 bytes",
                "server 7 did not answer: there may be more"
            ]
        );
        let nothing = Losses::default().lines(&[ServerId(3), ServerId(4)], true);
        assert_eq!(nothing, ["nothing of any file is on no other server than server 3, 4"]);
        let many = Losses { files: (1..=30).map(|ino| file(ino, 1, 0)).collect(), ..Losses::default() };
        let lines = many.lines(&[ServerId(3)], true);
        assert!(lines.len() == NAMED + 2 && lines[0].contains("would be lost"), "{lines:?}");
    }
}
