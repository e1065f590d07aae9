//! `--catch-syscalls`: what libc does with files inside itself is found in the mount.

#![cfg(target_arch = "x86_64")]

use bivouac_tests::{Site, finish, skip_unsupported};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles something of `tests/c`.
fn compile(source: &str, into: &Path, options: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(format!("{source}.c"));
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-o"]).arg(into).arg(source).args(options).args(["-ldl", "-lpthread"]);
    finish(compiler).ok();
}

/// The libraries for `internal.c`, for its directory.
fn libraries(site: &Site, directory: &str) -> PathBuf {
    let made = site.path(&format!("libraries{}", directory.replace('/', "-")));
    std::fs::create_dir(&made).expect("a directory");
    let needed = format!("-Wl,-rpath,{directory}/needed");
    let here = format!("-L{}", made.display());
    compile("internal_library", &made.join("converter.so"), &["-shared", "-fPIC", "-DCONVERTER"]);
    compile("internal_library", &made.join("libneeded.so"), &["-shared", "-fPIC", "-DNEEDED"]);
    compile(
        "internal_library",
        &made.join("libneeding.so"),
        &["-shared", "-fPIC", &here, "-lneeded", &needed],
    );
    made
}

#[test]
fn what_libc_opens_inside_itself_is_found_when_caught_and_escapes_otherwise() {
    let site = Site::new("catching");
    let program = site.path("internal");
    compile("internal", &program, &[]);
    let local = format!("/dev/shm/catching-{}", std::process::id());
    std::fs::create_dir(&local).expect("a directory");
    let mut alone = Command::new(&program);
    alone.arg(&local).arg(libraries(&site, &local));
    let alone = finish(alone);
    std::fs::remove_dir_all(&local).expect("removed");
    let expected = alone.ok();
    let deployment = site.up(2);
    let inside = |directory: &str, option: &[&str]| {
        let made = libraries(&site, directory);
        let script = format!("mkdir {directory} && {} {directory} {}", program.display(), made.display());
        let words = [&["exec", &deployment], option, &["--", "sh", "-c", &script]].concat();
        site.bivouac(words).ok()
    };
    assert_eq!(inside("/bivouac/caught", &["--catch-syscalls"]), expected);
    // Without the option nothing of it is found, but what lies elsewhere.
    let known: HashSet<&str> = expected.lines().collect();
    let escaped = inside("/bivouac/escaped", &[]);
    let same: Vec<&str> = escaped.lines().filter(|line| known.contains(line)).collect();
    assert!(known.len() > 20 && same.len() == 1 && same[0].starts_with("elsewhere:"), "{same:?}");
}

#[test]
fn threads_are_interrupted_and_cancelled_in_caught_calls_as_ever() {
    let site = Site::new("catch-threads");
    let program = site.path("catch_threads");
    compile("catch_threads", &program, &[]);
    let deployment = site.up(2);
    let script = format!("{} /bivouac 2", program.display());
    let said = site.bivouac(["exec", &deployment, "--catch-syscalls", "--", "sh", "-c", &script]).ok();
    assert_eq!(said, "all well\n");
}

#[test]
fn python_calls_libc_by_ctypes() {
    let site = Site::new("catch-ctypes");
    let script = "
import ctypes, os
libc = ctypes.CDLL('libc.so.6', use_errno=True)
fd = libc.open(b'/bivouac/file', os.O_RDWR | os.O_CREAT, 0o644)
assert fd >= 0, ctypes.get_errno()
assert libc.write(fd, b'by ctypes', 9) == 9
assert open('/bivouac/file').read() == 'by ctypes'
assert libc.rename(b'/bivouac/file', b'/bivouac/other') == 0 and os.listdir('/bivouac') == ['other']
assert libc.close(fd) == 0 and libc.close(fd) == -1
print('done')
";
    let python = ["run", "--catch-syscalls", "--", "python3", "-c", script];
    assert_eq!(site.bivouac(python).ok(), "done\n");
    let without = ["run", "--", "python3", "-c", script];
    site.bivouac(without).fails(1, &["AssertionError"]);
}

#[test]
fn programs_do_the_same_with_and_without() {
    let site = Site::new("catch-programs");
    let script = "
set -e
cd /bivouac
mkdir tree && for i in 1 2 3 4 5 6 7 8 9; do echo $i > tree/$i; done
tar cf tree.tar tree && mkdir out && tar xf tree.tar -C out && diff -r tree out/tree
git init -q repo && cp -r tree repo/ && cd repo
git -c user.name=n -c user.email=e add . && git -c user.name=n -c user.email=e commit -qm one
git clone -q . ../clone && git -C ../clone fsck 2>&1 | grep -v notice || true
cd .. && diff -r tree clone/tree
sqlite3 base.db 'create table t(a); insert into t values(1),(2); select sum(a) from t; pragma integrity_check;'
python3 -c 'import subprocess; print(subprocess.run([\"cat\"], stdin=open(\"tree/7\"), capture_output=True).stdout)'
bash -c 'cat < tree/3 | while read x; do echo got $x >> log; done; cat log <(cat tree/4)'
find . -name '[5-6]' -path './tree/*' | sort
";
    let said = site.bivouac(["run", "--catch-syscalls", "--", "bash", "-c", script]).ok();
    assert_eq!(said, "3\nok\nb'7\\n'\ngot 3\n4\n./tree/5\n./tree/6\n");
}

#[test]
fn where_code_cannot_be_changed_it_is_said_and_all_goes_on() {
    let site = Site::new("catch-denied");
    // PR_SET_MDWE (Linux 6.3): memory that was writable never becomes code, for what is executed from here
    // on.
    let script = "
import ctypes, os
denied = ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0
os.execvp('sh', ['sh', '-c', 'echo text > /bivouac/file; read text < /bivouac/file; echo $text ' + str(denied)])
";
    let done = site.bivouac(["run", "--catch-syscalls", "--", "python3", "-c", script]);
    if done.out == "text False\n" {
        skip_unsupported("this kernel does not know how to deny writable code");
        return;
    }
    let said = done.err.matches("libc's own system calls are not caught: the kernel does not let").count();
    assert_eq!((done.code, &done.out[..], said), (0, "text True\n", 1), "{}", done.err);
}

#[test]
fn a_mount_has_nothing_to_catch() {
    let site = Site::new("catch-refused");
    for access in ["fuse", "both"] {
        let refused = site.bivouac(["run", "--access", access, "--catch-syscalls", "--", "true"]);
        refused.fails(65, &["nothing for --catch-syscalls"]);
    }
}
