//! Before the first file: which workers are fit, and what exactly is copied where.
//!
//! A path of the backend is what it is on the machine of the command. A node that has something else under
//! this path, or nothing, is left out: a preload compares what is there, a flush makes a file at the
//! destination and looks who sees it.

use super::crew::{Crew, Link};
use super::{Job, Options, shown};
use crate::local::Local;
use crate::parts;
use crate::report::StageError;
use crate::tree::{Kind, Meta, Tree, file_name, join, parent};
use crate::wire::{Direction, Order, Outcome, Setup, Side, Task};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// How long a node may take to see a file that was made on another one: network file systems remember for a
/// moment what was not there.
const SEEN_WITHIN: Duration = Duration::from_secs(3);

/// What a copy begins with.
pub(super) struct Begun {
    pub(super) crew: Crew,
    pub(super) left_out: Vec<(String, String)>,
    /// The root of what is copied, and what is where its copy goes.
    pub(super) root: Meta,
    pub(super) there: Option<Meta>,
    /// The root of the backend's tree, by a name that does not depend on links.
    pub(super) backend: Vec<u8>,
}

/// Gathers the workers, and finds out where the copy goes.
pub(super) fn assemble(links: Vec<Link>, job: &mut Job, options: &Options) -> Result<Begun, StageError> {
    let run = format!("{:016x}-{:08x}", job.deployment, number());
    let setup = Setup {
        name: job.name.clone(),
        direction: job.direction,
        source: job.source.clone(),
        destination: job.destination.clone(),
        run: run.clone(),
        threads: 0,
        rate: 0,
        verify: options.checksum,
    };
    let serving: Vec<String> =
        links.iter().filter(|link| link.serves).map(|link| link.name.clone()).collect();
    let root = match job.direction {
        Direction::In => Some(kind_checked(job, Local.stat(&job.source, true))?),
        Direction::Out => None,
    };
    let (mut crew, mut left_out) = Crew::gather(links, &setup, options.streams, options.max_rate);
    let nobody = |crew: &Crew, mut left_out: Vec<(String, String)>| {
        left_out.extend(crew.lost_so_far());
        Err(StageError::Workers(left_out))
    };
    if crew.len() == 0 {
        return nobody(&crew, left_out);
    }
    let root = match root {
        Some(root) => {
            let answers = crew.ask_all(&backend_stat(&job.source));
            left_out.extend(crew.leave_out(unfit(answers, &root, &job.source)));
            root
        }
        None => match crew.stat(Side::Source, b"") {
            Some(stat) => kind_checked(job, stat.map_err(io_error))?,
            None => return nobody(&crew, left_out),
        },
    };
    if options.lazy {
        let blind = left_out.iter().filter(|(name, _)| serving.contains(name));
        let blind: Vec<(String, String)> = blind.cloned().collect();
        if !blind.is_empty() {
            return Err(StageError::Unseen(blind));
        }
    }
    let there = match destination(&mut crew, job, &root) {
        Ok(there) => there,
        Err(error) => return Err(StageError::Destination { path: shown(&job.destination), source: error }),
    };
    if job.direction == Direction::Out {
        left_out.extend(backend_made(&mut crew, job, &root, options, &run)?);
    } else if !options.dry_run && crew.len() > 0 {
        let made = crew.ask(Task::MakeParents { itself: root.kind == Kind::Directory });
        if let Some(Outcome::Made(Err(why))) = made {
            let source = io::Error::other(why);
            return Err(StageError::Destination { path: shown(&job.destination), source });
        }
    }
    crew.prefer_servers();
    if crew.len() == 0 {
        return nobody(&crew, left_out);
    }
    let backend = match job.direction {
        Direction::In => canonical(&job.source),
        Direction::Out => canonical(&job.destination),
    };
    Ok(Begun { crew, left_out, root, there, backend })
}

