//! What is written, and what is found again.

use super::*;
use crate::paper;

fn header() -> Header {
    Header {
        version: VERSION,
        deployment: "job".into(),
        directory: "/lustre/me".into(),
        file_system: "ext4".into(),
        nodes: vec!["n1".into()],
        io_nodes: vec![0, 1],
        repetitions: 2,
        seed: 7,
        started: 1.5,
        scheduler: "to".into(),
        assign: "file".into(),
        patterns: paper::table2(&Default::default()),
    }
}

fn entry(repetition: u32) -> Entry {
    Entry { pattern: 0, io_nodes: 1, repetition, order: 3 }
}

fn line(repetition: u32, counts: Option<Counts>) -> Line {
    let phases = vec![PhaseResult::new(Operation::Write, 2.0, 100, 10)];
    Line::run(
        &entry(repetition),
        &header().patterns[0],
        2.5,
        Measured { load: 0.5, phases, counts, dropped: None },
        true,
    )
}

#[test]
fn an_exploration_goes_on_where_it_was_cut() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("results");
    let pattern = &header().patterns[0];
    let mut results = Results::open(&path).expect("opens");
    assert!(results.before.is_none() && !results.was_cut);
    results.begin(header()).expect("written");
    results.add(&line(0, None)).expect("written");
    results.add(&Line::failed(&entry(1), pattern, 3.0, "why".into())).expect("written");
    assert!(Results::open(&path).expect_err("is refused").to_string().contains("another exploration writes"));
    drop(results);
    let whole = std::fs::read_to_string(&path).expect("text");
    std::fs::write(&path, format!("{whole}{{\"kind\":\"run\",\"pat")).expect("written");
    let mut results = Results::open(&path).expect("opens");
    assert!(results.was_cut && results.has(&entry(0), pattern) && !results.has(&entry(2), pattern));
    assert!(!results.has(&entry(1), pattern), "what failed is done again");
    results.begin(Header { started: 9.0, repetitions: 3, ..header() }).expect("the same");
    results.add(&line(2, None)).expect("written");
    let text = std::fs::read_to_string(&path).expect("text");
    assert!(text.starts_with(&whole), "{text}");
    let kinds: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["kind"].to_string())
        .collect();
    assert_eq!(kinds.join(" "), r#""exploration" "run" "failed" "continued" "run""#);
}

#[test]
fn another_exploration_is_refused_and_the_file_stays_as_it_is() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("results");
    Results::open(&path).expect("opens").begin(header()).expect("written");
    let before = std::fs::read(&path).expect("reads");
    let other = [
        ("patterns", Header { patterns: paper::all(&Default::default()), ..header() }),
        ("seed", Header { seed: 8, ..header() }),
        ("numbers of I/O nodes", Header { io_nodes: vec![0, 2], ..header() }),
    ];
    for (what, other) in other {
        let error = Results::open(&path).expect("opens").begin(other).expect_err("is refused").to_string();
        assert!(error.ends_with(what), "{error}");
    }
    assert_eq!(std::fs::read(&path).expect("reads"), before);
    let newer = String::from_utf8_lossy(&before).replacen("\"version\":1", "\"version\":2,\"new\":1", 1);
    for (text, expected) in [
        ("not ours", "no file of results"),
        ("not ours\n", "line 1: this is no file of results"),
        ("{}\n", "line 1: this is no file of results"),
        (&newer, "newer version"),
        (&newer.replacen("\"deployment\"", "\"name\"", 1), "newer version"),
        (&format!("{}nonsense\n{{}}\n", String::from_utf8_lossy(&before)), "line 2: this is no result"),
    ] {
        std::fs::write(&path, text).expect("written");
        let error = Results::open(&path).expect_err("is refused").to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(std::fs::read_to_string(&path).expect("reads"), text);
    }
}

#[test]
fn lines_have_the_fields_that_are_documented() {
    let counts = Counts { requests_in: 12, requests_out: 3, bytes_in: 100, bytes_out: 99 };
    let run = serde_json::to_string(&line(3, Some(counts))).expect("JSON");
    assert_eq!(
        run,
        r#"{"kind":"run","pattern":"A","io_nodes":1,"repetition":3,"order":3,"begun":2.5,"load":0.5,"seconds":2.0,"bytes":100,"requests":10,"bandwidth":50.0,"phases":[{"operation":"write","seconds":2.0,"bytes":100,"requests":10,"bandwidth":50.0}],"requests_in":12,"requests_out":3,"bytes_in":100,"bytes_out":99,"verified":true}"#
    );
    assert!(serde_json::to_string(&line(3, None)).expect("JSON").contains(r#""requests_in":null"#));
    let first = serde_json::to_string(&Line::Exploration(header())).expect("JSON");
    assert!(first.starts_with(r#"{"kind":"exploration","version":1,"deployment":"job","directory":"/lustre/me","file_system":"ext4","nodes":["n1"],"io_nodes":[0,1],"repetitions":2,"seed":7,"started":1.5,"scheduler":"to","assign":"file","patterns":[{"name":"A","nodes":32,"#), "{first}");
}

#[test]
fn what_was_measured_is_read_while_it_is_written() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("results");
    let mut results = Results::open(&path).expect("opens");
    results.begin(header()).expect("written");
    results.add(&line(0, None)).expect("written");
    results.add(&line(0, None)).expect("written");
    results.add(&Line::Continued { started: 2.0 }).expect("written");
    results.add(&line(1, None)).expect("written");
    results.add(&Line::failed(&entry(2), &header().patterns[0], 3.0, "why".into())).expect("written");
    let whole = std::fs::read_to_string(&path).expect("text");
    let recorded = read(&path).expect("reads");
    assert_eq!((recorded.runs.len(), recorded.failed.len(), recorded.was_cut), (2, 1, false));
    assert_eq!(recorded.header, header());
    std::fs::write(&path, format!("{whole}{{\"kind\":\"run\",\"pat")).expect("written");
    let cut = read(&path).expect("reads");
    assert!(cut.was_cut && cut.runs == recorded.runs);
}

#[test]
fn results_that_cannot_be_are_refused_with_their_line() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("results");
    let text = |line: &Line| serde_json::to_string(line).expect("JSON") + "\n";
    let (first, run) = (text(&Line::Exploration(header())), text(&line(0, None)));
    let mut twice = header();
    twice.patterns[1].name = "A".into();
    for (text, expected) in [
        (String::new(), "has no results"),
        (first[..40].to_owned(), "has no results"),
        ("not ours".into(), "no file of results"),
        (first.replacen("\"version\":1", "\"version\":2", 1), "line 1: this is of a newer version"),
        (text(&Line::Exploration(twice)), "line 1: the pattern \"A\" is there twice"),
        (format!("{first}{run}nonsense\n{run}"), "line 3: this is no result"),
        (
            format!("{first}{}", run.replace("\"pattern\":\"A\"", "\"pattern\":\"?\"")),
            "line 2: there is no pattern \"?\"",
        ),
        (
            format!("{first}{}", run.replace("\"io_nodes\":1", "\"io_nodes\":3")),
            "line 2: 3 I/O nodes are not",
        ),
        (
            format!("{first}{}", run.replace("\"bandwidth\":50.0", "\"bandwidth\":-1")),
            "line 2: -1 is no bandwidth",
        ),
    ] {
        std::fs::write(&path, text).expect("written");
        let error = read(&path).expect_err("is refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = read(&place.path().join("none")).expect_err("is refused").to_string();
    assert!(error.starts_with("cannot read") && error.contains("No such file"), "{error}");
}
