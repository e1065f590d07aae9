//! `run`: a deployment for the time of one command.
//!
//! The main thread goes through the phases: up, preload (with `--lazy`, of the names), command, flush, down. Another one takes signals and
//! knows the phase: while the command runs, it passes them on to the command; before that, they end
//! everything; during the flush it answers the first one with a warning, because results would be lost, and
//! the second one gives the results up; during `down` they have no effect. SIGTERM during the command also has
//! [checkpoints] flushed at once. [Lifelines](crate::lifelines) make the daemons clean up by themselves when this
//! process is killed.
//!
//! The command stays in this process's group: what the terminal sends to the foreground group reaches it
//! without us, and only what was sent to this process alone is passed on.

use crate::args::RunArgs;
use crate::checkpoints::{self, Checkpoints};
use crate::copy::{self, How};
use crate::error::{Error, exit};
use crate::exec::{self, exec_error, is_about_program};
use crate::home::{Directory, Home, Record, random};
use crate::lifelines::Lifelines;
use crate::preloading::Preloading;
use crate::signals::{self, Taken};
use crate::up::{self, Started};
use crate::{down, status};
use bivouac_stage::Direction;
use std::process::ExitCode;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long to wait for another command that changes the deployment, before looking again.
const LOCKED: Duration = Duration::from_millis(100);

/// Where `run` is, for the thread that takes signals.
enum Phase {
    /// `up` looks at the interruption itself, and cleans up.
    Up,
    /// Copying in cannot be stopped: an interruption ends this process, and the end of the lifeline makes the
    /// daemons clean up.
    Copying(Ending),
    /// The command runs.
    Command {
        child: i32,
        /// Has checkpoints flushed.
        flush: Option<Sender<()>>,
    },
    /// Results are copied out. An interruption would lose them, so it takes two.
    Flushing {
        ending: Ending,
        /// There was one interruption already.
        warned: bool,
    },
    /// Nothing can be stopped any more.
    Down,
}

/// What goes on beside the command.
#[derive(Default)]
struct Beside {
    preloading: Preloading,
    checkpoints: Option<Checkpoints>,
}

/// What is needed to take the deployment down.
#[derive(Clone)]
struct Ending {
    home: Home,
    name: String,
    keep: bool,
}

/// Does it all; the exit code is the command's.
pub fn run(home: &Home, args: &RunArgs) -> Result<ExitCode, Error> {
    let phase = Arc::new(Mutex::new(Phase::Up));
    let for_signals = phase.clone();
    signals::take(move |taken| on_signal(&for_signals, taken))
        .map_err(|cause| Error::System { what: "cannot wait for signals".into(), cause })?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => made_up_name()?,
    };
    let started = up::up(home, &name, &args.servers, !args.keep)?;
    let ending = Ending { home: home.clone(), name: name.clone(), keep: args.keep };
    // From here on the deployment ends with us, whatever happens; with --keep it is the user who ends it.
    let lifelines = if args.keep { None } else { Some(Lifelines::hold(&started)?) };
    let mut beside = Beside::default();
    let outcome = inside(home, args, &started, &phase, &ending, &mut beside);
    let code = match outcome {
        Ok(status) => {
            *lock(&phase) = Phase::Flushing { ending: ending.clone(), warned: false };
            beside.preloading.end();
            if let Some(checkpoints) = beside.checkpoints {
                checkpoints.end();
            }
            let all = copy::copy_all(home, &name, &args.flush, Direction::Out, &How::default());
            match Error::of_all([all, checkpoints::flush(home, &name, &args.flush_on_exit)]) {
                Ok(()) => ExitCode::from(status),
                Err(error) => {
                    error.show();
                    keep_running(&started, lifelines);
                    return Ok(ExitCode::from(if status == 0 { exit::FLUSH } else { status }));
                }
            }
        }
        Err(error) => {
            beside.preloading.end();
            error.show();
            ExitCode::from(error.exit_code())
        }
    };
    *lock(&phase) = Phase::Down;
    if args.stats {
        eprint!("{}", status::stats(&started.directory, &started.record));
    }
    let result = down::down(home, &name, args.keep, false);
    drop(lifelines);
    if let Err(error) = result {
        // The command's own status matters more than what is left of the deployment.
        error.show();
    } else if args.keep {
        eprintln!(
            "bivouac: the storage of {name:?} is kept: `bivouac up {name}` brings it back, `bivouac down {name}` removes it"
        );
    }
    Ok(code)
}

