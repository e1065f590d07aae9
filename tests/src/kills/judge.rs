//! Compares what there is with what a journal says there should be.

use super::attempt::difference;
use super::look::Look;
use super::step::{Entry, Outcome, Step, pattern};
use super::tree::{Node, Tree};
use super::work::is_late;
use crate::Lost;
use std::collections::BTreeMap;

/// Bytes of a block of the deployment under attack.
pub const BLOCK: u64 = 64 << 10;

/// Longest time that an operation may take, nanoseconds: `docs/semantics.md` says about two seconds.
const LIMIT: u64 = 3_000_000_000;

/// The same where a server is there but does not answer: it is waited for, for ten seconds, and then all have
/// to hear of it.
const LIMIT_STOPPED: u64 = 14_000_000_000;

/// The same of a lock where the node's agent is dead: a process tells its agent of the first one at a server, and waits
/// for an agent that is started again (`docs/failures.md` says up to ten seconds).
const LIMIT_LOCK: u64 = 11_000_000_000;

/// For so long after everything is up again operations may still fail.
const RECOVERY: u64 = 3_000_000_000;

/// When daemons were killed and started, nanoseconds of the monotonic clock.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// The fault.
    pub fault: u64,
    /// The daemons that were left were killed, too, so that all are started again; 0: they were not.
    pub restart: u64,
    /// Everything is up again.
    pub recovered: u64,
    /// The fault was that a server was stopped.
    pub stopped: bool,
    /// The agent was killed.
    pub agent_died: bool,
    /// What the machine did not give.
    pub lost: Lost,
}

impl Times {
    /// Whether what was done between these times may have met the fault.
    fn concern(&self, began: u64, ended: u64) -> bool {
        ended >= self.fault && self.passed(self.recovered, began) <= RECOVERY
    }

    /// How long an operation waited for one and the same failure, without what the machine lost meanwhile.
    /// Starting all daemons again is another one: who waits for a server that waits for a dead one waits for
    /// both.
    fn waited(&self, began: u64, ended: u64) -> u64 {
        match (began..ended).contains(&self.restart) {
            true => self.passed(began, self.restart).max(self.passed(self.restart, ended)),
            false => self.passed(began, ended),
        }
    }

    fn passed(&self, from: u64, to: u64) -> u64 {
        to.saturating_sub(from).saturating_sub(self.lost.between(from, to))
    }
}

/// What happens to the reference when a step has ended: what is not known is left alone from then on.
pub fn advance(tree: &mut Tree, step: &Step, outcome: &Outcome, took: u64) {
    let is_append = matches!(step, Step::Append { .. });
    match outcome {
        Outcome::Done(count) if !(is_append && is_late(took)) => tree.apply(step, *count),
        _ if step.changes() => tree.doubt(step),
        _ => {}
    }
}

impl Step {
    /// Whether it changes anything that others see.
    fn changes(&self) -> bool {
        match self {
            Step::Open { truncate, .. } => *truncate,
            Step::Sync { .. }
            | Step::Lock { .. }
            | Step::Read { .. }
            | Step::ReadOpen { .. }
            | Step::List { .. }
            | Step::Share { .. } => false,
            _ => true,
        }
    }
}

/// A step of which it is not known what came of it, and the file that it was about.
struct Pending {
    step: Step,
    node: Option<u32>,
    /// How many bytes were acknowledged, if it was: it may have been done twice.
    acknowledged: Option<u64>,
}

/// What came of one program's work.
#[derive(Default)]
pub struct Judged {
    /// What there is.
    pub tree: Tree,
    /// What is not as it should be.
    pub wrong: Vec<String>,
    /// Operations that succeeded, in all and after everything was up again.
    pub acknowledged: (u64, u64),
    /// Operations that failed with EIO or were not answered.
    pub unknown: u64,
    /// The slowest operation, nanoseconds, and what it was.
    pub slowest: (u64, String),
    /// How often each record that was appended to the file that all share may be there: at least, at most.
    pub shared: BTreeMap<u64, (u32, u32)>,
    pending: Vec<Pending>,
    /// Errors that should not be: the first of each kind, and how many.
    failed: BTreeMap<i32, (String, u32)>,
}

