//! Marks against a model: whatever primaries have a holder make, undo and take over, it never takes its sub-file for
//! shorter than what all have made.

use super::*;
use bivouac_layout::GenerationId;
use proptest::prelude::*;
use std::collections::BTreeMap;

const FILES: u64 = 2;
const GROUPS: usize = 3;
const SLOTS: u32 = 3;
const LEN: u64 = 10;

/// What a primary knows of a change that it has begun.
#[derive(Clone, Copy, Debug)]
struct Change {
    mark: Mark,
    turn: u64,
    /// Whether the holder has it.
    made: bool,
}

/// What happens to a holder.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The primary of a group has it make a change, in a slot. `reaches`: the request arrives.
    Write { group: usize, slot: u32, file: u64, at: u64, arrives: bool },
    /// The primary has not heard the answer, and repeats it.
    Repeat { group: usize, slot: u32 },
    /// The primary takes it back.
    Undo { group: usize, slot: u32 },
    /// Another server becomes the primary of a group. `has`: whether it has the changes that were under way.
    TakeOver { group: usize, by: u16, has: bool },
    /// The holder makes a change as a primary itself.
    Own { file: u64, at: u64 },
    /// It asks the primary of a group which of its changes are over.
    Ask { group: usize },
    /// The file is given a length. (Nothing is under way then.)
    Truncate { file: u64, length: u64 },
}

fn event() -> impl Strategy<Value = Event> {
    let (group, slot, file, at) = (0..GROUPS, 1..=SLOTS, 0..FILES, 0..6_u64);
    prop_oneof![
        8 => (group.clone(), slot.clone(), file.clone(), at.clone(), prop::bool::weighted(0.8))
            .prop_map(|(group, slot, file, at, arrives)| Event::Write { group, slot, file, at, arrives }),
        1 => (group.clone(), slot.clone()).prop_map(|(group, slot)| Event::Repeat { group, slot }),
        2 => (group.clone(), slot).prop_map(|(group, slot)| Event::Undo { group, slot }),
        1 => (group.clone(), 1..4_u16, any::<bool>()).prop_map(|(group, by, has)| Event::TakeOver { group, by, has }),
        1 => (file.clone(), at.clone()).prop_map(|(file, at)| Event::Own { file, at }),
        1 => group.prop_map(|group| Event::Ask { group }),
        1 => (file, at).prop_map(|(file, at)| Event::Truncate { file, length: place(0, at) }),
    ]
}

fn group(number: usize) -> Group {
    Group::Blocks { generation: GenerationId(0), position: number as u16, copies: 2, spread: 0 }
}

/// Where a change of a group is: no two groups have the same blocks. `GROUPS` is that of the holder itself.
fn place(group: usize, at: u64) -> u64 {
    (at * (GROUPS as u64 + 1) + group as u64) * LEN
}

/// A holder, and everything that it cannot know.
struct World {
    marks: Marks,
    /// How long its sub-files are.
    length: [u64; FILES as usize],
    /// How long they are by what all have made.
    settled: [u64; FILES as usize],
    /// As far as the holder has heard that all have made it.
    heard: [u64; FILES as usize],
    /// The last change of each slot that has arrived.
    arrived: BTreeMap<(ServerId, u32), Change>,
    primaries: [ServerId; GROUPS],
    /// By primary and slot.
    under_way: BTreeMap<(ServerId, u32), (usize, Change)>,
    turn: u64,
}

impl World {
    fn new() -> World {
        World {
            marks: Marks::default(),
            length: [0; FILES as usize],
            settled: [0; FILES as usize],
            heard: [0; FILES as usize],
            arrived: BTreeMap::new(),
            primaries: [ServerId(1), ServerId(2), ServerId(3)],
            under_way: BTreeMap::new(),
            turn: 0,
        }
    }

    fn turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    fn reaches(&mut self, change: &Change) {
        let settled = &mut self.settled[change.mark.ino.0 as usize];
        *settled = (*settled).max(change.mark.offset + LEN);
    }

    /// A request about a slot arrives: its change before this one is over.
    fn hear(&mut self, key: (ServerId, u32), change: &Change) {
        let before = self.arrived.insert(key, *change);
        if let Some(before) = before.filter(|before| before.turn != change.turn && before.made) {
            self.hear_end(&before);
        }
    }

    fn hear_end(&mut self, change: &Change) {
        let heard = &mut self.heard[change.mark.ino.0 as usize];
        *heard = (*heard).max(change.mark.offset + LEN);
    }

    /// A write, as `Copies::forwarded` makes it.
    fn write(&mut self, key: (ServerId, u32), change: &mut Change) {
        let (file, end) = (change.mark.ino.0 as usize, change.mark.offset + LEN);
        change.made = true;
        self.hear(key, change);
        self.marks.note(key, Kind::Reaches(end), (change.mark, change.turn), self.length[file]);
        self.length[file] = self.length[file].max(end);
    }

