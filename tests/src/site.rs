//! A scratch directory with deployments in it.

use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The `bivouac` program, release build, with the preload library beside it. The first call builds it.
pub fn bivouac() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a member of the workspace");
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        if let Some(given) = std::env::var_os("BIVOUAC_TEST_BINARY") {
            return given.into();
        }
        let status = Command::new(env!("CARGO"))
            .current_dir(root)
            .args([
                "build",
                "--quiet",
                "--release",
                "-p",
                "bivouac-cli",
                "-p",
                "bivouac-preload",
                "-p",
                "bivouac-capi",
            ])
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the release build failed");
        let library = Command::new(root.join("scripts/library.sh")).arg(&target).status().expect("sh runs");
        assert!(library.success(), "the C library could not be linked");
        target.join("release/bivouac")
    })
}

/// The run directory of a deployment on this machine.
pub fn run_dir(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/bivouac-{}/{name}", rustix::process::geteuid().as_raw()))
}

/// Longest time for one command of a test, seconds. What hangs is ended, and the test fails with code 124.
const LIMIT: &str = "300";

/// Runs a command to its end, for [`LIMIT`] at most.
pub fn finish(command: Command) -> Finished {
    let mut limited = Command::new("timeout");
    limited
        .args(["--foreground", "--kill-after=10", LIMIT])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        limited.current_dir(directory);
    }
    Finished::of(limited.stdin(Stdio::null()).output().expect("timeout starts"))
}

/// Gives a program the signals' default dispositions: tests that run in the background of a script have some
/// of them ignored, and would hand that on.
pub fn default_signals(command: &mut Command) -> &mut Command {
    let defaults = || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
            // SAFETY: setting a default disposition touches no memory.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: what runs between fork and exec is a system call for each signal, which may be made there.
    unsafe { command.pre_exec(defaults) }
}

/// The result of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code, or 128 + the signal that ended it.
    pub code: i32,
    /// What it wrote to standard output.
    pub out: String,
    /// What it wrote to standard error.
    pub err: String,
}

impl Finished {
    /// Of an output.
    pub fn of(output: Output) -> Finished {
        let status = output.status;
        Finished {
            code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Panics with all that the program said unless it succeeded; what it wrote to standard output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "failed\n--- out\n{}\n--- err\n{}", self.out, self.err);
        self.out
    }

    /// Panics unless it ended with `code` and its error output contains all of `words`.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) {
        let all = words.iter().all(|word| self.err.contains(word));
        assert!(
            self.code == code && all,
            "expected code {code} and {words:?}, got {}\n--- out\n{}\n--- err\n{}",
            self.code,
            self.out,
            self.err
        );
    }
}

/// A scratch directory with a `BIVOUAC_HOME` in it.
pub struct Site {
    dir: PathBuf,
    id: String,
    /// Agents start dead servers again: only for tests that are about this.
    restarts: bool,
}

impl Site {
    /// A new one. `name` is the test's.
    pub fn new(name: &str) -> Site {
        Site::below(&std::env::temp_dir(), name)
    }

    /// The same in memory: for tests that measure time, which a disk that others use, too, may take any of.
    pub fn in_memory(name: &str) -> Site {
        Site::below(Path::new("/dev/shm"), name)
    }

    fn below(base: &Path, name: &str) -> Site {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{name}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = base.join(format!("bivouac-test-{id}"));
        std::fs::create_dir_all(&dir).expect("a scratch directory");
        Site { dir, id, restarts: false }
    }

    /// From now on deployments are started as users do: agents start dead servers again. (Tests that kill servers expect
    /// them to stay dead.)
    pub fn restarts_servers(&mut self) {
        self.restarts = true;
    }

    /// A path in the scratch directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The `BIVOUAC_HOME`.
    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// A deployment's name that no other test has (all deployments of a user share a machine).
    pub fn name(&self, suffix: &str) -> String {
        // Names have a limit, which test names need not know.
        let id: String = self.id.chars().rev().take(30).collect::<Vec<_>>().into_iter().rev().collect();
        format!("{}-{suffix}", id.trim_start_matches(['-', '.', '_']))
    }

