//! Agents start servers of their nodes again that have died: programs only wait, and nobody starts anything for ever.

use bivouac_tests::agents::start_agent;
use bivouac_tests::load::{APPENDS, BLOCKS, Load, NAMES, clock, copies_agree};
use bivouac_tests::{HANG, Killed, Network, Site, eventually, finish, run_dir, skipped_without_root};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// No processes.
const NOBODY: [i32; 0] = [];

/// A site whose deployments start dead servers again, as those of users do.
fn site(name: &str) -> Site {
    let mut site = Site::in_memory(name);
    site.restarts_servers();
    site
}

/// What `status --json` says of a server.
fn server(site: &Site, name: &str, id: usize) -> serde_json::Value {
    site.status(name)["servers"][id].take()
}

fn pid(site: &Site, name: &str, id: usize) -> i32 {
    server(site, name, id)["pid"].as_i64().expect("a process") as i32
}

/// How often a server has begun to start.
fn starts(site: &Site, name: &str, id: usize) -> usize {
    let log = site.home().join(name).join(format!("logs/server-{id}.log"));
    let text = std::fs::read_to_string(log).expect("a log");
    text.lines().filter(|line| line.contains("starting server-")).count()
}

/// The processes of daemons that have a file below a directory open.
fn daemons_below(directory: &Path) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").expect("is there").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_one = |pid: &i32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let is_daemon = std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).starts_with("bivouac\0daemon"));
        is_daemon && open.flat_map(|fd| std::fs::read_link(fd.path())).any(|path| path.starts_with(directory))
    };
    pids.filter(is_one).collect()
}

/// Makes, writes, reads, lists and removes files until it is told to stop, with two open all the time. Says how many
/// operations there were, how many failed, and how long the longest took, seconds.
const PROGRAM: &str = r#"
import os, sys, time
home, worst, count, failed = '/bivouac/' + sys.argv[2], 0, 0, []
os.makedirs(home)
held = open(home + '/held', 'w+b', buffering=0)
large = open(home + '/large', 'w+b', buffering=0)
def write_read(n):
    path, content = f'{home}/{n % 20}', b'%d ' % n * 1000
    with open(path, 'wb') as f: f.write(content)
    with open(path, 'rb') as f: assert f.read() == content
    assert os.stat(path).st_size == len(content)
def through_held(n):
    for f in (held, large):
        content = b'%08d' % n * 100
        assert os.pwrite(f.fileno(), content, n * 800 % 5000000) == 800
        assert os.pread(f.fileno(), 800, n * 800 % 5000000) == content
def names(n):
    open(f'{home}/new', 'x').close()
    os.rename(f'{home}/new', f'{home}/moved')
    assert 'moved' in os.listdir(home)
    os.unlink(f'{home}/moved')
while not os.path.exists(sys.argv[1]):
    for operation in (write_read, through_held, names):
        begun = time.monotonic()
        try: operation(count)
        except OSError as e: failed.append(f'{operation.__name__}: {e}')
        worst, count = max(worst, time.monotonic() - begun), count + 1
    if count == 30: open(sys.argv[1] + '.begun', 'w').close()
print(count, len(failed), round(worst, 2), failed[:3], flush=True)
sys.stdin.readline()
"#;

/// Runs the program while `meanwhile` happens, and then `after`, before it ends. None of its operations may fail; the
/// longest took so many seconds.
fn with_program(
    site: &Site,
    name: &str,
    program: &str,
    meanwhile: impl FnOnce(),
    after: impl FnOnce(),
) -> f64 {
    let (file, stop) = (site.path("program.py"), site.path("stop"));
    std::fs::write(&file, program).expect("written");
    let mut command = site.command(["exec", name, "--", "python3"]);
    command.arg(file).arg(&stop).arg("p").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let mut says = BufReader::new(child.stdout.take().expect("a pipe"));
    eventually("it works", || site.path("stop.begun").exists());
    meanwhile();
    std::fs::write(stop, "").expect("written");
    let mut line = String::new();
    says.read_line(&mut line).expect("it says so");
    let words: Vec<f64> = line.split(' ').take(3).filter_map(|word| word.parse().ok()).collect();
    let [count, failed, worst] = words[..] else { panic!("{line:?}") };
    println!("{count} operations, the longest took {worst} s");
    assert!(count > 30.0 && failed == 0.0, "{line}");
    after();
    let _ = writeln!(child.stdin.take().expect("a pipe"));
    assert!(child.wait().expect("ends").success());
    worst
}

