//! `explore run`: one run after the other, in the order that the seed gives.

use super::io_nodes::IoNodes;
use super::{IN_MEMORY, explained, nodes, read_patterns};
use crate::args::ExploreRunArgs;
use crate::error::{Error, exit};
use crate::home::{DaemonRecord, Home, random};
use crate::signals;
use crate::text::{plural, size};
use bivouac_explore::results::{Header, Line, Results, VERSION};
use bivouac_explore::run::{Conditions, Link, Measured, end, look, measure};
use bivouac_explore::sequence::{self, Entry};
use bivouac_explore::{ExploreError, Pattern};
use bivouac_layout::Assign;
use std::io::IsTerminal;
use std::path::{Component, Path};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// An exploration under way.
struct Exploration<'a> {
    args: &'a ExploreRunArgs,
    patterns: Vec<Pattern>,
    /// Where programs run first, then others whose page caches are dropped.
    agents: Vec<&'a DaemonRecord>,
    links: Vec<Link>,
    io_nodes: IoNodes<'a>,
    results: Results,
    /// The directory for the directories of runs.
    directory: String,
    drops_caches: bool,
    /// It was said whether page caches are dropped.
    told_of_caches: bool,
}

/// Explores.
pub fn run(home: &Home, args: &ExploreRunArgs) -> Result<ExitCode, Error> {
    let patterns = read_patterns(&args.patterns)?;
    let directory = home.deployment(&args.name);
    let (record, key) = (directory.load()?, directory.key()?);
    record.check_runs()?;
    let agents = nodes::chosen(&record, &args.hosts)?;
    if let Some(large) = patterns.iter().find(|pattern| pattern.nodes as usize > agents.len()) {
        return Err(Error::refused(
            format!("pattern {:?} takes {} nodes, and there are {}", large.name, large.nodes, agents.len()),
            "give patterns for fewer: `bivouac explore patterns --table2 --nodes N --processes P`",
        ));
    }
    signals::take(|taken| {
        if taken.is_final() {
            signals::interrupt(taken.number);
        }
    })
    .map_err(|cause| Error::System { what: "cannot wait for signals".into(), cause })?;
    let io_nodes = IoNodes::of(&record, &key, directory.lock_explore()?)?;
    let mut numbers = args.io_nodes.clone();
    numbers.sort_unstable();
    numbers.dedup();
    io_nodes.check(numbers.last().copied().unwrap_or(0))?;
    let place = below(&io_nodes.before().directory, args.directory.as_deref())?;
    let results = Results::open(&args.out).map_err(explained)?;
    let mut exploration = Exploration {
        args,
        directory: format!("{place}/bivouac-explore-{:016x}", record.deployment),
        links: Vec::new(),
        patterns,
        io_nodes,
        results,
        drops_caches: false,
        told_of_caches: false,
        agents,
    };
    let names: Vec<String> = exploration.agents.iter().map(|agent| agent.host.clone()).collect();
    let file_system = exploration.connect(&record.daemons, &place)?;
    let forwarding = exploration.io_nodes.before();
    let header = Header {
        version: VERSION,
        deployment: args.name.clone(),
        directory: place,
        file_system,
        nodes: names,
        io_nodes: numbers.clone(),
        repetitions: args.repetitions,
        seed: args.seed,
        started: now(),
        scheduler: forwarding.scheduler.clone(),
        assign: match forwarding.assign {
            Assign::Node => "node".into(),
            Assign::File => "file".into(),
        },
        patterns: exploration.patterns.clone(),
    };
    exploration.begin(header)?;
    let entries = sequence::of(exploration.patterns.len(), &numbers, args.repetitions, args.seed);
    let done = exploration.go(&entries);
    // Before the I/O nodes are put back, and whatever has happened.
    end(&mut exploration.links);
    let failed = done?;
    if failed > 0 {
        eprintln!("bivouac: {} failed; {} says why", plural(failed, "run"), args.out.display());
        return Ok(ExitCode::from(exit::BENCH));
    }
    Ok(ExitCode::SUCCESS)
}

