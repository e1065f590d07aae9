//! A process's operations of metadata, in a directory of its own. It makes directories and empty files, looks
//! at another process's, renames its own, and removes them. What it finds is compared with what has to be
//! there.

use super::protocol::{Answer, Group, Metadata, Operation, Place};
use crate::protocol::Outcome;
use bivouac_bench::{cpu, interruption};
use std::fs::{self, File};
use std::io;
use std::time::{Duration, Instant};

/// How often a directory is listed.
const LISTINGS: u32 = 10;

/// One step.
pub fn step(place: &Place, group: Group, member: u32, step: &Metadata) -> Result<Answer, String> {
    let directory = |member: u32| format!("{}/metadata.{member}", place.directory);
    let own = directory(member);
    match step {
        Metadata::Begin => fs::create_dir(&own).map_err(|e| format!("cannot make {own}: {e}"))?,
        Metadata::End => fs::remove_dir_all(&own).map_err(|e| format!("cannot remove {own}: {e}"))?,
        Metadata::Do { operation, most, made } => {
            let other = group.other(member);
            let of = |member: u32| made.get(member as usize).copied().unwrap_or_default();
            let (own_files, others) = (of(member).1, of(other));
            let other = directory(other);
            let done = match operation {
                Operation::Mkdir => repeated(*most, |n| fs::create_dir(format!("{own}/d{n}")).map(|()| 1)),
                Operation::Create => repeated(*most, |n| {
                    File::options().write(true).create_new(true).open(format!("{own}/f{n}")).map(|_| 1)
                }),
                Operation::Stat => repeated((others.1, f64::INFINITY), |n| empty(&format!("{other}/f{n}"))),
                Operation::Readdir => {
                    repeated((LISTINGS.into(), most.1), |_| list(&other, others.0 + others.1))
                }
                Operation::Rename => repeated((own_files, f64::INFINITY), |n| {
                    fs::rename(format!("{own}/f{n}"), format!("{own}/g{n}")).map(|()| 1)
                }),
                Operation::Unlink => repeated((own_files, f64::INFINITY), |n| {
                    fs::remove_file(format!("{own}/g{n}")).map(|()| 1)
                }),
            };
            return done.map(Answer::Done).map_err(|e| format!("{operation:?} in {own} failed: {e}"));
        }
    }
    Ok(Answer::Ready)
}

/// Does something so often, or for so many seconds. It says how many operations it was.
fn repeated((most, seconds): (u64, f64), mut one: impl FnMut(u64) -> io::Result<u64>) -> io::Result<Outcome> {
    let mut outcome = Outcome { began: cpu::now(), ..Outcome::default() };
    let begun = Instant::now();
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    for number in 0..most {
        outcome.requests += one(number)?;
        if interruption::came() || begun.elapsed() >= limit {
            break;
        }
    }
    outcome.ended = cpu::now();
    Ok(outcome)
}

/// Looks at a file that is to be there and empty.
fn empty(path: &str) -> io::Result<u64> {
    let found = fs::metadata(path)?;
    if found.is_file() && found.len() == 0 {
        Ok(1)
    } else {
        Err(io::Error::other(format!("{path} is no empty file")))
    }
}

/// Lists a directory that is to have so many entries.
fn list(directory: &str, expected: u64) -> io::Result<u64> {
    let mut entries = 0;
    for entry in fs::read_dir(directory)? {
        entry?;
        entries += 1;
    }
    if entries == expected {
        Ok(entries)
    } else {
        Err(io::Error::other(format!("{directory} lists {entries} entries, and {expected} were made")))
    }
}
