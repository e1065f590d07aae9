//! What was used most recently, by number: at most so many, and whatever was not used for longest goes.
//!
//! Numbers come back: the backend gives that of a removed file to a new one. So each use that is noted has a stamp of its own, and
//! what an old use of a number says counts for nothing once there is a newer one.

use bivouac_layout::Ino;
use std::collections::{HashMap, VecDeque};

/// See the module.
pub(crate) struct Recent<V> {
    /// Never more are kept.
    most: usize,
    /// Each with the stamp of its last use that was noted.
    entries: HashMap<Ino, (V, u64)>,
    /// Uses that were noted, the oldest first; at most `most`.
    order: VecDeque<(Ino, u64)>,
    stamp: u64,
    /// What went since the last insertion.
    gone: Vec<V>,
}

impl<V> Recent<V> {
    pub(crate) fn new(most: usize) -> Recent<V> {
        let (entries, order, gone) = <(_, _, _)>::default();
        Recent { most: most.max(1), entries, order, stamp: 0, gone }
    }

    /// Puts something in. Returns what had its number, and what had to go since the last insertion, for the caller to drop when it
    /// holds no lock.
    pub(crate) fn insert(&mut self, ino: Ino, value: V) -> Vec<V> {
        match self.entries.get_mut(&ino) {
            Some((before, _)) => {
                self.gone.push(std::mem::replace(before, value));
                self.touch(ino);
            }
            None => {
                self.stamp += 1;
                self.entries.insert(ino, (value, self.stamp));
                self.order.push_back((ino, self.stamp));
                self.trim();
            }
        }
        std::mem::take(&mut self.gone)
    }

    /// Uses something.
    pub(crate) fn get(&mut self, ino: Ino) -> Option<&V> {
        self.touch(ino);
        self.peek(ino)
    }

    /// Notes a use, unless one was noted not long ago: a few that are used often must not displace all others.
    fn touch(&mut self, ino: Ino) {
        let next = self.stamp + 1;
        if let Some((_, stamp)) = self.entries.get_mut(&ino)
            && next - *stamp > self.most as u64 / 2
        {
            (*stamp, self.stamp) = (next, next);
            self.order.push_back((ino, next));
            self.trim();
        }
    }

    /// Looks something up without counting that as a use.
    pub(crate) fn peek(&self, ino: Ino) -> Option<&V> {
        self.entries.get(&ino).map(|(value, _)| value)
    }

    pub(crate) fn remove(&mut self, ino: Ino) -> Option<V> {
        self.entries.remove(&ino).map(|(value, _)| value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All, the least recently used first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ino, &V)> {
        let newest = |(ino, stamp): &(Ino, u64)| {
            self.entries.get(ino).filter(|(_, newest)| newest == stamp).map(|(value, _)| (*ino, value))
        };
        self.order.iter().filter_map(newest)
    }

    fn trim(&mut self) {
        while self.order.len() > self.most
            && let Some((ino, stamp)) = self.order.pop_front()
        {
            if self.entries.get(&ino).is_some_and(|(_, newest)| *newest == stamp) {
                let oldest = self.remove(ino);
                self.gone.extend(oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Get(u64),
        Remove(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let number = || 0..20u64;
        prop_oneof![
            number().prop_map(Step::Insert),
            number().prop_map(Step::Get),
            number().prop_map(Step::Remove)
        ]
    }

    proptest! {
        #[test]
        fn what_is_there_is_what_came_last_and_never_more_than_so_many(
            most in 1..12usize,
            steps in proptest::collection::vec(step(), 0..300),
        ) {
            let mut recent = Recent::new(most);
            // The latest value of each.
            let mut model: Vec<(u64, usize)> = Vec::new();
            for (turn, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(number) => {
                        recent.insert(Ino(number), turn);
                        model.retain(|(other, _)| *other != number);
                        model.push((number, turn));
                        prop_assert_eq!(recent.peek(Ino(number)), Some(&turn));
                    }
                    Step::Get(number) => {
                        let known = model.iter().find(|(other, _)| *other == number);
                        let found = recent.get(Ino(number)).copied();
                        prop_assert!(found.is_none() || found == known.map(|(_, turn)| *turn));
                        prop_assert!(found.is_none() || recent.peek(Ino(number)) == found.as_ref());
                    }
                    Step::Remove(number) => {
                        recent.remove(Ino(number));
                        model.retain(|(other, _)| *other != number);
                    }
                }
                prop_assert!(recent.len() <= most && recent.order.len() <= most);
                prop_assert_eq!(recent.iter().count(), recent.len());
            }
        }
    }

    #[test]
    fn a_number_that_comes_back_does_not_go_with_its_former_use() {
        let mut recent = Recent::new(4);
        recent.insert(Ino(1), "before");
        recent.remove(Ino(1));
        recent.insert(Ino(1), "again");
        for other in 2..5 {
            recent.insert(Ino(other), "other");
        }
        assert_eq!(recent.peek(Ino(1)), Some(&"again"));
    }

    #[test]
    fn what_is_used_all_the_time_stays() {
        let mut recent = Recent::new(9);
        recent.insert(Ino(1), "used");
        for other in 2..500 {
            recent.insert(Ino(other), "other");
            assert_eq!(recent.get(Ino(1)), Some(&"used"), "{other}");
        }
    }

    #[test]
    fn what_is_put_in_again_and_again_displaces_nothing() {
        let mut recent = Recent::new(9);
        recent.insert(Ino(1), 0);
        for turn in 0..500 {
            recent.insert(Ino(2), turn);
        }
        assert_eq!((recent.peek(Ino(1)), recent.peek(Ino(2))), (Some(&0), Some(&499)));
    }
}
