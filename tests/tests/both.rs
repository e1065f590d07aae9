//! The mount and the library together: data goes past the mount, and nobody can tell.

use bivouac_tests::{Finished, Site, bivouac, finish, skipped_without_mount};
use std::path::Path;
use std::process::Command;

/// A program into which no library can be loaded.
fn stranger(site: &Site) -> String {
    let program = site.path("stranger");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/stranger.c");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-static", "-o"]).arg(&program).arg(source);
    finish(compiler).ok();
    program.to_string_lossy().into_owned()
}

#[test]
fn offsets_appends_mappings_and_handed_on_descriptors_are_as_on_a_local_directory() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("beside");
    // Small blocks, so that files lie on all servers.
    let name = site.up_with(4, &["--block-size", "64K"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/beside.py");
    let stranger = stranger(&site);
    let local = site.path("local");
    std::fs::create_dir(&local).expect("a directory");
    let mut alone = Command::new("python3");
    alone.arg(&script).arg(&local).arg(&stranger);
    let expected = finish(alone).ok();
    assert_eq!(expected.lines().count(), 10);
    for (access, shown) in [("fuse", ""), ("both", "past the mount\n")] {
        let line = format!(
            "mkdir /bivouac/{access} && python3 {} /bivouac/{access} {stranger} {} {name}",
            script.display(),
            bivouac().display()
        );
        let said = site.bivouac(["exec", &name, "--access", access, "--", "bash", "-c", &line]);
        assert_eq!(said.ok(), format!("{expected}{shown}"), "{access}");
    }
}

#[test]
fn processes_that_use_one_file_in_turns_see_each_others_bytes() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("both-turns");
    let name = site.up_with(4, &["--block-size", "16K"]);
    let turns = format!("python3 -B {}/programs/turns.py", env!("CARGO_MANIFEST_DIR"));
    // Each has the file mapped all the time.
    for (access, seed) in [("fuse", 7), ("both", 8)] {
        let line = format!(
            "cd /bivouac || exit 1; {turns} 2500 {seed} kept '{turns} work f' '{turns} work f'; rm f"
        );
        let said = site.bivouac(["exec", &name, "--access", access, "--", "bash", "-c", &line]);
        assert_eq!(said.ok(), "2500 operations\n", "{access}");
    }
}

#[test]
fn stores_into_a_mapping_and_writes_to_the_same_pages_are_all_kept() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("both-pages");
    let program = site.path("stores_and_writes");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/stores_and_writes.c");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-pthread", "-o"]).arg(&program).arg(source);
    finish(compiler).ok();
    for servers in [1, 4] {
        let name = site.up(servers);
        for (access, passthrough) in [("fuse", "on"), ("fuse", "off"), ("both", "on"), ("both", "off")] {
            // Files that are new, and files in blocks, which the kernel may read and write itself.
            let script = format!(
                "set -e; cd /bivouac; for i in $(seq 12); do head -c 8192 /dev/zero > old; \
                 for f in old new; do timeout 60 {} $f 16 2; done; rm old new; done",
                program.display()
            );
            let words = ["exec", &name, "--access", access, "--", "bash", "-c", &script];
            let mut command = site.command(words);
            command.env("BIVOUAC_PASSTHROUGH", passthrough);
            let said = finish(command);
            assert_eq!(
                said.ok(),
                "0 missing\n".repeat(24),
                "{access}, passthrough {passthrough}, {servers} servers"
            );
        }
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn directories_that_others_have_moved_are_renamed_and_used_as_if_they_had_been_moved_here() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("both-moved");
    let name = site.up(2);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/moved.py");
    let words = ["exec", &name, "--access", "both", "--", "python3", "-B"];
    let mut command = site.command(words);
    command.arg(script).arg(bivouac()).arg(&name);
    assert_eq!(finish(command).ok(), "renamed\nused while moved\n");
}

fn inside(site: &Site, name: &str, script: &str) -> Finished {
    site.bivouac(["exec", name, "--access", "both", "-v", "--", "bash", "-c", script])
}

#[test]
fn sqlite_writes_ahead_with_two_writers_beside_a_mount() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("both-wal");
    let name = site.up(4);
    let script = r#"set -eu; cd /bivouac
sqlite3 w.db 'pragma journal_mode=wal; create table t(w text, n int);'
w() { for i in $(seq 30); do echo "begin immediate; insert into t values('$1', $i); insert into t values('$1', -$i); commit;"; done | sqlite3 -cmd '.timeout 30000' w.db; }
w a & w b & sqlite3 -cmd '.timeout 30000' w.db 'select count(*) >= 0 from t'; wait
sqlite3 w.db 'select w, count(*), sum(n) from t group by w order by w; pragma integrity_check; pragma wal_checkpoint(truncate);'"#;
    let said = inside(&site, &name, script);
    assert!(said.err.contains("access: both"), "{said:?}");
    assert_eq!(said.ok(), "wal\n1\na|60|0\nb|60|0\nok\n0|0|0\n");
}

#[test]
fn processes_that_the_mount_does_not_reach_have_the_library_alone() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("both-outside");
    let name = site.up(2);
    // In the mount namespace of the machine, as what a launcher starts on another node.
    let script = format!(
        "echo inside > /bivouac/f; nsenter --mount=/proc/{}/ns/mnt bash -c 'cat < /bivouac/f; echo outside >> /bivouac/f; \
         grep -c \" /bivouac \" /proc/self/mountinfo'; cat /bivouac/f",
        std::process::id()
    );
    assert_eq!(inside(&site, &name, &script).ok(), "inside\n0\ninside\noutside\n");
}

