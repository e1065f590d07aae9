//! What the command line refuses, and how it says so: storage, mount paths, hosts, ports, keys, sources that
//! vanish, and peers that send garbage.

use bivouac_tests::{HANG, Mounted, Site, bivouac, eventually, finish, run_dir, skipped_without_root};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

/// `up` with this storage is refused with these words, and leaves nothing.
fn refused_storage(site: &Site, storage: &str, words: &[&str]) {
    let name = site.name("refused");
    site.bivouac(["up", &name, "--storage", storage]).fails(65, words);
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn storage_that_is_missing_or_a_file_is_refused() {
    let site = Site::new("nostorage");
    refused_storage(&site, &site.path("nosuch").display().to_string(), &["does not exist", "nosuch"]);
    std::fs::write(site.path("file"), "x").expect("writes");
    refused_storage(&site, &site.path("file").display().to_string(), &["not a directory"]);
}

#[test]
fn storage_that_is_full_read_only_or_someone_elses_is_refused() {
    if skipped_without_root("mounting full and read-only file systems") {
        return;
    }
    let site = Site::new("badstorage");
    {
        let full = Mounted::new(site.path("full"), "size=1m");
        refused_storage(&site, &full.path().display().to_string(), &["is full", "free"]);
        let read_only = Mounted::new(site.path("ro"), "ro");
        refused_storage(&site, &read_only.path().display().to_string(), &["read-only"]);
    }
    let theirs = site.path("theirs");
    std::fs::create_dir(&theirs).expect("makes it");
    std::os::unix::fs::chown(&theirs, Some(12345), None).expect("gives it away");
    refused_storage(&site, &theirs.display().to_string(), &["belongs to user 12345"]);
    assert_eq!(std::fs::read_dir(&theirs).expect("is there").count(), 0);
}

#[test]
fn storage_is_made_inside_the_given_directory_and_the_rest_of_it_stays() {
    let site = Site::new("inside");
    let disks = [site.path("disk1"), site.path("disk2")];
    for disk in &disks {
        std::fs::create_dir(disk).expect("makes it");
        std::fs::write(disk.join("precious"), "mine").expect("writes");
    }
    let [first, second] = disks.clone().map(|d| d.display().to_string());
    let name = site.up_with(2, &["--storage", &first, "--storage", &second]);
    assert!(
        disks[0].join(format!("bivouac-{name}-0")).is_dir()
            && disks[1].join(format!("bivouac-{name}-1")).is_dir()
    );
    let other = Site::new("inside2");
    site.sh(&name, "head -c 3000000 /dev/zero > /bivouac/x").ok();
    site.bivouac(["down", &name]).ok();
    for disk in &disks {
        let left: Vec<_> =
            std::fs::read_dir(disk).expect("is there").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["precious"]);
    }
    // What exists at the path of the new storage is not touched either.
    let taken = disks[0].join(format!("bivouac-{}-0", other.name("x")));
    std::fs::create_dir(&taken).expect("makes it");
    other.bivouac(["up", &other.name("x"), "--storage", &first]).fails(65, &["exists already"]);
    assert!(taken.is_dir());
}

#[test]
fn a_mount_path_with_real_files_is_refused() {
    let site = Site::new("mount");
    for mount in ["/usr", "/etc/passwd", "/etc/passwd/x"] {
        let name = site.name("m");
        site.bivouac(["up", &name, "--mount", mount]).fails(65, &["mount path", "--mount"]);
        site.assert_nothing_left(&name, &[]);
    }
    let empty = site.path("empty");
    std::fs::create_dir(&empty).expect("makes it");
    let mount = empty.display().to_string();
    let name = site.up_with(1, &["--mount", &mount]);
    site.sh(&name, &format!("echo x > {mount}/x; cat {mount}/x")).ok();
    assert_eq!(std::fs::read_dir(&empty).expect("is there").count(), 0, "nothing lands under the mount path");
}

