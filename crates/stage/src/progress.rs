//! The progress bar: files, bytes, rate, time left. Nothing is shown where standard error is not a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::atomic::{AtomicU64, Ordering};

/// Shows how far a copy is.
pub(crate) struct Progress {
    bar: ProgressBar,
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
        Progress { bar, files: AtomicU64::new(0), found: AtomicU64::new(0) }
    }

    /// The walk found a file.
    pub(crate) fn found(&self, bytes: u64) {
        self.found.fetch_add(1, Ordering::Relaxed);
        self.bar.inc_length(bytes);
    }

    /// Bytes were copied.
    pub(crate) fn moved(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// A file is done.
    pub(crate) fn done(&self) {
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{files}/{}", self.found.load(Ordering::Relaxed)));
        }
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
