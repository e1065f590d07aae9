//! The command line: what can be given, and how help describes it.
//!
//! Shell completion and man pages are generated from these definitions, so every text here is read in three
//! places.

mod arbitrate;
mod characterize;
mod deployment;
mod explore;
mod files;
mod forwarding;
mod policy;
mod programs;
mod repair;
mod servers;
mod staging;
pub mod values;

pub use arbitrate::*;
pub use characterize::*;
use clap::{Parser, Subcommand};
pub use deployment::*;
pub use explore::*;
pub use files::LayoutArgs;
pub use forwarding::*;
pub use policy::*;
pub use programs::*;
pub use repair::*;
pub use servers::*;
pub use staging::*;
use std::path::PathBuf;
pub use values::Copy;
use values::parse_name;

/// Exit codes, as the help text ends.
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0         success; `run` and `exec`: the command's own status
  1         verify: damage is left
  2         wrong usage
  64        unknown deployment, or it does not run
  65        something given is refused (storage, mount path, host, name)
  66        a daemon did not start
  67        the deployment does not answer, or could not be taken down completely
  68        files could not be copied
  69        run: the command succeeded, but its results could not be flushed
  70        any other failure
  71        bench, explore, characterize: operations failed, or their results were wrong
  126, 127  the command cannot be executed, or does not exist
  128+N     ended by signal N"
    };
}

/// A fast parallel file system for one job, made of the job's own nodes.
#[derive(Parser, Debug)]
#[command(name = "bivouac", version, arg_required_else_help = true, after_help = exit_codes!(), after_long_help = concat!(
"Examples:
  Run a program with a file system under /bivouac, and copy its results out:
    bivouac run --preload ~/input --flush /results:~/results -- ./simulate /bivouac/input /bivouac/results

  The same step by step, in a batch script:
    bivouac up job --hosts nodes.txt
    bivouac preload job ~/input /input
    bivouac exec job -- ./simulate /bivouac/input /bivouac/results
    bivouac flush job /results ~/results
    bivouac down job

", exit_codes!(), "

Files:
  ~/.bivouac/NAME (or $BIVOUAC_HOME/NAME)   map, key, process numbers and logs of a deployment"))]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a deployment, run a command inside it, take it down.
    #[command(
        long_about = "Start a deployment, copy data in, run a command inside it, copy results out, and take the \
deployment down. Exits with the command's status. Signals are passed on to the command; whatever ends it, and also \
when this program itself is killed, nothing stays behind.",
        after_long_help = "Examples:
  bivouac run -- bash                                        a shell with /bivouac
  bivouac run --servers 4 --preload data:/in --flush /out:results -- make -C /bivouac/in
  bivouac run --hosts node1,node2 --storage /local/ssd --stats -- mpirun ./solver
  bivouac run --flush-on-exit /out:results --flush-every 10m -- ./simulate     checkpoints while it runs

If the command succeeds and a flush fails, the deployment is kept running, so that no result is lost: the message \
says how to flush again and how to take it down (exit code 69). An interruption (Ctrl-C) of the command \
does not keep its results from being flushed; nor does the first one of the flush itself, and only a second one gives \
them up."
    )]
    Run(RunArgs),
    /// Start a deployment and return when it serves.
    #[command(
        long_about = "Start a deployment and return when it serves. On a deployment that was taken down with --keep, \
or whose daemons died, it starts the servers again on the storage that they had, with all data.",
        after_long_help = "Examples:
  bivouac up job                          one server, on this machine
  bivouac up job --servers 4              four servers, on this machine
  bivouac up job --hosts nodes.txt        one server on each host, started by ssh"
    )]
    Up(UpArgs),
    /// Run a command inside a running deployment.
    #[command(after_long_help = "Examples:
  bivouac exec job -- ls -l /bivouac
  bivouac exec job -- sh -c 'cd /bivouac && tar xf in.tar'")]
    Exec(ExecArgs),
    /// Mount a deployment, for programs that are not run by `exec`.
    #[command(
        long_about = "Mount a deployment at PATH, so that every program on this machine sees it there. Stays in the \
foreground until it gets SIGINT or SIGTERM or the deployment goes down; then it unmounts.",
        after_long_help = "Root mounts for all users, as far as file permissions let them in. Others need fusermount3 (package \
fuse3), and mount for themselves; without it, `bivouac exec --fuse` still works.

Examples:
  bivouac mount job /mnt/job &
  bivouac mount job ~/job --daemon     returns when it is mounted; umount ends it"
    )]
    Mount(MountArgs),
    /// Copy a file or directory tree into a deployment.
    #[command(
        long_about = "Copy a file or directory tree into a deployment, with all its nodes. What is there already, by size and time of \
change, is not copied again: after an interruption, repeat the command.",
        after_long_help = "DST is the name of the copy itself, as with `cp -aT`.

