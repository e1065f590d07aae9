//! Set-user-ID and set-group-ID bits go exactly when Linux takes them off: every operation on every kind of
//! inode is compared with a local tmpfs, by the superuser and by an ordinary user, with the preload library
//! and in a mount.

use bivouac_tests::{Site, bivouac, skipped_without_mount, skipped_without_root};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/setid.py");
/// An ordinary user, with a group besides his own.
const USER: &str = "setpriv --reuid=1000 --regid=1000 --groups=1000,2000";
/// The system's own: everybody may run it.
const PYTHON: &str = "/usr/bin/python3";

/// A directory in memory that is removed in the end.
struct Local(PathBuf);

impl Local {
    fn new(name: &str) -> Local {
        let path = PathBuf::from(format!("/dev/shm/bivouac-setid-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("makes it");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("opens it");
        std::fs::copy(SCRIPT, path.join("setid.py")).expect("copies the script");
        Local(path)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn shell(script: &str) -> String {
    let output = Command::new("sh").args(["-c", script]).output().expect("runs");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Fails with the lines that differ. tmpfs has no ZERO_RANGE; here, it does to a mode what the other
/// allocations do.
fn compare(who: &str, expected: &str, found: &str) {
    let lines = |text: &str| -> Vec<String> {
        let plain = text.lines().map(str::to_owned);
        plain.filter(|line| !line.contains(": zero")).collect()
    };
    let (expected_lines, found_lines) = (lines(expected), lines(found));
    assert!(expected_lines.len() > 400, "{who}: {}", expected_lines.len());
    let different: Vec<String> = expected_lines
        .iter()
        .zip(&found_lines)
        .filter(|(expected, found)| expected != found)
        .map(|(expected, found)| format!("expected {expected}\n   found {found}"))
        .collect();
    assert!(different.is_empty(), "{who}: {} lines\n{}", different.len(), different.join("\n"));
    assert_eq!(expected_lines.len(), found_lines.len(), "{who}");
    let mode = |name: &str, kind: &str| {
        let start = format!("{kind} file, 6666: {name}: done, ");
        found.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    };
    for kind in ["small", "large"] {
        assert_eq!(mode("zero, keeping the size", kind), mode("fallocate within", kind), "{who}");
    }
}

fn local(local: &Local, user: bool) -> String {
    let (prefix, directory) = if user { (USER, "user") } else { ("", "root") };
    let path = local.0.join(directory);
    std::fs::create_dir(&path).expect("makes it");
    if user {
        chown(&path, Some(1000), Some(1000)).expect("gives it away");
    }
    shell(&format!("{prefix} {PYTHON} {}/setid.py {}", local.0.display(), path.display()))
}

#[test]
fn set_id_bits_go_as_locally_with_the_library() {
    let site = Site::new("setid-library");
    let place = Local::new("library");
    let name = site.up(2);
    let script = format!("mkdir /bivouac/d && {PYTHON} {}/setid.py /bivouac/d", place.0.display());
    compare("own user", &local(&place, false), &site.sh(&name, &script).ok());
}

#[test]
fn set_id_bits_go_as_locally_with_the_library_of_an_ordinary_user() {
    if skipped_without_root("being another user (the test above has been an ordinary user's)") {
        return;
    }
    let place = Local::new("user");
    let script = format!("mkdir /bivouac/d && {PYTHON} {}/setid.py /bivouac/d", place.0.display());
    let found = as_user(&place, &script);
    compare("ordinary user", &local(&place, true), &found);
}

/// A relaxation: a process that had a file in blocks open already does not notice set-id bits that another
/// one sets.
#[test]
fn set_id_bits_that_come_after_the_opening_stay_until_the_next_one() {
    if skipped_without_root("being another user") {
        return;
    }
    let place = Local::new("later");
    let script = format!(
        "cd /bivouac && head -c 100000 /dev/zero > f && exec 3<> f && chmod 4755 f && echo x >&3 && stat -c %a f && \
         echo x >> f && stat -c %a f && chmod 4755 f && {PYTHON} -c \"open('f', 'r+').write('y')\" && stat -c %a f"
    );
    assert_eq!(as_user(&place, &script), "4755\n755\n755\n");
}

/// Runs a script in a deployment of an ordinary user's own, with the library; what it prints.
fn as_user(place: &Local, script: &str) -> String {
    let home = place.0.join("home");
    std::fs::create_dir(&home).expect("makes it");
    chown(&home, Some(1000), Some(1000)).expect("gives it away");
    let library = bivouac().with_file_name("libbivouac_preload.so");
    for file in [bivouac(), Path::new(&library)] {
        std::fs::copy(file, home.join(file.file_name().expect("a name"))).expect("copies the programs");
    }
    std::fs::write(home.join("script"), script).expect("writes the script");
    let shown = home.display();
    let name = place.0.file_name().expect("a name").to_string_lossy();
    let run = |arguments: &str| {
        shell(&format!("cd / && {USER} env BIVOUAC_HOME={shown}/h {shown}/bivouac {arguments}"))
    };
    run(&format!("up {name} --servers 2"));
    let outcome = std::panic::catch_unwind(|| run(&format!("exec {name} -- sh {shown}/script")));
    run(&format!("down {name}"));
    outcome.expect("runs")
}

#[test]
fn set_id_bits_go_as_locally_in_a_mount() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("setid-mount");
    let place = Local::new("mount");
    let name = site.up(2);
    let run = |script: &str| site.bivouac(["exec", &name, "--fuse", "--", "sh", "-c", script]).ok();
    let script = format!("mkdir /bivouac/d && {PYTHON} {}/setid.py /bivouac/d", place.0.display());
    compare("own user", &local(&place, false), &run(&script));
    let script = format!(
        "mkdir /bivouac/u && chown 1000:1000 /bivouac/u && {USER} {PYTHON} {}/setid.py /bivouac/u",
        place.0.display()
    );
    compare("ordinary user", &local(&place, true), &run(&script));
}

/// What the user owns is of a group that the user is not in: set-group-ID goes then also without group
/// execution.
#[test]
fn set_id_bits_of_a_foreign_group_go_as_locally_in_a_mount() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("setid-foreign");
    let place = Local::new("foreign");
    let name = site.up(2);
    let script = |directory: &Path| {
        let (shown, script) = (directory.display(), place.0.display());
        format!("mkdir {shown} && {PYTHON} {script}/setid.py {shown} 1000")
    };
    let expected = shell(&script(&place.0.join("there")));
    for access in ["fuse", "both"] {
        let script = script(&Path::new("/bivouac").join(access));
        let found = site.bivouac(["exec", &name, "--access", access, "--", "sh", "-c", &script]).ok();
        compare(access, &expected, &found);
    }
}

/// A truncation or an allocation through a descriptor takes the bits off also if another node has given them
/// since, unseen by the kernel of this one.
#[test]
fn set_id_bits_that_were_given_elsewhere_go_with_a_truncation_or_an_allocation_in_a_mount() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("setid-elsewhere");
    let name = site.up(2);
    site.sh(&name, "chmod 755 /bivouac && cd /bivouac && head -c 100000 /dev/zero > f && chown 1000:1000 f")
        .ok();
    for change in ["os.ftruncate(file, 5)", "os.posix_fallocate(file, 0, 200000)"] {
        let python = format!(
            "import os, sys; file = os.open('/bivouac/f', os.O_RDWR); print(1, flush=True); input(); {change}"
        );
        let line = format!("exec {USER} {PYTHON} -c \"{python}\"");
        let mut command = site.command(["exec", &name, "--access", "fuse", "--", "sh", "-c", &line]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut said).expect("it says something");
        assert_eq!(said, "1\n");
        site.sh(&name, "chmod 6777 /bivouac/f").ok();
        writeln!(child.stdin.take().expect("piped")).expect("it listens");
        assert!(child.wait().expect("it ends").success());
        assert_eq!(site.sh(&name, "stat -c %a /bivouac/f").ok(), "777\n", "{change}");
    }
}