/// A directory below the forwarded one.
fn below(forwarded: &str, sub: Option<&Path>) -> Result<String, Error> {
    let Some(sub) = sub else { return Ok(forwarded.to_owned()) };
    let relative = sub.strip_prefix(forwarded).unwrap_or(sub);
    let names: Option<Vec<&str>> = relative
        .components()
        .filter(|part| !matches!(part, Component::CurDir))
        .map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    match names {
        Some(names) => Ok([&[forwarded][..], &names].concat().join("/")),
        None => Err(Error::refused(
            format!("{} is not below {forwarded}, which is forwarded", sub.display()),
            "give --directory as a path from there, without `..`",
        )),
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn stop() -> bool {
    signals::interrupted().is_some()
}

impl<'a> Exploration<'a> {
    /// Connects to the nodes, also to those that only have page caches of what is read. The kind of the file system.
    fn connect(&mut self, daemons: &'a [DaemonRecord], place: &str) -> Result<String, Error> {
        if self.patterns.iter().flat_map(|pattern| &pattern.phases).any(|phase| phase.operation.reads()) {
            self.drops_caches = true;
            for agent in daemons.iter().filter(|daemon| daemon.agent) {
                if !self.agents.iter().any(|other| other.node == agent.node) {
                    self.agents.push(agent);
                }
            }
        }
        self.links = nodes::connect(&self.agents)?;
        let seen = look(&mut self.links, place, &stop).map_err(explained)?;
        let kind = seen.into_iter().find_map(|node| node.file_system).unwrap_or_else(|| "unknown".into());
        if IN_MEMORY.contains(&kind.as_str()) && self.drops_caches {
            self.drops_caches = false;
            eprintln!("page caches are not dropped before reads: {place} is memory itself ({kind})");
        }
        Ok(kind)
    }

    /// Writes the first line, or goes on after those that are there.
    fn begin(&mut self, header: Header) -> Result<(), Error> {
        if self.results.was_cut {
            eprintln!("bivouac: the last line of {} was cut: its run is repeated", self.args.out.display());
        }
        if let Some(before) = &self.results.before {
            if (&before.nodes, &before.directory) != (&header.nodes, &header.directory) {
                eprintln!("bivouac: it began on {} in {}", before.nodes.join(", "), before.directory);
            }
            if (&before.scheduler, &before.assign) != (&header.scheduler, &header.assign) {
                return Err(Error::refused(
                    format!(
                        "{} has results with the scheduler {}, and assigned by {}",
                        self.args.out.display(),
                        before.scheduler,
                        before.assign
                    ),
                    "set these by `bivouac forward`, or give another --out",
                ));
            }
        }
        self.results.begin(header).map_err(explained)
    }

    /// Does all runs that are missing. How many failed.
    fn go(&mut self, entries: &[Entry]) -> Result<usize, Error> {
        let missing: Vec<&Entry> =
            entries.iter().filter(|entry| !self.results.has(entry, &self.patterns[entry.pattern])).collect();
        if missing.len() < entries.len() {
            eprintln!(
                "{} of {} are done already",
                entries.len() - missing.len(),
                plural(entries.len(), "run")
            );
        }
        let (began, shows) = (Instant::now(), std::io::stderr().is_terminal());
        let mut failed = 0;
        for (number, entry) in missing.iter().enumerate() {
            if shows {
                let each = began.elapsed() / (number as u32).max(1);
                let left = (number > 0).then(|| each * (missing.len() - number) as u32);
                self.show(number, missing.len(), left, entry);
            }
            let begun = now();
            let measured = self.one(entry);
            if shows {
                eprint!("\r\x1b[K");
            }
            let pattern = &self.patterns[entry.pattern];
            let line = match measured {
                Ok(measured) => {
                    self.tell_of_caches(&measured);
                    let pattern = &self.patterns[entry.pattern];
                    let reads_only = pattern
                        .phases
                        .iter()
                        .all(|phase| phase.operation == bivouac_explore::patterns::Operation::Read);
                    Line::run(entry, pattern, begun, measured, reads_only || !self.args.no_verify)
                }
                Err(Error::Refused { cause, .. }) => {
                    failed += 1;
                    Line::failed(entry, pattern, begun, cause)
                }
                Err(error) => return Err(error),
            };
            self.results.add(&line).map_err(explained)?;
            self.tell(&line);
        }
        Ok(failed)
    }

    /// One run. [`Error::Refused`] is about this run alone; after any other error it makes no sense to go on.
    fn one(&mut self, entry: &Entry) -> Result<Measured, Error> {
        if let Some(signal) = signals::interrupted() {
            return Err(Error::Interrupted(signal));
        }
        self.io_nodes.set(entry.io_nodes)?;
        if self.links.is_empty() {
            self.links =
                nodes::connect(&self.agents).map_err(|error| Error::refused(error.to_string(), ""))?;
        }
        let mut run = [0; 8];
        random(&mut run)?;
        let run = u64::from_le_bytes(run);
        let directory = format!("{}/{run:016x}", self.directory);
        let conditions = Conditions {
            deployment: &self.args.name,
            directory: &directory,
            run,
            forwarded: entry.io_nodes > 0,
            verify: !self.args.no_verify,
            drop_caches: self.drops_caches,
            counts: &|| self.io_nodes.counts(),
            stop: &stop,
        };
        let measured = measure(&mut self.links, &self.patterns[entry.pattern], &conditions);
        match measured {
            Ok(measured) => Ok(measured),
            Err(error) => {
                // Processes end with their node's connection, and remove their files.
                end(&mut self.links);
                Err(match error {
                    ExploreError::Run(cause) => Error::refused(cause, ""),
                    other => explained(other),
                })
            }
        }
    }

    fn show(&self, number: usize, all: usize, left: Option<Duration>, entry: &Entry) {
        let left = left.map_or(String::new(), |left| match left.as_secs() {
            seconds @ 0..120 => format!(", {seconds} s left"),
            seconds => format!(", {} min left", seconds / 60),
        });
        eprint!(
            "\rrun {} of {all}{left}: {} with {}\x1b[K",
            number + 1,
            self.patterns[entry.pattern].name,
            plural(entry.io_nodes as usize, "I/O node")
        );
    }

    fn tell(&self, line: &Line) {
        match line {
            Line::Run(run) if self.args.verbose => eprintln!(
                "{} with {}, repetition {}: {}/s ({} in {:.2} s)",
                run.pattern,
                plural(run.io_nodes as usize, "I/O node"),
                run.repetition,
                size(run.bandwidth as u64),
                size(run.bytes),
                run.seconds
            ),
            Line::Failed(run) => eprintln!(
                "bivouac: {} with {}, repetition {}, failed: {}",
                run.pattern,
                plural(run.io_nodes as usize, "I/O node"),
                run.repetition,
                run.error
            ),
            _ => {}
        }
    }

    /// Says once whether page caches could be dropped.
    fn tell_of_caches(&mut self, measured: &Measured) {
        if let Some((dropped, nodes)) = measured.dropped
            && !self.told_of_caches
        {
            self.told_of_caches = true;
            eprintln!(
                "page caches are dropped before reads on {dropped} of {}{}",
                plural(nodes, "node"),
                if dropped < nodes { "; elsewhere that is not allowed" } else { "" }
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_below_the_forwarded_one() {
        let of = |sub: &str| below("/scratch/me", Some(Path::new(sub)));
        for (sub, path) in [
            ("x", "/scratch/me/x"),
            ("./x/y/", "/scratch/me/x/y"),
            ("/scratch/me/x", "/scratch/me/x"),
            (".", "/scratch/me"),
        ] {
            assert_eq!(of(sub).expect("is below"), path);
        }
        for sub in ["/scratch/you", "..", "x/../../y", "/"] {
            assert!(matches!(of(sub), Err(Error::Refused { .. })), "{sub}");
        }
        assert_eq!(below("/scratch/me", None).expect("itself"), "/scratch/me");
    }
}