Patterns are as rsync's: `*` and `?` stop at slashes, `**` does not. A pattern with a slash at its beginning holds for the path \
from SRC, one with a slash inside for the end of a path, any other for the last name; a slash at the end restricts it to directories.

Examples:
  bivouac preload job ~/input /input       makes /bivouac/input
  bivouac preload job ~/input/ /           the contents of input, into the mount itself
  bivouac preload job ~/input /input --exclude '*.tmp' --streams 8 --max-rate 500M
  bivouac preload job ~/input /input --include '*/' --include '*.dat' --exclude '*'
  bivouac preload job ~/input /input --delete      an exact mirror
  bivouac preload job ~/input /input --lazy        names at once, contents when a file is opened, or in the background"
    )]
    Preload(PreloadArgs),
    /// Copy a file or directory tree out of a deployment.
    #[command(
        long_about = "Copy a file or directory tree out of a deployment, with all its nodes. What is there already, by size and time of \
change, is not copied again: after an interruption, repeat the command. A file gets its name in DST when it is complete.",
        after_long_help = "DST is the name of the copy itself, as with `cp -aT`. Patterns: `bivouac help preload`.

Examples:
  bivouac flush job /results ~/results
  bivouac flush job /results ~/results --changed    only what was created or changed since it was staged"
    )]
    Flush(FlushArgs),
    /// Show or set how files are spread over the servers.
    #[command(
        long_about = "Show or set how files are spread over the servers. What is set for a directory holds for the \
files and directories that are made in it from then on; what exists stays as it is. A file can have a layout of its own as \
long as it never had data; one that does not exist is made. Without options, shows for a directory what is set and \
what new files get, and for a file its layout and how much each server holds.",
        after_long_help = "Examples:
  bivouac layout /bivouac/data                              show it (inside: bivouac exec, bivouac run)
  bivouac layout -d job /bivouac/data                       the same from outside
  bivouac layout --block-size 4M --width 2 /bivouac/data    new files: 4 MiB blocks on two servers
  bivouac layout --first local --width 1 /bivouac/ranks     each new file on the node of its creator
  bivouac layout --default /bivouac/data                    the deployment's defaults again

From Lustre: `lfs setstripe -c N -S SIZE -i INDEX DIR` is `--width N --block-size SIZE --first INDEX`, `lfs getstripe` \
is `bivouac layout`. The same is shown and set by the extended attribute user.bivouac.layout."
    )]
    Layout(LayoutArgs),
    /// Show deployments, or the servers of one.
    #[command(after_long_help = "Examples:
  bivouac status
  bivouac status job
  bivouac status job --json      stable; described in docs/operations.md")]
    Status(StatusArgs),
    /// Stop a deployment and remove what it stored.
    #[command(
        long_about = "Stop a deployment and remove what it stored, also after a crash. Only what Bivouac made itself is \
removed."
    )]
    Down(DownArgs),
    /// Start servers of a running deployment again, with the data that they have.
    #[command(after_long_help = "Example:
  bivouac restart job 2 3")]
    Restart(RestartArgs),
    /// Have a server on another host take the place of one, under its number.
    #[command(
        long_about = "Have a server on another host take the place of one, under its number and with new storage: it gets what \
the old one held from the servers that have copies, and then serves. Returns when everything has all its copies again. A \
server that is up is stopped first, if others have everything that it has. A process of the old server that comes back \
later answers for nothing any more, and ends.",
        after_long_help = "Examples:
  bivouac replace job 2 node7      the host may be one of the deployment, or a new one
  bivouac replace job 2 node2      on the same host, after its storage was lost

What only the old server has is lost: without --accept-loss the command says what that is, and changes nothing."
    )]
    Replace(ReplaceArgs),
    /// Add servers to a deployment while programs use it.
    #[command(
        long_about = "Add servers to a running deployment. New files are spread over them at once; then files that are there \
already are spread over them, too, in the background, while programs read and write them (--rebuild direct), or stay where they \
are (--rebuild metadata).",
        after_long_help = "Examples:
  bivouac expand job --hosts node5,node6    one server on each of these hosts
  bivouac expand job --servers +4           four more on the hosts that it has
  bivouac expand job --servers +4 --rebuild metadata    what is there already stays where it is

