//! The explorer: access patterns measured through different numbers of I/O nodes of real deployments.

use bivouac_tests::{Finished, Network, Site, children, eventually, skipped_without_root};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A directory of the backend, in memory.
struct Backend(PathBuf);

impl Backend {
    fn new(site: &Site) -> Backend {
        let directory = PathBuf::from("/dev/shm").join(site.name("explored"));
        fs::create_dir_all(&directory).expect("a directory");
        Backend(directory.canonicalize().expect("a path"))
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("text")
    }

    /// Everything in it, by name.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("a directory").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn phase(operation: &str, layout: &str, spatiality: &str) -> Value {
    let mut phase = json!({ "operation": operation, "layout": layout, "spatiality": spatiality, "request": 16384,
        "total": 1 << 20, "stonewall": 20 });
    if operation == "mixed" {
        phase["read_share"] = json!(0.5);
    }
    phase
}

fn pattern(name: &str, nodes: u32, processes: u32, phases: &[Value]) -> Value {
    json!({ "name": name, "nodes": nodes, "processes": processes, "phases": phases })
}

/// Writes a patterns file.
fn patterns(site: &Site, patterns: &[Value]) -> PathBuf {
    let path = site.path("patterns.json");
    fs::write(&path, json!({ "version": 1, "patterns": patterns }).to_string()).expect("written");
    path
}

