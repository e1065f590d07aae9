//! What can go wrong with patterns, results, runs, and the sharing of I/O nodes.

/// An error of the explorer.
#[derive(Debug, thiserror::Error)]
pub enum ExploreError {
    /// A patterns file cannot be used.
    #[error("{place}: {what}")]
    Pattern {
        /// Where in the file: `patterns[2].phases[0].request`.
        place: String,
        /// What is wrong there.
        what: String,
    },
    /// A file of results cannot be continued.
    #[error("{0}")]
    Results(String),
    /// Reading or writing results failed.
    #[error("cannot {what}: {cause}")]
    File {
        /// What.
        what: String,
        /// Why not.
        cause: std::io::Error,
    },
    /// One run failed; others may not.
    #[error("{0}")]
    Run(String),
    /// All jobs together need more I/O nodes than the pool has.
    #[error("{needed} I/O nodes are needed, and the pool has {pool}")]
    Pool {
        /// I/O nodes of all jobs together.
        needed: u64,
        /// Those that there are.
        pool: u32,
    },
    /// A job was not measured with a number of I/O nodes, nor with fewer.
    #[error("{job} was not measured {}", up_to(*io_nodes))]
    Rounded {
        /// The job's name.
        job: String,
        /// The number.
        io_nodes: u32,
    },
    /// A job was not measured at all.
    #[error("{0} was not measured with any number of I/O nodes")]
    Unmeasured(String),
    /// The exploration was asked to end.
    #[error("interrupted")]
    Interrupted,
}

fn up_to(io_nodes: u32) -> String {
    match io_nodes {
        0 => "without I/O nodes".into(),
        1 => "with 1 I/O node or none".into(),
        more => format!("with {more} I/O nodes or fewer"),
    }
}

impl ExploreError {
    /// Something at a place of a patterns file.
    pub fn at(place: impl Into<String>, what: impl Into<String>) -> ExploreError {
        ExploreError::Pattern { place: place.into(), what: what.into() }
    }
}
