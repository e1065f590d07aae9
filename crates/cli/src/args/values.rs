//! The values that options take: what is right, and what is said of what is wrong.

use bivouac_layout::template;
use bivouac_node::names::{NAME_MAX, is_valid_mount, is_valid_name};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

/// A block size, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSize(pub u32);

impl std::fmt::Display for BlockSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&template::size_text(self.0))
    }
}

/// A number of servers; 0 means all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Width(pub u16);

/// A part in percent; `None`: never.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold(pub Option<u8>);

/// What a link carries, bytes per second; `None`: it is to be learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkSpeed(pub Option<u64>);

/// One tree to copy: from where, and to where if that was said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Source.
    pub src: PathBuf,
    /// Destination.
    pub dst: Option<PathBuf>,
}

pub(super) fn parse_name(text: &str) -> Result<String, String> {
    if is_valid_name(text) && !text.starts_with('-') {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "a deployment's name has 1 to {NAME_MAX} letters, digits, '.', '_' and '-', and starts with neither '.' nor '-'"
        ))
    }
}

pub(super) fn parse_mount(text: &str) -> Result<String, String> {
    let trimmed = text.trim_end_matches('/');
    if is_valid_mount(trimmed) && !trimmed.chars().any(char::is_control) {
        Ok(trimmed.to_owned())
    } else {
        Err("the mount path is an absolute path below /, without `//`, `.` and `..`, for example /bivouac"
            .into())
    }
}

/// `+2`, or `2`.
pub(super) fn parse_more(text: &str) -> Result<NonZeroU16, String> {
    let number = text.strip_prefix('+').unwrap_or(text);
    number.parse().map_err(|_| "how many more, for example +2".into())
}

pub(super) fn parse_fewer(text: &str) -> Result<NonZeroU16, String> {
    let number = text.strip_prefix('-').unwrap_or(text);
    number.parse().map_err(|_| "how many fewer, for example -2".into())
}

pub(super) fn parse_log_level(text: &str) -> Result<String, String> {
    match text.to_ascii_lowercase().as_str() {
        level @ ("error" | "warn" | "info" | "debug" | "trace") => Ok(level.to_owned()),
        _ => Err("one of error, warn, info, debug, trace".into()),
    }
}

pub(super) fn parse_block_size(text: &str) -> Result<BlockSize, String> {
    template::parse_size(text).map(BlockSize).map_err(|e| e.to_string())
}

/// Seconds of a phase of a pattern.
pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    let most = bivouac_explore::patterns::STONEWALL_MAX;
    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0 && *seconds <= most);
    seconds.ok_or_else(|| format!("seconds, up to {most}"))
}

/// Seconds, as milliseconds.
pub(super) fn parse_lease(text: &str) -> Result<u32, String> {
    let seconds: Option<f64> = text.parse().ok();
    let millis = seconds.map(|seconds| (seconds * 1000.0).round());
    let shortest = f64::from(bivouac_layout::LEASE_MIN);
    let fits = millis.filter(|millis| (shortest..=60_000.0).contains(millis));
    fits.map(|millis| millis as u32).ok_or_else(|| "seconds from 0.4 to 60".into())
}

pub(super) fn parse_heal_after(text: &str) -> Result<u32, String> {
    match text {
        "never" => Ok(0),
        _ => text.parse().ok().filter(|seconds| *seconds > 0).ok_or("seconds from 1, or `never`".into()),
    }
}

pub(super) fn parse_heal_rate(text: &str) -> Result<u64, String> {
    match text {
        "max" => Ok(0),
        _ => crate::bench::parse_size(text)
            .ok()
            .filter(|rate| *rate >= 1 << 20)
            .ok_or("bytes per second, 1M or more, for example 200M; or `max`".into()),
    }
}

/// A part in percent.
pub(super) fn parse_above(text: &str) -> Result<u8, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok();
    percent
        .filter(|percent| (1..=99).contains(percent))
        .ok_or("a part from 1% to 99%, for example 85%".into())
}

pub(super) fn parse_threshold(text: &str) -> Result<Threshold, String> {
    match text {
        "never" => Ok(Threshold(None)),
        _ => parse_above(text)
            .map(|percent| Threshold(Some(percent)))
            .map_err(|message| format!("{message}; or `never`")),
    }
}

/// Bits per second, in powers of ten as links are called, as bytes per second.
pub(super) fn parse_link_speed(text: &str) -> Result<LinkSpeed, String> {
    if text == "learned" {
        return Ok(LinkSpeed(None));
    }
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match &text[digits.len()..] {
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        _ => 0,
    };
    let number = digits.split_once('.').map_or((digits, "0"), |parts| parts);
    let tenths = || Some(number.0.parse::<u64>().ok()?.checked_mul(10)? + number.1.parse::<u64>().ok()?);
    let bits = tenths().filter(|_| number.1.len() == 1).and_then(|tenths| tenths.checked_mul(unit / 10));
    let bytes = bits.map(|bits| bits / 8).filter(|bytes| *bytes > 0);
    bytes.map(|bytes| LinkSpeed(Some(bytes))).ok_or_else(|| {
        "bits per second of a link, for example 10G (of 10 Gbit/s), 2.5G or 100M; or `learned`".into()
    })
}

