use super::super::functions::tests::table;
use super::super::{door, objects};
use super::*;

const START: usize = 0x10_0000;
const TABLE: usize = 0x20_0000;

/// Looks at functions laid one behind the other, each with so much padding behind it.
fn look(functions: &[(&[u8], &[u8])]) -> Found {
    let (mut code, mut ranges) = (Vec::new(), Vec::new());
    for (function, padding) in functions {
        let start = START + code.len();
        code.extend_from_slice(function);
        ranges.push(start..start + function.len());
        code.extend_from_slice(padding);
    }
    let table = table(TABLE, &ranges);
    let mut image = Image::default();
    image.add(START, &code);
    image.add(TABLE, &table);
    find(&image, &(START..START + code.len()), &Functions::new(&image, TABLE), |number| {
        number == 2 || number == 0
    })
}

/// `mov eax, 2`, `mov eax, 99`, `xor eax, eax`, `syscall`, `ret`, and a no-operation of six bytes.
const OPEN: &[u8] = &[0xb8, 2, 0, 0, 0];
const OTHER: &[u8] = &[0xb8, 99, 0, 0, 0];
const READ: &[u8] = &[0x31, 0xc0];
const CALL: &[u8] = &SYSCALL;
const RETURN: &[u8] = &[0xc3];
const NOTHING: &[u8] = &[0x66, 0x0f, 0x1f, 0x44, 0, 0];

fn function(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn the_instruction_that_loads_the_number_makes_room_for_a_jump() {
    let found = look(&[(&function(&[RETURN, OPEN, CALL, RETURN]), &[])]);
    let site = Site { moved: START + 1..START + 6, bytes: OPEN.to_vec(), padding: None };
    assert_eq!((found.sites, found.left), (vec![site], 0));
}

#[test]
fn calls_of_other_numbers_are_not_touched() {
    let later = function(&[OTHER, &[0x89, 0xc8, 0x89, 0xda], CALL, RETURN]);
    let found = look(&[(&function(&[OTHER, CALL, RETURN]), &[]), (&later, &[])]);
    // The second loads the number and then another register over it (`mov eax, ecx`): it may be any.
    assert_eq!((found.sites.len(), found.left), (0, 1));
    let known = function(&[OTHER, &[0x48, 0x89, 0xf2], CALL, RETURN]);
    let found = look(&[(&known, &[])]);
    assert_eq!((found.sites.len(), found.left), (0, 0));
}

#[test]
fn a_short_instruction_jumps_by_way_of_padding() {
    let found = look(&[(&function(&[READ, CALL, RETURN]), NOTHING), (RETURN, &[])]);
    let [site] = &found.sites[..] else { panic!("{found:?}") };
    assert_eq!((site.moved.clone(), site.padding), (START..START + 2, Some(START + 5)));
}

#[test]
fn padding_is_used_once_and_only_if_it_is_padding() {
    let two = function(&[READ, CALL, READ, CALL, RETURN]);
    let found = look(&[(&two, NOTHING), (RETURN, &[])]);
    assert_eq!((found.sites.len(), found.left), (1, 1));
    // Something else between the functions.
    let found = look(&[(&function(&[READ, CALL, RETURN]), &[0x90, 0x90, 0x90, 0x90, 0x50]), (RETURN, &[])]);
    assert_eq!((found.sites.len(), found.left), (0, 1));
    // A function that runs on into what lies behind it.
    let found = look(&[(&function(&[READ, CALL]), NOTHING), (RETURN, &[])]);
    assert_eq!((found.sites.len(), found.left), (0, 1));
    // Too far away.
    let long = function(&[READ, CALL, &[0x90; 200], RETURN]);
    let found = look(&[(&long, NOTHING), (RETURN, &[])]);
    assert_eq!((found.sites.len(), found.left), (0, 1));
}

#[test]
fn what_depends_on_its_place_is_left_alone() {
    // `lea rsi, [rip + 7]`; `je` over nothing; `call`; nothing before it at all.
    for before in [&[0x48, 0x8d, 0x35, 7, 0, 0, 0][..], &[0x0f, 0x84, 0, 0, 0, 0], &[0xe8, 0, 0, 0, 0], &[]] {
        let found = look(&[(&function(&[before, CALL, RETURN]), NOTHING), (RETURN, &[])]);
        assert_eq!((found.sites.len(), found.left), (0, 1), "{before:x?}");
    }
}

#[test]
fn bytes_within_an_instruction_are_no_call() {
    // `mov ecx, 0x050f`.
    let found = look(&[(&function(&[&[0xb9, 0x0f, 0x05, 0, 0], RETURN]), &[])]);
    assert_eq!((found.sites.len(), found.left), (0, 0));
    // Between functions it is not known what the bytes are.
    let found = look(&[(RETURN, CALL), (RETURN, &[])]);
    assert_eq!((found.sites.len(), found.left), (0, 1));
}

#[test]
fn a_function_with_something_unknown_is_left_alone() {
    let found = look(&[(&function(&[OPEN, CALL, &[0x06], RETURN]), &[])]);
    assert_eq!((found.sites.len(), found.left), (0, 1));
}

#[test]
fn the_libc_of_this_machine_is_understood() {
    for object in objects::of_libc() {
        let found = find(&object.image, &object.code, &object.functions(), door::concerns);
        assert!(found.sites.len() >= 15 && found.left * 5 <= found.sites.len(), "{}", found.left);
        for site in &found.sites {
            let at = |range| object.image.bytes(range).unwrap();
            assert_eq!(at(site.syscall()..site.syscall() + 2), SYSCALL);
            assert_eq!(at(site.moved.clone()), site.bytes);
        }
    }
}

#[test]
fn padding_within_a_function_is_used_unless_a_jump_leads_there() {
    let inside = |jump: &[u8]| function(&[READ, CALL, jump, RETURN, NOTHING, &[0x50; 200], RETURN]);
    let found = look(&[(&inside(&[0x74, 7]), &[])]);
    // (`je` leads behind the padding that is used.)
    assert_eq!(found.sites.iter().map(|site| site.padding).collect::<Vec<_>>(), [Some(START + 7)]);
    let found = look(&[(&inside(&[0x74, 1]), &[])]);
    assert_eq!((found.sites.len(), found.left), (0, 1));
}
