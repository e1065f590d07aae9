//! The command line: what can be given, and how help describes it.
//!
//! Shell completion and man pages are generated from these definitions, so every text here is read in three
//! places.

mod values;

use bivouac_layout::First;
use bivouac_layout::placement::DEFAULT_BLOCK;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;
pub use values::{BlockSize, Copy, Width};
use values::{
    parse_block_size, parse_fewer, parse_flush, parse_heal_after, parse_heal_rate, parse_interval,
    parse_lease, parse_log_level, parse_max_rate, parse_more, parse_mount, parse_name, parse_preload,
    parse_width,
};

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
  71        bench: operations failed, or their results were wrong
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
  bivouac preload job ~/input /input --delete      an exact mirror"
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
others, while programs read and write it; then they stop, and their storage is removed. Programs on their hosts go on.",
        after_long_help = "Examples:
  bivouac shrink job --servers -2           the two that came last
  bivouac shrink job --hosts node5,node6    all servers of these hosts
  bivouac shrink job --server 0             the server with this number
  bivouac shrink job --cancel               those that are about to leave stay

A command that was interrupted goes on when it is repeated; the servers go on meanwhile."
    )]
    Shrink(ShrinkArgs),
    /// Have files that are there already spread over all servers, too, or stop that.
    #[command(
        long_about = "Move what is stored to where it is to be by the servers that a deployment has now, while programs use it. \
`expand` and `shrink` do this by themselves.",
        after_long_help = "Examples:
  bivouac rebuild job                     spread all files over all servers
  bivouac rebuild job --max-rate 200M     not faster than that, for each server; also while it is under way
  bivouac rebuild job --cancel            leave what is left where it is"
    )]
    Rebuild(RebuildArgs),
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
    /// Be a daemon. Launchers call it.
    #[command(hide = true)]
    Daemon(DaemonArgs),
}

/// Which servers, and where.
#[derive(Args, Debug, Clone)]
pub struct ServerArgs {
    /// Server processes on each host.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub servers: Option<u16>,
    /// Hosts to use: a file with one on each line, or a list separated by commas. Default: this machine
    /// alone.
    #[arg(long, value_name = "FILE|h1,h2,...")]
    pub hosts: Option<String>,
    /// Directory (one for each disk) to make storage in, on every host. Default: memory (/dev/shm), or
    /// $TMPDIR if that is small.
    #[arg(long, value_name = "DIR")]
    pub storage: Vec<PathBuf>,
    /// Where programs see the file system; it need not exist.
    #[arg(long, value_name = "PATH", default_value = "/bivouac", value_parser = parse_mount)]
    pub mount: String,
    /// Unit of striping, for example 512K or 4M.
    #[arg(long, value_name = "SIZE", default_value_t = BlockSize(DEFAULT_BLOCK), value_parser = parse_block_size)]
    pub block_size: BlockSize,
    /// Number of servers that a new file is striped over. Default: all. Directories can have their own
    /// (`bivouac layout`).
    #[arg(long, value_name = "N", value_parser = parse_width)]
    pub width: Option<Width>,
    /// Which server new files begin on. Default: hashed. Directories can have their own (`bivouac layout`).
    #[arg(long, value_enum)]
    pub first: Option<FirstChoice>,
    /// How many servers hold each block of a file, and each piece of the metadata: everything survives as long as one
    /// of them does. 1 to 8; default: 1.
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub replicas: Option<u8>,
    /// How many servers hold each piece of the metadata, if that is to be more than --replicas: directories and files
    /// can have so many copies at most (`bivouac layout`).
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub metadata_replicas: Option<u8>,
    /// Refuse changes that fewer servers than this would have, because others are down. Default: 1.
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub min_copies: Option<u8>,
    /// After so many seconds others take the place of a server that is down, where there are copies; or `never`.
    /// Default: 30.
    #[arg(long, value_name = "SECONDS", value_parser = parse_heal_after)]
    pub heal_after: Option<u32>,
    /// So many bytes per second each server gets at most of the blocks that it lacks, so that programs keep the rest of
    /// the network: 1M or more, or `max`. Default: max.
    #[arg(long, value_name = "BYTES", value_parser = parse_heal_rate)]
    pub heal_rate: Option<u64>,
    /// Others take the place of a server that has not answered for so long, where there are copies; 0.4 to 60. Shorter:
    /// programs wait less when a machine fails, but servers that are only slow are replaced, too. Default: 2.
    #[arg(long, value_name = "SECONDS", value_parser = parse_lease)]
    pub lease: Option<u32>,
    /// How often, within ten minutes, each server is started again by its host's agent when it has died; 0: never.
    /// Default: 3.
    #[arg(long, value_name = "N")]
    pub restarts: Option<u32>,
    /// A file with a host and the name of its rack, or whatever fails as one, on each line: copies are in different ones
    /// where these suffice.
    #[arg(long, value_name = "FILE")]
    pub failure_domain: Option<PathBuf>,
    /// How to start daemons on hosts.
    #[arg(long, value_enum, default_value_t = LauncherChoice::Auto)]
    pub launcher: LauncherChoice,
    /// First TCP port of each host's servers; 0 takes any that are free.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// What daemons log: error, warn, info, debug, trace.
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = parse_log_level)]
    pub log_level: String,
}

