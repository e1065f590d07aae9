//! A backend whose clients remember names for a while, as those of GlusterFS and NFS do: what others have removed and made anew there
//! meanwhile, programs find through I/O nodes as they find it without them.

use bivouac_tests::failing::FailingDir;
use bivouac_tests::signalled::Signalled;
use bivouac_tests::{Site, skipped_without_mount, skipped_without_root};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Uses a directory for each call, and does the call in it after others have put new ones in their places. (A `stat` may find what
/// was there before: the backend's client may answer it.)
const CALLS: &str = r#"
def put(path, text):
    with open(path, "x") as f: f.write(text)
def got(path):
    with open(path) as f: return f.read()
def make(path):
    # Some kernels do not look again before this says ESTALE, wherever they are asked.
    if error(os.mkdir, path) == "ESTALE" and "LENIENT" in os.environ: os.listdir(os.path.dirname(path)); os.mkdir(path)
calls = {
    "read": lambda d: got(d + "/f"), "deep": lambda d: got(d + "/sub/g"), "number": lambda d: len(os.listdir(d)),
    "list": lambda d: sorted(os.listdir(d)), "scan": lambda d: sorted(os.listdir(d + "/sub")),
    "create": lambda d: put(d + "/new", "new"), "below": lambda d: put(d + "/sub/new", "new"),
    "overwrite": lambda d: open(d + "/f", "w").close(), "append": lambda d: open(d + "/f", "a").close(),
    "mkdir": lambda d: make(d + "/new"), "unlink": lambda d: os.unlink(d + "/f"), "rmdir": lambda d: os.rmdir(d + "/empty"),
    "rename": lambda d: os.rename(d + "/f", d + "/new"), "move": lambda d: os.rename(d + "/f", d + "/sub/new"),
    "chmod": lambda d: os.chmod(d + "/f", 0o600), "truncate": lambda d: os.truncate(d + "/f", 1),
    "above": lambda d: got(d + "/sub/../f"), "gone": lambda d: got(d + "/only"),
    "open": lambda d: (got(d + "/f"), kept.read()),
}
def use(d):
    for directory, _, files in os.walk(d):
        for file in files: os.stat(directory + "/" + file)
for call in calls:
    os.makedirs(call + "/sub"); os.mkdir(call + "/empty"); put(call + "/f", "old"); put(call + "/sub/g", "old"); put(call + "/only", "old")
    use(call)
kept = open("open/f")
say("used"); wait("replaced")
for call, what in calls.items():
    try: print(call, what(call))
    except OSError as e: print(call, errno.errorcode[e.errno])
"#;

/// Replaces each directory that the program has made, and what is in it. The names that it had are others' by now.
fn replace(behind: &Path) {
    for entry in fs::read_dir(behind).expect("a directory") {
        let directory = entry.expect("an entry").path();
        fs::remove_dir_all(&directory).expect("removed");
        fs::create_dir_all(directory.join("sub")).expect("made");
        fs::create_dir(directory.join("empty")).expect("made");
        for (name, text) in [("f", "newer"), ("sub/g", "newest"), ("another", "")] {
            fs::write(directory.join(name), text).expect("written");
        }
    }
}

/// What the program prints, and what is behind the directory afterwards.
fn outcome(site: &Site, dir: &FailingDir, command: Command, label: &str) -> (String, String) {
    let mut program = Signalled::start(site, command, label, CALLS, &dir.path());
    program.hears("used");
    replace(&dir.behind());
    program.say("replaced");
    let said = program.ok();
    let left = Command::new("find").arg(dir.behind()).args(["-printf", "%P %m %s\n"]).output().expect("find");
    let mut left: Vec<String> = String::from_utf8_lossy(&left.stdout).lines().map(str::to_owned).collect();
    left.sort();
    (said, left.join("\n"))
}

#[test]
fn what_others_have_made_anew_is_found_as_without_io_nodes() {
    if skipped_without_root("mounting a file system") || skipped_without_mount() {
        return;
    }
    let site = Site::new("stale");
    let long = Duration::from_secs(300);
    let dir = FailingDir::remembering("stale", long);
    let mut plain = Command::new("env");
    plain.env("LENIENT", "");
    let direct = outcome(&site, &dir, plain, "direct");
    assert!(direct.0.contains("read newer\ndeep newest\n"), "{direct:?}");
    for access in ["preload", "fuse", "both"] {
        let dir = FailingDir::remembering("stale", long);
        let name = site.up_with(1, &["--forward", dir.path().to_str().expect("text")]);
        let mut command = site.command(["exec", &name, "--access", access, "--"]);
        if access != "preload" {
            command.env("LENIENT", "");
        }
        let through = outcome(&site, &dir, command, access);
        assert_eq!(through.0, direct.0, "{access}");
        assert_eq!(through.1, direct.1, "{access}");
        site.bivouac(["down", &name]).ok();
    }
}
