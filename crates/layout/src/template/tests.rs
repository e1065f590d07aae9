use super::*;
use crate::ids::GenerationId;
use crate::map::fixture::{map, uniform};
use crate::placement::{MAX_BLOCK, MIN_BLOCK};
use proptest::prelude::*;

fn any_template() -> impl Strategy<Value = Template> {
    let block = prop::option::of((1u32..=MAX_BLOCK / MIN_BLOCK).prop_map(|pages| pages * MIN_BLOCK));
    let first = prop_oneof![
        Just(First::Hashed),
        Just(First::Local),
        (0u16..9).prop_map(|id| First::Server(ServerId(id)))
    ];
    let rest = (prop::option::of(any::<u16>()), prop::option::of(first), prop::option::of(Just(1u8)));
    (block, rest).prop_map(|(block_size, (width, first, replicas))| Template {
        block_size,
        width,
        first,
        replicas,
    })
}

/// Servers 0 and 5 on node 0, 1 and 6 on node 1, and so on: two a node, in a generation of all of them.
fn two_a_node() -> Map {
    let mut map = uniform(10);
    map.nodes.truncate(5);
    for server in &mut map.servers {
        server.node = NodeId(server.id.0 % 5);
    }
    assert_eq!(map.check(), Ok(()));
    map
}

proptest! {
    #[test]
    fn the_text_form_says_all(template in any_template()) {
        prop_assert_eq!(template.to_string().parse(), Ok(template));
        prop_assert_eq!(template.to_string().replace(' ', ",").parse(), Ok(template));
    }

    #[test]
    fn no_text_panics(text in "\\PC*|(block|width|first|replicas)?=?-?[0-9]{0,20}[KkMmGB]?") {
        if let Ok(template) = text.parse::<Template>() {
            prop_assert_eq!(template.to_string().parse(), Ok(template));
        }
    }

    #[test]
    fn every_template_that_is_accepted_gives_a_valid_layout(
        template in any_template(), defaults in any_template(), node in 0u16..7, ino in 1u64..1 << 52,
    ) {
        let mut map = two_a_node();
        map.width = defaults.width.unwrap_or(0);
        map.first = defaults.first.unwrap_or_default();
        prop_assert_eq!(map.check(), Ok(()));
        prop_assert_eq!(template.check(&map), Ok(()));
        let placed = template.placed(&map, NodeId(node), Ino(ino));
        prop_assert_ne!(placed.first.unwrap_or(map.first), First::Local);
        let layout = placed.layout(Ino(ino), &map);
        prop_assert!(layout.is_valid(&map));
        prop_assert_eq!(layout.block_size, template.block_size.unwrap_or(map.block_size));
        prop_assert_eq!(layout.width, template.width.unwrap_or(map.width));
        let holder = layout.server_at(&map, 0);
        match template.first.unwrap_or(map.first) {
            First::Server(id) => prop_assert_eq!(holder, Some(id)),
            // Nodes 5 and 6 have no server.
            First::Local if node < 5 => {
                prop_assert_eq!(holder.and_then(|id| map.server(id)).map(|s| s.node), Some(NodeId(node)));
            }
            _ => prop_assert_eq!(
                &layout.ranges,
                &FileLayout::spread(Ino(ino), MIN_BLOCK, GenerationId(0)).ranges
            ),
        }
        // Of the file itself nothing is open any more: what it is described by gives it again.
        let described = layout.described(&map);
        prop_assert_eq!(described.layout(Ino(ino), &map).server_at(&map, 0), holder);
    }
}

#[test]
fn local_files_use_all_servers_of_a_node_fairly() {
    let map = two_a_node();
    let local = Template { first: Some(First::Local), ..Template::default() };
    let on_5 = (1..=1000)
        .filter(|n| local.placed(&map, NodeId(0), Ino(*n)).first == Some(First::Server(ServerId(5))))
        .count();
    assert!((400..=600).contains(&on_5), "{on_5} of 1000 on one of two servers");
}

#[test]
fn a_server_that_is_down_is_nobodys_local_one() {
    let mut map = two_a_node();
    map.servers[5].state = ServerState::Down;
    let local = Template { first: Some(First::Local), ..Template::default() };
    for n in 1..100 {
        let placed = local.placed(&map, NodeId(0), Ino(n));
        assert_eq!(placed.first, Some(First::Server(ServerId(0))));
    }
}

#[test]
fn what_needs_no_place_of_its_own_stays_empty() {
    assert!(Template::default().placed(&uniform(3), NodeId(1), Ino(7)).is_empty());
}

#[test]
fn a_server_outside_the_newest_generation_is_refused_and_passed_over() {
    let map = map(4, &[&[0, 1, 2, 3], &[2, 1]]);
    let on = |id| Template { first: Some(First::Server(ServerId(id))), ..Template::default() };
    assert!(on(3).check(&map).is_err() && on(99).check(&map).is_err());
    assert_eq!(on(1).check(&map), Ok(()));
    assert_eq!(on(1).layout(Ino(5), &map).server_at(&map, 0), Some(ServerId(1)));
    assert_eq!(on(3).layout(Ino(5), &map), Template::default().layout(Ino(5), &map));
}

#[test]
fn what_makes_no_sense_is_refused_with_a_remedy() {
    let cases = [
        ("block", "block=1M"),
        ("size=1M", "block, width"),
        ("block=5000", "multiples of 4K"),
        ("block=256M", "multiples of 4K"),
        ("block=1G", "K or M"),
        ("width=0", "from 1"),
        ("width=-1", "from 1"),
        ("width=+1", "from 1"),
        ("width=70000", "from 1"),
        ("first=here", "hashed, local"),
        ("first=+1", "hashed, local"),
        ("replicas=two", "number"),
        ("width=1 width=2", "twice"),
    ];
    for (text, remedy) in cases {
        let error = text.parse::<Template>().expect_err(text);
        assert!(error.0.contains(remedy), "{text}: {error}");
    }
    let two: Template = "replicas=2".parse().expect("a number");
    assert!(two.check(&uniform(3)).is_err());
}

#[test]
fn default_leaves_a_field_open_again() {
    let mut template: Template = "block=1M width=all first=3".parse().expect("a template");
    assert_eq!(template.to_string(), "block=1M width=all first=3");
    template.set(Field::Block, "default").expect("set");
    template.set(Field::First, "default").expect("set");
    assert_eq!(template.to_string(), "width=all");
}
