//! What is damaged: verify, heal and replace.

use super::LauncherChoice;
use super::values::parse_name;
use clap::Args;
use std::path::PathBuf;

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
