//! The kernel mount: suites of others, sharing between mounts and the preload library, and how mounts come
//! and go.
//!
//! Each test is skipped, and says so, where this process cannot mount. Programs and transcripts run through a
//! mount in their own tests.

use bivouac_tests::{Finished, Site, bivouac, eventually, finish, skipped_without_mount, suites};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A deployment that is mounted.
struct Mounted {
    site: Site,
    name: String,
    at: PathBuf,
}

impl Mounted {
    fn new(test: &str, options: &[&str]) -> Option<Mounted> {
        if skipped_without_mount() {
            return None;
        }
        let site = Site::new(test);
        let name = site.up_with(4, options);
        let mounted = Mounted { at: site.path("mount"), site, name };
        mounted.mount(&mounted.at);
        Some(mounted)
    }

    fn mount(&self, at: &Path) {
        std::fs::create_dir(at).expect("a mount point");
        let said = self.site.bivouac(["mount", &self.name, &at.to_string_lossy(), "--daemon"]).ok();
        assert!(said.contains("is mounted at"), "{said}");
    }

    /// Runs a shell script in the mount.
    fn sh(&self, script: &str) -> Finished {
        let mut command = Command::new("bash");
        command.args(["-c", &format!("set -eu; cd \"$M\"; {script}")]).env("M", &self.at);
        command.env("OTHER", self.site.path("other"));
        finish(command)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for at in [self.site.path("other"), self.at.clone()] {
            // This also works if its server is dead and the path cannot be looked at.
            if is_mounted(&at) {
                let _ = Command::new("umount").args(["-l"]).arg(at).output();
            }
        }
    }
}

fn is_mounted(at: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
    table.lines().any(|line| line.split(' ').nth(4) == Some(&at.to_string_lossy()))
}

/// Processes that serve a deployment's mounts.
fn servers(name: &str) -> usize {
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let lines = all.filter_map(|p| std::fs::read_to_string(p.path().join("cmdline")).ok());
    lines.filter(|l| (l.contains("\0mount\0") || l.contains("\0serve\0")) && l.contains(name)).count()
}

#[test]
fn pjdfstest_finds_nothing() {
    let Some(mounted) = Mounted::new("pjdfstest", &[]) else { return };
    let command = suites::pjdfstest(&mounted.site, &mounted.at);
    let out = finish(command).ok();
    // What is skipped is for other systems; a tmpfs skips the same.
    assert!(out.contains("Summary: 0 failed, 16 skipped, 382 passed"), "{out}");
}

#[test]
fn fsx_finds_no_difference() {
    // Small blocks, so that the file lies on all servers.
    let Some(mounted) = Mounted::new("fsx", &["--block-size", "16K"]) else { return };
    for seed in ["1", "2", "3"] {
        finish(suites::fsx(&mounted.site, seed, &mounted.at.join(seed))).ok();
    }
}

#[test]
fn fio_verifies_with_every_engine() {
    let Some(mounted) = Mounted::new("fio-engines", &["--block-size", "64K"]) else { return };
    for engine in ["psync", "sync", "mmap", "libaio", "io_uring", "pvsync2"] {
        for direct in ["0", "1"] {
            if (engine, direct) == ("mmap", "1") {
                continue;
            }
            let script = format!(
                "fio --name={engine} --ioengine={engine} --direct={direct} --rw=randrw --bs=4k-128k --size=2m --numjobs=2 \
                 --iodepth=8 --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting --minimal; rm {engine}.*"
            );
            mounted.sh(&script).ok();
        }
    }
}

#[test]
fn locks_exclude_wait_and_are_cut_short() {
    let Some(mounted) = Mounted::new("fuse-locks", &[]) else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/locks.py");
    let said = mounted.sh(&format!("python3 {} .", script.display())).ok();
    assert_eq!(said.trim(), "locks ok");
}

