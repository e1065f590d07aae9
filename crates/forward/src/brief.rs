//! What was used in the last moments, by number: what is used in neither of two turns in a row goes, whoever takes the turns.
//!
//! For what must not be kept for long although nobody asks for it any more: a descriptor of a file that others have removed keeps its
//! bytes in the backend.

use bivouac_layout::Ino;
use std::collections::HashMap;

/// See the module.
pub(crate) struct Brief<V> {
    /// More are not kept of one turn.
    most: usize,
    /// Used since the last turn.
    young: HashMap<Ino, V>,
    /// Used in the turn before that, and not since.
    old: HashMap<Ino, V>,
}

impl<V> Brief<V> {
    /// Keeps so many at most. (A turn ends, too, when half as many were used in it.)
    pub(crate) fn new(most: usize) -> Brief<V> {
        Brief { most: (most / 2).max(1), young: HashMap::new(), old: HashMap::new() }
    }

    /// Puts something in. Returns what had its number, and what has to go for it, for the caller to drop when it holds no lock.
    pub(crate) fn insert(&mut self, ino: Ino, value: V) -> Vec<V> {
        let mut gone: Vec<V> = self.remove(ino).into_iter().collect();
        if self.young.len() >= self.most {
            gone.extend(self.turn());
        }
        self.young.insert(ino, value);
        gone
    }

    /// Uses something. (Where the turn is full, it may go with the next one nevertheless.)
    pub(crate) fn get(&mut self, ino: Ino) -> Option<&V> {
        if self.young.len() < self.most
            && let Some(value) = self.old.remove(&ino)
        {
            self.young.insert(ino, value);
        }
        self.peek(ino)
    }

    /// Looks something up without counting that as a use.
    pub(crate) fn peek(&self, ino: Ino) -> Option<&V> {
        self.young.get(&ino).or_else(|| self.old.get(&ino))
    }

    pub(crate) fn remove(&mut self, ino: Ino) -> Option<V> {
        self.young.remove(&ino).or_else(|| self.old.remove(&ino))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// The next turn begins: what was not used in the last one goes.
    pub(crate) fn turn(&mut self) -> Vec<V> {
        let gone = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        gone.into_values().collect()
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
        Turn,
    }

    fn step() -> impl Strategy<Value = Step> {
        let number = || 0..8u64;
        prop_oneof![
            number().prop_map(Step::Insert),
            number().prop_map(Step::Get),
            number().prop_map(Step::Remove),
            Just(Step::Turn)
        ]
    }

    proptest! {
        /// With room for all: exactly what was used in this turn or the one before is there.
        #[test]
        fn what_was_used_in_one_of_two_turns_is_there(steps in proptest::collection::vec(step(), 0..200)) {
            let mut brief = Brief::new(16);
            // The latest value of each, and the turn of its last use.
            let mut model: HashMap<u64, (usize, u64)> = HashMap::new();
            let mut turn = 0;
            for (at, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(number) => {
                        let before = model.insert(number, (at, turn));
                        prop_assert_eq!(brief.insert(Ino(number), at).first().copied(), before.map(|(value, _)| value));
                    }
                    Step::Get(number) => {
                        let known = model.get_mut(&number).map(|(value, used)| { *used = turn; *value });
                        prop_assert_eq!(brief.get(Ino(number)).copied(), known);
                    }
                    Step::Remove(number) => {
                        prop_assert_eq!(brief.remove(Ino(number)), model.remove(&number).map(|(value, _)| value));
                    }
                    Step::Turn => {
                        let mut gone = brief.turn();
                        gone.sort_unstable();
                        let mut expected: Vec<usize> =
                            model.values().filter(|(_, used)| *used < turn).map(|(value, _)| *value).collect();
                        expected.sort_unstable();
                        prop_assert_eq!(gone, expected);
                        model.retain(|_, (_, used)| *used == turn);
                        turn += 1;
                    }
                }
                prop_assert_eq!(brief.len(), model.len());
                for (number, (value, _)) in &model {
                    prop_assert_eq!(brief.peek(Ino(*number)), Some(value));
                }
            }
        }
    }

    #[test]
    fn it_never_has_more_than_it_may_and_what_came_last_is_there() {
        let mut brief = Brief::new(6);
        for number in 0..100 {
            brief.insert(Ino(number), number);
            brief.get(Ino(number / 2));
            assert!(brief.len() <= 6 && brief.peek(Ino(number)) == Some(&number));
            assert!(number == 0 || brief.peek(Ino(number - 1)).is_some(), "{number}: the one before is gone");
        }
    }
}