/// A time between checkpoints.
pub(super) fn parse_interval(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => 0,
    };
    let seconds = digits.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    let time = seconds.filter(|seconds| *seconds > 0).map(|seconds| Duration::from_secs(seconds.into()));
    time.ok_or("a time from 1 s, for example 90s, 10m or 2h".into())
}

pub(super) fn parse_max_rate(text: &str) -> Result<u64, String> {
    crate::bench::parse_size(text)
        .ok()
        .filter(|rate| *rate >= 64 << 10)
        .ok_or("bytes per second, 64K or more, for example 200M".into())
}

pub(super) fn parse_width(text: &str) -> Result<Width, String> {
    template::parse_width(text).map(Width).map_err(|e| e.to_string())
}

pub(super) fn parse_preload(text: &str) -> Result<Copy, String> {
    parse_copy(text)
}

pub(super) fn parse_flush(text: &str) -> Result<Copy, String> {
    match parse_copy(text)? {
        Copy { dst: None, .. } => Err("say where to: SRC:DST".into()),
        copy => Ok(copy),
    }
}

/// Splits at the one colon that is not escaped.
pub(super) fn parse_copy(text: &str) -> Result<Copy, String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let last = parts.last_mut().ok_or("empty")?;
        match c {
            '\\' if chars.peek() == Some(&':') => last.extend(chars.next()),
            ':' => parts.push(String::new()),
            c => last.push(c),
        }
    }
    match <[String; 2]>::try_from(parts) {
        Ok([src, dst]) if !src.is_empty() && !dst.is_empty() => {
            Ok(Copy { src: src.into(), dst: Some(dst.into()) })
        }
        Ok(_) => Err("source or destination is empty".into()),
        Err(parts) => match <[String; 1]>::try_from(parts) {
            Ok([src]) if !src.is_empty() => Ok(Copy { src: src.into(), dst: None }),
            Ok(_) => Err("source is empty".into()),
            Err(_) => Err("more than one colon: write those that belong to a name as `\\:`".into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_multiples_of_4k_up_to_128m() {
        assert_eq!(parse_block_size("512K"), Ok(BlockSize(512 << 10)));
        assert_eq!(parse_block_size("128MiB"), Ok(BlockSize(128 << 20)));
        assert_eq!(parse_block_size("4096"), Ok(BlockSize(4096)));
        for bad in
            ["", "K", "0", "1K", "5000", "129M", "4G", "-4K", "99999999999999999999", "18014398509481984K"]
        {
            assert!(parse_block_size(bad).is_err(), "{bad}");
        }
        assert_eq!(BlockSize(512 << 10).to_string(), "512K");
        assert_eq!(BlockSize(4 << 20).to_string(), "4M");
    }

    #[test]
    fn intervals_have_units_and_rates_a_least() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200)] {
            assert_eq!(parse_interval(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "m", "0", "0m", "10d", "1.5h", "-1", "99999999h", "10 m", "ä"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_max_rate("1M"), Ok(1 << 20));
        assert!(parse_max_rate("1K").is_err() && parse_max_rate("fast").is_err());
    }

    #[test]
    fn thresholds_are_parts_and_links_are_called_by_bits() {
        assert_eq!(
            (parse_above("85%"), parse_above("1"), parse_threshold("never")),
            (Ok(85), Ok(1), Ok(Threshold(None)))
        );
        for bad in ["", "%", "0%", "100%", "-5%", "85.5%", "85%%", "never", "300"] {
            assert!(parse_above(bad).is_err(), "{bad}");
        }
        let speed = |text: &str| parse_link_speed(text).map(|speed| speed.0);
        assert_eq!((speed("10G"), speed("2.5G")), (Ok(Some(1_250_000_000)), Ok(Some(312_500_000))));
        assert_eq!((speed("100M"), speed("learned")), (Ok(Some(12_500_000)), Ok(None)));
        for bad in
            ["", "G", "0G", "10", "10g", "10Gbit", "-1G", "1.25G", ".G", "1.G", "ä", "99999999999999999999T"]
        {
            assert!(speed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn colons_in_names_can_be_written() {
        let copy = |src: &str, dst: Option<&str>| Copy { src: src.into(), dst: dst.map(Into::into) };
        assert_eq!(parse_copy("a:b"), Ok(copy("a", Some("b"))));
        assert_eq!(parse_copy("a"), Ok(copy("a", None)));
        assert_eq!(parse_copy(r"a\:1:b\:2"), Ok(copy("a:1", Some("b:2"))));
        assert_eq!(parse_copy(r"a\b"), Ok(copy(r"a\b", None)));
        for bad in ["", ":", "a:", ":b", "a:b:c"] {
            assert!(parse_copy(bad).is_err(), "{bad}");
        }
        assert!(parse_flush("a").is_err());
    }

    #[test]
    fn names_cannot_be_options_or_leave_their_directory() {
        for bad in ["", ".", "..", ".x", "-x", "a/b", "a b", "a\n"] {
            assert!(parse_name(bad).is_err(), "{bad:?}");
        }
        assert!(parse_name("job-17.x_Y").is_ok());
    }

    #[test]
    fn mounts_are_absolute_and_plain() {
        assert_eq!(parse_mount("/bivouac/"), Ok("/bivouac".into()));
        for bad in ["", "/", "//", "bivouac", "/a/../b", "/a//b", "/a\nb"] {
            assert!(parse_mount(bad).is_err(), "{bad:?}");
        }
    }
}