/// Preload and command. The status is what a shell would say of the command.
fn inside(
    home: &Home,
    args: &RunArgs,
    started: &Started,
    phase: &Mutex<Phase>,
    ending: &Ending,
    beside: &mut Beside,
) -> Result<u8, Error> {
    let name = &started.record.name;
    *lock(phase) = Phase::Copying(ending.clone());
    if let Some(signal) = signals::interrupted() {
        return Err(Error::Interrupted(signal));
    }
    match args.lazy {
        true => beside.preloading = Preloading::start(home, name, &args.preload)?,
        false => copy::copy_all(home, name, &args.preload, Direction::In, &How::default())?,
    }
    let mut command = exec::command(home, name, args.access, &args.command)?;
    signals::unblock_in_child(&mut command);
    beside.checkpoints = Checkpoints::start(home, name, &args.flush_on_exit, args.flush_every)?;
    let child = {
        // A signal that comes meanwhile waits for the phase, and then finds the command.
        let mut phase = lock(phase);
        let child = command.spawn().map_err(|e| {
            if is_about_program(&e) {
                exec_error(&args.command, e)
            } else {
                Error::System { what: "cannot start a process".into(), cause: e }
            }
        })?;
        let pid = child.id() as i32;
        *phase = Phase::Command { child: pid, flush: beside.checkpoints.as_ref().map(Checkpoints::trigger) };
        pid
    };
    wait(child)
}

/// Waits for the command; when job control stops it, this process stops too, so that the shell notices.
fn wait(child: i32) -> Result<u8, Error> {
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call, and nobody else waits for this child.
        let waited = unsafe { libc::waitpid(child, &mut status, libc::WUNTRACED) };
        if waited < 0 {
            let cause = std::io::Error::last_os_error();
            if cause.kind() == std::io::ErrorKind::Interrupted {
                continue;
            }
            return Err(Error::System { what: "cannot wait for the command".into(), cause });
        }
        if libc::WIFSTOPPED(status) {
            // An explicit SIGSTOP concerns the command alone.
            if matches!(libc::WSTOPSIG(status), libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
                send(std::process::id() as i32, libc::SIGSTOP);
                // This process was continued, so continue the command.
                send(child, libc::SIGCONT);
            }
        } else if libc::WIFEXITED(status) {
            return Ok(libc::WEXITSTATUS(status) as u8);
        } else if libc::WIFSIGNALED(status) {
            return Ok(128 + libc::WTERMSIG(status) as u8);
        }
    }
}

fn send(pid: i32, signal: i32) {
    // SAFETY: a plain system call; the child is not reaped yet, so that its number is its own.
    unsafe { libc::kill(pid, signal) };
}

fn on_signal(phase: &Mutex<Phase>, taken: Taken) {
    let mut phase = lock(phase);
    match &mut *phase {
        // A terminal's signal has gone to the whole group.
        Phase::Command { child, flush } if !taken.from_kernel => {
            send(*child, taken.number);
            if let (libc::SIGTERM, Some(flush)) = (taken.number, flush) {
                eprintln!("bivouac: terminated; flushing what was changed so far");
                let _ = flush.send(());
            }
        }
        Phase::Up if taken.is_final() => signals::interrupt(taken.number),
        Phase::Flushing { warned, .. } if taken.is_final() && !*warned => {
            *warned = true;
            eprintln!(
                "\nbivouac: interrupted; the results are still being copied out: interrupt once more to give them up"
            );
        }
        Phase::Copying(ending) | Phase::Flushing { ending, .. } if taken.is_final() => {
            give_up(ending, taken.number);
        }
        // Where there is nothing to stop or pass on, job control is for us.
        Phase::Up | Phase::Copying(_) | Phase::Flushing { .. } if taken.number == libc::SIGTSTP => {
            send(std::process::id() as i32, libc::SIGSTOP);
        }
        _ => {}
    }
}

/// Takes the deployment down in the middle of a copy, which nothing else can stop, and ends this process.
fn give_up(ending: &Ending, signal: i32) -> ! {
    eprintln!("\nbivouac: interrupted; taking the deployment down");
    signals::interrupt(signal);
    if let Err(error) = down::down(&ending.home, &ending.name, ending.keep, false) {
        error.show();
    }
    std::process::exit(128 + signal);
}

/// After a flush that failed: the results are still inside, and stay there.
fn keep_running(started: &Started, lifelines: Option<Lifelines>) {
    let name = &started.record.name;
    if let Some(lifelines) = lifelines
        && !(lifelines.release() && stays(&started.directory))
    {
        eprintln!("bivouac: the deployment cannot be kept, because its daemons do not answer");
        return;
    }
    eprintln!("bivouac: the deployment {name:?} is kept, because its results were not all flushed");
    eprintln!("  flush them again:  bivouac flush {name} SRC DST");
    eprintln!("  then take it down: bivouac down {name}");
}

/// Notes that the deployment does not end with this process; other commands may have changed the record, and may be about to.
fn stays(directory: &Directory) -> bool {
    let lock = loop {
        match directory.lock() {
            Ok(lock) => break lock,
            Err(Error::Unknown(_)) => return false,
            Err(_) => std::thread::sleep(LOCKED),
        }
    };
    let noted = directory.load().and_then(|record| directory.save(&Record { ephemeral: false, ..record }));
    drop(lock);
    noted.is_ok()
}

/// `run-PID-xxxx`, which no other run on this machine has.
fn made_up_name() -> Result<String, Error> {
    let mut bytes = [0; 2];
    random(&mut bytes)?;
    Ok(format!("run-{}-{:04x}", std::process::id(), u16::from_le_bytes(bytes)))
}

fn lock(phase: &Mutex<Phase>) -> MutexGuard<'_, Phase> {
    phase.lock().unwrap_or_else(PoisonError::into_inner)
}