#[test]
fn unknown_hosts_and_launchers_are_told() {
    let site = Site::new("hosts");
    let name = site.name("h");
    let up = |args: &[&str]| site.bivouac(["up", &name].iter().chain(args));
    up(&["--hosts", "nosuch.invalid"]).fails(66, &["nosuch.invalid", "ssh"]);
    up(&["--hosts", "/no/such/file"]).fails(65, &["/no/such/file"]);
    up(&["--hosts", "-oProxyCommand=x"]).fails(2, &["error:"]);
    up(&["--hosts=-oProxyCommand=x"]).fails(65, &["no host name"]);
    up(&["--hosts", "192.0.2.1", "--launcher", "local"]).fails(65, &["not this machine"]);
    up(&["--hosts", "nosuch", "--launcher", "netns"]).fails(65, &["no network namespace"]);
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn a_port_that_is_taken_is_told_and_everything_started_is_removed() {
    let site = Site::new("port");
    let name = site.name("p");
    // The second server's port is taken; the first starts, and the agent, whose port comes after it. (The kernel gives these
    // ports to nobody who does not ask for them, so that no other test gets one meanwhile.)
    let bind = |port: u16| TcpListener::bind(("127.0.0.1", port)).ok();
    let mut ports = (20_000..32_000).step_by(3).cycle().skip(std::process::id() as usize % 4000);
    let (taken, port) = ports
        .find_map(|port| bind(port - 1).and(bind(port + 1)).and_then(|_| Some((bind(port)?, port))))
        .expect("three free ports");
    let first = (port - 1).to_string();
    site.bivouac(["up", &name, "--servers", "2", "--port", &first])
        .fails(66, &[&port.to_string(), "--port", "log:"]);
    site.assert_nothing_left(&name, &[]);
    drop(taken);
    site.bivouac(["up", &name, "--servers", "2", "--port", &first]).ok();
    assert_eq!(site.status(&name)["servers"][1]["address"], format!("127.0.0.1:{port}").as_str());
}

#[test]
fn a_wrong_key_opens_nothing() {
    let site = Site::new("key");
    let name = site.up(1);
    site.sh(&name, "echo secret > /bivouac/s").ok();
    let wrong = site.path("wrong");
    std::fs::write(&wrong, "ab".repeat(32)).expect("writes");
    let steal = format!("BIVOUAC_KEY={} cat /bivouac/s", wrong.display());
    let finished = site.sh(&name, &steal);
    assert!(finished.code != 0 && !finished.out.contains("secret"), "{finished:?}");
    let key = run_dir(&name).join("key");
    let right = std::fs::read(&key).expect("reads");
    std::fs::write(&key, "cd".repeat(32)).expect("writes");
    site.bivouac(["exec", &name, "--", "true"]).fails(67, &["wrong key"]);
    std::fs::write(&key, right).expect("writes");
    assert_eq!(site.sh(&name, "cat /bivouac/s").ok(), "secret\n");
}

#[test]
fn a_program_of_another_user_is_told_that_it_needs_a_mount() {
    if skipped_without_root("a program of another user") {
        return;
    }
    let site = Site::new("another-user");
    let name = site.up(1);
    // Where that user finds the library.
    let library = bivouac().with_file_name("libbivouac_preload.so");
    let reachable = site.path("libbivouac_preload.so");
    std::fs::copy(library, &reachable).expect("a copy");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(site.path(""), open).expect("set");
    let preload = format!("LD_PRELOAD={}", reachable.display());
    let somebody =
        ["setpriv", "--reuid=1001", "--regid=1001", "--clear-groups", "env", &preload, "stat", "/bivouac"];
    let command = ["exec", &name, "--"].into_iter().chain(somebody);
    site.bivouac(command).fails(1, &["another user's", "bivouac mount"]);
}

#[test]
fn a_process_that_becomes_somebody_else_opens_nothing_more_with_the_library() {
    if skipped_without_root("a program of another user") {
        return;
    }
    let site = Site::new("became");
    let name = site.up(2);
    let script = "
import os
os.chdir('/bivouac'); os.chmod('.', 0o777)
kept = open('kept', 'w+'); kept.write('before'); kept.flush()
os.setresgid(1001, 1001, 1001); os.setresuid(1001, 1001, 1001)
for name, flags in (('kept', os.O_RDONLY), ('kept', os.O_WRONLY | os.O_TRUNC), ('new', os.O_WRONLY | os.O_CREAT)):
    try: print(os.open(name, flags))
    except OSError as e: print(e.strerror)
print(os.pread(kept.fileno(), 9, 0), os.stat('kept').st_size, os.path.exists('new'))
";
    let out = site.sh(&name, &format!("python3 -B - <<'END'{script}END")).ok();
    assert_eq!(out, format!("{}b'before' 6 False\n", "Permission denied\n".repeat(3)));
    eventually("all is released", || site.total(&name, "opens") == 0);
}

#[test]
fn truncated_oversized_and_random_messages_leave_the_server_serving() {
    let site = Site::new("garbage");
    let name = site.up(2);
    site.sh(&name, "echo here > /bivouac/f").ok();
    let status = site.status(&name);
    let address = status["servers"][0]["address"].as_str().expect("an address").to_owned();
    let mut header = Vec::from(*b"BVWK");
    header.extend(bivouac_proto::header::VERSION.to_le_bytes());
    let mut oversized = header.clone();
    oversized.extend([3, 0]);
    oversized.extend([0xff; 56]);
    let mut request = header.clone();
    request.extend([0, 0, 4, 0, 0, 0]);
    request.resize(80, 0);
    let noise: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let cases = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        header[..3].to_vec(),
        header,
        oversized,
        request,
        noise,
        Vec::new(),
    ];
    for (i, case) in cases.iter().enumerate() {
        for half_closed in [true, false] {
            let mut stream = TcpStream::connect(&address).expect("connects");
            // The server may close before all was sent.
            let _ = stream.write_all(case);
            if half_closed {
                let _ = stream.shutdown(Shutdown::Write);
                stream.set_read_timeout(Some(HANG)).expect("sets it");
                let mut answer = Vec::new();
                let end = stream.read_to_end(&mut answer).map_err(|error| error.kind());
                assert!(
                    matches!(end, Ok(_) | Err(ErrorKind::ConnectionReset)),
                    "case {i}: not closed: {end:?}"
                );
                assert!(answer.len() < 4096, "case {i}: a stranger is told nothing");
            }
        }
    }
    assert_eq!(site.sh(&name, "cat /bivouac/f").ok(), "here\n");
    assert_eq!(site.status(&name)["state"], "running");
}