#[test]
fn two_mounts_and_the_library_see_each_other_at_once() {
    let Some(mounted) = Mounted::new("fuse-shared", &["--block-size", "16K"]) else { return };
    mounted.mount(&mounted.site.path("other"));
    // Everything through one mount is looked at through the other and through the library, while files stay
    // open.
    let script = r#"
import mmap, os, subprocess, sys
a, b, tool, name = sys.argv[1:5]
def inside(script):
    return subprocess.run([tool, 'exec', name, '--', 'bash', '-c', script], capture_output=True, check=True).stdout
f = open(a + '/f', 'w+b', buffering=0)
g = open(b + '/f', 'r+b', buffering=0)
for size in (10, 4096, 5000, 70000):
    data = os.urandom(size)
    f.seek(0); f.write(data)
    assert os.stat(b + '/f').st_size == size
    g.seek(0); assert g.read() == data
    assert inside('cat /bivouac/f') == data
    g.seek(3); g.write(b'changed')
    assert os.pread(f.fileno(), 10, 0)[3:] == b'changed'
    g.truncate(7)
    assert os.fstat(f.fileno()).st_size == 7 and len(os.pread(f.fileno(), 100, 0)) == 7
    f.truncate(0)
inside('echo from the library > /bivouac/f')
f.seek(0); assert f.read() == b'from the library\n'
m = [open(d + '/f', 'ab', buffering=0) for d in (a, b)]
for i in range(50):
    m[i % 2].write(b'%04d\n' % i)
    if i % 10 == 0: inside('echo line >> /bivouac/f')
lines = open(b + '/f', 'rb').read().split(b'\n')
assert len(lines) == 1 + 50 + 5 + 1 and lines[1:3] == [b'0000', b'line'], lines
# A name that is replaced, a directory that moves, an entry that goes.
open(a + '/n', 'w').write('old'); open(b + '/m', 'w').write('new')
assert open(b + '/n').read() == 'old'
os.rename(b + '/m', b + '/n'); assert open(a + '/n').read() == 'new' and not os.path.exists(a + '/m')
os.makedirs(a + '/d/e'); open(b + '/d/e/x', 'w').close()
os.rename(a + '/d', a + '/moved'); assert not os.path.exists(b + '/d') and os.listdir(b + '/moved/e') == ['x']
inside('rm -r /bivouac/moved'); assert not os.path.exists(a + '/moved/e')
os.chmod(a + '/n', 0o600); assert os.stat(b + '/n').st_mode & 0o777 == 0o600
os.setxattr(b + '/n', 'user.k', b'v'); assert os.getxattr(a + '/n', 'user.k') == b'v'
# What a mapping changed is in the file when it was synced.
f.truncate(40000)
with mmap.mmap(f.fileno(), 40000) as shared:
    shared[39990:39995] = b'MMAP!'
    shared.flush()
    assert os.pread(g.fileno(), 5, 39990) == b'MMAP!'
    os.pwrite(f.fileno(), b'write', 39990)
    assert shared[39990:39995] == b'write'
# Unlinked through one, still open through the other.
os.unlink(b + '/f'); f.seek(0); f.write(b'still'); assert os.pread(g.fileno(), 5, 0) == b'still'
assert os.fstat(f.fileno()).st_nlink == 0
print('shared')
"#;
    let path = mounted.site.path("shared.py");
    std::fs::write(&path, script).expect("written");
    let mut command = Command::new("python3");
    command.arg(path).arg(&mounted.at).arg(mounted.site.path("other"));
    command.arg(bivouac()).arg(&mounted.name).env("BIVOUAC_HOME", mounted.site.home());
    assert_eq!(finish(command).ok(), "shared\n");
}

