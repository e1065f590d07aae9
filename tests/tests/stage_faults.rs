//! What preload and flush do when something goes wrong, and when they are repeated.

use bivouac_tests::staging::{Small, contents, make_tree, workers};
use bivouac_tests::{Finished, Site, bivouac, eventually, finish, skipped_without_root};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What of a tree inside is as at its source; compared by flushing all of it.
fn assert_same(site: &Site, name: &str, inside: &str, source: &Path) {
    let out = site.path("compared");
    let _ = fs::remove_dir_all(&out);
    site.bivouac(["flush", name, inside, &out.display().to_string()]).ok();
    assert_eq!(contents(&out), contents(source));
}

#[test]
fn a_killed_command_leaves_no_worker_and_its_repetition_continues() {
    let site = Site::new("stage-killed");
    let name = site.up(2);
    let (from, to) = (site.path("from"), site.path("to"));
    make_tree(&from, 8, 40, 60_000);
    let (from_text, to_text) = (from.display().to_string(), to.display().to_string());
    let preload = ["preload", &name, &from_text, "/in"];
    let flush = ["flush", &name, "/in", &to_text];
    for (words, counted) in [(preload, "directories"), (flush, "directories")] {
        let slow = [&words[..], &["--max-rate", "4M", "--streams", "4"]].concat();
        let mut child = site.command(slow).stderr(Stdio::null()).spawn().expect("starts");
        eventually("half is copied", || match words[0] {
            "preload" => {
                site.sh(&name, "find /bivouac/in -type f | wc -l").out.trim().parse().unwrap_or(0) > 100
            }
            _ => to.exists() && contents(&to).len() > 100,
        });
        assert!(!workers(&site).is_empty());
        Site::kill(child.id() as i32, Signal::KILL);
        child.wait().expect("ended");
        eventually("the workers have ended", || workers(&site).is_empty());
        if words[0] == "flush" {
            // What has a final name is complete.
            let all = contents(&from);
            for file in contents(&to).iter().filter(|(name, _)| !name.to_string_lossy().ends_with(".part")) {
                assert!(all.contains(file), "{}", file.0.display());
            }
        }
        let again = site.bivouac(words);
        assert_eq!(again.code, 0, "{}", again.err);
        assert!(again.err.contains(counted) && again.err.contains("there already"), "{}", again.err);
        let there = again.err.split(", ").find_map(|part| part.strip_suffix(" there already"));
        let there: u32 = there.and_then(|n| n.parse().ok()).expect("a number");
        assert!((50..320).contains(&there), "{}", again.err);
    }
    assert_eq!(contents(&to), contents(&from), "no temporary file is left");
    assert_same(&site, &name, "/in", &from);
}

#[test]
fn a_command_that_was_suspended_goes_on() {
    let site = Site::new("stage-suspended");
    let name = site.up(1);
    let from = site.path("from");
    make_tree(&from, 4, 20, 100_000);
    let words = ["preload", &name, &from.display().to_string(), "/in", "--max-rate", "256K"];
    let child = site.command(words).stderr(Stdio::piped()).spawn().expect("starts");
    let copied = || site.sh(&name, "find /bivouac/in -type f | wc -l").out.trim().parse().unwrap_or(0);
    eventually("it copies", || copied() > 3);
    Site::stop(child.id() as i32);
    // Longer than a worker goes on without the command.
    let mut before: u32 = copied();
    eventually("the worker pauses", || {
        std::thread::sleep(std::time::Duration::from_secs(2));
        let after: u32 = copied();
        std::mem::replace(&mut before, after) == after
    });
    std::thread::sleep(std::time::Duration::from_secs(11));
    assert!(workers(&site).len() == 1 && copied() < 80, "it waits");
    Site::kill(child.id() as i32, Signal::CONT);
    let done = Finished::of(child.wait_with_output().expect("ends"));
    assert!(done.code == 0 && !done.err.contains("was lost"), "{}", done.err);
    assert_same(&site, &name, "/in", &from);
}

