//! Patterns for names, as rsync's: `*` and `?` stop at slashes, `**` does not, `[...]` is a set.
//!
//! A pattern that begins with a slash holds for the whole path from the root of the copy; one with a slash
//! inside holds for the path's end; one without holds for the last name. A slash at the end restricts it to
//! directories.

/// One pattern.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    glob: Vec<u8>,
    anchored: bool,
    whole_path: bool,
    directories: bool,
}

impl Pattern {
    pub(crate) fn parse(text: &[u8]) -> Result<Pattern, String> {
        let shown = String::from_utf8_lossy(text);
        let (anchored, rest) = text.strip_prefix(b"/").map_or((false, text), |rest| (true, rest));
        let (directories, glob) = rest.strip_suffix(b"/").map_or((false, rest), |rest| (true, rest));
        if glob.is_empty() {
            return Err(format!("the pattern {shown:?} matches nothing: give a name, for example '*.tmp'"));
        }
        let mut at = 0;
        while let Some(byte) = glob.get(at) {
            at += match byte {
                b'[' => set_end(&glob[at..]).ok_or(format!("the pattern {shown:?} has a [ without a ]"))?,
                b'\\' => 2,
                _ => 1,
            };
        }
        let whole_path = anchored || glob.contains(&b'/') || glob.windows(2).any(|pair| pair == b"**");
        Ok(Pattern { glob: glob.to_vec(), anchored, whole_path, directories })
    }

    /// Whether it holds for a path relative to the root of the copy.
    pub(crate) fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        if self.directories && !is_directory {
            return false;
        }
        if self.anchored {
            return matches(&self.glob, path);
        }
        let mut starts = path.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at + 1);
        if self.whole_path {
            return starts.chain([0]).any(|start| matches(&self.glob, &path[start..]));
        }
        let start = starts.next_back().unwrap_or(0);
        matches(&self.glob, &path[start..])
    }
}

/// The length of the set that a glob begins with.
fn set_end(glob: &[u8]) -> Option<usize> {
    // A ] that comes first is a member.
    let first = if matches!(glob.get(1), Some(b'!' | b'^')) { 2 } else { 1 };
    glob.iter().skip(first + 1).position(|&byte| byte == b']').map(|at| at + first + 2)
}

fn in_set(set: &[u8], byte: u8) -> bool {
    let (negated, members) = match set.first() {
        Some(b'!' | b'^') => (true, &set[1..]),
        _ => (false, set),
    };
    let mut at = 0;
    let mut found = false;
    while at < members.len() {
        if let [low, b'-', high, ..] = members[at..] {
            found |= (low..=high).contains(&byte);
            at += 3;
        } else {
            found |= members[at] == byte;
            at += 1;
        }
    }
    found != negated
}

/// Whether a glob matches all of a text. Where several lengths of a `*` are possible, the last `*` of each
/// kind is tried again with one more byte, so that the time is the product of the lengths at most.
fn matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut g, mut t) = (0, 0);
    // Where to go on if what follows the last star does not match: behind the star, and what it has taken so
    // far.
    let mut star: Option<(usize, usize)> = None;
    let mut double: Option<(usize, usize)> = None;
    loop {
        let step = match glob.get(g) {
            Some(b'*') => {
                if glob.get(g + 1) == Some(&b'*') {
                    let mut after = g + 2;
                    while glob.get(after) == Some(&b'*') {
                        after += 1;
                    }
                    (double, star) = (Some((after, t)), None);
                    g = after;
                } else {
                    star = Some((g + 1, t));
                    g += 1;
                }
                continue;
            }
            None if t == text.len() => return true,
            None => None,
            Some(b'?') => text.get(t).filter(|byte| **byte != b'/').map(|_| 1),
            Some(b'[') => {
                let end = set_end(&glob[g..]).unwrap_or(1);
                let byte = text.get(t).filter(|byte| **byte != b'/');
                byte.filter(|byte| end > 2 && in_set(&glob[g + 1..g + end - 1], **byte)).map(|_| end)
            }
            Some(b'\\') if g + 1 < glob.len() => text.get(t).filter(|byte| **byte == glob[g + 1]).map(|_| 2),
            Some(byte) => text.get(t).filter(|other| *other == byte).map(|_| 1),
        };
        if let Some(step) = step {
            (g, t) = (g + step, t + 1);
            continue;
        }
        if let Some((after, taken)) = star.filter(|(_, taken)| text.get(*taken).is_some_and(|b| *b != b'/')) {
            star = Some((after, taken + 1));
            (g, t) = (after, taken + 1);
        } else if let Some((after, taken)) = double.filter(|(_, taken)| *taken < text.len()) {
            (double, star) = (Some((after, taken + 1)), None);
            (g, t) = (after, taken + 1);
        } else {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(pattern: &str, path: &str) -> bool {
        Pattern::parse(pattern.as_bytes()).expect("a pattern").matches(path.as_bytes(), false)
    }

    #[test]
    fn patterns_match_as_those_of_rsync() {
        for (pattern, path, expected) in [
            ("*.o", "a/b/c.o", true),
            ("*.o", "a.o/b", false),
            ("/a", "a", true),
            ("/a", "b/a", false),
            ("b/c", "a/b/c", true),
            ("b/c", "ab/c", false),
            ("a/*/c", "a/b/c", true),
            ("a/*/c", "a/b/b/c", false),
            ("a/**/c", "a/b/b/c", true),
            ("/x**", "x/y/z", true),
            ("[a-c]?[!0-9]", "bxy", true),
            ("[a-c]?[!0-9]", "bx7", false),
            ("[]]", "]", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("*a*b*", "xaybz", true),
            ("*a*b", "xaybz", false),
            ("", "", false),
        ] {
            if pattern.is_empty() {
                assert!(Pattern::parse(b"").is_err() && Pattern::parse(b"/").is_err());
            } else {
                assert_eq!(is(pattern, path), expected, "{pattern} {path}");
            }
        }
        let directories = Pattern::parse(b"tmp/").expect("a pattern");
        assert!(directories.matches(b"a/tmp", true) && !directories.matches(b"a/tmp", false));
        assert!(Pattern::parse(b"a[b").is_err());
    }

    #[test]
    fn many_stars_take_no_longer_than_the_lengths_multiplied() {
        let start = std::time::Instant::now();
        assert!(!is(&"*a".repeat(30), &"a".repeat(200).replace("aaaaa", "aaaab")));
        assert!(!is(&format!("{}c", "**a".repeat(30)), &"a".repeat(4000)));
        assert!(start.elapsed() < std::time::Duration::from_secs(10));
    }
}
