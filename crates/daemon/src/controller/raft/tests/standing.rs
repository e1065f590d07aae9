//! What a voter says of the group while the list of voters changes.

use super::super::voter::standing_of;
use super::log_id;
use bivouac_layout::NodeId;
use openraft::{EmptyNode, Membership, RaftMetrics, StoredMembership};
use std::collections::BTreeSet;
use std::sync::Arc;

fn metrics(lists: &[&[u64]], at: u64, applied: u64) -> RaftMetrics<u64, EmptyNode> {
    let lists: Vec<BTreeSet<u64>> = lists.iter().map(|list| list.iter().copied().collect()).collect();
    let mut metrics = RaftMetrics::new_initial(1);
    let membership = StoredMembership::new(Some(log_id(1, at)), Membership::new(lists, None));
    metrics.membership_config = Arc::new(membership);
    metrics.last_applied = Some(log_id(1, applied));
    metrics
}

fn nodes(numbers: &[u16]) -> Vec<NodeId> {
    numbers.iter().copied().map(NodeId).collect()
}

#[test]
fn a_voter_that_leaves_is_relied_on_until_the_list_without_it_is_committed() {
    let before = standing_of(&metrics(&[&[2, 3]], 5, 9), &[]);
    assert_eq!((before.voters, before.settled), (nodes(&[2, 3]), true));
    assert_eq!(before.relied_on, nodes(&[2, 3]));
    let joint = standing_of(&metrics(&[&[2, 3], &[4]], 10, 9), &before.relied_on);
    assert_eq!((joint.relied_on.clone(), joint.settled), (nodes(&[2, 3, 4]), false));
    let joint = standing_of(&metrics(&[&[2, 3], &[4]], 10, 10), &joint.relied_on);
    assert_eq!(joint.relied_on, nodes(&[2, 3, 4]));
    // openraft goes by the new list already; the others have not confirmed it.
    let last = standing_of(&metrics(&[&[4]], 11, 10), &joint.relied_on);
    assert_eq!((last.voters, last.settled), (nodes(&[4]), true));
    assert_eq!(BTreeSet::from_iter(last.relied_on.clone()), BTreeSet::from_iter(nodes(&[2, 3, 4])));
    let done = standing_of(&metrics(&[&[4]], 11, 11), &last.relied_on);
    assert_eq!(done.relied_on, nodes(&[4]));
}
