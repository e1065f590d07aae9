//! The numbers of sessions.
//!
//! A session's number says which node it belongs to ([`NodeId::of`]), so that servers know whose locks they have to end when
//! nobody reaches the node any more. An agent counts from a random number on: so it knows its own sessions from those
//! that the agent before it gave out, which some processes still have.

use bivouac_layout::NodeId;

/// Gives out numbers.
#[derive(Debug)]
pub(super) struct Numbers {
    node: NodeId,
    first: u64,
    given: u64,
}

impl Numbers {
    /// `first`: a random number.
    pub(super) fn new(node: NodeId, first: u64) -> Numbers {
        Numbers { node, first, given: 0 }
    }

    /// The next one. It is not zero.
    pub(super) fn next(&mut self) -> u64 {
        loop {
            let number = self.node.number(self.first.wrapping_add(self.given));
            self.given += 1;
            if number != 0 {
                return number;
            }
        }
    }

    /// Whether this agent has given a number out.
    pub(super) fn is_own(&self, number: u64) -> bool {
        let after_first = NodeId(0).number(number.wrapping_sub(self.first));
        NodeId::of(number) == self.node && after_first < self.given && number != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_whose_they_are_and_are_never_zero() {
        for (node, first) in [(0, 0), (7, 5), (NodeId::NONE.0 - 1, u64::MAX), (0, (1 << 48) - 2)] {
            let mut numbers = Numbers::new(NodeId(node), first);
            let given: Vec<u64> = (0..5).map(|_| numbers.next()).collect();
            assert!(given.iter().all(|n| NodeId::of(*n) == NodeId(node) && *n != 0 && numbers.is_own(*n)));
            assert!(given.windows(2).all(|pair| pair[0] != pair[1]));
            let next = Numbers::new(NodeId(node), first.wrapping_add(numbers.given)).next();
            assert!(!numbers.is_own(next) && !numbers.is_own(0));
            assert!(!numbers.is_own(NodeId(node ^ 1).number(given[0])), "another node's");
        }
    }
}
