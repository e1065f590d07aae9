//! Restriping: which ranges of files go to which other servers, when servers come or leave.
//!
//! A file's layout names a generation for each of its ranges. When ranges go to other servers, they get another generation.
//! This happens range by range, from the file's beginning to its end, so that a layout has hardly more ranges meanwhile than
//! before, and so that a file that is written all the time can be restriped, too. Each such step raises the layout's version.
//!
//! Which generation a range gets depends on the [`Rule`] by which a deployment is rebuilt. The two rules that work while
//! programs run are those of Expand (expand-final-evaluation.000, section 1.4): with the one, which that paper calls *direct*,
//! every file is dealt anew over the newest servers; with the other one, *metadata*, files stay as they are, and only what is
//! on servers that leave goes to others: to the *successor* of its generation, in which others have the places of those
//! servers.
//!
//! How many bytes have to move follows from two layouts ([`moves`]): those of the blocks that get a server which did not have
//! them before.

use crate::groups::Group;
use crate::hash::{self, Use};
use crate::ids::{GenerationId, Ino, ServerId};
use crate::map::{Map, NO_SERVER};
use crate::placement::{FileLayout, LayoutRange, Piece};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Which ranges of files get another generation.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Those with blocks on servers that leave: they get the successor of their generation.
    Metadata,
    /// All that have another one than the newest.
    Direct,
}

/// A restriping of all files that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Rebuild {
    /// Its number within the deployment, from 1 on.
    pub number: u32,
    /// Which ranges move.
    pub rule: Rule,
    /// So many bytes per second each server takes in at most; 0: as many as it can.
    pub rate: u64,
}

/// A stretch of a file that gets a server which does not have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Who has it, as the primary, by the old layout.
    pub from: Piece,
    /// Who gets it.
    pub to: ServerId,
}

impl Map {
    /// To which generation a range goes by a rule. It stays where it is if that is its own.
    pub fn destination(&self, generation: GenerationId, rule: Rule) -> GenerationId {
        match rule {
            Rule::Direct => self.newest_generation(),
            Rule::Metadata => {
                let mut last = generation;
                // Successors are younger: this ends.
                while let Some(next) = self.successor(last) {
                    last = next;
                }
                last
            }
        }
    }

    fn successor(&self, generation: GenerationId) -> Option<GenerationId> {
        let at = self.successors.binary_search_by_key(&generation, |(from, _)| *from).ok()?;
        self.successors.get(at).map(|(_, to)| *to).filter(|to| *to > generation)
    }
}

impl FileLayout {
    /// The next range that is to go elsewhere, if any is, and by which rule: the first one, and not much more than `longest`
    /// bytes of it. Where nothing lies behind that, because the file ends at `end`, all the rest belongs to it.
    pub fn next_to_restripe(
        &self,
        map: &Map,
        rule: Rule,
        end: u64,
        longest: u64,
    ) -> Option<(Range<u64>, Rule)> {
        let goes = |at: usize| {
            let (range, rule) = (self.ranges.get(at)?, self.rule_for(map, rule, at, end));
            (map.destination(range.generation, rule) != range.generation).then_some((at, rule))
        };
        let (at, rule) = (0..self.ranges.len()).find_map(goes)?;
        let start = self.ranges.get(at)?.start;
        let limit = self.range_end(at);
        let block = u64::from(self.block_size.max(1));
        let longest = longest.max(1).div_ceil(block).saturating_mul(block);
        let stop = start.saturating_add(longest);
        Some((start..if stop >= limit || stop >= end { limit } else { stop }, rule))
    }

    /// The longest of the file's stripes, also of that which it is about to get, bytes: so many bytes in a row are on all of
    /// its servers.
    pub fn longest_stripe(&self, map: &Map) -> u64 {
        let generations = self.ranges.iter().map(|range| range.generation).chain([map.newest_generation()]);
        let servers =
            generations.filter_map(|id| map.generation(id)).map(|generation| generation.servers.len());
        let most = servers.max().unwrap_or(1).max(1) as u64;
        let width = if self.width == 0 { most } else { most.min(self.width.into()) };
        width.saturating_mul(self.block_size.into())
    }

    fn range_end(&self, at: usize) -> u64 {
        self.ranges.get(at + 1).map_or(u64::MAX, |next| next.start)
    }

    /// By which rule a range goes elsewhere: one of which blocks are lost goes only where these are lost, too, so that they
    /// never look like holes.
    fn rule_for(&self, map: &Map, rule: Rule, at: usize, end: u64) -> Rule {
        let is_lost = |group| map.primary_of(group) == Some(NO_SERVER);
        let bytes = self.ranges.get(at).map_or(0..0, |range| range.start..self.range_end(at).min(end));
        match rule {
            Rule::Direct if map.has_losses() && self.groups_in(map, bytes).any(is_lost) => Rule::Metadata,
            rule => rule,
        }
    }

