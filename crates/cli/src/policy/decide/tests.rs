//! What a policy decides: single cases, and promises that hold for all loads and limits.

use super::*;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const LINK: u64 = 1000;

fn limits() -> Limits {
    Limits {
        grow_above: 85,
        shrink_below: Some(30),
        busy_above: Some(80),
        link: Some(LINK),
        min: 2,
        max: 5,
        step: 1,
        busy_for: 60,
        idle_for: 600,
        settle: 120,
    }
}

/// Servers with storages of 100 GiB, of which each has so much, and through which so much goes.
fn sample(at: u64, servers: &[(u64, u64)]) -> Sample {
    let load = |(number, (stored, rate)): (usize, &(u64, u64))| Load {
        id: ServerId(number as u16),
        pool: number,
        stored: stored * GIB,
        rate: *rate,
        direct: 0,
        on_spare: number >= 2,
    };
    Sample {
        at: Duration::from_secs(at),
        servers: servers.iter().enumerate().map(load).collect(),
        pools: servers.iter().map(|(stored, _)| Pool { available: (100 - stored) * GIB }).collect(),
        under_way: None,
        given_up: false,
        spares: 3,
        copies: 1,
    }
}

/// The first thing that is done while the same is seen every ten seconds, and when.
fn first(limits: &Limits, state: State, from: u64, servers: &[(u64, u64)]) -> Option<(u64, Action, State)> {
    let mut state = state;
    for at in (from..from + 2000).step_by(10) {
        let action;
        (state, action) = decide(limits, state, &sample(at, servers));
        if action != Action::Nothing {
            return Some((at - from, action, state));
        }
    }
    None
}

fn grows(cause: Cause) -> Action {
    Action::Grow { count: 1, cause }
}

#[test]
fn one_server_that_is_full_is_enough_and_what_is_used_moderately_stays() {
    let found =
        first(&limits(), State::default(), 0, &[(10, 0), (85, 0)]).map(|(at, action, _)| (at, action));
    assert_eq!(found, Some((120, grows(Cause::Full(ServerId(1))))), "after the settling time");
    assert_eq!(first(&limits(), State::default(), 0, &[(84, 700), (84, 700)]), None);
}

#[test]
fn being_busy_counts_when_it_lasts() {
    let found =
        first(&limits(), State::default(), 0, &[(40, 800), (40, 1)]).map(|(at, action, _)| (at, action));
    assert_eq!(found, Some((120, grows(Cause::Busy(ServerId(0))))));
    let mut state = State::default();
    for at in (0..3000).step_by(10) {
        // One sample in five is below the limit.
        let rate = if at % 50 == 0 { 10 } else { 1000 };
        let action;
        (state, action) = decide(&limits(), state, &sample(at, &[(40, rate), (40, 0)]));
        assert_eq!(action, Action::Nothing);
    }
    let never = Limits { busy_above: None, ..limits() };
    assert_eq!(first(&never, State::default(), 0, &[(40, 5000), (40, 5000)]), None);
}

#[test]
fn a_learned_limit_is_the_most_that_was_seen_and_little_is_no_limit() {
    let learned = Limits { link: None, ..limits() };
    let little = LEARNED_LEAST / 10;
    assert_eq!(first(&learned, State::default(), 0, &[(40, little), (40, little)]), None);
    let state = State { most: 10 * LEARNED_LEAST, ..State::default() };
    assert_eq!(first(&learned, state.clone(), 0, &[(40, 7 * LEARNED_LEAST), (40, 0)]), None);
    assert!(first(&learned, state, 0, &[(40, 8 * LEARNED_LEAST), (40, 0)]).is_some());
}

#[test]
fn the_last_one_added_leaves_when_everything_was_little_for_long() {
    let three = [(5, 10), (5, 10), (5, 10)];
    let found = first(&limits(), State::default(), 0, &three).map(|(at, action, _)| (at, action));
    assert_eq!(found, Some((610, Action::Shrink(ServerId(2)))));
    assert_eq!(first(&limits(), State::default(), 0, &three[..2]), None, "the fewest that there may be");
    assert_eq!(first(&limits(), State::default(), 0, &[(5, 10), (5, 300), (5, 10)]), None, "it is used");
    let never = Limits { shrink_below: None, ..limits() };
    assert_eq!(first(&never, State::default(), 0, &three), None);
}

