//! `preload` and `flush`: what is copied where, and what is printed about it. The crate `bivouac-stage` does
//! the copying.

use crate::args::Copy;
use crate::error::Error;
use crate::exec::attachable;
use crate::home::Home;
use crate::text::{count, size};
use bivouac_client::Client;
use bivouac_node::Environment;
use bivouac_stage::{Options, Report, StageError};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

/// Most things left out that are named; the number of all is told in any case. (What failed is always named.)
const SHOWN_LEFT_OUT: usize = 20;

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Into the deployment.
    In,
    /// Out of it.
    Out,
}

/// Copies one tree into the deployment `name`, or out of it.
pub fn copy(
    home: &Home,
    name: &str,
    copy: &Copy,
    direction: Direction,
    threads: Option<u16>,
) -> Result<(), Error> {
    let environment = attachable(home, name)?;
    let client = client(name, &environment)?;
    let options = options(threads);
    let (verb, result) = match direction {
        Direction::In => {
            let destination = match &copy.dst {
                Some(dst) => inside(dst, &environment.mount),
                None => default_destination(&copy.src)?,
            };
            ("preloaded", bivouac_stage::copy_in(client, &copy.src, &destination, &options))
        }
        Direction::Out => {
            let dst = copy
                .dst
                .as_deref()
                .ok_or_else(|| Error::refused("there is no destination", "say where to"))?;
            (
                "flushed",
                bivouac_stage::copy_out(client, &inside(&copy.src, &environment.mount), dst, &options),
            )
        }
    };
    judge(verb, &copy.src, result)
}

/// Copies several trees into the deployment `name`, or out of it. Tries all of them, even if others fail.
/// Prints all failures but the last, which it returns.
pub fn copy_all(
    home: &Home,
    name: &str,
    trees: &[Copy],
    direction: Direction,
    threads: Option<u16>,
) -> Result<(), Error> {
    Error::of_all(trees.iter().map(|tree| copy(home, name, tree, direction, threads)))
}

/// The client core, which lives as long as the process. A process has to do with one deployment only.
pub fn client(name: &str, environment: &Environment) -> Result<&'static Client, Error> {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    if CLIENT.get().is_none() {
        let client = Client::attach(environment).map_err(|e| Error::Unanswered {
            cause: format!("cannot use {name:?}: {e}"),
            remedy: format!("`bivouac status {name}` shows the deployment"),
        })?;
        let _ = CLIENT.set(client);
    }
    CLIENT.get().ok_or(Error::Interrupted(libc::SIGABRT))
}

fn options(threads: Option<u16>) -> Options {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let threads = threads.map_or((2 * processors).clamp(4, 32), usize::from);
    Options { threads, progress: std::io::stderr().is_terminal() }
}

/// A path in the mount, from its root: with or without the mount point before it, and with or without a
/// slash.
pub fn inside(path: &Path, mount: &str) -> Vec<u8> {
    let below = path.strip_prefix(mount).unwrap_or(path);
    let bytes = below.as_os_str().as_bytes();
    if bytes.starts_with(b"/") { bytes.to_vec() } else { [b"/", bytes].concat() }
}

/// The source's own name, in the mount's root.
fn default_destination(src: &Path) -> Result<Vec<u8>, Error> {
    let whole: PathBuf = std::path::absolute(src).map_err(|e| Error::file("find", src, e))?;
    match whole.components().next_back() {
        Some(Component::Normal(name)) => Ok([b"/", name.as_bytes()].concat()),
        _ => Err(Error::refused(
            format!("{} has no name that its copy could take", src.display()),
            "say where to: SRC:DST",
        )),
    }
}

/// Says what was done; anything that was not is an error.
fn judge(verb: &str, src: &Path, result: Result<Report, StageError>) -> Result<(), Error> {
    let report = result.map_err(|e| Error::Copy {
        cause: format!("{} was not {verb}: {e}", src.display()),
        remedy: "check both paths".into(),
    })?;
    eprintln!("{verb} {}: {}", src.display(), summary(&report));
    if !report.left_out.is_empty() {
        eprintln!("left out, because the destination cannot hold it:");
        for (path, what) in report.left_out.iter().take(SHOWN_LEFT_OUT) {
            eprintln!("  {}: {what}", path.display());
        }
        if let Some(more) = report.left_out.len().checked_sub(SHOWN_LEFT_OUT + 1) {
            eprintln!("  and {} more", count(more as u64 + 1));
        }
    }
    if report.failed.is_empty() {
        return Ok(());
    }
    for (path, why) in &report.failed {
        eprintln!("  {}: {why}", path.display());
    }
    Err(Error::Copy {
        cause: format!("{} of {} were not {verb}", count(report.failed.len() as u64), src.display()),
        remedy: "all others were; repeat it when the cause is gone".into(),
    })
}

fn summary(report: &Report) -> String {
    let files = format!("{} files, {} directories", count(report.files), count(report.directories));
    let some = |number: u64, what: &str| match number {
        0 => String::new(),
        _ => format!(", {} {what}", count(number)),
    };
    let others = some(report.symlinks, "links") + &some(report.special, "special files");
    let rate = if report.seconds > 0.0 { report.bytes as f64 / report.seconds } else { 0.0 };
    format!("{files}{others}, {} in {:.1} s ({}/s)", size(report.bytes), report.seconds, size(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_the_mount_can_be_given_with_and_without_it() {
        for (given, path) in [
            ("/bivouac/a/b", "/a/b"),
            ("/a/b", "/a/b"),
            ("a/b", "/a/b"),
            ("/bivouac", "/"),
            ("/", "/"),
            ("/bivouac2/a", "/bivouac2/a"),
        ] {
            assert_eq!(inside(Path::new(given), "/bivouac"), path.as_bytes(), "{given}");
        }
    }

    #[test]
    fn a_copy_takes_its_sources_name_unless_told() {
        assert_eq!(default_destination(Path::new("/a/b/")).expect("a name"), b"/b");
        assert_eq!(default_destination(Path::new("x")).expect("a name"), b"/x");
        assert!(default_destination(Path::new("/")).is_err());
        assert!(default_destination(Path::new("..")).is_err());
    }
}