fn words<'a>(name: &'a str, patterns: &'a Path, out: &'a Path, options: &[&'a str]) -> Vec<&'a str> {
    let text = |path: &'a Path| path.to_str().expect("text");
    [&["explore", "run", name, text(patterns), "--out", text(out)][..], options].concat()
}

fn explore(site: &Site, name: &str, patterns: &Path, out: &Path, options: &[&str]) -> Finished {
    site.bivouac(words(name, patterns, out, options))
}

fn lines(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out).expect("results");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn runs(lines: &[Value]) -> Vec<(String, u64, u64)> {
    let runs = lines.iter().filter(|line| line["kind"] == "run");
    let number = |line: &Value, field: &str| line[field].as_u64().expect("a number");
    runs.map(|line| {
        let name = line["pattern"].as_str().expect("a name").to_owned();
        (name, number(line, "io_nodes"), number(line, "repetition"))
    })
    .collect()
}

/// How many I/O nodes there are.
fn io_nodes(site: &Site, name: &str) -> Value {
    let shown = site.bivouac(["forward", name, "--json"]).ok();
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    shown["io_nodes"].as_array().expect("a list").iter().map(|node| node["server"].clone()).collect()
}

#[test]
fn each_pattern_is_measured_with_each_number_of_io_nodes_and_verified() {
    let site = Site::new("explore");
    let backend = Backend::new(&site);
    fs::create_dir(backend.0.join("sub")).expect("made");
    let name = site.up_with(2, &["--forward", backend.text(), "--io-nodes", "1", "--assign", "file"]);
    let before = io_nodes(&site, &name);
    let all = [
        pattern("own", 1, 2, &[phase("write", "own", "contiguous"), phase("read", "own", "contiguous")]),
        pattern("shared", 1, 4, &[phase("write", "shared", "strided"), phase("mixed", "shared", "random")]),
        pattern("random", 1, 2, &[phase("read", "own", "random")]),
    ];
    let (file, out) = (patterns(&site, &all), site.path("results"));
    let options = ["--io-nodes", "2,0,1", "--repetitions", "2", "--seed", "7", "--directory", "sub", "-v"];
    let done = explore(&site, &name, &file, &out, &options);
    assert!(done.err.contains("page caches are not dropped before reads"), "{}", done.err);
    assert_eq!(done.err.matches("/s (").count(), 18, "{}", done.err);
    done.ok();
    let lines = lines(&out);
    let first = &lines[0];
    assert_eq!(first["kind"], "exploration");
    assert_eq!(
        (&first["io_nodes"], &first["seed"], &first["file_system"]),
        (&json!([0, 1, 2]), &json!(7), &json!("tmpfs"))
    );
    assert_eq!(first["directory"], json!(format!("{}/sub", backend.text())));
    assert_eq!(
        (&first["scheduler"], &first["assign"], first["nodes"].as_array().map(Vec::len)),
        (&json!("to"), &json!("file"), Some(1))
    );
    assert_eq!(first["patterns"][1]["phases"][1]["read_share"], json!(0.5));
    let mut done = runs(&lines);
    let orders: Vec<_> = lines[1..].iter().map(|line| line["order"].as_u64().expect("a number")).collect();
    assert!(orders.iter().copied().eq(0..18), "{orders:?}");
    // In each repetition, everything once, and not in order.
    assert!(done[..9].iter().all(|(_, _, repetition)| *repetition == 0));
    assert!(!done[..9].is_sorted());
    done.sort();
    done.dedup();
    assert_eq!(done.len(), 18);
    for line in &lines[1..] {
        let pattern = all.iter().find(|pattern| pattern["name"] == line["pattern"]).expect("is there");
        let phases = line["phases"].as_array().expect("phases");
        let bytes = (1u64 << 20) * phases.len() as u64;
        assert_eq!(phases.len(), pattern["phases"].as_array().expect("phases").len());
        assert_eq!(
            (&line["bytes"], &line["requests"], &line["verified"]),
            (&json!(bytes), &json!(bytes / 16384), &json!(true)),
            "{line}"
        );
        let (bandwidth, seconds) =
            (line["bandwidth"].as_f64().expect("one"), line["seconds"].as_f64().expect("one"));
        assert!(seconds > 0.0 && (bandwidth * seconds / bytes as f64 - 1.0).abs() < 1e-6, "{line}");
        if line["io_nodes"] == 0 {
            assert!(line["requests_in"].is_null() && line["bytes_out"].is_null(), "{line}");
        } else {
            // Exactly what the measured phases moved: neither what was prepared, nor what was read back.
            assert_eq!(
                (&line["bytes_in"], &line["requests_in"]),
                (&line["bytes"], &line["requests"]),
                "{line}"
            );
            assert!(line["requests_out"].as_u64() <= line["requests_in"].as_u64(), "{line}");
        }
    }
    assert_eq!(io_nodes(&site, &name), before);
    assert_eq!(
        (backend.names(), fs::read_dir(backend.0.join("sub")).expect("there").count()),
        (vec!["sub".to_owned()], 0)
    );
}

#[test]
fn processes_on_several_nodes_work_together() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(3);
    let site = Site::new("explore-nodes");
    let backend = Backend::new(&site);
    let name = net.deploy(&site, &["--forward", backend.text()]);
    let all = [
        pattern("two", 2, 4, &[phase("write", "shared", "strided"), phase("read", "shared", "contiguous")]),
        pattern("one", 1, 2, &[phase("write", "own", "contiguous")]),
    ];
    let (file, out) = (patterns(&site, &all), site.path("results"));
    let hosts = [net.names[2].as_str(), net.names[0].as_str()].join(",");
    explore(&site, &name, &file, &out, &["--io-nodes", "0,2", "--repetitions", "1", "--hosts", &hosts]).ok();
    let lines = lines(&out);
    assert_eq!(lines[0]["nodes"], json!([net.names[2], net.names[0]]));
    assert_eq!(runs(&lines).len(), 4, "{lines:?}");
    assert!(
        lines[1..].iter().all(|line| line["verified"] == true && line["bytes"].as_u64() >= Some(1 << 20))
    );
    assert_eq!(backend.names(), Vec::<String>::new());
    let refused =
        explore(&site, &name, &file, &site.path("other"), &["--io-nodes", "1", "--hosts", &net.names[0]]);
    refused.fails(65, &["pattern \"two\" takes 2 nodes, and there are 1", "--nodes N"]);
    explore(&site, &name, &file, &out, &["--io-nodes", "1", "--hosts", "nobody"])
        .fails(65, &["\"nobody\" is no host"]);
}

/// Writes for a long time, if nobody ends it.
fn long(name: &str) -> Value {
    let mut long = phase("write", "own", "contiguous");
    long["think"] = json!(0.5);
    long["stonewall"] = json!(60);
    long["total"] = json!(16 << 20);
    pattern(name, 1, 2, &[long])
}

