//! I/O nodes shared among jobs: by results of the explorer, and applied to real deployments.

use bivouac_tests::{Finished, Site, eventually};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// A directory of the backend, in memory.
struct Backend(PathBuf);

impl Backend {
    fn new(site: &Site) -> Backend {
        let directory = PathBuf::from("/dev/shm").join(site.name("arbitrated"));
        fs::create_dir_all(&directory).expect("a directory");
        Backend(directory.canonicalize().expect("a path"))
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const MIB: u64 = 1 << 20;

/// A pattern, with its nodes, its processes, and MiB/s for each number of I/O nodes.
type Measured<'a> = (&'a str, u32, u32, &'a [(u32, u64)]);

/// Three jobs: one that gains little, one that gains much, one that is fastest without I/O nodes.
const JOBS: [Measured; 3] = [
    ("flat", 8, 16, &[(0, 90), (1, 100), (2, 101), (4, 102)]),
    ("steep", 2, 48, &[(0, 10), (1, 50), (2, 100), (4, 200)]),
    ("direct", 2, 32, &[(0, 80), (1, 20), (2, 30), (4, 40)]),
];

fn first_line(jobs: &[Measured]) -> Value {
    let patterns: Vec<Value> = jobs
        .iter()
        .map(|(name, nodes, processes, _)| {
            json!({ "name": name, "nodes": nodes, "processes": processes, "phases": [{ "operation": "write",
                "layout": "own", "spatiality": "contiguous", "request": 16384, "total": MIB, "stonewall": null,
                "direct": false, "fsync": false, "think": 0.0 }] })
        })
        .collect();
    json!({ "kind": "exploration", "version": 1, "deployment": "job", "directory": "/scratch", "file_system": "ext4",
        "nodes": ["n1"], "io_nodes": [0, 1, 2, 3, 4], "repetitions": 3, "seed": 7, "started": 1.5, "scheduler": "to",
        "assign": "node", "patterns": patterns })
}

fn run(pattern: &str, io_nodes: u32, repetition: u32, bandwidth: u64) -> Value {
    let bandwidth = bandwidth as f64;
    json!({ "kind": "run", "pattern": pattern, "io_nodes": io_nodes, "repetition": repetition, "order": 0, "begun": 2.5,
        "load": 0.5, "seconds": 1.0, "bytes": bandwidth as u64, "requests": 10, "bandwidth": bandwidth,
        "phases": [{ "operation": "write", "seconds": 1.0, "bytes": bandwidth as u64, "requests": 10, "bandwidth": bandwidth }],
        "requests_in": null, "requests_out": null, "bytes_in": null, "bytes_out": null, "verified": true })
}

fn failed(pattern: &str) -> Value {
    json!({ "kind": "failed", "pattern": pattern, "io_nodes": 1, "repetition": 0, "order": 1, "begun": 3.0, "error": "why" })
}

/// Writes a file of lines.
fn file(site: &Site, name: &str, lines: &[Value]) -> String {
    let path = site.path(name);
    let text: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&path, text.concat()).expect("written");
    path.to_str().expect("text").to_owned()
}

/// Writes the results of jobs. Of three repetitions, one was disturbed, and one had luck.
fn results(site: &Site, name: &str, jobs: &[Measured]) -> String {
    let mut lines = vec![first_line(jobs)];
    for (pattern, _, _, measured) in jobs {
        for (io_nodes, bandwidth) in *measured {
            for (repetition, bandwidth) in (0..).zip([bandwidth * MIB, 1, 1000 * MIB]) {
                lines.push(run(pattern, *io_nodes, repetition, bandwidth));
            }
        }
    }
    file(site, name, &lines)
}

fn arbitrate(site: &Site, words: &[&str]) -> Finished {
    site.bivouac([&["arbitrate"][..], words].concat())
}

fn as_json(site: &Site, words: &[&str]) -> Value {
    let text = arbitrate(site, &[words, &["--json"]].concat()).ok();
    serde_json::from_str(&text).expect("JSON")
}

/// What a policy gives each job.
fn given(shown: &Value, policy: &str) -> Vec<u64> {
    let policies = shown["policies"].as_array().expect("a list");
    let policy = policies.iter().find(|one| one["policy"] == policy).expect("is there");
    let choices = policy["choices"].as_array().expect("a list");
    choices.iter().map(|choice| choice["io_nodes"].as_u64().expect("a number")).collect()
}

/// How many I/O nodes a deployment has.
fn io_nodes(site: &Site, name: &str) -> usize {
    let shown: Value = serde_json::from_str(&site.bivouac(["forward", name, "--json"]).ok()).expect("JSON");
    shown["io_nodes"].as_array().expect("a list").len()
}

#[test]
fn the_exact_choice_stands_beside_the_policies() {
    let site = Site::new("arbitrate");
    let path = results(&site, "results", &JOBS);
    let shown = as_json(&site, &["--pool", "6", &path]);
    assert_eq!((&shown["version"], &shown["pool"]), (&json!(1), &json!(6)));
    let steep = &shown["jobs"][1];
    assert_eq!(
        (&steep["name"], &steep["nodes"], &steep["processes"], &steep["measured"][3]),
        (&json!("steep"), &json!(2), &json!(48), &json!({ "io_nodes": 4, "bandwidth": 200 * MIB }))
    );
    for (policy, expected) in [
        ("exact", [2, 4, 0]),
        ("none", [0, 0, 0]),
        ("one", [1, 1, 1]),
        ("static", [2, 2, 2]),
        // 4, 1 and 1; 1, 3 and 2.
        ("size", [4, 1, 1]),
        ("processes", [1, 2, 2]),
    ] {
        assert_eq!(given(&shown, policy), expected, "{policy}");
    }
    let exact = &shown["policies"][0];
    assert_eq!(
        (&exact["policy"], &exact["io_nodes"], &exact["bandwidth"], &exact["ratio"]),
        (&json!("exact"), &json!(6), &json!(381 * MIB), &json!(1.0))
    );
    let ratio = shown["policies"][1]["ratio"].as_f64().expect("a number");
    assert!((ratio - 180.0 / 381.0).abs() < 1e-9, "{ratio}");
    let text = arbitrate(&site, &["--pool", "6", &path]).ok();
    for line in [
        "JOB        NODES  PROCESSES      EXACT       NONE        ONE     STATIC       SIZE  PROCESSES",
        "steep          2         48          4          0          1          2          1          2",
        "I/O nodes                            6          0          3          6          6          5",
        "of exact                          100%        47%",
        "The exact choice takes 6 of 6 I/O nodes for 381 MiB/s: 2.12 times direct access (180 MiB/s); 1.65 times the static",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn jobs_are_chosen_and_named_and_what_a_policy_cannot_give_is_told() {
    let site = Site::new("arbitrate-names");
    let path = results(&site, "results", &JOBS);
    let other = results(&site, "other:1", &[("steep", 1, 1, &[(1, 7), (2, 9)])]);
    let names = |words: &[&str]| -> Vec<String> {
        let shown = as_json(&site, &[&["--pool", "4"], words].concat());
        let jobs = shown["jobs"].as_array().expect("a list").clone();
        jobs.iter().map(|job| job["name"].as_str().expect("text").to_owned()).collect()
    };
    assert_eq!(names(&[&path]), ["flat", "steep", "direct"]);
    assert_eq!(names(&[&format!("{path}:direct"), &format!("{other}:steep")]), ["direct", "steep"]);
    let (x, y) = (format!("x={path}:steep"), format!("y={path}:steep"));
    assert_eq!(names(&[&x, &y, &format!("z={other}")]), ["x", "y", "z"]);
    arbitrate(&site, &["--pool", "4", &path, &other])
        .fails(65, &["two jobs \"steep\"", "other:1", "one=FILE:PATTERN"]);
    arbitrate(&site, &["--pool", "4", &format!("z={path}")]).fails(65, &["3 patterns", "z="]);
    let shown = as_json(&site, &["--pool", "1", &other, &x]);
    assert_eq!(given(&shown, "exact"), [1, 0]);
    assert_eq!(shown["policies"][1]["error"], "steep was not measured without I/O nodes");
    assert_eq!(shown["policies"][2]["error"], "2 I/O nodes are needed, and the pool has 1");
    let text = arbitrate(&site, &["--pool", "1", &other, &x]).ok();
    for words in ["none is not possible: steep was not", "direct access was not measured for all jobs"] {
        assert!(text.contains(words), "{text}");
    }
    arbitrate(&site, &["--pool", "1", &other, &format!("w={other}:steep")])
        .fails(65, &["2 I/O nodes are needed, and the pool has 1", "raise --pool"]);
}

#[test]
fn a_line_that_was_cut_does_not_count_and_other_bad_input_is_refused() {
    let site = Site::new("arbitrate-bad");
    let path = results(&site, "results", &JOBS);
    let whole = fs::read_to_string(&path).expect("text");
    fs::write(&path, format!("{whole}{{\"kind\":\"run\",\"pattern\":\"ste")).expect("written");
    let cut = arbitrate(&site, &["--pool", "6", &path]);
    assert!(cut.err.contains("was cut"), "{}", cut.err);
    cut.ok();
    arbitrate(&site, &["--pool", "0", &path]).fails(2, &["--pool"]);
    arbitrate(&site, &[&path]).fails(2, &["--pool"]);
    arbitrate(&site, &["--pool", "4"]).fails(2, &["FILE"]);
    arbitrate(&site, &["--pool", "4", &path, "--watch", "1"]).fails(2, &["--apply"]);
    arbitrate(&site, &["--pool", "4", "--apply", "a=b", &path]).fails(2, &["DEPLOYMENT=JOB"]);
    arbitrate(&site, &["--pool", "4", "none"]).fails(65, &["cannot read none", "No such file"]);
    arbitrate(&site, &["--pool", "4", "none:A"]).fails(65, &["cannot read none:"]);
    arbitrate(&site, &["--pool", "4", &format!("{path}:?")])
        .fails(65, &["no pattern \"?\"", "flat, steep, direct"]);
    let bad = |lines: &[Value], words: &[&str]| {
        let path = file(&site, "bad", lines);
        arbitrate(&site, &["--pool", "4", &path]).fails(65, &[&[path.as_str()], words].concat());
    };
    let first = first_line(&JOBS[..1]);
    let mut newer = first.clone();
    newer["version"] = json!(2);
    let mut unverified = run("flat", 1, 0, MIB);
    unverified["verified"] = json!(false);
    bad(&[], &["has no results"]);
    bad(&[newer], &["line 1", "newer version"]);
    bad(&[first.clone(), run("flat", 1, 0, MIB), json!({ "kind": "walk" })], &["line 3", "no result"]);
    bad(&[first.clone(), run("?", 1, 0, MIB)], &["line 2", "no pattern \"?\""]);
    bad(std::slice::from_ref(&first), &["no usable run", "\"flat\"", "0 failed"]);
    bad(&[first.clone(), failed("flat"), unverified], &["1 failed, and 1 were not verified"]);
    arbitrate(&site, &["--pool", "4", &path, "--apply", "a=?"]).fails(65, &["no job \"?\"", "flat, steep"]);
    arbitrate(&site, &["--pool", "4", &path, "--apply", "a=flat", "a=steep"]).fails(65, &["named twice"]);
    arbitrate(&site, &["--pool", "4", &path, "--apply", "nobody=flat"])
        .fails(64, &["nobody is left as it is", "no deployment named"]);
}

#[test]
fn what_the_explorer_has_measured_is_understood() {
    let site = Site::new("arbitrate-explored");
    let backend = Backend::new(&site);
    let name = site.up_with(1, &["--forward", backend.text()]);
    let patterns = json!({ "version": 1, "patterns": [{ "name": "A", "nodes": 1, "processes": 2, "phases": [{
        "operation": "write", "layout": "own", "spatiality": "contiguous", "request": 16384, "total": MIB }] }] });
    let (file, out) = (site.path("patterns"), site.path("out"));
    fs::write(&file, patterns.to_string()).expect("written");
    let (file, out) = (file.to_str().expect("text"), out.to_str().expect("text"));
    let options = ["--io-nodes", "0,1", "--repetitions", "2"];
    site.bivouac([&["explore", "run", &name, file, "--out", out][..], &options].concat()).ok();
    let job = &as_json(&site, &["--pool", "1", out])["jobs"][0];
    assert_eq!((&job["name"], &job["nodes"], &job["processes"]), (&json!("A"), &json!(1), &json!(2)));
    let measured = job["measured"].as_array().expect("a list");
    assert!(measured.iter().map(|one| &one["io_nodes"]).eq([&json!(0), &json!(1)]), "{measured:?}");
    assert!(measured.iter().all(|one| one["bandwidth"].as_u64() > Some(0)), "{measured:?}");
}

#[test]
fn running_deployments_get_what_is_best_for_them_together() {
    let site = Site::new("arbitrate-apply");
    let backend = Backend::new(&site);
    let flat = site.up_with(3, &["--forward", backend.text(), "--io-nodes", "3"]);
    let steep = site.up_with(2, &["--forward", backend.text(), "--io-nodes", "1"]);
    let silent = site.up(1);
    let path = results(&site, "results", &JOBS);
    let (a, b) = (format!("{flat}=flat"), format!("{steep}=steep"));
    // With four servers it would have all four; it has two. The other one is set first, because it gets
    // fewer.
    let done = arbitrate(&site, &["--pool", "4", &path, "--apply", &b, &a]).ok();
    let says = |what: String| done.find(&what).unwrap_or_else(|| panic!("{what}\n{done}"));
    let fewer = says(format!("{flat} has 2 I/O nodes instead of 3"));
    assert!(fewer < says(format!("{steep} has 2 I/O nodes instead of 1")), "{done}");
    assert_eq!((io_nodes(&site, &flat), io_nodes(&site, &steep)), (2, 2));
    // What cannot be set is told, and others are.
    let words =
        ["--pool", "2", &path, "--json", "--apply", &a, &b, "nobody=direct", &format!("{silent}=direct")];
    let some = arbitrate(&site, &words);
    assert!(
        some.err.contains("no deployment named") && some.err.contains("forwards no directory"),
        "{}",
        some.err
    );
    assert_eq!(some.code, 65, "{}", some.err);
    let shown: Value = serde_json::from_str(&some.out).expect("JSON");
    assert_eq!(given(&shown, "exact"), [0, 2]);
    let changed = shown["deployments"].as_array().expect("a list");
    assert!(changed.contains(&json!({ "deployment": flat, "before": 2, "now": 0 })), "{changed:?}");
    assert!(changed.contains(&json!({ "deployment": steep, "before": 2, "now": 2 })), "{changed:?}");
    assert!(
        changed.iter().any(|one| one["deployment"] == "nobody" && one["error"].is_string()),
        "{changed:?}"
    );
    assert_eq!((io_nodes(&site, &flat), io_nodes(&site, &steep)), (0, 2));
    // One that is being explored keeps what it has, and others wait for that.
    site.bivouac(["forward", &flat, "--io-nodes", "1"]).ok();
    site.bivouac(["forward", &steep, "--io-nodes", "1"]).ok();
    let exploring = explored(&site, &flat);
    let words = ["--pool", "2", &path, "--apply", &a, &b];
    arbitrate(&site, &words).fails(65, &["is being explored already", &steep, "others still have 1 of 2"]);
    assert_eq!((io_nodes(&site, &flat), io_nodes(&site, &steep)), (1, 1));
    drop(exploring);
    arbitrate(&site, &words).ok();
    assert_eq!((io_nodes(&site, &flat), io_nodes(&site, &steep)), (0, 2));
    // One that has no choice keeps what it has, and that is not given to others.
    let many = results(&site, "many", &[("many", 1, 1, &[(4, 100)])]);
    let words = ["--pool", "3", &path, &many, "--apply", &a, &format!("{steep}=many")];
    arbitrate(&site, &words).fails(65, &[&steep, "was not measured with 2 I/O nodes or fewer"]);
    assert_eq!((io_nodes(&site, &flat), io_nodes(&site, &steep)), (1, 2));
    // One that does not answer may have as many as it has servers.
    let pids: Vec<i32> = site.daemons(&steep).into_iter().map(|(_, pid)| pid).collect();
    pids.iter().for_each(|pid| Site::stop(*pid));
    let silent = arbitrate(&site, &["--pool", "4", &path, "--json", "--apply", &a, &b]);
    pids.iter().for_each(|pid| Site::kill(*pid, rustix::process::Signal::CONT));
    let shown: Value = serde_json::from_str(&silent.out).expect("JSON");
    assert_eq!((&shown["pool"], &shown["taken"], given(&shown, "exact")), (&json!(2), &json!(2), vec![2]));
    silent.fails(67, &["does not answer", "2 servers of it count as I/O nodes"]);
}

/// Holds the lock of explorations of a deployment.
fn explored(site: &Site, name: &str) -> fs::File {
    let path = site.home().join(name).join("exploring");
    let file = fs::File::options().create(true).truncate(false).write(true).open(path).expect("opens");
    file.lock().expect("locks");
    file
}

/// A command that watches.
struct Watching {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    said: Vec<String>,
}

impl Watching {
    fn start(site: &Site, words: &[&str]) -> Watching {
        let mut command = site.command([&["arbitrate"][..], words].concat());
        bivouac_tests::default_signals(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("runs");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Watching { child, lines, said: Vec::new() }
    }

    /// Waits until it has said this in a new line.
    fn says(&mut self, what: &str) {
        eventually(what, || {
            let lines: Vec<String> = self.lines.try_iter().collect();
            let found = lines.iter().any(|line| line.contains(what));
            self.said.extend(lines);
            found
        });
    }

    fn end(mut self, signal: rustix::process::Signal) -> Option<i32> {
        Site::kill(self.child.id() as i32, signal);
        self.child.wait().expect("ends").code()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_pool_is_shared_anew_when_a_deployment_comes_or_goes() {
    let site = Site::new("arbitrate-watch");
    let backend = Backend::new(&site);
    let first = site.up_with(2, &["--forward", backend.text(), "--io-nodes", "1"]);
    let second = site.up_with(2, &["--forward", backend.text(), "--io-nodes", "1"]);
    let alike: [Measured; 2] =
        [("a", 1, 1, &[(0, 10), (1, 20), (2, 30)]), ("b", 1, 1, &[(0, 20), (1, 50), (2, 90)])];
    let path = results(&site, "results", &alike);
    let (a, b) = (format!("{first}=a"), format!("{second}=b"));
    let words = ["--pool", "2", &path, "--apply", &a, &b, "--watch", "0.2"];
    let mut watching = Watching::start(&site, &words);
    watching.says(&format!("{second} has 2 I/O nodes instead of 1"));
    assert_eq!((io_nodes(&site, &first), io_nodes(&site, &second)), (0, 2));
    // What somebody sets meanwhile stays until something comes or goes.
    site.bivouac(["forward", &second, "--io-nodes", "1"]).ok();
    site.bivouac(["down", &second]).ok();
    watching.says(&format!("{first} has 2 I/O nodes instead of 0"));
    assert_eq!(io_nodes(&site, &first), 2);
    // It takes those of the first one when it comes back, as soon as that may be changed.
    let exploring = explored(&site, &first);
    site.bivouac(["up", &second, "--servers", "2", "--forward", backend.text(), "--io-nodes", "1"]).ok();
    watching.says(&format!("{second} runs, with 2 servers"));
    assert_eq!((io_nodes(&site, &first), io_nodes(&site, &second)), (2, 1));
    drop(exploring);
    watching.says(&format!("{second} has 2 I/O nodes instead of 1"));
    assert_eq!((io_nodes(&site, &first), io_nodes(&site, &second)), (0, 2));
    assert_eq!(watching.end(rustix::process::Signal::TERM), Some(0));
    let mut watching = Watching::start(&site, &words);
    watching.says(&format!("{second} stays at 2 I/O nodes"));
    assert_eq!(watching.end(rustix::process::Signal::INT), Some(0));
}
