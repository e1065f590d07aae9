//! The progress bar: files, bytes, rate, time left. Nothing is shown where standard error is not a terminal.
//!
//! What there is to copy is counted while directories are listed. As long as that goes on, the number of
//! files has a `+` behind it.

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Shows how far a copy is.
pub(crate) struct Progress {
    bar: ProgressBar,
    counting: AtomicBool,
    files: AtomicU64,
    found: AtomicU64,
    /// Bytes of the files that were found.
    bytes: AtomicU64,
}

impl Progress {
    pub(crate) fn new(shown: bool, label: &str) -> Progress {
        // A bar of length 0 would be shown full.
        let bar = ProgressBar::no_length();
        bar.set_draw_target(if shown {
            ProgressDrawTarget::stderr_with_hz(5)
        } else {
            ProgressDrawTarget::hidden()
        });
        let style =
            "{prefix} {msg} files  {bytes}/{total_bytes}  {binary_bytes_per_sec}  {wide_bar} {left} left";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.with_key("left", time_left));
        bar.set_prefix(label.to_owned());
        let [files, found, bytes] = [0; 3].map(AtomicU64::new);
        let progress = Progress { bar, counting: AtomicBool::new(true), files, found, bytes };
        progress.show_files();
        progress
    }

    /// Whether counting goes on.
    fn is_counting(&self) -> bool {
        self.counting.load(Ordering::Relaxed)
    }

    /// Everything is counted, or the copy has ended.
    pub(crate) fn stop_counting(&self) {
        self.counting.store(false, Ordering::Relaxed);
    }

    /// A file was counted.
    pub(crate) fn found(&self, bytes: u64) {
        self.found.fetch_add(1, Ordering::Relaxed);
        self.bar.set_length(self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes);
        self.show_files();
    }

    /// So many bytes of a file were copied.
    pub(crate) fn moved(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// A file is done.
    pub(crate) fn done(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.show_files();
    }

    fn show_files(&self) {
        if !self.bar.is_hidden() {
            let [files, found] = [&self.files, &self.found].map(|number| number.load(Ordering::Relaxed));
            let more = if self.is_counting() { "+" } else { "" };
            self.bar.set_message(format!("{files}/{found}{more}"));
        }
    }

    /// Something is printed in between.
    pub(crate) fn pause(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// How long the rest will take; not known before something was copied.
fn time_left(state: &ProgressState, out: &mut dyn Write) {
    let _ = match state.pos() {
        0 => write!(out, "?"),
        _ => write!(out, "{:#}", HumanDuration(state.eta())),
    };
}
