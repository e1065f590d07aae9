//! Preload and flush: copying trees between the site's file system, the *backend*, and a deployment, with all
//! the deployment's nodes.
//!
//! The command that the user runs is the [coordinator](copy): it has the list of what is to be copied, and
//! decides. On each node runs a [worker](work), a process that the command has started there; it lists
//! directories and copies files as it is told. They talk over the worker's standard input and output
//! ([`wire`]), and nothing else connects them: if the command ends, the workers do, and if a worker ends, the
//! others get its work.
//!
//! ```text
//!                     copy (coordinator): queue, decisions, record, report
//!                    /        |         \            wire: tasks, answers
//!              worker      worker      worker        one on each node
//!             /      \
//!   Local: the backend  Mount: the deployment, through the node's own agent and server
//! ```
//!
//! A worker sees both sides as a [`tree::Tree`]: [`local`] is the site's file system, [`mount`] the
//! deployment's, through the client core (no library has to be preloaded for it). Small files go to the
//! worker of the node whose server has their directory, in batches; large ones are divided, and where their
//! blocks are long each worker moves those of its own server.
//!
//! In the backend a file is written under a temporary name ([`parts`]), and gets its own when it is complete.
//! A file gets its source's time of change last of all, so that the next run tells what is complete by size
//! and time. What a file was on both sides when it was staged is kept in the [`Record`], for copying only
//! what was changed.
//!
//! What fails is reported and does not stop the rest. The [`Report`] counts everything, so that the user can
//! check that the copy is complete.

mod coordinator;
mod filter;
mod local;
mod mount;
mod parts;
mod pattern;
mod progress;
mod rate;
mod record;
mod report;
#[cfg(test)]
mod tests;
mod tree;
mod wire;
mod worker;

pub use coordinator::{Job, Link, Options, Others, WhenNamed, copy};
pub use filter::Filter;
pub use record::Record;
pub use report::{Report, StageError};
pub use wire::{Direction, Setup};

use bivouac_client::Client;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Works for a coordinator until it closes `input`: then the caller must end the process, in which threads
/// may still be copying. `attach` finds the deployment.
pub fn work(
    input: impl Read,
    output: impl Write + Send + 'static,
    attach: impl FnOnce(&Setup) -> Result<Arc<Client>, String>,
) -> io::Result<()> {
    worker::work(
        input,
        output,
        || std::process::exit(1),
        |setup| {
            let client = attach(setup)?;
            let node = client.node().0;
            let (backend, inside) = (Box::new(local::Local), Box::new(mount::Mount::new(client)));
            Ok(match setup.direction {
                Direction::In => worker::Trees { from: backend, to: inside, node },
                Direction::Out => worker::Trees { from: inside, to: backend, node },
            })
        },
    )
}
