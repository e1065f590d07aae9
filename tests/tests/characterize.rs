//! Characterizations of storages: real processes in real directories.

use bivouac_tests::{Finished, Network, Site, children, eventually, finish, skipped_without_root};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// A directory in memory.
struct Memory(PathBuf);

impl Memory {
    fn new(site: &Site) -> Memory {
        let directory = PathBuf::from("/dev/shm").join(site.name("characterized"));
        fs::create_dir_all(&directory).expect("a directory");
        Memory(directory)
    }

    fn storage(&self) -> String {
        format!("shm={}", self.0.display())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Everything in a directory.
fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).expect("a directory").flatten().map(|entry| entry.path()).collect()
}

/// Small enough to take a moment.
const SMALL: [&str; 12] = [
    "--processes",
    "2",
    "--repetitions",
    "2",
    "--size",
    "512K",
    "--seconds",
    "5",
    "--files",
    "41,20",
    "--requests",
    "64K,4K",
];

fn words<'a>(storages: &'a [String], out: &'a Path, options: &[&'a str]) -> Vec<&'a str> {
    let storages: Vec<&str> = storages.iter().map(String::as_str).collect();
    [&["characterize"][..], &storages, &["--out", out.to_str().expect("text")], options].concat()
}

fn characterize(site: &Site, storages: &[String], out: &Path, options: &[&str]) -> Finished {
    site.bivouac(words(storages, out, options))
}

fn lines(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out).expect("results");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

fn number(line: &Value, field: &str) -> u64 {
    line[field].as_u64().unwrap_or_else(|| panic!("{field} is a number in {line}"))
}

fn positive(line: &Value, field: &str) -> f64 {
    line[field].as_f64().filter(|number| *number > 0.0).unwrap_or_else(|| panic!("{field} of {line}"))
}

/// How many lines there are with the same values of some fields.
fn counted(lines: &[&Value], fields: &[&str]) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for line in lines {
        let key: Vec<String> = fields.iter().map(|field| line[field].to_string()).collect();
        *counts.entry(key.join(" ")).or_default() += 1;
    }
    counts
}

/// That all lines of a kind are consistent in themselves.
fn consistent(lines: &[Value]) {
    for line in of_kind(lines, "transfer") {
        assert_eq!(number(line, "bytes"), number(line, "requests") * number(line, "request"), "{line}");
        let rate = number(line, "bytes") as f64 / positive(line, "seconds");
        assert!((positive(line, "bandwidth") / rate - 1.0).abs() < 1e-6, "{line}");
        assert_eq!(line["cached"], true, "{line}");
        assert!(line["operation"] == "write" || line["fsync"] == false, "{line}");
    }
    for line in of_kind(lines, "flood") {
        positive(line, "create_seconds");
        positive(line, "read_seconds");
        assert_eq!((&line["present"], &line["whole"]), (&line["files"], &line["files"]), "{line}");
        assert_eq!(number(line, "size"), 4096);
    }
    for line in of_kind(lines, "metadata") {
        let rate = number(line, "count") as f64 / positive(line, "seconds");
        assert!((positive(line, "rate") / rate - 1.0).abs() < 1e-6, "{line}");
    }
}

