//! Python programs that work in a directory, and agree with the test on when to go on: by files in another directory, which
//! nobody forwards.

use crate::{Finished, Site, eventually};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What such programs begin with: `say` makes a file by which the test goes on, and `wait` waits for one of the test's.
const PRELUDE: &str = r#"
import errno, fcntl, os, sys, time
os.chdir(sys.argv[1])
def say(what): open(os.path.join(sys.argv[2], what), "w").close()
def is_said(what): return os.path.exists(os.path.join(sys.argv[2], what))
def wait(what):
    until = time.monotonic() + 120
    while not is_said(what):
        assert time.monotonic() < until, what
        time.sleep(0.01)
def error(call, *arguments):
    try: call(*arguments); return "fine"
    except OSError as e: return errno.errorcode[e.errno]
"#;

/// A program that runs.
pub struct Signalled {
    child: Option<Child>,
    signals: PathBuf,
}

impl Signalled {
    /// Starts one by a command that executes its arguments in a deployment. `label`: no other program of the test has it.
    pub fn start(
        site: &Site,
        mut command: Command,
        label: &str,
        source: &str,
        directory: &Path,
    ) -> Signalled {
        let (path, signals) = (site.path(&format!("{label}.py")), site.path(&format!("{label}.signals")));
        std::fs::create_dir_all(&signals).expect("a directory");
        std::fs::write(&path, [PRELUDE, source].concat()).expect("written");
        command.args(["python3", "-B"]).arg(path).arg(directory).arg(&signals).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        Signalled { child: Some(child), signals }
    }

    /// The same in a deployment on this machine.
    pub fn start_in(site: &Site, name: &str, label: &str, source: &str, directory: &Path) -> Signalled {
        Signalled::start(site, site.command(["exec", name, "--"]), label, source, directory)
    }

    /// Waits until the program says something.
    #[track_caller]
    pub fn hears(&mut self, what: &str) {
        let file = self.signals.join(what);
        self.does(&format!("says {what:?}"), || file.exists());
    }

    /// Waits until something has happened that the program does. Panics with what it has printed if it ends before.
    #[track_caller]
    pub fn does(&mut self, what: &str, has_happened: impl Fn() -> bool) {
        let mut has_ended = false;
        eventually(&format!("the program {what}"), || {
            has_ended =
                self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|end| end.is_some()));
            has_ended || has_happened()
        });
        assert!(!has_ended || has_happened(), "the program has ended: {:?}", self.finish());
    }

    /// Whether the program has said something.
    pub fn said(&self, what: &str) -> bool {
        self.signals.join(what).exists()
    }

    /// Says something to the program.
    pub fn say(&self, what: &str) {
        std::fs::write(self.signals.join(what), "").expect("written");
    }

    /// Ends it in the middle of what it does.
    pub fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
        }
    }

    fn finish(&mut self) -> Finished {
        let child = self.child.take().expect("it has not been waited for");
        Finished::of(child.wait_with_output().expect("ends"))
    }

    /// Waits until it ends, well; what it has printed.
    #[track_caller]
    pub fn ok(mut self) -> String {
        self.finish().ok()
    }
}

impl Drop for Signalled {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