#[test]
fn an_interrupted_exploration_leaves_nothing_and_goes_on_later() {
    let site = Site::new("explore-interrupted");
    let backend = Backend::new(&site);
    let name = site.up_with(2, &["--forward", backend.text(), "--io-nodes", "1"]);
    let before = io_nodes(&site, &name);
    let out = site.path("results");
    let short = [pattern("short", 1, 2, &[phase("write", "own", "contiguous")]), long("long")];
    let file = patterns(&site, &short);
    let options = ["--io-nodes", "0,2", "--repetitions", "2"];
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let mut command = site.command(words(&name, &file, &out, &options));
        bivouac_tests::default_signals(&mut command);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        working(&backend, child.id() as i32);
        Site::kill(child.id() as i32, rustix::process::Signal::from_named_raw(signal).expect("a signal"));
        let ended = child.wait_with_output().expect("ends");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(code), "{said}");
        assert_eq!(backend.names(), Vec::<String>::new(), "{said}");
        assert_eq!(io_nodes(&site, &name), before, "{said}");
    }
    let so_far = runs(&lines(&out)).len();
    assert!(so_far < 4);
    // What was cut, as by a kill, is repeated. The long one is shorter now: but that is another exploration.
    let mut text = fs::read_to_string(&out).expect("results");
    text.push_str("{\"kind\":\"run\",\"pattern\":\"sho");
    fs::write(&out, &text).expect("written");
    let shorter = [short[0].clone(), pattern("long", 1, 2, &[phase("write", "own", "contiguous")])];
    let other = patterns(&site, &shorter);
    explore(&site, &name, &other, &out, &options).fails(65, &["an exploration with other patterns"]);
    explore(&site, &name, &other, &site.path("patterns.json"), &options).fails(65, &["no file of results"]);
    assert_eq!(fs::read_to_string(&out).expect("results"), text);
    // A file that a whole exploration of the short ones has left, cut after the first run.
    let whole = site.path("whole");
    explore(&site, &name, &other, &whole, &options).ok();
    let kept: Vec<String> =
        fs::read_to_string(&whole).expect("results").lines().take(2).map(str::to_owned).collect();
    fs::write(&whole, kept.join("\n") + "\n{\"kind\":\"run\"").expect("written");
    let again = explore(&site, &name, &other, &whole, &options);
    assert!(
        again.err.contains("1 of 8 runs are done already") && again.err.contains("was cut"),
        "{}",
        again.err
    );
    again.ok();
    let lines = lines(&whole);
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["kind"].as_str()).collect();
    assert_eq!(kinds[..4], ["exploration", "run", "continued", "run"]);
    let mut done = runs(&lines);
    done.sort();
    done.dedup();
    assert_eq!((done.len(), lines.len()), (8, 10));
    explore(&site, &name, &other, &whole, &["--io-nodes", "0,1", "--repetitions", "2"])
        .fails(65, &["other numbers of I/O nodes"]);
    explore(&site, &name, &other, &whole, &["--io-nodes", "0,2", "--seed", "3"]).fails(65, &["other seed"]);
}

/// The processes of the load, once there are two of them and they work. (Between two runs there are none.)
fn working(backend: &Backend, explorer: i32) -> Vec<i32> {
    let mut workers = Vec::new();
    let works = || {
        let first = |directory: PathBuf| Some(fs::read_dir(directory).ok()?.next()?.ok()?.path());
        let run = first(backend.0.clone()).and_then(first);
        workers = children(explorer).into_iter().flat_map(children).collect();
        workers.len() == 2
            && run.is_some_and(|run| fs::metadata(run.join("0.1")).is_ok_and(|file| file.len() >= 32768))
    };
    eventually("processes work", works);
    workers
}