/// Where new files begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FirstChoice {
    /// On all servers alike.
    Hashed,
    /// On the node of the process that makes the file.
    Local,
}

impl FirstChoice {
    /// As layouts say it.
    pub fn first(self) -> First {
        match self {
            FirstChoice::Hashed => First::Hashed,
            FirstChoice::Local => First::Local,
        }
    }
}

/// How daemons are started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LauncherChoice {
    /// Fork for this machine, ssh for others.
    Auto,
    /// Fork: this machine only.
    Local,
    /// ssh, also for this machine.
    Ssh,
    /// Hosts are network namespaces of this machine (for tests; needs root).
    Netns,
}

/// How a command sees the deployment.
#[derive(Args, Debug, Clone, Copy)]
pub struct AccessArgs {
    /// How the command sees the files: a library that is loaded into each program, or a mount that only the
    /// command and its children see.
    #[arg(long, value_enum, default_value_t = Access::Auto)]
    pub access: Access,
    /// Short for --access fuse.
    #[arg(long, conflicts_with = "access")]
    pub fuse: bool,
    /// With the library: catch also the files that libc opens inside itself (locales, time zones, message
    /// catalogues, libraries that others need, what ctypes calls). On x86_64; takes a moment longer to start
    /// each program.
    #[arg(long, conflicts_with = "fuse")]
    pub catch_syscalls: bool,
    /// Say which access was chosen.
    #[arg(short, long)]
    pub verbose: bool,
}

/// How a command sees the deployment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Access {
    /// The library; for a command into which no library can be loaded, both.
    Auto,
    /// The library: fastest, for programs linked with glibc.
    Preload,
    /// A mount: for every program.
    Fuse,
    /// A mount, past which the library reads and writes: for every program, and as fast with data as the
    /// library.
    Both,
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub servers: ServerArgs,
    /// Name of the deployment. Default: made up.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<String>,
    /// Copy SRC in before the command starts; DST is the copy's name in the mount (default: SRC's last
    /// component). Colons in names are written `\:`.
    #[arg(long, value_name = "SRC[:DST]", value_parser = parse_preload)]
    pub preload: Vec<Copy>,
    /// Copy SRC (in the mount) out to DST when the command has ended.
    #[arg(long, value_name = "SRC:DST", value_parser = parse_flush)]
    pub flush: Vec<Copy>,
    /// Copy what was created or changed in SRC (in the mount) out to DST when the command has ended, and at once when SIGTERM comes.
    #[arg(long, value_name = "SRC:DST", value_parser = parse_flush)]
    pub flush_on_exit: Vec<Copy>,
    /// Do that also every so often while the command runs, for example 10m: each file in a state that it had at one time.
    #[arg(long, value_name = "TIME", value_parser = parse_interval, requires = "flush_on_exit")]
    pub flush_every: Option<Duration>,
    /// Leave the storage, so that `bivouac up NAME` brings the data back.
    #[arg(long)]
    pub keep: bool,
    /// At the end, print what each server did.
    #[arg(long)]
    pub stats: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub access: AccessArgs,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Arguments of `up`.
