//! Running programs inside of a deployment, and how they see it.

use super::ServerArgs;
use super::values::{Copy, parse_flush, parse_interval, parse_name, parse_preload};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

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
    /// Let the command start when the names, sizes and attributes of what is preloaded are there: contents come from SRC when a file
    /// is opened, and meanwhile in the background. All servers have to see SRC, and it must not change before the end.
    #[arg(long, requires = "preload")]
    pub lazy: bool,
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
