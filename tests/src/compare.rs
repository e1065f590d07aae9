//! The same script inside a deployment and on a local directory must do the same.

use crate::access::hiding;
use crate::{Finished, Site, accesses, finish};
use bivouac_testing::is_root;
use std::path::Path;
use std::process::Command;

/// How many servers the deployments of comparisons have.
const SERVERS: usize = 4;

/// The face of a directory of the backend that is forwarded; as root, to a node that does not see it.
const FORWARDED: &str = "forwarded";

/// What a script needs from its surroundings: where it works (`$D`), and where it finds input and may put
/// things that are not compared (`$S`, local in both cases).
const PROLOGUE: &str = "set -eu\nset -o pipefail\nexport LC_ALL=C TZ=UTC\numask 022\ncd \"$D\"\n";

/// Prints all that there is to see of a tree: names, kinds, modes, link counts, sizes, times of files,
/// targets of links, and the contents' sums.
pub fn manifest() -> &'static str {
    r#"find . -mindepth 1 \( -type d -printf '%P d %m\n' -o -type l -printf '%P l -> %l\n' -o -printf '%P %y %m %n %s\n' \) | sort
find . -type f -print0 | sort -z | xargs -0 -r sha256sum
"#
}

/// Runs `script` in an empty directory of a deployment, in each way of access, and in a local one, and
/// compares what all print and leave. Also in a directory of the backend that is forwarded. Answers what was printed.
#[track_caller]
pub fn same_as_local(name: &str, script: &str) -> String {
    let site = Site::new(name);
    prepare_input(&site.path("input"));
    let script = format!("{PROLOGUE}{script}\necho '--- left behind'\n{}", manifest());
    let local = run_local(&site, &script);
    let forwarded = site.path("site-storage");
    std::fs::create_dir(&forwarded).expect("makes a directory");
    let forwarded = forwarded.canonicalize().expect("there");
    let deployment = site.up(SERVERS);
    assert_eq!(
        local.code, 0,
        "the script fails on a local directory, so it proves nothing\n--- out\n{}\n--- err\n{}",
        local.out, local.err
    );
    let faces = accesses().iter().map(|access| (*access, *access, Path::new("/bivouac")));
    for (face, access, root) in faces.chain([(FORWARDED, "preload", &*forwarded)]) {
        if face == FORWARDED {
            site.bivouac(["forward", &deployment, &forwarded.to_string_lossy()]).ok();
        }
        let inside = run_inside(&site, &deployment, (face, access, root), &script);
        assert_eq!(
            inside.code, 0,
            "fails inside only ({face})\n--- out\n{}\n--- err\n{}",
            inside.out, inside.err
        );
        if local.out != inside.out {
            panic!(
                "not the same as on a local directory ({face})\n{}\n--- err inside\n{}",
                difference(&local.out, &inside.out),
                inside.err
            );
        }
        assert_eq!(local.err, inside.err, "other messages than on a local directory ({face})");
    }
    site.bivouac(["down", &deployment]).ok();
    site.assert_nothing_left(&deployment, &[]);
    local.out
}

fn run_local(site: &Site, script: &str) -> Finished {
    let work = site.path("work");
    std::fs::create_dir(&work).expect("makes a directory");
    let scratch = scratch(site, "scratch-local");
    let mut command = Command::new("bash");
    command.args(["-c", script]).env("D", &work).env("S", &scratch).env("INPUT", site.path("input"));
    neutral(finish(command), &work.to_string_lossy(), &scratch)
}

fn run_inside(
    site: &Site,
    deployment: &str,
    (face, access, root): (&str, &str, &Path),
    script: &str,
) -> Finished {
    let work = root.join("work").to_string_lossy().into_owned();
    site.sh(deployment, &format!("rm -rf {work}; mkdir {work}")).ok();
    let scratch = scratch(site, &format!("scratch-{face}"));
    let mut command = site.command(["exec", deployment, "--access", access, "--", "bash", "-c", script]);
    command.env("D", &work).env("S", &scratch).env("INPUT", site.path("input"));
    if face == FORWARDED && is_root() {
        command = hiding(root, &command);
    }
    neutral(finish(command), &work, &scratch)
}

fn scratch(site: &Site, name: &str) -> String {
    let scratch = site.path(name);
    std::fs::create_dir(&scratch).expect("makes a directory");
    scratch.to_string_lossy().into_owned()
}

/// Replaces what must differ: the paths.
fn neutral(mut finished: Finished, work: &str, scratch: &str) -> Finished {
    for text in [&mut finished.out, &mut finished.err] {
        *text = text.replace(work, "$D").replace(scratch, "$S");
    }
    finished
}

/// The first lines that differ.
fn difference(local: &str, inside: &str) -> String {
    let mut text = String::new();
    let (mut local, mut inside) = (local.lines(), inside.lines());
    let mut shown = 0;
    loop {
        let (a, b) = (local.next(), inside.next());
        if a.is_none() && b.is_none() || shown == 12 {
            return text;
        }
        if a != b {
            text.push_str(&format!("local:  {}\ninside: {}\n", a.unwrap_or("(end)"), b.unwrap_or("(end)")));
            shown += 1;
        }
    }
}

/// A tree with some of everything: headers of the system, empty and large files, holes, links, odd names and
/// modes.
fn prepare_input(input: &Path) {
    let script = r#"set -eu
mkdir -p "$1" && cd "$1"
cp -r /usr/include/linux headers
mkdir -p deep/a/b/c/d/e empty
: > zero
printf x > one
awk 'BEGIN { srand(7); for (i = 0; i < 200000; i++) print int(rand() * 1000000), i }' > numbers
seq 1 40000 > deep/a/b/c/seq
head -c 5000000 /dev/zero | tr '\0' 'z' > large
truncate -s 3000000 sparse && printf end >> sparse
mkdir names && cd names
printf 1 > 'with space'; printf 2 > '-dash'; printf 3 > "quote'\"s"; printf 4 > $'new\nline'; printf 5 > 'ümläut'; printf 6 > .hidden
cd ..
ln -s headers/fs.h link; ln -s deep/a dirlink; ln -s nowhere dangling
ln one hard
chmod 600 zero; chmod 755 large; chmod 444 deep/a/b/c/seq; chmod 2755 empty
find . -exec touch -h -d '2021-03-04 05:06:07' {} +
"#;
    let status = Command::new("bash").args(["-c", script, "bash"]).arg(input).status().expect("bash starts");
    assert!(status.success(), "the input cannot be made");
}
