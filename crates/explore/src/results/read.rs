//! Reading a file of results: for the exploration that goes on with it, and for whoever wants what was
//! measured.
//!
//! Whatever is wrong is refused with the file and the line, except for a last line that was cut: then the
//! program was killed while it wrote it, and the run does not count.

use super::{Failed, Header, Line, Run, VERSION};
use crate::error::ExploreError;
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest file that is read, bytes: millions of runs.
const LONGEST: u64 = 1 << 30;

/// What a file has, line by line.
pub(super) struct Content {
    /// The first line, if there is one.
    pub header: Option<Header>,
    /// The others, with their numbers in the file.
    pub lines: Vec<(usize, Line)>,
    /// The last line was cut; it is not among them.
    pub was_cut: bool,
}

impl Content {
    /// Reads all whole lines. `shown`: the file's name, for errors.
    pub fn of(shown: &str, bytes: &[u8]) -> Result<Content, ExploreError> {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (lines, rest) = bytes.split_at(whole);
        let text = String::from_utf8_lossy(lines);
        let mut content = Content { header: None, lines: Vec::new(), was_cut: !rest.is_empty() };
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = |why: &str| wrong(shown, number, why);
            match (number, serde_json::from_str(line)) {
                (1, Ok(Line::Exploration(header))) if header.version == VERSION => {
                    content.header = Some(header);
                }
                (1, _) if newer(line) => {
                    return Err(wrong("this is of a newer version; use a newer Bivouac, or another file"));
                }
                (1, _) => return Err(wrong("this is no file of results; give another one")),
                (_, Ok(Line::Exploration(_))) => return Err(wrong("another exploration begins here")),
                (_, Ok(line)) => content.lines.push((number, line)),
                (_, Err(why)) => return Err(wrong(&format!("this is no result: {why}"))),
            }
        }
        // What has no first line yet is a file that is there, and not ours.
        if lines.is_empty() && !rest.is_empty() && !rest.starts_with(b"{\"kind\":\"exploration\"") {
            return Err(ExploreError::Results(format!("{shown} is no file of results; give another one")));
        }
        Ok(content)
    }
}

/// What an exploration has measured so far.
#[derive(Clone, PartialEq, Debug)]
pub struct Recorded {
    /// What was explored. No two patterns have the same name.
    pub header: Header,
    /// Its runs: each of one of these patterns, with one of these numbers of I/O nodes, and each repetition
    /// once. No bandwidth is negative.
    pub runs: Vec<Run>,
    /// The runs that failed.
    pub failed: Vec<Failed>,
    /// The last line was cut, and does not count.
    pub was_cut: bool,
}

/// Reads a file of results, also while an exploration writes it.
pub fn read(path: &Path) -> Result<Recorded, ExploreError> {
    let shown = path.display().to_string();
    let failed = |cause| ExploreError::File { what: format!("read {shown}"), cause };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LONGEST {
        return Err(ExploreError::Results(format!("{shown} is no file of results: it is too long for one")));
    }
    let content = Content::of(&shown, &bytes)?;
    let Some(header) = content.header else {
        return Err(ExploreError::Results(format!("{shown} has no results")));
    };
    let mut names = HashSet::new();
    for pattern in &header.patterns {
        if !names.insert(pattern.name.clone()) {
            return Err(wrong(&shown, 1, &format!("the pattern {:?} is there twice", pattern.name)));
        }
    }
    let mut seen = HashSet::new();
    let mut recorded = Recorded { header, runs: Vec::new(), failed: Vec::new(), was_cut: content.was_cut };
    for (number, line) in content.lines {
        match line {
            Line::Run(run) => {
                let wrong = |why: String| wrong(&shown, number, &why);
                if !names.contains(&run.pattern) {
                    return Err(wrong(format!("there is no pattern {:?} in the first line", run.pattern)));
                }
                if !recorded.header.io_nodes.contains(&run.io_nodes) {
                    let io_nodes = run.io_nodes;
                    return Err(wrong(format!(
                        "{io_nodes} I/O nodes are not among the numbers of the first line"
                    )));
                }
                if run.bandwidth < 0.0 || !run.bandwidth.is_finite() {
                    return Err(wrong(format!("{} is no bandwidth", run.bandwidth)));
                }
                // As in the report: of a run that is there twice, the first counts.
                if seen.insert((run.pattern.clone(), run.io_nodes, run.repetition)) {
                    recorded.runs.push(run);
                }
            }
            Line::Failed(run) => recorded.failed.push(run),
            Line::Exploration(_) | Line::Continued { .. } => {}
        }
    }
    Ok(recorded)
}

fn wrong(shown: &str, number: usize, why: &str) -> ExploreError {
    ExploreError::Results(format!("{shown}, line {number}: {why}"))
}

fn newer(line: &str) -> bool {
    let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    value["kind"] == "exploration" && value["version"].as_u64().is_some_and(|v| v > u64::from(VERSION))
}