#[derive(Args, Debug)]
pub struct UpArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub servers: ServerArgs,
}

/// Arguments of `exec`.
#[derive(Args, Debug)]
pub struct ExecArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub access: AccessArgs,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Arguments of `mount`.
#[derive(Args, Debug)]
pub struct MountArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Where to mount it: a directory.
    pub path: PathBuf,
    /// Return when it is mounted, and go on in the background.
    #[arg(long)]
    pub daemon: bool,
    /// How to mount it, as for mount(8).
    #[arg(short, value_enum, value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<MountOption>,
    /// Be the one in the background.
    #[arg(long, hide = true, conflicts_with = "daemon")]
    pub background: bool,
}

/// How a deployment is mounted.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum MountOption {
    /// Nothing can be changed through the mount.
    Ro,
    /// It can.
    Rw,
}

impl MountArgs {
    /// Whether nothing is to be changed through the mount: the last word on it counts.
    pub fn read_only(&self) -> bool {
        self.options.last() == Some(&MountOption::Ro)
    }
}

/// Arguments of `preload`.
#[derive(Args, Debug)]
pub struct PreloadArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// What to copy.
    pub src: PathBuf,
    /// The copy's path in the mount (with or without the mount point before it).
    pub dst: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub how: StageArgs,
}

/// How `preload` and `flush` copy.
#[derive(Args, Debug, Default)]
pub struct StageArgs {
    /// Most files that all nodes together read from or write to the site's file system at once. Default: 4 for each node, at
    /// most 64.
    #[arg(long, alias = "threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub streams: Option<u16>,
    /// Most bytes per second between the site's file system and all nodes together: 64K or more.
    #[arg(long, value_name = "BYTES", value_parser = parse_max_rate)]
    pub max_rate: Option<u64>,
    /// Leave out what this pattern matches, and what is below it: '*.tmp' by name, '/a/*' by path from SRC, 'tmp/' directories only.
    /// What is left out is not deleted either.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<OsString>,
    /// Make an exception to --exclude for what this pattern matches.
    #[arg(long, value_name = "PATTERN", requires = "exclude")]
    pub include: Vec<OsString>,
    /// Copy only what this file lists: paths relative to SRC, one on each line; `-`: standard input.
    #[arg(long, value_name = "FILE")]
    pub files_from: Option<PathBuf>,
    /// Only print what would be copied and deleted.
    #[arg(long)]
    pub dry_run: bool,
    /// Compare contents, where otherwise a file of the same size and time counts as the same; and read back what was written.
    #[arg(long)]
    pub checksum: bool,
    /// Delete in DST what SRC does not have, for an exact mirror.
    #[arg(long, conflicts_with = "files_from")]
    pub delete: bool,
}

/// Arguments of `flush`.
#[derive(Args, Debug)]
pub struct FlushArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// What to copy, in the mount (with or without the mount point before it).
    pub src: PathBuf,
    /// The copy's path outside.
    pub dst: PathBuf,
    /// Copy only what was created or changed since its preload or last flush. What was changed in DST meanwhile is reported, and not
    /// overwritten.
    #[arg(long)]
    pub changed: bool,
    /// With --changed: overwrite also what was changed in DST meanwhile.
    #[arg(long, requires = "changed")]
    pub force: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub how: StageArgs,
}