    /// The `bivouac` command with arguments, not started yet.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(bivouac());
        let mut args = args.into_iter();
        if let Some(first) = args.next() {
            let starts = ["up", "run"].iter().any(|word| first.as_ref() == OsStr::new(word));
            command.arg(first);
            if starts && !self.restarts {
                command.args(["--restarts", "0"]);
            }
        }
        command.args(args).env("BIVOUAC_HOME", self.home()).stdin(Stdio::null());
        default_signals(&mut command);
        command
    }

    /// The same on a node.
    pub fn command_on<S: AsRef<OsStr>>(&self, node: &str, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", node]).arg(bivouac()).args(args);
        command.env("BIVOUAC_HOME", self.home()).stdin(Stdio::null());
        default_signals(&mut command);
        command
    }

    /// Runs the `bivouac` command, for [`LIMIT`] at most.
    pub fn bivouac<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Finished {
        finish(self.command(args))
    }

    /// Starts a deployment on this machine; answers its name.
    pub fn up(&self, servers: usize) -> String {
        self.up_with(servers, &[])
    }

    /// The same with further options.
    pub fn up_with(&self, servers: usize, options: &[&str]) -> String {
        let name = self.name(&format!("d{}", self.deployments().len()));
        let servers = servers.to_string();
        let mut args = vec!["up", name.as_str(), "--servers", &servers];
        args.extend(options);
        self.bivouac(&args).ok();
        name
    }

    /// Runs a shell script inside a deployment.
    pub fn sh(&self, name: &str, script: &str) -> Finished {
        self.bivouac(["exec", name, "--", "bash", "-c", script])
    }

    /// The servers' states, as `status` says.
    pub fn states(&self, name: &str) -> Vec<String> {
        let status = self.status(name);
        let servers = status["servers"].as_array().expect("servers").iter();
        servers.map(|server| server["state"].as_str().expect("a word").to_owned()).collect()
    }

    /// `status --json` of one deployment.
    pub fn status(&self, name: &str) -> serde_json::Value {
        let text = self.bivouac(["status", name, "--json"]).ok();
        let mut all: serde_json::Value = serde_json::from_str(&text).expect("status prints JSON");
        all["deployments"][0].take()
    }

    /// How much all servers of a deployment that answer have of something that `status --json` counts for each.
    pub fn total(&self, name: &str, what: &str) -> u64 {
        let status = self.status(name);
        let servers = status["servers"].as_array().expect("servers").iter();
        let alive = servers.filter(|server| server["state"] != "down");
        alive.map(|server| server[what].as_u64().expect("a number")).sum()
    }

    /// The numbers of the processes of a deployment's daemons, by what they are.
    pub fn daemons(&self, name: &str) -> Vec<(Option<u64>, i32)> {
        let text = std::fs::read(self.home().join(name).join("daemons.json")).expect("a record");
        let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let daemons = record["daemons"].as_array().expect("a list").iter();
        daemons
            .map(|d| (d["server"].as_u64(), d["process"]["pid"].as_i64().expect("started") as i32))
            .collect()
    }

    /// The process of a node's agent.
    pub fn agent_pid(&self, name: &str, node: u64) -> i32 {
        let text = std::fs::read(self.home().join(name).join("daemons.json")).expect("a record");
        let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let mut daemons = record["daemons"].as_array().expect("a list").iter();
        let agent = daemons.find(|d| d["agent"] == true && d["node"].as_u64() == Some(node));
        agent.and_then(|d| d["process"]["pid"].as_i64()).expect("the agent is recorded") as i32
    }

    /// The process of a server.
    pub fn server_pid(&self, name: &str, server: u64) -> i32 {
        let found = self.daemons(name).into_iter().find(|(id, _)| *id == Some(server));
        found.expect("the server is recorded").1
    }

    /// Whether a process is there, and has not ended.
    pub fn is_alive(pid: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
    }

    /// Sends a signal to a process that the test has started. If it stops the process, this returns when all of its threads have
    /// stopped: until then, one of them may still answer.
    pub fn kill(pid: i32, signal: Signal) {
        let process = Pid::from_raw(pid).expect("a process number");
        rustix::process::kill_process(process, signal).expect("the process is there");
        if signal == Signal::STOP {
            Site::has_stopped(pid);
        }
    }

    /// [`Site::kill`] with SIGSTOP.
    pub fn stop(pid: i32) {
        Site::kill(pid, Signal::STOP);
    }

    /// Waits until all threads of a process have stopped.
    fn has_stopped(pid: i32) {
        let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let state = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
            stat.rsplit(')').next()?.trim().chars().next()
        };
        crate::eventually("it has stopped", || tasks().filter_map(state).all(|state| state == 'T'));
    }

    /// Names of the deployments that have a directory.
    pub fn deployments(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.home()).into_iter().flatten().flatten();
        let names = entries.filter_map(|e| e.file_name().into_string().ok());
        names.filter(|n| !n.starts_with('.')).collect()
    }

    /// Panics if anything of a deployment is left: directory, run directory, processes.
    #[track_caller]
    pub fn assert_nothing_left(&self, name: &str, pids: &[i32]) {
        assert!(!self.home().join(name).exists(), "the deployment's directory is left");
        assert!(!run_dir(name).exists(), "the run directory is left: {}", run_dir(name).display());
        for pid in pids {
            let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            assert!(!command.contains("daemon"), "the daemon {pid} is left");
        }
    }
}

impl Site {
    /// Copies what the daemons have logged, and what `status` says, to the directory that `BIVOUAC_TEST_EVIDENCE` names,
    /// if it does.
    fn keep_evidence(&self) {
        let Some(into) = std::env::var_os("BIVOUAC_TEST_EVIDENCE") else { return };
        for name in self.deployments() {
            let into = Path::new(&into).join(&name);
            let _ = std::fs::create_dir_all(&into);
            let _ = std::fs::write(into.join("status.json"), self.bivouac(["status", &name, "--json"]).out);
            for log in std::fs::read_dir(self.home().join(&name).join("logs")).into_iter().flatten().flatten()
            {
                let _ = std::fs::copy(log.path(), into.join(log.file_name()));
            }
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.keep_evidence();
        }
        for name in self.deployments() {
            let down = self.bivouac(["down", &name]);
            if down.code != 0 {
                eprintln!("{name} was not taken down: {}", down.err);
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The processes that a process has started.
pub fn children(of: i32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").expect("proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        parent == Some(of)
    })
    .collect()
}
