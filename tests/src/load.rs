//! Programs that check everything that they do, for tests in which servers fail.

mod programs;

use crate::{Site, eventually};
pub use programs::{APPENDS, BLOCKS, LENGTHS, NAMES, SYNCS};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::SystemTime;

/// So many lines of what it has said of errors go into the message when it has failed.
const LAST_WORDS: usize = 12;

/// The time of the day as the programs tell it, by which what they say can be compared with what a test has done.
pub fn clock() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("later");
    let (seconds, millis) = (now.as_secs() % 86_400, now.subsec_millis());
    format!("{:02}:{:02}:{:02}.{millis:03}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// One of the programs, which works in a directory of its own.
pub struct Load {
    /// The directory's name.
    pub home: String,
    child: Child,
    says: Lines<BufReader<ChildStdout>>,
    told: Option<ChildStdin>,
    stop: PathBuf,
    /// What it says of errors, and of what took long.
    errors: PathBuf,
}

/// What a program has done.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// How many operations.
    pub operations: f64,
    /// How long the longest one took, seconds.
    pub worst: f64,
}

impl Load {
    /// Starts one on the machine itself, and waits until it has worked a little.
    pub fn start(site: &Site, name: &str, program: &str, home: &str) -> Load {
        Load::start_by(site.command(["exec", name, "--"]), site, program, home)
    }

    /// The same on a node.
    pub fn start_on(node: &str, site: &Site, name: &str, program: &str, home: &str) -> Load {
        Load::start_by(site.command_on(node, ["exec", name, "--"]), site, program, home)
    }

    /// The same by a command that executes its arguments in a deployment.
    pub fn start_by(mut command: Command, site: &Site, program: &str, home: &str) -> Load {
        let (path, stop) = (site.path(&format!("{home}.py")), site.path(&format!("{home}.stop")));
        std::fs::write(&path, program).expect("written");
        command.args(["python3", "-B"]).arg(path).arg(format!("/bivouac/{home}")).arg(&stop);
        let errors = site.path(&format!("{home}.err"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(File::create(&errors).expect("made")).spawn().expect("starts");
        let says = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let told = child.stdin.take();
        let load = Load { home: home.into(), child, says, told, stop, errors };
        eventually("the load has begun", || load.file("begun").exists());
        load
    }

    fn file(&self, ending: &str) -> PathBuf {
        PathBuf::from(format!("{}.{ending}", self.stop.display()))
    }

    fn say(&mut self, when: &str) -> String {
        let said = self.says.next();
        said.unwrap_or_else(|| panic!("{} has failed {when}: {}", self.home, self.last_words()))
            .expect("a line")
    }

    /// The end of what it has said of errors.
    fn last_words(&self) -> String {
        let said = std::fs::read_to_string(&self.errors).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n")
    }

    /// Panics if it has failed already.
    pub fn assert_alive(&mut self) {
        let ended = self.child.try_wait().expect("a child");
        assert!(ended.is_none(), "{} has failed: {ended:?} {}", self.home, self.last_words());
    }

    /// It may get this error until the excuse is dropped, and has to repeat what it did.
    pub fn excuse(&self, error: Errno) -> Excuse {
        let file = self.file("excused");
        std::fs::write(&file, error.raw_os_error().to_string()).expect("written");
        Excuse(file)
    }

    /// Ends the changes, of which none may have failed.
    pub fn stop(&mut self) -> Done {
        std::fs::write(&self.stop, "").expect("written");
        let said = self.say("before it was told to stop");
        let words: Vec<f64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [operations, worst] = words[..] else { panic!("{said:?}") };
        println!(
            "{}: {operations} operations, the longest took {worst:.1} s {}",
            self.home,
            self.last_words()
        );
        Done { operations, worst }
    }

    /// For [`BLOCKS`] that were stopped: everything is as it was written.
    pub fn sees_the_same(&mut self, when: &str) {
        writeln!(self.told.as_mut().expect("a pipe"), "look").expect("told");
        assert_eq!(self.say(when), "the same", "{when}");
    }

    /// It has been stopped: everything is as it was written, and it has not failed at anything.
    pub fn succeeds(mut self) {
        // Those that have looked when they were stopped do not listen.
        let _ = writeln!(self.told.take().expect("a pipe"), "look");
        assert!(
            self.child.wait().expect("ends").success(),
            "{} has failed: {}",
            self.home,
            self.last_words()
        );
    }

    /// Both.
    pub fn end(mut self) -> Done {
        let done = self.stop();
        self.succeeds();
        done
    }

    /// Ends it in the middle of what it does.
    pub fn kill(mut self) {
        self.child.kill().expect("ends");
        self.child.wait().expect("ends");
    }
}

/// While this lives, an error is no failure for a program.
pub struct Excuse(PathBuf);

impl Drop for Excuse {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Waits until no server has anything to catch up with.
pub fn all_in_step(site: &Site, name: &str) {
    eventually("all servers have caught up", || {
        let status = site.status(name);
        let servers = status["servers"].as_array().expect("servers");
        servers.iter().all(|server| server["state"] == "up" && server["behind"] == 0)
    });
}

/// `verify` finds all copies the same, and fit for their checksums.
pub fn copies_agree(site: &Site, name: &str) {
    let found = site.bivouac(["verify", name, "--rate", "0", "--json"]);
    assert_eq!(found.code, 0, "{} {}", found.out, found.err);
    let found: serde_json::Value = serde_json::from_str(&found.out).expect("JSON");
    assert_eq!(found["findings"], serde_json::json!([]), "copies differ");
}