#[test]
fn every_kind_of_measurement_is_there_for_each_storage() {
    let site = Site::new("characterize");
    let memory = Memory::new(&site);
    let disk = site.path("disk");
    fs::create_dir(&disk).expect("made");
    let (storages, out) = ([format!("disk={}", disk.display()), memory.storage()], site.path("results"));
    let done = characterize(&site, &storages, &out, &SMALL);
    let said = done.err.clone();
    done.ok();
    assert!(said.contains("fit into the page cache"), "{said}");
    // It is said once, unless the scratch directory lies in memory, too.
    assert!(said.matches("page caches are dropped before reads").count() <= 1, "{said}");
    assert!(said.contains("makes a report"), "{said}");
    let lines = lines(&out);
    let first = &lines[0];
    assert_eq!((&first["kind"], &first["version"]), (&json!("characterization"), &json!(1)));
    assert_eq!(first["storages"][0]["directory"], json!(disk.to_str()));
    assert_eq!(
        (&first["storages"][1]["name"], &first["storages"][1]["file_system"]),
        (&json!("shm"), &json!("tmpfs"))
    );
    assert!(number(first, "memory") > 1 << 20 && number(first, "cores") > 0 && number(first, "seed") == 1);
    for storage in first["storages"].as_array().expect("a list") {
        assert!(number(storage, "free") > 0 && number(storage, "capacity") >= number(storage, "free"));
    }
    consistent(&lines);
    // Reads, writes, and writes with fsync; in two orders, with two lengths, by one process and by two.
    let transfers = of_kind(&lines, "transfer");
    let kinds = counted(&transfers, &["storage", "operation", "access", "fsync", "request", "processes"]);
    assert_eq!(
        (kinds.len(), kinds.values().all(|count| *count == 2)),
        (2 * 3 * 2 * 2 * 2, true),
        "{kinds:?}"
    );
    // Nothing was cut by time, so it was all of the files.
    assert!(transfers.iter().all(|line| number(line, "bytes") == 512 << 10 && line["nodes"] == 1));
    let floods = counted(&of_kind(&lines, "flood"), &["storage", "files", "repetition", "processes"]);
    assert_eq!((floods.len(), floods.contains_key("\"shm\" 41 1 2")), (2 * 2 * 2, true), "{floods:?}");
    let metadata =
        counted(&of_kind(&lines, "metadata"), &["storage", "operation", "processes", "repetition"]);
    assert_eq!(metadata.len(), 2 * 6 * 2 * 2, "{metadata:?}");
    assert_eq!(lines.len(), 1 + transfers.len() + floods.len() + metadata.len());
    assert_eq!((entries(&disk).len(), entries(&memory.0).len()), (0, 0));
}

#[test]
fn processes_on_the_nodes_of_a_deployment_measure_it_from_inside() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(2);
    let site = Site::new("characterize-nodes");
    let memory = Memory::new(&site);
    let name = net.deploy(&site, &[]);
    let (storages, out) = (["job=/bivouac".to_owned(), memory.storage()], site.path("results"));
    let options = [&SMALL[..], &["--deployment", &name, "--repetitions", "1"][..]].concat();
    // An option that is given twice is refused.
    characterize(&site, &storages, &out, &options).fails(2, &["--repetitions"]);
    let hosts = net.names[..2].join(",");
    let of_deployment = ["--deployment", &name, "--repetitions", "1"];
    let options = [&of_deployment, &SMALL[..2], &SMALL[4..], &["--hosts", &hosts]].concat();
    characterize(&site, &storages, &out, &options).ok();
    let lines = lines(&out);
    assert_eq!(lines[0]["storages"][0]["file_system"], "bivouac");
    consistent(&lines);
    let by = counted(&of_kind(&lines, "transfer"), &["storage", "nodes", "processes"]);
    let expected = ["1 1", "1 2", "2 4"].map(|by| [format!("\"job\" {by}"), format!("\"shm\" {by}")]);
    assert!(expected.iter().flatten().all(|key| by.contains_key(key)), "{by:?}");
    assert_eq!(by.len(), 6, "{by:?}");
    assert_eq!(entries(&memory.0).len(), 0);
    let command = site.command_on(&net.names[0], ["exec", &name, "--", "ls", "-A", "/bivouac"]);
    assert_eq!(finish(command).ok(), "");
    let nobody = [&of_deployment[..], &["--hosts", "nobody"]].concat();
    characterize(&site, &storages, &site.path("x"), &nobody).fails(65, &["\"nobody\" is no host"]);
    let relative = ["job=bivouac".to_owned()];
    characterize(&site, &relative, &site.path("x"), &options).fails(65, &["no absolute path"]);
}

/// Starts one that works for a long time, and waits until its processes do. These are returned.
fn started(site: &Site, memory: &Memory, out: &Path, options: &[&str]) -> (Child, Vec<i32>) {
    let storages = [memory.storage()];
    let mut command = site.command(words(&storages, out, options));
    bivouac_tests::default_signals(&mut command);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("runs");
    eventually("it measures", || fs::read_to_string(out).is_ok_and(|text| text.lines().count() > 5));
    let nodes = children(child.id() as i32);
    let all = [nodes.clone(), nodes.into_iter().flat_map(children).collect()].concat();
    (child, all)
}

