//! `bench`: the load generator on the command line.
//!
//! The crate `bivouac-bench` measures; this module has the options, finds the servers whose processor time is
//! shown, and prints figures and failures.

use crate::daemon::traces;
use crate::error::Error;
use crate::home::uid;
use crate::{signals, text};
use bivouac_bench::coordinator::{self, Start};
use bivouac_bench::null::{self, Dealing, Sockets};
use bivouac_bench::{BenchError, Op, Plan, worker};
use bivouac_node::names::is_valid_name;
use clap::Args;
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// The directory to work in, on whatever is to be measured. It is made if it is missing.
    #[arg(long, value_name = "DIR", required_unless_present_any = ["null", "worker", "null_server"])]
    dir: Option<PathBuf>,
    /// Processes that work at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    procs: u32,
    /// Files (for mkdir and rmdir: directories) of each process.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    files: u64,
    /// Bytes of each file, for example 3901, 64K, 1G.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    size: u64,
    /// Bytes of each read and write, at most 1G.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    transfer: u64,
    /// What to do, in this order.
    #[arg(
        long,
        value_name = "OP,OP,...",
        value_delimiter = ',',
        default_value = "create,stat,open,read,unlink"
    )]
    ops: Vec<Op>,
    /// All files in one directory. Default: each process has a directory of its own.
    #[arg(long)]
    shared: bool,
    /// pwrite and pread: one file for all, in which each process has its own stretch of SIZE bytes.
    #[arg(long)]
    one_file: bool,
    /// pwrite and pread: in shuffled order, the same in every run.
    #[arg(long)]
    random: bool,
    /// pwrite and pread: go through the file this many times.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Everything but create, mkdir, rmdir and pwrite is about the files of the process this many further on.
    #[arg(long, value_name = "N", default_value_t = 0)]
    shift: u32,
    /// Leave what was made.
    #[arg(long)]
    keep: bool,
    /// Put this command before each process's own (repeat it: in turns), to start processes elsewhere.
    #[arg(long, value_name = "COMMAND")]
    via: Vec<String>,
    /// Show the processor time of this deployment's servers on this machine. Default: that of the deployment
    /// that this runs in, if it does.
    #[arg(long, value_name = "NAME")]
    deployment: Option<String>,
    /// For programs: stable, documented JSON.
    #[arg(long)]
    json: bool,
    /// Instead, measure round trips with nothing in them over the transport that Bivouac uses, on this
    /// machine: unix (within a node) or tcp (between nodes). --procs are the clients, --files the round trips
    /// of each.
    #[arg(long, value_name = "SOCKETS")]
    null: Option<Sockets>,
    /// --null: server processes that the clients are dealt to.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    null_servers: u32,
    /// --null: each client asks all servers in no order, as for names in a directory that is split over them.
    #[arg(long, requires = "null")]
    null_spread: bool,
    /// --null: a client's server asks the next one before it answers, as for a change of what has two copies.
    #[arg(long, requires = "null", conflicts_with = "null_spread")]
    null_chain: bool,
    /// Be a process of the load.
    #[arg(long, hide = true)]
    worker: bool,
    /// Be a server for --null.
    #[arg(long, hide = true, value_name = "SOCKETS")]
    null_server: Option<Sockets>,
}

/// What `--help` says at the end.
pub const AFTER_HELP: &str = "\
Operations, each a phase that all processes begin together:
  mkdir, rmdir     make, remove a directory
  create           create a file, write SIZE bytes if that is not 0, close it
  write            open a file, write SIZE bytes from its start, close it
  stat             ask for a file's attributes; its size must be right
  open             open a file and close it
  read             open a file, read all of it, close it; what is in it must be right
  pwrite, pread    write, read one TRANSFER of one large file of SIZE bytes that stays open
  list, liststat   list the directory; ask for the attributes of every entry, too
  rename, unlink   give a file another name, remove it

Examples:
  Metadata rates of a deployment, and of memory beside it:
    bivouac exec job -- bivouac bench --dir /bivouac/b --procs 4 --files 10000
    bivouac bench --dir /dev/shm/b --procs 4 --files 10000

  Small files in one directory, read by another process than wrote them:
    bivouac exec job -- bivouac bench --dir /bivouac/b --procs 8 --size 3901 --shared --shift 1 \\
      --ops create,read,unlink

  One shared file of 16 GiB, random reads and writes of 4 KiB:
    bivouac exec job -- bivouac bench --dir /bivouac/b --procs 16 --size 1G --transfer 4K \\
      --one-file --random --ops pwrite,pread

  Two nodes, two processes on each:
    bivouac bench --dir /bivouac/b --procs 4 --ops create,stat,unlink \\
      --via 'ssh node1 bivouac exec job --' --via 'ssh node2 bivouac exec job --'

