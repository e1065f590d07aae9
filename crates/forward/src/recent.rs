//! What was used most recently, by number: at most so many, and whatever was not used for longest goes.
//!
//! Numbers come back: the backend gives that of a removed file to a new one. So each use that is noted has a stamp of its own, and
//! what an old use of a number says counts for nothing once there is a newer one.

use bivouac_layout::Ino;
use std::collections::{HashMap, VecDeque};

/// See the module.
pub(crate) struct Recent<V> {
    /// Never more are kept, and all of which one of the last half as many notes was.
    most: usize,
    entries: HashMap<Ino, (V, u64)>,
    /// Uses that were noted, the oldest first; at most `most`.
    order: VecDeque<(Ino, u64)>,
    stamp: u64,
}

impl<V> Recent<V> {
    pub(crate) fn new(most: usize) -> Recent<V> {
        Recent { most: most.max(1), entries: HashMap::new(), order: VecDeque::new(), stamp: 0 }
    }

    /// Puts something in. What goes for it: what had its number, and the least recently used.
    pub(crate) fn insert(&mut self, ino: Ino, value: V) -> Vec<V> {
        self.stamp += 1;
        let before = self.entries.insert(ino, (value, self.stamp));
        self.order.push_back((ino, self.stamp));
        let mut dropped: Vec<V> = before.map(|(value, _)| value).into_iter().collect();
        dropped.extend(self.trim());
        dropped
    }

    /// Uses something.
    pub(crate) fn get(&mut self, ino: Ino) -> Option<&V> {
        let next = self.stamp + 1;
        let (_, stamp) = self.entries.get_mut(&ino)?;
        // Not each use is noted: otherwise a few that are used often would displace all others.
        if next - *stamp > self.most as u64 / 2 {
            (*stamp, self.stamp) = (next, next);
            self.order.push_back((ino, next));
            // It is the newest itself.
            drop(self.trim());
        }
        self.peek(ino)
    }

    /// The same, without that it counts as a use.
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

    fn trim(&mut self) -> Vec<V> {
        let mut dropped = Vec::new();
        while self.order.len() > self.most
            && let Some((ino, stamp)) = self.order.pop_front()
        {
            if self.entries.get(&ino).is_some_and(|(_, newest)| *newest == stamp) {
                dropped.extend(self.remove(ino));
            }
        }
        dropped
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
}