#[test]
fn a_full_backend_is_told_by_file_and_holds_whole_files_only() {
    if skipped_without_root("mounting a file system") {
        return;
    }
    let site = Site::new("stage-full");
    let name = site.up(2);
    let _small = Small::mount(&site.path("small"), 8);
    let (from, to) = (site.path("from"), site.path("small/out"));
    fs::create_dir(&from).expect("a directory");
    for number in 0..20 {
        fs::write(from.join(format!("{number}")), vec![number; 1 << 20]).expect("a file");
    }
    // One that is divided, and does not fit in any case.
    fs::write(from.join("large"), vec![7; 30 << 20]).expect("a file");
    site.bivouac(["preload", &name, &from.display().to_string(), "/in"]).ok();
    let flushed = site.bivouac(["flush", &name, "/in", &to.display().to_string()]);
    assert_eq!(flushed.code, 68, "{}", flushed.err);
    let told = flushed.err.lines().filter(|line| line.contains("No space left")).count();
    let there = contents(&to);
    assert!(there.len() >= 4, "{} files fit", there.len());
    assert_eq!(there.len() + told, 21, "{}", flushed.err);
    let all = contents(&from);
    for file in &there {
        assert!(all.contains(file), "{} is not whole", file.0.display());
    }
}

#[test]
fn a_file_without_permission_is_told_and_the_rest_is_copied() {
    if skipped_without_root("becoming another user") {
        return;
    }
    let site = Site::new("stage-permission");
    let from = site.path("from");
    fs::create_dir_all(from.join("closed")).expect("a directory");
    for file in ["open", "secret", "closed/file"] {
        fs::write(from.join(file), file).expect("a file");
    }
    let script = format!(
        "chmod 600 {0}/secret; chmod 700 {0}/closed; install -d -o 65534 {1}",
        from.display(),
        site.home().display()
    );
    assert!(Command::new("sh").args(["-c", &script]).status().expect("sh").success());
    let as_other = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(bivouac()).args(words);
        command.env("BIVOUAC_HOME", site.home()).env("HOME", site.home()).current_dir("/");
        finish(command)
    };
    let list = "cd /bivouac/in && cat open && find . | sort | tr '\\n' ' '";
    as_other(&["up", &site.name("u")]).ok();
    let preloaded = as_other(&["preload", &site.name("u"), &from.display().to_string(), "/in"]);
    let listed = as_other(&["exec", &site.name("u"), "--", "sh", "-c", list]);
    // The owner of the copy may not write it, and yet a newer one replaces it.
    fs::remove_dir_all(from.join("closed")).expect("removed");
    fs::remove_file(from.join("secret")).expect("removed");
    let read_only = fs::Permissions::from_mode(0o444);
    let mut newer = Vec::new();
    for content in ["old", "newer"] {
        fs::write(from.join("open"), content).expect("written");
        fs::set_permissions(from.join("open"), read_only.clone()).expect("a mode");
        newer.push(as_other(&["preload", &site.name("u"), &from.display().to_string(), "/in"]).code);
    }
    let read = as_other(&["exec", &site.name("u"), "--", "cat", "/bivouac/in/open"]);
    as_other(&["down", &site.name("u")]).ok();
    assert_eq!(preloaded.code, 68, "{}", preloaded.err);
    for path in ["secret: Permission denied", "closed: Permission denied"] {
        assert!(preloaded.err.contains(path), "{path}: {}", preloaded.err);
    }
    assert_eq!(listed.ok(), "open. ./closed ./open ");
    assert_eq!((newer, read.ok().as_str()), (vec![0, 0], "newer"));
}