#[test]
fn a_killed_server_comes_back_by_itself_and_a_program_only_waits() {
    let site = site("comes-back");
    let name = site.up(2);
    let worst = with_program(
        &site,
        &name,
        PROGRAM,
        || {
            for id in [1, 0, 1] {
                let killed = Killed::server(&site, &name, id);
                println!("server {id} was back after {:?}", killed.is_back(&site, &name));
                std::thread::sleep(Duration::from_millis(300));
            }
        },
        || {
            let opens = site.total(&name, "opens");
            assert_eq!(opens, 2, "what is open is known to the servers again");
        },
    );
    // What is documented; it takes half a second where the machine has time.
    assert!(worst < 3.0, "{worst} s");
    eventually("what was open is closed", || site.total(&name, "opens") == 0);
    let status = site.status(&name);
    assert_eq!(
        (&status["servers"][0]["restarts"], &status["servers"][1]["restarts"]),
        (&1.into(), &2.into())
    );
    assert_eq!((&status["state"], &status["problem"]), (&"running".into(), &serde_json::Value::Null));
}

#[test]
fn with_copies_a_killed_server_comes_back_and_catches_up() {
    let site = site("copies");
    let name = site.up_with(2, &["--replicas", "2", "--heal-after", "never"]);
    with_program(
        &site,
        &name,
        PROGRAM,
        || {
            for id in [0, 1] {
                let killed = Killed::server(&site, &name, id);
                println!("server {id} was back after {:?}", killed.is_back(&site, &name));
            }
        },
        || {},
    );
    site.bivouac(["verify", &name]).ok();
}

/// The second one dies while the first one is away, starts, or catches up: then nobody who lives has everything of what both hold.
#[test]
fn with_copies_servers_that_die_one_right_after_the_other_come_back_and_programs_only_wait() {
    let site = site("in-a-row");
    let name = site.up_with(4, &["--replicas", "2", "--block-size", "64K", "--heal-after", "never"]);
    let start = |program, home| Load::start(&site, &name, program, home);
    let mut loads = [start(NAMES, "names"), start(APPENDS, "appends"), start(BLOCKS, "blocks")];
    for (first, second, pause) in [(0, 1, 0), (2, 3, 40), (1, 2, 120), (3, 0, 250), (0, 3, 400), (2, 1, 10)] {
        let one = Killed::server(&site, &name, first);
        std::thread::sleep(Duration::from_millis(pause));
        let other = Killed::server(&site, &name, second);
        println!("{}: killed {first}, and {second} {pause} ms later", clock());
        println!("back after {:?} and {:?}", one.is_back(&site, &name), other.is_back(&site, &name));
    }
    for load in &mut loads {
        // One that needs several servers may have to wait for one after the other.
        let done = load.stop();
        assert!(done.worst < 6.0, "{done:?}");
    }
    copies_agree(&site, &name);
    loads.into_iter().for_each(Load::succeeds);
}

/// Uses directories that all servers share, and moves files from each to the next: what each call took, and how it ended.
const MISSING: &str = r#"
import errno, os, time
def say(call, *args):
    begun = time.monotonic()
    try: call(*args); word = 'done'
    except OSError as e: word = errno.errorcode[e.errno]
    print(word, time.monotonic() - begun)
for n in range(40):
    say(os.listdir, f'/bivouac/d{n}')
    say(os.mkdir, f'/bivouac/d{n}/d{os.getpid()}')
    say(os.rename, f'/bivouac/d{n}/{n}', f'/bivouac/d{(n + 1) % 40}/moved.{n}')
"#;

