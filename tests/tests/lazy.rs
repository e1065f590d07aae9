//! `preload --lazy`: names and sizes are there at once, contents come from the backend when a program wants them, and whatever
//! happens in between, nobody ever reads anything else.

use bivouac_tests::failing::{FailingDir, On, Slow};
use bivouac_tests::load::all_in_step;
use bivouac_tests::{Site, eventually, skipped_without_root};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// What is in a tree: names, kinds, modes, sizes, times, links, contents.
const LOOK: &str = "find . -type d -printf '%P %y %m %T@\\n' -o -printf '%P %y %m %s %T@ %n %l\\n' | sort";
const SUMS: &str = "find . -type f -print0 | sort -z | xargs -0 md5sum";

/// Bytes that differ from place to place.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut made = Vec::with_capacity(len + 8);
    while made.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        made.extend_from_slice(&state.to_le_bytes());
    }
    made.truncate(len);
    made
}

/// A tree of all that there may be.
fn source(site: &Site) -> PathBuf {
    let root = site.path("source");
    fs::create_dir_all(root.join("deep/er")).expect("directories");
    fs::create_dir_all(root.join("no files")).expect("a directory");
    for (number, (name, len)) in [
        ("small", 100),
        ("4096", 4096),
        ("4097", 4097),
        ("deep/medium", 700_000),
        ("deep/er/large", 9_000_000),
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(root.join(name), bytes(len, number as u64)).expect("a file");
    }
    fs::write(root.join("empty"), "").expect("a file");
    fs::write(root.join("odd \n name"), "odd").expect("a file");
    fs::write(root.join("script"), "#!/bin/sh\necho it runs\n").expect("a file");
    fs::set_permissions(root.join("script"), fs::Permissions::from_mode(0o751)).expect("a mode");
    fs::hard_link(root.join("deep/medium"), root.join("medium")).expect("a link");
    std::os::unix::fs::symlink("deep/er/large", root.join("to large")).expect("a link");
    let sparse = fs::File::create(root.join("sparse")).expect("a file");
    sparse.write_all_at(b"here", 6 << 20).expect("written");
    sparse.set_len(20 << 20).expect("a length");
    root
}

fn local(root: &Path, script: &str) -> String {
    let done = std::process::Command::new("sh").args(["-c", script]).current_dir(root).output();
    String::from_utf8(done.expect("runs").stdout).expect("text")
}

fn up(site: &Site, options: &[&str]) -> String {
    site.up_with(3, &[&["--block-size", "64K"], options].concat())
}

fn preload(site: &Site, name: &str, root: &Path, options: &[&str]) {
    let words = ["preload", name, root.to_str().expect("text"), "/in", "--lazy"];
    site.bivouac(words.iter().chain(options)).ok();
}

fn lazy(site: &Site, name: &str) -> (u64, u64) {
    (site.total(name, "lazy_files"), site.total(name, "lazy_bytes"))
}

