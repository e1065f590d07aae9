//! A policy by which a deployment grows and shrinks by itself.

use super::LauncherChoice;
use super::values::{
    LinkSpeed, Threshold, parse_above, parse_heal_rate, parse_interval, parse_link_speed, parse_name,
    parse_threshold,
};
use clap::{Args, Subcommand};
use std::num::NonZeroU16;
use std::time::Duration;

/// Arguments of `policy`.
#[derive(Args, Debug)]
pub struct PolicyArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Show it for programs: stable, documented JSON.
    #[arg(long)]
    pub json: bool,
    /// Switch it on or off. Without that, it is shown.
    #[command(subcommand)]
    pub what: Option<PolicyCommand>,
}

/// What is done with a policy.
#[derive(Subcommand, Debug)]
pub enum PolicyCommand {
    /// Let the deployment grow and shrink by itself, or change how. What is not given stays as it was, or is the default.
    On(PolicyOnArgs),
    /// Leave the servers as they are now.
    Off,
}

/// Arguments of `policy NAME on`.
#[derive(Args, Clone, Debug, Default)]
pub struct PolicyOnArgs {
    /// Hosts to grow onto, in this order: a file, which is read now, or a list like h1,h2.
    #[arg(long, value_name = "FILE|LIST")]
    pub spares: Option<String>,
    /// Grow when the storage of any server is so full [default: 85%]
    #[arg(long, value_name = "PERCENT", value_parser = parse_above)]
    pub grow_above: Option<u8>,
    /// Shrink when all servers together are less full than this, and each transfers less than this part of what it can; or
    /// `never` [default: 30%]
    #[arg(long, value_name = "PERCENT", value_parser = parse_threshold)]
    pub shrink_below: Option<Threshold>,
    /// Grow when any server transfers so much of what it can, for the time of --busy-for; or `never` [default: 80%]
    #[arg(long, value_name = "PERCENT", value_parser = parse_threshold)]
    pub busy_above: Option<Threshold>,
    /// What a server can transfer in each direction, in bits per second, for example 10G; or `learned`: the most that any
    /// server was seen to transfer, and 100 MiB/s at least [default: learned]
    #[arg(long, value_name = "BITS", value_parser = parse_link_speed)]
    pub link_speed: Option<LinkSpeed>,
    /// Fewest servers [default: as many as there are]
    #[arg(long, value_name = "N")]
    pub min: Option<NonZeroU16>,
    /// Most servers [default: as many as there are, and one on each of --spares]
    #[arg(long, value_name = "N")]
    pub max: Option<NonZeroU16>,
    /// Most hosts that are added at a time [default: 1]
    #[arg(long, value_name = "N")]
    pub step: Option<NonZeroU16>,
    /// Time between two looks at the servers [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    pub every: Option<Duration>,
    /// How long servers have to be busy before it grows for that [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    pub busy_for: Option<Duration>,
    /// How long there have to be too many servers before it shrinks [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    pub idle_for: Option<Duration>,
    /// How long it waits after anything has changed, also by others, before it does something [default: 2m]
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    pub settle: Option<Duration>,
    /// Bytes per second that each server takes in at most when files move, for example 200M [default: max]
    #[arg(long, value_name = "BYTES", value_parser = parse_heal_rate)]
    pub max_rate: Option<u64>,
    /// How hosts are reached that are not of the deployment yet [default: auto]
    #[arg(long, value_enum)]
    pub launcher: Option<LauncherChoice>,
}
