//! How users name a scheduler: `to`, or with settings `aioli,quantum=128K,merge=4M`.
//!
//! A setting that a scheduler has no use for is an error, so that nobody believes to have changed something.

use crate::queue::Limits;
use crate::schedulers::{self, NAMES, Scheduler, Settings, USUAL};
use bivouac_layout::hash::job_number;
use std::str::FromStr;
use std::time::Duration;

/// Requests that are carried out at the backend at once, unless it is said otherwise.
pub const DISPATCHERS: usize = 16;
/// Most of them: each is a thread.
pub const MOST_DISPATCHERS: usize = 1024;

/// A scheduler with its settings.
#[derive(Clone, PartialEq, Debug)]
pub struct Spec {
    name: String,
    settings: Settings,
    /// Requests that are carried out at the backend at once at most.
    pub dispatchers: usize,
}

/// Why something names no scheduler; the text says what would.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecError(String);

impl std::fmt::Display for SpecError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

impl Default for Spec {
    fn default() -> Spec {
        Spec { name: USUAL.into(), settings: Settings::default(), dispatchers: DISPATCHERS }
    }
}

impl Spec {
    /// The scheduler, new.
    pub fn scheduler(&self) -> Box<dyn Scheduler> {
        schedulers::by_name(&self.name, &self.settings).unwrap_or_else(|| schedulers::usual(&self.settings))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        let known = keys(&self.name);
        if !known.contains(&key) {
            let (name, known) = (&self.name, known.join(", "));
            return Err(SpecError(format!("the scheduler {name} has no setting {key:?}, but {known}")));
        }
        let settings = &mut self.settings;
        let done = match key {
            "merge" => size(value).map(|bytes| settings.limits.bytes = bytes),
            "gap" => size(value).map(|gap| settings.limits.gap = gap),
            "quantum" => size(value).filter(|size| *size > 0).map(|size| settings.quantum = size),
            "stripe" => size(value).filter(|size| *size > 0).map(|size| settings.stripe = size),
            "turns" => positive(value).map(|turns| settings.turns = turns),
            "servers" => positive(value).map(|servers| settings.servers = servers),
            "window" => time(value).map(|window| settings.window = window),
            "patience" => time(value).map(|patience| settings.patience = patience),
            "weight" => value.rsplit_once(':').and_then(|(job, weight)| {
                let weight = positive(weight)?;
                settings.weights.insert(job_number(job), weight);
                Some(())
            }),
            "dispatchers" => positive(value)
                .map(|count| count as usize)
                .filter(|count| *count <= MOST_DISPATCHERS)
                .map(|count| self.dispatchers = count),
            _ => None,
        };
        done.ok_or_else(|| SpecError(format!("{key}={value:?} cannot be: {}", example(key))))
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default();
        if !NAMES.contains(&name) {
            return Err(SpecError(format!("there is no scheduler {name:?}, but {}", NAMES.join(", "))));
        }
        let mut spec = Spec { name: name.into(), ..Spec::default() };
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                let says = "a setting is KEY=VALUE after a comma, for example";
                return Err(SpecError(format!("{word:?} cannot be: {says} {name},dispatchers=32")));
            };
            spec.set(key, value)?;
        }
        Ok(spec)
    }
}

impl Limits {
    /// The settings that are about merging.
    const KEYS: [&'static str; 2] = ["merge", "gap"];
}

/// What a scheduler can be told.
fn keys(name: &str) -> Vec<&'static str> {
    let own: &[&str] = match name {
        "auto" => &["quantum", "weight"],
        "sjf" => &["patience"],
        "aioli" => &["quantum"],
        "mlf" => &["quantum", "patience"],
        "hbrr" => &["turns"],
        "twins" => &["window", "servers", "stripe"],
        "sw" => &["window"],
        "wfq" => &["weight"],
        _ => &[],
    };
    let merging: &[&str] = if name == "fifo" { &[] } else { &Limits::KEYS };
    own.iter().chain(merging).chain(&["dispatchers"]).copied().collect()
}

