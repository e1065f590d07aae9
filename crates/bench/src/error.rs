//! What can go wrong before, between and after the phases. Operations that fail are no error here: they are
//! counted.

/// A measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Plan(String),
    /// A worker could not be started.
    #[error("cannot start a worker with {command:?}: {cause}")]
    Start {
        /// How.
        command: String,
        /// Why not.
        cause: std::io::Error,
    },
    /// A worker went away, or says something that is no answer.
    #[error("worker {rank} {what}")]
    Worker {
        /// Its number, from 0.
        rank: u32,
        /// What happened to it.
        what: String,
    },
    /// A directory or file that the load needs could not be made.
    #[error("cannot {what}: {cause}")]
    Prepare {
        /// What.
        what: String,
        /// Why not.
        cause: std::io::Error,
    },
    /// The transport failed.
    #[error("the connection to the null server failed: {0}")]
    Transport(#[from] bivouac_transport::TransportError),
    /// A signal ended the measurement.
    #[error("interrupted")]
    Interrupted,
}