#[test]
fn a_source_that_vanishes_while_it_is_copied_is_reported_and_the_rest_is_copied() {
    let site = Site::new("vanish");
    let name = site.up(2);
    let source = site.path("source");
    let script = format!(
        "mkdir -p {0}/keep {0}/go; for i in $(seq 1 3000); do echo $i > {0}/go/$i; echo $i > {0}/keep/$i; done",
        source.display()
    );
    assert!(Command::new("bash").args(["-c", &script]).status().expect("runs").success());
    let mut copying = site.command(["preload", &name, &source.display().to_string(), "/in"]);
    let child = copying.stderr(std::process::Stdio::piped()).spawn().expect("starts");
    std::thread::sleep(Duration::from_millis(20));
    std::fs::remove_dir_all(source.join("go")).expect("vanishes");
    let output = child.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Either everything was copied before it vanished, or the failures are named.
    assert!(matches!(output.status.code(), Some(0 | 68)), "{:?} {said}", output.status);
    assert_eq!(output.status.code() == Some(68), said.contains("were not preloaded"), "{said}");
    assert_eq!(
        site.sh(&name, "cat /bivouac/in/keep/* | sort -n | tail -1; ls /bivouac/in/keep | wc -l").ok(),
        "3000\n3000\n"
    );
    let gone = site.path("gone").display().to_string();
    site.bivouac(["preload", &name, &gone, "/in2"]).fails(68, &["gone"]);
    site.bivouac(["flush", &name, "/nosuch", &gone]).fails(68, &["nosuch"]);
}

/// A program named `ssh` that runs the command here if the host is `localhost`, hangs if it is to start a
/// daemon on a host named `hangs`, and knows no host named `mistyped`. It notes down how it was called.
/// Answers the `PATH` that finds it.
fn fake_ssh(site: &Site) -> String {
    let bin = site.path("bin");
    std::fs::create_dir(&bin).expect("makes it");
    // What follows `--` is the host and the command, which a login shell takes apart.
    let fake = format!(
        r#"#!/bin/sh
echo "$@" >> {}
while [ "$1" != -- ]; do shift; done
case "$2 $3" in
localhost*) ;;
hangs*--cleanup) ;;
hangs*) exec sleep 100 ;;
mistyped*) echo "ssh: Could not resolve hostname $2: Name or service not known" >&2; exit 255 ;;
*) echo "no route to $2" >&2; exit 255 ;;
esac
shift 2
exec env -i PATH=/usr/bin:/bin HOME=/nonexistent sh -c "$*"
"#,
        site.path("ssh.log").display()
    );
    std::fs::write(bin.join("ssh"), fake).expect("writes");
    assert!(Command::new("chmod").args(["+x"]).arg(bin.join("ssh")).status().expect("runs").success());
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default())
}

