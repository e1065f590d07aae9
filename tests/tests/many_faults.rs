//! Many files are read at once while others replace them, and servers die and come back: each is read whole, as one or the other of
//! its versions, and nothing fails.

use bivouac_tests::library::linked;
use bivouac_tests::{Killed, Site};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn reads_many_while_servers_die(test: &str, options: &[&str]) {
    let mut site = Site::in_memory(test);
    site.restarts_servers();
    let program = site.path("program");
    linked("cc", &Path::new(env!("CARGO_MANIFEST_DIR")).join("c/reads_many.c"), &program);
    let name = site.up_with(3, options);
    let mut command = Command::new(program);
    let mut child = command.arg(&name).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut says = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut line = || says.next().expect("it says something").expect("text");
    assert_eq!(line(), "ready");
    for id in [0, 1, 2, 0, 1, 2] {
        Killed::server(&site, &name, id).is_back(&site, &name);
        std::thread::sleep(Duration::from_millis(300));
    }
    drop(child.stdin.take());
    let said = line();
    let rounds: Option<Vec<u32>> = said.split(' ').map(|word| word.parse().ok()).collect();
    assert!(child.wait().expect("ends").success(), "{said}");
    println!("{said}");
    assert!(
        rounds.is_some_and(|rounds| rounds.len() == 2 && rounds.iter().all(|rounds| *rounds >= 2)),
        "{said}"
    );
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &pids);
}

#[test]
fn many_files_are_read_whole_while_they_are_replaced_and_servers_die() {
    reads_many_while_servers_die("many-one", &["--block-size", "64K"]);
}

#[test]
fn many_files_with_copies_are_read_whole_while_they_are_replaced_and_servers_die() {
    reads_many_while_servers_die(
        "many-two",
        &["--block-size", "64K", "--replicas", "2", "--heal-after", "never"],
    );
}
