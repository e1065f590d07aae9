//! The part on each node: starts processes there, passes the command's orders on to all of them, and their answers
//! back. So a node takes one connection, however many processes it has.
//!
//! When the command is gone (its end of standard input is closed), all processes are asked to end, removing what they
//! have made, and are killed if they do not.

use crate::characterize::process::give_up;
use crate::protocol::{Answer, NodeAnswer, NodeOrder, Order, Seen, Work};
use bivouac_bench::cpu;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long processes may take to end by themselves.
pub const GRACE: Duration = Duration::from_secs(10);

/// How programs are started on this node.
pub struct Inside {
    /// The directory that is forwarded for them, if one is.
    pub forwarded: Option<String>,
    /// Makes the command that becomes a process of the load ([`crate::worker::serve`]).
    pub command: Box<dyn Fn() -> Result<Command, String>>,
}

/// The processes' numbers, as long as they have not been waited for.
type Pids = Arc<Mutex<Vec<u32>>>;

/// Serves the command until it is gone. `inside` finds a deployment; `None`: programs are started as they are.
pub fn serve(
    input: impl BufRead + Send + 'static,
    mut output: impl Write,
    inside: impl Fn(Option<&str>) -> Result<Inside, String>,
) {
    let pids = Pids::default();
    let orders = orders(input, Arc::clone(&pids));
    let mut processes = Processes { all: Vec::new(), pids };
    let mut made: Option<String> = None;
    for order in orders {
        let answer = match order {
            NodeOrder::Look { directory } => NodeAnswer::Seen(look(&directory)),
            NodeOrder::Start { deployment, first, count, work } => {
                made = directory_of(&work).filter(|_| deployment.is_none());
                match inside(deployment.as_deref())
                    .and_then(|inside| processes.start(&inside, first, count, &work))
                {
                    Ok(forwarded) => NodeAnswer::Started { forwarded },
                    Err(why) => NodeAnswer::Failed(why),
                }
            }
            NodeOrder::Pass(order) => match processes.pass(&order) {
                Ok(answers) => NodeAnswer::Answers(answers),
                Err(why) => NodeAnswer::Failed(why),
            },
            // 1: clean pages of files; the other caches are not what is measured.
            NodeOrder::DropCaches => {
                NodeAnswer::Dropped(std::fs::write("/proc/sys/vm/drop_caches", "1").is_ok())
            }
            NodeOrder::Stop => {
                processes.end();
                NodeAnswer::Stopped
            }
        };
        let said = serde_json::to_string(&answer);
        // If nobody listens, the next order does not come.
        let _ = said.map(|line| writeln!(output, "{line}").and_then(|()| output.flush()));
    }
    processes.end();
    // Processes that took too long to remove what they had made were killed.
    if let Some(directory) = made {
        give_up(&directory);
    }
}

/// The directory that processes make for their work, if whoever is left can remove it as it is.
fn directory_of(work: &Work) -> Option<String> {
    match work {
        Work::Storage(place) => Some(place.directory.clone()),
        Work::Run(_) => None,
    }
}

/// The command's orders. When there are no more, processes that still work are asked to end.
fn orders(input: impl BufRead + Send + 'static, pids: Pids) -> Receiver<NodeOrder> {
    let (send, orders) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = input.lines().map_while(Result::ok);
        for order in lines.map_while(|line| serde_json::from_str(&line).ok()) {
            if send.send(order).is_err() {
                return;
            }
        }
        drop(send);
        signal(&pids, libc::SIGTERM);
        let until = Instant::now() + GRACE;
        while Instant::now() < until && !lock(&pids).is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
        signal(&pids, libc::SIGKILL);
    });
    orders
}

fn lock(pids: &Pids) -> std::sync::MutexGuard<'_, Vec<u32>> {
    pids.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nobody waits for a process before its number is gone from the list; so it is still that process's.
fn signal(pids: &Pids, signal: libc::c_int) {
    for pid in lock(pids).iter().filter_map(|pid| i32::try_from(*pid).ok()) {
        // SAFETY: a plain system call.
        unsafe { libc::kill(pid, signal) };
    }
}

fn look(directory: &str) -> Seen {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Seen {
        boot: cpu::boot(),
        load: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
        file_system: file_system(directory),
    }
}

/// The kind of the file system that a directory lies on.
pub(crate) fn file_system(directory: &str) -> Option<String> {
    let real = std::fs::canonicalize(directory).ok().filter(|path| path.is_dir())?;
    kind_of(&real, &std::fs::read_to_string("/proc/self/mountinfo").ok()?)
}

/// The kind of the last of the longest mount points that a path is below of.
fn kind_of(path: &Path, mounts: &str) -> Option<String> {
    let mounts = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        path.starts_with(&point)
            .then(|| (point.len(), after.split(' ').next().unwrap_or_default().to_owned()))
    });
    mounts.max_by_key(|(len, _)| *len).map(|(_, kind)| kind)
}