Ends with 71 if operations failed or results were wrong; all are counted and the first is named.";

/// `bench`.
pub fn bench(args: &BenchArgs) -> Result<ExitCode, Error> {
    if args.worker {
        worker::serve().map_err(Error::Bench)?;
    } else if let Some(sockets) = args.null_server {
        null::serve(sockets).map_err(Error::Bench)?;
    } else if let Some(sockets) = args.null {
        let dealing = match (args.null_spread, args.null_chain) {
            (true, _) => Dealing::Spread,
            (_, true) => Dealing::Chained,
            _ => Dealing::One,
        };
        let report = null::measure(&own_path()?, sockets, args.procs, args.null_servers, dealing, args.files)
            .map_err(Error::Bench)?;
        if args.json { json(&report)? } else { println!("{}", report.line()) }
    } else {
        return load(args);
    }
    Ok(ExitCode::SUCCESS)
}

fn load(args: &BenchArgs) -> Result<ExitCode, Error> {
    let Some(dir) = args.dir.as_ref().and_then(|dir| dir.to_str()) else {
        return Err(Error::refused("the directory's name is no text", "give another --dir"));
    };
    let plan = Plan {
        dir: dir.to_owned(),
        procs: args.procs,
        files: args.files,
        size: args.size,
        transfer: args.transfer,
        shared: args.shared,
        one_file: args.one_file,
        random: args.random,
        passes: args.passes,
        shift: args.shift,
        ops: args.ops.clone(),
        keep: args.keep,
    };
    let start = Start {
        program: own_path()?,
        arguments: ["bench", "--worker"].map(Into::into).to_vec(),
        via: args.via.clone(),
        servers: servers(args.deployment.as_deref())?,
    };
    // A signal to this process alone is passed on; each worker ends its phase, and what was made is removed.
    let pids = Arc::new(Mutex::new(Vec::<u32>::new()));
    let told = Arc::clone(&pids);
    signals::take(move |taken| {
        if taken.is_final() && !taken.from_kernel {
            let pids = told.lock().map(|pids| pids.clone()).unwrap_or_default();
            for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
                let _ = rustix::process::kill_process(pid, Signal::TERM);
            }
        }
    })
    .map_err(|cause| Error::System { what: "cannot wait for signals".into(), cause })?;
    let report = coordinator::run(&plan, &start, |started| {
        if let Ok(mut pids) = pids.lock() {
            pids.extend(started);
        }
    });
    let report = report.map_err(|error| match error {
        BenchError::Plan(cause) => Error::refused(cause, "`bivouac bench --help` has examples"),
        BenchError::Interrupted => Error::Interrupted(libc::SIGINT),
        other => Error::Bench(other),
    })?;
    if args.json {
        json(&report)?;
    } else {
        print!("{}", text::table(&report.table(), &(1..12).collect::<Vec<_>>()));
    }
    for complaint in report.complaints() {
        eprintln!("bivouac: {complaint}");
    }
    Ok(if report.errors == 0 { ExitCode::SUCCESS } else { ExitCode::from(crate::error::exit::BENCH) })
}

fn json(value: &impl serde::Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::System { what: "cannot write JSON".into(), cause: e.into() })?;
    println!("{text}");
    Ok(())
}

/// The processes of a deployment's daemons on this machine.
fn servers(name: Option<&str>) -> Result<Vec<u32>, Error> {
    let inside = std::env::var("BIVOUAC_DEPLOYMENT").ok();
    let Some(name) = name.or(inside.as_deref()).filter(|name| is_valid_name(name)) else {
        return Ok(Vec::new());
    };
    let run_dir = bivouac_node::place::find(uid(), name);
    let all = run_dir.map_or_else(Vec::new, |run_dir| traces::all(Path::new(&run_dir)));
    Ok(all.iter().filter(|(_, trace)| trace.process.is_alive()).map(|(_, trace)| trace.process.pid).collect())
}

fn own_path() -> Result<PathBuf, Error> {
    std::env::current_exe()
        .map_err(|cause| Error::System { what: "cannot find this program's own file".into(), cause })
}

/// A number of bytes, with K, M, G or T for powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || "a number of bytes, for example 3901, 64K or 1G".to_owned();
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes <= i64::MAX as u64).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_limits() {
        for (text, bytes) in [("0", 0), ("3901", 3901), ("4K", 4096), ("2m", 2 << 20), ("1G", 1 << 30)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1.5G", "4KiB", "9000000T", "ü"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
