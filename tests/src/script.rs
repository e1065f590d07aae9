//! Python scripts in a deployment, in every way of access.

use crate::{Site, accesses};

/// What the scripts have before them: modules, the mount as their working directory, and some words.
const HEAD: &str = r"
import ctypes, errno, fcntl, mmap, os, resource, signal, stat, struct, sys, threading, time
os.chdir('/bivouac')
mounted = 'LD_PRELOAD' not in os.environ or 'BIVOUAC_MOUNTED' in os.environ
def attempt(f, *args, **more):
    try:
        return f(*args, **more)
    except OSError as e:
        return errno.errorcode[e.errno]
def child(f):
    # What the processes have said before is said once.
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            f()
            sys.stdout.flush()
            os._exit(0)
        except BaseException as e:
            print('in a child:', repr(e), flush=True)
            os._exit(1)
    return pid
def join(*pids):
    return all([os.waitpid(pid, 0)[1] == 0 for pid in pids])
";

/// Runs a Python script in the mount of a fresh deployment of four servers with blocks of 16 KiB, once in
/// each way of access; what it prints.
pub fn python_in_each_access(test: &str, script: &str) -> Vec<(&'static str, String)> {
    let site = Site::new(test);
    let deployment = site.up_with(4, &["--block-size", "16K"]);
    python_in_each_access_to(&site, &deployment, script)
}

/// The same in a deployment that is there. It is emptied before each run.
pub fn python_in_each_access_to(site: &Site, deployment: &str, script: &str) -> Vec<(&'static str, String)> {
    let program = site.path("script.py");
    std::fs::write(&program, format!("{HEAD}{script}")).expect("written");
    let program = program.to_string_lossy().into_owned();
    let run = |access: &&'static str| {
        site.sh(deployment, "rm -rf /bivouac/*").ok();
        let said = site.bivouac(["exec", deployment, "--access", access, "--", "python3", "-B", &program]);
        (*access, said.ok())
    };
    accesses().iter().map(run).collect()
}

/// The same, and it must print this in each.
#[track_caller]
pub fn python_says(test: &str, script: &str, expected: &str) {
    for (access, said) in python_in_each_access(test, script) {
        assert_eq!(said, expected, "{access}");
    }
}