struct Process {
    rank: u32,
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

struct Processes {
    all: Vec<Process>,
    pids: Pids,
}

impl Processes {
    fn start(
        &mut self,
        inside: &Inside,
        first: u32,
        count: u32,
        work: &Work,
    ) -> Result<Option<String>, String> {
        self.end();
        for rank in (first..).take(count as usize) {
            let process = Process::start((inside.command)()?, rank)?;
            lock(&self.pids).push(process.child.id());
            self.all.push(process);
        }
        for process in &mut self.all {
            process.tell(&Order::Begin(Box::new(work.clone()), process.rank))?;
        }
        for process in &mut self.all {
            if let Answer::Failed(why) = process.answer()? {
                return Err(format!("process {}: {why}", process.rank));
            }
        }
        Ok(inside.forwarded.clone())
    }

    fn pass(&mut self, order: &Order) -> Result<Vec<Answer>, String> {
        for process in &mut self.all {
            process.tell(order)?;
        }
        // One that has ended ends the run: nobody waits for the others' answers.
        let mut answers: Vec<Option<Answer>> = self.all.iter().map(|_| None).collect();
        while let Some(number) = self.next_that_speaks(&answers)? {
            answers[number] = Some(self.all[number].answer()?);
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Waits for one of those that have not answered yet to answer or to end. `None`: all have answered.
    fn next_that_speaks(&self, answers: &[Option<Answer>]) -> Result<Option<usize>, String> {
        let silent = || (0..answers.len()).filter(|number| answers[*number].is_none());
        let mut waited: Vec<PollFd<'_>> =
            silent().map(|number| PollFd::new(self.all[number].answers.get_ref(), PollFlags::IN)).collect();
        if waited.is_empty() {
            return Ok(None);
        }
        loop {
            match poll(&mut waited, None) {
                Err(Errno::INTR) => continue,
                Err(cause) => return Err(format!("cannot wait for processes: {cause}")),
                Ok(_) => {}
            }
            let speaks = silent().zip(&waited).find(|(_, end)| !end.revents().is_empty());
            if let Some((number, _)) = speaks {
                return Ok(Some(number));
            }
        }
    }

    /// Has all processes end, and waits until they have.
    fn end(&mut self) {
        let mut left: Vec<Child> = Vec::new();
        for Process { child, orders, .. } in self.all.drain(..) {
            // They end when their input does.
            drop(orders);
            left.push(child);
        }
        let until = Instant::now() + GRACE;
        loop {
            // Within the lock, so that nobody sends a signal to a number that is free again.
            let mut pids = lock(&self.pids);
            left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            pids.retain(|pid| left.iter().any(|child| child.id() == *pid));
            drop(pids);
            if left.is_empty() {
                return;
            }
            if Instant::now() >= until {
                signal(&self.pids, libc::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Process {
    fn start(mut command: Command, rank: u32) -> Result<Process, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: between fork and exec there is one system call. It asks for a signal when the thread ends that starts the
        // process, which is this process's main one.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|e| format!("cannot run {program}: {e}"))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(orders), Some(answers)) => {
                Ok(Process { rank, child, orders, answers: BufReader::new(answers) })
            }
            _ => Err(format!("cannot run {program}: its standard input and output are missing")),
        }
    }

    fn tell(&mut self, order: &Order) -> Result<(), String> {
        let line = serde_json::to_string(order).map_err(|e| e.to_string())?;
        writeln!(self.orders, "{line}").map_err(|_| self.ended())
    }

    fn answer(&mut self) -> Result<Answer, String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) | Err(_) => Err(self.ended()),
            Ok(_) => serde_json::from_str(&line).map_err(|_| {
                format!("process {} says something that is no answer: {}", self.rank, line.trim())
            }),
        }
    }

    fn ended(&self) -> String {
        format!("process {} has ended", self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_point_says_what_kind_a_file_system_is() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/x rw\n2 1 0:5 / /scratch rw,noatime shared:1 - lustre a@b rw\n\
            3 1 0:6 / /scratch/a\\040b rw - tmpfs none rw\n4 1 0:6 / /scratch2 rw - xfs none rw\nnonsense";
        for (path, kind) in [
            ("/scratch/me", "lustre"),
            ("/scratch/a b/c", "tmpfs"),
            ("/home", "ext4"),
            ("/scratch22", "ext4"),
        ] {
            assert_eq!(kind_of(Path::new(path), mounts).as_deref(), Some(kind), "{path}");
        }
    }

    #[test]
    fn a_process_that_ends_is_told_of_and_none_is_left() {
        let (input, commands) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let task = crate::protocol::Task {
            directory: "/nowhere".into(),
            run: 1,
            pattern: crate::paper::table2(&Default::default()).swap_remove(0),
        };
        let start = NodeOrder::Start {
            deployment: Some("x".into()),
            first: 0,
            count: 2,
            work: Box::new(Work::Run(task)),
        };
        writeln!(&commands, "{}", serde_json::to_string(&start).expect("JSON")).expect("written");
        drop(commands);
        let mut said = Vec::new();
        serve(BufReader::new(input), &mut said, |name| {
            assert_eq!(name, Some("x"));
            let command = || {
                let mut command = Command::new("sh");
                command.args(["-c", "read order; exit 3"]);
                Ok(command)
            };
            Ok(Inside { forwarded: None, command: Box::new(command) })
        });
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_eq!(said, "{\"Failed\":\"process 0 has ended\"}\n");
    }
}
