//! *Lifelines*: connections by which every daemon of a deployment knows that the `run` lives that made it.
//!
//! When they end, the daemons clean up by themselves: the controller, whichever agent that is then, tells the others; if there
//! is none, each daemon ends by itself. Daemons come while the command runs (`expand`, `replace`), and are started again after
//! they died, so a thread goes through the deployment's record, and gives a lifeline to whoever has none.
//!
//! None is ever ended for a daemon that lives: that one would take the deployment down.

use crate::error::Error;
use crate::home::{DaemonRecord, Directory, Record};
use crate::up::Started;
use bivouac_daemon::controller::{ControlLink, LinkError};
use bivouac_proto::auth::Key;
use bivouac_proto::control::ControlRequest;
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the record is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long a daemon that came later is waited for; then it is asked again the next time.
const LATER: Duration = Duration::from_secs(1);

/// The lifelines of all daemons of a deployment. They end when this is dropped, or its process ends.
pub struct Lifelines {
    watcher: JoinHandle<Vec<Line>>,
    /// Its end stops the watcher.
    stop: Sender<()>,
}

struct Line {
    to: Endpoint,
    link: ControlLink,
}

impl Lifelines {
    /// Gives one to each daemon that there is. It is an error if one of these does not answer.
    pub fn hold(started: &Started) -> Result<Lifelines, Error> {
        let record = &started.record;
        let daemons: Vec<&DaemonRecord> = record.daemons.iter().collect();
        let lines = open(record, &started.key, &daemons, control::BEGIN);
        let lines = lines.into_iter().zip(&daemons).map(|(line, daemon)| {
            line.map_err(|e| Error::Unanswered {
                cause: format!("{} on {} does not answer: {e}", daemon.label(), daemon.host),
                remedy: format!("take the deployment down: `bivouac down {}`", record.name),
            })
        });
        let lines = lines.collect::<Result<Vec<Line>, Error>>()?;
        let (stop, stopped) = channel();
        let (directory, key) = (started.directory.clone(), started.key.clone());
        let watch = move || watch(lines, &directory, &key, &stopped);
        let watcher = std::thread::Builder::new().name("lifelines".into()).spawn(watch);
        let watcher =
            watcher.map_err(|cause| Error::System { what: "cannot start a thread".into(), cause })?;
        Ok(Lifelines { watcher, stop })
    }

    /// Tells all daemons that the deployment is to go on without `run`. Says whether any has heard it; the others have
    /// died.
    pub fn release(self) -> bool {
        drop(self.stop);
        let mut lines = self.watcher.join().unwrap_or_default();
        let told: Vec<bool> =
            lines.iter_mut().map(|line| line.link.tell(ControlRequest::Release).is_ok()).collect();
        told.contains(&true)
    }
}

/// Has a lifeline at every daemon of the record, until it is told to stop.
fn watch(mut lines: Vec<Line>, directory: &Directory, key: &Key, stopped: &Receiver<()>) -> Vec<Line> {
    while matches!(stopped.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout)) {
        lines.retain(|line| !line.link.has_ended());
        // While `down` removes the deployment, there is no record.
        let Ok(record) = directory.load() else { continue };
        let without = |daemon: &&DaemonRecord| {
            // One that is not ready yet has no address that is its own.
            let endpoint = daemon.process.as_ref().map(|_| daemon.endpoint(&record.name, key));
            endpoint.is_some_and(|endpoint| lines.iter().all(|line| line.to != endpoint))
        };
        let daemons: Vec<&DaemonRecord> = record.daemons.iter().filter(without).collect();
        let new: Vec<Line> = open(&record, key, &daemons, LATER).into_iter().flatten().collect();
        lines.extend(new);
    }
    lines
}

fn open(
    record: &Record,
    key: &Key,
    daemons: &[&DaemonRecord],
    timeout: Duration,
) -> Vec<Result<Line, LinkError>> {
    let open = |daemon: &DaemonRecord| {
        let to = daemon.endpoint(&record.name, key);
        let mut link = ControlLink::connect(&to, key, record.deployment, timeout)?;
        link.tell(ControlRequest::Lifeline)?;
        Ok(Line { to, link })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = daemons.iter().map(|daemon| scope.spawn(|| open(daemon))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or(Err(LinkError::Unexpected))).collect()
    })
}
