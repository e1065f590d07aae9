//! Takes what is measured: writes it to the file of results, shows on a terminal how far it is, and says once
//! whether page caches could be dropped.

use crate::text::plural;
use bivouac_explore::ExploreError;
use bivouac_explore::characterize::measure::Listener;
use bivouac_explore::characterize::results::{Line, Results};
use std::io::IsTerminal;
use std::time::Instant;

/// See the module.
pub struct Watch {
    results: Results,
    /// Measurements in all, and how many are done.
    all: usize,
    done: usize,
    began: Instant,
    shows: bool,
    /// Which storage's turn it is.
    turn: String,
    told_of_caches: bool,
    /// Floods that have lost something.
    pub lost: usize,
}

impl Watch {
    /// Nothing is measured yet.
    pub fn new(results: Results, all: usize) -> Watch {
        Watch {
            results,
            all,
            done: 0,
            began: Instant::now(),
            shows: std::io::stderr().is_terminal(),
            turn: String::new(),
            told_of_caches: false,
            lost: 0,
        }
    }

    /// A storage has its turn.
    pub fn turn(&mut self, storage: &str, repetition: u32, repetitions: u32) {
        self.turn = format!("{storage}, repetition {} of {repetitions}", repetition + 1);
    }

    /// Clears the line that shows how far it is.
    pub fn clear(&self) {
        if self.shows {
            eprint!("\r\x1b[K");
        }
    }
}

impl Listener for Watch {
    fn begins(&mut self, what: &str) {
        if !self.shows {
            return;
        }
        let each = self.began.elapsed().as_secs_f64() / self.done.max(1) as f64;
        let left = match (each * self.all.saturating_sub(self.done) as f64) as u64 {
            _ if self.done == 0 => String::new(),
            seconds @ 0..120 => format!(", {seconds} s left"),
            seconds => format!(", {} min left", seconds / 60),
        };
        eprint!("\r{} of {}{left}: {}: {what}\x1b[K", self.done + 1, self.all, self.turn);
    }

    fn result(&mut self, line: Line) -> Result<(), ExploreError> {
        self.done += 1;
        if let Line::Flood(flood) = &line
            && flood.whole < flood.files
        {
            self.lost += 1;
            self.clear();
            eprintln!(
                "bivouac: {} lost data: of {} small files {} were there afterwards, and {} had what was written",
                flood.storage, flood.files, flood.present, flood.whole
            );
        }
        self.results.add(&line)
    }

    fn dropped(&mut self, nodes: usize, of: usize) {
        if self.told_of_caches {
            return;
        }
        self.told_of_caches = true;
        self.clear();
        let words = if nodes == of {
            format!("page caches are dropped before reads on {}", plural(of, "node"))
        } else {
            format!(
                "page caches are dropped before reads on {nodes} of {}; elsewhere that is not allowed, and only what is read is \
                 dropped, as far as the kernel follows the hint",
                plural(of, "node")
            )
        };
        eprintln!("{words}");
    }
}