#[test]
fn an_exploration_that_is_killed_leaves_no_process_and_is_made_good_by_the_next_one() {
    let site = Site::new("explore-killed");
    let backend = Backend::new(&site);
    let name = site.up_with(2, &["--forward", backend.text(), "--io-nodes", "1"]);
    let before = io_nodes(&site, &name);
    let (file, out) = (patterns(&site, &[long("long")]), site.path("results"));
    let mut command = site.command(words(&name, &file, &out, &["--io-nodes", "2", "--repetitions", "1"]));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs");
    let workers = working(&backend, child.id() as i32);
    explore(&site, &name, &file, &site.path("x"), &["--io-nodes", "2"])
        .fails(65, &["is being explored already"]);
    Site::kill(child.id() as i32, rustix::process::Signal::KILL);
    child.wait().expect("ends");
    eventually("all processes end", || !workers.iter().any(|pid| Site::is_alive(*pid)));
    eventually("all files are gone", || backend.names().is_empty());
    assert_ne!(io_nodes(&site, &name), before);
    let short = patterns(&site, &[pattern("short", 1, 1, &[phase("write", "own", "contiguous")])]);
    explore(&site, &name, &short, &site.path("short"), &["--io-nodes", "2,0", "--repetitions", "1"]).ok();
    assert_eq!(io_nodes(&site, &name), before);
    // What somebody has set since is left alone.
    site.bivouac(["forward", &name, "--io-nodes", "2"]).ok();
    let now = io_nodes(&site, &name);
    explore(&site, &name, &short, &site.path("again"), &["--io-nodes", "0", "--repetitions", "1"]).ok();
    assert_eq!(io_nodes(&site, &name), now);
}

#[test]
fn a_process_or_a_node_that_dies_fails_its_run_alone() {
    let site = Site::new("explore-dies");
    let backend = Backend::new(&site);
    let name = site.up_with(1, &["--forward", backend.text()]);
    let all = [long("long"), pattern("short", 1, 2, &[phase("write", "shared", "contiguous")])];
    let file = patterns(&site, &all);
    for which in ["first process", "last process", "node"] {
        let out = site.path(which);
        let mut command = site.command(words(&name, &file, &out, &["--io-nodes", "1", "--repetitions", "1"]));
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("runs");
        let workers = working(&backend, child.id() as i32);
        let victim = match which {
            "node" => children(child.id() as i32)[0],
            "first process" => workers[0],
            _ => *workers.last().expect("there are two"),
        };
        let killed = std::time::Instant::now();
        Site::kill(victim, rustix::process::Signal::KILL);
        Finished::of(child.wait_with_output().expect("ends")).fails(71, &["has ended"]);
        // Nobody waits for the others to come to the end of the phase, which takes a minute.
        assert!(killed.elapsed().as_secs() < 30, "{which}: {:?}", killed.elapsed());
        let lines = lines(&out);
        assert_eq!((runs(&lines).len(), lines.len()), (1, 3), "{lines:?}");
        assert_eq!(backend.names(), Vec::<String>::new());
        assert!(!workers.iter().any(|pid| Site::is_alive(*pid)));
    }
}

#[test]
fn a_wrong_byte_is_found_and_others_go_on() {
    let site = Site::new("explore-wrong");
    let backend = Backend::new(&site);
    let name = site.up_with(1, &["--forward", backend.text()]);
    let mut slow = phase("read", "own", "contiguous");
    slow["think"] = json!(0.05);
    let all =
        [pattern("read", 1, 1, &[slow]), pattern("write", 1, 1, &[phase("write", "shared", "contiguous")])];
    let (file, out) = (patterns(&site, &all), site.path("results"));
    for io_nodes in ["0", "1"] {
        let _ = fs::remove_file(&out);
        let mut command =
            site.command(words(&name, &file, &out, &["--io-nodes", io_nodes, "--repetitions", "1"]));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        let place = backend.0.clone();
        let prepared = move || -> Option<File> {
            let first = |directory: PathBuf| Some(fs::read_dir(directory).ok()?.next()?.ok()?.path());
            let directory = first(first(place.clone())?)?;
            // The other pattern's process writes nothing before it.
            let file = File::options().read(true).write(true).open(directory.join("0.0")).ok()?;
            let is_slow = file.metadata().ok()?.len() == 1 << 20;
            is_slow.then_some(file)
        };
        // It reads for three seconds.
        let at = (1 << 20) - 77;
        let flipped = std::cell::Cell::new(false);
        eventually("the file is there", || {
            if let Some(file) = prepared() {
                let mut byte = [0];
                if file.read_exact_at(&mut byte, at).is_ok() && file.write_all_at(&[byte[0] ^ 4], at).is_ok()
                {
                    // The file of the other pattern is gone in a moment; this one stays.
                    std::thread::sleep(std::time::Duration::from_millis(500));
                    flipped.set(prepared().is_some());
                }
            }
            flipped.get()
        });
        let ended = Finished::of(child.wait_with_output().expect("ends"));
        ended.fails(71, &["is wrong at byte", "1 run failed"]);
        let lines = lines(&out);
        let failed: Vec<&Value> = lines.iter().filter(|line| line["kind"] == "failed").collect();
        assert!(failed.iter().any(|line| line["pattern"] == "read"), "{lines:?}");
        let error = failed[0]["error"].as_str().expect("text");
        assert!(
            error.contains(&format!("0.0 is wrong at byte {at}")) && error.contains("process 0"),
            "{error}"
        );
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(backend.names(), Vec::<String>::new());
    }
}

