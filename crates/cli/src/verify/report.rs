//! What `bivouac verify` prints.

use super::{Found, metadata_away};
use crate::error::Error;
use crate::text::{count, plural, size};
use bivouac_layout::{Ino, Map, ServerState};
use bivouac_proto::verify::{Fault, Finding, Outcome, Progress};
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Exit status: something is damaged or away, and was not repaired.
const DAMAGED: u8 = 1;

/// The result; its JSON is described in `docs/operations.md`.
#[derive(Serialize)]
pub struct Report {
    deployment: String,
    dry_run: bool,
    /// Copies of the metadata; files may have fewer.
    copies: u8,
    /// Copies of files, unless their directories say otherwise.
    replicas: u8,
    files: u64,
    bytes: u64,
    metadata_log_bytes: u64,
    metadata_copies: u64,
    skipped: u64,
    /// Servers that are not up, or did not answer.
    servers_not_checked: Vec<u16>,
    /// Shards that no server has that is up.
    metadata_away: usize,
    /// Servers neither came nor went meanwhile, and all that is there was looked at.
    complete: bool,
    repaired: usize,
    damaged: usize,
    findings: Vec<Entry>,
    /// Findings that are not listed, because there are too many.
    more: u64,
}

/// Findings of the same kind about the same thing.
#[derive(Serialize)]
struct Entry {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u16>,
    /// A metadata log's number, or a shard's.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
    /// Where the first one begins, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    /// Bytes in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    len: Option<u64>,
    outcome: &'static str,
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Seen => "seen",
        Outcome::Repaired => "repaired",
        Outcome::Damaged => "damaged",
    }
}

fn entry(finding: &Finding, paths: &BTreeMap<Ino, String>) -> Entry {
    let outcome = outcome_name(finding.outcome());
    let blank = Entry {
        kind: "",
        path: None,
        inode: None,
        server: None,
        number: None,
        offset: None,
        len: None,
        outcome,
    };
    match *finding {
        Finding::SubFile { ino, server, fault, offset, len, .. } => {
            let kind = match fault {
                Fault::Bytes => "bytes",
                Fault::Differs => "differs",
                Fault::Checksum => "checksum",
                Fault::Length => "length",
                Fault::Missing => "missing",
            };
            let (path, inode, server) = (paths.get(&ino).cloned(), Some(ino.0), Some(server.0));
            let (offset, len) =
                if fault == Fault::Missing { (None, None) } else { (Some(offset), Some(len)) };
            Entry { kind, path, inode, server, offset, len, ..blank }
        }
        Finding::Log { server, partition, .. } => {
            Entry { kind: "metadata-log", server: Some(server.0), number: Some(partition), ..blank }
        }
        Finding::Shard { shard, server, .. } => {
            let number = Some(shard.0.into());
            Entry { kind: "metadata-copy", server: Some(server.0), number, ..blank }
        }
        Finding::Away { ino } => {
            Entry { kind: "away", path: paths.get(&ino).cloned(), inode: Some(ino.0), ..blank }
        }
    }
}

/// What servers have done, for people.
pub fn amount(progress: &Progress) -> String {
    let Progress { files, bytes, log_bytes, .. } = progress;
    format!("{} files, {} of blocks, {} of metadata logs", count(*files), size(*bytes), size(*log_bytes))
}

impl Report {
    pub(super) fn new(
        name: &str,
        dry_run: bool,
        map: &Map,
        found: &Found,
        is_steady: bool,
        paths: &BTreeMap<Ino, String>,
    ) -> Report {
        let mut entries: Vec<Entry> = Vec::new();
        for entry in found.findings.iter().map(|finding| entry(finding, paths)) {
            let same = |known: &&mut Entry| {
                let key =
                    |entry: &Entry| (entry.kind, entry.inode, entry.server, entry.number, entry.outcome);
                key(known) == key(&entry)
            };
            match entries.iter_mut().rev().find(same) {
                Some(known) => {
                    known.offset = known.offset.min(entry.offset);
                    known.len = known.len.zip(entry.len).map(|(a, b)| a + b);
                }
                None => entries.push(entry),
            }
        }
        entries.sort_by(|a, b| (&a.path, a.inode, a.server).cmp(&(&b.path, b.inode, b.server)));
        let is_not_up = |server: &&bivouac_layout::Server| server.state != ServerState::Up;
        let away = map.servers.iter().filter(is_not_up).map(|server| server.id);
        let mut not_checked: Vec<u16> = away.chain(found.silent.iter().copied()).map(|id| id.0).collect();
        not_checked.sort_unstable();
        not_checked.dedup();
        let Progress { files, bytes, log_bytes, shards, skipped } = found.progress;
        let of = |outcome: &str| entries.iter().filter(|entry| entry.outcome == outcome).count();
        Report {
            deployment: name.into(),
            dry_run,
            copies: map.copies,
            replicas: map.replicas,
            files,
            bytes,
            metadata_log_bytes: log_bytes,
            metadata_copies: shards,
            skipped,
            servers_not_checked: not_checked,
            metadata_away: metadata_away(map),
            complete: is_steady && skipped == 0 && found.silent.is_empty(),
            repaired: of("repaired"),
            damaged: entries.len() - of("repaired"),
            findings: entries,
            more: found.more,
        }
    }

