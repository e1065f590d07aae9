//! What a copy did.

use std::path::PathBuf;

/// What a copy did. The copy is complete exactly if nothing [`failed`](Report::failed).
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Regular files copied (further hard links to one included).
    pub files: u64,
    /// Files whose contents were fetched after their names were made.
    pub fetched: u64,
    /// Files whose contents are left to be fetched by who opens them.
    pub lazy: u64,
    /// What was there already, or was not changed since it was staged.
    pub unchanged: u64,
    /// Directories made or found.
    pub directories: u64,
    /// Symbolic links made.
    pub symlinks: u64,
    /// Named pipes, sockets and devices made.
    pub special: u64,
    /// Files, links and directories deleted.
    pub deleted: u64,
    /// Bytes copied, without holes.
    pub bytes: u64,
    /// Workers at the beginning.
    pub nodes: usize,
    /// Nodes that could not take part, and why.
    pub nodes_left_out: Vec<(String, String)>,
    /// Nodes whose workers died on the way; others did their work.
    pub nodes_lost: Vec<(String, String)>,
    /// With a dry run: what would be done (`copy`, `link`, `delete`) to what.
    pub planned: Vec<(PathBuf, &'static str)>,
    /// What the destination cannot hold, and why: special files and extended attributes, but no data.
    pub left_out: Vec<(PathBuf, String)>,
    /// What could not be copied, and why.
    pub failed: Vec<(PathBuf, String)>,
    /// How long it took, seconds.
    pub seconds: f64,
}

impl Report {
    /// Whether everything was copied.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty()
    }
}

/// Why a copy did not even begin, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The source is not there, or cannot be looked at.
    #[error("cannot copy {path}: {source}")]
    Source {
        /// The source.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The destination cannot be made.
    #[error("cannot copy to {path}: {source}")]
    Destination {
        /// The destination.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A lazy file is read by the servers, and not all of them see it.
    #[error("not all servers see it, and with --lazy each reads its own part:{}", listed(.0))]
    Unseen(Vec<(String, String)>),
    /// No worker can do it: the nodes, and why each cannot.
    #[error("none of the deployment's nodes can do it:{}", listed(.0))]
    Workers(Vec<(String, String)>),
}

fn listed(nodes: &[(String, String)]) -> String {
    nodes.iter().map(|(node, why)| format!("\n  {node}: {why}")).collect()
}
