//! The policy's log: one line for each thing that it did, or could not do, with what it saw.
//!
//! A line is `TIME EVENT | what it did and why | what it saw`. It is written whole. When the file is long it becomes
//! `policy.log.old`, and a new one begins.

use super::files::{LOG, LOG_BEFORE};
use crate::home::{Directory, read_own};
use crate::text::utc;
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// From this length on a new file is begun, bytes.
const LONG: u64 = 1 << 20;
/// Between the parts of a line.
const BAR: &str = " | ";

/// One line.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Entry {
    /// When, as `2026-01-31T23:59:59Z`.
    pub time: String,
    /// What kind of thing happened: `on`, `off`, `begin`, `end`, `grow`, `shrink`, `done`, `wait`, `skip`, `failed`.
    pub event: String,
    /// What was done and why, or what came of it.
    pub text: String,
    /// What was seen; empty where nothing was looked at.
    pub saw: String,
}

impl Entry {
    fn parse(line: &str) -> Option<Entry> {
        let mut parts = line.splitn(3, BAR);
        let (time, event) = parts.next()?.split_once(' ')?;
        let (text, saw) = (parts.next()?, parts.next().unwrap_or_default());
        Some(Entry { time: time.into(), event: event.into(), text: text.into(), saw: saw.into() })
    }

    /// The line.
    pub fn line(&self) -> String {
        let Entry { time, event, text, saw } = self;
        let rest = if saw.is_empty() { String::new() } else { format!("{BAR}{saw}") };
        format!("{time} {event}{BAR}{text}{rest}")
    }
}

/// Adds a line. If that is not possible (a full disk), the deployment goes on without it.
pub fn write(directory: &Directory, event: &str, text: &str, saw: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // What others have said may have several lines.
    let plain = |text: &str| text.replace('\n', "; ").replace(BAR, " ");
    let entry = Entry { time: utc(now.as_secs()), event: event.into(), text: plain(text), saw: plain(saw) };
    let path = directory.path.join(LOG);
    if std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.len() >= LONG) {
        let _ = std::fs::rename(&path, directory.path.join(LOG_BEFORE));
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let _ = options.open(&path).and_then(|mut file| file.write_all(format!("{}\n", entry.line()).as_bytes()));
}

/// The last few lines, the oldest first.
pub fn last(directory: &Directory, count: usize) -> Vec<Entry> {
    let read = |name| read_own(&directory.path.join(name)).unwrap_or_default();
    let text = [read(LOG_BEFORE), read(LOG)].concat();
    let text = String::from_utf8_lossy(&text);
    let mut entries: Vec<Entry> = text.lines().rev().filter_map(Entry::parse).take(count).collect();
    entries.reverse();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("bivouac-journal-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a directory");
        Directory { name: "job".into(), path }
    }

    #[test]
    fn what_is_written_is_read_back_also_what_has_several_lines() {
        let directory = scratch("back");
        assert_eq!(last(&directory, 5), []);
        write(&directory, "on", "switched on", "");
        write(&directory, "skip", "n5: ssh said\nno such host | really", "2 servers");
        std::fs::OpenOptions::new()
            .append(true)
            .open(directory.path.join(LOG))
            .and_then(|mut file| file.write_all(b"half a li"))
            .expect("a line that was cut");
        let found = last(&directory, 5);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].event.as_str(), found[0].saw.as_str()), ("on", ""));
        assert_eq!(found[1].text, "n5: ssh said; no such host really");
        assert_eq!(found[1].saw, "2 servers");
        assert_eq!(last(&directory, 1), found[1..]);
        std::fs::remove_dir_all(directory.path).expect("removed");
    }

    #[test]
    fn a_long_log_begins_anew_and_the_end_of_the_old_one_is_still_shown() {
        let directory = scratch("long");
        write(&directory, "on", "the first one", "");
        let mut long = std::fs::read(directory.path.join(LOG)).expect("read");
        long.resize(LONG as usize, b'\n');
        std::fs::write(directory.path.join(LOG), long).expect("written");
        write(&directory, "off", "the second one", "");
        let texts: Vec<String> = last(&directory, 9).into_iter().map(|entry| entry.text).collect();
        assert_eq!(texts, ["the first one", "the second one"]);
        assert!(std::fs::metadata(directory.path.join(LOG)).expect("there").len() < 100);
        std::fs::remove_dir_all(directory.path).expect("removed");
    }
}