    pub fn print_json(&self) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| Error::System { what: "cannot print JSON".into(), cause: error.into() })?;
        println!("{text}");
        Ok(())
    }

    pub fn print(&self) {
        for entry in &self.findings {
            println!("{}", entry.line(self.dry_run));
        }
        if self.more > 0 {
            println!("and {} more", count(self.more));
        }
        let progress = Progress {
            files: self.files,
            bytes: self.bytes,
            log_bytes: self.metadata_log_bytes,
            ..Default::default()
        };
        let copies = match self.metadata_copies {
            0 => String::new(),
            number => format!(", {} copies of pieces of the metadata", count(number)),
        };
        println!("checked: {}{copies}", amount(&progress));
        if self.copies == 1 {
            println!(
                "there are no copies: of blocks, only presence and lengths were checked, and not what is in them"
            );
        } else if self.replicas == 1 {
            println!(
                "of files with one copy, only presence and lengths were checked, and not what is in them"
            );
        }
        for server in &self.servers_not_checked {
            println!("server {server} is not up, or did not answer: what it holds was not checked");
        }
        if self.metadata_away > 0 {
            println!(
                "{} of 4 096 pieces of the metadata are on servers only that are not up: files there are not listed",
                count(self.metadata_away as u64)
            );
        }
        if !self.complete {
            println!(
                "not everything could be compared, because servers came or went, or files changed all the time"
            );
        }
        println!("{}", self.conclusion());
    }

    fn conclusion(&self) -> String {
        let found = plural(self.findings.len(), "finding");
        match (self.findings.len(), self.damaged) {
            _ if self.findings.is_empty() && self.metadata_away > 0 => "nothing else was found".into(),
            (0, _) => "everything that was checked is as it should be".into(),
            (_, 0) => format!("{found}: everything was repaired"),
            (_, damaged) if self.dry_run => format!("{found}, {damaged} of them not repaired (--dry-run)"),
            (_, damaged) => format!("{found}, {damaged} of them could not be repaired"),
        }
    }

    /// 0: all is well, or repaired. 1: damage is left. 67: not everything could be checked.
    pub fn exit_code(&self) -> ExitCode {
        match () {
            () if self.damaged > 0 || self.metadata_away > 0 || self.more > 0 => ExitCode::from(DAMAGED),
            () if !self.complete => ExitCode::from(crate::error::exit::UNANSWERED),
            () => ExitCode::SUCCESS,
        }
    }
}

impl Entry {
    fn line(&self, dry_run: bool) -> String {
        let server = self.server.map_or(String::new(), |server| format!("server {server}"));
        let number = self.number.unwrap_or_default();
        let place = match (&self.path, self.inode) {
            (Some(path), _) => path.clone(),
            (None, Some(inode)) => format!("inode {inode:016x} (its path was not found)"),
            (None, None) => format!("metadata on {server}"),
        };
        let (len, offset) = (size(self.len.unwrap_or_default()), size(self.offset.unwrap_or_default()));
        let what = match self.kind {
            "bytes" => format!("{len} on {server}, from {offset} on, are not what was written"),
            "differs" => format!("{len} on {server}, from {offset} on, differ from the primary's"),
            "checksum" => format!("the checksums of {len} on {server}, from {offset} on, were wrong"),
            "length" => format!("what {server} holds ends too early or too late, from {offset} on"),
            "missing" => format!("what {server} held of it is gone"),
            "metadata-log" => format!("log {number} is damaged"),
            "metadata-copy" => format!("its copy of piece {number} differs from the primary's"),
            "away" => "has blocks on servers only that are not up".into(),
            other => other.into(),
        };
        let became = match self.outcome {
            "repaired" => ": repaired",
            "seen" if dry_run => ": not repaired (--dry-run)",
            _ if self.kind == "away" => "",
            _ => ": cannot be repaired",
        };
        format!("{place}: {what}{became}")
    }
}
