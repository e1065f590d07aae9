//! Files that are open for reading and were not read yet. The descriptor of a file's blocks may have come with the answer to the
//! open: what has happened to the file's server, or to its place, until the first read, and who has no number left for it.

use bivouac_tests::signalled::Signalled;
use bivouac_tests::{Site, eventually};
use rustix::process::Signal;
use std::path::Path;

/// Opens files, and reads them when others have changed every other one.
const READS: &str = r#"
def content(i, round): return b"%d of %d, " % (round, i) * 500
for i in range(60): open(f"f{i}", "wb").write(content(i, 0))
opened = [os.open(f"f{i}", os.O_RDONLY) for i in range(60)]
say("opened")
wait("changed")
for i, fd in enumerate(opened):
    found = os.pread(fd, 1 << 20, 0)
    assert found == content(i, i % 2), (i, found[:20], len(found))
"#;

const CHANGES: &str = r#"
for i in range(1, 60, 2): open(f"f{i}", "r+b").write(b"1 of %d, " % i * 500)
"#;

/// `happens` between the opens, and the changes and reads.
fn opened_before(site: &Site, copies: &str, happens: impl FnOnce(&str)) {
    let name = site.up_with(3, &["--replicas", copies]);
    let mount = Path::new("/bivouac");
    let mut reads = Signalled::start_in(site, &name, "reads", READS, mount);
    reads.hears("opened");
    happens(&name);
    Signalled::start_in(site, &name, "changes", CHANGES, mount).ok();
    reads.say("changed");
    reads.ok();
    site.bivouac(["down", &name]).ok();
}

#[test]
fn what_was_opened_is_read_when_its_server_was_killed_and_started_again() {
    let mut site = Site::new("opened-restarted");
    site.restarts_servers();
    opened_before(&site, "1", |name| {
        for server in 0..3 {
            let pid = site.server_pid(name, server);
            Site::kill(pid, Signal::KILL);
            eventually("it is up again", || {
                let now = &site.status(name)["servers"][server as usize];
                now["state"] == "up" && now["pid"].as_i64().is_some_and(|now| now != i64::from(pid))
            });
        }
    });
}

#[test]
fn what_was_opened_is_read_when_its_server_is_dead_and_another_one_has_a_copy() {
    let site = Site::new("opened-dead");
    opened_before(&site, "2", |name| {
        Site::kill(site.server_pid(name, 1), Signal::KILL);
        eventually("it is down", || site.states(name)[1] == "down");
    });
}

#[test]
fn what_was_opened_is_read_when_its_blocks_have_moved_to_other_servers() {
    let site = Site::new("opened-moved");
    opened_before(&site, "1", |name| {
        site.bivouac(["expand", name, "--servers", "+2"]).ok();
        site.bivouac(["shrink", name, "--server", "0"]).ok();
    });
}

/// Opens files until there is no number left, whatever takes the numbers.
const FULL: &str = r#"
import resource
content = [b"%d, " % i * 1000 for i in range(100)]
for i in range(100): open(f"f{i}", "wb").write(content[i])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for turn in range(3):
    opened = []
    while True:
        try: opened.append(os.open(f"f{len(opened)}", os.O_RDONLY))
        except OSError as error:
            assert error.errno == errno.EMFILE, error
            break
    assert len(opened) > 25, len(opened)
    for i, fd in enumerate(opened): assert os.pread(fd, 1 << 20, 0) == content[i], i
    for fd in opened: os.close(fd)
"#;

#[test]
fn with_no_number_left_for_a_descriptor_files_are_read_all_the_same() {
    let site = Site::new("opened-full");
    let name = site.up(1);
    Signalled::start_in(&site, &name, "full", FULL, Path::new("/bivouac")).ok();
    site.bivouac(["down", &name]).ok();
}
