//! Clients: the client core in this process, or a process of its own that is told over a pipe what to do.

use super::call::{Answer, Order};
use super::library::Library;
use super::system::System;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Longest time for one call, seconds. What hangs is ended, and the test fails.
const LIMIT: u32 = 60;

/// One client.
pub struct Face {
    /// What it is called in reports.
    pub name: String,
    /// It works in a kernel mount: the kernel owns the offsets of its descriptors.
    pub mount: bool,
    inner: Inner,
}

enum Inner {
    Library(Box<Library>),
    Process { child: Child, orders: ChildStdin, answers: ChildStdout },
}

impl Face {
    /// The client core in this process.
    pub fn library(library: Library) -> Face {
        Face { name: "client library".to_owned(), mount: false, inner: Inner::Library(Box::new(library)) }
    }

    /// A process: `command` runs the program `model_client`.
    pub fn process(name: &str, mount: bool, mut command: Command) -> Face {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the client starts");
        let (orders, answers) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Face { name: name.to_owned(), mount, inner: Inner::Process { child, orders, answers } }
    }

    /// Whether it is the client core, which has no `copy_file_range`.
    pub fn is_library(&self) -> bool {
        matches!(self.inner, Inner::Library(_))
    }

    /// Has an order carried out.
    pub fn obey(&mut self, order: &Order) -> Answer {
        match &mut self.inner {
            Inner::Library(library) => library.obey(order),
            Inner::Process { orders, answers, .. } => {
                send(orders, order).unwrap_or_else(|e| panic!("{} is gone: {e}", self.name));
                receive(answers).unwrap_or_else(|| panic!("{} ended in {order:?}", self.name))
            }
        }
    }
}

impl Drop for Face {
    fn drop(&mut self) {
        if let Inner::Process { child, .. } = &mut self.inner {
            // What it runs under (`bivouac exec`) ends what it started.
            let pid = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = child.wait();
        }
    }
}

fn send<T: serde::Serialize>(to: &mut impl Write, value: &T) -> std::io::Result<()> {
    let bytes = postcard::to_allocvec(value).expect("it can be told");
    to.write_all(&(bytes.len() as u32).to_le_bytes())?;
    to.write_all(&bytes)?;
    to.flush()
}

/// `None` at the end.
fn receive<T: serde::de::DeserializeOwned>(from: &mut impl Read) -> Option<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length).ok()?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut bytes).ok()?;
    Some(postcard::from_bytes(&bytes).expect("what the other end told"))
}

/// The program `model_client`: carries out what standard input says, until it ends.
pub fn serve() {
    let mut system = System::default();
    let (mut orders, mut answers) = (std::io::stdin().lock(), std::io::stdout().lock());
    // SAFETY: no memory is touched.
    unsafe { libc::umask(0) };
    while let Some(order) = receive::<Order>(&mut orders) {
        // SAFETY: no memory is touched; what the signal does is end this process.
        unsafe { libc::alarm(LIMIT) };
        let answer = system.obey(&order);
        // SAFETY: likewise.
        unsafe { libc::alarm(0) };
        if send(&mut answers, &answer).is_err() {
            return;
        }
    }
}