    /// The primary's bytes of a range, as `Copies::forwarded` takes them: all of it, or what is settled of it.
    fn mirror(&mut self, key: (ServerId, u32), kind: Kind, (mark, turn): (Mark, u64), has_all: bool) {
        let (file, end) = (mark.ino.0 as usize, mark.offset + LEN);
        self.hear(key, &Change { mark, turn, made: has_all });
        let rest = self.marks.note(key, kind, (mark, turn), self.length[file]);
        let data_end = if has_all { end } else { self.settled[file].clamp(mark.offset, end) };
        if data_end > mark.offset {
            self.length[file] = self.length[file].max(data_end);
            self.marks.reaches(mark.ino, data_end);
        }
        if data_end < end && data_end < self.length[file] && self.length[file] <= end {
            self.length[file] = if data_end > mark.offset { data_end } else { rest.min(data_end) };
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Write { group: number, slot, file, at, arrives } => {
                let (key, at) = ((self.primaries[number], slot), place(number, at));
                let is_before = |(of, (_, change)): (&(ServerId, u32), &(usize, Change))| {
                    *of == key || (change.mark.ino, change.mark.offset) == (Ino(file), at)
                };
                let before: Vec<(ServerId, u32)> = self
                    .under_way
                    .iter()
                    .filter(|(of, known)| is_before((of, known)))
                    .map(|(of, _)| *of)
                    .collect();
                if before.iter().any(|of| !self.under_way[of].1.made) {
                    // The slot and the range are in use as long as the holder has not made the change.
                    return;
                }
                for of in before {
                    if let Some((_, over)) = self.under_way.remove(&of) {
                        self.reaches(&over);
                    }
                }
                let mark = Mark { group: group(number), ino: Ino(file), offset: at, len: LEN };
                let mut change = Change { mark, turn: self.turn(), made: false };
                if arrives {
                    self.write(key, &mut change);
                }
                self.under_way.insert(key, (number, change));
            }
            Event::Repeat { group: number, slot } => {
                let key = (self.primaries[number], slot);
                if let Some((_, mut change)) = self.under_way.get(&key).copied() {
                    self.write(key, &mut change);
                    self.under_way.get_mut(&key).expect("it was there").1 = change;
                }
            }
            Event::Undo { group: number, slot } => {
                let key = (self.primaries[number], slot);
                if let Some((_, change)) = self.under_way.remove(&key) {
                    self.mirror(key, Kind::Undoes, (change.mark, change.turn), false);
                }
            }
            Event::TakeOver { group: number, by, has } => {
                let (before, by) = (self.primaries[number], ServerId(by));
                if before == by {
                    return;
                }
                self.primaries[number] = by;
                let begun =
                    |(key, (of, _)): &(&(ServerId, u32), &(usize, Change))| key.0 == before && *of == number;
                let begun: Vec<(ServerId, u32)> =
                    self.under_way.iter().filter(begun).map(|(key, _)| *key).collect();
                for key in begun {
                    let (_, change) = self.under_way.remove(&key).expect("it is listed");
                    // What becomes of it, the holder hears from its new primary.
                    self.arrived.remove(&key);
                    let is_free =
                        |slot: &u32| self.under_way.get(&(by, *slot)).is_none_or(|(_, over)| over.made);
                    let slot = (1..).find(is_free).unwrap_or(SLOTS);
                    if let Some((_, over)) = self.under_way.remove(&(by, slot)) {
                        self.reaches(&over);
                    }
                    let turn = self.turn();
                    self.mirror((by, slot), Kind::Settles, (change.mark, turn), has && change.made);
                    if has && change.made {
                        self.reaches(&change);
                    }
                }
            }
            Event::Own { file, at } => {
                let (file, end) = (file as usize, place(GROUPS, at) + LEN);
                self.length[file] = self.length[file].max(end);
                self.settled[file] = self.settled[file].max(end);
                self.heard[file] = self.heard[file].max(end);
                self.marks.reaches(Ino(file as u64), end);
            }
            Event::Ask { group: number } => {
                let primary = self.primaries[number];
                let under_way: Vec<(u32, u64)> = self
                    .under_way
                    .iter()
                    .filter(|(key, _)| key.0 == primary)
                    .map(|(key, (_, change))| (key.1, change.turn))
                    .collect();
                self.marks.settle(&self.marks.unsettled(), (primary, group(number)), (0, &under_way));
                let is_over = |(key, change): &(&(ServerId, u32), &Change)| {
                    key.0 == primary && !under_way.contains(&(key.1, change.turn)) && change.made
                };
                let over: Vec<Change> =
                    self.arrived.iter().filter(is_over).map(|(_, change)| *change).collect();
                over.iter().for_each(|change| self.hear_end(change));
            }
            Event::Truncate { file, length } => {
                let of_file = |change: &Change| change.mark.ino == Ino(file);
                if self.under_way.values().any(|(_, change)| of_file(change) && !change.made) {
                    return;
                }
                self.under_way.retain(|_, (_, change)| !of_file(change));
                self.arrived.retain(|_, change| !of_file(change));
                for known in [&mut self.length, &mut self.settled, &mut self.heard] {
                    known[file as usize] = length;
                }
                self.marks.cut(Ino(file), length);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn what_all_have_made_is_never_cut_nor_left_out(events in prop::collection::vec(event(), 1..40)) {
        let mut world = World::new();
        for event in events {
            world.happen(event);
            for file in 0..FILES as usize {
                let (length, settled, heard) = (world.length[file], world.settled[file], world.heard[file]);
                prop_assert!(length >= settled, "{event:?}: {length} of {settled} bytes of file {file}");
                let certain = world.marks.certain_length(Ino(file as u64), length);
                prop_assert!(certain >= heard, "{event:?}: {certain} of {heard} bytes of file {file} are shown");
            }
        }
    }
}
