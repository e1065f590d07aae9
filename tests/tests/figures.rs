//! What the figures say: direct accesses, inodes, and why a deployment does not come back.

use bivouac_tests::Site;
use std::fs;

#[test]
fn direct_accesses_are_counted_also_those_of_killed_processes() {
    let site = Site::new("direct");
    let name = site.up(2);
    let direct = |what: &str| site.total(&name, what);
    let before = (direct("direct_bytes_read"), direct("direct_bytes_written"));
    assert_eq!(before, (0, 0));
    let script = "
import os, signal
f = os.open('/bivouac/f', os.O_RDWR | os.O_CREAT)
os.write(f, b'x' * (6 << 20))
for i in range(3): os.pread(f, 1 << 20, i << 20)
if os.fork() == 0:
    os.pwrite(f, b'y' * (1 << 20), 0)
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
os.kill(os.getpid(), signal.SIGKILL)
";
    assert_eq!(site.bivouac(["exec", &name, "--", "python3", "-B", "-c", script]).code, 128 + 9);
    assert_eq!(direct("direct_bytes_written"), 7 << 20);
    assert_eq!(direct("direct_bytes_read"), 3 << 20);
    // What goes through the servers is not counted twice.
    let mut remote = site.command(["exec", &name, "--", "dd", "if=/bivouac/f", "of=/dev/null", "bs=1M"]);
    remote.env("BIVOUAC_LOCAL", "0");
    bivouac_tests::finish(remote).ok();
    assert_eq!(direct("direct_bytes_read"), 3 << 20);
    assert_eq!(direct("bytes_read"), 6 << 20);
    let shown = site.bivouac(["status", &name]).ok();
    assert!(shown.contains("9.0 MiB") && shown.contains("7.0 MiB"), "{shown}");
}

