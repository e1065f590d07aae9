//! A process's transfers. It has two files: one that it fills and others read (and that random writes change,
//! so that it is filled again before the next reads), and one that sequential writes make anew.

use super::protocol::{Act, Answer, Group, Place, Transfer};
use crate::content::{Author, Buffer};
use crate::load::forget;
use crate::protocol::Outcome;
use crate::random::permuted;
use bivouac_bench::{cpu, interruption};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Bytes that a file is filled by at once.
const FILL: u64 = 1 << 20;

/// What a process has open.
#[derive(Debug, Default)]
pub struct Transferring {
    file: Option<File>,
    buffers: Option<Buffers>,
}

/// A request's bytes: as they have to be, and as they were read.
#[derive(Debug)]
struct Buffers {
    right: Buffer,
    read: Buffer,
}

impl Transfer {
    /// Requests of each process in all of its file.
    pub fn requests(&self) -> u64 {
        self.bytes.checked_div(self.request).unwrap_or(0)
    }

    /// Where a member's request is.
    pub fn offset(&self, member: u32, index: u64, seed: u64) -> u64 {
        let count = self.requests();
        let place = if self.random { permuted(index, count, seed ^ u64::from(member)) } else { index };
        place * self.request
    }

    /// A member's file.
    fn path(&self, place: &Place, member: u32) -> String {
        match self.writes && !self.random {
            true => format!("{}/written.{member}", place.directory),
            false => filled(place, member),
        }
    }
}

/// The file of a member that others read.
fn filled(place: &Place, member: u32) -> String {
    format!("{}/filled.{member}", place.directory)
}

impl Buffers {
    fn of(request: u64, run: u64) -> Result<Buffers, String> {
        let len = usize::try_from(request).map_err(|e| e.to_string())?;
        Ok(Buffers { right: Buffer::periodic(len, run), read: Buffer::periodic(len, run) })
    }

    /// Reads a request, and compares it with what has to be there.
    fn check(&mut self, file: &File, path: &str, author: &Author, offset: u64) -> Result<(), String> {
        let failed = |e| format!("cannot read {path} at byte {offset}: {e}");
        file.read_exact_at(self.read.room(), offset).map_err(failed)?;
        self.right.stamp(author, offset);
        match self.read.differs(&self.right) {
            None => Ok(()),
            Some(at) => Err(format!(
                "{path} is wrong at byte {}: that is not what process {} has written there",
                offset + at as u64,
                author.rank
            )),
        }
    }
}

impl Transferring {
    /// One step.
    pub fn step(
        &mut self,
        place: &Place,
        group: Group,
        member: u32,
        number: u64,
        act: &Act,
    ) -> Result<Answer, String> {
        let author =
            |member: u32, phase: u64, measured| Author { run: place.run, phase, rank: member, measured };
        match act {
            Act::Fill { bytes } => fill(&filled(place, member), *bytes, &author(member, number, false)),
            Act::Forget => {
                let path = filled(place, member);
                let file = open(&path, File::options().write(true))?;
                sync(&file, &path)?;
                forget(&file);
                Ok(Answer::Ready)
            }
            Act::Open(transfer) => {
                self.buffers = Some(Buffers::of(transfer.request, place.run)?);
                let whose = if transfer.writes { member } else { group.other(member) };
                let path = transfer.path(place, whose);
                let anew = transfer.writes && !transfer.random;
                let mut options = File::options();
                options.read(true).write(transfer.writes).create(anew).truncate(anew);
                self.file = Some(open(&path, &options)?);
                Ok(Answer::Ready)
            }
            Act::Go(transfer) => {
                let whose = if transfer.writes { member } else { group.other(member) };
                let phase = if transfer.writes { number } else { transfer.filled };
                self.go(place, transfer, &author(whose, phase, transfer.writes)).map(Answer::Done)
            }
            Act::Check(transfer, done) => {
                let whose = group.other(member);
                let path = transfer.path(place, whose);
                let file = open(&path, File::options().read(true))?;
                let mut buffers = Buffers::of(transfer.request, place.run)?;
                let done = done.get(whose as usize).copied().unwrap_or(0).min(transfer.requests());
                for index in (0..done).take_while(|_| !interruption::came()) {
                    let offset = transfer.offset(whose, index, place.seed);
                    buffers.check(&file, &path, &author(whose, number, true), offset)?;
                }
                Ok(Answer::Ready)
            }
            Act::Close(transfer) => {
                let path = transfer.path(place, member);
                match self.file.take() {
                    Some(_) if transfer.writes && !transfer.random => remove(&path)?,
                    // What it has written must not disturb what is measured next.
                    Some(file) if transfer.writes => sync(&file, &path)?,
                    _ => {}
                }
                Ok(Answer::Ready)
            }
            Act::Clear => remove(&filled(place, member)).map(|()| Answer::Ready),
            _ => Err("was told what is no step of a transfer".into()),
        }
    }

    fn go(&mut self, place: &Place, transfer: &Transfer, author: &Author) -> Result<Outcome, String> {
        let path = transfer.path(place, author.rank);
        let (Some(file), Some(buffers)) = (&self.file, &mut self.buffers) else {
            return Err("was not told to open a file".into());
        };
        let mut outcome = Outcome { began: cpu::now(), ..Outcome::default() };
        let until = Instant::now() + Duration::from_secs_f64(transfer.seconds);
        for index in 0..transfer.requests() {
            let offset = transfer.offset(author.rank, index, place.seed);
            if transfer.writes {
                buffers.right.stamp(author, offset);
                file.write_all_at(buffers.right.bytes(), offset)
                    .map_err(|e| format!("cannot write {path} at byte {offset}: {e}"))?;
            } else {
                buffers.check(file, &path, author, offset)?;
            }
            outcome.requests += 1;
            if interruption::came() || Instant::now() >= until {
                break;
            }
        }
        if transfer.fsync {
            sync(file, &path)?;
        }
        outcome.ended = cpu::now();
        outcome.bytes = outcome.requests * transfer.request;
        Ok(outcome)
    }
}

fn fill(path: &str, bytes: u64, author: &Author) -> Result<Answer, String> {
    let file = open(path, File::options().write(true).create(true).truncate(false))?;
    let mut buffer = Buffer::periodic(FILL.min(bytes) as usize, author.run);
    let mut offset = 0;
    while offset < bytes && !interruption::came() {
        buffer.stamp(author, offset);
        let part = FILL.min(bytes - offset);
        let written = file.write_all_at(&buffer.bytes()[..part as usize], offset);
        written.map_err(|e| format!("cannot write {path} at byte {offset}: {e}"))?;
        offset += part;
    }
    sync(&file, path)?;
    Ok(Answer::Ready)
}

fn open(path: &str, options: &fs::OpenOptions) -> Result<File, String> {
    options.open(path).map_err(|e| format!("cannot open {path}: {e}"))
}

fn sync(file: &File, path: &str) -> Result<(), String> {
    file.sync_all().map_err(|e| format!("cannot sync {path}: {e}"))
}

fn remove(path: &str) -> Result<(), String> {
    fs::remove_file(path).map_err(|e| format!("cannot remove {path}: {e}"))
}
