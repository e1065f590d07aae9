//! Measuring storages beside each other.

use super::values::{parse_name, parse_seconds};
use clap::Args;
use std::path::PathBuf;

/// Least bytes of a request, of which all are multiples: the stamps in what is written are that far apart.
const SECTOR: u64 = bivouac_explore::patterns::SECTOR;

/// A storage to measure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    /// What it is called in results.
    pub name: String,
    /// Its directory.
    pub directory: PathBuf,
}

/// Arguments of `characterize`.
#[derive(Args, Debug)]
pub struct CharacterizeArgs {
    /// Storages: what they are called, and a directory of each.
    #[arg(value_name = "NAME=DIR", required_unless_present = "report", conflicts_with = "report", value_parser = parse_storage)]
    pub storages: Vec<Named>,
    /// The file of results, which must not be there; each measurement adds a line when it is over
    #[arg(long, value_name = "FILE", required_unless_present = "report", conflicts_with = "report")]
    pub out: Option<PathBuf>,
    /// Most processes on each node [default: one for each processor, from 2 to 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub processes: Option<u32>,
    /// How often everything is measured [default: 3; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Bytes of all processes' files together; twice as much room is needed [default: 256M; with --quick 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_total)]
    pub size: Option<u64>,
    /// Longest time of a transfer, and of making files and directories for metadata [default: 0.5; with
    /// --quick 0.2]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub seconds: Option<f64>,
    /// Numbers of small files that floods have [default: 1000,2000,4000,8000; with --quick 1000,2000,4000]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub files: Vec<u64>,
    /// Bytes of requests [default: 4K,16K,64K,256K,1M,4M,16M; with --quick 4K,64K,1M,16M]
    #[arg(long, value_name = "SIZE,SIZE,...", value_delimiter = ',', value_parser = parse_request)]
    pub requests: Vec<u64>,
    /// What the order and random places follow from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Fewer and shorter measurements: some 20 seconds for each storage.
    #[arg(long)]
    pub quick: bool,
    /// Run the processes inside this deployment, on its nodes; a storage can be its mount path
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub deployment: Option<String>,
    /// Hosts of the deployment that processes are started on [default: all]
    #[arg(long, value_name = "h1,h2,...", value_delimiter = ',', requires = "deployment")]
    pub hosts: Vec<String>,
    /// Make a report of this file of results.
    #[arg(long, value_name = "FILE", requires = "html")]
    pub report: Option<PathBuf>,
    /// The report.
    #[arg(long, value_name = "OUT", requires = "report")]
    pub html: Option<PathBuf>,
    /// A directory for the tables behind the report.
    #[arg(long, value_name = "DIR", requires = "report")]
    pub csv: Option<PathBuf>,
}

fn parse_storage(text: &str) -> Result<Named, String> {
    let (name, directory) =
        text.split_once('=').ok_or("a name and a directory, for example scratch=/scratch/me")?;
    // The same letters that a deployment's name has.
    parse_name(name).map_err(|message| message.replace("a deployment's name", "a storage's name"))?;
    if directory.is_empty() {
        return Err("there is no directory behind the name".into());
    }
    Ok(Named { name: name.into(), directory: directory.into() })
}

fn parse_request(text: &str) -> Result<u64, String> {
    crate::bench::parse_size(text)
        .ok()
        .filter(|bytes| (SECTOR..=bivouac_explore::patterns::REQUEST_MAX).contains(bytes))
        .filter(|bytes| bytes.is_multiple_of(SECTOR))
        .ok_or_else(|| format!("a multiple of {SECTOR} bytes up to 1G, for example 64K"))
}

fn parse_total(text: &str) -> Result<u64, String> {
    crate::bench::parse_size(text)
        .ok()
        .filter(|bytes| (SECTOR..=bivouac_explore::patterns::TOTAL_MAX).contains(bytes))
        .ok_or_else(|| "a number of bytes, for example 512M or 64G".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storage_is_a_plain_name_and_a_directory() {
        let named = parse_storage("ssd-1=/local/a=b").expect("parses");
        assert_eq!((named.name.as_str(), named.directory), ("ssd-1", PathBuf::from("/local/a=b")));
        for bad in ["", "/tmp", "=/tmp", "a=", "a b=/tmp", "a/b=/tmp", "<b>=/tmp", "-x=/tmp", "ä=/tmp"] {
            assert!(parse_storage(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn requests_are_multiples_of_a_sector() {
        assert_eq!(parse_request("16M"), Ok(16 << 20));
        for bad in ["0", "100", "4097", "2G", "x", ""] {
            assert!(parse_request(bad).is_err(), "{bad}");
        }
        assert!(parse_total("1P").is_err() && parse_total("0").is_err());
    }
}
