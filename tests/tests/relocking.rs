//! Locks over a restart of their server, without copies: who has them keeps them, and nobody else gets them before
//! they are given up.

use bivouac_tests::program::{DRIVER, FILES, Program, make_files};
use bivouac_tests::{Network, Site, accesses, eventually, skipped_without_root};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Who starts a server that was killed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    Agent,
    Hand,
}

/// Kills a server and has it back.
fn restart(site: &Site, name: &str, id: u64, by: By) {
    kill_and(site, name, id, by, || {});
}

/// The same; something happens while it is away.
fn kill_and(site: &Site, name: &str, id: u64, by: By, meanwhile: impl FnOnce()) {
    let of_server = |status: &serde_json::Value| status["servers"][id as usize].clone();
    let before = site.status(name);
    let pid = of_server(&before)["pid"].as_i64().expect("a process");
    Site::kill(pid as i32, Signal::KILL);
    meanwhile();
    if by == By::Hand {
        site.bivouac(["restart", name, &id.to_string()]).ok();
    }
    eventually("the server is back", || {
        let now = site.status(name);
        let server = of_server(&now);
        let joined = now["epoch"].as_u64() >= before["epoch"].as_u64().map(|epoch| epoch + 2);
        joined && server["state"] == "up" && server["pid"].as_i64() != Some(pid)
    });
}

/// Two nodes with a server each, where agents start them again if `by` says so.
fn two_nodes(test: &str, by: By) -> (Network, Site, String) {
    let (net, mut site) = (Network::pair(), Site::in_memory(test));
    if by == By::Agent {
        site.restarts_servers();
    }
    let name = net.deploy(&site, &[]);
    make_files(&site, &name);
    (net, site, name)
}