#[test]
fn nobody_leaves_who_is_needed() {
    let quiet = |change: &dyn Fn(&mut Sample)| {
        let mut state = State::default();
        (0..2000).step_by(10).all(|at| {
            let mut seen = sample(at, &[(5, 10), (5, 10), (5, 10)]);
            change(&mut seen);
            let action;
            (state, action) = decide(&limits(), state.clone(), &seen);
            action == Action::Nothing
        })
    };
    assert!(!quiet(&|_| ()), "or else this says nothing");
    assert!(quiet(&|seen| seen.copies = 3), "copies need so many servers");
    assert!(quiet(&|seen| seen.given_up = true), "a server was given up");
    assert!(quiet(&|seen| seen.servers[2].direct = 900), "what is direct now would go over the network");
    // The others would be half full: a file of one server fills one of them.
    assert!(quiet(&|seen| (seen.servers[0].stored, seen.pools[0].available) = (60 * GIB, 40 * GIB)));
}

#[test]
fn nothing_is_done_while_something_else_is_under_way_nor_soon_after() {
    let full = [(90, 0), (90, 0)];
    let mut state = State::default();
    for at in (0..1000).step_by(10) {
        let mut seen = sample(at, &full);
        seen.under_way = Some(UnderWay::Rebuild);
        let action;
        (state, action) = decide(&limits(), state, &seen);
        let obstacle = Obstacle::UnderWay(UnderWay::Rebuild);
        assert_eq!(action, Action::Blocked(Cause::Full(ServerId(0)), obstacle));
    }
    assert_eq!(first(&limits(), state, 1000, &full).map(|(at, ..)| at), Some(110));
}

#[test]
fn an_administrator_who_adds_servers_is_not_answered_at_once() {
    let mut state = State::default();
    for at in (0..1000).step_by(10) {
        (state, _) = decide(&limits(), state, &sample(at, &[(20, 0), (20, 0)]));
    }
    let found = first(&limits(), state, 1000, &[(13, 0), (13, 0), (13, 0)]);
    assert_eq!(found.map(|(at, ..)| at), Some(610));
}

#[test]
fn where_it_cannot_grow_it_says_why() {
    let full = [(90, 0), (90, 0)];
    let at_most = Limits { max: 2, ..limits() };
    let blocked = |found: Option<(u64, Action, State)>| match found {
        Some((_, Action::Blocked(_, obstacle), _)) => obstacle,
        other => panic!("blocked, not {other:?}"),
    };
    assert_eq!(blocked(first(&at_most, State::default(), 0, &full)), Obstacle::Most);
    let mut state = State::default();
    (state, _) = decide(&limits(), state, &Sample { spares: 0, ..sample(0, &full) });
    let (_, action) = decide(&limits(), state, &Sample { spares: 0, ..sample(300, &full) });
    assert_eq!(action, Action::Blocked(Cause::Full(ServerId(0)), Obstacle::NoSpare));
}

#[test]
fn what_has_not_helped_is_not_repeated_unless_all_become_full() {
    let (_, action, state) = first(&limits(), State::default(), 0, &[(90, 0), (10, 0)]).expect("it grows");
    assert_eq!(action, grows(Cause::Full(ServerId(0))));
    let (_, action, state) =
        first(&limits(), state, 1000, &[(90, 0), (7, 0), (3, 0)]).expect("it says that it is blocked");
    assert_eq!(action, Action::Blocked(Cause::Full(ServerId(0)), Obstacle::Uneven(ServerId(0))));
    let (_, action, _) =
        first(&limits(), state.clone(), 2000, &[(90, 0), (86, 0), (86, 0)]).expect("it grows");
    assert!(matches!(action, Action::Grow { .. }));
    // It has helped a little: there is hope.
    let (_, action, _) = first(&limits(), state, 3000, &[(88, 0), (7, 0), (5, 0)]).expect("it grows");
    assert!(matches!(action, Action::Grow { .. }));
}

#[test]
fn servers_of_one_storage_count_it_once() {
    let mut seen = sample(0, &[(40, 0), (40, 0), (10, 0)]);
    (seen.servers[1].pool, seen.servers[2].pool) = (0, 1);
    seen.pools = vec![Pool { available: 20 * GIB }, Pool { available: 90 * GIB }];
    assert_eq!(seen.fullest(), Some((ServerId(0), 800)));
    assert_eq!(seen.together(), 450);
    // Without the second one, its storage has what it has, less what the third one gets.
    let leaving = seen.servers[1].clone();
    assert_eq!(seen.fullest_without(&leaving), 600);
    seen.servers.clear();
    assert_eq!((seen.fullest(), seen.last()), (None, None));
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let thresholds = (1u8..89).prop_flat_map(|below| (Just(below), below + 10..=99, below + 10..=99));
    let numbers = (1u16..6, 0u16..8, 1u16..5);
    (thresholds, numbers, any::<[bool; 3]>()).prop_map(|((below, above, busy), (min, more, step), which)| {
        Limits {
            grow_above: above,
            shrink_below: which[0].then_some(below),
            busy_above: which[1].then_some(busy),
            link: which[2].then_some(1 << 30),
            min,
            max: min + more,
            step,
            busy_for: 30,
            idle_for: 40,
            settle: 20,
        }
    })
}

