//! A process that measures a storage: serves the command's orders, and has its directory removed whatever
//! happens.
//!
//! Whoever gets no more orders removes everything ([`give_up`]). All processes do this, so that one is
//! enough; the directory is nobody else's.

use super::flood::Flooding;
use super::metadata;
use super::protocol::{Act, Answer, Place, Seen};
use super::transfer::Transferring;
use crate::node::file_system;
use crate::protocol::{Answer as Said, Order};
use bivouac_bench::interruption;
use std::ffi::CString;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// `statfs`'s type of a deployment that the preload library shows: "BIVO".
const BIVOUAC: u32 = 0x4249_564f;
/// How often removing everything is tried: others may still make files for a moment.
const TRIES: u32 = 200;

/// Serves until it is told to end.
pub fn serve(place: Place, rank: u32, orders: impl Iterator<Item = Order>, say: &mut dyn FnMut(&Said)) {
    if rank == 0
        && let Err(error) = fs::create_dir(&place.directory)
    {
        return say(&Said::Failed(format!("cannot make {}: {error}", place.directory)));
    }
    say(&Said::Ready);
    let mut transferring = Transferring::default();
    let mut flooding = Flooding::default();
    for order in orders {
        let done = match order {
            Order::Try(trial) => match trial.group.member(rank, place.each) {
                None => Ok(Answer::Idle),
                Some(member) => match &trial.act {
                    Act::Look => look(&place.directory).map(Answer::Seen),
                    Act::Flood(step) => flooding.step(&place, trial.group, member, trial.number, *step),
                    Act::Metadata(step) => metadata::step(&place, trial.group, member, step),
                    act => transferring.step(&place, trial.group, member, trial.number, act),
                },
            },
            Order::End => {
                drop(transferring);
                let removed = if rank == 0 { fs::remove_dir_all(&place.directory) } else { Ok(()) };
                let failed = |e| Said::Failed(format!("cannot remove {}: {e}", place.directory));
                return say(&removed.map_or_else(failed, |()| Said::Ready));
            }
            _ => Err("was told what belongs to an exploration".into()),
        };
        // What was interrupted is no measurement.
        let done = if interruption::came() { Err("was interrupted".into()) } else { done };
        say(&done.map_or_else(Said::Failed, Said::Tried));
    }
    drop(transferring);
    give_up(&place.directory);
}

/// Removes a storage's directory with what is in it, while others may do the same.
pub fn give_up(directory: &str) {
    for _ in 0..TRIES {
        let _ = fs::remove_dir_all(directory);
        match fs::symlink_metadata(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn look(directory: &str) -> Result<Seen, String> {
    let failed = |e: io::Error| format!("cannot look how much room {directory} has: {e}");
    let path = CString::new(directory).map_err(|e| failed(e.into()))?;
    // SAFETY: an all-zero `statfs` is a valid value of a plain C structure.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // By libc, which the preload library stands in front of.
    // SAFETY: the path ends with a zero, and `found` is valid for the call.
    if unsafe { libc::statfs(path.as_ptr(), &mut found) } != 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    let block = u64::try_from(found.f_bsize).unwrap_or(0);
    let kind =
        if found.f_type as u32 == BIVOUAC { Some("bivouac".to_owned()) } else { file_system(directory) };
    Ok(Seen {
        file_system: kind.unwrap_or_else(|| "unknown".into()),
        capacity: block.saturating_mul(found.f_blocks),
        free: block.saturating_mul(found.f_bavail),
        free_files: (found.f_files > 0).then_some(found.f_ffree),
        memory: memory(),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
    })
}

/// Memory of this node, or of the control group that this process is in, if that may take less.
fn memory() -> u64 {
    let all = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok();
    let own = group.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("0::/")));
    let own = own.map(|group| Path::new("/sys/fs/cgroup").join(group));
    let limits = own
        .iter()
        .flat_map(|group| group.ancestors())
        .filter_map(|group| fs::read_to_string(group.join("memory.max")).ok()?.trim().parse().ok());
    all.into_iter().chain(limits).min().unwrap_or(0)
}

/// The total of `/proc/meminfo`, bytes.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_in_bytes() {
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       16 kB\n"), Some(16384));
        assert_eq!(total("nonsense"), None);
        assert!(memory() > 1 << 20);
    }

    #[test]
    fn what_is_there_is_seen() {
        let directory = tempfile::tempdir().expect("a directory");
        let seen = look(&directory.path().to_string_lossy()).expect("is there");
        assert!(seen.capacity >= seen.free && seen.free > 0 && seen.cores > 0, "{seen:?}");
        assert!(look("/no/such/directory").is_err() && look("a\0b").is_err());
    }

    #[test]
    fn nothing_is_left_when_processes_give_up_at_once() {
        let above = tempfile::tempdir().expect("a directory");
        let directory = above.path().join("x");
        fs::create_dir(&directory).expect("made");
        (0..500).for_each(|n| fs::write(directory.join(n.to_string()), "").expect("written"));
        let text = directory.to_string_lossy().into_owned();
        std::thread::scope(|scope| {
            (0..4).for_each(|_| {
                scope.spawn(|| give_up(&text));
            });
        });
        assert!(!directory.exists());
    }
}
