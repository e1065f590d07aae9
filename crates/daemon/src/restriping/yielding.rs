//! How much of its links a server leaves to programs while files are restriped.
//!
//! While no program reads or writes blocks here, ranges move as fast as they can. While some do, they get a part of what the
//! server is known to carry, at least [`LEAST`] of it. That part grows little by little as long as programs get what they
//! got before, and shrinks at once when they get less: a program that needs all of the links keeps most of them, and one that
//! needs little leaves the rest to the rebuild. Nobody has to say how fast the links are, or what programs need: what is
//! looked at is how many bytes of both went through this server in the last moments. (Additive increase, multiplicative
//! decrease, as with TCP's congestion window, and for the same reason.)
//!
//! What processes of this node read and write past the server is not seen; it does not use the links.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked at what went through.
const TICK: Duration = Duration::from_millis(250);
/// What the rebuild gets at least, of the most that went through.
const LEAST: f64 = 0.2;
/// By how much its part grows at each look, of the most that went through.
const GROWS: f64 = 0.02;
/// What it gets at any rate, bytes per second: what the links carry is not known at first.
const FLOOR: f64 = (1 << 20) as f64;
/// By how much its part grows while more goes through than ever before, and how much more that has to be.
const FINDS: f64 = 1.25;
const MORE: f64 = 1.02;
/// What is left of its part when programs get less than before.
const SHRINKS: f64 = 0.6;
/// So much of what they got before is as much: rates vary.
const AS_MUCH: f64 = 0.9;
/// Programs that get less than this part of what goes through are as good as none.
const NOTHING: f64 = 0.02;
/// How many looks back "before" is.
const BEFORE: usize = 16;
/// How much of the most that went through is remembered from one look to the next.
const REMEMBERED: f64 = 0.995;
/// Longest sleep until the part may be another one.
const NAP: Duration = Duration::from_millis(50);

/// Bytes that went through for programs, up to a moment.
pub(super) type Programs = dyn Fn() -> u64 + Send + Sync;

/// What moves in one direction, beside programs.
pub(super) struct Yielding {
    programs: Box<Programs>,
    state: Mutex<State>,
    /// Whose turn it is to wait.
    turn: Mutex<()>,
}

#[derive(Debug)]
struct State {
    looked: Instant,
    /// For programs, by then.
    seen: u64,
    /// What has moved since.
    moved: u64,
    /// The most that went through, bytes per second.
    most: f64,
    /// The most that moved, bytes per second.
    moved_most: f64,
    /// What programs got at the last looks, bytes per second.
    before: [f64; BEFORE],
    at: usize,
    /// Bytes per second that may move; `None`: any number.
    limit: Option<f64>,
    /// Bytes that may move at once; below zero if more have moved.
    credit: f64,
    credited: Instant,
}

impl Yielding {
    pub(super) fn new(programs: Box<Programs>) -> Yielding {
        let now = Instant::now();
        let state = State {
            looked: now,
            seen: programs(),
            moved: 0,
            most: 0.0,
            moved_most: 0.0,
            before: [0.0; BEFORE],
            at: 0,
            limit: None,
            credit: 0.0,
            credited: now,
        };
        Yielding { programs, state: Mutex::new(state), turn: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes per second that may move now; 0: any number.
    pub(super) fn limit(&self) -> u64 {
        let mut state = self.state();
        state.look(Instant::now(), (self.programs)());
        state.limit.map_or(0, |limit| (limit as u64).max(1))
    }

    /// Bytes per second that have moved at most, as far as is known yet.
    pub(super) fn moved_most(&self) -> u64 {
        let mut state = self.state();
        state.look(Instant::now(), (self.programs)());
        state.moved_most as u64
    }

    /// Waits until so many bytes may move.
    pub(super) fn wait(&self, bytes: u64) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            let mut state = self.state();
            state.look(now, (self.programs)());
            let Some(pause) = state.pause(now) else {
                state.moved += bytes;
                state.credit -= bytes as f64;
                return;
            };
            drop(state);
            std::thread::sleep(pause.min(NAP));
        }
    }
}

impl State {
    /// Looks at what went through, if that is due.
    fn look(&mut self, now: Instant, programs: u64) {
        let since = now.saturating_duration_since(self.looked);
        if since < TICK {
            return;
        }
        let seconds = since.as_secs_f64();
        let (theirs, ours) =
            (programs.saturating_sub(self.seen) as f64 / seconds, self.moved as f64 / seconds);
        (self.looked, self.seen, self.moved) = (now, programs, 0);
        let finds = theirs + ours > self.most * MORE;
        self.most = (self.most * REMEMBERED).max(theirs + ours);
        self.moved_most = (self.moved_most * REMEMBERED).max(ours);
        let best = self.before.iter().copied().fold(0.0, f64::max);
        if since > TICK * 4 {
            // Nothing has moved for long: this is what programs get alone.
            self.before = [theirs; BEFORE];
        }
        self.before[self.at] = theirs;
        self.at = (self.at + 1) % BEFORE;
        let least = (LEAST * self.most).max(FLOOR);
        self.limit = match self.limit {
            _ if theirs <= NOTHING * self.most => None,
            None => Some(least),
            Some(limit) if theirs < AS_MUCH * best => Some((limit * SHRINKS).max(least)),
            Some(limit) if finds => Some((limit * FINDS).max(least)),
            Some(limit) => Some((limit + GROWS * self.most).clamp(least, self.most.max(least))),
        };
    }