#[test]
fn users_who_share_a_mount_own_what_they_make_and_are_kept_out_of_the_rest() {
    let Some(mounted) = Mounted::new("fuse-users", &[]) else { return };
    let mode = "chmod 755 \"$M\"/../.. \"$M\"/..";
    let said = mounted
        .sh(&format!(
            "{mode}; chmod 1777 .; mkdir -m 700 private; echo secret > private/s; mkdir -m 2777 group; chgrp daemon group
as() {{ setpriv --reuid \"$1\" --regid \"$2\" --clear-groups bash -c \"$3\"; }}
as nobody nogroup 'echo mine > n; mkdir nd; ln -s x nl; mkfifo np; echo g > group/g; mkdir group/gd'
stat -c '%n %U %G %a' n nd nl np group/g group/gd
! as nobody nogroup 'cat private/s' 2>/dev/null
! as daemon daemon 'rm -f n' 2>/dev/null
! as daemon daemon 'echo x >> n' 2>/dev/null
! as daemon daemon 'chmod 777 n' 2>/dev/null
as daemon daemon 'cat n'; chmod 4755 n; as nobody nogroup 'echo more >> n'; stat -c '%a' n"
        ))
        .ok();
    let expected = "n nobody nogroup 644\nnd nobody nogroup 755\nnl nobody nogroup 777\nnp nobody nogroup 644\n\
                    group/g nobody daemon 644\ngroup/gd nobody daemon 2755\nmine\n755\n";
    assert_eq!(said, expected);
}

#[test]
fn what_the_library_cannot_do_works_in_a_mount() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("fuse-only");
    let source = site.path("static.c");
    std::fs::write(
        &source,
        "#include <fcntl.h>\n#include <stdio.h>\n#include <unistd.h>\nint main(int n, char **a) { int f = open(a[1], \
         O_CREAT | O_WRONLY, 0644); return write(f, \"static\\n\", 7) != 7; }\n",
    )
    .expect("written");
    let mut compiler = Command::new("gcc");
    compiler.args(["-static", "-o"]).arg(site.path("static")).arg(&source);
    finish(compiler).ok();
    let name = site.up(4);
    let script = format!(
        "set -eu; cd /bivouac; {0} a; cat a; cp {0} program; ./program b; cat b; mkfifo p; (echo through a pipe > p &) ; cat p
python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.bind('s'); s.listen(); c = socket.socket(socket.AF_UNIX); c.connect('s')\"
sqlite3 w.db 'pragma journal_mode=wal; create table t(x);'
for i in 1 2; do (for j in $(seq 20); do sqlite3 -cmd '.timeout 20000' w.db \"insert into t values($j)\"; done) & done; wait
sqlite3 w.db 'select count(*) from t'; sqlite3 w.db 'pragma integrity_check'; env -i /bin/cat a",
        site.path("static").display()
    );
    let said = site.bivouac(["exec", &name, "--fuse", "--", "bash", "-c", &script]).ok();
    assert_eq!(said, "static\nstatic\nthrough a pipe\nwal\n40\nok\nstatic\n");
}

#[test]
fn a_command_s_mount_is_seen_by_it_alone_and_goes_with_it() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("fuse-private");
    let name = site.up_with(2, &["--mount", "/bivouac-test/below/here"]);
    let run =
        |script: &str| site.bivouac(["exec", &name, "--access", "fuse", "-v", "--", "sh", "-c", script]);
    let inside = run(
        "echo x > /bivouac-test/below/here/f; cat /bivouac-test/below/here/f; pwd; ! touch /file 2>/dev/null; exit 7",
    );
    assert_eq!(inside.code, 7, "{inside:?}");
    assert!(inside.err.contains("access: fuse"), "{inside:?}");
    let here = std::env::current_dir().expect("a directory");
    assert_eq!(inside.out, format!("x\n{}\n", here.display()));
    assert!(!Path::new("/bivouac-test").exists(), "the mount point is left");
    eventually("its server ends", || servers(&name) == 0);
    // A process that the command has left running still has the mount.
    let file = site.path("late");
    let late = format!("(sleep 1; cat /bivouac-test/below/here/f) > {} 2>&1 < /dev/null &", file.display());
    run(&late).ok();
    eventually("the late reader reads", || std::fs::read_to_string(&file).is_ok_and(|text| text == "x\n"));
    eventually("its server ends", || servers(&name) == 0);
    run("nosuchprogram").fails(127, &["nosuchprogram"]);
}

#[test]
fn run_with_a_mount_leaves_nothing() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("fuse-run");
    let name = site.name("r");
    let ran = site.bivouac([
        "run",
        "--name",
        &name,
        "--servers",
        "2",
        "--fuse",
        "--",
        "bash",
        "-c",
        "echo x > /bivouac/f; exit 3",
    ]);
    assert_eq!(ran.code, 3, "{ran:?}");
    site.assert_nothing_left(&name, &[]);
    eventually("its server ends", || servers(&name) == 0);
}

