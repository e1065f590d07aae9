//! `bivouac bench`: its counts are right, failures are counted, and what it made goes.

use bivouac_tests::{Finished, Site};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;

fn bench(site: &Site, dir: &Path, options: &[&str]) -> Finished {
    let dir = dir.to_str().expect("text");
    site.bivouac([&["bench", "--json", "--dir", dir], options].concat())
}

fn report(text: &str) -> Value {
    serde_json::from_str(text).expect("bench prints JSON")
}

/// The phases' operations, with how many of each were done.
fn counts(report: &Value) -> Vec<(String, u64)> {
    let phases = report["phases"].as_array().expect("a list").iter();
    phases
        .map(|p| (p["op"].as_str().expect("a word").to_owned(), p["operations"].as_u64().expect("a number")))
        .collect()
}

#[test]
fn inside_a_deployment_all_operations_are_done_and_nothing_stays() {
    let site = Site::new("bench");
    let name = site.up(2);
    let binary = bivouac_tests::bivouac().to_str().expect("text");
    let all = "mkdir,create,write,stat,open,read,pwrite,pread,list,liststat,rename,unlink,rmdir";
    let before = site.status(&name)["totals"]["meta_operations"].as_u64().expect("a number");
    for (layout, transfer) in [("--shared", 3), ("--one-file", 6)] {
        let command = ["exec", &name, "--", binary, "bench", "--json", "--dir", "/bivouac/b", "--ops", all];
        let plan =
            ["--procs", "3", "--files", "7", "--size", "6000", "--transfer", "2000", "--shift", "1", layout];
        let passes = (transfer / 3).to_string();
        let text = site.bivouac(command.iter().chain(&plan).chain(&["--passes", &passes])).ok();
        let report = report(&text);
        assert_eq!((report["version"].as_u64(), report["errors"].as_u64()), (Some(1), Some(0)), "{text}");
        for (op, operations) in counts(&report) {
            let expected = match op.as_str() {
                "pwrite" | "pread" => 3 * transfer,
                "list" | "liststat" => 3,
                _ => 3 * 7,
            };
            assert_eq!(operations, expected, "{op}");
        }
        for phase in report["phases"].as_array().expect("a list") {
            let number = |name: &str| phase[name].as_f64().expect("a number");
            assert!(number("rate") > 0.0 && number("seconds") > 0.0, "{phase}");
            let latency = &phase["latency_us"];
            assert!(latency["p50"].as_f64() <= latency["p99"].as_f64(), "{phase}");
            assert!(latency["p99"].as_f64() <= latency["max"].as_f64(), "{phase}");
            // The servers of the deployment around it are found.
            assert!(phase["cpu_us"]["servers"].as_f64().is_some(), "{phase}");
            let bytes = match phase["op"].as_str() {
                Some("create" | "write" | "read") => 3 * 7 * 6000,
                Some("pwrite" | "pread") => 3 * transfer * 2000,
                _ => 0,
            };
            assert_eq!(phase["bytes"].as_u64(), Some(bytes), "{phase}");
        }
        assert_eq!(site.sh(&name, "ls -A /bivouac").ok(), "");
    }
    // It went through the library: the servers have seen it.
    let after = site.status(&name)["totals"]["meta_operations"].as_u64().expect("a number");
    assert!(after - before > 2 * 3 * 7 * 8, "{before} {after}");
}

#[test]
fn failed_operations_are_counted_named_and_in_the_exit_code() {
    let site = Site::new("benchfail");
    let dir = site.path("load");
    bench(&site, &dir, &["--procs", "2", "--files", "10", "--size", "100", "--ops", "create", "--keep"]).ok();
    std::fs::remove_file(dir.join("bench.0/f0.3")).expect("was made");
    std::fs::write(dir.join("bench.1/f1.4"), "").expect("was made");
    let again =
        ["--procs", "2", "--files", "10", "--size", "100", "--ops", "stat,read,list,create,unlink", "--keep"];
    let run = bench(&site, &dir, &again);
    let report = report(&run.out);
    let errors = |op: usize| &report["phases"][op]["errors"];
    for op in [0, 1] {
        assert_eq!(errors(op)["count"], 2, "{report}");
        assert_eq!((&errors(op)["kinds"]["ENOENT"], &errors(op)["kinds"]["wrong"]), (&1.into(), &1.into()));
    }
    // Missing in one of the two directories; all but the missing one exist already; then all are there.
    assert_eq!(errors(2)["count"], 0, "the plan makes files: a listing before that is not judged");
    assert_eq!(errors(3)["kinds"]["EEXIST"], 19);
    assert_eq!(errors(4)["count"], 0);
    assert_eq!(report["errors"], 23);
    run.fails(71, &["stat: 2 of 20 failed", "ENOENT 1", "wrong 1"]);
}

#[test]
fn an_interrupted_measurement_removes_what_it_made() {
    let site = Site::new("benchint");
    let dir = site.path("load");
    let dir_text = dir.to_str().expect("text");
    let mut child = site
        .command(["bench", "--dir", dir_text, "--procs", "2", "--files", "100000000", "--ops", "create"])
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    bivouac_tests::eventually("files are made", || dir.join("bench.1/f1.10").exists());
    Site::kill(child.id() as i32, rustix::process::Signal::TERM);
    let status = child.wait().expect("ends");
    assert_eq!(status.code(), Some(130));
    assert!(!dir.exists(), "what was made is left");
}

#[test]
fn a_plan_that_cannot_be_done_is_refused_with_a_reason() {
    let site = Site::new("benchbad");
    bench(&site, &site.path("x"), &["--ops", "pread"]).fails(65, &["at least one transfer"]);
    bench(&site, &site.path("x"), &["--ops", "fly"]).fails(2, &["create"]);
    site.bivouac(["bench"]).fails(2, &["--dir"]);
    bench(&site, Path::new("/proc/none/x"), &[]).fails(70, &["worker 0"]);
}

#[test]
fn null_round_trips_are_made_over_both_kinds_of_sockets() {
    let site = Site::new("benchnull");
    for (sockets, dealing) in ["unix", "tcp"]
        .into_iter()
        .flat_map(|sockets| [None, Some("--null-spread"), Some("--null-chain")].map(|d| (sockets, d)))
    {
        let options =
            ["bench", "--json", "--null", sockets, "--procs", "3", "--null-servers", "2", "--files", "50"];
        let report = report(&site.bivouac(options.into_iter().chain(dealing)).ok());
        assert_eq!((report["operations"].as_u64(), report["sockets"].as_str()), (Some(150), Some(sockets)));
        assert!(report["rate"].as_f64() > Some(0.0) && report["cpu_us"]["servers"].as_f64() > Some(0.0));
    }
}
