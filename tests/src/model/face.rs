//! Clients: the client core in this process, or a process of its own that is told over a pipe what to do.

use super::call::{Answer, Order};
use super::library::Library;
use super::system::System;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time for one call, seconds. What hangs is ended, and the test fails.
const LIMIT: u32 = 60;

/// Time from one signal to the next, until the call ends.
const AGAIN: Duration = Duration::from_millis(10);

/// One client.
pub struct Face {
    /// Its name in reports.
    pub name: String,
    /// It works in a kernel mount: the kernel owns the offsets of its descriptors.
    pub mount: bool,
    /// Who it is: user and group.
    pub user: (u32, u32),
    inner: Inner,
}

enum Inner {
    Library(Box<Library>),
    Process(Box<Process>),
}

/// What was started.
struct Process {
    child: Child,
    orders: ChildStdin,
    answers: ChildStdout,
    /// The client itself, which that may have started.
    client: Option<Pid>,
    /// The last order.
    asked: Order,
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
        let process = Process { child, orders, answers, client: None, asked: Order::Identify };
        let inner = Inner::Process(Box::new(process));
        let mut face = Face { name: name.to_owned(), mount, user: own(), inner };
        let Answer::Count(pid) = face.obey(&Order::Identify) else { panic!("{name} does not know itself") };
        face.running().client = Pid::from_raw(pid as i32);
        face
    }

    /// A process that changes to another user and group.
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
        if let Inner::Library(library) = &mut self.inner {
            return library.obey(order);
        }
        self.begin(order);
        self.answer()
    }

    /// Gives an order, whose answer comes later. Panics for the client core.
    pub fn begin(&mut self, order: &Order) {
        let process = self.running();
        process.asked.clone_from(order);
        if let Err(e) = send(&mut process.orders, order) {
            panic!("{} is gone: {e}", self.name);
        }
    }

    /// The answer to an order that was given. Waits for it.
    pub fn answer(&mut self) -> Answer {
        let process = self.running();
        if let Some(answer) = receive(&mut process.answers) {
            return answer;
        }
        let (ended, asked) = (process.child.wait(), process.asked.clone());
        panic!("{}: {ended:?} in {asked:?}", self.name)
    }

    /// The answer, if it comes within this time.
    pub fn answer_within(&mut self, time: Duration) -> Option<Answer> {
        let mut answers = [PollFd::new(&self.running().answers, PollFlags::IN)];
        let time = time.try_into().expect("not long");
        let came = rustix::event::poll(&mut answers, Some(&time)).expect("a pipe");
        (came > 0).then(|| self.answer())
    }

    /// The answer, to a call that signals interrupt.
    pub fn interrupted(&mut self, limit: Duration) -> Option<Answer> {
        let begin = Instant::now();
        while begin.elapsed() < limit {
            // A signal that comes before the call has begun interrupts nothing: repeat it.
            if let Some(client) = self.running().client {
                kill_process(client, Signal::USR1).expect("it is there");
            }
            if let Some(answer) = self.answer_within(AGAIN) {
                return Some(answer);
            }
        }
        None
    }

    fn running(&mut self) -> &mut Process {
        match &mut self.inner {
            Inner::Process(process) => process,
            Inner::Library(_) => panic!("the client core answers at once"),
        }
    }
}

impl Drop for Face {
    fn drop(&mut self) {
        if let Inner::Process(process) = &mut self.inner {
            // What it runs under (`bivouac exec`) ends what it started.
            let _ = kill_process(Pid::from_child(&process.child), Signal::TERM);
            let _ = process.child.wait();
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

/// Has a signal (SIGUSR1) end calls that wait, and nothing else.
fn interruptible() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all-zero is a valid sigaction: no flags, so that calls are not made again, and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as libc::sighandler_t;
    // SAFETY: the handler does nothing.
    let set = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// The program `model_client`: carries out what standard input says, until it ends. Arguments: a user and a
/// group, if it is to be another one.
pub fn serve() {
    let ids: Vec<u32> = std::env::args().skip(1).map(|id| id.parse().expect("a number")).collect();
    if let [uid, gid] = ids[..] {
        become_user(uid, gid);
    }
    interruptible();
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