#[test]
fn without_root_the_mount_is_in_a_namespace_of_the_user() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("fuse-user");
    // `/dev/fuse` is for everybody on most machines: here it is made so in a namespace.
    let setup = r#"set -eu; mount -t tmpfs t "$1"; mknod "$1"/fuse c 10 229; chmod 666 "$1"/fuse; mount --bind "$1"/fuse /dev/fuse
mkdir "$1"/home; chown daemon "$1"/home; export BIVOUAC_HOME="$1"/home HOME="$1"/home; cd /
exec setpriv --reuid daemon --regid daemon --clear-groups "$2" run --servers 2 --fuse -- sh -c 'id -un; echo x > /bivouac/f; stat -c "%U %s" /bivouac/f'"#;
    std::fs::create_dir(site.path("t")).expect("a directory");
    for path in [site.path(""), site.path("t")] {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, open).expect("set");
    }
    let mut command = Command::new("unshare");
    command.args(["-m", "bash", "-c", setup, "bash"]).arg(site.path("t")).arg(bivouac());
    assert_eq!(finish(command).ok(), "daemon\ndaemon 2\n");
}

#[test]
fn a_mount_ends_by_umount_by_a_signal_and_with_the_deployment() {
    let Some(mounted) = Mounted::new("fuse-ends", &[]) else { return };
    let ended = |how: &str| {
        eventually(how, || !is_mounted(&mounted.at) && servers(&mounted.name) == 0);
        std::fs::remove_dir(&mounted.at).expect("the mount point is free again");
    };
    let mut command = Command::new("umount");
    command.arg(&mounted.at);
    finish(command).ok();
    ended("umount");

    std::fs::create_dir(&mounted.at).expect("a mount point");
    let mut server = mounted
        .site
        .command(["mount", &mounted.name, &mounted.at.to_string_lossy()])
        .spawn()
        .expect("starts");
    eventually("it is mounted", || is_mounted(&mounted.at));
    let open = std::fs::File::create(mounted.at.join("open")).expect("made");
    Site::kill(server.id() as i32, rustix::process::Signal::TERM);
    assert!(server.wait().expect("ends").success());
    drop(open);
    ended("SIGTERM");

    mounted.mount(&mounted.at);
    let _open = std::fs::File::open(mounted.at.join("open")).expect("opened");
    mounted.site.bivouac(["down", &mounted.name]).ok();
    ended("the deployment going down");
}

#[test]
fn a_killed_server_s_open_files_are_released() {
    let Some(mounted) = Mounted::new("fuse-killed", &[]) else { return };
    let other = mounted.site.path("other");
    std::fs::create_dir(&other).expect("a mount point");
    let mut server =
        mounted.site.command(["mount", &mounted.name, &other.to_string_lossy()]).spawn().expect("starts");
    eventually("it is mounted", || is_mounted(&other));
    let script = "exec 9> \"$OTHER\"/locked; flock 9; printf %060000d 7 >&9; touch ready; sleep 60";
    let mut holder = Command::new("bash");
    holder.args(["-c", &format!("cd {}; {script}", mounted.at.display())]).env("OTHER", &other);
    let mut holder = holder.spawn().expect("starts");
    eventually("it is locked", || mounted.at.join("ready").exists());
    mounted.sh("! flock -n locked true").ok();
    server.kill().expect("killed");
    server.wait().expect("ended");
    eventually("the lock is given up", || mounted.sh("flock -n locked true").code == 0);
    assert_eq!(mounted.sh("stat -c %s locked").ok(), "60000\n");
    let _ = holder.kill();
    let _ = holder.wait();
}

