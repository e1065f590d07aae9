//! Programs that wait until a test has them go on.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A program that says "ready", and goes on when it gets a line.
pub struct Paused {
    running: Child,
    output: BufReader<ChildStdout>,
}

impl Paused {
    /// Starts it, and waits until it is ready.
    pub fn start(mut command: Command) -> Paused {
        let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
        let output = BufReader::new(running.stdout.take().expect("piped"));
        let mut paused = Paused { running, output };
        assert_eq!(paused.next_line(), "ready\n");
        paused
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// What it says next, with the end of the line.
    pub fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read");
        line
    }

    /// Has it go on.
    pub fn go_on(&mut self) {
        self.running.stdin.take().expect("piped").write_all(b"go\n").expect("written");
    }

    /// What it says until it ends, well.
    pub fn end(mut self) -> String {
        let mut said = String::new();
        self.output.read_to_string(&mut said).expect("read");
        assert!(self.running.wait().expect("ends").success(), "{said}");
        said
    }
}
