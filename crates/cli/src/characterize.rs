//! `characterize`: what each of several storages is good at, measured by the crate `bivouac-explore`
//! (`bivouac_explore::characterize`).
//!
//! This module has what that crate leaves to others: it refuses what cannot be measured before anything is
//! written, starts the part on each node as explorations do ([`nodes`]), goes through the repetitions, writes
//! the results, and shows how far it is ([`Watch`]). Reports are made by the Python package ([`python`]).

mod watch;

use crate::args::{CharacterizeArgs, Named};
use crate::error::{Error, exit};
use crate::explore::{IN_MEMORY, explained, nodes};
use crate::home::{Home, random};
use crate::text::size;
use crate::{python, signals};
use bivouac_explore::ExploreError;
use bivouac_explore::characterize::measure::{Conditions, inspect, measure};
use bivouac_explore::characterize::plan::Plan;
use bivouac_explore::characterize::process::give_up;
use bivouac_explore::characterize::protocol::{Place, Seen};
use bivouac_explore::characterize::results::{Header, Line, Results, Storage, VERSION};
use bivouac_explore::run::{Link, end};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;
use watch::Watch;

const REQUESTS: [u64; 7] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const REQUESTS_QUICK: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
const FILES: [u64; 4] = [1000, 2000, 4000, 8000];
const FILES_QUICK: [u64; 3] = [1000, 2000, 4000];

/// `characterize`.
pub fn characterize(args: &CharacterizeArgs) -> Result<ExitCode, Error> {
    match (&args.report, &args.html, &args.out) {
        (Some(results), Some(html), _) => report(results, html, args.csv.as_deref()),
        (_, _, Some(out)) => run(args, out),
        // The command line's definition lets nothing else through.
        _ => Err(Error::refused("there is nothing to do", "give storages and --out, or --report and --html")),
    }
}

fn report(results: &Path, html: &Path, csv: Option<&Path>) -> Result<ExitCode, Error> {
    let mut words: Vec<OsString> =
        vec!["characterize-report".into(), results.into(), "--html".into(), html.into()];
    if let Some(csv) = csv {
        words.extend(["--csv".into(), csv.into()]);
    }
    python::call(&words)
}

/// A storage that is measured.
struct Target {
    storage: Storage,
    /// It failed, and is left out from now on.
    failed: bool,
}

fn run(args: &CharacterizeArgs, out: &Path) -> Result<ExitCode, Error> {
    let mut targets = targets(args)?;
    if std::fs::symlink_metadata(out).is_ok() {
        return Err(Error::refused(format!("{} is there already", out.display()), "give another --out"));
    }
    signals::take(|taken| {
        if taken.is_final() {
            signals::interrupt(taken.number);
        }
    })
    .map_err(|cause| Error::System { what: "cannot wait for signals".into(), cause })?;
    let mut nodes = Nodes::connect(args)?;
    let seen =
        targets.iter_mut().map(|target| nodes.inspect(target)).collect::<Result<Vec<Seen>, Error>>()?;
    let first = seen.first().cloned().unwrap_or_default();
    let plan = plan(args, nodes.links.len() as u32, first.cores)?;
    for (target, seen) in targets.iter().zip(&seen) {
        check_room(&target.storage, seen, &plan)?;
    }
    let header = Header {
        version: VERSION,
        started: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        memory: first.memory,
        cores: first.cores,
        seed: args.seed,
        storages: targets.iter().map(|target| target.storage.clone()).collect(),
    };
    let mut results = Results::create(out).map_err(explained)?;
    results.add(&Line::Characterization(header)).map_err(explained)?;
    warn_of_memory(&targets, &plan, first.memory);
    let mut watch = Watch::new(results, plan.count() * targets.len() * plan.repetitions as usize);
    for repetition in 0..plan.repetitions {
        // Each storage is the first one once in a while.
        for turn in 0..targets.len() {
            let number = (turn + repetition as usize) % targets.len();
            let target = &mut targets[number];
            if target.failed {
                continue;
            }
            watch.turn(&target.storage.name, repetition, plan.repetitions);
            nodes.one(args, &plan, target, repetition, first.memory, &mut watch)?;
        }
    }
    end(&mut nodes.links);
    watch.clear();
    if targets.iter().any(|target| target.failed) || watch.lost > 0 {
        return Ok(ExitCode::from(exit::BENCH));
    }
    eprintln!("`bivouac characterize --report {} --html report.html` makes a report", out.display());
    Ok(ExitCode::SUCCESS)
}