/// Servers 1 and 2 die, and nobody starts them: what only these two have, nobody answers for. Server 0, which has the root, is up.
#[test]
fn servers_with_copies_that_stay_away_are_waited_for_once_by_all() {
    let site = site("away");
    let name = site.up_with(3, &["--replicas", "2", "--restarts", "0", "--heal-after", "never"]);
    site.sh(&name, "cd /bivouac && for i in $(seq 0 39); do mkdir d$i && echo $i > d$i/$i; done").ok();
    Killed::server(&site, &name, 1);
    eventually("others answer for it", || server(&site, &name, 1)["state"] == "down");
    let died = Instant::now();
    let last = Killed::server(&site, &name, 2);
    // What each attempt has said of its calls: how many were done and how many were not, and all that they took.
    let attempt = || {
        let said = finish(site.command(["exec", &name, "--", "python3", "-c", MISSING])).ok();
        let calls = said.lines().map(|line| line.split_once(' ').expect("an outcome and its seconds"));
        let (done, failed): (Vec<_>, Vec<_>) = calls.partition(|(outcome, _)| *outcome != "EIO");
        let seconds = |(_, seconds): &(&str, &str)| seconds.parse::<f64>().expect("seconds");
        (done.len(), failed.len(), done.iter().chain(&failed).map(seconds).sum::<f64>())
    };
    let (done, failed, _) = attempt();
    let waited = died.elapsed();
    assert!(done > 0 && failed > 0, "{done} {failed}");
    assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(6), "{waited:?}");
    // Whoever comes later does not wait any more, nor do servers that need others.
    let (done, failed, seconds) = attempt();
    assert!(done > 0 && failed > 0 && seconds < 2.0, "{done} {failed} {seconds} s");
    // The one that died first does not know what was acknowledged last.
    site.bivouac(["restart", &name, "1"]).ok();
    eventually("it is up", || server(&site, &name, 1)["state"] == "up");
    let (_, failed, seconds) = attempt();
    assert!(failed > 0 && seconds < 2.0, "{failed} {seconds} s");
    site.bivouac(["restart", &name, "2"]).ok();
    last.is_back(&site, &name);
    assert_eq!(attempt().1, 0);
    let there = "cat /bivouac/d*/* 2>/dev/null | sort -n | uniq | wc -l";
    assert_eq!(site.sh(&name, there).ok(), "40\n");
}

/// Each process does again and again one thing that needs all servers, with a directory that all have a part of or with a file
/// that all have blocks of, until a file says stop.
const LOOKS: &str = r#"
import os, sys, time
stop, fd = sys.argv[1], os.open('/bivouac/wide', os.O_RDWR)
END = 64 * 65536
def sync():
    for at in range(0, END, 65536): os.pwrite(fd, b'x', at)
    os.fsync(fd)
def holes():
    assert os.lseek(fd, 0, os.SEEK_HOLE) == END
def length():
    assert os.fstat(fd).st_size == END
def cut():
    with open(f'/bivouac/cut', 'wb') as f: os.pwrite(f.fileno(), b'y' * 65536, END)
def only():
    # Grows out of its inode, gets more at its end, and is cut.
    path, data = f'/bivouac/only/{time.monotonic_ns() % 16}', b'z' * 300000
    with open(path, 'wb') as f: f.write(data[:100])
    with open(path, 'ab', buffering=0) as f:
        assert f.write(data[100:5000]) == 4900
        assert f.write(data[5000:]) == 295000
    with open(path, 'rb') as f: assert f.read() == data
def names():
    assert len(os.listdir('/bivouac/big')) == 5000
def space():
    assert os.statvfs('/bivouac').f_bavail > 0
pipes = []
for what in sync, holes, length, cut, only, names, space:
    ours, theirs = os.pipe()
    if os.fork() == 0:
        count, failed, worst = 0, 0, 0
        while not os.path.exists(stop):
            begun = time.monotonic()
            try: what()
            except OSError as error:
                print(f'{what.__name__}: {error} after {time.monotonic() - begun:.3f} s', file=sys.stderr)
                failed += 1
            count, worst = count + 1, max(worst, time.monotonic() - begun)
        os.write(theirs, f'{count} {failed} {worst}'.encode())
        os._exit(0)
    os.close(theirs)
    pipes.append(ours)
open(stop + '.begun', 'w').close()
said = [list(map(float, os.read(ours, 100).split())) for ours in pipes]
print(min(count for count, _, _ in said), sum(failed for _, failed, _ in said), max(worst for *_, worst in said), 'seconds', flush=True)
sys.stdin.readline()
"#;