#[test]
fn a_run_that_fails_is_noted_with_its_reason() {
    if skipped_without_root("mounting a small file system") {
        return;
    }
    let site = Site::new("explore-failed");
    let directory = site.path("scratch");
    fs::create_dir(&directory).expect("made");
    let small = bivouac_tests::staging::Small::mount(&directory, 4);
    let name = site.up_with(1, &["--forward", directory.to_str().expect("text")]);
    let mut large = phase("write", "own", "contiguous");
    large["total"] = json!(8 << 20);
    let all =
        [pattern("fits", 1, 2, &[phase("write", "shared", "contiguous")]), pattern("large", 1, 2, &[large])];
    let (file, out) = (patterns(&site, &all), site.path("results"));
    explore(&site, &name, &file, &out, &["--io-nodes", "0,1", "--repetitions", "2"])
        .fails(71, &["4 runs failed", "No space left on device"]);
    let lines = lines(&out);
    assert_eq!((runs(&lines).len(), lines.len()), (4, 9), "{lines:?}");
    assert!(lines.iter().all(|line| line["kind"] != "failed" || line["pattern"] == "large"));
    assert_eq!(fs::read_dir(&directory).expect("there").count(), 0);
    drop(small);
}

#[test]
fn what_cannot_be_explored_is_told_why() {
    let site = Site::new("explore-bad");
    let backend = Backend::new(&site);
    let name = site.up(1);
    let good = pattern("x", 1, 1, &[phase("write", "own", "contiguous")]);
    let (file, out) = (patterns(&site, std::slice::from_ref(&good)), site.path("results"));
    explore(&site, &name, &file, &out, &["--io-nodes", "1"])
        .fails(65, &["forwards no directory", "bivouac forward"]);
    site.bivouac(["forward", &name, backend.text()]).ok();
    explore(&site, &name, &file, &out, &["--io-nodes", "0,2"])
        .fails(65, &["2 servers cannot forward: there are 1"]);
    explore(&site, &name, &file, &out, &["--io-nodes", "1", "--directory", "../x"])
        .fails(65, &["is not below"]);
    explore(&site, &name, &file, &out, &["--io-nodes", "x"]).fails(2, &["--io-nodes"]);
    explore(&site, "nobody", &file, &out, &["--io-nodes", "1"]).fails(64, &["no deployment named"]);
    explore(&site, &name, &site.path("none"), &out, &["--io-nodes", "1"])
        .fails(65, &["none", "No such file"]);
    explore(&site, &name, &file, &out, &["--io-nodes", "1", "--repetitions", "1", "--directory", "missing"])
        .fails(71, &["cannot make", "missing"]);
    let with = |name: &str, value: Value| {
        let mut phase = phase("write", "own", "contiguous");
        phase[name] = value;
        phase
    };
    for (change, place) in [
        (("processes", json!(0)), "patterns[0].processes: 0 is no whole number"),
        (("phases", json!([{ "operation": "eat" }])), "patterns[0].phases[0].operation"),
        (("processes", json!(1_000_000_000_000u64)), "patterns[0].processes: 1000000000000 is"),
        (("nodes", json!(1e300)), "patterns[0].nodes: 1e+300 is"),
        (("name", json!("x".repeat(100_000))), "patterns[0].name: has 1 to"),
        (
            ("phases", json!([with("total", json!(u64::MAX))])),
            "patterns[0].phases[0].total: 18446744073709551615 is",
        ),
        (("phases", json!([with("request", json!(-1))])), "patterns[0].phases[0].request: -1 is"),
        (
            ("phases", json!([with("stonewall", json!(1e12))])),
            "patterns[0].phases[0].stonewall: 1000000000000.0 is",
        ),
    ] {
        let mut bad = good.clone();
        bad[change.0] = change.1;
        let file = patterns(&site, &[bad]);
        explore(&site, &name, &file, &out, &["--io-nodes", "1"]).fails(65, &["patterns.json", place]);
    }
    fs::write(&file, "{\"version\": 1, \"patterns\": [").expect("written");
    explore(&site, &name, &file, &out, &["--io-nodes", "1"]).fails(65, &["patterns.json: line 1", "no JSON"]);
    // Nesting without end, bytes that are no text, and nothing at all.
    for bad in [&b"[".repeat(1 << 20)[..], b"\xff\xfe{", b""] {
        fs::write(&file, bad).expect("written");
        explore(&site, &name, &file, &out, &["--io-nodes", "1"]).fails(65, &["patterns.json", ""]);
    }
    fs::write(&file, "{\"version\": 9}").expect("written");
    explore(&site, &name, &file, &out, &["--io-nodes", "1"]).fails(65, &["version: 9 is not known", "newer"]);
}