#[test]
fn df_shows_the_inodes_that_there_are_and_that_there_is_room_for() {
    let site = Site::new("inodes");
    let name = site.up(2);
    let script = "
import os
def figures():
    s = os.statvfs('/bivouac'); return s.f_files - s.f_ffree, s.f_ffree, s.f_bavail * s.f_frsize
before = figures()
for i in range(500): open(f'/bivouac/{i}', 'w').close()
after = figures()
print(after[0] - before[0], before[0] < 10, 0 < after[1] <= after[2] // 4096 + 4096)
";
    for access in bivouac_tests::accesses() {
        site.sh(&name, "rm -f /bivouac/*").ok();
        let said =
            site.bivouac(["exec", &name, "--access", access, "--", "python3", "-B", "-c", script]).ok();
        assert_eq!(said, "500 True True\n", "{access}");
    }
}

#[test]
fn up_on_damaged_storage_names_the_file_and_what_can_be_done() {
    let site = Site::new("damaged");
    let storage = site.path("storage");
    fs::create_dir(&storage).expect("a directory");
    let name = site.up_with(1, &["--storage", &storage.display().to_string()]);
    site.sh(&name, "mkdir /bivouac/d; for i in $(seq 300); do echo $i > /bivouac/d/$i; done").ok();
    site.bivouac(["down", &name, "--keep"]).ok();
    let server = fs::read_dir(&storage).expect("listed").next().expect("one").expect("an entry").path();
    let logs = fs::read_dir(server.join("meta")).expect("listed").map(|e| e.expect("an entry").path());
    let used = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
    let log = logs
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
        .max_by_key(|path| used(&fs::read(path).expect("read")))
        .expect("a log");
    let whole = fs::read(&log).expect("read");
    let mut bytes = whole.clone();
    bytes[used(&whole) / 2] ^= 0x10;
    fs::write(&log, &bytes).expect("written");
    let path = log.display().to_string();
    site.bivouac(["up", &name])
        .fails(66, &[&path, "is damaged at byte", "Restore the file from a copy", "truncate -s"]);
    // Nothing was lost by trying.
    fs::write(&log, &whole).expect("written");
    site.bivouac(["up", &name]).ok();
    assert_eq!(site.sh(&name, "ls /bivouac/d | wc -l").ok().trim(), "300");
    site.bivouac(["down", &name, "--keep"]).ok();
    let map = site.home().join(&name).join("controller-0/journal");
    let whole = fs::read(&map).expect("read");
    let mut bytes = whole.clone();
    bytes[whole.len() / 2] ^= 0x10;
    fs::write(&map, &bytes).expect("written");
    site.bivouac(["up", &name]).fails(65, &[&map.display().to_string(), "is damaged", "restore that file"]);
    fs::write(&map, &whole).expect("written");
}

#[test]
fn what_follows_from_a_programs_own_changes_is_not_asked_for() {
    let site = Site::new("own-changes");
    let name = site.up(4);
    // In one directory, with a first look that is not counted.
    let script = "
import os, sys
os.chdir('/bivouac/' + sys.argv[1])
def one(name):
    f = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    assert os.fstat(f).st_size == 0
    os.write(f, b'x' * 100)
    assert os.fstat(f).st_size == 100
    os.fchmod(f, 0o644)
    assert os.fstat(f).st_mode & 0o777 == 0o644
    os.close(f)
    assert os.stat(name).st_size == 100 and os.stat('.').st_size == 1
    os.rename(name, name + '+')
    assert not os.path.exists(name)
    os.unlink(name + '+')
    assert os.stat('.').st_size == 0
for i in range(int(sys.argv[2])): one(f'{i}')
";
    for access in bivouac_tests::accesses() {
        site.sh(&name, &format!("mkdir /bivouac/{access}")).ok();
        let requests = |count: &str| {
            let of = || ["meta_operations", "data_operations"].map(|what| site.total(&name, what));
            let before = of();
            let args =
                ["exec", &name, "--access", access, "--", "python3", "-B", "-c", script, access, count];
            site.bivouac(args).ok();
            let after = of();
            [after[0] - before[0], after[1] - before[1]]
        };
        // What starting costs, and what is learned first, goes with the first ten.
        let (few, many) = (requests("10"), requests("110"));
        let each = [0, 1].map(|kind| (many[kind] - few[kind]) as f64 / 100.0);
        // Made, written, changed, closed, renamed, removed. (In `both` the library asks what the mount has
        // changed.)
        let bound = if *access == "both" { 12.0 } else { 7.5 };
        println!("{access}: {each:?} requests for each file");
        assert!(each[0] <= bound, "{access}: {} requests to the metadata for each file", each[0]);
        assert!(each[1] < 0.1, "{access}: {} requests for data of files that have no blocks", each[1]);
    }
}

#[test]
fn attributes_of_a_file_that_only_its_writer_has_open_are_set_without_asking_its_servers() {
    let site = Site::new("only-writer");
    let name = site.up(4);
    let script = "
import os, sys
for i in range(int(sys.argv[2])):
    f = os.open(f'/bivouac/{sys.argv[1]}.{i}', os.O_RDWR | os.O_CREAT, 0o600)
    os.write(f, b'x' * 10000)
    os.fchmod(f, 0o644); os.fchown(f, os.getuid(), os.getgid()); os.utime(f, (1, 1))
    os.close(f)
    s = os.stat(f'/bivouac/{sys.argv[1]}.{i}')
    assert (s.st_size, s.st_mtime, s.st_mode & 0o777) == (10000, 1, 0o644), s
";
    for access in bivouac_tests::accesses() {
        let requests = |count: &str| {
            let before = site.total(&name, "data_operations");
            let args =
                ["exec", &name, "--access", access, "--", "python3", "-B", "-c", script, access, count];
            site.bivouac(args).ok();
            site.total(&name, "data_operations") - before
        };
        let (few, many) = (requests("10"), requests("60"));
        let each = (many - few) as f64 / 50.0;
        // Where the sub-file is, and not its length on four servers three times. (A look right after the
        // close may find it open.)
        assert!(each <= 6.0, "{access}: {each} requests for data for each file");
    }
}
