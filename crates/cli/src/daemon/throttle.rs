//! Keeps a warning that repeats from filling the log.
//!
//! With a full disk, or if somebody connects without the key again and again, a daemon would log the same
//! message thousands of times a second. Of the messages of one place in the program, [`MOST`] are written in
//! each [`Throttle::window`]. The others are counted, and their number is written with the next line of any
//! kind after the window. This applies to warnings and errors only: less serious messages are not written
//! unless the user asked for them, and then the user wants all of them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Messages of one place that are written in each window.
const MOST: u64 = 10;

/// The window of a log that people read.
pub const WINDOW: Duration = Duration::from_secs(10);

/// What one place has said in its window.
struct Place {
    metadata: &'static Metadata<'static>,
    begun: Instant,
    said: u64,
}

/// A format of log lines that leaves some out.
pub struct Throttle<F> {
    inner: F,
    window: Duration,
    places: Mutex<HashMap<Identifier, Place>>,
}

impl<F> Throttle<F> {
    /// What `inner` formats, less what repeats too often within a window.
    pub fn new(inner: F, window: Duration) -> Throttle<F> {
        Throttle { inner, window, places: Mutex::default() }
    }

    /// Whether a message is to be written, and what was left out in windows that are over by now: the places,
    /// and how many messages of each.
    fn admit(
        &self,
        metadata: &'static Metadata<'static>,
        now: Instant,
    ) -> (bool, Vec<(&'static Metadata<'static>, u64)>) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = Vec::new();
        places.retain(|_, place| {
            let over = now.duration_since(place.begun) >= self.window;
            if over && place.said > MOST {
                left_out.push((place.metadata, place.said - MOST));
            }
            !over
        });
        if *metadata.level() > Level::WARN {
            return (true, left_out);
        }
        let fresh = || Place { metadata, begun: now, said: 0 };
        let place = places.entry(metadata.callsite()).or_insert_with(fresh);
        place.said += 1;
        (place.said <= MOST, left_out)
    }
}

impl<S, N, F> FormatEvent<S, N> for Throttle<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let (admitted, left_out) = self.admit(event.metadata(), Instant::now());
        for (place, count) in left_out {
            let (file, line) = (place.file().unwrap_or("?"), place.line().unwrap_or(0));
            writeln!(
                writer,
                "{} {}: {count} more messages like those before were not written ({file}:{line})",
                place.level(),
                place.target()
            )?;
        }
        if admitted { self.inner.format_event(context, writer, event) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_warning_that_repeats_is_written_some_times_and_then_counted() {
        let lines = Lines::default();
        let writer = lines.clone();
        let window = Duration::from_millis(300);
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .event_format(Throttle::new(tracing_subscriber::fmt::format(), window))
            .with_writer(move || writer.clone())
            .finish();
        let said = || String::from_utf8_lossy(&lines.0.lock().expect("not poisoned")).into_owned();
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..1000 {
                tracing::warn!(number, "the disk is full");
                tracing::info!(number, "asked for");
            }
            tracing::warn!("something else");
            assert_eq!(said().matches("the disk is full").count() as u64, MOST);
            assert_eq!(said().matches("asked for").count(), 1000);
            assert_eq!(said().matches("something else").count(), 1);
            std::thread::sleep(window);
            tracing::info!("stopped");
            assert!(said().contains("990 more messages like those before were not written"), "{}", said());
            tracing::warn!("once more");
            assert_eq!(said().matches("not written").count(), 1);
        });
    }
}