/// Where the copy goes: into the destination if a file is copied and that is a directory. What is there.
fn destination(crew: &mut Crew, job: &mut Job, root: &Meta) -> io::Result<Option<Meta>> {
    let mut look = |job: &Job| -> io::Result<Option<Meta>> {
        let found = match job.direction {
            Direction::Out => Local.stat(&job.destination, true),
            Direction::In => {
                let stat = crew.stat(Side::Destination, b"");
                stat.ok_or_else(|| io::Error::other("no worker is left"))?.map_err(io_error)
            }
        };
        match found {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    };
    let found = look(job)?;
    let is_directory = found.is_some_and(|meta| meta.kind == Kind::Directory);
    if root.kind == Kind::Directory || !is_directory && !job.destination.ends_with(b"/") {
        return Ok(found);
    }
    job.destination = join(&job.destination, file_name(&job.source));
    crew.tell(|| Order::Destination(job.destination.clone()));
    let mut look = |job: &Job| match job.direction {
        Direction::Out => Local.stat(&job.destination, false).ok(),
        Direction::In => crew.stat(Side::Destination, b"").and_then(Result::ok),
    };
    Ok(look(job))
}

/// Makes the directory of the backend that the copy goes to, and leaves those workers out that do not see it.
fn backend_made(
    crew: &mut Crew,
    job: &Job,
    root: &Meta,
    options: &Options,
    run: &str,
) -> Result<Vec<(String, String)>, StageError> {
    let directory = match root.kind {
        Kind::Directory => &job.destination[..],
        _ => match parent(&job.destination) {
            b"" => b".",
            parent => parent,
        },
    };
    if options.dry_run {
        let Ok(here) = Local.stat(directory, true) else { return Ok(Vec::new()) };
        let answers = crew.ask_all(&backend_stat(directory));
        return Ok(crew.leave_out(unfit(answers, &here, directory)));
    }
    let failed = |source| StageError::Destination { path: shown(directory), source };
    std::fs::create_dir_all(shown(directory)).map_err(failed)?;
    let marker = parts::name(&join(directory, b"nodes"), run);
    // It is seen by whoever sees the directory, and removed whatever happens.
    let marked = Marker(marker.clone());
    let meta = Local.create(&marker).and_then(|file| file.meta()).map_err(failed)?;
    let begun = Instant::now();
    let task = backend_stat(&marker);
    let mut answers = crew.ask_all(&task);
    let misses = |answers: &BTreeMap<usize, Outcome>| {
        answers.values().any(|answer| !matches!(answer, Outcome::Stat(Ok(_))))
    };
    while misses(&answers) && begun.elapsed() < SEEN_WITHIN {
        std::thread::sleep(Duration::from_millis(200));
        answers = crew.ask_all(&task);
    }
    drop(marked);
    Ok(crew.leave_out(unfit(answers, &meta, directory)))
}

struct Marker(Vec<u8>);

impl Drop for Marker {
    fn drop(&mut self) {
        let _ = Local.remove(&self.0);
    }
}

fn backend_stat(path: &[u8]) -> Task {
    Task::Stat { side: Side::Backend, path: path.to_vec(), follow: true }
}

/// The workers that do not see what the command sees.
fn unfit(answers: BTreeMap<usize, Outcome>, here: &Meta, path: &[u8]) -> Vec<(usize, String)> {
    let path = shown(path);
    let why = |outcome| match outcome {
        Outcome::Stat(Ok(meta)) if meta.identity.1 == here.identity.1 && meta.kind == here.kind => None,
        Outcome::Stat(Ok(_)) => {
            Some(format!("it has something else under {} than this machine", path.display()))
        }
        Outcome::Stat(Err((_, why))) => Some(format!("it does not see {}: {why}", path.display())),
        _ => Some("it answered something that was not asked".to_owned()),
    };
    answers.into_iter().filter_map(|(number, outcome)| Some((number, why(outcome)?))).collect()
}

fn kind_checked(job: &Job, stat: io::Result<Meta>) -> Result<Meta, StageError> {
    let failed = |source| StageError::Source { path: shown(&job.source), source };
    let meta = stat.map_err(failed)?;
    match meta.kind {
        Kind::Directory | Kind::File => Ok(meta),
        _ => Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a directory"))),
    }
}

fn io_error((errno, text): (i32, String)) -> io::Error {
    if errno != 0 { io::Error::from_raw_os_error(errno) } else { io::Error::other(text) }
}

/// A path without symbolic links, as far as it exists.
fn canonical(path: &[u8]) -> Vec<u8> {
    let whole = |path: &[u8]| Some(std::fs::canonicalize(shown(path)).ok()?.as_os_str().as_bytes().to_vec());
    whole(path)
        .or_else(|| Some(join(&whole(parent(path))?, file_name(path))))
        .unwrap_or_else(|| path.to_vec())
}

/// A number that another run does not have.
fn number() -> u32 {
    let mut bytes = [0; 4];
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        return std::process::id();
    }
    u32::from_le_bytes(bytes)
}