#[test]
fn the_papers_patterns_are_printed_and_can_be_run() {
    let site = Site::new("explore-paper");
    let printed = |options: &[&str]| -> Value {
        let text = site.bivouac([&["explore", "patterns"][..], options].concat()).ok();
        serde_json::from_str(&text).expect("JSON")
    };
    let count = |file: &Value| file["patterns"].as_array().map(Vec::len);
    assert_eq!((count(&printed(&["--table2"])), count(&printed(&["--all"]))), (Some(20), Some(189)));
    site.bivouac(["explore", "patterns"]).fails(2, &["--table2"]);
    site.bivouac(["explore", "patterns", "--table2", "--stonewall", "0"]).fails(2, &["--stonewall"]);
    let file = site.path("table2.json");
    let path = file.to_str().expect("text");
    let scale = ["--nodes", "1", "--processes", "2", "--total", "16M", "--stonewall", "1", "--buffered"];
    site.bivouac([&["explore", "patterns", "--table2", "--output", path][..], &scale].concat()).ok();
    let backend = Backend::new(&site);
    let name = site.up_with(1, &["--forward", backend.text()]);
    let out = site.path("results");
    explore(&site, &name, &file, &out, &["--io-nodes", "1", "--repetitions", "1", "--no-verify"]).ok();
    let lines = lines(&out);
    assert_eq!(runs(&lines).len(), 20);
    assert!(
        lines[1..].iter().all(|line| line["verified"] == false && line["bytes"].as_u64() >= Some(12 << 20)),
        "{lines:?}"
    );
}

/// A program in the place of Python.
fn python(site: &Site, script: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = site.path("python");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    path.to_string_lossy().into_owned()
}

#[test]
fn the_analysis_is_called_or_it_is_said_how_it_is_installed() {
    let site = Site::new("explore-python");
    let with = |python: &str, words: &[&str]| {
        let mut command = site.command(words);
        command.env("BIVOUAC_PYTHON", python);
        bivouac_tests::finish(command)
    };
    let from = ["explore", "patterns", "--from", "a log", "--output", "o"];
    let report = ["explore", "report", "r1", "r2", "--html", "h", "--csv", "c"];
    with(&python(&site, "exit 3"), &from)
        .fails(65, &["does not have the package bivouac_analysis", "pip install ./python"]);
    with("/no/python", &report).fails(65, &["cannot run /no/python", "BIVOUAC_PYTHON"]);
    let echo = python(&site, "[ \"$2\" = -c ] && exit 0; for word; do echo \"$word\"; done; exit ${CODE:-0}");
    assert_eq!(with(&echo, &from).ok(), "-P\n-m\nbivouac_analysis\npatterns-from\na log\n--output\no\n");
    assert_eq!(
        with(&echo, &report).ok(),
        "-P\n-m\nbivouac_analysis\nexplore-report\nr1\nr2\n--html\nh\n--csv\nc\n"
    );
    assert_eq!(
        with(&echo, &["advise", "a log", "--with", "r1", "--with", "r2", "--json"]).ok(),
        "-P\n-m\nbivouac_analysis\nadvise\na log\n--with\nr1\n--with\nr2\n--json\n"
    );
    let fails = python(&site, "[ \"$2\" = -c ] && exit 0; echo 'r1: no results' >&2; exit 1");
    with(&fails, &report).fails(65, &["r1: no results"]);
}
