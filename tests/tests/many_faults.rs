//! Many files are read at once while others replace them, and servers die and come back: each is read whole, as one or the other of
//! its versions, and nothing fails. Where storage fails, so do the files that are there, and no others.

use bivouac_tests::failing::{FailingDir, Fault, On};
use bivouac_tests::library::linked;
use bivouac_tests::paused::Paused;
use bivouac_tests::{Killed, Site, finish, skipped_without_mount};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn reads_many_while_servers_die(test: &str, options: &[&str]) {
    let mut site = Site::in_memory(test);
    site.restarts_servers();
    let program = site.path("program");
    linked("cc", &Path::new(env!("CARGO_MANIFEST_DIR")).join("c/reads_many.c"), &program);
    let name = site.up_with(3, options);
    let mut command = Command::new(program);
    command.arg(&name);
    let mut reader = Paused::start(command);
    for id in [0, 1, 2, 0, 1, 2] {
        Killed::server(&site, &name, id).is_back(&site, &name);
        std::thread::sleep(Duration::from_millis(300));
    }
    reader.go_on();
    let said = reader.end();
    let rounds: Option<Vec<u32>> = said.split_whitespace().map(|word| word.parse().ok()).collect();
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

/// Says of each file that it is given the name of the result, and its bytes if they are few.
const EACH: &str = r#"
#include <bivouac.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    static char room[64][70000];
    static struct bivouac_piece pieces[64];
    bivouac_t *deployment;
    int count = argc - 2;
    if (count > 64 || bivouac_attach(argv[1], &deployment))
        return 1;
    for (int i = 0; i < count; i++)
        pieces[i] = (struct bivouac_piece){.path = argv[2 + i], .buffer = room[i], .length = sizeof room[i]};
    if (bivouac_read_many(deployment, pieces, count))
        return 2;
    for (int i = 0; i < count; i++)
        if (pieces[i].result < 0)
            printf("%s %s\n", argv[2 + i], strerror((int)-pieces[i].result));
        else
            printf("%s %zd %.9s\n", argv[2 + i], pieces[i].result, room[i]);
    bivouac_detach(deployment);
}
"#;

#[test]
fn of_many_files_those_on_storage_that_fails_are_errors_and_no_others() {
    if skipped_without_mount() {
        return;
    }
    let dir = FailingDir::new("many-storage");
    let site = Site::in_memory("many-storage");
    let name = site.up_with(2, &["--block-size", "64K", "--storage", &dir.path().to_string_lossy()]);
    // Of one block, of two, and in the inode.
    let write = "cd /bivouac && for i in $(seq 10 39); do n=$((i % 3)); \
        yes content$i | head -c $((n == 0 ? 5000 : n == 1 ? 67000 : 500)) > $i; done";
    site.sh(&name, write).ok();
    let source = site.path("each.c");
    std::fs::write(&source, EACH).expect("written");
    linked("cc", &source, &site.path("each"));
    let each = || {
        let mut command = Command::new(site.path("each"));
        command.arg(&name).args((10..40).map(|number| format!("/{number}")));
        finish(command).ok()
    };
    let whole = each();
    for (line, number) in whole.lines().zip(10..) {
        let size = [5000, 67000, 500][number % 3];
        assert_eq!(line, format!("/{number} {size} content{number}"));
    }
    dir.fail(Fault { paths: vec!["-1/sub".into()], on: On::READ, error: Errno::IO });
    let found = each();
    let failed: BTreeSet<&str> = found
        .lines()
        .filter_map(|line| line.strip_suffix(" Input/output error")?.strip_prefix('/'))
        .collect();
    // What is not an error is as it was.
    for (now, before) in found.lines().zip(whole.lines()) {
        assert!(now == before || now.ends_with(" Input/output error"), "{now}, {before}");
    }
    // The same files fail that fail one by one.
    let one_by_one =
        site.sh(&name, "cd /bivouac && for i in *; do cat $i > /dev/null 2>&1 || echo $i; done").ok();
    assert_eq!(failed, one_by_one.lines().collect());
    assert!(dir.hits() > 0 && (10..=20).contains(&failed.len()), "{failed:?}");
    dir.heal();
    assert_eq!(each(), whole, "nothing of it lasts");
    site.bivouac(["down", &name]).ok();
}