/// The storages that were named, with nothing known of them yet.
fn targets(args: &CharacterizeArgs) -> Result<Vec<Target>, Error> {
    let mut targets: Vec<Target> = Vec::new();
    for Named { name, directory } in &args.storages {
        if targets.iter().any(|target| target.storage.name == *name) {
            return Err(Error::refused(
                format!("two storages are called {name:?}"),
                "give each a name of its own",
            ));
        }
        if args.deployment.is_some() && directory.is_relative() {
            return Err(Error::refused(
                format!("{} is no absolute path", directory.display()),
                "with --deployment, give directories as its nodes see them",
            ));
        }
        let path = std::path::absolute(directory).map_err(|e| Error::file("find", directory, e))?;
        let text = path.to_str().ok_or_else(|| {
            Error::refused(format!("{} is no text in UTF-8", directory.display()), "give another directory")
        })?;
        let storage = Storage {
            name: name.clone(),
            directory: text.to_owned(),
            file_system: String::new(),
            capacity: 0,
            free: 0,
        };
        targets.push(Target { storage, failed: false });
    }
    Ok(targets)
}

/// What is measured, by what was given and by what this machine has.
fn plan(args: &CharacterizeArgs, nodes: u32, cores: u64) -> Result<Plan, Error> {
    let listed = |given: &[u64], usual: &[u64], quick: &[u64]| {
        let chosen = match (given.is_empty(), args.quick) {
            (false, _) => given,
            (true, true) => quick,
            (true, false) => usual,
        };
        let mut list = chosen.to_vec();
        list.sort_unstable();
        list.dedup();
        list
    };
    let requests = listed(&args.requests, &REQUESTS, &REQUESTS_QUICK);
    let each = args.processes.unwrap_or(cores.clamp(2, 8) as u32);
    // Each process has at least one request of each length.
    let least = requests.last().copied().unwrap_or(0).saturating_mul(u64::from(nodes) * u64::from(each));
    let usual = if args.quick { 64 << 20 } else { 256 << 20 };
    let plan = Plan {
        nodes,
        each,
        size: args.size.unwrap_or(least.max(usual)),
        seconds: args.seconds.unwrap_or(if args.quick { 0.2 } else { 0.5 }),
        files: listed(&args.files, &FILES, &FILES_QUICK),
        requests,
        entries: if args.quick { 1000 } else { 4000 },
        repetitions: args.repetitions.unwrap_or(if args.quick { 1 } else { 3 }),
        seed: args.seed,
        between: !args.quick,
    };
    plan.check().map_err(|error| {
        Error::refused(error.to_string(), "give a greater --size, shorter --requests, or fewer --processes")
    })?;
    Ok(plan)
}

fn check_room(storage: &Storage, seen: &Seen, plan: &Plan) -> Result<(), Error> {
    let Storage { name, directory, .. } = storage;
    if seen.free < plan.room() {
        return Err(Error::refused(
            format!("{name}: {directory} has {} free, and {} are needed", size(seen.free), size(plan.room())),
            "free some space there, or give a smaller --size, or fewer --files",
        ));
    }
    match seen.free_files {
        Some(free) if free < plan.files_at_once() => Err(Error::refused(
            format!(
                "{name}: {directory} can have {free} more files, and {} are needed",
                plan.files_at_once()
            ),
            "remove some files there, or give fewer --files",
        )),
        _ => Ok(()),
    }
}

