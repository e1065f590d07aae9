//! A directory of the site's storage that is forwarded, through a kernel mount of the command's own: what programs find there with
//! the library (`forwarding.rs`), they find in the mount, and a mount can do more.

use bivouac_tests::forwarding::{CHECKS, LOOK, TOOLS, WORK, backend, local};
use bivouac_tests::{
    Finished, Site, eventually, finish, hiding, skipped_without_mount, skipped_without_root, suites,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const MOUNTED: [&str; 2] = ["fuse", "both"];

/// A deployment that forwards a directory.
struct Forwarded {
    directory: PathBuf,
    name: String,
    site: Site,
}

impl Forwarded {
    /// `None` where nothing can be mounted.
    fn new(test: &str, servers: usize, options: &[&str]) -> Option<Forwarded> {
        if skipped_without_mount() {
            return None;
        }
        let site = Site::new(test);
        let directory = backend(&site);
        let name =
            site.up_with(servers, &[&["--forward", directory.to_str().expect("text")], options].concat());
        Some(Forwarded { directory, name, site })
    }

    /// A command with a mount, which runs a script in the directory.
    fn command(&self, access: &str, script: &str) -> Command {
        let script = format!("cd {}; {script}", self.directory.display());
        self.site.command(["exec", &self.name, "--access", access, "--", "bash", "-c", &script])
    }

    fn run(&self, access: &str, script: &str) -> Finished {
        finish(self.command(access, script))
    }

    fn forward(&self, io_nodes: &str) -> String {
        self.site.bivouac(["forward", &self.name, "--io-nodes", io_nodes]).ok()
    }

    /// What I/O nodes have logged of changes that have failed, and of those before in the same directory.
    fn failed_changes(&self) -> Vec<String> {
        let logs = fs::read_dir(self.site.home().join(&self.name).join("logs")).expect("logs").flatten();
        let texts = logs.map(|log| (log.file_name(), fs::read_to_string(log.path()).unwrap_or_default()));
        let mut changes: Vec<String> = Vec::new();
        for (log, text) in texts {
            let lines = text.lines().filter(|line| line.contains("a change at the backend"));
            changes.extend(lines.map(|line| format!("{line} {}", log.display())));
        }
        // They begin with the time.
        changes.sort();
        let directory = |line: &str| line.split("dir: ").nth(1)?.split(',').next().map(str::to_owned);
        let failed = (0..changes.len()).filter(|at| changes[*at].contains("done=Err"));
        let before = |at: usize| {
            let same = changes[..=at].iter().filter(|line| directory(line) == directory(&changes[at]));
            same.rev().take(8).cloned().collect::<Vec<_>>().into_iter().rev()
        };
        failed.take(4).flat_map(before).collect()
    }

    /// How many files programs have open through I/O nodes.
    fn opens(&self) -> u64 {
        let text = self.site.bivouac(["forward", &self.name, "--json"]).ok();
        let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let nodes = shown["io_nodes"].as_array().expect("I/O nodes");
        nodes.iter().filter_map(|node| node["opens"].as_u64()).sum()
    }

    fn empty(&self) {
        for entry in fs::read_dir(&self.directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("removed");
        }
    }
}

#[test]
fn a_directory_that_others_have_removed_is_empty_for_those_who_are_in_it() {
    let Some(forwarded) = Forwarded::new("forwarding-mounted-gone", 1, &[]) else { return };
    for access in MOUNTED {
        let script = "mkdir gone && cd gone && touch in ../ready && while [ -e ../ready ]; do sleep 0.01; done; \
                      ls -A . && echo $? $(ls -A | wc -l); touch new; echo $?";
        let running = forwarded.command(access, script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let ready = forwarded.directory.join("ready");
        eventually("it is in the directory", || ready.exists());
        fs::remove_dir_all(forwarded.directory.join("gone")).expect("removed");
        fs::remove_file(ready).expect("removed");
        let done = Finished::of(running.expect("starts").wait_with_output().expect("ends"));
        assert_eq!(done.out, "0 0\n1\n", "{access}: {}", done.err);
        assert!(done.err.contains("No such file or directory"), "{access}: {}", done.err);
    }
}

#[test]
fn programs_find_in_a_mount_what_they_would_find_in_a_directory_of_their_own() {
    let Some(forwarded) = Forwarded::new("forwarding-mounted", 2, &[]) else { return };
    let own = forwarded.site.path("own");
    fs::create_dir(&own).expect("a directory");
    let expected = local(&own, WORK);
    for access in MOUNTED {
        assert_eq!(forwarded.run(access, WORK).ok(), expected, "{access}");
        assert_eq!(local(&forwarded.directory, LOOK), local(&own, LOOK), "{access}");
        eventually("everything is closed", || forwarded.opens() == 0);
        forwarded.empty();
    }
    let text = forwarded.site.bivouac(["forward", &forwarded.name, "--json"]).ok();
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(shown["io_nodes"][0]["requests_in"].as_u64() > Some(200), "{shown}");
}

/// The same command, where neither a directory nor the one above it can be seen: there is no mount point.
fn without_parent(directory: &Path, command: &Command) -> Command {
    hiding(directory.parent().expect("one"), command)
}

#[test]
fn nodes_that_do_not_see_the_backend_see_it_in_the_mount_and_nothing_is_left() {
    if skipped_without_root("hiding a directory") {
        return;
    }
    let options = ["--io-nodes", "2", "--assign", "file"];
    let Some(forwarded) = Forwarded::new("forwarding-mounted-unseen", 2, &options) else { return };
    let own = forwarded.site.path("own");
    fs::create_dir(&own).expect("a directory");
    let expected = local(&own, WORK);
    for hide in [hiding, without_parent] {
        let command = forwarded.command("fuse", WORK);
        assert_eq!(finish(hide(&forwarded.directory, &command)).ok(), expected);
        assert_eq!(local(&forwarded.directory, LOOK), local(&own, LOOK));
        forwarded.empty();
    }
    // Nothing is made where the mount point was missing, and nothing can be made beside it.
    let script = "touch ../beside 2> /dev/null || echo refused; touch here; ls -1";
    assert_eq!(
        finish(without_parent(&forwarded.directory, &forwarded.command("fuse", script))).ok(),
        "refused\nhere\n"
    );
    assert!(
        !forwarded.directory.with_file_name("beside").exists() && forwarded.directory.join("here").exists()
    );
}

#[test]
fn the_number_of_io_nodes_changes_while_programs_use_the_mount() {
    let options = ["--assign", "file", "--log-level", "debug"];
    let Some(forwarded) = Forwarded::new("forwarding-mounted-changes", 4, &options) else { return };
    let directory = &forwarded.directory;
    fs::write(directory.join("program.py"), CHECKS).expect("written");
    let mut command = forwarded.command("fuse", "exec python3 program.py names");
    let program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    eventually("the program works", || directory.join("own3").exists());
    for round in 0..10 {
        for io_nodes in ["4", "2", "0", "1", "3"] {
            let shown = forwarded.forward(io_nodes);
            let told = shown.contains(&format!("{io_nodes} I/O node"));
            assert!(io_nodes == "0" || told, "{round}: {shown}");
            // The others have the time to use them.
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    fs::write(directory.join("stop"), "").expect("written");
    let ended = program.wait_with_output().expect("ends");
    let error = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{error}\n{}", forwarded.failed_changes().join("\n"));
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let rounds: Vec<u32> = said.lines().map(|line| line.parse().expect("a number")).collect();
    assert!(rounds.len() == 4 && rounds.iter().all(|rounds| *rounds > 2), "{rounds:?}");
    eventually("everything is closed", || {
        forwarded.forward("4");
        forwarded.opens() == 0
    });
}

#[test]
fn tar_sqlite_and_fio_verify_everything_in_the_mount_while_io_nodes_change() {
    let Some(forwarded) = Forwarded::new("forwarding-mounted-tools", 4, &[]) else { return };
    let stop = forwarded.site.path("stop");
    let mut command = forwarded.command("fuse", &TOOLS.replace("$1", &stop.to_string_lossy()));
    let tools = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    eventually("the tools work", || forwarded.directory.join("data.db").exists());
    for io_nodes in ["1", "4", "0", "2", "3", "1"] {
        forwarded.forward(io_nodes);
        std::thread::sleep(Duration::from_secs(1));
    }
    fs::write(&stop, "").expect("written");
    let ended = tools.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    let numbers: Vec<u32> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.len() == 2 && numbers[0] == 500 * numbers[1] && numbers[1] > 0, "{said}");
}

/// Looks at a directory that another program changes when it is told to, and says what it sees each time.
const LOOKS: &str = r#"
import os
held = os.open("d/f", os.O_RDONLY); here = os.open("d", os.O_RDONLY)
def look():
    named = os.stat("d/f"); opened = os.fstat(held)
    print(open("d/f").read(), os.pread(held, 100, 0), named.st_size, oct(named.st_mode), opened.st_size, opened.st_nlink, named.st_ino == opened.st_ino)
    print(sorted(os.listdir("d")), sorted(os.listdir(here)), os.path.exists("d/new"), flush=True)
for _ in range(4):
    look(); input()
"#;

#[test]
fn what_others_change_in_the_backend_is_seen_in_the_mount_at_once_and_the_other_way_round() {
    let Some(forwarded) = Forwarded::new("forwarding-mounted-both", 2, &[]) else { return };
    let (site, directory) = (&forwarded.site, &forwarded.directory);
    fs::create_dir(directory.join("d")).expect("made");
    fs::write(directory.join("d/f"), "before").expect("written");
    let program = site.path("looks.py");
    fs::write(&program, LOOKS).expect("written");
    let mut command = forwarded.command("fuse", &format!("exec python3 {}", program.display()));
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
    let mut input = running.stdin.take().expect("piped");
    let mut output = std::io::BufReader::new(running.stdout.take().expect("piped"));
    let mut seen = || {
        use std::io::BufRead;
        let mut lines = String::new();
        for _ in 0..2 {
            output.read_line(&mut lines).expect("read");
        }
        lines
    };
    let mut go_on = || {
        use std::io::Write;
        input.write_all(b"\n").expect("written");
    };
    let names = |names: &str, new: &str| format!("{names} {names} {new}\n");
    assert_eq!(seen(), format!("before b'before' 6 0o100644 6 1 True\n{}", names("['f']", "False")));
    // Another size, another name, another mode.
    fs::write(directory.join("d/f"), "and afterwards").expect("written");
    fs::write(directory.join("d/new"), "").expect("written");
    fs::set_permissions(directory.join("d/f"), fs::Permissions::from_mode(0o600)).expect("a mode");
    go_on();
    let expected = "and afterwards b'and afterwards' 14 0o100600 14 1 True\n";
    assert_eq!(seen(), format!("{expected}{}", names("['f', 'new']", "True")));
    // Another file of the same size under the name.
    fs::write(directory.join("d/g"), "and before all").expect("written");
    fs::rename(directory.join("d/g"), directory.join("d/f")).expect("renamed");
    fs::remove_file(directory.join("d/new")).expect("removed");
    go_on();
    let expected = "and before all b'and afterwards' 14 0o100644 14 0 False\n";
    assert_eq!(seen(), format!("{expected}{}", names("['f']", "False")));
    // Another directory under the name.
    fs::rename(directory.join("d"), directory.join("e")).expect("renamed");
    fs::create_dir(directory.join("d")).expect("made");
    fs::write(directory.join("d/f"), "other").expect("written");
    fs::write(directory.join("d/new"), "").expect("written");
    go_on();
    let expected = "other b'and afterwards' 5 0o100644 14 0 False\n['f', 'new'] ['f'] True\n";
    assert_eq!(seen(), expected);
    go_on();
    assert!(running.wait().expect("ends").success());

    // Between the two mounts it is as between any two file systems.
    let across = "import os\nfor call in (os.rename, os.link):\n for one, other in (('e/f', '/bivouac/f'), ('/bivouac/g', 'g')):\n  try: call(one, other)\n  except OSError as e: print(e.errno)";
    for access in MOUNTED {
        let script = format!(
            "echo x > /bivouac/g; python3 -c \"{across}\"; mv e/f /bivouac/f; cat /bivouac/f; mv /bivouac/f e/f"
        );
        assert_eq!(forwarded.run(access, &script).ok(), "18\n18\n18\n18\nand before all", "{access}");
    }
    assert_eq!(fs::read_to_string(directory.join("e/f")).expect("there"), "and before all");
}

#[test]
fn locks_and_mappings_and_programs_work_in_the_mount() {
    let Some(forwarded) = Forwarded::new("forwarding-mounted-more", 2, &[]) else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/locks.py");
    let text = fs::read_to_string(script).expect("there");
    // The kernel of an I/O node finds no circles of waits.
    let (before, _) = text.split_once("# deadlock").expect("that part");
    let script = forwarded.site.path("locks.py");
    fs::write(&script, format!("{before}print('locks ok')")).expect("written");
    assert_eq!(forwarded.run("fuse", &format!("python3 {} .", script.display())).ok(), "locks ok\n");
    // They meet those of programs that use the backend, and those of the library.
    let taken = "flock -n locked true || echo flock; python3 -c 'import fcntl; fcntl.lockf(open(\"locked\", \"r+\"), fcntl.LOCK_EX | fcntl.LOCK_NB)' 2> /dev/null || echo lockf";
    let holder = "import fcntl, os, time; f = open('locked', 'w'); fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_EX); open('held', 'w')\nwhile not os.path.exists('enough'): time.sleep(0.01)";
    let mut holding =
        forwarded.command("fuse", &format!("exec python3 -c \"{holder}\"")).spawn().expect("runs");
    eventually("the locks are held", || forwarded.directory.join("held").exists());
    for access in ["preload", "fuse"] {
        assert_eq!(forwarded.run(access, taken).ok(), "flock\nlockf\n", "{access}");
    }
    assert_eq!(local(&forwarded.directory, taken), "flock\nlockf\n");
    fs::write(forwarded.directory.join("enough"), "").expect("written");
    assert!(holding.wait().expect("ends").success());
    assert_eq!(local(&forwarded.directory, taken), "");
    // What only a mount can do: shared writable mappings, programs, databases that are mapped.
    let script = "set -e
python3 - <<'PY'
import mmap
f = open('mapped', 'w+b'); f.truncate(10000)
m = mmap.mmap(f.fileno(), 10000); m[4090:4100] = b'0123456789'; m.flush()
f.seek(4090); print(f.read(10)); f.seek(0); f.write(b'written'); f.flush(); print(m[:7])
PY
cp /bin/echo program; ./program runs
sqlite3 w.db 'pragma journal_mode=wal; create table t(x);'
for i in 1 2; do (for j in $(seq 10); do sqlite3 -cmd '.timeout 20000' w.db \"insert into t values($j)\"; done) & done; wait
sqlite3 w.db 'select count(*) from t'; sqlite3 w.db 'pragma integrity_check'; mkfifo pipe; (echo through > pipe &); cat pipe";
    let expected = "b'0123456789'\nb'written'\nruns\nwal\n20\nok\nthrough\n";
    for access in MOUNTED {
        assert_eq!(forwarded.run(access, script).ok(), expected, "{access}");
        let mapped = fs::read(forwarded.directory.join("mapped")).expect("there");
        assert_eq!((&mapped[..7], &mapped[4090..4100]), (&b"written"[..], &b"0123456789"[..]), "{access}");
        forwarded.empty();
    }
}

#[test]
fn users_who_share_the_mount_own_what_they_make_and_are_kept_out_of_the_rest() {
    if skipped_without_root("being several users") {
        return;
    }
    let Some(forwarded) = Forwarded::new("forwarding-mounted-users", 2, &[]) else { return };
    let script = "D=$PWD; while [ $D != / ]; do chmod a+x $D; D=${D%/*}; D=${D:-/}; done
chmod 1777 .; mkdir -m 700 private; echo secret > private/s; mkdir -m 2777 group; chgrp daemon group
as() { setpriv --reuid \"$1\" --regid \"$2\" --clear-groups bash -c \"$3\"; }
as nobody nogroup 'echo mine > n; mkdir nd; ln -s x nl; mkfifo np; echo g > group/g; mkdir group/gd'
stat -c '%n %U %G %a' n nd nl np group/g group/gd
! as nobody nogroup 'cat private/s' 2>/dev/null || echo read
! as daemon daemon 'rm -f n' 2>/dev/null || echo removed
! as daemon daemon 'echo x >> n' 2>/dev/null || echo written
! as daemon daemon 'chmod 777 n' 2>/dev/null || echo changed
as daemon daemon 'cat n'; chmod 4755 n; as nobody nogroup 'echo more >> n'; stat -c '%a' n";
    let lists = "; python3 - <<'PY'
import os, struct
def entry(tag, rights, of=0xffffffff): return struct.pack('<HHI', tag, rights, of)
open('listed', 'w').write('listed\\n')
# The owner and nobody may read and write; the group may not, whatever the mode says.
os.setxattr('listed', 'system.posix_acl_access', struct.pack('<I', 2) + entry(1, 6) + entry(2, 6, 65534) + entry(4, 0) + entry(16, 6) + entry(32, 0))
os.chown('listed', 0, 1)
PY
stat -c '%U %G %a' listed; as nobody nogroup 'cat listed; echo more >> listed'; as daemon daemon 'cat listed' 2> /dev/null || echo kept out; rm listed";
    let made = "n nobody nogroup 644\nnd nobody nogroup 755\nnl nobody nogroup 777\nnp nobody nogroup 644\n\
                group/g nobody daemon 644\ngroup/gd nobody daemon 2755\n";
    let listed = "root daemon 660\nlisted\nkept out\n";
    let said = forwarded.run("fuse", &format!("{script}{lists}")).ok();
    assert_eq!(said, format!("{made}mine\n755\n{listed}"));
    let look = "stat -c '%n %U %G %a' n nd nl np group/g group/gd";
    assert_eq!(local(&forwarded.directory, look), made.replacen("644", "755", 1));
}

#[test]
fn without_io_nodes_there_is_no_mount_and_a_command_inside_uses_the_one_that_is_there() {
    let Some(forwarded) = Forwarded::new("forwarding-mounted-none", 2, &[]) else { return };
    let mounts = "grep -c fuse.bivouac /proc/self/mountinfo";
    assert_eq!(forwarded.run("fuse", mounts).ok(), "2\n");
    let inner = format!(
        "{0} exec {1} -v --fuse -- sh -c '{mounts}; echo x > inner'; cat inner",
        bivouac_tests::bivouac().display(),
        forwarded.name
    );
    let nested = forwarded.run("fuse", &inner);
    assert_eq!(nested.err.matches(" already").count(), 2, "{}", nested.err);
    assert_eq!(nested.ok(), "2\nx\n");
    // A server that sees the mount is no I/O node: it would ask itself.
    let up = format!("{0} up inner --forward $PWD", bivouac_tests::bivouac().display());
    forwarded.run("fuse", &up).fails(65, &["cannot forward", "the mount of a command"]);
    forwarded.forward("0");
    let script = format!("{mounts}; stat -f -c %T . | grep -c fuse; cat inner; echo y > inner");
    assert_eq!(forwarded.run("fuse", &script).ok(), "1\n0\nx\n");
    assert_eq!(fs::read_to_string(forwarded.directory.join("inner")).expect("there"), "y\n");
    // Nothing serves a mount any more.
    let name = forwarded.name.clone();
    let servers = || {
        let lines = command_lines();
        lines.iter().filter(|line| line.contains("\0serve\0") && line.contains(&name)).count()
    };
    eventually("the servers of mounts end", || servers() == 0);
}

/// Lists a directory, and goes back to each position that it has been told.
const POSITIONS: &str = r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
class Entry(ctypes.Structure):
    _fields_ = [('ino', ctypes.c_uint64), ('off', ctypes.c_int64), ('length', ctypes.c_uint16), ('kind', ctypes.c_uint8), ('name', ctypes.c_char * 256)]
libc.opendir.restype = ctypes.c_void_p; libc.readdir.restype = ctypes.POINTER(Entry); libc.telldir.restype = ctypes.c_long
os.mkdir('positions')
for i in range(500): open('positions/%d' % i, 'w')
listing = ctypes.c_void_p(libc.opendir(b'positions'))
def entry():
    found = libc.readdir(listing)
    return found.contents.name if found else None
seen = []
while True:
    position = libc.telldir(listing); name = entry()
    seen.append((position, name))
    if name is None: break
names = [name for _, name in seen]
print(len(names), len(set(names)), all(position >= 0 for position, _ in seen))
for position, name in reversed(seen):
    libc.seekdir(listing, ctypes.c_long(position)); assert entry() == name, (position, name)
libc.rewinddir(listing); assert entry() == names[0]
"#;

#[test]
fn positions_in_directories_stay_good() {
    let Some(forwarded) = Forwarded::new("forwarding-mounted-positions", 1, &[]) else { return };
    let program = forwarded.site.path("positions.py");
    fs::write(&program, POSITIONS).expect("written");
    for access in ["fuse", "preload"] {
        let said = forwarded.run(access, &format!("python3 {}", program.display())).ok();
        assert_eq!(said, "503 503 True\n", "{access}");
        forwarded.empty();
    }
}

/// The same command, where programs see the directory in a mount of their own.
fn inside(forwarded: &Forwarded, command: &Command) -> Finished {
    let mut all = forwarded.site.command(["exec", &forwarded.name, "--fuse", "--"]);
    all.arg(command.get_program()).args(command.get_args());
    finish(all)
}

#[test]
fn suites_find_what_is_written_down_and_no_more() {
    if skipped_without_root("being several users") {
        return;
    }
    let Some(forwarded) = Forwarded::new("fwd", 2, &[]) else { return };
    let Forwarded { site, directory, .. } = &forwarded;
    for seed in ["1", "2"] {
        inside(&forwarded, &suites::fsx(site, seed, &directory.join(seed))).ok();
    }
    // All users have to come to the directory.
    for above in directory.ancestors().take_while(|above| above.starts_with(site.path(""))) {
        fs::set_permissions(above, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    // (The site's path is short because sockets' paths have to be.)
    let said = inside(&forwarded, &suites::pjdfstest(site, directory)).out;
    let failed: Vec<&str> = said.lines().filter(|line| line.ends_with("FAILED")).collect();
    // A symbolic link that is looked at counts as read.
    let expected = ["utimensat::follow_symlink"];
    assert_eq!(
        failed.iter().filter_map(|line| line.split(' ').next()).collect::<Vec<_>>(),
        expected,
        "{said}"
    );
    assert!(said.contains("Summary: 1 failed,"), "{said}");
}

#[test]
fn without_root_the_user_s_rights_are_those_of_all_its_groups() {
    if skipped_without_root("becoming another user") {
        return;
    }
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("forwarding-mounted-user");
    let directory = backend(&site);
    // `/dev/fuse` is for everybody on most machines: here it is made so in a namespace.
    let setup = r#"set -eu; chown daemon:daemon "$3"; mkdir "$3"/project "$3"/foreign; chown daemon:games "$3"/project; chmod 2770 "$3"/project
echo g > "$3"/project/read; chown nobody:games "$3"/project/read; chmod 640 "$3"/project/read; chmod 777 "$3"/foreign
mount -t tmpfs t "$1"; mknod "$1"/fuse c 10 229; chmod 666 "$1"/fuse; mount --bind "$1"/fuse /dev/fuse
mkdir "$1"/home; chown daemon "$1"/home; export BIVOUAC_HOME="$1"/home HOME="$1"/home; cd /
exec setpriv --reuid daemon --regid daemon --groups daemon,games "$2" run --servers 1 --forward "$3" --fuse -- sh -c "cd '$3'
id -un; cd project; echo x > mine; echo more >> mine; chmod 600 mine; stat -c '%U %G %s' mine; cat read; mv mine other; rm other; touch stays
touch ../foreign/file 2> /dev/null || echo refused; echo x 2> /dev/null > read || echo refused""#;
    fs::create_dir(site.path("t")).expect("a directory");
    for above in directory.ancestors().take_while(|above| above.starts_with(site.path(""))) {
        fs::set_permissions(above, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    fs::set_permissions(site.path("t"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", setup, "-"]).arg(site.path("t"));
    command.arg(bivouac_tests::bivouac()).arg(&directory).stdin(Stdio::null());
    assert_eq!(finish(command).ok(), "daemon\ndaemon daemon 7\ng\nrefused\nrefused\n");
    assert_eq!(
        local(&directory, "cd project; stat -c '%n %U %G' *"),
        "read nobody games\nstays daemon games\n"
    );
}

#[test]
fn mounts_whose_server_was_killed_are_replaced_for_the_next_command() {
    let Some(forwarded) = Forwarded::new("forwarding-mounted-killed", 2, &[]) else { return };
    let script = format!(
        r#"echo there > a
for p in /proc/[0-9]*; do [[ $(tr '\0' ' ' < $p/cmdline) = */bivouac" serve {1} " ]] && kill -9 ${{p#/proc/}}; done 2> /dev/null
until [[ $(cat a 2>&1) = *"not connected" ]]; do sleep 0.1; done; cd /
exec {0} exec {1} -v --fuse -- sh -c 'cat {2}/a; grep -c fuse.bivouac /proc/self/mountinfo'"#,
        bivouac_tests::bivouac().display(),
        forwarded.name,
        forwarded.directory.display()
    );
    let ran = forwarded.run("fuse", &script);
    let told = ran.err.matches("the command's own, at").count();
    assert!(told == 2 && !ran.err.contains("not where"), "{ran:?}");
    assert_eq!(ran.ok(), "there\n2\n");
}

/// The command lines of all processes.
fn command_lines() -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
}
