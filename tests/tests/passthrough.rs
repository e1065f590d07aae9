//! Files that the kernel reads and writes itself, because they are one local file.

use bivouac_tests::{Site, bivouac, eventually, finish, skip_part_unsupported, skipped_without_mount, tool};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// Where the server's storage is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Storage {
    /// Where it is if nothing is said.
    Memory,
    /// Where temporary files are, most often on a disk.
    Disk,
}

/// A deployment of one server, where every file in blocks is one local file, mounted by a process of this
/// one.
struct Mounted {
    site: Site,
    name: String,
    at: PathBuf,
    server: Child,
}

impl Mounted {
    fn new(test: &str, passthrough: &str, storage: Storage) -> Option<Mounted> {
        if skipped_without_mount() {
            return None;
        }
        let site = Site::new(test);
        let name = match storage {
            Storage::Memory => site.up(1),
            Storage::Disk => {
                std::fs::create_dir(site.path("storage")).expect("a directory");
                site.up_with(1, &["--storage", &site.path("storage").to_string_lossy()])
            }
        };
        let at = site.path("mount");
        std::fs::create_dir(&at).expect("a mount point");
        let mut command = site.command(["mount", &name, &at.to_string_lossy()]);
        let server = command.env("BIVOUAC_PASSTHROUGH", passthrough).spawn().expect("starts");
        let mounted = Mounted { site, name, at, server };
        eventually("it is mounted", || {
            let table = std::fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
            table.contains(&*mounted.at.to_string_lossy())
        });
        Some(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let pid = self.server.id() as i32;
        Site::kill(pid, Signal::CONT);
        Site::kill(pid, Signal::TERM);
        let _ = self.server.wait();
    }
}

/// Whether the kernel can do it; CI says if not.
fn can_pass_through(storage: Storage) -> bool {
    let stacked = |at: &Path| rustix::fs::statfs(at).expect("a file system").f_type as u64 == 0x794c_7630;
    if storage == Storage::Disk && stacked(&std::env::temp_dir()) {
        skip_part_unsupported("nothing is passed through to an overlayfs");
        return false;
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let new = (numbers.next(), numbers.next()) >= (Some(6), Some(9));
    let all = std::fs::read_to_string("/proc/self/uid_map").expect("numbers of users");
    let find = "zcat /proc/config.gz 2>/dev/null || cat /boot/config-$(uname -r) 2>/dev/null";
    let config = Command::new("sh").args(["-c", find]).output().expect("a shell").stdout;
    // A kernel that does not show how it was built is taken to have it.
    let built = config.is_empty() || String::from_utf8_lossy(&config).contains("CONFIG_FUSE_PASSTHROUGH=y");
    let possible = new && built && all.split_whitespace().eq(["0", "0", "4294967295"]);
    if !possible {
        skip_part_unsupported(
            "passing through needs Linux 6.9 with CONFIG_FUSE_PASSTHROUGH, and root outside of user namespaces",
        );
    }
    possible
}

#[test]
fn files_that_the_kernel_reads_and_writes_are_as_all_others_see_them() {
    for (passthrough, storage) in [("on", Storage::Memory), ("on", Storage::Disk), ("off", Storage::Memory)] {
        let Some(mounted) = Mounted::new("passthrough", passthrough, storage) else { return };
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(mounted.site.path(""), open).expect("set");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/passthrough.py");
        let mut command = Command::new("python3");
        command.arg(script).arg(&mounted.at).env("BIVOUAC_HOME", mounted.site.home());
        command.arg(bivouac()).args(["exec", &mounted.name, "--access", "preload", "--", "bash", "-c"]);
        // Where the mount has a page cache of its own, a mapping sees writes past the mount when the file is
        // opened anew.
        let different = "a mapping: (b'mapped', b'......'), not (b'mapped', b'others')\n";
        let different = if passthrough == "on" && can_pass_through(storage) { "" } else { different };
        assert_eq!(finish(command).ok(), format!("{different}the same\n"), "{passthrough} {storage:?}");
    }
}

/// What a program gets from a file in blocks while the mount's server is stopped.
fn read_without_the_server(mounted: &Mounted) -> Option<u8> {
    let file = std::fs::File::open(mounted.at.join("f")).expect("opened");
    let server = mounted.server.id() as i32;
    Site::stop(server);
    let (told, result) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut byte = [0];
        let read = std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 99_999);
        let _ = told.send(read.map(|()| byte[0]));
    });
    let read = result.recv_timeout(Duration::from_secs(3)).ok();
    Site::kill(server, Signal::CONT);
    reader.join().expect("it ends");
    read.map(|byte| byte.expect("read"))
}

#[test]
fn the_kernel_reads_and_writes_files_of_one_local_server_itself_unless_told_otherwise() {
    let memory = Storage::Memory;
    for (passthrough, storage, expected) in
        [("on", memory, Some(7)), ("on", Storage::Disk, Some(7)), ("off", memory, None)]
    {
        if !can_pass_through(storage) {
            continue;
        }
        let Some(mounted) = Mounted::new("passthrough-used", passthrough, storage) else { return };
        std::fs::write(mounted.at.join("f"), vec![7; 100_000]).expect("written");
        // The kernel does not wait for the server to hear of a close, before which the file is open in
        // another way.
        let mut attempts = (0..5).map(|_| {
            std::thread::sleep(Duration::from_millis(200));
            read_without_the_server(&mounted)
        });
        match expected {
            Some(_) => assert!(attempts.any(|read| read == expected), "{passthrough} {storage:?}"),
            None => assert_eq!(attempts.next(), Some(None), "{passthrough}"),
        }
    }
}

#[test]
fn fsx_finds_no_difference_where_the_kernel_reads_and_writes() {
    for (storage, seed) in [(Storage::Memory, "4"), (Storage::Memory, "5"), (Storage::Disk, "6")] {
        fsx(storage, seed);
    }
}

fn fsx(storage: Storage, seed: &str) {
    let Some(mounted) = Mounted::new("passthrough-fsx", "on", storage) else { return };
    let config = mounted.site.path("fsx.toml");
    let text = "flen = 150000\n[opsize]\nmax = 20000\nmin = 1\nalign = 1\n[weights]\nclose_open = 5\ninvalidate = 1\n\
                truncate = 10\nfsync = 1\nfdatasync = 1\nread = 10\nwrite = 10\nmapread = 10\nmapwrite = 10\n\
                copy_file_range = 5\nposix_fallocate = 5\npunch_hole = 5\nsendfile = 3\nposix_fadvise = 1\n";
    std::fs::write(&config, text).expect("written");
    let mut command = Command::new(tool("fsx"));
    command.args(["-q", "-N", "2000", "-S", seed, "-P"]).arg(mounted.site.path(""));
    command.arg("-f").arg(&config).arg(mounted.at.join(seed));
    finish(command).ok();
}