/// Arguments of `layout`.
#[derive(Args, Debug)]
pub struct LayoutArgs {
    /// Name of the deployment. Default: the one that the command runs inside of.
    #[arg(short, long, value_name = "NAME", value_parser = parse_name)]
    pub deployment: Option<String>,
    /// Unit of striping, for example 512K or 4M; `default` for the deployment's.
    #[arg(long, value_name = "SIZE")]
    pub block_size: Option<String>,
    /// Number of servers to stripe over, or `all`; `default` for the deployment's.
    #[arg(long, value_name = "N")]
    pub width: Option<String>,
    /// Which server the first block goes to: `hashed`, `local` (the node of the process that makes the file),
    /// or a server's number; `default` for the deployment's.
    #[arg(long, value_name = "WHERE")]
    pub first: Option<String>,
    /// How many servers hold each block, up to the copies that the deployment has of its metadata (`up --replicas`,
    /// `--metadata-replicas`); `default` for the deployment's.
    #[arg(long, value_name = "R")]
    pub replicas: Option<String>,
    /// Forget what is set (before setting what else is given).
    #[arg(long)]
    pub default: bool,
    /// Files and directories in the mount.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Name of a deployment. Default: all.
    #[arg(value_parser = parse_name)]
    pub name: Option<String>,
    /// For programs: stable, documented JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `down`.
#[derive(Args, Debug)]
pub struct DownArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Leave the storage, so that `bivouac up NAME` brings the data back.
    #[arg(long)]
    pub keep: bool,
    /// Forget the deployment even if a host of it cannot be reached any more.
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `heal`.
#[derive(Args, Debug)]
pub struct HealArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Also if nobody else has what was acknowledged last: it is lost then.
    #[arg(long)]
    pub accept_loss: bool,
}

/// Arguments of `verify`.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Only look; repair nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// For programs: stable, documented JSON.
    #[arg(long)]
    pub json: bool,
    /// Most MiB that each server reads in a second; 0: as much as it can.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub rate: u32,
}

/// Arguments of `restart`.
#[derive(Args, Debug)]
pub struct RestartArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Numbers of the servers, as `bivouac status` shows them. One that runs is stopped first.
    #[arg(required = true, value_name = "SERVER")]
    pub servers: Vec<u16>,
}

/// Arguments of `replace`.
#[derive(Args, Debug)]
pub struct ReplaceArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Number of the server that is replaced, as `bivouac status` shows it.
    #[arg(value_name = "OLD")]
    pub server: u16,
    /// The host on which a new server is started: one of the deployment, or another one.
    #[arg(value_name = "NEW")]
    pub host: String,
    /// Replace a server that is down also if only it had something, which is lost then.
    #[arg(long)]
    pub accept_loss: bool,
    /// Directories for the new server's storage, one for each disk [default: those of the old one]
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    pub storage: Vec<PathBuf>,
    /// How a host is reached that is not one of the deployment yet.
    #[arg(long, value_enum, default_value_t = LauncherChoice::Auto)]
    pub launcher: LauncherChoice,
}

/// Arguments of `expand`.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("more").required(true).multiple(true).args(["hosts", "servers"])))]
pub struct ExpandArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Hosts that get a server each, new ones or ones of the deployment: a file, or a list like h1,h2.
    #[arg(long, value_name = "FILE|LIST")]
    pub hosts: Option<String>,
    /// How many servers: on each of --hosts, or, without these, in all, on the hosts that have the fewest.
    #[arg(long, value_name = "+N", value_parser = parse_more, allow_hyphen_values = true)]
    pub servers: Option<NonZeroU16>,
    /// Directories for the new servers' storage, one for each disk [default: as the others have]
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    pub storage: Vec<PathBuf>,
    /// How hosts are reached that are not of the deployment yet.
    #[arg(long, value_enum, default_value_t = LauncherChoice::Auto)]
    pub launcher: LauncherChoice,
    #[command(flatten)]
    pub restripe: Restripe,
}