/// A deployment whose load is spread evenly over its servers, or a part of it lies on the first one.
struct World {
    servers: Vec<u16>,
    next: u16,
    stored: u64,
    on_first: u64,
    rate: u64,
    room: u64,
    spares: usize,
}

impl World {
    fn look(&self, at: u64) -> Sample {
        let count = self.servers.len() as u64;
        let load = |(index, number): (usize, &u16)| Load {
            id: ServerId(*number),
            pool: index,
            stored: (self.stored / count + if index == 0 { self.on_first } else { 0 }).min(self.room),
            rate: self.rate / count,
            direct: 0,
            on_spare: false,
        };
        let servers: Vec<Load> = self.servers.iter().enumerate().map(load).collect();
        let pools = servers.iter().map(|server| Pool { available: self.room - server.stored }).collect();
        Sample {
            at: Duration::from_secs(at),
            servers,
            pools,
            under_way: None,
            given_up: false,
            spares: self.spares,
            copies: 1,
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Grow { count, .. } => {
                self.servers.extend(self.next..self.next + *count as u16);
                (self.next, self.spares) = (self.next + *count as u16, self.spares - count);
            }
            Action::Shrink(server) => {
                self.servers.retain(|other| other != &server.0);
                self.spares += 1;
            }
            _ => {}
        }
    }
}

proptest! {
    /// Under a constant load it never leaves its limits, never grows after it has shrunk, and comes to rest.
    #[test]
    fn a_constant_load_is_answered_once(
        limits in any_limits(),
        begin in 0u16..8,
        stored in 0u64..8000,
        on_first in 0u64..1200,
        rate in 0u64..12 << 30,
        spares in 0usize..9,
    ) {
        let begin = limits.min + begin % (limits.max - limits.min + 1);
        let mut world = World {
            servers: (0..begin).collect(), next: begin, stored, on_first, rate, room: 1000, spares,
        };
        let mut state = State::default();
        let (mut has_shrunk, mut deeds, mut last) = (false, 0, 0);
        for at in (0..20_000u64).step_by(10) {
            let action;
            (state, action) = decide(&limits, state, &world.look(at));
            world.act(&action);
            let count = world.servers.len() as u16;
            prop_assert!((limits.min..=limits.max).contains(&count), "{count} servers");
            match action {
                Action::Grow { .. } => prop_assert!(!has_shrunk, "it grows after it has shrunk"),
                Action::Shrink(_) => has_shrunk = true,
                _ => continue,
            }
            (deeds, last) = (deeds + 1, at);
        }
        prop_assert!(deeds <= 16 && last < 10_000, "it comes to rest: {deeds} deeds, the last at {last} s");
    }

    /// Whatever is seen, and in whatever order: within the limits, never while something else is under way, never before things
    /// have settled.
    #[test]
    fn whatever_is_seen_the_limits_are_kept(
        limits in any_limits(),
        looks in proptest::collection::vec(
            (1u16..14, 0u64..2000, 0u64..4 << 30, 0u8..4, 0usize..4, any::<bool>(), 1u8..4), 1..120,
        ),
    ) {
        let mut state = State::default();
        let mut changed: Option<(u64, u16)> = None;
        for (round, (count, stored, rate, other, spares, given_up, copies)) in looks.into_iter().enumerate() {
            let at = round as u64 * 10;
            let world = World {
                servers: (0..count).collect(), next: count, stored, on_first: 0, rate, room: 1000, spares,
            };
            let under_way = (other == 0).then_some(UnderWay::Down(ServerId(0)));
            let seen = Sample { under_way: under_way.clone(), given_up, copies, ..world.look(at) };
            if under_way.is_some() || changed.is_none_or(|(_, before)| before != count) {
                changed = Some((at, count));
            }
            let since = changed.map_or(0, |(since, _)| at - since);
            let action;
            (state, action) = decide(&limits, state, &seen);
            let may_act = under_way.is_none() && since >= limits.settle;
            match action {
                Action::Grow { count: more, .. } => {
                    prop_assert!(may_act && more > 0 && more <= spares.min(limits.step.into()));
                    prop_assert!(usize::from(count) + more <= limits.max.into());
                }
                Action::Shrink(server) => {
                    prop_assert!(may_act && !given_up && server.0 < count);
                    prop_assert!(count > limits.min.max(copies.into()));
                }
                _ => {}
            }
        }
    }
}