#[test]
fn what_needs_all_servers_waits_while_some_come_back() {
    for copies in ["1", "2"] {
        let site = site(&format!("all-{copies}"));
        let name = site.up_with(3, &["--replicas", copies, "--block-size", "64K", "--heal-after", "never"]);
        site.sh(&name, "mkdir /bivouac/big && cd /bivouac/big && seq 5000 | xargs touch").ok();
        site.sh(&name, "head -c 4M /dev/urandom > /bivouac/wide && mkdir /bivouac/only").ok();
        site.bivouac(["layout", "-d", &name, "/only", "--replicas", "1"]).ok();
        let kills = || {
            for (first, second) in [(0, 1), (1, 2), (2, 0)] {
                let killed = [first, second].map(|server| Killed::server(&site, &name, server));
                killed.iter().for_each(|killed| println!("back after {:?}", killed.is_back(&site, &name)));
                std::thread::sleep(Duration::from_millis(300));
            }
        };
        let worst = with_program(&site, &name, LOOKS, kills, || {});
        // What consists of several calls may have to wait for one server after the other.
        assert!(worst < 8.0, "{worst} s");
    }
}

#[test]
fn a_server_that_dies_again_and_again_stays_down_until_somebody_starts_it() {
    let site = site("bound");
    let name = site.up(2);
    site.sh(&name, "cd /bivouac && for i in $(seq 40); do echo $i > $i; done").ok();
    for round in 0..4 {
        let killed = Killed::server(&site, &name, 1);
        if round < 3 {
            killed.is_back(&site, &name);
        }
    }
    let down = || {
        let now = server(&site, &name, 1);
        now["state"] == "down" && now["trouble"].as_str().is_some_and(|why| why.contains("3 times"))
    };
    eventually("it stays down", down);
    std::thread::sleep(Duration::from_secs(2));
    let now = server(&site, &name, 1);
    assert!(down() && now["restarts"] == 3, "{now}");
    assert_eq!(starts(&site, &name, 1), 4, "the first, and three more");
    let told = site.bivouac(["status", &name]).ok();
    for words in ["server 1 is down", "3 times within 10 minutes", "signal 9", "bivouac restart"] {
        assert!(told.contains(words), "no {words:?} in {told}");
    }
    // By hand, and then it is looked after again.
    site.bivouac(["restart", &name, "1"]).ok();
    assert_eq!(server(&site, &name, 1)["trouble"], serde_json::Value::Null);
    let killed = Killed::server(&site, &name, 1);
    killed.is_back(&site, &name);
    assert_eq!(site.sh(&name, "cat /bivouac/* | sort -n | tail -1; ls /bivouac | wc -l").ok(), "40\n40\n");
}

#[test]
fn who_says_so_gets_no_server_back() {
    let site = site("off");
    let name = site.up_with(1, &["--restarts", "0"]);
    Killed::server(&site, &name, 0);
    eventually("it is down", || server(&site, &name, 0)["state"] == "down");
    std::thread::sleep(Duration::from_secs(1));
    let now = server(&site, &name, 0);
    assert!(now["state"] == "down" && now["restarts"].is_null(), "{now}");
    assert_eq!(starts(&site, &name, 0), 1);
}

#[test]
fn a_server_that_was_told_to_end_is_not_started_again() {
    let site = site("told");
    let name = site.up(2);
    site.sh(&name, "echo content > /bivouac/file").ok();
    site.bivouac(["down", &name, "--keep"]).ok();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(daemons_below(&site.home().join(&name)), NOBODY);
    site.bivouac(["up", &name]).ok();
    // A new life: the agent knows of servers what they are now.
    let killed = Killed::server(&site, &name, 0);
    killed.is_back(&site, &name);
    assert_eq!(site.sh(&name, "cat /bivouac/file").ok(), "content\n");
}

#[test]
fn down_right_after_a_kill_leaves_nothing_behind() {
    let site = site("down");
    for round in 0..12 {
        let name = site.up(2);
        let mut pids: Vec<i32> = site.daemons(&name).into_iter().map(|daemon| daemon.1).collect();
        // Before the first map, in it, and long after.
        let killed = site.server_pid(&name, round % 2);
        Site::kill(killed, Signal::KILL);
        if round % 3 == 2 {
            // Its agent, too: nobody is left who could tell the new process.
            std::thread::sleep(Duration::from_millis(round * 2));
            Site::kill(site.agent_pid(&name, 0), Signal::KILL);
        } else {
            std::thread::sleep(Duration::from_millis(round * 3));
        }
        pids.extend(daemons_below(&site.home().join(&name)));
        let begun = Instant::now();
        site.bivouac(["down", &name]).ok();
        assert!(begun.elapsed() < HANG / 2, "{:?}", begun.elapsed());
        let left = daemons_below(&site.home());
        assert_eq!(left, NOBODY, "round {round}");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(daemons_below(&site.home()), NOBODY, "round {round}, later");
        site.assert_nothing_left(&name, &pids);
    }
}