/// Says that files are too small to measure the storage behind the page cache.
fn warn_of_memory(targets: &[Target], plan: &Plan, memory: u64) {
    let all = memory.saturating_mul(plan.nodes.into());
    let on_disk = targets.iter().any(|target| !IN_MEMORY.contains(&target.storage.file_system.as_str()));
    if on_disk && plan.size <= all {
        eprintln!(
            "the files ({}) fit into the page cache (memory: {}): reads, and writes without fsync, may measure memory; \
             --size {}G would not",
            size(plan.size),
            size(all),
            (all / (1 << 30) + 1) * 2
        );
    }
}

fn stop() -> bool {
    signals::interrupted().is_some()
}

/// The nodes that processes are started on.
struct Nodes<'a> {
    deployment: Option<&'a str>,
    links: Vec<Link>,
}

impl<'a> Nodes<'a> {
    fn connect(args: &'a CharacterizeArgs) -> Result<Nodes<'a>, Error> {
        let deployment = args.deployment.as_deref();
        let links = match deployment {
            None => vec![nodes::local()?],
            Some(name) => {
                let record = Home::from_env()?.deployment(name).load()?;
                record.check_runs()?;
                nodes::connect(&nodes::chosen(&record, &args.hosts)?)?
            }
        };
        Ok(Nodes { deployment, links })
    }

    /// A directory below a storage's that nothing else has.
    fn place(storage: &Storage, seed: u64, each: u32) -> Result<Place, Error> {
        let mut run = [0; 8];
        random(&mut run)?;
        let run = u64::from_le_bytes(run);
        let above = storage.directory.trim_end_matches('/');
        Ok(Place { directory: format!("{above}/bivouac-characterize-{run:016x}"), run, seed, each })
    }

    /// Looks what a storage is, and whether a directory can be made there.
    fn inspect(&mut self, target: &mut Target) -> Result<Seen, Error> {
        let place = Self::place(&target.storage, 0, 1)?;
        let Storage { name, directory, .. } = &target.storage;
        let seen = inspect(&mut self.links, self.deployment, &place, &stop).map_err(|error| match error {
            ExploreError::Run(cause) => Error::refused(
                format!("{name}: {directory} cannot be used: {cause}"),
                "give a directory that is there and writable; what only a deployment has takes --deployment",
            ),
            other => explained(other),
        });
        if seen.is_err() {
            self.give_up(&place);
        }
        let seen = seen?;
        target.storage.file_system.clone_from(&seen.file_system);
        (target.storage.capacity, target.storage.free) = (seen.capacity, seen.free);
        Ok(seen)
    }

    /// Has everything end and be removed. What processes could not remove any more goes here, as far as this
    /// machine sees it.
    fn give_up(&mut self, place: &Place) {
        end(&mut self.links);
        give_up(&place.directory);
    }

    /// Measures a storage once. If it fails, it is noted; only what concerns all storages is an error.
    fn one(
        &mut self,
        args: &'a CharacterizeArgs,
        plan: &Plan,
        target: &mut Target,
        repetition: u32,
        memory: u64,
        watch: &mut Watch,
    ) -> Result<(), Error> {
        if let Some(signal) = signals::interrupted() {
            return Err(Error::Interrupted(signal));
        }
        if self.links.is_empty() {
            self.links = Nodes::connect(args)?.links;
        }
        let place = Self::place(&target.storage, plan.seed, plan.each)?;
        let conditions = Conditions {
            deployment: self.deployment,
            storage: &target.storage.name,
            place: &place,
            plan,
            repetition,
            drop_caches: !IN_MEMORY.contains(&target.storage.file_system.as_str()),
            memory,
            stop: &stop,
        };
        let measured = measure(&mut self.links, &conditions, watch);
        let Err(error) = measured else { return Ok(()) };
        self.give_up(&place);
        watch.clear();
        match error {
            ExploreError::Run(cause) => {
                eprintln!("bivouac: {} failed, and is measured no further: {cause}", target.storage.name);
                target.failed = true;
                Ok(())
            }
            other => Err(explained(other)),
        }
    }
}