/// How files that are there already go to other servers.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum RebuildRule {
    /// What files have stays where it is, unless its server leaves.
    Metadata,
    /// All files are spread over all servers.
    Direct,
}

/// Options of a restriping.
#[derive(Args, Clone, Debug)]
pub struct Restripe {
    /// What happens to files that are there already.
    #[arg(long, value_enum, default_value_t = RebuildRule::Direct, value_name = "HOW")]
    pub rebuild: RebuildRule,
    /// Bytes per second that each server takes in at most, for example 200M.
    #[arg(long, value_name = "BYTES", value_parser = parse_heal_rate, default_value = "max")]
    pub max_rate: u64,
    /// Do not wait until all files are where they are to be.
    #[arg(long)]
    pub background: bool,
}

impl From<&LeavingFiles> for Restripe {
    fn from(leaving: &LeavingFiles) -> Restripe {
        let LeavingFiles { rebuild, max_rate, background } = *leaving;
        Restripe { rebuild, max_rate, background }
    }
}

impl Restripe {
    /// What the map says of it.
    pub fn rule(&self) -> bivouac_layout::Rule {
        match self.rebuild {
            RebuildRule::Metadata => bivouac_layout::Rule::Metadata,
            RebuildRule::Direct => bivouac_layout::Rule::Direct,
        }
    }
}

/// Arguments of `shrink`.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("fewer").required(true).multiple(true).args(["hosts", "servers", "server", "cancel"])))]
pub struct ShrinkArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Hosts whose servers leave: a file, or a list like h1,h2.
    #[arg(long, value_name = "FILE|LIST")]
    pub hosts: Option<String>,
    /// How many servers leave: those that came last.
    #[arg(long, value_name = "-N", value_parser = parse_fewer, allow_hyphen_values = true, conflicts_with_all = ["hosts", "server"])]
    pub servers: Option<NonZeroU16>,
    /// The number of a server that leaves; may be repeated.
    #[arg(long, value_name = "NUMBER", value_delimiter = ',')]
    pub server: Vec<u16>,
    /// Servers that are about to leave stay.
    #[arg(long, conflicts_with_all = ["hosts", "servers", "server"])]
    pub cancel: bool,
    #[command(flatten)]
    pub leaving: LeavingFiles,
}

/// How files leave servers.
#[derive(Args, Clone, Debug)]
pub struct LeavingFiles {
    /// Only what is on the servers that leave goes to others, or all files are spread anew over those that stay.
    #[arg(long, value_enum, default_value_t = RebuildRule::Metadata, value_name = "HOW")]
    pub rebuild: RebuildRule,
    /// Bytes per second that each server takes in at most, for example 200M.
    #[arg(long, value_name = "BYTES", value_parser = parse_heal_rate, default_value = "max")]
    pub max_rate: u64,
    /// Do not wait until they have left.
    #[arg(long)]
    pub background: bool,
}

/// Arguments of `rebuild`.
#[derive(Args, Debug)]
pub struct RebuildArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    #[command(flatten)]
    pub restripe: Restripe,
    /// Leave files where they are now.
    #[arg(long, conflicts_with_all = ["rebuild", "max_rate", "background"])]
    pub cancel: bool,
}

/// Arguments of `env`.
#[derive(Args, Debug)]
pub struct EnvArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
}

/// Arguments of `daemon`.
#[derive(Args, Debug)]
pub struct DaemonArgs {
    /// Already detached: serve.
    #[arg(long)]
    pub serve: bool,
    /// Remove what daemons of this host have left, as the order on standard input says.
    #[arg(long, conflicts_with = "serve")]
    pub cleanup: bool,
    /// Copy files for the preload or flush at the other end of standard input and output.
    #[arg(long, conflicts_with_all = ["serve", "cleanup"])]
    pub stage: bool,
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
