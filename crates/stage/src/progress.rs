//! The progress bar: files, bytes, rate, time left. Nothing is shown where standard error is not a terminal.
//!
//! What there is to copy is counted ahead of the copying. As long as that goes on, the number of files has a
//! `+` behind it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Shows how far a copy is.
pub(crate) struct Progress {
    bar: ProgressBar,
    shown: bool,
    counting: AtomicBool,
    files: AtomicU64,
    found: AtomicU64,
}

impl Progress {
    pub(crate) fn new(shown: bool, label: &str) -> Progress {
        let bar = ProgressBar::new(0);
        bar.set_draw_target(if shown {
            ProgressDrawTarget::stderr_with_hz(5)
        } else {
            ProgressDrawTarget::hidden()
        });
        let style =
            "{prefix} {msg} files  {bytes}/{total_bytes}  {binary_bytes_per_sec}  {wide_bar} {eta} left";
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(label.to_owned());
        let (files, found) = (AtomicU64::new(0), AtomicU64::new(0));
        Progress { bar, shown, counting: AtomicBool::new(true), files, found }
    }

    /// Whether the bar is shown, so that files have to be counted.
    pub(crate) fn is_shown(&self) -> bool {
        self.shown && !self.bar.is_hidden()
    }

    /// Whether counting goes on.
    pub(crate) fn is_counting(&self) -> bool {
        self.counting.load(Ordering::Relaxed)
    }

    /// Everything is counted, or the copy has ended.
    pub(crate) fn stop_counting(&self) {
        self.counting.store(false, Ordering::Relaxed);
    }

    /// A file was counted.
    pub(crate) fn found(&self, bytes: u64) {
        self.found.fetch_add(1, Ordering::Relaxed);
        self.bar.inc_length(bytes);
    }

    /// So many bytes of a file were copied.
    pub(crate) fn moved(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// A file is done.
    pub(crate) fn done(&self) {
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.bar.is_hidden() {
            let more = if self.is_counting() { "+" } else { "" };
            self.bar.set_message(format!("{files}/{}{more}", self.found.load(Ordering::Relaxed)));
        }
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Files and bytes that were counted so far.
    #[cfg(test)]
    pub(crate) fn counted(&self) -> (u64, u64) {
        (self.found.load(Ordering::Relaxed), self.bar.length().unwrap_or(0))
    }
}
