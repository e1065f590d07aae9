//! `preload` and `flush`: what is copied where, and what is printed about it. The crate `bivouac-stage` does
//! the copying.

use crate::args::{Copy, StageArgs};
use crate::error::Error;
use crate::exec::attachable;
use crate::home::{Home, Record as Deployment};
use crate::text::{count, plural, size};
use crate::workers;
use bivouac_client::Client;
use bivouac_client::host::Plain;
use bivouac_node::Environment;
use bivouac_stage::{Direction, Filter, Job, Options, Others, Record, Report, StageError, WhenNamed};
use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Most things left out that are named; the number of all is told in any case. (What failed is always named.)
const SHOWN_LEFT_OUT: usize = 20;

/// How to copy, as the user wants it.
#[derive(Clone, Debug, Default)]
pub struct How {
    options: Options,
}

impl How {
    /// From the command line.
    pub fn of(args: &StageArgs) -> Result<How, Error> {
        let files = args.files_from.as_deref().map(read_list).transpose()?;
        let bytes = |texts: &[OsString]| texts.iter().map(|t| t.as_bytes().to_vec()).collect::<Vec<_>>();
        let filter = Filter::new(&bytes(&args.include), &bytes(&args.exclude), files.as_deref());
        let options = Options {
            streams: args.streams.map_or(0, usize::from),
            max_rate: args.max_rate,
            filter: filter.map_err(|why| Error::refused(why, "`bivouac help preload` describes patterns"))?,
            dry_run: args.dry_run,
            checksum: args.checksum,
            delete: args.delete,
            ..Options::default()
        };
        Ok(How { options })
    }

    /// Whether only what was changed since it was staged is copied, and also over what was changed in the
    /// backend meanwhile.
    pub fn changed(mut self, changed: bool, force: bool) -> How {
        self.options.changed = changed;
        self.options.others = if force { Others::Overwritten } else { Others::Kept };
        self
    }

    /// Whether contents are fetched after all names were made, and whether only by who opens a file.
    pub fn lazy(mut self, lazy: bool, on_demand: bool) -> How {
        (self.options.lazy, self.options.on_demand) = (lazy, on_demand);
        self.options.when_named = (!on_demand).then(|| WhenNamed::new(named));
        self
    }

    /// Lazily, beside other work: `tell` hears that all names are there, and once there is `enough`, what is missing is left to
    /// who opens a file.
    pub fn beside(tell: impl Fn() + Send + Sync + 'static, enough: Arc<AtomicBool>) -> How {
        let when_named = WhenNamed::new(move |files, seconds| {
            named(files, seconds);
            tell();
        });
        let options = Options { lazy: true, when_named: Some(when_named), enough, ..Options::default() };
        How { options }
    }

    /// Everything, so that nothing else is there, and at most so many bytes per second. Or only what would be done for that.
    pub fn mirror(dry_run: bool, max_rate: Option<u64>) -> How {
        let options = Options { delete: true, dry_run, max_rate, ..Options::default() };
        How { options }
    }

    /// What was changed, as `run` flushes it: an earlier job's results are replaced, as by a plain flush.
    pub fn checkpoint() -> How {
        let options = Options { changed: true, others: Others::KeptIfStaged, ..Options::default() };
        How { options }
    }
}

/// All names of a lazy preload are there.
fn named(files: u64, seconds: f64) {
    eprintln!(
        "the names of {} files are there after {seconds:.1} s, and can be used; their contents are being fetched",
        count(files)
    );
}

