//! What the settings of a scheduler do to programs whose requests wait at an I/O node: the storage is slow on purpose.

use bivouac_tests::failing::{FailingDir, Fault, On, Slow};
use bivouac_tests::{Finished, Site, skipped_without_root};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// A deployment that forwards a directory through one I/O node.
fn up(site: &Site, directory: &Path, scheduler: &str) -> String {
    site.up_with(2, &["--forward", directory.to_str().expect("text"), "--scheduler", scheduler])
}

fn choose(site: &Site, name: &str, scheduler: &str) -> Finished {
    site.bivouac(["forward", name, "--scheduler", scheduler])
}

/// What `forward --json` says of the only I/O node: requests in and out.
fn counts(site: &Site, name: &str) -> (u64, u64) {
    let shown: serde_json::Value =
        serde_json::from_str(&site.bivouac(["forward", name, "--json"]).ok()).expect("JSON");
    let count = |key: &str| shown["io_nodes"][0][key].as_u64().expect("a number");
    (count("requests_in"), count("requests_out"))
}

#[test]
fn jobs_get_the_storage_in_the_proportion_of_their_weights() {
    if skipped_without_root("a slow directory is mounted") {
        return;
    }
    let storage = FailingDir::new("weights");
    let site = Site::new("weights");
    // Each write of a file keeps the only dispatcher for a while, so that others wait: long enough that every process has its next request
    // there before it is its turn again, on a busy machine, too.
    let name = up(&site, &storage.path(), "wfq,dispatchers=1,weight=large:4");
    storage.slow_down(Slow { paths: vec!["job".into()], on: On::WRITE, wait: Duration::from_millis(10) });
    // Four processes of each job write files of their own for three seconds, and say how many requests were answered.
    let script = format!(
        "import os, time
def write(job, n):
    os.environ['BIVOUAC_JOB'] = job
    os.execvp('python3', ['python3', '-c', f'''
import os, time
fd = os.open(\"{0}/job-{{job}}-{{n}}\", os.O_CREAT | os.O_WRONLY)
os.close({{ready}})
os.read({{go}}, 1)
count, end = 0, time.time() + 3
while time.time() < end:
    os.pwrite(fd, bytes(65536), 131072 * (count % 64)); count += 1
print(\"{{job}}\", count, flush=True)'''])
# All begin when all are there: when nobody has the one pipe any more, nobody has the other one.
(wait, ready), (go, begin) = os.pipe(), os.pipe()
for fd in (ready, go): os.set_inheritable(fd, True)
for job in ('large', 'small'):
    for n in range(4):
        if os.fork() == 0: write(job, n)
os.close(ready); os.read(wait, 1); os.close(begin)
for _ in range(8): assert os.wait()[1] == 0",
        storage.path().display()
    );
    let program = site.path("jobs.py");
    std::fs::write(&program, script).expect("written");
    let shares = || {
        let said = site.bivouac(["exec", &name, "--", "python3", program.to_str().expect("text")]).ok();
        let of = |job: &str| -> f64 {
            let counts = said.lines().filter_map(|line| line.strip_prefix(job)?.trim().parse::<f64>().ok());
            counts.sum()
        };
        of("large") / of("small")
    };
    let weighted = shares();
    assert!((3.0..5.5).contains(&weighted), "{weighted}");
    choose(&site, &name, "wfq,dispatchers=1").ok();
    let equal = shares();
    assert!((0.75..1.35).contains(&equal), "{equal}");
}