If a server does not come up, all new ones are taken back."
    )]
    Expand(ExpandArgs),
    /// Take servers away from a deployment while programs use it.
    #[command(
        long_about = "Take servers away from a running deployment. They get no new files from now on; what they have goes to the \
others, while programs read and write it; then they stop, and their storage is removed. Programs on their hosts go on. A host whose \
last server has left can be switched off when the command has returned; unless it names programs there, for which the host's agent \
stays until they end.",
        after_long_help = "Examples:
  bivouac shrink job --servers -2           the two that came last
  bivouac shrink job --hosts node5,node6    all servers of these hosts
  bivouac shrink job --server 0             the server with this number
  bivouac shrink job --cancel               those that are about to leave stay
  bivouac shrink job --hosts node5 --deadline 10m     node5 will be taken away: what has not moved by then is lost, and listed
  bivouac shrink job --hosts node5 --force --dry-run  what would be lost if it left now
  bivouac shrink job --servers -2 --rebuild backend --backend /scratch/me     through the site's file system, without programs

A command that was interrupted goes on when it is repeated; the servers go on meanwhile. A deadline is the command's, which has to \
live until then. Exit status: 1 if something was lost."
    )]
    Shrink(ShrinkArgs),
    /// Have files that are there already spread over all servers, too, or stop that.
    #[command(
        long_about = "Move what is stored to where it is to be by the servers that a deployment has now, while programs use it. \
`expand` and `shrink` do this by themselves.",
        after_long_help = "Examples:
  bivouac rebuild job                     spread all files over all servers
  bivouac rebuild job --max-rate 200M     not faster than that, for each server; also while it is under way
  bivouac rebuild job --cancel            leave what is left where it is
  bivouac rebuild job --rebuild backend   go on with a rebuild through the site's file system that was interrupted"
    )]
    Rebuild(RebuildArgs),
    /// Forward a directory of the site's storage through I/O nodes, or show how one is forwarded.
    #[command(
        long_about = "Forward a directory of the site's storage: programs inside the deployment use it under its own path, and servers \
of the deployment (the I/O nodes) queue, order, merge and issue their requests. Programs' nodes need not see the directory. Without a \
directory or options: shows what is forwarded. Programs that run already go through other I/O nodes when these change; a directory that \
was not forwarded before is so for programs that are started from now on.",
        after_long_help = "Examples:
  bivouac forward job /scratch/me                     through one server
  bivouac forward job --io-nodes 4                    through four
  bivouac forward job --io-nodes n1,n2 --assign file  each file through one of the two
  bivouac forward job --io-nodes 0                    programs that are started from now on use it themselves
  bivouac forward job                                 show it"
    )]
    Forward(ForwardArgs),
    /// Let a deployment grow and shrink by itself, within limits.
    #[command(
        long_about = "Let a deployment grow onto spare hosts when a server's storage is nearly full, or when servers transfer \
nearly all that they can; and have it give servers up again that are not needed. Off unless it is switched on. Without `on` or \
`off`: shows the policy, and what it did lately and why.",
        after_long_help = "Examples:
  bivouac policy job on --spares nodes.txt                  up to one server on each of these hosts
  bivouac policy job on --spares n5,n6 --grow-above 70% --link-speed 10G
  bivouac policy job on --max 6                             change a limit
  bivouac policy job                                        show it
  bivouac policy job off

A process on this machine looks at the servers every ten seconds, and does what `bivouac expand` and `bivouac shrink` do. `bivouac \
down` ends it."
    )]
    Policy(PolicyArgs),
    /// Give up servers that are down and do not come back: others get what they held.
    #[command(after_long_help = "Example:
  bivouac heal job

Servers that have been down for --heal-after seconds are given up without being asked. A server that was given up \
and starts again holds none of the copies that it had; it gets new files, and copies that the others are too few for. What has \
one copy only is still there.")]
    Heal(HealArgs),
    /// Check what is stored, and repair it from copies.
    #[command(
        long_about = "Check what a running deployment stores. Where there are copies, every block is compared with its \
checksums and with its copies, and what is damaged is repaired from a copy that is not. The metadata's logs are read again, and \
its copies compared. Without copies, the metadata's logs, and presence and lengths of blocks are checked. Programs go on meanwhile.",
        after_long_help = "Examples:
  bivouac verify job
  bivouac verify job --dry-run       look only
  bivouac verify job --json          for programs; described in docs/operations.md

Exit status: 0 if all is well or was repaired, 1 if damage is left, 67 if not everything could be checked."
    )]
    Verify(VerifyArgs),
    /// Print the variables to export, for `eval` in a batch script.
    #[command(after_long_help = "Example:
  eval \"$(bivouac env job)\"
  ls /bivouac

