//! The jobs that are given on the command line: `FILE` for all patterns of a file of results, `FILE:PATTERN`
//! for one, and `NAME=FILE:PATTERN` for one under another name. Names of files may have colons and equals
//! signs in them: what is there as a file is one.

use super::explained;
use crate::error::Error;
use bivouac_explore::arbitrate::{self, Job};
use bivouac_explore::results;
use std::path::Path;

/// All of them. No two have the same name.
pub fn jobs(given: &[String]) -> Result<Vec<Job>, Error> {
    let mut all: Vec<(Job, &str)> = Vec::new();
    for text in given {
        let source = Source::of(text, &|path| Path::new(path).exists());
        for job in source.jobs()? {
            if let Some((_, other)) = all.iter().find(|(other, _)| other.name() == job.name()) {
                return Err(Error::refused(
                    format!("there are two jobs {:?}: of {other}, and of {text}", job.name()),
                    "give each a name of its own: `one=FILE:PATTERN other=FILE:PATTERN`",
                ));
            }
            all.push((job, text));
        }
    }
    Ok(all.into_iter().map(|(job, _)| job).collect())
}

/// What one word stands for.
#[derive(PartialEq, Eq, Debug)]
struct Source<'a> {
    name: Option<&'a str>,
    file: &'a str,
    pattern: Option<&'a str>,
}

impl<'a> Source<'a> {
    fn of(text: &'a str, exists: &dyn Fn(&str) -> bool) -> Source<'a> {
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) if !name.is_empty() && !name.contains('/') => (Some(name), rest),
            _ => (None, text),
        };
        let found = Source::there(None, text, exists).or_else(|| Source::there(name, rest, exists));
        // If nothing is there, what is missing is the file before the last colon.
        found.unwrap_or_else(|| match rest.rsplit_once(':') {
            Some((file, pattern)) => Source { name, file, pattern: Some(pattern) },
            None => Source { name, file: rest, pattern: None },
        })
    }

    /// The file that is there, or that is before one of the colons.
    fn there(name: Option<&'a str>, text: &'a str, exists: &dyn Fn(&str) -> bool) -> Option<Source<'a>> {
        if exists(text) {
            return Some(Source { name, file: text, pattern: None });
        }
        let mut split = text.match_indices(':').map(|(at, _)| text.split_at(at));
        let (file, pattern) = split.find(|(file, _)| exists(file))?;
        Some(Source { name, file, pattern: pattern.strip_prefix(':') })
    }

    fn jobs(&self) -> Result<Vec<Job>, Error> {
        let recorded = results::read(Path::new(self.file)).map_err(explained)?;
        if recorded.was_cut {
            eprintln!("bivouac: the last line of {} was cut, and does not count", self.file);
        }
        let jobs = arbitrate::jobs(self.file, &recorded, self.pattern).map_err(explained)?;
        match (self.name, jobs.as_slice()) {
            (None, _) => Ok(jobs),
            (Some(name), [job]) => Ok(vec![job.named(name)]),
            (Some(name), several) => Err(Error::refused(
                format!("{} has {} patterns, of which one is to be {name}", self.file, several.len()),
                format!("say which: `{name}={}:PATTERN`", self.file),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_a_file_whatever_its_name() {
        let there = ["r.jsonl", "a:b", "x=y", "x=y:z", "dir/k=v"];
        let of = |text| {
            let Source { name, file, pattern } = Source::of(text, &|path| there.contains(&path));
            (name, file, pattern)
        };
        assert_eq!(of("r.jsonl"), (None, "r.jsonl", None));
        assert_eq!(of("r.jsonl:A:1"), (None, "r.jsonl", Some("A:1")));
        assert_eq!(of("n=r.jsonl:A"), (Some("n"), "r.jsonl", Some("A")));
        assert_eq!(of("n=r.jsonl"), (Some("n"), "r.jsonl", None));
        assert_eq!(of("a:b"), (None, "a:b", None));
        assert_eq!(of("a:b:C"), (None, "a:b", Some("C")));
        assert_eq!(of("x=y:C"), (None, "x=y", Some("C")));
        assert_eq!(of("x=y:z"), (None, "x=y:z", None));
        assert_eq!(of("dir/k=v"), (None, "dir/k=v", None));
        assert_eq!(of("n=dir/k=v:A"), (Some("n"), "dir/k=v", Some("A")));
        assert_eq!(of("none:A"), (None, "none", Some("A")));
        assert_eq!(of("n=none"), (Some("n"), "none", None));
    }
}