    /// The layout when a range has gone to where it is to be by a rule. The range begins and ends with blocks.
    pub fn restriped(&self, map: &Map, ino: Ino, rule: Rule, range: &Range<u64>) -> FileLayout {
        let mut ranges: Vec<LayoutRange> = Vec::with_capacity(self.ranges.len() + 2);
        let ends = self.ranges.iter().skip(1).map(|next| next.start).chain([u64::MAX]);
        for (old, end) in self.ranges.iter().zip(ends) {
            let inside = old.start.max(range.start)..end.min(range.end);
            let new = LayoutRange { start: inside.start, ..self.moved_range(map, ino, rule, old) };
            let rest = LayoutRange { start: inside.end, ..*old };
            let parts = [
                (old.start..end.min(range.start), *old),
                (inside, new),
                (range.end.max(old.start)..end, LayoutRange { start: range.end.max(old.start), ..rest }),
            ];
            for (bounds, part) in parts {
                let goes_on =
                    |last: &LayoutRange| (last.generation, last.first) == (part.generation, part.first);
                if bounds.start < bounds.end && !ranges.last().is_some_and(goes_on) {
                    ranges.push(part);
                }
            }
        }
        FileLayout { ranges, version: self.version.wrapping_add(1), ..self.clone() }
    }

    /// A range in the generation that it goes to. Where block 0 would be changes as little as possible.
    fn moved_range(&self, map: &Map, ino: Ino, rule: Rule, old: &LayoutRange) -> LayoutRange {
        let generation = map.destination(old.generation, rule);
        if generation == old.generation {
            return *old;
        }
        let servers = |id| map.generation(id).map_or(&[][..], |generation| &generation.servers);
        let (before, after) = (servers(old.generation), servers(generation));
        let (Ok(many), Ok(more)) = (u32::try_from(before.len().max(1)), u32::try_from(after.len().max(1)))
        else {
            return LayoutRange { generation, ..*old };
        };
        let first = match rule {
            // The places are the same, one time or several.
            Rule::Metadata if more.is_multiple_of(many) => {
                let place = old.first % many;
                let stays = after.get(place as usize) == before.get(place as usize);
                let turns = u64::from(more / many);
                match self.placed && !stays {
                    true => place + many * (hash::number(Use::FirstServer, ino.0) % turns) as u32,
                    false => old.first,
                }
            }
            _ if self.placed => {
                let home = before.get((old.first % many) as usize);
                let place = home.and_then(|home| after.iter().position(|server| server == home));
                match place {
                    Some(place) => (old.first / many).min(u32::MAX / more - 1) * more + place as u32,
                    None => hash::number(Use::FirstServer, ino.0) as u32,
                }
            }
            _ => old.first,
        };
        LayoutRange { generation, first, ..*old }
    }
}

/// What of a range `me` has to get so that it has its blocks by the new layout: stretches in ascending order, none longer
/// than a block where a file has several servers.
pub fn moves<'a>(
    map: &'a Map,
    (old, new): (&'a FileLayout, &'a FileLayout),
    range: Range<u64>,
    me: ServerId,
) -> impl Iterator<Item = Move> + 'a {
    let has = move |group| map.holders(group).all().contains(&me);
    let gets = new.pieces(map, range).filter(move |piece| has(piece.group));
    gets.flat_map(move |piece| old.pieces(map, piece.offset..piece.offset + piece.len))
        .filter(move |from| !has(from.group))
        .map(move |from| Move { from, to: me })
}

/// What of a range `me` has by the old layout, and not by the new one.
pub fn leaves<'a>(
    map: &'a Map,
    (old, new): (&'a FileLayout, &'a FileLayout),
    range: Range<u64>,
    me: ServerId,
) -> impl Iterator<Item = Range<u64>> + 'a {
    let has = move |group| map.holders(group).all().contains(&me);
    let had = old.pieces(map, range).filter(move |piece| has(piece.group));
    had.flat_map(move |piece| new.pieces(map, piece.offset..piece.offset + piece.len))
        .filter(move |to| !has(to.group))
        .map(|to| to.offset..to.offset + to.len)
}

