//! Which entries of a tree are copied.
//!
//! What an exclude pattern holds for is left out, and what is below it; an include pattern makes an
//! exception. What is left out is not deleted at the destination either. A list of files restricts a copy to
//! these, the directories that lead to them, and what is below those of them that are directories.

use crate::pattern::Pattern;
use std::collections::HashMap;

/// Which entries of a tree are copied. The default: all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    /// Paths of a list of files, and those of the directories above them; whether one is in the list itself.
    only: Option<HashMap<Vec<u8>, bool>>,
}

impl Filter {
    /// From patterns, and the lines of a list of files.
    pub fn new(
        include: &[Vec<u8>],
        exclude: &[Vec<u8>],
        files: Option<&[Vec<u8>]>,
    ) -> Result<Filter, String> {
        if exclude.is_empty() && !include.is_empty() {
            return Err("include patterns are exceptions to exclude patterns, of which there are none: \
                        to copy certain files only, exclude all others, for example \
                        --include '*/' --include '*.dat' --exclude '*'"
                .into());
        }
        let parse = |patterns: &[Vec<u8>]| -> Result<Vec<Pattern>, String> {
            patterns.iter().map(|text| Pattern::parse(text)).collect()
        };
        let only = files.map(|files| {
            let mut only: HashMap<Vec<u8>, bool> = HashMap::new();
            for file in files {
                let names: Vec<&[u8]> =
                    file.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
                for length in 1..names.len() {
                    only.entry(names[..length].join(&b'/')).or_insert(false);
                }
                only.insert(names.join(&b'/'), true);
            }
            only
        });
        if only
            .as_ref()
            .is_some_and(|only| only.keys().any(|path| path.split(|b| *b == b'/').any(|n| n == b"..")))
        {
            return Err(
                "a list of files names something outside of the tree (..): paths are relative to SRC".into(),
            );
        }
        Ok(Filter { include: parse(include)?, exclude: parse(exclude)?, only })
    }

    /// Whether an entry is copied, if the directory that it is in is.
    pub(crate) fn takes(&self, path: &[u8], is_directory: bool) -> bool {
        !self.excludes(path, is_directory) && self.is_listed(path)
    }

    fn excludes(&self, path: &[u8], is_directory: bool) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(path, is_directory));
        any(&self.exclude) && !any(&self.include)
    }

    fn is_listed(&self, path: &[u8]) -> bool {
        let Some(only) = &self.only else { return true };
        if only.contains_key(path) || only.get(&b""[..]) == Some(&true) {
            return true;
        }
        let ends = path.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
        ends.into_iter().any(|end| only.get(&path[..end]) == Some(&true))
    }

    /// Whether a path is in the list of files itself.
    pub(crate) fn lists(&self, path: &[u8]) -> bool {
        self.only.as_ref().is_some_and(|only| only.get(path) == Some(&true))
    }

    /// The paths of the list of files.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.only.iter().flatten().filter(|(_, listed)| **listed).map(|(path, _)| path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn includes_are_exceptions_to_excludes() {
        let filter = Filter::new(&bytes(&["*/", "*.c"]), &bytes(&["*"]), None).expect("patterns");
        assert!(filter.takes(b"a", true) && filter.takes(b"a/x.c", false));
        assert!(!filter.takes(b"a/x.h", false));
        assert!(Filter::new(&bytes(&["*.c"]), &[], None).is_err());
    }

    #[test]
    fn a_list_of_files_takes_what_leads_to_them_and_what_is_below() {
        let filter = Filter::new(&[], &[], Some(&bytes(&["a/b", "/c/./d/"]))).expect("a list");
        for (path, expected) in [
            ("a", true),
            ("a/b", true),
            ("a/b/x/y", true),
            ("a/c", false),
            ("c/d", true),
            ("c/e", false),
            ("ab", false),
        ] {
            assert_eq!(filter.takes(path.as_bytes(), false), expected, "{path}");
        }
        assert!(Filter::new(&[], &[], Some(&bytes(&["../x"]))).is_err());
    }
}
