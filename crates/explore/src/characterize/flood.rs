//! A process's part of a flood: small files that all processes make in one directory at the same time.
//!
//! Afterwards each process reads another one's part. Whether a file is there is what the directory's listing
//! says; it is whole if it is there and has exactly the bytes that were written. The listing comes last, so
//! that it makes nothing faster that is measured.

use super::protocol::{Answer, Flood, Group, Place};
use crate::content::{Author, Buffer};
use crate::protocol::Outcome;
use bivouac_bench::{cpu, interruption};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Write};

/// What a process knows of another one's part.
#[derive(Debug, Default)]
pub struct Flooding {
    /// Which of its files had what they should have.
    right: Vec<bool>,
}

/// How many of the files are a member's.
fn part(files: u64, group: Group, member: u32) -> u64 {
    let processes = u64::from(group.processes().max(1));
    files / processes + u64::from(u64::from(member) < files % processes)
}

impl Flooding {
    /// One step.
    pub fn step(
        &mut self,
        place: &Place,
        group: Group,
        member: u32,
        number: u64,
        step: Flood,
    ) -> Result<Answer, String> {
        let directory = format!("{}/flood", place.directory);
        let path = |whose: u32, index: u64| format!("{directory}/{}", name(whose, index));
        let other = group.other(member);
        let author = |whose: u32| Author { run: place.run, phase: number, rank: whose, measured: true };
        let buffer = |size: u64| {
            usize::try_from(size).map(|size| Buffer::periodic(size, place.run)).map_err(|e| e.to_string())
        };
        let failed = |verb: &str, what: &str, e: std::io::Error| format!("cannot {verb} {what}: {e}");
        let mut outcome = Outcome { began: cpu::now(), ..Outcome::default() };
        match step {
            Flood::Begin if member == 0 => {
                fs::create_dir(&directory).map_err(|e| failed("make", &directory, e))?;
            }
            Flood::End if member == 0 => {
                fs::remove_dir(&directory).map_err(|e| failed("remove", &directory, e))?;
            }
            Flood::Begin | Flood::End => {}
            Flood::Create(files, size) => {
                let mut buffer = buffer(size)?;
                for index in (0..part(files, group, member)).take_while(|_| !interruption::came()) {
                    buffer.stamp(&author(member), index * size);
                    let path = path(member, index);
                    let made = File::options().write(true).create_new(true).open(&path);
                    made.and_then(|mut file| file.write_all(buffer.bytes()))
                        .map_err(|e| failed("write", &path, e))?;
                    outcome.requests += 1;
                }
                outcome.bytes = outcome.requests * size;
                outcome.ended = cpu::now();
                return Ok(Answer::Done(outcome));
            }
            Flood::Read(files, size) => {
                let (mut right, mut read) = (buffer(size)?, Vec::new());
                self.right.clear();
                for index in (0..part(files, group, other)).take_while(|_| !interruption::came()) {
                    right.stamp(&author(other), index * size);
                    read.clear();
                    // One more byte than there should be, to see that there are no more.
                    let all = File::open(path(other, index))
                        .and_then(|file| file.take(size + 1).read_to_end(&mut read));
                    self.right.push(all.is_ok() && read == right.bytes());
                }
                outcome.requests = self.right.len() as u64;
                outcome.bytes = outcome.requests * size;
                outcome.ended = cpu::now();
                return Ok(Answer::Done(outcome));
            }
            Flood::List(files) => {
                let mut names = HashSet::new();
                for entry in fs::read_dir(&directory).map_err(|e| failed("list", &directory, e))? {
                    names.insert(entry.map_err(|e| failed("list", &directory, e))?.file_name());
                }
                let there = |index: &u64| names.contains(std::ffi::OsStr::new(&name(other, *index)));
                let present: Vec<u64> = (0..part(files, group, other)).filter(there).collect();
                let whole = present.iter().filter(|index| self.right.get(**index as usize) == Some(&true));
                return Ok(Answer::Found(present.len() as u64, whole.count() as u64));
            }
            Flood::Clean(files) => {
                for index in (0..part(files, group, member)).take_while(|_| !interruption::came()) {
                    let path = path(member, index);
                    match fs::remove_file(&path) {
                        // It was lost, which was found before.
                        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                        removed => removed.map_err(|e| failed("remove", &path, e))?,
                    }
                }
            }
        }
        Ok(Answer::Ready)
    }
}

fn name(member: u32, index: u64) -> String {
    format!("{member}.{index}")
}
