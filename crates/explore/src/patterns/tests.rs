//! What is refused, and where the error says that it is.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn good() -> Value {
    json!({ "version": 1, "patterns": [ { "name": "A", "nodes": 2, "processes": 4, "phases": [
        { "operation": "write", "layout": "own", "spatiality": "contiguous", "request": 32768, "total": 4194304,
          "stonewall": 2.5, "direct": false, "fsync": true, "think": 0.0 },
        { "operation": "mixed", "layout": "shared", "spatiality": "random", "request": 512, "stonewall": 1,
          "total": null, "read_share": 0.25 } ] },
      { "name": "B", "nodes": 1, "processes": 1, "phases": [
        { "operation": "read", "layout": "shared", "spatiality": "strided", "request": 1, "total": 1 } ] } ] })
}

/// The error for the good file with one value changed; `None` as the value: the field is gone.
fn error(pointer: &str, value: Option<Value>) -> String {
    let mut file = good();
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    let parent = file.pointer_mut(parent).expect("is there");
    match (value, parent) {
        (Some(value), Value::Object(fields)) => _ = fields.insert(field.to_owned(), value),
        (Some(value), list) => list[field.parse::<usize>().expect("an index")] = value,
        (None, parent) => _ = parent.as_object_mut().expect("an object").remove(field),
    }
    parse(&file.to_string()).expect_err("is refused").to_string()
}

#[test]
fn a_good_file_is_read_and_written_as_it_was() {
    let patterns = parse(&good().to_string()).expect("is right");
    assert_eq!((patterns.len(), patterns[0].on_each_node(), patterns[0].phases.len()), (2, 2, 2));
    assert_eq!(patterns[0].phases[0].requests(4), Some(32));
    assert_eq!(patterns[0].phases[1].requests(4), None);
    assert_eq!(parse(&print(&patterns).expect("JSON")).expect("is right"), patterns);
}

#[test]
fn every_error_names_its_place() {
    let first = "/patterns/0/phases/0";
    let place = "patterns[0].phases[0]";
    let cases: Vec<(String, Option<Value>, String)> = vec![
        ("/version".into(), None, "version: is missing".into()),
        ("/version".into(), Some(json!(2)), "version: 2 is not known; this program knows version 1".into()),
        ("/version".into(), Some(json!("1")), "version: \"1\" is not known".into()),
        ("/patterns".into(), None, "patterns: is missing".into()),
        ("/patterns".into(), Some(json!([])), "patterns: is empty".into()),
        ("/patterns".into(), Some(json!({})), "patterns: is an object, and should be a list".into()),
        ("/patterns/1".into(), Some(json!(7)), "patterns[1]: is a number, and should be an object".into()),
        ("/more".into(), Some(json!(1)), "more: is not known".into()),
        ("/patterns/0/node".into(), Some(json!(1)), "patterns[0].node: is not known".into()),
        (
            "/patterns/1/name".into(),
            Some(json!("A")),
            "patterns[1].name: \"A\" is the name of patterns[0], too".into(),
        ),
        ("/patterns/0/name".into(), Some(json!("")), "patterns[0].name: has 1 to".into()),
        ("/patterns/0/name".into(), Some(json!("a\nb")), "patterns[0].name: has 1 to".into()),
        ("/patterns/0/nodes".into(), Some(json!(0)), "patterns[0].nodes: 0 is no whole number from 1".into()),
        (
            "/patterns/0/processes".into(),
            Some(json!(0)),
            "patterns[0].processes: 0 is no whole number from 1".into(),
        ),
        ("/patterns/0/processes".into(), Some(json!(-4)), "patterns[0].processes: -4 is".into()),
        ("/patterns/0/processes".into(), Some(json!(1e30)), "patterns[0].processes: 1e+30 is".into()),
        (
            "/patterns/0/processes".into(),
            Some(json!(3)),
            "patterns[0].processes: 3 is no multiple of the 2 nodes".into(),
        ),
        ("/patterns/0/phases".into(), Some(json!([])), "patterns[0].phases: is empty".into()),
        (
            format!("{first}/operation"),
            Some(json!("append")),
            format!("{place}.operation: \"append\" is none of write, read, mixed"),
        ),
        (format!("{first}/layout"), Some(json!(1)), format!("{place}.layout: is a number")),
        (format!("{first}/spatiality"), None, format!("{place}.spatiality: is missing")),
        (format!("{first}/request"), Some(json!(0)), format!("{place}.request: 0 is no whole number")),
        (format!("{first}/request"), Some(json!(1.5)), format!("{place}.request: 1.5 is no whole number")),
        (
            format!("{first}/request"),
            Some(json!(u64::MAX)),
            format!("{place}.request: 18446744073709551615 is"),
        ),
        (
            format!("{first}/request"),
            Some(json!(8388608)),
            format!("{place}.request: 8388608 bytes are more than the total of 4194304"),
        ),
        (
            format!("{first}/request"),
            Some(json!(2097152)),
            format!(
                "{place}.total: 4194304 bytes are too few for a request of each process, which takes 8388608"
            ),
        ),
        (
            format!("{first}/total"),
            Some(json!(1_000_000_000_000_000_000u64)),
            format!("{place}.total: 1000000000000000000 is no whole number from 1 to"),
        ),
        (format!("{first}/stonewall"), Some(json!(0)), format!("{place}.stonewall: no time")),
        (
            format!("{first}/stonewall"),
            Some(json!(-1)),
            format!("{place}.stonewall: -1 is no number of seconds"),
        ),
        (format!("{first}/stonewall"), Some(json!(1e9)), format!("{place}.stonewall: 1000000000.0 is")),
        (
            format!("{first}/read_share"),
            Some(json!(0.5)),
            format!("{place}.read_share: only a mixed phase has one"),
        ),
        (
            format!("{first}/fsync"),
            Some(json!("yes")),
            format!("{place}.fsync: is a text, and should be true or false"),
        ),
        (format!("{first}/think"), Some(json!([])), format!("{place}.think: [] is no number of seconds")),
        (
            "/patterns/0/phases/1/read_share".into(),
            None,
            "patterns[0].phases[1].read_share: is missing".into(),
        ),
        (
            "/patterns/0/phases/1/read_share".into(),
            Some(json!(1.01)),
            "patterns[0].phases[1].read_share: 1.01 is no share".into(),
        ),
        (
            "/patterns/0/phases/1/stonewall".into(),
            None,
            "patterns[0].phases[1]: neither `total` nor `stonewall`".into(),
        ),
        (
            "/patterns/1/phases/0/direct".into(),
            Some(json!(true)),
            "patterns[1].phases[0].request: 1 is no multiple of 512".into(),
        ),
    ];
    for (pointer, value, expected) in cases {
        let said = error(&pointer, value);
        assert!(said.starts_with(&expected), "{pointer}: {said:?} does not begin with {expected:?}");
    }
}

