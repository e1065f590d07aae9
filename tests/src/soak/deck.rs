//! Which fault comes next.

use super::Fault;
use crate::kills::Random;

/// Deals kinds of faults in a random order, again and again.
pub struct Deck {
    kinds: Vec<Fault>,
    left: Vec<Fault>,
}

impl Deck {
    /// Of these kinds.
    pub fn new(kinds: Vec<Fault>) -> Deck {
        assert!(!kinds.is_empty(), "no kind of fault has such a name");
        Deck { kinds, left: Vec::new() }
    }

    /// The next fault.
    pub fn draw(&mut self, random: &mut Random) -> Fault {
        if self.left.is_empty() {
            self.left = self.kinds.clone();
        }
        let at = random.below(self.left.len() as u64) as usize;
        self.left.swap_remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_has_every_kind_once_in_an_order_that_follows_from_the_seed() {
        let deal = |seed| {
            let (mut deck, mut random) = (Deck::new(Fault::ALL.to_vec()), Random::new(seed));
            std::iter::repeat_with(move || deck.draw(&mut random))
                .take(2 * Fault::ALL.len())
                .collect::<Vec<_>>()
        };
        for round in deal(7).chunks(Fault::ALL.len()) {
            let mut sorted = round.to_vec();
            sorted.sort();
            assert_eq!(sorted, Fault::ALL);
        }
        assert_eq!(deal(7), deal(7));
        assert_ne!(deal(7), deal(8));
    }
}
