//! Deployments: what they are made of, and starting, seeing and ending them.

use super::ForwardingArgs;
use super::values::{
    BlockSize, Width, parse_block_size, parse_heal_after, parse_heal_rate, parse_lease, parse_log_level,
    parse_mount, parse_name, parse_width,
};
use bivouac_layout::First;
use bivouac_layout::placement::DEFAULT_BLOCK;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

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
    /// A directory of the site's storage that is forwarded (`bivouac forward`).
    #[arg(long, value_name = "DIR", help_heading = "Forwarding")]
    pub forward: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub forwarding: ForwardingArgs,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    /// Write down, or restore, layouts of files, as the order on standard input says.
    #[arg(long, conflicts_with_all = ["serve", "cleanup", "stage"])]
    pub layouts: bool,
    /// Start processes of an exploration, as the orders on standard input say.
    #[arg(long, conflicts_with_all = ["serve", "cleanup", "stage", "layouts"])]
    pub explore: bool,
}