#[test]
fn a_checkpoint_has_each_file_as_it_was_at_one_time() {
    let site = Site::new("stage-moving");
    let name = site.up(2);
    let to = site.path("to");
    // All bytes of the file are the same at any time between two of its rounds, and during none.
    let writer = r#"
import os, time
f = os.open('/bivouac/d/state', os.O_RDWR | os.O_CREAT)
round = 0
while not os.path.exists('/bivouac/stop'):
    round = (round + 1) % 250
    for at in range(0, 2 << 20, 65536):
        os.pwrite(f, bytes([round]) * 65536, at)
    time.sleep(0.15)
"#;
    site.sh(&name, "mkdir /bivouac/d; echo still > /bivouac/d/still").ok();
    let mut child = site.command(["exec", &name, "--", "python3", "-c", writer]).spawn().expect("starts");
    eventually("it writes", || site.sh(&name, "test -s /bivouac/d/state").code == 0);
    let mut whole = 0;
    for _ in 0..20 {
        let flushed = site.bivouac(["flush", &name, "/d", &to.display().to_string(), "--changed", "--force"]);
        match flushed.code {
            0 => {
                let state = fs::read(to.join("state")).expect("there");
                assert!(state.iter().all(|byte| *byte == state[0]), "a file of two times");
                whole += 1;
            }
            68 => assert!(flushed.err.contains("changed while it was"), "{}", flushed.err),
            code => panic!("{code}: {}", flushed.err),
        }
    }
    site.sh(&name, "touch /bivouac/stop").ok();
    child.wait().expect("ended");
    assert!(whole > 0, "it could be read at least once");
    assert_eq!(fs::read(to.join("still")).expect("there"), b"still\n");
}

