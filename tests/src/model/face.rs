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
    /// Who it is: user and group.
    pub user: (u32, u32),
    inner: Inner,
}

enum Inner {
    Library(Box<Library>),
    Process { child: Child, orders: ChildStdin, answers: ChildStdout },
}

impl Face {
    /// The client core in this process.
    pub fn library(library: Library) -> Face {
        Face {
            name: "client library".to_owned(),
            mount: false,
            user: own(),
            inner: Inner::Library(Box::new(library)),
        }
    }

    /// A process: `command` runs the program `model_client`.
    pub fn process(name: &str, mount: bool, mut command: Command) -> Face {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the client starts");
        let (orders, answers) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Face { name: name.to_owned(), mount, user: own(), inner: Inner::Process { child, orders, answers } }
    }

    /// A process that gives its rights up for those of another user and group.
    pub fn somebody(name: &str, mount: bool, user: (u32, u32), mut command: Command) -> Face {
        command.args([user.0.to_string(), user.1.to_string()]);
        let mut face = Face::process(name, mount, command);
        face.user = user;
        face
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

/// The user and group of this process.
fn own() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Becomes another user for good, in one group and no other.
fn become_user(uid: u32, gid: u32) {
    // SAFETY: no memory is touched: the list is empty.
    let become_other = || unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(gid, gid, gid) == 0
            && libc::setresuid(uid, uid, uid) == 0
            // Otherwise /proc/self would be root's.
            && libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) == 0
    };
    assert!(become_other(), "{}", std::io::Error::last_os_error());
}

/// The program `model_client`: carries out what standard input says, until it ends. Arguments: a user and a group, if it
/// is to be another one.
pub fn serve() {
    let ids: Vec<u32> = std::env::args().skip(1).map(|id| id.parse().expect("a number")).collect();
    if let [uid, gid] = ids[..] {
        become_user(uid, gid);
    }
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