#[test]
fn restart_by_hand_beside_the_agent_starts_one_server() {
    let site = site("by-hand");
    let name = site.up_with(1, &["--restarts", "100"]);
    site.sh(&name, "echo content > /bivouac/file").ok();
    for round in 0..8 {
        Killed::server(&site, &name, 0);
        // Before, while and after the agent starts it; later rounds have pauses.
        std::thread::sleep(Duration::from_millis(round * 7));
        site.bivouac(["restart", &name, "0"]).ok();
        let now = server(&site, &name, 0);
        assert_eq!(now["state"], "up");
        let log = format!("{name}/logs/server-0.log");
        let all = daemons_below(&site.home().join(&name));
        let serving: Vec<i32> = all
            .into_iter()
            .filter(|pid| {
                let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
                open.flat_map(|fd| std::fs::read_link(fd.path())).any(|path| path.ends_with(&log))
            })
            .collect();
        assert_eq!(serving.len(), 1, "round {round}: {serving:?}");
        assert_eq!(now["pid"].as_i64(), Some(serving[0].into()), "round {round}");
        assert_eq!(site.sh(&name, "cat /bivouac/file").ok(), "content\n");
    }
}

/// Storage of servers that were killed stays locked until the kernel has closed all their files.
#[test]
fn storage_that_is_still_in_use_is_waited_for_and_then_refused() {
    let site = Site::in_memory("in-use");
    let name = site.up(1);
    site.sh(&name, "echo content > /bivouac/file").ok();
    let storage = run_dir(&name).join("storage-0");
    // What a server has locked, of the data and of the metadata.
    for locked in ["bivouac-data", "meta"] {
        let hold = || {
            let file = std::fs::File::open(storage.join(locked)).expect("opens");
            file.lock().expect("locked");
            file
        };
        site.daemons(&name).iter().for_each(|(_, pid)| Site::kill(*pid, Signal::KILL));
        let held = hold();
        let begun = Instant::now();
        site.bivouac(["up", &name]).fails(66, &["in use by another server"]);
        assert!(begun.elapsed() > Duration::from_secs(4), "{:?}", begun.elapsed());
        drop(held);
        let held = hold();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(1));
                drop(held);
            });
            site.bivouac(["up", &name]).ok();
        });
        assert_eq!(site.sh(&name, "cat /bivouac/file").ok(), "content\n", "{locked}");
    }
}

#[test]
fn a_server_whose_storage_is_damaged_is_not_started_for_ever() {
    let site = site("damaged");
    let name = site.up(1);
    site.sh(&name, "cd /bivouac || exit 1; for i in $(seq 200); do echo $i > small$i; done").ok();
    let meta = run_dir(&name).join("storage-0/meta");
    let files = std::fs::read_dir(&meta).expect("is there").map(|entry| entry.expect("an entry").path());
    let logs = files.filter(|path| path.extension().is_some_and(|end| end == "log"));
    let log = logs.max_by_key(|path| path.metadata().expect("is there").len()).expect("a log");
    // Behind the server's back; it finds out when it starts again.
    let whole = std::fs::read(&log).expect("reads");
    Site::stop(pid(&site, &name, 0));
    std::fs::write(&log, &whole[..whole.len() / 10]).expect("writes");
    Killed::server(&site, &name, 0);
    let shown = log.display().to_string();
    eventually("it is given up", || {
        let now = server(&site, &name, 0);
        now["trouble"].as_str().is_some_and(|why| why.contains("3 times") && why.contains(&shown))
    });
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(starts(&site, &name, 0), 4, "the first, and three that failed");
    assert_eq!(daemons_below(&site.home().join(&name)).len(), 1, "the agent alone");
    let agent = std::fs::read_to_string(site.home().join(&name).join("logs/agent-0.log")).expect("a log");
    assert!(agent.contains(&shown) && agent.contains("stays down"), "{agent}");
    assert!(site.bivouac(["status", &name]).ok().contains(&shown));
    // Nobody has touched the storage.
    std::fs::write(&log, &whole).expect("writes");
    site.bivouac(["restart", &name, "0"]).ok();
    assert_eq!(site.sh(&name, "ls /bivouac | wc -l").ok(), "200\n");
}

