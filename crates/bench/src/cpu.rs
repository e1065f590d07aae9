//! What processes have cost so far: the processor time of all their threads, also of those that have ended,
//! in nanoseconds. Of all figures it is the one that other work on the machine disturbs least.

/// The kernel has no process with this number or a higher one.
const PID_MAX: i32 = 1 << 22;

/// The processor time of this process, nanoseconds.
pub fn own() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    nanoseconds(time.tv_sec, time.tv_nsec)
}

/// The processor time of a process of this machine, nanoseconds; `None` if there is none with that number.
pub fn of(pid: u32) -> Option<u64> {
    let pid = i32::try_from(pid).ok().filter(|pid| (1..PID_MAX).contains(pid))?;
    // The kernel's number for the clock of a whole process: the process's number inverted, and 2 for
    // scheduled time.
    let clock: libc::clockid_t = (!pid << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer; an unknown clock is an error.
    let failed = unsafe { libc::clock_gettime(clock, &mut time) };
    (failed == 0).then(|| nanoseconds(time.tv_sec, time.tv_nsec))
}

/// The time on the clock that all processes of a machine share, nanoseconds.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    nanoseconds(time.tv_sec, time.tv_nsec)
}

/// Which boot of which machine this is, in the kernel's words; empty if it does not say. Within one boot, all
/// processes' [`now`] can be compared.
pub fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> u64 {
    (seconds as u64).saturating_mul(1_000_000_000).saturating_add(nanoseconds as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_in_the_own_clock_and_in_the_process_s() {
        let me = std::process::id();
        let before = (own(), of(me).expect("this process"));
        let start = now();
        let mut sum = 0u64;
        while own() - before.0 < 5_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(now() - start >= 1_000_000);
        assert!(of(me).expect("this process") - before.1 >= 4_000_000);
    }

    #[test]
    fn a_process_that_is_not_there_has_no_clock() {
        assert_eq!(of(0), None);
        assert_eq!(of(u32::MAX), None);
        assert_eq!(of(i32::MAX as u32), None);
    }
}