#[test]
fn a_changed_flush_copies_what_programs_changed_and_nothing_over_others_changes() {
    let site = Site::new("stage-changed");
    let name = site.up(3);
    let (from, to) = (site.path("from"), site.path("to"));
    make_tree(&from, 2, 10, 9000);
    fs::write(from.join("large"), vec![3; 20 << 20]).expect("a file");
    fs::hard_link(from.join("large"), from.join("also large")).expect("a link");
    let (from_text, to_text) = (from.display().to_string(), to.display().to_string());
    site.bivouac(["preload", &name, &from_text, "/in"]).ok();
    let changed =
        |to: &str, more: &[&str]| site.bivouac([&["flush", &name, "/in", to, "--changed"], more].concat());
    let files = |finished: &Finished| -> u32 {
        let line = finished.err.lines().find(|line| line.starts_with("flushed")).expect("a summary");
        line.split(": ").nth(1).and_then(|rest| rest.split(" files").next()?.parse().ok()).expect("a number")
    };
    let nothing = changed(&from_text, &[]);
    assert_eq!((nothing.code, files(&nothing)), (0, 0), "{}", nothing.err);
    // Written, written with the old time, renamed, made anew under an old name, and new; in the last one also
    // in a file in blocks that keeps its size.
    site.sh(
        &name,
        r#"cd "/bivouac/in/directory 0" && echo new > "file 1" && t=$(stat -c %y "file 2") &&
        printf X | dd of="file 2" conv=notrunc status=none && touch -d "$t" "file 2" && mv "file 3" moved &&
        cp -p "file 4" x && mv x "file 4" && echo y > y && t=$(stat -c %y ../large) &&
        printf X | dd of=../large bs=1 seek=12345678 conv=notrunc status=none && touch -d "$t" ../large"#,
    )
    .ok();
    let flushed = changed(&from_text, &[]);
    assert_eq!((flushed.code, files(&flushed)), (0, 7), "{}", flushed.err);
    let again = changed(&from_text, &[]);
    assert_eq!((again.code, files(&again)), (0, 0), "{}", again.err);
    // All of it is as inside, but for what was renamed, which a mirror alone removes.
    fs::remove_file(from.join("directory 0/file 3")).expect("the old name is left");
    site.bivouac(["flush", &name, "/in", &to_text]).ok();
    assert_eq!(contents(&from), contents(&to));
    // Changed on both sides.
    site.sh(&name, r#"cd "/bivouac/in/directory 1" && echo mine > "file 1" && echo mine > "file 2""#).ok();
    fs::write(from.join("directory 1/file 1"), "theirs").expect("written");
    let conflict = changed(&from_text, &[]);
    conflict.fails(68, &["directory 1/file 1", "--force"]);
    assert_eq!(fs::read(from.join("directory 1/file 1")).expect("there"), b"theirs");
    assert_eq!(fs::read(from.join("directory 1/file 2")).expect("there"), b"mine\n");
    changed(&from_text, &["--force"]).ok();
    assert_eq!(fs::read(from.join("directory 1/file 1")).expect("there"), b"mine\n");
}

#[test]
fn a_run_flushes_while_its_command_works_and_when_it_is_terminated() {
    let site = Site::new("stage-every");
    let to = site.path("to");
    let exit = format!("/out:{}", to.display());
    let script = "trap 'echo warned > /bivouac/out/warned' TERM; mkdir /bivouac/out; echo 1 > /bivouac/out/first; \
        while ! test -e /bivouac/out/go; do sleep 0.1; test -e GO && touch /bivouac/out/go; done; echo 3 > /bivouac/out/last; exit 7";
    let go = site.path("go");
    let script = script.replace("GO", &go.display().to_string());
    let name = site.name("r");
    let every =
        ["run", "--name", &name, "--flush-on-exit", &exit, "--flush-every", "1s", "--", "sh", "-c", &script];
    let child = site.command(every).stderr(Stdio::piped()).spawn().expect("starts");
    eventually("the first checkpoint", || to.join("first").exists());
    fs::write(&go, "").expect("written");
    let ended = Finished::of(child.wait_with_output().expect("ends"));
    assert_eq!(ended.code, 7, "{}", ended.err);
    assert_eq!(fs::read(to.join("last")).expect("there"), b"3\n");
    // Without a period, only the warning has it flushed before the end.
    fs::remove_file(&go).expect("removed");
    fs::remove_dir_all(&to).expect("removed");
    let once = ["run", "--name", &name, "--flush-on-exit", &exit, "--", "sh", "-c", &script];
    let child = site.command(once).stderr(Stdio::piped()).spawn().expect("starts");
    eventually("it works", || site.sh(&name, "test -e /bivouac/out/first").code == 0);
    assert!(!to.exists());
    Site::kill(child.id() as i32, Signal::TERM);
    eventually("what was changed is flushed", || to.join("first").exists());
    fs::write(&go, "").expect("written");
    let ended = Finished::of(child.wait_with_output().expect("ends"));
    assert_eq!(ended.code, 7, "{}", ended.err);
    assert!(to.join("warned").exists() && to.join("last").exists());
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn what_is_copied_can_be_chosen_and_wrong_choices_are_explained() {
    let site = Site::new("stage-choice");
    let name = site.up(1);
    let (from, list) = (site.path("from"), site.path("list"));
    make_tree(&from, 2, 3, 100);
    fs::write(from.join("directory 1/x.tmp"), "x").expect("a file");
    fs::write(&list, "directory 1/file 1\ndirectory 0/\nmissing\n").expect("a file");
    let (from, list) = (from.display().to_string(), list.display().to_string());
    let preload = |to: &str, more: &[&str]| site.bivouac([&["preload", &name, &from, to], more].concat());
    let inside =
        |to: &str| site.sh(&name, &format!("cd /bivouac{to} && find . -type f | sort | tr '\\n' ','")).out;
    let dry = preload("/dry", &["--dry-run", "--exclude", "*.tmp", "--exclude", "/directory 0"]);
    assert_eq!(dry.ok(), "copy directory 1/file 0\ncopy directory 1/file 1\ncopy directory 1/file 2\n");
    assert_ne!(site.sh(&name, "test -e /bivouac/dry").code, 0, "a dry run makes nothing");
    preload("/some", &["--include", "*/", "--include", "*.tmp", "--exclude", "*"]).ok();
    assert_eq!(inside("/some"), "./directory 1/x.tmp,");
    preload("/listed", &["--files-from", &list]).fails(68, &["missing", "list of files"]);
    assert_eq!(
        inside("/listed"),
        "./directory 0/file 0,./directory 0/file 1,./directory 0/file 2,./directory 1/file 1,"
    );
    preload("/x", &["--files-from", "/no/such/list"]).fails(65, &["/no/such/list", "--files-from"]);
    preload("/x", &["--exclude", "a[b"]).fails(65, &["without a ]"]);
    for wrong in [
        &["--include", "*"][..],
        &["--streams", "0"],
        &["--max-rate", "1"],
        &["--delete", "--files-from", &list],
    ] {
        let said = preload("/x", wrong);
        assert_eq!(said.code, 2, "{wrong:?}: {}", said.err);
    }
    site.bivouac(["flush", &name, "/some", &from, "--force"]).fails(2, &["--changed"]);
}
