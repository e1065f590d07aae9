//! What a program does next: something that must succeed, as far as it knows.

use super::random::Random;
use super::step::Step;
use super::tree::{Tree, parent};

/// Descriptors of a program.
const SLOTS: u64 = 6;

/// Most files and directories of a program.
const MOST: usize = 60;

/// Files grow to about this.
const LARGEST: u64 = 300_000;

/// Sizes and offsets around which something changes: inline data, blocks.
const BORDERS: [u64; 9] = [0, 1, 4096, 5000, 65_536, 131_072, 196_608, 262_144, LARGEST];

fn around(random: &mut Random) -> u64 {
    let border = *random.of(&BORDERS).unwrap_or(&0);
    match random.below(4) {
        0 => border,
        1 => border.saturating_sub(random.below(3)),
        2 => border + random.below(3),
        _ => random.below(LARGEST),
    }
}

fn some_len(random: &mut Random) -> u64 {
    1 + match random.below(4) {
        0 => random.below(16),
        1 => random.below(5000),
        2 => random.below(70_000),
        _ => random.below(200_000),
    }
}

impl Tree {
    /// A step that is possible, and about nothing that is not known.
    pub fn choose(&self, random: &mut Random, number: u64) -> Step {
        loop {
            if let Some(step) = self.propose(random, number)
                && self.knows(&step)
            {
                return step;
            }
        }
    }

    fn propose(&self, random: &mut Random, number: u64) -> Option<Step> {
        let seed = random.below(256) as u8;
        let slot = random.below(SLOTS) as u8;
        if random.below(10) < 5 {
            let Some(open) = self.slots.get(&slot) else { return self.propose_open(random, slot) };
            let append = open.append;
            return Some(match random.below(16) {
                0..=5 if append => Step::Append { slot, len: some_len(random), seed },
                0..=5 => Step::Write { slot, offset: around(random), len: some_len(random), seed },
                6 | 7 => Step::TruncateOpen { slot, size: around(random) },
                8 => Step::Sync { slot },
                9 | 10 => Step::ReadOpen { slot },
                11 if self.is_alone(slot) => Step::Lock { slot },
                _ => Step::Close { slot },
            });
        }
        Some(match random.below(20) {
            0 | 1 => Step::Share { number },
            2..=4 => Step::Mkdir { path: self.vacant(random, 'd')? },
            5 => Step::Rmdir { path: self.empty_directory(random)? },
            6..=8 => Step::Rename { from: self.file(random)?, to: self.file_or_vacant(random)? },
            9..=11 => self.move_directory(random)?,
            12 => Step::Link { from: self.file(random)?, to: self.vacant(random, 'f')? },
            13 | 14 => Step::Unlink { path: self.file(random)? },
            15 | 16 => Step::Truncate { path: self.file(random)?, size: around(random) },
            17 | 18 => Step::Read { path: self.file(random)? },
            _ => Step::List { path: self.directory(random) },
        })
    }

    fn propose_open(&self, random: &mut Random, slot: u8) -> Option<Step> {
        let append = random.one_in(4);
        if self.names.len() < MOST && random.one_in(2) {
            return Some(Step::Create { slot, path: self.vacant(random, 'f')?, append });
        }
        Some(Step::Open { slot, path: self.file(random)?, append, truncate: random.one_in(5) })
    }

    /// Whether no other descriptor leads to the same file: its own locks would be in the way.
    fn is_alone(&self, slot: u8) -> bool {
        let node = self.slots.get(&slot).map(|slot| slot.node);
        self.slots.values().filter(|other| Some(other.node) == node).count() == 1
    }

    fn paths(&self, directories: bool) -> Vec<&String> {
        let wanted = self.names.iter().filter(|(_, node)| self.nodes[node].directory == directories);
        wanted.map(|(path, _)| path).collect()
    }

    fn file(&self, random: &mut Random) -> Option<String> {
        random.of(&self.paths(false)).map(|path| (*path).clone())
    }

    fn directory(&self, random: &mut Random) -> String {
        let all = self.paths(true);
        if random.one_in(3) {
            String::new()
        } else {
            random.of(&all).map_or_else(String::new, |p| (*p).clone())
        }
    }

    fn vacant(&self, random: &mut Random, kind: char) -> Option<String> {
        if self.names.len() >= MOST {
            return None;
        }
        let directory = self.directory(random);
        let name = format!("{kind}{}", random.below(8));
        let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
        let deep = path.matches('/').count() > 3;
        (!deep && !self.names.contains_key(&path)).then_some(path)
    }

    fn file_or_vacant(&self, random: &mut Random) -> Option<String> {
        if random.one_in(2) { self.file(random) } else { self.vacant(random, 'f') }
    }

    fn empty_directory(&self, random: &mut Random) -> Option<String> {
        let path = random.of(&self.paths(true)).map(|path| (*path).clone())?;
        let empty = self.below(&path).next().is_none();
        let doubted = self.unknown_names.iter().any(|unknown| parent(unknown) == path);
        (empty && !doubted).then_some(path)
    }

    fn move_directory(&self, random: &mut Random) -> Option<Step> {
        let from = random.of(&self.paths(true)).map(|path| (*path).clone())?;
        let to = if random.one_in(3) { self.empty_directory(random)? } else { self.vacant(random, 'd')? };
        let inside = to.starts_with(&format!("{from}/"));
        (from != to && !inside).then_some(Step::Rename { from, to })
    }
}
