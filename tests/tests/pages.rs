//! Checks that every promise of the semantics page names tests, and that these tests exist.

use std::collections::HashSet;
use std::path::Path;

/// The names of all tests of the workspace.
fn tests_below(directory: &Path, found: &mut HashSet<String>) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            tests_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            let mut test = false;
            for line in text.lines().map(str::trim) {
                let name = line.strip_prefix("fn ").and_then(|rest| rest.split('(').next());
                match name {
                    Some(name) if test => _ = found.insert(name.to_owned()),
                    _ => {}
                }
                // Other attributes and comments may stand between.
                test = line == "#[test]" || test && (line.starts_with("#[") || line.starts_with("//"));
            }
        }
    }
}

/// The rows of the tables of a section, each as its cells.
fn rows<'p>(page: &'p str, section: &str) -> Vec<Vec<&'p str>> {
    let begin = page.find(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("no section {section}"));
    let rest = &page[begin + 4..];
    let rest = &rest[..rest.find("\n## ").unwrap_or(rest.len())];
    let tables = rest.lines().filter(|line| line.starts_with("| "));
    tables.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn every_statement_of_the_semantics_page_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let page = std::fs::read_to_string(root.join("docs/semantics.md")).expect("the page");
    let mut tests = HashSet::new();
    for directory in ["crates", "tests/tests"] {
        tests_below(&root.join(directory), &mut tests);
    }
    assert!(tests.len() > 400, "only {} tests are found", tests.len());

    let shown = rows(&page, "What shows it");
    let mut named = 0;
    for row in &shown[1..] {
        let names: Vec<&str> = row[1].split(',').map(|name| name.trim().trim_matches('`')).collect();
        for name in &names {
            assert!(tests.contains(*name), "{}: there is no test {name:?}", row[0]);
        }
        named += names.len();
    }
    assert!(named > 80, "only {named} tests are named");

    let statements: HashSet<&str> = shown.iter().map(|row| row[0]).collect();
    for section in ["Files", "Names"] {
        for row in &rows(&page, section)[1..] {
            assert!(statements.contains(row[0]), "nothing shows {:?} of the section {section}", row[0]);
        }
    }
    let rules = rows(&page, "What is relaxed, and why").len() - 1;
    let relaxed = statements.iter().filter(|statement| statement.starts_with("relaxed: ")).count();
    assert_eq!(relaxed, rules, "each relaxation has a row of its own");
    let numbered = page.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).count();
    let rules = statements.iter().filter(|statement| statement.starts_with("rule ")).count();
    assert_eq!(rules, numbered, "each rule has a row of its own");
}