#[test]
fn a_program_that_loads_no_library_gets_a_mount_unasked() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("both-auto");
    let name = site.up(1);
    let stranger = stranger(&site);
    let script = format!("#!{stranger} write\n");
    std::fs::write(site.path("script"), script).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(site.path("script"), mode).expect("set");
    site.sh(&name, "head -c 100 /dev/zero > /bivouac/zeros").ok();
    let said = site.bivouac(["exec", &name, "-v", "--", &stranger, "map", "/bivouac/zeros"]);
    assert!(said.err.contains("access: both (no library"), "{said:?}");
    assert_eq!(said.out, "\0".repeat(100));
    let said = site.bivouac(["exec", &name, "-v", "--", &site.path("script").to_string_lossy()]);
    assert!(said.err.contains("access: both (no library"), "{said:?}");
    let said = site.bivouac(["exec", &name, "-v", "--", "cat", "/bivouac/zeros"]);
    assert!(said.err.contains("access: preload\n"), "{said:?}");
}

#[test]
fn other_users_and_a_dead_server_are_the_kernel_s_business() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("both-users");
    let name = site.up(2);
    // Another user cannot read the deployment's key: his data goes through the mount, and nothing is said of
    // it.
    let script = r#"set -eu; chmod 1777 /bivouac
setpriv --reuid nobody --regid nogroup --clear-groups bash -c 'for i in 1 2 3 4 5 6; do echo $i; done > /bivouac/n; cat /bivouac/n | wc -l; stat -c %U /bivouac/n'
touch /bivouac/s; chmod 6777 /bivouac/s
python3 - <<'END'
import os
f = os.open('/bivouac/s', os.O_RDWR)
for i in range(8): os.write(f, b'x')
print(oct(os.stat('/bivouac/s').st_mode))
END
"#;
    assert_eq!(inside(&site, &name, script).ok(), "6\nnobody\n0o106777\n");
}

#[test]
fn a_mount_that_is_there_is_used() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("both-there");
    let (at, other) = (site.path("at"), site.path("other"));
    let name = site.up_with(2, &["--mount", &at.to_string_lossy()]);
    let stranger = site.up_with(1, &["--mount", &at.to_string_lossy()]);
    for path in [&at, &other] {
        std::fs::create_dir(path).expect("a mount point");
    }
    let namespace = std::fs::read_link("/proc/self/ns/mnt").expect("a namespace");
    let script = r#"
import os, sys
path = sys.argv[1] + '/f'
f = os.open(path, os.O_RDWR | os.O_CREAT)
for i in range(8): os.pwrite(f, b'x' * 5000, i * 5000)
links = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}')]
print(os.readlink('/proc/self/ns/mnt'), os.path.ismount(sys.argv[1]), any(link.startswith('socket:') for link in links))
"#;
    let run = |access: &str| {
        site.bivouac([
            "exec",
            &name,
            "--access",
            access,
            "-v",
            "--",
            "python3",
            "-c",
            script,
            &at.to_string_lossy(),
        ])
    };
    // At another place it is of no use to programs that look for files at the mount path.
    site.bivouac(["mount", &name, &other.to_string_lossy(), "--daemon"]).ok();
    let own = run("both");
    assert!(own.err.contains("the command's own") && own.err.contains("/other is not where"), "{own:?}");
    assert!(own.out.contains(" True True") && !own.out.contains(&*namespace.to_string_lossy()), "{own:?}");

    site.bivouac(["mount", &name, &at.to_string_lossy(), "--daemon"]).ok();
    for (access, past) in [("both", "True"), ("fuse", "False")] {
        let shared = run(access);
        assert!(shared.err.contains("the one that is at"), "{shared:?}");
        assert_eq!(shared.out, format!("{} True {past}\n", namespace.display()));
    }
    assert_eq!(std::fs::metadata(at.join("f")).expect("it is there").len(), 40_000);
    // Another deployment does not take it for its own.
    let said = site.bivouac(["exec", &stranger, "--access", "both", "--", "ls", "-A", &at.to_string_lossy()]);
    assert_eq!(said.ok(), "");
    for path in [&at, &other] {
        let mut command = Command::new("umount");
        command.arg(path);
        finish(command).ok();
    }
}

#[test]
fn a_process_killed_in_a_write_does_not_delay_the_first_mapping() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("both-killed");
    let name = site.up(2);
    // The description outlives the writer, who is killed in one of his writes: there is next to nothing in
    // between.
    let script = r#"
import mmap, os, signal, time
f = os.open('/bivouac/f', os.O_RDWR | os.O_CREAT)
data = b'x' * (32 << 20)
os.pwrite(f, data, 0)
for i in range(3):
    child = os.fork()
    if child == 0:
        while True: os.pwrite(f, data, 0)
    time.sleep(0.3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
start = time.monotonic()
with mmap.mmap(f, 1 << 20) as mapped:
    assert mapped[:1] == b'x'
print(time.monotonic() - start)
"#;
    let said = site.bivouac(["exec", &name, "--access", "both", "--", "python3", "-c", script]).ok();
    let seconds: f64 = said.trim().parse().expect("a number");
    assert!(seconds < 3.0, "{seconds} s");
}
