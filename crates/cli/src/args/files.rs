//! Files in a deployment.

use super::values::parse_name;
use clap::Args;
use std::path::PathBuf;

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