impl Judged {
    /// Replays a journal on what there was, and compares what comes of it with what there is below the
    /// program's directory.
    pub fn of(tree: Tree, journal: &[Entry], look: &Look, times: &Times) -> Judged {
        let mut judged = Judged { tree, ..Judged::default() };
        judged.replay(journal, times);
        for pending in std::mem::take(&mut judged.pending) {
            judged.settle(&pending, look);
        }
        judged.tree.end();
        judged.compare(look);
        let failed = std::mem::take(&mut judged.failed).into_values();
        judged.wrong.extend(failed.map(|(first, times)| format!("{first} ({times} such errors)")));
        if !judged.wrong.is_empty() {
            judged.tree = Tree::from_look(look);
        }
        judged.tree.unknown_names.clear();
        judged.tree.unknown_nodes.clear();
        judged
    }

    fn replay(&mut self, journal: &[Entry], times: &Times) {
        let mut begun = None;
        for entry in journal {
            match entry {
                Entry::Process(_) | Entry::Over => {}
                Entry::Begin(at, step) => begun = Some((*at, step)),
                Entry::End(at, outcome) => {
                    let Some((began, step)) = begun.take() else { continue };
                    self.ended(step, outcome, (began, *at), times);
                }
            }
        }
        if let Some((_, step)) = begun {
            // The program was killed in the middle of it.
            self.unknown += 1;
            self.doubt(step, None);
        }
    }

    fn ended(&mut self, step: &Step, outcome: &Outcome, (began, at): (u64, u64), times: &Times) {
        let (took, met) = (at - began, times.concern(began, at));
        if took > self.slowest.0 {
            self.slowest = (took, format!("{step:?} -> {outcome:?}"));
        }
        let limit = match step {
            _ if met && times.stopped => LIMIT_STOPPED,
            Step::Lock { .. } if met && times.agent_died => LIMIT_LOCK,
            _ => LIMIT,
        };
        if times.waited(began, at) > limit {
            let after = |time: u64| (time as f64 - times.fault as f64) / 1e9;
            let when = [began, at, times.restart, times.recovered].map(after);
            self.wrong.push(format!(
                "{step:?} took {:.1} s: {outcome:?} (seconds after the fault: began, ended, restart, recovery: {when:.1?})",
                took as f64 / 1e9
            ));
        }
        if let Step::Share { number } = step {
            let range = match outcome {
                Outcome::Done(_) => (1, if is_late(took) { 2 } else { 1 }),
                _ => (0, 2),
            };
            self.shared.insert(*number, range);
        }
        match outcome {
            Outcome::Done(count) => {
                self.acknowledged.0 += 1;
                self.acknowledged.1 += u64::from(began > times.recovered);
                let doubted = matches!(step, Step::Append { .. }) && is_late(took);
                if doubted {
                    self.doubt(step, Some(*count));
                } else {
                    advance(&mut self.tree, step, outcome, took);
                }
                return;
            }
            Outcome::Failed(libc::EIO) if met => self.unknown += 1,
            Outcome::Failed(libc::EIO) if at < times.fault => {
                self.wrong.push(format!("{step:?}: EIO before anything was killed"));
            }
            Outcome::Failed(number) => {
                let name = std::io::Error::from_raw_os_error(*number);
                let when = (began as f64 - times.recovered as f64) / 1e9;
                let first = || format!("{step:?} failed {when:.1} s after the recovery: {name}");
                self.failed.entry(*number).or_insert_with(|| (first(), 0)).1 += 1;
            }
            Outcome::Wrong(what) => {
                let when = (began as f64 - times.recovered as f64) / 1e9;
                self.wrong.push(format!("{step:?} found {when:.1} s after the recovery: {what}"));
                return;
            }
        }
        if step.changes() {
            self.doubt(step, None);
        }
    }

    fn doubt(&mut self, step: &Step, acknowledged: Option<u64>) {
        if let Step::Share { number } = step {
            self.shared.insert(*number, (0, 2));
        }
        if step.changes() {
            let node = self.tree.node_of(step);
            self.pending.push(Pending { step: step.clone(), node, acknowledged });
            self.tree.doubt(step);
        }
    }