const LONG: [&str; 8] =
    ["--processes", "2", "--repetitions", "1000", "--size", "32M", "--requests", "4K,16M"];

#[test]
fn an_interrupted_characterization_leaves_nothing() {
    let site = Site::new("characterize-interrupted");
    let memory = Memory::new(&site);
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let out = site.path(&code.to_string());
        let (child, all) = started(&site, &memory, &out, &LONG);
        assert!(all.len() >= 2, "{all:?}");
        Site::kill(child.id() as i32, rustix::process::Signal::from_named_raw(signal).expect("a signal"));
        let ended = child.wait_with_output().expect("ends");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(code), "{said}");
        assert_eq!(entries(&memory.0), Vec::<PathBuf>::new(), "{said}");
        assert!(!all.iter().any(|pid| Site::is_alive(*pid)));
        // What was measured before is whole.
        consistent(&lines(&out));
    }
}

#[test]
fn a_characterization_that_is_killed_leaves_no_process_and_no_file() {
    let site = Site::new("characterize-killed");
    let memory = Memory::new(&site);
    // In the middle of transfers, and of a flood.
    let flood = ["--processes", "2", "--size", "128K", "--requests", "4K", "--files", "300000"];
    for (options, has) in [(&LONG, "filled.0"), (&flood, "flood")] {
        let (mut child, all) = started(&site, &memory, &site.path(has), options);
        let is_there = || entries(&memory.0).iter().any(|directory| directory.join(has).exists());
        eventually("it is under way", is_there);
        Site::kill(child.id() as i32, rustix::process::Signal::KILL);
        child.wait().expect("ends");
        eventually("all processes end", || !all.iter().any(|pid| Site::is_alive(*pid)));
        assert_eq!(entries(&memory.0), Vec::<PathBuf>::new(), "{has}");
    }
}

#[test]
fn a_storage_whose_process_dies_is_left_out_and_others_are_measured() {
    let site = Site::new("characterize-dies");
    let memory = Memory::new(&site);
    let other = memory.0.join("other");
    let dies = memory.0.join("dies");
    fs::create_dir(&other).expect("made");
    fs::create_dir(&dies).expect("made");
    let storages = [format!("dies={}", dies.display()), format!("other={}", other.display())];
    let out = site.path("results");
    // Transfers take so long that it does not come to its end before the kill.
    let options = [
        "--processes",
        "2",
        "--size",
        "64M",
        "--requests",
        "512,1M",
        "--repetitions",
        "1",
        "--files",
        "10",
        "--seconds",
        "0.2",
    ];
    let mut command = site.command(words(&storages, &out, &options));
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("runs");
    let workers = || -> Vec<i32> { children(child.id() as i32).into_iter().flat_map(children).collect() };
    eventually("it measures", || !entries(&dies).is_empty() && workers().len() == 2);
    Site::kill(workers()[1], rustix::process::Signal::KILL);
    let ended = Finished::of(child.wait_with_output().expect("ends"));
    ended.fails(71, &["dies failed", "has ended"]);
    let lines = lines(&out);
    consistent(&lines);
    assert!(of_kind(&lines, "metadata").iter().all(|line| line["storage"] == "other"));
    assert_eq!(of_kind(&lines, "metadata").len(), 12);
    assert_eq!((entries(&dies).len(), entries(&other).len()), (0, 0));
}

#[test]
fn files_of_a_flood_that_are_lost_are_told() {
    let site = Site::new("characterize-lost");
    let memory = Memory::new(&site);
    let (storages, out) = ([memory.storage()], site.path("results"));
    let options =
        ["--processes", "1", "--size", "128K", "--requests", "4K", "--files", "100000", "--repetitions", "1"];
    let mut command = site.command(words(&storages, &out, &options));
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("runs");
    let flood = || entries(&memory.0).first().map(|directory| directory.join("flood"));
    eventually("a file could be taken away", || {
        flood().is_some_and(|flood| fs::remove_file(flood.join("0.7")).is_ok())
    });
    let ended = Finished::of(child.wait_with_output().expect("ends"));
    ended.fails(71, &["shm lost data", "of 100000 small files 99999 were there afterwards, and 99999 had"]);
    let lines = lines(&out);
    let floods = of_kind(&lines, "flood");
    assert_eq!((number(floods[0], "present"), number(floods[0], "whole")), (99_999, 99_999));
    assert_eq!(entries(&memory.0).len(), 0);
}