/// The lines of a list of files.
fn read_list(path: &Path) -> Result<Vec<Vec<u8>>, Error> {
    let mut text = Vec::new();
    let read = match path.as_os_str().as_bytes() {
        b"-" => std::io::stdin().lock().read_to_end(&mut text).map(drop),
        _ => std::fs::read(path).map(|read| text = read),
    };
    read.map_err(|e| Error::refused(format!("cannot read {}: {e}", path.display()), "check --files-from"))?;
    Ok(text.split(|b| *b == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
}

/// Copies one tree into the deployment `name`, or out of it.
pub fn copy(home: &Home, name: &str, copy: &Copy, direction: Direction, how: &How) -> Result<(), Error> {
    let report = copy_tree(home, name, copy, direction, how)?;
    if how.options.dry_run {
        for (path, what) in &report.planned {
            println!("{what} {}", path.display());
        }
    }
    Ok(())
}

/// The same. What was done, or would be.
pub fn copy_tree(
    home: &Home,
    name: &str,
    copy: &Copy,
    direction: Direction,
    how: &How,
) -> Result<Report, Error> {
    let environment = attachable(home, name)?;
    let (verb, source, destination) = match direction {
        Direction::In => {
            let destination = match &copy.dst {
                Some(dst) => inside(dst, &environment.mount),
                None => default_destination(&copy.src)?,
            };
            ("preloaded", outside(&copy.src)?, destination)
        }
        Direction::Out => {
            let dst = copy
                .dst
                .as_deref()
                .ok_or_else(|| Error::refused("there is no destination", "say where to"))?;
            ("flushed", inside(&copy.src, &environment.mount), outside(dst)?)
        }
    };
    let directory = home.deployment(name);
    // A deployment may have been started by a machine that does not share its directory.
    let deployment = directory.load().ok();
    let _lock = match (direction, &deployment) {
        (Direction::Out, Some(_)) if !how.options.dry_run => Some(directory.lock_flush(|| {
            eprintln!("bivouac: another flush of {name:?} is under way; waiting for its end");
        })?),
        _ => None,
    };
    let mut record = record(deployment.as_ref(), &directory.staged(), how)?;
    let options = Options { progress: std::io::stderr().is_terminal(), ..how.options.clone() };
    let (links, unstarted) = workers::start(deployment.as_ref());
    if how.options.lazy && !unstarted.is_empty() {
        let unseen = Err(StageError::Unseen(unstarted));
        return judge(verb, &copy.src, unseen, Vec::new(), how);
    }
    // In the deployment, paths are relative to the mount.
    let relative =
        |path: Vec<u8>| path.iter().position(|b| *b != b'/').map_or(Vec::new(), |at| path[at..].to_vec());
    let (source, destination) = match direction {
        Direction::In => (source, relative(destination)),
        Direction::Out => (relative(source), destination),
    };
    let job = Job {
        name: name.to_owned(),
        direction,
        source,
        destination,
        deployment: deployment.as_ref().map_or(0, |deployment| deployment.deployment),
    };
    let copied = bivouac_stage::copy(links, job, &options, &mut record);
    judge(verb, &copy.src, copied, unstarted, how)
}

/// The record of what was staged. A dry run notes nothing.
fn record(deployment: Option<&Deployment>, path: &Path, how: &How) -> Result<Record, Error> {
    if deployment.is_none() && how.options.changed {
        return Err(Error::refused(
            "what was staged before is not known on this machine",
            "flush --changed where the deployment was started, or flush everything",
        ));
    }
    if deployment.is_none() || how.options.dry_run && !how.options.changed {
        return Ok(Record::default());
    }
    match Record::open(path, how.options.changed) {
        Ok(record) => Ok(record),
        // The copy itself does not need it.
        Err(cause) if !how.options.changed => {
            eprintln!("bivouac: {}: {cause}; `flush --changed` will flush everything", path.display());
            Ok(Record::default())
        }
        Err(cause) => Err(Error::file("open", path, cause)),
    }
}

/// Copies several trees into the deployment `name`, or out of it. Tries all of them, even if others fail.
/// Prints all failures but the last, which it returns.
pub fn copy_all(
    home: &Home,
    name: &str,
    trees: &[Copy],
    direction: Direction,
    how: &How,
) -> Result<(), Error> {
    Error::of_all(trees.iter().map(|tree| copy(home, name, tree, direction, how)))
}

/// A client of a deployment. (It has descriptors of files on this node, as many as the process may have.)
pub fn client(name: &str, environment: &Environment) -> Result<Arc<Client>, Error> {
    // With fewer of them it works, too.
    let _ = bivouac_transport::raise_descriptor_limit();
    Client::attach(environment, &Plain).map_err(|e| Error::Unanswered {
        cause: format!("cannot use {name:?}: {e}"),
        remedy: format!("`bivouac status {name}` shows the deployment"),
    })
}

/// A path of the site's file system, as all nodes can use it.
fn outside(path: &Path) -> Result<Vec<u8>, Error> {
    let whole = std::path::absolute(path).map_err(|e| Error::file("find", path, e))?;
    let mut bytes = whole.into_os_string().into_vec();
    // A slash at the end says that it is a directory.
    if path.as_os_str().as_bytes().ends_with(b"/") && !bytes.ends_with(b"/") {
        bytes.push(b'/');
    }
    Ok(bytes)
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
fn judge(
    verb: &str,
    src: &Path,
    result: Result<Report, StageError>,
    unstarted: Vec<(String, String)>,
    how: &How,
) -> Result<Report, Error> {
    for (node, why) in &unstarted {
        eprintln!("bivouac: {node} takes no part: {why}");
    }
    let report = result.map_err(|e| Error::Copy {
        cause: format!("{} was not {verb}: {e}", src.display()),
        remedy: match e {
            StageError::Unseen(_) => {
                "preload it without --lazy, or from a file system that all nodes share".into()
            }
            StageError::Workers(_) => {
                "the path has to be on a file system that the deployment's nodes share; or use one node's own"
                    .into()
            }
            _ => "check both paths".into(),
        },
    })?;
    for (node, why) in &report.nodes_left_out {
        eprintln!("bivouac: {node} takes no part: {why}");
    }
    for (node, why) in &report.nodes_lost {
        eprintln!("bivouac: {node} was lost on the way, and others did its work: {why}");
    }
    let verb = if how.options.dry_run { format!("would be {verb}") } else { verb.to_owned() };
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
        return Ok(report);
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
    let others = some(report.symlinks, "links")
        + &some(report.special, "special files")
        + &some(report.fetched, "fetched")
        + &some(report.lazy, "to be fetched when they are opened")
        + &some(report.unchanged, "there already")
        + &some(report.deleted, "deleted");
    let rate = if report.seconds > 0.0 { report.bytes as f64 / report.seconds } else { 0.0 };
    let nodes = plural(report.nodes, "node");
    format!(
        "{files}{others}, {} in {:.1} s ({}/s) by {nodes}",
        size(report.bytes),
        report.seconds,
        size(rate as u64)
    )
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