#[test]
fn as_many_requests_are_under_way_as_there_are_dispatchers() {
    if skipped_without_root("a slow directory is mounted") {
        return;
    }
    let storage = FailingDir::new("dispatchers");
    let site = Site::new("dispatchers");
    let name = up(&site, &storage.path(), "to,dispatchers=1");
    let here = storage.path().display().to_string();
    storage.slow_down(Slow { paths: vec!["slow".into()], on: On::WRITE, wait: Duration::from_millis(400) });
    let write = format!(
        "for i in 1 2 3 4; do : >> {here}/slow$i; done; begin=$(date +%s%N)
        for i in 1 2 3 4; do dd if=/dev/zero of={here}/slow$i bs=4096 count=1 conv=notrunc status=none & done; wait
        echo $(( ($(date +%s%N) - begin) / 1000000 )) ms"
    );
    let millis = || -> u64 {
        let said = site.sh(&name, &write).ok();
        let last = said.lines().last().and_then(|line| line.strip_suffix(" ms")?.parse().ok());
        last.expect("a number")
    };
    let one = millis();
    assert!(one >= 1600, "one after the other: {one}");
    choose(&site, &name, "to,dispatchers=4").ok();
    let four = millis();
    assert!(four < one && four < 1600, "together: {four}, not {one}");
    choose(&site, &name, "to,dispatchers=1").ok();
    assert!(millis() >= 1600);
}

#[test]
fn reads_are_joined_across_holes_only_where_that_is_asked_for() {
    if skipped_without_root("a slow directory is mounted") {
        return;
    }
    let storage = FailingDir::new("holes");
    let site = Site::new("holes");
    let name = up(&site, &storage.path(), "to,dispatchers=1,gap=64K");
    let script = format!(
        "import os, sys
path = '{}/shared'
def read(process):
    # Each process has every eighth of the pieces, and between two pieces there is what nobody reads.
    fd = os.open(path, os.O_RDONLY)
    for n in range(process, 512, 8):
        assert os.pread(fd, 4096, n << 16) == n.to_bytes(4, 'little') * 1024, n
for process in range(8):
    if os.fork() == 0: read(process); os._exit(0)
for _ in range(8): assert os.wait()[1] == 0",
        storage.path().display()
    );
    let program = site.path("holes.py");
    std::fs::write(&program, script).expect("written");
    let shared = std::fs::File::create(storage.behind().join("shared")).expect("a file");
    for n in 0..512u32 {
        let piece = n.to_le_bytes().repeat(1024);
        shared.write_all_at(&piece, u64::from(n) << 16).expect("written");
    }
    storage.slow_down(Slow { paths: vec!["shared".into()], on: On::READ, wait: Duration::from_millis(10) });
    let merged = || {
        // The kernel forgets what it has read before.
        storage.fail(Fault { paths: vec!["none".into()], on: On::READ, error: rustix::io::Errno::IO });
        let before = counts(&site, &name);
        site.bivouac(["exec", &name, "--", "python3", program.to_str().expect("text")]).ok();
        let after = counts(&site, &name);
        (after.0 - before.0, after.1 - before.1)
    };
    let (asked, issued) = merged();
    assert!(issued + 256 < asked, "joined: {asked} requests, {issued} at the storage");
    choose(&site, &name, "to,dispatchers=1").ok();
    let (asked, issued) = merged();
    assert!(issued + 40 > asked, "not joined: {asked} requests, {issued} at the storage");
}

#[test]
fn a_setting_that_cannot_be_is_refused_with_one_that_can() {
    let site = Site::new("settings");
    let directory = site.path("scratch");
    std::fs::create_dir_all(&directory).expect("a directory");
    let name = up(&site, &directory, "to");
    choose(&site, &name, "to,window=1ms")
        .fails(2, &["has no setting \"window\", but merge, gap, dispatchers"]);
    choose(&site, &name, "wfq,weight=3").fails(2, &["JOB:WEIGHT, for example simulation:3"]);
    choose(&site, &name, "twins,servers=0").fails(2, &["the number of the backend's servers"]);
    assert!(
        choose(&site, &name, "twins,servers=2,stripe=64K")
            .ok()
            .contains("scheduler twins,servers=2,stripe=64K")
    );
    assert_eq!(site.sh(&name, &format!("cd {}; echo x > x; cat x", directory.display())).ok(), "x\n");
}