#[test]
fn what_cannot_be_characterized_is_told_why() {
    let site = Site::new("characterize-bad");
    let memory = Memory::new(&site);
    let (good, out) = (memory.storage(), site.path("results"));
    let with = |storages: &[&str], options: &[&str]| {
        let storages: Vec<String> = storages.iter().map(|text| (*text).to_owned()).collect();
        characterize(&site, &storages, &out, options)
    };
    with(&[&good, "shm=/tmp"], &[]).fails(65, &["two storages are called \"shm\""]);
    for bad in ["/tmp", "=/tmp", "a b=/tmp", "a/b=/tmp", "x=", "<i>=/tmp"] {
        with(&[bad], &[]).fails(2, &["NAME=DIR"]);
    }
    with(&[&good, "none=/no/such/directory"], &[])
        .fails(65, &["none: /no/such/directory cannot be used", "No such file", "--deployment"]);
    let file = site.path("file");
    fs::write(&file, "").expect("written");
    with(&[&format!("file={}", file.display())], &[]).fails(65, &["file: ", "Not a directory"]);
    with(&["sys=/sys"], &[])
        .fails(65, &["sys: /sys cannot be used", "cannot make /sys/bivouac-characterize-"]);
    with(&[&good], &["--size", "1000T"]).fails(65, &["shm: ", " free, and ", "are needed", "--size"]);
    with(&[&good], &["--files", "10000000", "--size", "1M", "--requests", "4K"]).fails(65, &["are needed"]);
    with(&[&good], &["--size", "1M", "--processes", "2"]).fails(65, &["too small", "--requests"]);
    with(&[&good], &["--requests", "1000"]).fails(2, &["--requests", "multiple of 512"]);
    with(&[&good], &["--processes", "0"]).fails(2, &["--processes"]);
    with(&[&good], &["--seconds", "0"]).fails(2, &["--seconds"]);
    with(&[&good], &["--deployment", "nobody"]).fails(64, &["no deployment named"]);
    with(&[&good], &["--hosts", "h"]).fails(2, &["--deployment"]);
    with(&[], &[]).fails(2, &["NAME=DIR"]);
    assert!(!out.exists());
    fs::write(&out, "mine").expect("written");
    with(&[&good], &["--quick"]).fails(65, &["is there already", "another --out"]);
    assert_eq!(fs::read_to_string(&out).expect("is there"), "mine");
    let nowhere = site.path("no/results");
    characterize(&site, &[good], &nowhere, &SMALL).fails(70, &["cannot make"]);
    assert_eq!(entries(&memory.0).len(), 0);
}

#[test]
fn the_analysis_is_called_for_a_report() {
    let site = Site::new("characterize-python");
    let python = site.path("python");
    // The words behind the package's name; what the interpreter itself gets is the business of others.
    let script = "#!/bin/sh\ncase \" $* \" in *' -c '*) exit 0;; esac\nwhile [ \"$1\" != bivouac_analysis ]; do shift; done\n\
        for word; do echo \"$word\"; done\n";
    fs::write(&python, script).expect("written");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("a mode");
    let with = |python: &Path, words: &[&str]| {
        let mut command = site.command(words);
        command.env("BIVOUAC_PYTHON", python);
        finish(command)
    };
    let words = ["characterize", "--report", "r", "--html", "h", "--csv", "c"];
    let said = with(&python, &words).ok();
    assert_eq!(said, "bivouac_analysis\ncharacterize-report\nr\n--html\nh\n--csv\nc\n");
    with(Path::new("/no/python"), &words).fails(65, &["cannot run /no/python"]);
    with(&python, &words[..3]).fails(2, &["--html"]);
    with(&python, &["characterize", "a=/tmp", "--report", "r", "--html", "h"])
        .fails(2, &["cannot be used with"]);
}