#[test]
fn what_is_no_json_is_told_where() {
    for (text, place) in [("", "line 1, column 0"), ("{\n  \"version\": 1,\n  x }", "line 3, column 3")] {
        let said = parse(text).expect_err("is refused").to_string();
        assert!(said.starts_with(place) && said.contains("no JSON"), "{said}");
    }
    assert!(parse("[]").expect_err("is refused").to_string().starts_with("the file: is a list"));
    assert!(parse(&"[".repeat(100_000)).is_err());
}

proptest! {
    #[test]
    fn no_change_of_a_file_is_accepted_as_something_impossible(
        numbers in proptest::collection::vec(any::<u64>(), 5), seconds: f64,
    ) {
        let mut file = good();
        file["patterns"][0]["nodes"] = json!(numbers[0] % 5);
        file["patterns"][0]["processes"] = json!(numbers[1] >> (numbers[1] % 64));
        file["patterns"][0]["phases"][0]["request"] = json!(numbers[2] >> (numbers[2] % 64));
        file["patterns"][0]["phases"][0]["total"] = json!(numbers[3] >> (numbers[3] % 64));
        file["patterns"][0]["phases"][0]["stonewall"] = json!(seconds);
        if let Ok(patterns) = parse(&file.to_string()) {
            let (pattern, phase) = (&patterns[0], &patterns[0].phases[0]);
            prop_assert!(pattern.nodes > 0 && pattern.on_each_node() * pattern.nodes == pattern.processes);
            let requests = phase.requests(pattern.processes);
            prop_assert!(requests.is_none_or(|n| n > 0 && n * phase.request * u64::from(pattern.processes) <= TOTAL_MAX));
            prop_assert!(requests.is_some() || phase.stonewall.is_some_and(|s| s > 0.0));
        }
    }

    #[test]
    fn no_text_makes_reading_panic(text in "[\\[\\]{}\":,0-9a-z ]{0,200}") {
        let _ = parse(&text);
    }
}