#[test]
fn locks_with_their_ranges_outlive_their_server_and_are_free_when_they_are_given_up() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    for by in [By::Agent, By::Hand] {
        let (net, site, name) = two_nodes("relock", by);
        let on = |node: usize| Program::start(&site, &name, Some(&net.names[node]), "preload");
        let (mut writer, mut reader) = (on(0), on(1));
        let (mut near, mut far) = (on(0), on(1));
        for program in [&mut writer, &mut reader, &mut near, &mut far] {
            program.run("files = opened()");
        }
        writer.run("each(files, 'lockf', EX, 100, 100)");
        writer.run("each(files, 'lockf', EX, 900, 100); each(files, 'lockf', UN, 930, 40)");
        writer.run("others = opened(); each(others, 'ofd', EX, 500, 100)");
        // Of descriptions that only a child holds.
        reader.run("shared = opened(); each(shared, 'flock', EX)");
        reader.run("child = os.fork(); child or time.sleep(1000); [f.close() for f in shared]; print(child)");
        // (Its closes give up what it has locked in these files as a process, so that comes now.)
        reader.run("each(files, 'lockf', SH, 300, 100)");
        let mut waiter = on(1);
        waiter.run("files = opened()");
        waiter.tell("each(files, 'lockf', EX, 110, 10); print('got')");
        for id in [0, 1] {
            restart(&site, &name, id, by);
        }
        for program in [&mut near, &mut far] {
            assert_eq!(program.can_lock("'lockf', EX, 100, 100"), 0);
            assert_eq!(program.can_lock("'lockf', SH, 199, 1"), 0);
            assert_eq!(program.can_lock("'lockf', EX, 200, 100"), FILES);
            assert_eq!(program.can_lock("'lockf', EX, 399, 1"), 0);
            assert_eq!(program.can_lock("'ofd', SH, 300, 100"), FILES);
            assert_eq!(program.can_lock("'ofd', SH, 599, 10"), 0);
            assert_eq!(program.can_lock("'lockf', EX, 600, 300"), FILES);
            assert_eq!(program.can_lock("'lockf', SH, 929, 1"), 0);
            assert_eq!(program.can_lock("'lockf', EX, 930, 40"), FILES);
            assert_eq!(program.can_lock("'lockf', EX, 970, 1"), 0);
            assert_eq!(program.can_lock("'flock', SH"), 0);
        }
        // Its owner can change what it has.
        writer.run("each(files, 'lockf', SH, 150, 50); each(files, 'lockf', UN, 100, 50)");
        assert_eq!(waiter.says(), "got\n");
        for program in [&mut near, &mut far] {
            assert_eq!(program.can_lock("'lockf', EX, 100, 10"), FILES);
            assert_eq!(program.can_lock("'lockf', EX, 110, 10"), 0);
            assert_eq!(program.can_lock("'lockf', SH, 150, 50"), FILES);
            assert_eq!(program.can_lock("'lockf', EX, 150, 50"), 0);
        }
        let child: i32 = reader.run("print(child)").trim().parse().expect("a number");
        Site::kill(child, Signal::KILL);
        reader.run("os.waitpid(child, 0)");
        eventually("the child's locks are free", || near.can_lock("'flock', EX") == FILES);
        [writer, reader, waiter].into_iter().for_each(Program::end);
        eventually("all are free", || far.can_lock("'lockf', EX, 0, 0") == FILES);
        [near, far].into_iter().for_each(Program::end);
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn what_is_given_up_while_the_server_is_away_does_not_come_back_with_it() {
    for by in [By::Agent, By::Hand] {
        let mut site = Site::in_memory("away");
        if by == By::Agent {
            site.restarts_servers();
        }
        let name = site.up(1);
        make_files(&site, &name);
        let started = || {
            let mut program = Program::start(&site, &name, None, "preload");
            program.run("files = opened(); others = opened(); more = opened()");
            program
        };
        let (mut killed, mut lives, mut other) = (started(), started(), started());
        killed.run("each(files, 'lockf', EX, 0, 10); each(others, 'ofd', EX, 10, 10)");
        lives.run(
            "each(files, 'lockf', EX, 20, 10); each(files, 'ofd', EX, 30, 10); each(files, 'flock', EX)",
        );
        lives.run("each(others, 'ofd', EX, 50, 10); each(more, 'ofd', EX, 60, 10)");
        let pid = killed.pid();
        kill_and(&site, &name, 0, by, || {
            Site::kill(pid, Signal::KILL);
            lives.tell("gives_up(files, 'lockf', 23, 4); gives_up(files, 'flock', 0, 0); gives_up(files, 'ofd', 30, 10)");
            if by == By::Hand {
                lives.says();
            }
            // A close cannot fail. (It gives up the locks of the process, too.)
            lives.tell("[f.close() for f in others[:6]]; os.kill(os.getpid(), 0)");
            if by == By::Hand {
                lives.says();
            }
        });
        if by == By::Agent {
            lives.says();
            lives.says();
        }
        for (what, free) in [
            ("'lockf', EX, 0, 20", FILES),
            // Of the process, in the files that it has closed once: all.
            ("'lockf', EX, 20, 3", FILES / 2),
            ("'lockf', EX, 23, 4", FILES),
            ("'lockf', EX, 27, 3", FILES / 2),
            ("'ofd', EX, 30, 20", FILES),
            ("'ofd', EX, 50, 10", FILES / 2),
            ("'ofd', EX, 60, 10", 0),
            ("'flock', EX", FILES),
        ] {
            // The ends of the dead are told a moment later.
            eventually(what, || other.can_lock(what) == free);
            assert_eq!(other.can_lock(what), free, "{by:?}: {what}");
        }
        [killed, lives, other].into_iter().for_each(Program::end);
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn each_way_of_access_keeps_its_locks_when_all_daemons_die_and_come_back() {
    for access in accesses() {
        let site = Site::in_memory("all-die-locked");
        let name = site.up(2);
        make_files(&site, &name);
        let mut holder = Program::start(&site, &name, None, access);
        holder.run("files = opened(); others = opened()");
        holder.run("each(files, 'lockf', EX, 100, 100); each(others, 'flock', SH)");
        // Also what it had locked before it executed another program.
        let mut heir = Program::start(&site, &name, None, "preload");
        heir.run("files = opened(); each(files, 'lockf', EX, 300, 100); [os.set_inheritable(f.fileno(), True) for f in files]");
        let source = site.path("driver.py");
        std::fs::write(&source, format!("print('done', flush=True)\n{DRIVER}")).expect("written");
        heir.run(&format!("os.execvp('python3', ['python3', '-u', '{}'])", source.display()));
        site.daemons(&name).iter().for_each(|(_, pid)| Site::kill(*pid, Signal::KILL));
        site.bivouac(["up", &name]).ok();
        let mut other = Program::start(&site, &name, None, "preload");
        other.run("files = opened()");
        assert_eq!(other.can_lock("'lockf', EX, 100, 100"), 0, "{access}");
        assert_eq!(other.can_lock("'flock', EX"), 0, "{access}");
        assert_eq!(other.can_lock("'flock', SH"), FILES);
        assert_eq!(other.can_lock("'lockf', EX, 300, 100"), 0);
        // The agent that is there now sees it end.
        Site::kill(heir.pid(), Signal::KILL);
        eventually("its end is seen", || other.can_lock("'lockf', EX, 300, 100") == FILES);
        holder.end();
        eventually("its end is seen", || other.can_lock("'flock', EX") == FILES);
        [heir, other].into_iter().for_each(Program::end);
        site.bivouac(["down", &name]).ok();
    }
}

/// Converting a `flock` gives the old lock up first, also if the new one is refused then.
#[test]
fn what_a_refused_conversion_has_given_up_does_not_come_back() {
    let mut site = Site::in_memory("converted");
    site.restarts_servers();
    let name = site.up(1);
    make_files(&site, &name);
    let mut programs = [0, 1].map(|_| Program::start(&site, &name, None, "preload"));
    programs.iter_mut().for_each(|program| _ = program.run("files = opened(); each(files, 'flock', SH)"));
    let [first, second] = &mut programs;
    assert_eq!(first.can_lock("'flock', EX"), 0);
    restart(&site, &name, 0, By::Agent);
    assert_eq!(second.can_lock("'flock', EX"), FILES);
    assert_eq!(first.can_lock("'flock', EX"), FILES);
    programs.into_iter().for_each(Program::end);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn with_copies_locks_are_kept_too_when_all_servers_die_together() {
    let site = Site::in_memory("copies-locked");
    let name = site.up_with(3, &["--metadata-replicas", "3"]);
    make_files(&site, &name);
    let mut holder = Program::start(&site, &name, None, "preload");
    holder.run("files = opened(); each(files, 'lockf', EX, 100, 100); each(files, 'flock', SH)");
    let mut other = Program::start(&site, &name, None, "preload");
    other.run("files = opened()");
    let servers: Vec<i32> = (0..3).map(|id| site.server_pid(&name, id)).collect();
    servers.into_iter().for_each(|pid| Site::kill(pid, Signal::KILL));
    for id in ["0", "1", "2"] {
        site.bivouac(["restart", &name, id]).ok();
    }
    eventually("others can be locked", || other.can_lock("'lockf', EX, 200, 100") == FILES);
    assert_eq!(other.can_lock("'lockf', SH, 150, 10"), 0);
    assert_eq!(other.can_lock("'flock', EX"), 0);
    holder.run("each(files, 'lockf', UN); each(files, 'flock', UN)");
    assert_eq!(other.can_lock("'lockf', EX, 100, 100"), FILES);
    assert_eq!(other.can_lock("'flock', EX"), FILES);
    [holder, other].into_iter().for_each(Program::end);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn locks_through_a_mount_outlive_their_server_too() {
    for access in accesses() {
        let mut site = Site::in_memory("relock-mount");
        site.restarts_servers();
        let name = site.up(1);
        make_files(&site, &name);
        let mut holder = Program::start(&site, &name, None, access);
        holder.run("files = opened(); others = opened()");
        holder.run(
            "each(files, 'lockf', EX, 100, 100); each(others, 'flock', EX); each(others, 'ofd', SH, 300, 10)",
        );
        let mut other = Program::start(&site, &name, None, access);
        other.run("files = opened()");
        for _ in 0..2 {
            restart(&site, &name, 0, By::Agent);
            assert_eq!(other.can_lock("'lockf', SH, 150, 1"), 0);
            assert_eq!(other.can_lock("'flock', SH"), 0);
            assert_eq!(other.can_lock("'lockf', EX, 309, 1"), 0);
            assert_eq!(other.can_lock("'lockf', EX, 200, 100"), FILES);
        }
        holder.run("each(files, 'lockf', UN, 0, 0); each(others, 'flock', UN)");
        assert_eq!(other.can_lock("'lockf', EX, 0, 300"), FILES);
        eventually("it is free", || other.can_lock("'flock', EX") == FILES);
        holder.end();
        eventually("it is free", || other.can_lock("'lockf', EX, 0, 0") == FILES);
        other.end();
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn no_increment_under_a_lock_is_lost_while_servers_die_again_and_again() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, mut site) = (Network::pair(), Site::in_memory("counted"));
    site.restarts_servers();
    let name = net.deploy(&site, &["--restarts", "100"]);
    make_files(&site, &name);
    let count = "
def count(kind, stop):
    files, done = opened(), 0
    while not os.path.exists(stop):
        for f in files:
            KINDS[kind](f, EX, 8, 0)
            now = os.pread(f.fileno(), 8, 0)
            value = int.from_bytes(now, 'little') if len(now) == 8 else 0
            os.pwrite(f.fileno(), (value + 1).to_bytes(8, 'little'), 0)
            KINDS[kind](f, UN, 8, 0)
        done += 1
    print(done)
";
    let source = site.path("count.py");
    std::fs::write(&source, count).expect("written");
    site.sh(&name, "cd /bivouac && for f in */f; do : > $f; done").ok();
    let mut total = 0;
    for kind in ["lockf", "ofd", "flock"] {
        let stop = site.path(kind);
        let mut programs: Vec<Program> =
            (0..4).map(|n| Program::start(&site, &name, Some(&net.names[n % 2]), "preload")).collect();
        for program in &mut programs {
            program.run(&format!("exec(open('{}').read())", source.display()));
            program.tell(&format!("count('{kind}', '{}')", stop.display()));
        }
        for round in 0..6 {
            // Those that an agent starts wait longer each time.
            let by = if round < 2 && kind == "lockf" { By::Agent } else { By::Hand };
            restart(&site, &name, round % 2, by);
            std::thread::sleep(Duration::from_millis(100 * round));
        }
        std::fs::write(&stop, "").expect("written");
        for program in &mut programs {
            let done: u64 = program.says().trim().parse().expect("a number");
            assert!(done > 0, "{kind}");
            total += done;
        }
        println!("{kind}: {total} increments of each file");
        programs.into_iter().for_each(Program::end);
        let mut reader = Program::start(&site, &name, None, "preload");
        let values = reader.run("print({int.from_bytes(f.read(8), 'little') for f in opened()})");
        assert_eq!(values.trim(), format!("{{{total}}}"), "{kind}");
        reader.end();
    }
    site.bivouac(["down", &name]).ok();
}

#[test]
fn who_is_heard_of_too_late_has_lost_its_locks_and_is_told_so() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site, name) = two_nodes("too-late", By::Hand);
    let mut cut_off = Program::start(&site, &name, Some(&net.names[1]), "preload");
    cut_off.run("files = opened(); each(files, 'lockf', EX, 0, 10)");
    let mut other = Program::start(&site, &name, Some(&net.names[0]), "preload");
    other.run("files = opened()");
    assert_eq!(other.can_lock("'lockf', EX, 0, 10"), 0);
    let agent = site.agent_pid(&name, 1);
    Site::stop(agent);
    restart(&site, &name, 0, By::Hand);
    let begun = Instant::now();
    other.tell("each(files[:0], 'lockf', EX); print(tried(files, 'lockf', EX, 0, 10))");
    let lost: usize = other.says().trim().parse().expect("a number");
    println!("{lost} locks were lost after {:?}", begun.elapsed());
    assert!((1..FILES).contains(&lost), "those at one of two servers: {lost}");
    // For 20 s from the moment that the server was back.
    assert!(begun.elapsed() > Duration::from_secs(15), "its agent was waited for");
    Site::kill(agent, Signal::CONT);
    let told = "
def told():
    count = 0
    for f in files:
        try: fcntl.lockf(f, UN, 10, 0)
        except OSError as e:
            assert e.errno == errno.EIO
            count += 1
    return count
";
    let source = site.path("told.py");
    std::fs::write(&source, told).expect("written");
    // When its agent has heard of it.
    std::thread::sleep(Duration::from_secs(4));
    cut_off.run(&format!("exec(open('{}').read())", source.display()));
    assert_eq!(cut_off.run("print(told())").trim(), lost.to_string());
    assert_eq!(cut_off.run("each(files, 'lockf', EX, 0, 10); print(told())").trim(), "0");
    [cut_off, other].into_iter().for_each(Program::end);
    site.bivouac(["down", &name]).ok();
}