/// Copies of a range that are to stay where they are, and of which the map says that they have not everything, but only for
/// their groups by the old layout: each with its group by the new one, by which it would be relied on. (Mostly a server
/// is behind in all of its groups. Where its storage has failed once, it is behind in those that were written then.)
pub fn outdated<'a>(
    map: &'a Map,
    (old, new): (&'a FileLayout, &'a FileLayout),
    range: Range<u64>,
) -> impl Iterator<Item = (Group, ServerId)> + 'a {
    let any = map.behind.iter().any(|lag| matches!(lag.group, Group::Blocks { .. }));
    let pieces = new.pieces(map, if any { range } else { 0..0 });
    pieces.flat_map(move |to| {
        let from = old.pieces(map, to.offset..to.offset + to.len);
        let behind = from.flat_map(|from| map.holders(from.group).behind());
        behind
            .filter(move |holder| map.holders(to.group).in_step().any(|other| other == *holder))
            .map(move |holder| (to.group, holder))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::fixture::{map, replicated};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const BLOCK: u32 = 4096;

    fn layout(ino: u64, width: u16) -> FileLayout {
        FileLayout { width, ..FileLayout::spread(Ino(ino), BLOCK, GenerationId(0)) }
    }

    /// All steps of a file's restriping, as a server that knows the file's end makes them.
    fn all_steps(
        map: &Map,
        rule: Rule,
        ino: u64,
        file: &FileLayout,
        end: u64,
        longest: u64,
    ) -> Vec<FileLayout> {
        let mut steps = vec![file.clone()];
        while let Some((range, by)) = steps[steps.len() - 1].next_to_restripe(map, rule, end, longest) {
            assert_eq!(by, rule, "nothing is lost");
            assert!(steps.len() < 1000, "it does not end");
            let next = steps[steps.len() - 1].restriped(map, Ino(ino), rule, &range);
            assert!(next.is_valid(map), "{next:?}");
            assert_eq!(next.version as usize, steps.len());
            steps.push(next);
        }
        steps
    }

    #[test]
    fn the_longest_stripe_is_that_of_the_larger_generation_unless_the_file_is_narrower() {
        let map = map(4, &[&[0, 1], &[0, 1, 2, 3]]);
        let stripes = [0, 3, 9].map(|width| layout(5, width).longest_stripe(&map));
        assert_eq!(stripes, [4 * 4096, 3 * 4096, 4 * 4096]);
        let shrunk = FileLayout::spread(Ino(5), BLOCK, GenerationId(1));
        assert_eq!(shrunk.longest_stripe(&map), 4 * 4096);
    }

    fn group_in(map: &Map, layout: &FileLayout, block: u64) -> Group {
        layout.piece_at(map, block * u64::from(BLOCK), u64::MAX).expect("a piece").group
    }

    #[test]
    fn a_file_goes_to_the_newest_servers_range_by_range_and_has_one_range_in_the_end() {
        let map = map(4, &[&[0, 1], &[0, 1, 2, 3]]);
        let steps = all_steps(&map, Rule::Direct, 5, &layout(5, 0), 100 * 4096, 10 * 4096);
        assert_eq!(steps.len(), 11);
        assert!(steps.iter().all(|step| step.ranges.len() <= 2));
        let last = steps.last().expect("steps");
        assert_eq!((last.ranges.len(), last.ranges[0].generation), (1, GenerationId(1)));
        let servers: Vec<u16> = (0..4).map(|b| last.server_at(&map, b * 4096).expect("a server").0).collect();
        let mut sorted = servers.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3]);
    }

    #[test]
    fn files_stay_where_they_are_by_the_rule_that_moves_only_what_must_leave() {
        let mut map = map(4, &[&[0, 1, 2, 3], &[0, 1, 0, 1], &[0, 1]]);
        let file = layout(5, 0);
        assert_eq!(file.next_to_restripe(&map, Rule::Metadata, u64::MAX, 1 << 30), None);
        map.successors = vec![(GenerationId(0), GenerationId(1))];
        let (range, _) = file.next_to_restripe(&map, Rule::Metadata, 1 << 20, 1 << 30).expect("a range");
        assert_eq!(range, 0..u64::MAX);
        let after = file.restriped(&map, Ino(5), Rule::Metadata, &range);
        for block in 0..64 {
            let at = |layout: &FileLayout| layout.server_at(&map, block * 4096).expect("a server").0;
            assert_eq!(at(&after), at(&file) % 2, "only what was on 2 and 3 has moved");
        }
        assert_eq!(after.next_to_restripe(&map, Rule::Metadata, 1 << 20, 1 << 30), None);
    }

    #[test]
    fn a_file_that_was_placed_stays_on_its_server_and_others_spread() {
        let map = map(4, &[&[0, 1], &[0, 1, 2, 3]]);
        let mut homes = BTreeMap::new();
        for ino in 0..400 {
            let hashed = layout(ino, 1);
            let restriped = hashed.restriped(&map, Ino(ino), Rule::Direct, &(0..u64::MAX));
            *homes.entry(restriped.server_at(&map, 0).expect("a server").0).or_insert(0) += 1;
            let mut placed = FileLayout { placed: true, ..hashed };
            placed.ranges[0].first = 1;
            let restriped = placed.restriped(&map, Ino(ino), Rule::Direct, &(0..u64::MAX));
            assert_eq!(restriped.server_at(&map, 0), Some(ServerId(1)));
        }
        assert!(homes.values().all(|count| (60..140).contains(count)), "{homes:?}");
    }

    #[test]
    fn from_two_servers_to_four_half_of_the_blocks_move() {
        let map = map(4, &[&[0, 1], &[0, 1, 2, 3]]);
        let (old, size) = (layout(9, 0), 1000 * 4096);
        let new = old.restriped(&map, Ino(9), Rule::Direct, &(0..u64::MAX));
        let gets =
            |me: u16| moves(&map, (&old, &new), 0..size, ServerId(me)).map(|m| m.from.len).sum::<u64>();
        assert_eq!([0, 1, 2, 3].map(gets), [0, 0, size / 4, size / 4]);
        let gives =
            |me: u16| leaves(&map, (&old, &new), 0..size, ServerId(me)).map(|r| r.end - r.start).sum::<u64>();
        assert_eq!([0, 1, 2, 3].map(gives), [size / 4, size / 4, 0, 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn at_every_step_each_block_is_where_it_was_or_where_it_is_to_be(
            ino in 1u64..1000,
            width in 0u16..5,
            copies in 1u8..4,
            longest in 1u64..50,
            size in 0u64..200,
            placed: bool,
            direct: bool,
            suspect in 0u64..1000,
        ) {
            let mut map = replicated(6, copies, &[&[0, 1, 2, 3], &[4, 1, 5, 3], &[1, 3, 4, 5]]);
            map.successors = vec![(GenerationId(0), GenerationId(1))];
            let rule = if direct { Rule::Direct } else { Rule::Metadata };
            let file = FileLayout { placed, replicas: copies, ..layout(ino, width) };
            let end = size * u64::from(BLOCK);
            let steps = all_steps(&map, rule, ino, &file, end, longest * u64::from(BLOCK));
            let last = steps.last().expect("steps");
            let group = |layout: &FileLayout, block: u64| group_in(&map, layout, block);
            let mut moved = 0;
            for (before, after) in steps.iter().zip(&steps[1..]) {
                for block in 0..size + 20 {
                    let (was, is) = (group(before, block), group(after, block));
                    prop_assert!(was == is || is == group(last, block));
                    moved += u64::from(was != is);
                }
            }
            let differs = |block: &u64| group(&file, *block) != group(last, *block);
            prop_assert_eq!(moved, (0..size + 20).filter(differs).count() as u64, "each moves once");
            prop_assert!(steps.iter().all(|step| step.ranges.len() <= 2));
            // What is got and what is given is the same, for every pair.
            for me in (0..6).map(ServerId) {
                let at = |b: u64| b * u64::from(BLOCK);
                for block in 0..size {
                    let has = |layout: &FileLayout| map.holders(group(layout, block)).all().contains(&me);
                    let (old, new) = (&file, last);
                    let gets = moves(&map, (old, new), at(block)..at(block + 1), me).count() == 1;
                    let gives = leaves(&map, (old, new), at(block)..at(block + 1), me).count() == 1;
                    prop_assert_eq!(gets, has(new) && !has(old));
                    prop_assert_eq!(gives, has(old) && !has(new));
                }
            }
            // A server that was distrusted in one group is not relied on for what was in that.
            if copies > 1 && size > 0 {
                let (doubted, all) = (group(&file, suspect % size), 0..size * u64::from(BLOCK));
                prop_assert_eq!(outdated(&map, (&file, last), all.clone()).count(), 0);
                let holder = map.holders(doubted).all()[suspect as usize % copies as usize];
                map.distrust(&[(doubted, holder)]);
                let found: Vec<_> = outdated(&map, (&file, last), all).collect();
                let stays = |block: &u64| {
                    let (was, is) = (group_in(&map, &file, *block), group_in(&map, last, *block));
                    (was == doubted && is != doubted && map.holders(is).all().contains(&holder)).then_some((is, holder))
                };
                prop_assert_eq!(found, (0..size).filter_map(|block| stays(&block)).collect::<Vec<_>>());
            }
        }
    }
}
