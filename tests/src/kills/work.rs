//! A program that works until it is told to end.

use super::attempt::Hands;
use super::random::Random;
use super::step::{Entry, Outcome, now};
use super::tree::Tree;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Longest pause between two steps.
const PAUSE: u64 = 600;

/// An append that took longer than this may have been repeated, for no server is back sooner: see
/// `docs/semantics.md`, what is relaxed.
const PROMPT: u64 = 30_000_000;

/// Works in the directory of the mount that has the name of `directory`, which is on the local disk: `tree`
/// in it is what there is in the beginning, `journal` gets the journal, and when there is `end`, everything
/// is closed and the program ends.
pub fn work(mount: &str, directory: &Path, seed: u64) {
    let who = directory.file_name().expect("a name").to_string_lossy().into_owned();
    let text = std::fs::read(directory.join("tree")).expect("a tree");
    let mut tree: Tree = serde_json::from_slice(&text).expect("a tree");
    let mut journal =
        Journal(OpenOptions::new().append(true).create(true).open(directory.join("journal")).expect("opens"));
    let end = directory.join("end");
    let mut random = Random::new(seed);
    let mut hands = Hands::new(mount, &who);
    journal.note(&Entry::Process(std::process::id() as i32));
    for number in 0.. {
        if end.exists() {
            break;
        }
        let step =
            tree.choose(&mut random, seed.wrapping_mul(1_000_000_007) % 1_000_000 * 1_000_000 + number);
        let began = now();
        journal.note(&Entry::Begin(began, step.clone()));
        let outcome = hands.attempt(&step, &tree);
        let ended = now();
        journal.note(&Entry::End(ended, outcome.clone()));
        super::judge::advance(&mut tree, &step, &outcome, ended - began);
        if matches!(outcome, Outcome::Wrong(_)) {
            break;
        }
        std::thread::sleep(Duration::from_micros(random.below(PAUSE)));
    }
    drop(hands);
    journal.note(&Entry::Over);
}

/// Whether an append was answered so late that it may have been done twice.
pub fn is_late(took: u64) -> bool {
    took > PROMPT
}

struct Journal(File);

impl Journal {
    /// One `write` for each line, so that it is with the kernel whatever happens to this process.
    fn note(&mut self, entry: &Entry) {
        let mut line = serde_json::to_vec(entry).expect("it has a form");
        line.push(b'\n');
        self.0.write_all(&line).expect("the local disk has room");
    }
}