    /// How long to wait before anything moves; `None`: now.
    fn pause(&mut self, now: Instant) -> Option<Duration> {
        let since = now.saturating_duration_since(self.credited).as_secs_f64();
        self.credited = now;
        let Some(limit) = self.limit else {
            self.credit = 0.0;
            return None;
        };
        // A rest is not made up for.
        self.credit = (self.credit + limit * since).min(limit * TICK.as_secs_f64());
        (self.credit < 0.0).then(|| Duration::from_secs_f64((-self.credit / limit.max(1.0)).min(1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: f64 = 10e6;

    /// Programs that want so much, and a rebuild that wants everything, share a link for so many looks: what both got in
    /// the second half.
    fn shared(wanted: f64, looks: u32) -> (f64, f64) {
        shared_from(LINK, wanted, looks)
    }

    /// The same, by a server that has seen no more than `known` bytes a second.
    fn shared_from(known: f64, wanted: f64, looks: u32) -> (f64, f64) {
        let begun = Instant::now();
        let yielding = Yielding::new(Box::new(|| 0));
        let mut state = yielding.state.into_inner().expect("no panic");
        state.most = known;
        let (mut theirs_all, mut theirs, mut ours) = (0.0, 0.0, 0.0);
        let seconds = TICK.as_secs_f64();
        for look in 1..=looks {
            // As TCP does it: both get what they want, or the same.
            let may = state.limit.unwrap_or(LINK);
            let moves = if wanted + may <= LINK { may } else { may.min((LINK - wanted).max(LINK / 2.0)) };
            let got = wanted.min(LINK - moves);
            theirs_all += got * seconds;
            state.moved = (moves * seconds) as u64;
            state.look(begun + TICK * look, theirs_all as u64);
            if look > looks / 2 {
                (theirs, ours) = (theirs + got / f64::from(looks / 2), ours + moves / f64::from(looks / 2));
            }
        }
        (theirs, ours)
    }

    #[test]
    fn without_programs_nothing_waits() {
        let (_, ours) = shared(0.0, 100);
        assert!(ours > 0.99 * LINK, "{ours}");
    }

    #[test]
    fn programs_that_need_all_keep_most_and_the_link_is_used() {
        let (theirs, ours) = shared(LINK, 400);
        assert!(theirs > 0.72 * LINK && theirs + ours > 0.95 * LINK, "{theirs} {ours}");
    }

    #[test]
    fn programs_that_need_little_leave_the_rest() {
        let (theirs, ours) = shared(0.3 * LINK, 400);
        assert!(theirs > 0.27 * LINK && ours > 0.5 * LINK, "{theirs} {ours}");
    }

    #[test]
    fn what_links_carry_is_found_out() {
        let (theirs, ours) = shared_from(0.0, 0.05 * LINK, 100);
        assert!(theirs > 0.045 * LINK && ours > 0.7 * LINK, "{theirs} {ours}");
    }

    #[test]
    fn a_server_through_which_nothing_went_yet_lets_everything_through() {
        let yielding = Yielding::new(Box::new(|| 7));
        std::thread::sleep(TICK);
        assert_eq!(yielding.limit(), 0);
        yielding.wait(1 << 40);
        yielding.wait(1);
    }

    #[test]
    fn how_fast_files_move_is_known_without_what_programs_get() {
        let yielding = Yielding::new(Box::new(|| 0));
        yielding.wait(50 << 20);
        std::thread::sleep(TICK);
        let most = yielding.moved_most() as f64;
        assert!(most > 10e6 && most <= (50 << 20) as f64 / TICK.as_secs_f64(), "{most}");
        let mut state = yielding.state();
        let looked = state.looked;
        state.look(looked + TICK, 1 << 40);
        assert!(state.most > most && state.moved_most < most, "programs' bytes do not count");
    }

    #[test]
    fn what_waits_goes_on_when_programs_end() {
        let programs = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let count = programs.clone();
        let yielding = Yielding::new(Box::new(move || count.load(std::sync::atomic::Ordering::Relaxed)));
        std::thread::sleep(TICK);
        programs.store(1 << 20, std::sync::atomic::Ordering::Relaxed);
        assert!(yielding.limit() > 0);
        // A debt of some minutes.
        yielding.wait(1 << 30);
        let begun = Instant::now();
        yielding.wait(1);
        assert!(begun.elapsed() < 4 * TICK, "{:?}", begun.elapsed());
    }
}