Programs that the shell starts from then on see the deployment. The shell itself does not, so its own redirections to \
the mount fail: run a whole script inside with `bivouac exec job -- sh script`.")]
    Env(EnvArgs),
    /// Measure a file system: floods of files, metadata rates, transfers.
    #[command(
        long_about = "Measure the file system that a directory lies on, with processes that do the same operations at the \
same time: rates, latencies, and processor time of each kind of operation. Runs on any file system; inside a deployment \
with `bivouac exec`. What it made is removed at the end.",
        after_long_help = crate::bench::AFTER_HELP
    )]
    Bench(crate::bench::BenchArgs),
    /// Measure what storages are good at: transfers, floods of small files, metadata.
    #[command(
        long_about = "Measure what storages are good at, one beside the other: sequential and random reads, and writes with and without \
fsync, with requests of different lengths and from one process to all; floods of small files (are they all there and whole \
afterwards?); rates of metadata operations. What is read is checked. Everything happens in a directory of its own below each DIR, which is \
removed in the end.",
        after_long_help = "Examples:
  bivouac characterize tmp=/tmp scratch=/scratch/me --out storages.jsonl
  bivouac characterize tmp=/tmp --quick --out quick.jsonl
  bivouac characterize job=/bivouac --deployment job --out job.jsonl     processes on the deployment's nodes, inside of it
  bivouac characterize --report storages.jsonl --html report.html

Files that fit into memory measure the page cache rather than the storage, except for writes with fsync: results say so, and so does the \
report. --size with twice the memory measures the storage. The report is made by the Python package bivouac_analysis (in python/; \
BIVOUAC_PYTHON names another interpreter than python3). docs/characterize.md describes the figures and the file."
    )]
    Characterize(CharacterizeArgs),
    /// Find out how many I/O nodes serve which access patterns best.
    #[command(
        long_about = "Find out how many I/O nodes (`bivouac forward`) serve which access patterns best: measure patterns with different \
numbers of them, and make a report.",
        after_long_help = "`bivouac explore run --help` has an example; docs/explore.md describes the files."
    )]
    Explore(ExploreArgs),
    /// Say how to run a program, by its Darshan log.
    #[command(
        long_about = "Say how to run a program, by its Darshan log: what it does, which measured patterns are nearest, the number of I/O nodes \
and the storage to use, what that should gain, and the options for the batch script. It uses the Python package bivouac_analysis \
(in python/; BIVOUAC_PYTHON names another interpreter than python3).",
        after_long_help = "Examples:
  bivouac advise job.darshan                                 what the program does; a word from published measurements
  bivouac advise job.darshan --with results.jsonl            and what `explore run` has measured on this machine

docs/advice.md says how the advice is found, and what it does not promise."
    )]
    Advise(AdviseArgs),
    /// Share a pool of I/O nodes among jobs, so that the sum of their bandwidths is highest.
    #[command(
        long_about = "Share a pool of I/O nodes among jobs, so that the sum of their bandwidths is highest. What each job gains from I/O \
nodes was measured by `bivouac explore run`. Shows the exact solution beside the policies of the literature: none, one for each job, a \
static share, by size (nodes), and by processes. With --apply, sets the numbers of running deployments as `bivouac forward` does.",
        after_long_help = "Examples:
  bivouac arbitrate --pool 8 results.jsonl                          all patterns of a file
  bivouac arbitrate --pool 8 a.jsonl:A b.jsonl:B                    one of each file
  bivouac arbitrate --pool 8 x=r.jsonl:A y=r.jsonl:A                two jobs of the same pattern
  bivouac arbitrate --pool 4 r.jsonl --apply job1=A job2=B          set two deployments
  bivouac arbitrate --pool 4 r.jsonl --apply job1=A job2=B --watch 10    and again when one comes or goes

Numbers above a deployment's own servers are no choices for it. Those that get fewer I/O nodes are set first, so that the pool is not \
exceeded. Exit status with --apply: as of what failed last; with --watch: 0 when a signal ends it. docs/arbitrate.md has more."
    )]
    Arbitrate(ArbitrateArgs),
    /// Print a completion script for a shell.
    #[command(after_long_help = "Example:
  bivouac completions bash > ~/.local/share/bash-completion/completions/bivouac")]
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory.
    Man {
        /// The directory; it must exist.
        dir: PathBuf,
    },
    /// Serve a mount that another process has made. `exec` calls it.
    #[command(hide = true)]
    Serve {
        /// Name of the deployment.
        #[arg(value_parser = parse_name)]
        name: String,
    },
    /// Carry out a deployment's policy. `policy` calls it.
    #[command(hide = true)]
    PolicyWatch {
        /// Name of the deployment.
        #[arg(value_parser = parse_name)]
        name: String,
    },
    /// Be a daemon. Launchers call it.
    #[command(hide = true)]
    Daemon(DaemonArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_and_option_has_help() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
        }
    }

    #[test]
    fn a_command_needs_its_separator() {
        assert!(Cli::try_parse_from(["bivouac", "run", "ls"]).is_err());
        let cli = Cli::try_parse_from(["bivouac", "run", "--servers", "4", "--", "ls", "--servers", "9"]);
        let Ok(Cli { command: Command::Run(run) }) = cli else { panic!("parses") };
        assert_eq!((run.servers.servers, run.command.len()), (Some(4), 3));
    }
}