/// A program in the deployment, as it runs.
fn start(site: &Site, name: &str, script: &str) -> Child {
    let words = ["exec", name, "--", "bash", "-c", script];
    let mut command = site.command(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
}

fn ends_with(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().expect("ends");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn names_are_there_at_once_and_contents_come_when_a_program_wants_them() {
    let site = Site::in_memory("lazy-names");
    let root = source(&site);
    let name = up(&site, &[]);
    preload(&site, &name, &root, &["--on-demand"]);
    let size: u64 = [100, 4096, 4097, 700_000, 9_000_000, 3, 23, 20 << 20].iter().sum();
    assert_eq!(lazy(&site, &name), (8, size));
    assert_eq!(site.total(&name, "stored"), 0);
    let said = site.bivouac(["status", &name]).ok();
    assert!(said.contains("8 files (29 MiB) still to be fetched from the backend"), "{said}");
    let look = format!("cd /bivouac/in && {LOOK}");
    assert_eq!(site.sh(&name, &look).ok(), local(&root, LOOK));
    assert_eq!(lazy(&site, &name).0, 8, "nobody has opened one");
    // Each is opened in another way.
    let ways = "set -e; cd /bivouac/in
        test \"$(./script)\" = 'it runs'
        cmp 4096 $SRC/4096
        cp 'to large' /bivouac/copy && cmp /bivouac/copy $SRC/deep/er/large
        python3 -c 'import mmap; f = open(\"4097\", \"rb\"); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); \
            assert m[:] == open(\"'$SRC'/4097\", \"rb\").read()'
        echo more >> small && { cat $SRC/small; echo more; } | cmp - small
        printf HELLO | dd of=medium bs=1 seek=699990 conv=notrunc status=none
        tail -c 100000 $SRC/medium | head -c 99990 | cmp - <(tail -c 100000 deep/medium | head -c 99990)
        tail -c 10 medium | head -c 5 | grep -q HELLO";
    site.sh(&name, &ways.replace("$SRC", root.to_str().expect("text"))).ok();
    assert_eq!(lazy(&site, &name), (2, (20 << 20) + 3));
    // What needs no contents fetches none.
    let no_contents = "cd /bivouac/in && mv sparse moved && ln moved linked && chmod 600 moved && touch -c -d @5 linked \
        && setfattr -n user.x -v y moved && : > 'odd \n name' && stat -c '%s %h %a %Y' linked";
    assert_eq!(site.sh(&name, no_contents).ok(), "20971520 2 600 5\n");
    assert_eq!(lazy(&site, &name), (1, 20 << 20));
    assert_eq!(
        site.sh(
            &name,
            "cmp /bivouac/in/linked $0 && stat -c '%s %Y' /bivouac/in/moved"
                .replace("$0", root.join("sparse").to_str().expect("text"))
                .as_str()
        )
        .ok(),
        "20971520 5\n"
    );
    let blocks: u64 = site.sh(&name, "stat -c %b /bivouac/in/moved").ok().trim().parse().expect("a number");
    assert!(blocks <= 256, "holes stay holes: {blocks} blocks");
    assert_eq!(lazy(&site, &name), (0, 0));
    let said = site.bivouac(["verify", &name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{said}");
    site.bivouac(["down", &name]).ok();
}

#[test]
fn files_that_are_removed_cut_or_truncated_before_they_were_fetched() {
    let site = Site::in_memory("lazy-cut");
    let root = source(&site);
    let name = up(&site, &[]);
    preload(&site, &name, &root, &["--on-demand"]);
    let cut = "set -e; cd /bivouac/in
        rm 4096 && truncate -s 0 4097 && test $(stat -c %s 4097) = 0 && ! test -s 4097
        truncate -s 5 small && cmp small <(head -c 5 $SRC/small)
        truncate -s 800000 medium && cmp medium <(cat $SRC/medium; head -c 100000 /dev/zero)
        rm medium && cmp -n 700000 deep/medium $SRC/medium
        cp --no-preserve=all script deep/er/large && cmp script deep/er/large
        mv deep/er/large sparse && cmp script sparse";
    site.sh(&name, &cut.replace("$SRC", root.to_str().expect("text"))).ok();
    assert_eq!(lazy(&site, &name), (1, 3), "only the one with the odd name is left");
    site.sh(&name, "rm -r /bivouac/in").ok();
    assert_eq!(lazy(&site, &name), (0, 0));
    eventually("blocks are removed", || site.total(&name, "stored") == 0);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_mount_fetches_too_and_an_archiver_sees_no_empty_files() {
    let site = Site::in_memory("lazy-mount");
    let root = source(&site);
    let name = up(&site, &[]);
    for (access, dst) in [("fuse", "/f"), ("both", "/b"), ("preload", "/p")] {
        let words = ["preload", &name, root.to_str().expect("text"), dst, "--lazy", "--on-demand"];
        site.bivouac(words).ok();
        let script = format!(
            "cd /bivouac{dst} && tar -c --sparse -f - . | tar -x -C {} && cat deep/er/large | md5sum && truncate -s 4 4097 && cat 4097",
            {
                let to = site.path(access);
                fs::create_dir_all(&to).expect("a directory");
                to
            }
            .display()
        );
        site.bivouac(["exec", &name, "--access", access, "--", "bash", "-c", &script]).ok();
        assert_eq!(local(&site.path(access), SUMS), local(&root, SUMS), "{access}");
    }
    assert_eq!(lazy(&site, &name), (0, 0));
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_source_that_has_changed_or_gone_gives_an_error_and_never_other_bytes() {
    let site = Site::in_memory("lazy-changed");
    let root = source(&site);
    let name = up(&site, &[]);
    preload(&site, &name, &root, &["--on-demand"]);
    // The same size; another time; nothing there; another file; less.
    let large = root.join("deep/er/large");
    fs::write(&large, bytes(9_000_000, 77)).expect("written");
    fs::remove_file(root.join("small")).expect("removed");
    fs::write(root.join("new"), bytes(4097, 2)).expect("written");
    let old = fs::metadata(root.join("4097")).expect("there").modified().expect("a time");
    fs::File::options().write(true).open(root.join("new")).and_then(|f| f.set_modified(old)).expect("a time");
    fs::rename(root.join("new"), root.join("4097")).expect("renamed");
    fs::File::options().write(true).open(root.join("deep/medium")).and_then(|f| f.set_len(5)).expect("cut");
    for file in ["deep/er/large", "small", "4097", "medium"] {
        let script =
            format!("cat /bivouac/in/{file}; dd if=/dev/zero of=/bivouac/in/{file} conv=notrunc count=1");
        let failed = site.sh(&name, &script);
        assert_eq!(failed.out, "", "{file}");
        assert_eq!(failed.err.matches("Input/output error").count(), 2, "{file}: {}", failed.err);
    }
    assert_eq!(site.total(&name, "unfetchable"), 4);
    let said = site.bivouac(["status", &name]).ok();
    assert!(said.contains("4 of them could not be"), "{said}");
    assert_eq!(site.sh(&name, "md5sum < /bivouac/in/4096").ok(), local(&root, "md5sum < 4096"));
    // It is not flushed over what others have put there.
    let to = root.to_str().expect("text");
    let flushed = site.bivouac(["flush", &name, "/in/deep", &format!("{to}/deep")]);
    assert_eq!(flushed.code, 68, "{}", flushed.err);
    assert!(fs::read(&large).expect("read") == bytes(9_000_000, 77), "what others have changed stays");
    // (`small` is left alone: the source does not have it any more.) A background fetch names what it cannot fetch, and why; what has changed visibly gets a new name first.
    let again = site.bivouac(["preload", &name, to, "/in", "--lazy"]);
    again.fails(68, &["source/4097 is not what it was when the name was made", "1 of"]);
    assert_eq!((lazy(&site, &name), site.total(&name, "unfetchable")), ((2, 4197), 2));
    // A plain preload copies it.
    site.bivouac(["preload", &name, to, "/in"]).ok();
    let sums = format!("cd /bivouac/in && rm small && {SUMS}");
    assert_eq!(site.sh(&name, &sums).ok(), local(&root, SUMS));
    assert_eq!((lazy(&site, &name), site.total(&name, "unfetchable")), ((0, 0), 0));
    // A backend that is away for a while.
    site.bivouac(["preload", &name, to, "/later", "--lazy", "--on-demand"]).ok();
    let moved = site.path("moved");
    fs::rename(&root, &moved).expect("renamed");
    let failed = site.sh(&name, "cat /bivouac/later/script");
    assert!(failed.err.contains("Input/output error"), "{}", failed.err);
    fs::rename(&moved, &root).expect("renamed");
    eventually("it can be fetched", || site.sh(&name, "cat /bivouac/later/script").out.contains("it runs"));
    site.bivouac(["down", &name]).ok();
}

#[test]
fn what_was_never_fetched_is_not_flushed_back() {
    let site = Site::in_memory("lazy-flush");
    let root = source(&site);
    let name = up(&site, &[]);
    preload(&site, &name, &root, &["--on-demand"]);
    let states = "find . -type f -printf '%P %i %C@\\n' | sort";
    let before = local(&root, states);
    let to = root.to_str().expect("text");
    let flush = |options: &[&str]| {
        let words = ["flush", &name, "/in", to];
        site.bivouac(words.iter().chain(options)).ok();
    };
    flush(&["--changed"]);
    flush(&[]);
    assert_eq!(local(&root, states), before);
    let all = lazy(&site, &name);
    assert_eq!(all.0, 8, "nothing was fetched for it");
    // Nor what was fetched and only read.
    site.sh(&name, "cd /bivouac/in && cat 4096 4097 deep/medium > /dev/null").ok();
    assert!(lazy(&site, &name) < all);
    flush(&["--changed"]);
    assert_eq!(local(&root, states), before);
    site.sh(&name, "cd /bivouac/in && echo new >> 4097 && chmod 640 deep/er/large").ok();
    flush(&["--changed"]);
    let after = local(&root, states);
    let differs: Vec<&str> = after.lines().filter(|line| !before.contains(line)).collect();
    assert_eq!(differs.len(), 2, "{differs:?}");
    assert!(fs::read(root.join("4097")).expect("read").ends_with(b"new\n"));
    // Elsewhere, everything arrives.
    let other = site.path("other");
    site.bivouac(["flush", &name, "/in", other.to_str().expect("text")]).ok();
    assert_eq!(local(&other, SUMS), local(&root, SUMS));
    site.bivouac(["down", &name]).ok();
}

#[test]
fn lazy_files_stay_lazy_over_a_restart_and_move_nothing_when_servers_come_and_leave() {
    for replicas in ["1", "2"] {
        let site = Site::in_memory(&format!("lazy-grow-{replicas}"));
        let root = source(&site);
        let name = up(&site, &["--replicas", replicas]);
        preload(&site, &name, &root, &["--on-demand"]);
        let all = lazy(&site, &name);
        assert_eq!(all.0, 8);
        site.bivouac(["expand", &name, "--servers", "+2", "--rebuild", "direct"]).ok();
        site.bivouac(["shrink", &name, "--server", "0", "--rebuild", "direct"]).ok();
        assert_eq!((lazy(&site, &name), site.total(&name, "stored")), (all, 0), "no byte was moved");
        site.bivouac(["down", "--keep", &name]).ok();
        site.bivouac(["up", &name]).ok();
        if replicas != "1" {
            all_in_step(&site, &name);
        }
        assert_eq!(lazy(&site, &name), all);
        site.sh(&name, "cat /bivouac/in/deep/er/large > /dev/null").ok();
        site.bivouac(["shrink", &name, "--servers", "-1"]).ok();
        let look = format!("cd /bivouac/in && {SUMS}");
        assert_eq!(site.sh(&name, &look).ok(), local(&root, SUMS));
        let said = site.bivouac(["verify", &name]).ok();
        assert!(said.contains("everything that was checked is as it should be"), "{said}");
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn many_programs_that_open_a_file_at_once_have_it_fetched_once() {
    let site = Site::in_memory("lazy-many");
    let root = site.path("source");
    fs::create_dir_all(&root).expect("a directory");
    fs::write(root.join("large"), bytes(64 << 20, 1)).expect("a file");
    let name = up(&site, &[]);
    preload(&site, &name, &root, &["--on-demand"]);
    let sum = local(&root, "md5sum < large");
    let script = "for i in $(seq 12); do md5sum < /bivouac/in/large & done; wait";
    let got = site.sh(&name, script).ok();
    assert_eq!(got.lines().count(), 12);
    assert!(got.lines().all(|line| line == sum.trim()), "{got}");
    let stored = site.total(&name, "stored");
    assert!(stored <= 65 << 20, "{stored}");
    site.bivouac(["down", &name]).ok();
}

/// Servers are killed while files are fetched; those are started again, or others take their place.
fn killed(replicas: &str) {
    let mut site = Site::in_memory(&format!("lazy-killed-{replicas}"));
    site.restarts_servers();
    let root = site.path("source");
    fs::create_dir_all(&root).expect("a directory");
    for number in 0..4 {
        fs::write(root.join(number.to_string()), bytes(64 << 20, number)).expect("a file");
    }
    let sums = local(&root, "md5sum *");
    let name = up(&site, &["--replicas", replicas, "--restarts", "1000", "--heal-after", "never"]);
    let mut fetched_at_once = 0;
    for round in 0..4u64 {
        let dst = format!("/{round}");
        let words = ["preload", &name, root.to_str().expect("text"), &dst, "--lazy", "--on-demand"];
        site.bivouac(words).ok();
        let script = format!(
            "cd /bivouac{dst} && for i in 0 1 2 3; do md5sum $i > /tmp/{name}.$i & done; wait; cat /tmp/{name}.*; rm /tmp/{name}.*"
        );
        let reader = start(&site, &name, &script);
        std::thread::sleep(Duration::from_millis(60 + round * 60));
        let pid = || site.status(&name)["servers"][(round % 3) as usize]["pid"].as_i64();
        let victim = pid().expect("it is there") as i32;
        Site::kill(victim, Signal::KILL);
        // Who was waiting gets an error at worst, and nobody other bytes.
        let (_, out, _) = ends_with(reader);
        for line in out.lines() {
            assert!(sums.contains(line), "round {round}: {line}");
        }
        fetched_at_once += out.lines().count();
        eventually("it was started again", || {
            pid().is_some_and(|pid| pid != i64::from(victim))
                && site.states(&name).iter().all(|state| state == "up")
        });
        eventually("all can be fetched", || {
            site.sh(&name, &format!("cd /bivouac{dst} && md5sum *")).out == sums
        });
    }
    eventually("nothing is left to be fetched", || lazy(&site, &name) == (0, 0));
    assert!(fetched_at_once > 0, "programs wait for a server that comes back");
    if replicas != "1" {
        all_in_step(&site, &name);
    }
    let said = site.bivouac(["verify", &name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{said}");
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_server_that_is_killed_in_the_middle_of_a_fetch_leaves_nothing_wrong() {
    killed("1");
}

#[test]
fn a_server_with_copies_that_is_killed_in_the_middle_of_a_fetch_leaves_nothing_wrong() {
    killed("2");
}

#[test]
fn who_waits_for_contents_can_be_ended_and_others_get_them_later() {
    let site = Site::in_memory("lazy-waits");
    let root = source(&site);
    let name = up(&site, &[]);
    preload(&site, &name, &root, &["--on-demand"]);
    let stopped = site.server_pid(&name, 1);
    Site::stop(stopped);
    let begun = Instant::now();
    let ended = site.sh(&name, "timeout 1 cat /bivouac/in/deep/er/large");
    let took = begun.elapsed();
    Site::kill(stopped, Signal::CONT);
    assert_eq!((ended.code, ended.out.len()), (124, 0), "{}", ended.err);
    assert!(took < Duration::from_secs(8), "{took:?}");
    let sum = local(&root, "md5sum < deep/er/large");
    eventually("it is fetched", || site.sh(&name, "md5sum < /bivouac/in/deep/er/large").out == sum);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn an_interrupted_background_fetch_goes_on_when_the_command_is_repeated() {
    let site = Site::in_memory("lazy-again");
    let root = site.path("source");
    fs::create_dir_all(&root).expect("a directory");
    for number in 0..200 {
        fs::write(root.join(number.to_string()), bytes(50_000, number)).expect("a file");
    }
    let name = up(&site, &[]);
    let from = root.to_str().expect("text");
    let words = ["preload", &name, from, "/in", "--lazy", "--max-rate", "1M", "--streams", "1"];
    let mut command = site.command(words);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
    eventually("names are there", || site.sh(&name, "ls /bivouac/in | wc -l").out == "200\n");
    eventually("some contents are there", || (1..200).contains(&lazy(&site, &name).0));
    Site::kill(child.id() as i32, Signal::INT);
    child.wait().expect("ends");
    let left = lazy(&site, &name).0;
    assert!((1..200).contains(&left), "{left}");
    // What others read meanwhile is right.
    assert_eq!(site.sh(&name, "cd /bivouac/in && md5sum 199 7").ok(), local(&root, "md5sum 199 7"));
    let again = site.bivouac(["preload", &name, from, "/in", "--lazy"]);
    assert_eq!(again.code, 0, "{}", again.err);
    assert!(again.err.contains("fetched") && again.err.contains("200 there already"), "{}", again.err);
    assert_eq!(lazy(&site, &name), (0, 0));
    let sums = format!("cd /bivouac/in && {SUMS}");
    assert_eq!(site.sh(&name, &sums).ok(), local(&root, SUMS));
    site.bivouac(["down", &name]).ok();
}

#[test]
fn options_that_make_no_sense_together_are_refused() {
    let site = Site::in_memory("lazy-refused");
    let name = up(&site, &[]);
    site.bivouac(["preload", &name, "/etc", "/in", "--on-demand"]).fails(2, &["--lazy"]);
    site.bivouac(["preload", &name, "/etc", "/in", "--lazy", "--checksum"]).fails(2, &["--checksum"]);
    site.bivouac(["preload", &name, "/nowhere", "/in", "--lazy"]).fails(68, &["/nowhere"]);
    site.bivouac(["down", &name]).ok();
}

/// The command of `run --lazy` does not wait for contents, and `run` ends without those that nobody wanted.
#[test]
fn a_run_begins_with_the_names_and_ends_without_what_nobody_has_opened() {
    if skipped_without_root("mounting") {
        return;
    }
    let site = Site::in_memory("lazy-run");
    let dir = FailingDir::new("lazy-run");
    for tree in ["first", "second"] {
        fs::create_dir(dir.behind().join(tree)).expect("a directory");
        for number in 0..60 {
            let path = dir.behind().join(format!("{tree}/f{number:02}"));
            fs::write(path, bytes(5000, number)).expect("a file");
        }
    }
    let (root, out) = (dir.path().join("first"), site.path("out"));
    let flush = format!("/in:{}", out.display());
    let run = |tree: &str, script: &str, options: &[&str]| {
        let preload = format!("{}:/in", dir.path().join(tree).display());
        let words = ["run", "--servers", "2", "--lazy", "--preload", &preload];
        site.bivouac(words.iter().chain(options).copied().chain(["--", "bash", "-c", script]))
    };
    // What the program writes stays, whether the contents are there or not; everything comes by itself.
    let writes = format!(
        "cd /bivouac/in && echo mine > f59 && cat f58 > /dev/null && echo more >> f58 && sleep 2 \
         && mv {0}/f00 {0}/away && cat f00 && mv {0}/away {0}/f00",
        root.display()
    );
    let done = run("first", &writes, &["--flush-on-exit", &flush]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.err.contains("the names of 60 files are there"), "{}", done.err);
    assert_eq!(fs::read_to_string(out.join("f59")).expect("flushed"), "mine\n");
    assert_eq!(fs::read(out.join("f58")).expect("flushed"), [&bytes(5000, 58)[..], b"more\n"].concat());
    assert_eq!(fs::read_dir(&out).expect("a directory").count(), 2, "what was not changed is not flushed");
    // All of it would take 15 s.
    dir.slow_down(Slow { paths: vec!["second".into()], on: On::READ, wait: Duration::from_secs(1) });
    let begun = Instant::now();
    let done = run("second", "test $(ls /bivouac/in | wc -l) = 60 && md5sum < /bivouac/in/f33", &[]);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}: {}", begun.elapsed(), done.err);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(done.out, local(&dir.behind(), "md5sum < second/f33"));
    assert!(done.err.contains("to be fetched when they are opened"), "{}", done.err);
    // A tree that is not there ends it before the command begins.
    let (missing, ran) = (format!("{}:/in", root.join("missing").display()), out.join("ran"));
    let touch = ["--", "touch", ran.to_str().expect("text")];
    site.bivouac(["run", "--lazy", "--preload", &missing].iter().copied().chain(touch))
        .fails(68, &["missing"]);
    assert!(!ran.exists() && site.deployments().is_empty());
}