    /// Finds out whether a step was done, and has the reference do it then.
    fn settle(&mut self, pending: &Pending, look: &Look) {
        let is = |path: &String| look.contains_key(path);
        let done = match &pending.step {
            Step::Create { path, .. } | Step::Mkdir { path } | Step::Link { to: path, .. } => is(path),
            Step::Unlink { path } | Step::Rmdir { path } | Step::Rename { from: path, .. } => !is(path),
            _ => false,
        };
        if done {
            self.tree.apply(&pending.step, 0);
            return;
        }
        let Some(number) = pending.node else { return };
        let found = self.tree.names_of(number).first().and_then(|path| look.get(path));
        let Some(Ok(found)) = found.map(|found| &found.content) else { return };
        let Some(node) = self.tree.nodes.get_mut(&number) else { return };
        if node.may_be(found, pending) {
            node.content = found.clone();
        }
    }

    fn compare(&mut self, look: &Look) {
        let mut inos: BTreeMap<u64, u32> = BTreeMap::new();
        for (path, number) in &self.tree.names {
            let node = &self.tree.nodes[number];
            let Some(found) = look.get(path) else {
                self.wrong.push(format!("{path} is gone"));
                continue;
            };
            let content = match &found.content {
                Ok(content) if *content == node.content => None,
                Ok(content) => Some(difference(&node.content, content)),
                Err(error) => Some(std::io::Error::from_raw_os_error(*error).to_string()),
            };
            let names = self.tree.names.values().filter(|n| *n == number).count() as u64;
            if let Some(content) = content {
                self.wrong.push(format!("{path}: {content}"));
            } else if found.directory != node.directory {
                self.wrong.push(format!("{path} is of the wrong kind"));
            } else if !node.directory && found.size != node.content.len() as u64 {
                self.wrong.push(format!("{path}: the size is {} after {}", found.size, node.content.len()));
            } else if !node.directory && found.links != names {
                self.wrong.push(format!("{path} has {} names and not {names}", found.links));
            } else if found.locked {
                self.wrong.push(format!("{path} is locked"));
            } else if *inos.entry(found.ino).or_insert(*number) != *number {
                self.wrong.push(format!("{path} is another file"));
            }
        }
        let more = look.keys().filter(|path| !self.tree.names.contains_key(*path));
        self.wrong.extend(more.map(|path| format!("{path} is there")));
    }
}

impl Node {
    /// Whether these may be its contents after a step of which it is not known whether it was done.
    fn may_be(&self, found: &[u8], pending: &Pending) -> bool {
        let old = &self.content;
        let resized = |size: u64| {
            let mut content = old.clone();
            content.resize(size as usize, 0);
            found == content
        };
        match &pending.step {
            Step::Open { truncate: true, .. } => found.is_empty(),
            Step::Truncate { size, .. } | Step::TruncateOpen { size, .. } => resized(*size),
            Step::Append { len, seed, .. } => {
                let data = pattern(*seed, *len);
                let Some(added) = found.strip_prefix(old.as_slice()) else { return false };
                // Over several servers an attempt may be there up to a block that the next one did not take.
                let is_attempt = |end: usize, bytes: &[u8]| {
                    let ends = [0, data.len()].contains(&bytes.len()) || (end as u64).is_multiple_of(BLOCK);
                    ends && data.starts_with(bytes)
                };
                (0..=added.len().min(data.len())).any(|first| {
                    let (first, second) = added.split_at(first);
                    is_attempt(old.len() + first.len(), first)
                        && match pending.acknowledged {
                            Some(count) => Some(second) == data.get(..count as usize),
                            None => is_attempt(found.len(), second),
                        }
                })
            }
            Step::Write { offset, len, seed, .. } => {
                // A write over several servers may be there in parts.
                let (begin, data) = (*offset as usize, pattern(*seed, *len));
                let end = begin + data.len();
                let size_fits =
                    found.len() == old.len() || found.len() > old.len().max(begin) && found.len() <= end;
                size_fits
                    && found.iter().enumerate().all(|(at, byte)| {
                        let before = old.get(at).copied().unwrap_or(0);
                        *byte == before || at >= begin && at < end && *byte == data[at - begin]
                    })
            }
            _ => false,
        }
    }
}

