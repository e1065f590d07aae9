//! One process of the load: does what it is told on standard input, and answers on standard output.
//!
//! When its input ends, nobody wants anything any more: it removes what it has made, and ends. SIGTERM and the like
//! end the work under way, so that it comes to that.

use crate::characterize::process;
use crate::load::Load;
use crate::protocol::{Answer, Order, Task, Work};
use bivouac_bench::interruption;
use std::io::{BufRead, Write};

/// Serves until it is told to end.
pub fn serve(input: impl BufRead, mut output: impl Write) {
    interruption::take();
    let mut orders = input.lines().map_while(Result::ok).map_while(|line| serde_json::from_str(&line).ok());
    let mut say = |answer: &Answer| {
        // If nobody listens, the next order does not come.
        let _ = serde_json::to_string(answer)
            .map(|line| writeln!(output, "{line}").and_then(|()| output.flush()));
    };
    match orders.next() {
        Some(Order::Begin(work, rank)) => match *work {
            Work::Run(task) => run(task, rank, orders, &mut say),
            Work::Storage(place) => process::serve(place, rank, orders, &mut say),
        },
        _ => say(&Answer::Failed("was not told what to do".into())),
    }
}

/// Does a process's part of a run.
fn run(task: Task, rank: u32, orders: impl Iterator<Item = Order>, say: &mut dyn FnMut(&Answer)) {
    let mut load = match Load::begin(task, rank) {
        Ok(load) => load,
        Err(why) => return say(&Answer::Failed(why)),
    };
    say(&Answer::Ready);
    for order in orders {
        let is_last = matches!(order, Order::End);
        let ready = |()| Answer::Ready;
        let done = match order {
            Order::Begin(..) | Order::Try(_) => Err("has begun already".into()),
            Order::Prepare(phase) => load.prepare(phase).map(Answer::Prepared),
            Order::Open(phase) => load.open(phase).map(ready),
            Order::Go { phase, prepared } => load.go(phase, prepared).map(Answer::Done),
            Order::Verify { phase, done } => load.verify(phase, &done).map(ready),
            Order::Clean(phase) => load.clean(phase).map(ready),
            Order::End => load.end().map(ready),
        };
        say(&done.unwrap_or_else(Answer::Failed));
        if is_last {
            return;
        }
    }
    load.give_up();
}
