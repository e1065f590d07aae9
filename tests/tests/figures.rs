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
    let map = site.home().join(&name).join("map.json");
    let whole = fs::read(&map).expect("read");
    fs::write(&map, &whole[..whole.len() / 2]).expect("written");
    site.bivouac(["up", &name]).fails(65, &[&map.display().to_string(), "is damaged", "restore that file"]);
    fs::write(&map, &whole).expect("written");
}