impl Tree {
    /// What was found, taken as it is.
    fn from_look(look: &Look) -> Tree {
        let mut tree = Tree::default();
        let mut files: BTreeMap<u64, String> = BTreeMap::new();
        for (path, found) in look {
            match files.get(&found.ino) {
                _ if found.directory => tree.apply(&Step::Mkdir { path: path.clone() }, 0),
                Some(first) => tree.apply(&Step::Link { from: first.clone(), to: path.clone() }, 0),
                None => {
                    tree.apply(&Step::Create { slot: 0, path: path.clone(), append: false }, 0);
                    files.insert(found.ino, path.clone());
                    let number = tree.names[path];
                    if let Some(node) = tree.nodes.get_mut(&number) {
                        node.content = found.content.clone().unwrap_or_default();
                    }
                }
            }
        }
        tree.end();
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kills::Found;

    fn found(content: &[u8]) -> Found {
        let size = content.len() as u64;
        Found { directory: false, ino: 7, links: 1, size, content: Ok(content.to_vec()), locked: false }
    }

    fn journal(outcome: Option<Outcome>) -> Vec<Entry> {
        let create = Step::Create { slot: 0, path: "f".into(), append: true };
        let append = Step::Append { slot: 0, len: 10, seed: 3 };
        let mut journal =
            vec![Entry::Begin(1, create), Entry::End(2, Outcome::Done(0)), Entry::Begin(3, append)];
        journal.extend(outcome.map(|outcome| Entry::End(4, outcome)));
        journal
    }

    fn judged(outcome: Option<Outcome>, look: &[(&str, Found)]) -> Vec<String> {
        let look = look.iter().map(|(path, found)| ((*path).to_owned(), found.clone())).collect();
        let times = Times { fault: 3, recovered: 5, ..Times::default() };
        Judged::of(Tree::default(), &journal(outcome), &look, &times).wrong
    }

    #[test]
    fn what_was_acknowledged_must_be_there() {
        let whole = pattern(3, 10);
        assert_eq!(judged(Some(Outcome::Done(10)), &[("f", found(&whole))]), [""; 0]);
        assert_eq!(judged(Some(Outcome::Done(10)), &[("f", found(&whole[..9]))]).len(), 1);
        assert_eq!(judged(Some(Outcome::Done(10)), &[("f", found(b""))]).len(), 1);
        assert_eq!(judged(Some(Outcome::Done(10)), &[]).len(), 1);
        assert_eq!(judged(Some(Outcome::Done(10)), &[("f", found(&whole)), ("g", found(b""))]).len(), 1);
    }

    #[test]
    fn an_append_over_several_servers_may_be_there_up_to_a_block_and_twice() {
        let (len, block) = (2 * BLOCK as usize, BLOCK as usize);
        let data = pattern(3, len as u64);
        let may_be = |found: &[&[u8]], acknowledged| {
            let node = Node { content: b"old".to_vec(), ..Node::default() };
            let step = Step::Append { slot: 0, len: len as u64, seed: 3 };
            node.may_be(
                &[b"old", found.concat().as_slice()].concat(),
                &Pending { step, node: None, acknowledged },
            )
        };
        let to_a_block = &data[..block - 3];
        for there in [&[][..], &[to_a_block], &[&data], &[&data, &data], &[&data, &data[..block - 3]]] {
            assert!(may_be(there, None), "{}", there.concat().len());
        }
        assert!(!may_be(&[&data[..block]], None) && !may_be(&[&data[1..]], None));
        assert!(may_be(&[to_a_block], Some(to_a_block.len() as u64)));
        assert!(may_be(&[to_a_block, to_a_block], Some(to_a_block.len() as u64)));
        assert!(!may_be(&[to_a_block], Some(len as u64)) && !may_be(&[], Some(1)));
    }

    #[test]
    fn what_was_not_answered_is_done_or_not_done_and_never_half() {
        let whole = pattern(3, 10);
        for outcome in [None, Some(Outcome::Failed(libc::EIO))] {
            assert_eq!(judged(outcome.clone(), &[("f", found(&whole))]), [""; 0]);
            assert_eq!(judged(outcome.clone(), &[("f", found(b""))]), [""; 0]);
            assert_eq!(judged(outcome.clone(), &[("f", found(&whole[..9]))]).len(), 1);
            assert_eq!(judged(outcome, &[("f", found(&[0; 10]))]).len(), 1);
        }
        assert_eq!(judged(Some(Outcome::Failed(libc::ENOENT)), &[("f", found(b""))]).len(), 1);
    }
}
