//! Servers that everybody reaches but that do not reach each other.

use bivouac_tests::load::{APPENDS, BLOCKS, Load, NAMES, SYNCS, all_in_step, copies_agree};
use bivouac_tests::{Network, Site, eventually, on_node, skipped_without_root};
use std::time::{Duration, Instant};

#[test]
fn one_of_two_servers_that_do_not_reach_each_other_is_left_out_and_programs_go_on() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(3), Site::in_memory("severed"));
    let name = net.deploy(&site, &["--replicas", "2", "--heal-after", "never", "--block-size", "64K"]);
    let start = |(program, home)| Load::start(&site, &name, program, home);
    let loads = [(NAMES, "names"), (BLOCKS, "blocks"), (APPENDS, "appends"), (SYNCS, "syncs")].map(start);
    for pause in [Duration::from_secs(1), Duration::from_secs(10)] {
        net.cut_between(1, 2, true);
        let begun = Instant::now();
        if pause > Duration::from_secs(2) {
            eventually("one of the two is left out", || site.states(&name) == ["up", "up", "down"]);
            println!("left out after {:.1} s", begun.elapsed().as_secs_f32());
            assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
        }
        while begun.elapsed() < pause {
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(site.states(&name)[..2], ["up", "up"]);
        }
        if pause > Duration::from_secs(2) {
            assert_eq!(site.states(&name), ["up", "up", "down"], "as long as they do not reach each other");
        }
        net.cut_between(1, 2, false);
        let begun = Instant::now();
        all_in_step(&site, &name);
        println!("in step after {:.1} s", begun.elapsed().as_secs_f32());
    }
    for load in loads {
        let (home, done) = (load.home.clone(), load.end());
        assert!(done.operations > 50.0 && done.worst < 15.0, "{home}: {done:?}");
    }
    assert_eq!(site.status(&name)["false_failovers"], 0, "this was no mistake");
    copies_agree(&site, &name);
    site.bivouac(["down", &name]).ok();
}

/// Moves forty files between directories; says what failed, other than with EIO or after too long.
const MOVES: &str = "
import errno, os, threading, time
wrong, failed = [], []
def move(i):
    begun = time.time()
    try: os.rename(f'/bivouac/from{i}/{i}', f'/bivouac/to{i}/{i}')
    except OSError as error:
        failed.append(i)
        if error.errno != errno.EIO: wrong.append((i, error))
    if time.time() - begun > 30: wrong.append((i, time.time() - begun))
threads = [threading.Thread(target=move, args=(i,)) for i in range(40)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not wrong, wrong
print(len(failed))
";

#[test]
fn without_copies_what_needs_both_fails_in_time_and_nothing_is_lost_or_there_twice() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(3), Site::in_memory("severed-single"));
    let name = net.deploy(&site, &[]);
    let run = |script: &str| on_node(&net.names[0], &site, &name, script).ok();
    let python =
        |script: &str| run(&format!("exec python3 -c \"{script}\"")).trim().parse::<u32>().expect("a number");
    run("for i in $(seq 0 39); do mkdir /bivouac/from$i /bivouac/to$i; echo $i > /bivouac/from$i/$i; done");
    net.cut_between(1, 2, true);
    let failed = python(MOVES);
    println!("{failed} of 40 renames failed");
    assert!(
        (1..40).contains(&failed),
        "{failed} of 40 need the two servers that are cut off from each other"
    );
    assert_eq!(site.states(&name), ["up"; 3], "nobody can take the place of one of them");
    net.cut_between(1, 2, false);
    // Each file is in one place, or is moved now.
    let left = "ls -d /bivouac/from*/*; cat /bivouac/from*/* /bivouac/to*/* | sort -n | uniq | wc -l";
    let told = run(left);
    let (there, count) = told.trim().rsplit_once('\n').unwrap_or(("", told.trim()));
    assert_eq!(count, "40", "{told}");
    let again = there.lines().map(|path| format!("mv {path} {}; ", path.replace("from", "to")));
    run(&again.collect::<String>());
    assert_eq!(run("cat /bivouac/to*/* | sort -n | uniq -c | awk '$1 == 1' | wc -l").trim(), "40");
    assert_eq!(run("ls /bivouac/from*/* 2> /dev/null | wc -l").trim(), "0");
    site.bivouac(["down", &name]).ok();
}

/// Writes all blocks of a file twice, and cuts others to nothing and appends to them twice, while the primaries of some of them wait for copies that they do not reach.
const TWICE: &str = "
import os, threading
fd = os.open('/bivouac/twice', os.O_RDWR)
def write(turn, first):
    for block in range(first, 96, 16): assert os.pwrite(fd, bytes([turn]) * 65536, block * 65536) == 65536
def rewrite(turn, number):
    end = os.open(f'/bivouac/cut{number}', os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.ftruncate(end, 0)
    for part in range(3): assert os.write(end, bytes([turn]) * 65536) == 65536
for turn in (2, 3):
    threads = [threading.Thread(target=write, args=(turn, first)) for first in range(16)]
    threads += [threading.Thread(target=rewrite, args=(turn, number)) for number in range(24)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print('written')
";

/// A primary waits for its copy, is left out, and is the primary again when its request gets through at last: the change
/// was repeated at the other one, and others have followed.
#[test]
fn what_a_primary_had_under_way_when_it_was_replaced_is_not_made_when_it_is_the_primary_again() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(3), Site::in_memory("severed-late"));
    let name = net.deploy(&site, &["--replicas", "2", "--heal-after", "never", "--block-size", "64K"]);
    let run = |script: &str| site.bivouac(["exec", &name, "--", "python3", "-c", script]).ok();
    let sees = |when: &str| {
        let found = run("
found = open('/bivouac/twice', 'rb').read()
cut = [open(f'/bivouac/cut{number}', 'rb').read() == bytes([3]) * 196608 for number in range(24)]
print(len(found), [block for block in range(96) if found[block * 65536:][:65536] != bytes([3]) * 65536], all(cut))
");
        assert_eq!(found.trim(), "6291456 [] True", "{when}");
    };
    run("open('/bivouac/twice', 'wb').write(bytes([1]) * (96 * 65536))");
    for _ in 0..2 {
        net.cut_between(1, 2, true);
        run(TWICE);
        net.cut_between(1, 2, false);
        all_in_step(&site, &name);
        // What was sent while they did not reach each other is sent again after ever longer pauses.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            sees("after they reach each other");
            std::thread::sleep(Duration::from_millis(500));
        }
    }
    copies_agree(&site, &name);
    site.bivouac(["down", &name]).ok();
}
