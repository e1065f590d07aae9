//! Who has kept enough to go on, and who keeps the map.

use super::*;
use crate::controller::raft::voter::can_vote_with;
use std::collections::BTreeMap;

fn kept(last: (u64, u64), voters: &[u16]) -> Result<Option<Kept>, ControllerError> {
    Ok(Some(Kept { last, voters: voters.iter().copied().map(NodeId).collect() }))
}

fn asked(
    answers: Vec<Result<Option<Kept>, ControllerError>>,
) -> Vec<(NodeId, Result<Option<Kept>, ControllerError>)> {
    (0..).map(NodeId).zip(answers).collect()
}

#[test]
fn most_voters_of_the_newest_entry_have_to_have_kept_the_map() {
    let all = [0, 1, 2];
    assert!(enough(asked(vec![kept((1, 5), &all), kept((1, 5), &all), Ok(None)])).is_ok());
    let few = enough(asked(vec![kept((1, 5), &all), Ok(None), Ok(None)]));
    assert!(matches!(few, Err(ControllerError::TooFew { kept: 1, voters: 3, why: None })), "{few:?}");
    // The first was replaced by the fourth while it was away: it does not count.
    let replaced = vec![kept((1, 5), &all), kept((2, 9), &[1, 2, 3]), Ok(None), Ok(None)];
    assert!(matches!(enough(asked(replaced)), Err(ControllerError::TooFew { kept: 1, voters: 3, .. })));
    let replaced = vec![kept((1, 5), &all), kept((2, 9), &[1, 2, 3]), Ok(None), kept((2, 8), &[1, 2, 3])];
    assert!(enough(asked(replaced)).is_ok());
}

#[test]
fn where_nobody_has_kept_anything_the_error_says_why() {
    assert!(matches!(enough(asked(vec![Ok(None), Ok(None)])), Err(ControllerError::NotFounded)));
    let damaged = || ControllerError::Damaged { path: "/j".into(), what: "odd".into() };
    assert!(matches!(enough(asked(vec![Err(damaged()), Ok(None)])), Err(ControllerError::Damaged { .. })));
    let few = enough(asked(vec![kept((1, 1), &[0, 1, 2]), Err(damaged()), Ok(None)]));
    let said = few.expect_err("too few").to_string();
    assert!(said.contains("1 of the 3") && said.contains("/j is damaged"), "{said}");
    assert!(enough(asked(vec![kept((1, 1), &[0, 1, 2]), Err(damaged()), kept((1, 1), &[0, 1, 2])])).is_ok());
}

fn nodes(addresses: &[&str]) -> BTreeMap<NodeId, SocketAddr> {
    (0..).map(NodeId).zip(addresses.iter().map(|a| format!("{a}:7").parse().expect("an address"))).collect()
}

#[test]
fn voters_are_odd_in_number_and_the_founder_is_one() {
    let of = |count: usize, first| -> Vec<u16> {
        let voters = voters_of(NodeId(first), &nodes(&vec!["10.0.0.1"; count]));
        voters.into_iter().map(|node| node.0).collect()
    };
    assert_eq!((of(1, 0), of(2, 1), of(3, 0)), (vec![0], vec![1], vec![0, 1, 2]));
    assert_eq!((of(4, 3), of(6, 5)), (vec![0, 1, 3], vec![0, 1, 2, 3, 5]));
    assert_eq!(of(40, 20), [0, 1, 2, 3, 4, 5, 20]);
}

#[test]
fn an_agent_that_others_cannot_reach_does_not_vote_with_them() {
    let mixed = nodes(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1"]);
    assert_eq!(voters_of(NodeId(3), &mixed), [NodeId(3)]);
    assert_eq!(voters_of(NodeId(0), &mixed), [0, 1, 2].map(NodeId));
    assert!(!can_vote_with(NodeId(0), NodeId(3), &mixed) && can_vote_with(NodeId(0), NodeId(1), &mixed));
    assert_eq!(voters_of(NodeId(0), &nodes(&["127.0.0.1", "127.0.0.2"])).len(), 1);
}