#[test]
fn an_agent_that_is_started_again_looks_after_its_servers() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(2), site("agents"));
    let name = net.deploy(&site, &[]);
    site.sh(&name, "cd /bivouac && for i in $(seq 40); do echo $i > $i; done").ok();
    // The machine's own agent leads.
    assert_eq!(site.status(&name)["leader"], 2);
    Site::kill(site.agent_pid(&name, 0), Signal::KILL);
    // Nobody starts this one yet.
    let first = Killed::server(&site, &name, 0);
    eventually("it is down", || server(&site, &name, 0)["state"] == "down");
    start_agent(&site, &name, 0, Some(&net.names[0]));
    first.is_back(&site, &name);
    // And one that dies while the agent looks on; its node's number is not taken for another's.
    for id in [0, 1] {
        let killed = Killed::server(&site, &name, id);
        killed.is_back(&site, &name);
    }
    assert_eq!(starts(&site, &name, 1), 2);
    assert_eq!(site.sh(&name, "ls /bivouac | wc -l").ok(), "40\n");
    site.bivouac(["down", &name]).ok();
    assert_eq!(daemons_below(&site.home()), NOBODY);
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn first_locks_and_new_processes_wait_for_an_agent_that_is_started_again() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(2), site("absent"));
    let name = net.deploy(&site, &[]);
    let program = "import fcntl, os, sys, time
files = [open(f'/bivouac/{i}', 'w') for i in range(20)]
print('open', flush=True)
sys.stdin.readline()
begun = time.monotonic()
def lock_all():
    for f in files:
        fcntl.lockf(f, fcntl.LOCK_EX)
        fcntl.lockf(f, fcntl.LOCK_UN)
child = os.fork()
lock_all()
if child == 0:
    os.mkdir('/bivouac/made')
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(time.monotonic() - begun, flush=True)";
    let mut command = site.command_on(&net.names[0], ["exec", &name, "--", "python3", "-c", program]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert_eq!(said.next().expect("a line").expect("reads"), "open");
    Site::kill(site.agent_pid(&name, 0), Signal::KILL);
    writeln!(child.stdin.take().expect("a pipe")).expect("told");
    std::thread::sleep(Duration::from_secs(3));
    start_agent(&site, &name, 0, Some(&net.names[0]));
    let took: f64 = said.next().expect("it goes on").expect("reads").parse().expect("seconds");
    println!("locks and a child waited {took} s for their agent");
    assert!(took > 2.0, "{took} s: nobody had to wait");
    assert!(child.wait().expect("ends").success());
    site.bivouac(["down", &name]).ok();
}

#[test]
fn without_a_controller_no_server_is_started_and_operations_fail_in_time() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(2), site("alone"));
    let name = net.deploy(&site, &[]);
    site.sh(&name, "cd /bivouac && for i in $(seq 40); do echo $i > $i; done").ok();
    let servers = pid(&site, &name, 0);
    // Two of the three that keep the map.
    for node in [2, 1] {
        Site::kill(site.agent_pid(&name, node), Signal::KILL);
    }
    std::thread::sleep(Duration::from_secs(2));
    Site::kill(servers, Signal::KILL);
    let program = "import os, time
worst, lost = 0, 0
for i in range(1, 41):
    begun = time.monotonic()
    try: os.stat(f'/bivouac/{i}')
    except OSError as e: lost += e.errno == 5
    worst = max(worst, time.monotonic() - begun)
print(lost, worst)";
    let said = finish(site.command_on(&net.names[0], ["exec", &name, "--", "python3", "-c", program])).ok();
    let words: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [lost, worst] = words[..] else { panic!("{said:?}") };
    println!("{lost} files cannot be reached, the longest took {worst} s");
    // Three seconds where the machine has time; never the thirty for which a server is waited for that nobody takes in.
    assert!(lost > 0.0 && worst < 8.0, "{said}");
    assert_eq!(starts(&site, &name, 0), 1);
    let trouble = server(&site, &name, 0)["trouble"].clone();
    assert!(trouble.as_str().is_some_and(|why| why.contains("when there is a controller")), "{trouble}");
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
}
