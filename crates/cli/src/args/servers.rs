//! Servers that come and leave, and where files are then.

use super::LauncherChoice;
use super::values::{parse_fewer, parse_heal_rate, parse_interval, parse_more, parse_name};
use clap::{Args, ValueEnum};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

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
    #[command(flatten)]
    #[allow(missing_docs)]
    pub through: BackendArgs,
}

/// How files that are there already go to other servers.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum RebuildRule {
    /// What files have stays where it is, unless its server leaves.
    Metadata,
    /// All files are spread over all servers.
    Direct,
    /// Everything is copied to the site's file system, and to a new deployment from there, while no program uses it.
    Backend,
}

/// Options of a rebuild through the site's file system.
#[derive(Args, Clone, Default, Debug)]
pub struct BackendArgs {
    /// With --rebuild backend: a directory of the site's file system that all hosts share. A new one is made in it for the copy, and
    /// removed when the deployment was found complete.
    #[arg(long, value_name = "DIR")]
    pub backend: Option<PathBuf>,
    /// With --rebuild backend: wait until all programs that use the deployment have ended, instead of refusing.
    #[arg(long = "wait-for-programs")]
    pub wait: bool,
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
    /// What the map says of it. `None`: nothing, because files move through the backend.
    pub fn rule(&self) -> Option<bivouac_layout::Rule> {
        match self.rebuild {
            RebuildRule::Metadata => Some(bivouac_layout::Rule::Metadata),
            RebuildRule::Direct => Some(bivouac_layout::Rule::Direct),
            RebuildRule::Backend => None,
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
    /// Leave after this time (90s, 10m, 2h) also with what has not moved by then: it is lost where nobody else has a copy. The
    /// command has to live until then; if it is ended before, the servers go on leaving as without a deadline, and nothing is
    /// lost.
    #[arg(long, value_name = "TIME", value_parser = parse_interval, conflicts_with_all = ["cancel", "background"])]
    pub deadline: Option<Duration>,
    /// Leave now with all blocks that are on the servers: they are lost where nobody else has a copy. Only metadata moves.
    #[arg(long, conflicts_with_all = ["cancel", "background", "deadline"])]
    pub force: bool,
    /// Only say what would be lost if the servers left now.
    #[arg(long, conflicts_with_all = ["cancel", "background"])]
    pub dry_run: bool,
    /// For programs: what was lost as stable, documented JSON.
    #[arg(long, conflicts_with_all = ["cancel", "background"])]
    pub json: bool,
    #[command(flatten)]
    pub leaving: LeavingFiles,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub through: BackendArgs,
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