#[test]
fn ssh_starts_the_same_deployment_without_a_secret_on_its_command_line() {
    let site = Site::new("ssh");
    let path = fake_ssh(&site);
    let name = site.name("s");
    let run = |args: &[&str]| {
        let mut command = site.command(args);
        command.env("PATH", &path);
        finish(command)
    };
    run(&["up", &name, "--hosts", "elsewhere", "--launcher", "ssh"])
        .fails(66, &["elsewhere", "no route to elsewhere", "without a password"]);
    // It is not known whether anything was started there.
    run(&["down", &name]).fails(67, &["elsewhere", "--force"]);
    run(&["down", &name, "--force"]).ok();
    let up = run(&["up", &name, "--hosts", "mistyped", "--launcher", "ssh"]);
    assert!(!up.err.contains("could be removed"), "nothing is to be cleaned where nobody got to: {}", up.err);
    up.fails(66, &["mistyped", "not resolve", "ssh mistyped"]);
    assert!(!site.home().join(&name).exists(), "nothing is left to be taken down");
    run(&["up", &name, "--hosts", "localhost", "--launcher", "ssh", "--servers", "2"]).ok();
    let calls = std::fs::read_to_string(site.path("ssh.log")).expect("was called");
    let key = std::fs::read_to_string(run_dir(&name).join("key")).expect("a key");
    assert!(calls.contains("BatchMode=yes") && !calls.contains(key.trim()));
    assert_eq!(run(&["exec", &name, "--", "sh", "-c", "echo x > /bivouac/x; cat /bivouac/x"]).ok(), "x\n");
    // Workers of a flush are started in the same way.
    let flushed = run(&["flush", &name, "/x", &site.path("x").display().to_string()]);
    assert!(flushed.code == 0 && flushed.err.contains("by 1 node"), "{}", flushed.err);
    assert_eq!(std::fs::read(site.path("x")).expect("flushed"), b"x\n");
    let calls = std::fs::read_to_string(site.path("ssh.log")).expect("was called");
    assert!(calls.contains("daemon --stage") && !calls.contains(key.trim()));
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|d| d.1).collect();
    run(&["down", &name]).ok();
    site.assert_nothing_left(&name, &pids);
}

#[test]
fn an_interrupt_while_a_host_hangs_ends_up_and_cleans_the_hosts() {
    let site = Site::new("sshint");
    let path = fake_ssh(&site);
    let name = site.name("s");
    let log = || std::fs::read_to_string(site.path("ssh.log")).unwrap_or_default();
    for (what, args) in [("up", vec!["up", &name]), ("run", vec!["run", "--name", &name])] {
        let mut command = site.command(args);
        command.args(["--hosts", "hangs", "--launcher", "ssh"]).env("PATH", &path);
        if what == "run" {
            command.args(["--", "true"]);
        }
        let mut child = command.spawn().expect("starts");
        eventually("ssh is called", || log().contains("daemon"));
        std::thread::sleep(Duration::from_millis(300));
        Site::kill(child.id() as i32, rustix::process::Signal::INT);
        assert_eq!(child.wait().expect("ends").code(), Some(130), "{what}");
        assert!(log().contains("--cleanup"), "{what}: the host is cleaned: {}", log());
        site.assert_nothing_left(&name, &[]);
        std::fs::remove_file(site.path("ssh.log")).expect("removes");
    }
}

#[test]
fn a_host_that_cannot_be_cleaned_is_told_and_can_be_forgotten() {
    let site = Site::new("sshdown");
    let path = fake_ssh(&site);
    let name = site.name("s");
    let run = |args: &[&str], path: &str| {
        let mut command = site.command(args);
        command.env("PATH", path);
        finish(command)
    };
    run(&["up", &name, "--hosts", "localhost", "--launcher", "ssh"], &path).ok();
    std::fs::write(site.path("bin/ssh"), "#!/bin/sh\necho broken >&2; exit 255\n").expect("writes");
    run(&["down", &name], &path).fails(67, &["localhost", "broken", "--force"]);
    assert!(site.home().join(&name).exists(), "it can be repeated");
    let forced = run(&["down", &name, "--force"], &path);
    assert!(forced.code == 0 && !site.home().join(&name).exists(), "{forced:?}");
}
