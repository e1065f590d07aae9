//! Storage that lost something: what is missing is an error that says so, and never a file that looks empty
//! or never was.

use bivouac_tests::{Site, eventually, run_dir};
use rustix::process::Signal;
use std::path::{Path, PathBuf};

/// A deployment of one server with files, whose daemons were killed.
fn killed(site: &Site) -> (String, PathBuf) {
    let name = site.up(1);
    site.sh(&name, "cd /bivouac || exit 1; for i in $(seq 200); do echo $i > small$i; done").ok();
    site.sh(
        &name,
        "cd /bivouac || exit 1; head -c 3000000 /dev/urandom > large; cp large other; truncate -s 1M hole",
    )
    .ok();
    kill(site, &name);
    let storage = run_dir(&name).join("storage-0");
    (name, storage)
}

fn kill(site: &Site, name: &str) {
    let pids: Vec<i32> = site.daemons(name).into_iter().map(|daemon| daemon.1).collect();
    pids.iter().for_each(|pid| Site::kill(*pid, Signal::KILL));
}

/// The longest file in a directory.
fn longest(directory: &Path) -> PathBuf {
    let files = std::fs::read_dir(directory).expect("is there").map(|entry| entry.expect("an entry").path());
    let logs = files.filter(|path| path.extension().is_some_and(|end| end == "log"));
    logs.max_by_key(|path| path.metadata().expect("is there").len()).expect("a log")
}

/// `up` fails, and says all of `words`.
fn refused(site: &Site, name: &str, words: &[&str]) {
    let up = site.bivouac(["up", name]);
    assert_ne!(up.code, 0, "{}", up.out);
    for word in words {
        assert!(up.err.contains(word), "no {word:?} in: {}", up.err);
    }
}

#[test]
fn a_metadata_log_that_was_truncated_or_removed_is_told_at_the_start_and_never_taken_for_all_there_was() {
    let site = Site::new("cut-log");
    let (name, storage) = killed(&site);
    let log = longest(&storage.join("meta"));
    let whole = std::fs::read(&log).expect("reads");
    let tenth = whole.len() / 10;
    let mark = log.with_extension("mark").display().to_string();
    std::fs::write(&log, &whole[..tenth]).expect("writes");
    refused(&site, &name, &[&log.display().to_string(), &whole.len().to_string(), &mark, "remove"]);
    std::fs::remove_file(&log).expect("removes");
    refused(&site, &name, &[&log.display().to_string(), "missing", &whole.len().to_string(), &mark]);
    std::fs::write(&log, &whole).expect("writes");
    site.bivouac(["up", &name]).ok();
    assert_eq!(site.sh(&name, "ls /bivouac | wc -l").ok().trim(), "203");
    kill(&site, &name);
    let aside = storage.join("aside");
    std::fs::rename(storage.join("meta"), &aside).expect("renames");
    refused(&site, &name, &["meta is missing"]);
    std::fs::rename(&aside, storage.join("meta")).expect("renames");
    // Somebody goes on with what is there.
    std::fs::write(&log, &whole[..tenth]).expect("writes");
    std::fs::remove_file(&mark).expect("removes");
    site.bivouac(["up", &name]).ok();
    site.sh(&name, "ls /bivouac > /dev/null").ok();
}

/// Removes a sub-file of one of the two large files.
fn lose_one(storage: &Path) {
    let directories = std::fs::read_dir(storage.join("sub")).expect("is there").flatten();
    let files = directories.flat_map(|d| std::fs::read_dir(d.path()).expect("is there").flatten());
    let large: Vec<PathBuf> = files
        .map(|file| file.path())
        .filter(|path| path.metadata().is_ok_and(|m| m.len() == 3_000_000))
        .collect();
    assert_eq!(large.len(), 2, "{large:?}");
    std::fs::remove_file(&large[0]).expect("removes");
}

/// What was lost stays so whatever the file's size, except if nothing is left of it.
#[test]
fn a_file_that_lost_a_part_can_be_truncated_and_is_whole_again_once_it_is_empty() {
    let site = Site::new("gone-truncated");
    let (name, storage) = killed(&site);
    lose_one(&storage);
    site.bivouac(["up", &name]).ok();
    let script = r"python3 -B - <<'END'
import os
os.chdir('/bivouac')
def attempt(*args):
    try: return os.truncate(*args)
    except OSError as error: return error.errno
def size_and_first(name):
    try: return os.path.getsize(name), len(open(name, 'rb').read(1))
    except OSError as error: return error.errno
for name in ('large', 'other'):
    print([(attempt(name, size), size_and_first(name)) for size in (1 << 20, 1 << 21, 0)])
END";
    let said = site.sh(&name, script).ok();
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "[(None, (1048576, 1)), (None, (2097152, 1)), (None, (0, 0))]",
            "[(None, 5), (None, 5), (None, (0, 0))]"
        ]
    );
    eventually("nothing is missed any more", || site.total(&name, "damaged") == 0);
}

#[test]
fn a_sub_file_that_is_gone_is_eio_and_status_says_so_and_a_hole_is_zeros() {
    let site = Site::new("gone-sub-file");
    let (name, storage) = killed(&site);
    lose_one(&storage);
    site.bivouac(["up", &name]).ok();
    assert_eq!(site.total(&name, "damaged"), 1);
    let told = site.bivouac(["status", &name]).ok();
    assert!(told.contains("server 0 has lost what it held of 1 file:"), "{told}");
    let script = "cd /bivouac || exit 1; for f in large other; do cat $f > /dev/null 2>&1 && echo whole || echo lost; done | sort
        cmp -n 1048576 hole /dev/zero && echo zeros";
    assert_eq!(site.sh(&name, script).ok(), "lost\nwhole\nzeros\n");
    // Also for who writes, and in a mount; and removing is what helps.
    let script = "cd /bivouac || exit 1; for f in large other; do
        dd if=/dev/zero of=$f bs=1 count=1 seek=5 conv=notrunc 2> /dev/null || { echo refused; rm $f && echo new > $f; }
    done; cat large other 2> /dev/null | grep -acx new";
    assert_eq!(site.sh(&name, script).ok(), "refused\n1\n");
    // Blocks of a removed file follow it a moment later.
    eventually("nothing is missed any more", || site.total(&name, "damaged") == 0);
}
