//! Forwarding a directory of the site's storage.

use super::values::parse_name;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// By what requests are dealt to I/O nodes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum AssignChoice {
    /// Each I/O node serves an equal share of the nodes.
    Node,
    /// All requests for a file go to one I/O node, which can merge them.
    File,
}

/// How a directory is forwarded.
#[derive(Args, Clone, Debug, Default)]
pub struct ForwardingArgs {
    /// How many servers forward, or on which hosts; 0: programs use the directory themselves [default: 1]
    #[arg(long, value_name = "N|h1,h2,...", help_heading = "Forwarding")]
    pub io_nodes: Option<String>,
    /// What orders the requests of an I/O node: auto, fifo, to, sjf, aioli, mlf, hbrr, twins, sw or wfq, with its settings after commas, for
    /// example to,gap=64K,dispatchers=32 [default: to]
    #[arg(long, value_name = "NAME[,KEY=VALUE]...", value_parser = parse_scheduler, help_heading = "Forwarding")]
    pub scheduler: Option<String>,
    /// By what requests are dealt to I/O nodes [default: node]
    #[arg(long, value_enum, help_heading = "Forwarding")]
    pub assign: Option<AssignChoice>,
}

/// Arguments of `forward`.
#[derive(Args, Debug)]
pub struct ForwardArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// The directory to forward; servers that forward have to see it under this path [default: the present one]
    pub directory: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub how: ForwardingArgs,
    /// After a change: how long to wait for files that were removed while programs had them open. The server that has such a file
    /// goes on serving it until it is closed, however long that takes
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub timeout: u64,
    /// For programs: stable, documented JSON.
    #[arg(long)]
    pub json: bool,
}

fn parse_scheduler(text: &str) -> Result<String, String> {
    text.parse::<bivouac_forward::Spec>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}