#[test]
fn what_cannot_be_mounted_says_why() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("fuse-refused");
    let name = site.up(1);
    site.bivouac(["mount", &name, "/nosuch/place"]).fails(65, &["/nosuch/place", "mkdir"]);
    site.bivouac(["mount", "nosuch", "/tmp"]).fails(64, &["nosuch"]);
}

/// Kills what serves the mount at a place, and waits until nobody answers there.
fn kill_server(at: &Path) {
    let place = at.to_string_lossy().into_owned();
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let pids = all.filter_map(|p| p.file_name().to_str()?.parse::<i32>().ok());
    for pid in pids {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.contains("\0mount\0") && line.split('\0').any(|word| word == place) {
            Site::kill(pid, rustix::process::Signal::KILL);
        }
    }
    eventually("it is dead", || {
        std::fs::metadata(at).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    });
}

#[test]
fn what_is_mounted_already_is_not_mounted_over() {
    let Some(mounted) = Mounted::new("fuse-twice", &[]) else { return };
    let at = mounted.at.to_string_lossy().into_owned();
    let other = mounted.site.up(1);
    for name in [&mounted.name, &other] {
        mounted.site.bivouac(["mount", name, &at, "--daemon"]).fails(65, &[&mounted.name, &at, "umount"]);
    }
    // Of many that mount at once, exactly one succeeds.
    let mut command = Command::new("umount");
    command.arg(&at);
    finish(command).ok();
    let start = |_| mounted.site.command(["mount", &mounted.name, &at, "--daemon"]).spawn().expect("starts");
    let children: Vec<_> = (0..4).map(start).collect();
    let codes = children.into_iter().map(|mut child| child.wait().expect("ends").code());
    assert_eq!(codes.filter(|code| *code == Some(0)).count(), 1);
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
    assert_eq!(table.lines().filter(|line| line.contains(&at)).count(), 1);
}

#[test]
fn a_dead_mount_is_taken_away_by_status_by_a_new_mount_and_with_its_deployment() {
    let Some(mounted) = Mounted::new("fuse-dead", &[]) else { return };
    let at = mounted.at.clone();
    let mount = || mounted.site.bivouac(["mount", &mounted.name, &at.to_string_lossy(), "--daemon"]).ok();
    kill_server(&at);
    mounted.site.bivouac(["status", &mounted.name]).ok();
    assert!(!is_mounted(&at));
    mount();
    // Also while somebody has something in it open.
    let open = std::fs::File::create(at.join("open")).expect("made");
    kill_server(&at);
    mount();
    assert!(at.join("open").exists());
    kill_server(&at);
    mounted.site.bivouac(["down", &mounted.name]).ok();
    assert!(!is_mounted(&at));
    drop(open);
}

#[test]
fn a_mount_can_be_read_only() {
    let Some(mounted) = Mounted::new("fuse-ro", &[]) else { return };
    let other = mounted.site.path("other");
    std::fs::create_dir(&other).expect("a mount point");
    let place = other.to_string_lossy().into_owned();
    mounted.site.bivouac(["mount", &mounted.name, &place, "-o", "ro,nosuch"]).fails(2, &["nosuch", "ro, rw"]);
    mounted.site.bivouac(["mount", &mounted.name, &place, "-o", "ro", "--daemon"]).ok();
    let script = "echo one > f; grep -q one \"$OTHER\"/f; for t in 'touch g' 'rm f' 'truncate -s 0 f' 'chmod 600 f' 'mkdir d'; do \
                  (cd \"$OTHER\"; ! $t 2>&1) | grep -q 'Read-only file system'; done; cat f";
    assert_eq!(mounted.sh(script).ok(), "one\n");
}

#[test]
fn file_handles_open_what_they_were_made_of_and_nothing_that_is_gone() {
    let Some(mounted) = Mounted::new("fuse-handles", &[]) else { return };
    let other = mounted.site.path("other");
    mounted.mount(&other);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/handles.py");
    let said = mounted.sh(&format!("python3 -B {} \"$M\" \"$OTHER\"", script.display())).ok();
    assert_eq!(said, "ESTALE ESTALE ESTALE\n");
}