/// What a setting's value looks like.
fn example(key: &str) -> &'static str {
    match key {
        "merge" => "the longest request that is made of several, for example 4M",
        "gap" => "the longest hole across which two reads are joined, for example 64K, or 0",
        "quantum" => "the first turn of a file in bytes, for example 64K",
        "stripe" => "the bytes of a file in a row that a server of the backend has, for example 1M",
        "turns" => "the requests of a file's turn, for example 8",
        "servers" => "the number of the backend's servers, for example 4",
        "window" => "the length of a window, for example 2ms",
        "patience" => "how long a request waits at most while others are preferred, for example 1s",
        "weight" => {
            "JOB:WEIGHT, for example simulation:3, once for each job (programs name theirs in BIVOUAC_JOB)"
        }
        _ => "the requests that are carried out at once, from 1 to 1024",
    }
}

fn positive(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number > 0)
}

/// Bytes: a number, with K, M or G for powers of 1,024.
fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A time from a microsecond to an hour: a number with us, ms or s.
fn time(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(at);
    let micros = match unit {
        "us" => 1,
        "ms" => 1000,
        "s" => 1_000_000,
        _ => return None,
    };
    let micros = digits.parse::<u64>().ok()?.checked_mul(micros)?;
    (1..=3_600_000_000).contains(&micros).then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheduler_has_a_name_and_takes_its_settings() {
        for name in NAMES {
            assert_eq!(name.parse::<Spec>().expect("it is known").dispatchers, DISPATCHERS);
            for key in keys(name) {
                let value = match key {
                    "window" | "patience" => "20ms",
                    "weight" => "a:b:3",
                    _ => "64",
                };
                let spec: Spec = format!("{name},{key}={value}").parse().expect(key);
                assert_ne!(spec, name.parse().expect("it is known"), "{name} {key}: it changes something");
            }
        }
    }

    #[test]
    fn settings_are_what_was_written() {
        let spec: Spec =
            "twins,window=2ms,servers=4,stripe=512K,merge=4M,gap=1,dispatchers=3".parse().expect("right");
        let limits = Limits { bytes: 4 << 20, gap: 1 };
        let (window, servers, stripe) = (Duration::from_millis(2), 4, 512 << 10);
        assert_eq!(spec.settings, Settings { limits, window, servers, stripe, ..Settings::default() });
        assert_eq!(spec.dispatchers, 3);
        let spec: Spec = "wfq,weight=one:3,weight=two:5".parse().expect("right");
        assert_eq!(spec.settings.weights.get(&job_number("two")), Some(&5));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        for (text, says) in [
            ("best", "there is no scheduler \"best\", but auto, fifo"),
            ("", "there is no scheduler \"\""),
            ("to,", "KEY=VALUE"),
            ("to,gap", "KEY=VALUE"),
            ("to,window=1ms", "the scheduler to has no setting \"window\", but merge, gap, dispatchers"),
            ("fifo,gap=1", "has no setting \"gap\", but dispatchers"),
            ("to,gap=1x", "gap=\"1x\" cannot be: the longest hole"),
            ("to,gap=-1", "cannot be"),
            ("to,merge=99999999999G", "cannot be"),
            ("to,dispatchers=0", "from 1 to 1024"),
            ("to,dispatchers=9999", "from 1 to 1024"),
            ("aioli,quantum=0", "cannot be"),
            ("sw,window=1", "cannot be: the length of a window"),
            ("sw,window=0ms", "cannot be"),
            ("sw,window=9999999s", "cannot be"),
            ("wfq,weight=3", "JOB:WEIGHT"),
            ("wfq,weight=a:0", "JOB:WEIGHT"),
            ("twins,stripe=é", "cannot be"),
        ] {
            let said = text.parse::<Spec>().expect_err(text).to_string();
            assert!(said.contains(says), "{text}: {said}");
        }
    }
}
