//! Deployments with copies: servers die and come back, and programs do not notice.

use bivouac_tests::load::{BLOCKS, Done, Load, NAMES, all_in_step};
use bivouac_tests::{Site, accesses, eventually};
use rustix::process::Signal;
use std::time::Duration;

/// Kills servers and starts them again while a load runs. What it has done.
fn die_and_come_back(site: &Site, name: &str, load: &mut Load) -> Done {
    for server in [0, 1, 2, 0] {
        kill(site, name, server);
        std::thread::sleep(Duration::from_millis(300));
        restart(site, name, server);
    }
    load.stop()
}

fn restart(site: &Site, name: &str, server: u64) {
    site.bivouac(["restart", name, &server.to_string()]).ok();
    all_in_step(site, name);
}

#[test]
fn programs_do_not_notice_that_servers_die_and_come_back_while_the_metadata_has_copies() {
    let site = Site::in_memory("failover");
    for access in accesses() {
        let name = site.up_with(3, &["--metadata-replicas", "2"]);
        let command = site.command(["exec", &name, "--access", access, "--"]);
        let mut load = Load::start_by(command, &site, NAMES, access);
        let done = die_and_come_back(&site, &name, &mut load);
        load.succeeds();
        assert!(done.operations > 200.0, "{access}: only {done:?}");
        // Two seconds until it is certain that the server is dead, and a busy machine. Now and then one waits for the
        // 10 s after which a server refuses what is in another operation's way.
        assert!(done.worst < 15.0, "{access}: {done:?}");
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn every_copy_of_every_block_is_the_same_while_servers_die_and_come_back() {
    let site = Site::in_memory("blocks");
    for (servers, replicas) in [(3_u64, "2"), (4, "3")] {
        let name = site.up_with(servers as usize, &["--replicas", replicas, "--block-size", "64K"]);
        let mut load = Load::start(&site, &name, BLOCKS, &format!("blocks-{replicas}"));
        let done = die_and_come_back(&site, &name, &mut load);
        assert!(done.worst < 10.0, "{done:?}");
        // Each server is away once: then others show their copies of what it holds.
        for server in 0..servers {
            kill(&site, &name, server);
            load.sees_the_same(&format!("without server {server}"));
            restart(&site, &name, server);
        }
        load.succeeds();
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn locks_and_files_without_names_are_kept_over_a_failover() {
    let site = Site::in_memory("failover-state");
    let script = r#"
import errno, fcntl, os, sys, time
f = os.open('/bivouac/file', os.O_RDWR | os.O_CREAT)
os.write(f, b'content')
fcntl.lockf(f, fcntl.LOCK_EX)
os.rename('/bivouac/file', '/bivouac/gone')
os.unlink('/bivouac/gone')
g = os.open('/bivouac/kept', os.O_RDWR | os.O_CREAT)
fcntl.lockf(g, fcntl.LOCK_EX)
open(sys.argv[1] + '/holds', 'w').close()
while not os.path.exists(sys.argv[1] + '/killed'): time.sleep(0.01)
assert os.fstat(f).st_nlink == 0 and os.pread(f, 100, 0) == b'content'
pid = os.fork()
if pid == 0:
    h = os.open('/bivouac/kept', os.O_RDWR)
    try: fcntl.lockf(h, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e: os._exit(0 if e.errno in (errno.EAGAIN, errno.EACCES) else 2)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0, 'the lock is another one\'s'
os.write(g, b'more')
print('kept')
"#;
    let program = site.path("holder.py");
    std::fs::write(&program, script).expect("written");
    for victim in 0..3 {
        let name = site.up_with(3, &["--metadata-replicas", "2"]);
        let mark = |what: &str| site.path(what);
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                site.sh(&name, &format!("python3 -B {} {}", program.display(), site.path("").display())).ok()
            });
            eventually("it holds locks", || mark("holds").exists());
            Site::kill(site.server_pid(&name, victim), Signal::KILL);
            let state = || site.status(&name)["servers"][victim as usize]["state"].clone();
            eventually("status shows the dead server", || state() == "down");
            std::fs::write(mark("killed"), "").expect("written");
            assert_eq!(holder.join().expect("the holder"), "kept\n");
        });
        // Its process has ended, and with it its locks, whoever knows of them now.
        let after = "flock -w 20 /bivouac/kept true && python3 -c \"import fcntl; f = open('/bivouac/kept', 'r+'); fcntl.lockf(f, fcntl.LOCK_EX)\" && cat /bivouac/kept";
        assert_eq!(site.sh(&name, after).ok(), "more");
        site.bivouac(["down", &name]).ok();
        for what in ["holds", "killed"] {
            std::fs::remove_file(mark(what)).expect("removed");
        }
    }
}

#[test]
fn all_servers_may_die_and_come_back_with_what_was_acknowledged() {
    let site = Site::in_memory("all-die");
    let name = site.up_with(3, &["--metadata-replicas", "3"]);
    site.sh(&name, "cd /bivouac && mkdir d && for i in $(seq 50); do echo $i > d/f$i; done").ok();
    site.daemons(&name).iter().for_each(|(_, pid)| Site::kill(*pid, Signal::KILL));
    site.bivouac(["up", &name]).ok();
    let said = site.sh(&name, "cd /bivouac/d && ls | wc -l && cat f50 && echo new > f51 && cat f51").ok();
    assert_eq!(said, "50\n50\nnew\n");
    site.bivouac(["down", &name]).ok();
}

#[test]
fn copies_that_cannot_be_are_refused_and_the_error_says_what_can() {
    let site = Site::new("copies-refused");
    let up = |options: &[&str]| {
        let name = site.name("x");
        site.bivouac(["up", &name, "--servers", "2"].iter().chain(options))
    };
    up(&["--metadata-replicas", "3"])
        .fails(65, &["3 copies need as many servers, and there are 2", "--servers"]);
    up(&["--metadata-replicas", "9"]).fails(2, &["--metadata-replicas", "1..=8"]);
    assert!(site.deployments().is_empty(), "nothing is left of what was refused");
}

#[test]
fn a_file_has_as_many_copies_as_its_directory_says_and_no_more_than_the_metadata() {
    let site = Site::in_memory("replicas-layout");
    let name = site.up_with(4, &["--metadata-replicas", "3"]);
    let layout = |args: &[&str]| site.bivouac(["layout", "-d", &name].iter().chain(args));
    site.sh(&name, "mkdir /bivouac/two /bivouac/three").ok();
    layout(&["--replicas", "2", "/two"]).ok();
    layout(&["--replicas", "3", "/three"]).ok();
    layout(&["--replicas", "4", "/two"]).fails(65, &["replicas=4", "--metadata-replicas"]);
    let write = "for d in . two three; do head -c 4M /dev/urandom > /bivouac/$d/f; done; du -sb --apparent-size /bivouac/f";
    site.sh(&name, write).ok();
    for (path, copies) in [("/f", 1), ("/two/f", 2), ("/three/f", 3)] {
        let shown = layout(&[path]).ok();
        assert_eq!(shown.contains(&format!("replicas={copies}")), copies > 1, "{shown}");
    }
    let stored = |server: &serde_json::Value| server["stored"].as_u64().expect("a number");
    let sum = || site.status(&name)["servers"].as_array().expect("servers").iter().map(stored).sum::<u64>();
    assert_eq!(sum(), (1 + 2 + 3) * (4 << 20));
    // What is there once is what a program is told, however often it is stored.
    let disk = site.sh(&name, "du -sk /bivouac/three | cut -f1").ok();
    assert_eq!(disk.trim(), "4096");
    Site::kill(site.server_pid(&name, 2), Signal::KILL);
    eventually("status shows the dead server", || site.status(&name)["servers"][2]["state"] == "down");
    site.sh(&name, "cat /bivouac/two/f /bivouac/three/f > /dev/null && rm -r /bivouac/two /bivouac/three")
        .ok();
    assert_ne!(
        site.sh(&name, "cat /bivouac/f > /dev/null").code,
        0,
        "one copy is there only while its servers are"
    );
    site.bivouac(["restart", &name, "2"]).ok();
    all_in_step(&site, &name);
    site.sh(&name, "cat /bivouac/f > /dev/null").ok();
    eventually("what was removed meanwhile is gone from the server that was away", || sum() == 4 << 20);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn what_a_server_has_missed_it_gets_with_its_times_and_holes() {
    let site = Site::in_memory("missed");
    let name = site.up_with(2, &["--replicas", "2", "--block-size", "64K"]);
    let file = "/bivouac/f";
    site.sh(&name, &format!("head -c 1000000 /dev/urandom > {file}; cp {file} {file}2; cp {file} {file}3"))
        .ok();
    Site::kill(site.server_pid(&name, 0), Signal::KILL);
    eventually("status shows the dead server", || site.status(&name)["servers"][0]["state"] == "down");
    // A hole, a file that ends in one, one that is shorter, and a new one.
    let change = "cd /bivouac && fallocate -p -o 65536 -l 400000 f && truncate -s 200000 f2 && truncate -s 900000 f2 && \
         truncate -s 3 f3 && head -c 300000 /dev/urandom > new";
    site.sh(&name, change).ok();
    let look = "cd /bivouac && stat -c '%n %s %Y' * && md5sum * && du -k f f2 f3 new";
    let before = site.sh(&name, look).ok();
    std::thread::sleep(Duration::from_millis(1100));
    site.bivouac(["restart", &name, "0"]).ok();
    all_in_step(&site, &name);
    Site::kill(site.server_pid(&name, 1), Signal::KILL);
    eventually("status shows the dead server", || site.status(&name)["servers"][1]["state"] == "down");
    assert_eq!(site.sh(&name, look).ok(), before);
    site.bivouac(["down", &name]).ok();
}

/// Kills a server, and waits until that is known.
fn kill(site: &Site, name: &str, server: u64) {
    Site::kill(site.server_pid(name, server), Signal::KILL);
    eventually("status shows the dead server", || {
        site.status(name)["servers"][server as usize]["state"] == "down"
    });
}

/// Makes files of all sizes, and prints their checksums.
const FILES: &str = "mkdir -p /bivouac/d/e && cd /bivouac/d && for i in $(seq 40); do head -c $((i * i * 1000)) /dev/urandom > e/$i; \
    echo $i > $i; done && ln -s e/5 link && find . -type f | sort | xargs md5sum";

#[test]
fn others_take_the_place_of_a_server_that_does_not_come_back() {
    let site = Site::in_memory("heal");
    for heal_after in ["never", "1"] {
        let name = site.up_with(4, &["--replicas", "2", "--heal-after", heal_after, "--block-size", "64K"]);
        let sums = site.sh(&name, FILES).ok();
        let look = "cd /bivouac/d && find . -type f | sort | xargs md5sum";
        site.bivouac(["heal", &name]).ok();
        kill(&site, &name, 2);
        match heal_after {
            "never" => {
                assert!(site.status(&name)["incomplete"].as_u64() > Some(0));
                let said = site.bivouac(["heal", &name]).ok();
                assert_eq!(
                    said,
                    "server 2 given up: others get what it held\neverything has all its copies\n"
                );
            }
            _ => {
                eventually("others have what it held", || {
                    let status = site.status(&name);
                    status["servers"][2]["given_up"] == true && status["incomplete"] == 0
                });
            }
        }
        let status = site.status(&name);
        assert_eq!((&status["state"], &status["incomplete"]), (&"running".into(), &0.into()));
        // Any other one may die now.
        kill(&site, &name, 0);
        assert_eq!(site.sh(&name, look).ok(), sums, "with --heal-after {heal_after}");
        site.sh(&name, "cd /bivouac/d && rm -r e && mkdir new && head -c 1M /dev/urandom > new/f").ok();
        site.bivouac(["heal", &name]).ok();
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn who_had_the_last_changes_is_given_up_only_if_the_loss_is_accepted() {
    let site = Site::in_memory("heal-loss");
    let name = site.up_with(4, &["--replicas", "2", "--heal-after", "never"]);
    site.sh(&name, FILES).ok();
    let (two, three) = (site.server_pid(&name, 2), site.server_pid(&name, 3));
    // Both at once: some things had copies on these two only.
    kill(&site, &name, 0);
    kill(&site, &name, 1);
    let heal = |options: &[&str]| site.bivouac(["heal", &name].iter().chain(options));
    heal(&[]).fails(65, &["server 0, 1", "would be lost", "--accept-loss", "bivouac restart"]);
    assert!(
        site.status(&name)["servers"].as_array().expect("servers").iter().all(|s| s["given_up"] == false)
    );
    heal(&["--accept-loss"]).ok();
    assert_eq!(site.status(&name)["incomplete"], 0);
    site.sh(
        &name,
        "mkdir -p /bivouac/new && head -c 1M /dev/urandom > /bivouac/new/f && cat /bivouac/new/f > /dev/null",
    )
    .ok();
    kill(&site, &name, 2);
    heal(&[]).fails(65, &["1 server", "2 copies", "bivouac restart"]);
    assert_eq!((site.server_pid(&name, 3), site.server_pid(&name, 2)), (three, two));
    site.bivouac(["down", &name]).ok();
    let single = site.up(2);
    kill(&site, &single, 1);
    site.bivouac(["heal", &single]).fails(65, &["one copy", "bivouac restart"]);
    site.bivouac(["down", &single]).ok();
}

/// Reads all files whose sums are in a file: each has to be what it was, or an error. Those with EIO are removed and made
/// anew. Prints how many were right, gave EIO, and had no name any more.
const WHAT_IS_LEFT: &str = r#"
import errno, hashlib, os, sys
counts = {0: 0, errno.EIO: 0, errno.ENOENT: 0}
for line in open(sys.argv[1]):
    sum, path = line.split()
    try:
        with open(path, 'rb') as f: found = hashlib.md5(f.read()).hexdigest()
        if found != sum: sys.exit(f'{path} is not what it was')
        counts[0] += 1
    except OSError as e:
        counts[e.errno] += 1
        if e.errno != errno.EIO: continue
        os.unlink(path)
        content = os.urandom(300 << 10)
        with open(path, 'wb') as f: f.write(content)
        with open(path, 'rb') as f: assert f.read() == content, path
print(*counts.values())
"#;

#[test]
fn what_no_server_has_any_more_is_an_error_and_never_zeros() {
    let site = Site::in_memory("gone");
    let name = site.up_with(4, &["--replicas", "2", "--heal-after", "never", "--block-size", "64K"]);
    let (program, sums) = (site.path("left.py"), site.path("sums"));
    std::fs::write(&program, WHAT_IS_LEFT).expect("written");
    let make = "cd /bivouac && for d in $(seq 20); do mkdir $d; for f in a b; do head -c 300K /dev/urandom > $d/$f; done; done";
    site.sh(&name, &format!("{make} && md5sum /bivouac/*/* > {}", sums.display())).ok();
    // Not those that have the root.
    kill(&site, &name, 2);
    kill(&site, &name, 3);
    // Files whose inodes are there are named, with their paths where these are there, too.
    let named = |said: &str| -> u32 {
        let line = said.lines().find(|line| line.contains("blocks, or their newest changes"));
        let count = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        count.unwrap_or_else(|| panic!("no count: {said}"))
    };
    let refused = site.bivouac(["heal", &name]);
    let (lost, paths) = (named(&refused.err), refused.err.matches("  /bivouac/").count());
    assert!(
        paths > 0 && refused.err.contains("pieces of the metadata are on no other server"),
        "{}",
        refused.err
    );
    refused.fails(65, &["--accept-loss"]);
    let healed = site.bivouac(["heal", &name, "--accept-loss"]);
    assert_eq!(named(&healed.err), lost);
    healed.ok();
    assert_eq!(site.status(&name)["incomplete"], 0);
    let found = site.bivouac(["verify", &name, "--json"]);
    assert_eq!((found.code, found.out.matches("\"away\"").count() as u32), (1, lost), "{}", found.out);
    let look = || {
        let said = site.sh(&name, &format!("python3 {} {}", program.display(), sums.display())).ok();
        let counts: Vec<u32> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        println!("right, EIO, no name: {counts:?}");
        counts
    };
    let [right, gone, nameless] = look()[..] else { panic!("three counts") };
    assert_eq!(right + gone + nameless, 40);
    assert!(right > 0 && gone > 0, "{right} right, {gone} gone");
    assert!(
        (gone..=gone + nameless).contains(&lost),
        "{lost} were named, {gone} gave EIO, {nameless} had no name"
    );
    // Those that come back have what they had, and it is not believed.
    site.bivouac(["restart", &name, "2", "3"]).ok();
    all_in_step(&site, &name);
    site.bivouac(["verify", &name]).ok();
    site.bivouac(["down", &name]).ok();
}

#[test]
fn changes_that_too_few_would_have_are_refused_and_reading_goes_on() {
    let site = Site::in_memory("min-copies");
    let name = site.up_with(3, &["--replicas", "2", "--min-copies", "2", "--heal-after", "never"]);
    site.sh(&name, FILES).ok();
    kill(&site, &name, 1);
    let read = "cd /bivouac/d && cat e/* [0-9]* > /dev/null && ls -lR > /dev/null";
    site.sh(&name, read).ok();
    let change = "cd /bivouac/d && for i in $(seq 20); do echo x > new$i || exit 1; done";
    assert_ne!(site.sh(&name, change).code, 0, "some of them would have one copy");
    let write = "cd /bivouac/d && for i in $(seq 30 40); do dd if=/dev/zero of=e/$i bs=64K count=4 conv=notrunc || exit 1; done";
    assert_ne!(site.sh(&name, write).code, 0);
    site.bivouac(["restart", &name, "1"]).ok();
    all_in_step(&site, &name);
    site.sh(&name, &format!("{change} && {write}")).ok();
    site.bivouac(["down", &name]).ok();
    let up = |options: &[&str]| site.bivouac(["up", "x", "--servers", "2"].iter().chain(options));
    up(&["--replicas", "2", "--min-copies", "3"]).fails(65, &["no change could have 3 copies"]);
}

#[test]
fn a_server_is_restarted_on_request_with_what_it_has() {
    let site = Site::in_memory("restart");
    let name = site.up(2);
    let make = "head -c 3000000 /dev/urandom > /bivouac/large; md5sum /bivouac/large | cut -c1-32";
    let before = site.sh(&name, make).ok();
    for (number, dies) in [(0, false), (1, true)] {
        let pid = site.server_pid(&name, number);
        if dies {
            Site::kill(pid, Signal::KILL);
        }
        assert_eq!(
            site.bivouac(["restart", &name, &number.to_string()]).ok(),
            format!("server {number} of {name} is back\n")
        );
        assert_ne!(site.server_pid(&name, number), pid);
        assert_eq!(site.sh(&name, "md5sum /bivouac/large | cut -c1-32").ok(), before);
    }
    site.bivouac(["restart", &name, "7"]).fails(65, &["no server 7", "2 servers"]);
    site.bivouac(["down", "--keep", &name]).ok();
    site.bivouac(["restart", &name, "0"]).fails(65, &["does not run", "bivouac up"]);
    site.bivouac(["down", &name]).ok();
    site.bivouac(["restart", &name, "0"]).fails(64, &[&name]);
}

/// Reads all files whose contents were "old" first, and "new" since: prints how many are new, and how many give EIO. Old ones, and
/// names that have been removed, are a failure.
const NEW_OR_NOTHING: &str = r#"
import errno, os
new = failed = 0
for n in range(60):
    try:
        with open(f'/bivouac/l/{n}/f', 'rb') as f: content = f.read()
        assert content == b'new' * 50000, (n, content[:9])
        new += 1
    except OSError as e:
        assert e.errno == errno.EIO, (n, e)
        failed += 1
    try: assert not os.path.lexists(f'/bivouac/l/{n}/gone') or os.stat(f'/bivouac/l/{n}/gone') is None, n
    except OSError as e: assert e.errno == errno.EIO, (n, e)
print(new, failed)
"#;

#[test]
fn who_was_away_when_the_last_changes_were_made_does_not_show_what_was_before() {
    let site = Site::in_memory("last-writer");
    let name = site.up_with(3, &["--replicas", "2", "--heal-after", "never", "--block-size", "64K"]);
    let fill = |what: &str| {
        format!(
            "import os\nfor n in range(60):\n    os.makedirs(f'/bivouac/l/{{n}}', exist_ok=True)\n    with open(f'/bivouac/l/{{n}}/f', 'wb') as f: f.write(b'{what}' * 50000)\n"
        )
    };
    let python = |script: &str| {
        let path = site.path("script.py");
        std::fs::write(&path, script).expect("written");
        site.sh(&name, &format!("python3 {}", path.display())).ok()
    };
    python(&format!("{}    open(f'/bivouac/l/{{n}}/gone', 'w').close()\n", fill("old")));
    // A dies, the others acknowledge alone and die, and A is back.
    kill(&site, &name, 0);
    python(&format!("{}    os.unlink(f'/bivouac/l/{{n}}/gone')\n", fill("new")));
    kill(&site, &name, 1);
    kill(&site, &name, 2);
    site.bivouac(["restart", &name, "0"]).ok();
    let status = site.status(&name);
    assert_eq!(
        (&status["servers"][0]["state"], &status["servers"][1]["state"]),
        (&"up".into(), &"down".into())
    );
    // The root itself may be a directory that A must not show.
    let alone = site.sh(&name, "cat /bivouac/l/*/f | grep -c old; ls /bivouac/l/*/gone");
    assert!(
        !alone.out.contains("gone") && alone.out.lines().next().is_none_or(|old| old == "0"),
        "{}",
        alone.out
    );
    site.bivouac(["restart", &name, "1"]).ok();
    println!("with one of the others, new and EIO: {}", python(NEW_OR_NOTHING).trim());
    site.bivouac(["restart", &name, "2"]).ok();
    all_in_step(&site, &name);
    assert_eq!(python(NEW_OR_NOTHING), "60 0\n");
    // A has everything by now.
    kill(&site, &name, 1);
    assert_eq!(python(NEW_OR_NOTHING), "60 0\n");
    site.bivouac(["down", &name]).ok();
}
