//! What is not in the mount must not notice the library: real programs, with and without it, print the same.
//!
//! Once with no deployment in the environment (the library sleeps), once with one whose daemon does not exist
//! (the library is awake, decides for every path and descriptor, and nothing ever reaches a client).

mod common;

use common::{awake, library};
use std::process::{Command, Output};

#[derive(Clone, Copy, PartialEq)]
enum With {
    Nothing,
    Asleep,
    Awake,
}

fn run(with: With, program: &str, args: &[&str], dir: &std::path::Path) -> Output {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).env("LC_ALL", "C");
    for name in ["LD_PRELOAD", "BIVOUAC_DEPLOYMENT", "BIVOUAC_MOUNT", "BIVOUAC_KEY"] {
        command.env_remove(name);
    }
    match with {
        With::Nothing => {}
        With::Asleep => drop(command.env("LD_PRELOAD", library())),
        With::Awake => awake(&mut command),
    }
    command.output().unwrap()
}

/// Runs a shell script all three ways, each in a directory of its own, and compares.
fn same(script: &str) {
    let outputs = [With::Nothing, With::Asleep, With::Awake].map(|with| {
        let dir = tempfile::tempdir().unwrap();
        let output = run(with, "/bin/bash", &["-c", script], dir.path());
        let text =
            |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&dir.path().display().to_string(), "DIR");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    });
    assert_eq!(outputs[0], outputs[1], "asleep: {script}");
    assert_eq!(outputs[0], outputs[2], "awake: {script}");
    assert_eq!(outputs[0].0, Some(0), "{}", outputs[0].2);
}

#[test]
fn shell_redirection_and_directories_work_as_without_it() {
    same(
        r#"mkdir -p a/b; cd a/b; pwd | sed 's/.*\(.\{4\}\)$/\1/'; echo 1 > f; echo 2 >> f; cat < f; cd ..; ls -R
           exec 5> g; echo a >&5; (echo b >&5); exec 5>&-; cat g; cat <<X
here
X
           ln -s b link; cat link/f; readlink link; rm -r b; ls -la link 2>&1 | sed 's/.*link/link/'; cat link/f; true"#,
    );
}

#[test]
fn errors_are_the_kernels() {
    same(
        r#"cat missing; cat missing/x; touch f; cat f/x; mkdir f; rmdir f; ls d; mv no yes; ln f f; rm -r nothing
           cat /proc/self/fd/77; : > /proc/version; cd nowhere; ln -s loop loop; cat loop; mkdir d; rmdir d/.; true"#,
    );
}

#[test]
fn descriptors_and_files_work_as_without_it() {
    let script = r#"
import os, fcntl, mmap, socket, errno
def tried(f, *a, **k):
    try: print(f.__name__, f(*a, **k))
    except OSError as e: print(f.__name__, errno.errorcode[e.errno])
f = os.open('f', os.O_RDWR | os.O_CREAT, 0o640)
tried(os.write, f, b'hello world'); tried(os.pread, f, 5, 6); tried(os.lseek, f, 0, 0); tried(os.read, f, 5)
d = os.dup(f); tried(os.read, d, 3); tried(os.lseek, f, 0, 1)
tried(os.dup2, f, 40); tried(os.dup2, 99, 41); tried(os.close, 40); tried(os.close, 40); tried(os.read, 40, 1)
tried(fcntl.fcntl, f, fcntl.F_GETFL); tried(fcntl.lockf, f, fcntl.LOCK_EX); tried(fcntl.flock, f, fcntl.LOCK_SH)
tried(os.ftruncate, f, 20); tried(os.fstat, 98); print(os.fstat(f).st_size)
tried(os.preadv, f, [bytearray(3)] * 12, 2); tried(os.pwritev, f, [b'a', b'b'], 3); tried(os.readv, f, [bytearray(2)])
tried(os.posix_fallocate, f, 0, 30); tried(os.sendfile, d, f, 0, 4); tried(os.copy_file_range, f, d, 4)
tried(os.truncate, 'f', 7); tried(os.utime, 'f', ns=(5, 6)); print(os.stat('f').st_mtime_ns)
tried(os.chmod, 'f', 0o600); tried(os.access, 'f', os.X_OK, effective_ids=True); tried(os.stat, '')
m = mmap.mmap(f, 7); print(m[:]); m.close()
tried(os.setxattr, 'f', 'user.a', b'v'); tried(os.getxattr, 'f', 'user.b'); tried(os.statvfs, 'nothing')
r, w = os.pipe(); tried(os.lseek, r, 0, 1); tried(os.isatty, r)
a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [f]); got = socket.recv_fds(b, 1, 1)[1][0]
tried(os.pread, got, 2, 0); os.closerange(3, 200); tried(os.fstat, got)
tried(os.rename, 'f', 'g'); tried(os.link, 'g', 'h'); tried(os.unlink, 'h'); tried(os.mkfifo, 'p'); tried(os.rmdir, 'g')
"#;
    let script = script.replace('\'', "\"");
    same(&format!("python3 -c '{script}'"));
}

#[test]
fn without_a_daemon_the_mount_fails_with_eio_and_one_line_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let script = "import os\nfor p in ('/bivouac-test/mount/a', '/bivouac-test/mount', '/tmp/../bivouac-test/mount'):\n \
                  for f in (os.stat, os.listdir, open, os.mkdir):\n  try: f(p); print('worked')\n  \
                  except OSError as e: print(e.errno)\n";
    let output = run(With::Awake, "/usr/bin/env", &["python3", "-c", script], dir.path());
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout.lines().collect::<Vec<_>>(), vec!["5"; 12]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("bivouac status"), "{stderr}");
}

#[test]
fn a_program_without_a_deployment_sees_no_mount() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(With::Asleep, "/bin/ls", &["/bivouac-test/mount"], dir.path());
    assert!(String::from_utf8_lossy(&output.stderr).contains("No such file or directory"));
}

#[test]
fn a_signal_handler_does_not_wait_for_the_start_that_it_has_interrupted() {
    use std::os::linux::net::SocketAddrExt;
    let dir = tempfile::tempdir().unwrap();
    let program = common::compiled("interrupted_start", dir.path());
    let key = dir.path().join("key");
    std::fs::write(&key, "0".repeat(64)).unwrap();
    // A daemon that takes connections and says nothing.
    let name = format!("silent-{}", std::process::id());
    // SAFETY: no arguments.
    let uid = unsafe { libc::getuid() };
    let names = bivouac_node::agent_sockets(uid, &name, &bivouac_proto::auth::Key([0; 32]));
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&names[0]).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let mut command = Command::new(program);
    command.arg("/bivouac-test/mount/file");
    awake(&mut command);
    command.env("BIVOUAC_DEPLOYMENT", name).env("BIVOUAC_KEY", key);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let end = std::time::Instant::now() + bivouac_testing::HANG;
    while child.try_wait().unwrap().is_none() {
        if std::time::Instant::now() > end {
            child.kill().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "-1 Input/output error; handler: 1 Input/output error\n");
}
