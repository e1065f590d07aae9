//! Several nodes: network namespaces with links that can be cut.

use bivouac_tests::{
    HANG, Network, Site, accesses, bivouac, eventually, finish, on_node, on_node_by, skipped_without_root,
};
use std::process::Command;
use std::time::{Duration, Instant};

fn nodes() -> Option<Network> {
    if skipped_without_root("making network namespaces") {
        return None;
    }
    Some(Network::pair())
}

#[test]
fn network_namespaces_are_nodes() {
    let Some(net) = nodes() else { return };
    let site = Site::new("netns");
    let name = net.deploy(&site, &[]);
    let status = site.status(&name);
    assert_eq!(status["servers"].as_array().expect("a list").len(), 2);
    site.sh(&name, "head -c 2000000 /dev/urandom > /bivouac/x; sha256sum < /bivouac/x > /bivouac/sum").ok();
    // From a node, over the network to the other.
    for node in &net.names {
        let script = format!("sha256sum < /bivouac/x | cmp - /bivouac/sum && echo {node} > /bivouac/{node}");
        on_node(node, &site, &name, &script).ok();
    }
    assert_eq!(site.sh(&name, "cat /bivouac/bvt*").ok(), format!("{}\n{}\n", net.names[0], net.names[1]));
    // What a node makes in a directory for that begins on its own server, and by default nowhere in
    // particular.
    site.sh(&name, "mkdir /bivouac/own").ok();
    site.bivouac(["layout", "-d", &name, "--first", "local", "--width", "1", "/own"]).ok();
    for node in &net.names {
        let script = format!("for i in 1 2 3 4 5; do head -c 10000 /dev/zero > /bivouac/own/{node}-$i; done");
        on_node(node, &site, &name, &script).ok();
        for i in 1..=5 {
            let shown = site.bivouac(["layout", "-d", &name, &format!("/own/{node}-{i}")]).ok();
            assert!(shown.contains(&format!("({node})")), "{shown}");
            assert_eq!(shown.matches("server ").count(), 1, "{shown}");
        }
    }
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|d| d.1).collect();
    assert_eq!(pids.len(), 5, "two servers, and an agent on each node and this machine");
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &pids);
}

/// The controller is not the first agent on record here: it has to be found, because any other agent would only end itself.
#[test]
fn all_daemons_end_by_themselves_when_the_deployment_is_taken_down() {
    let Some(net) = nodes() else { return };
    let site = Site::in_memory("netns-down");
    let name = net.deploy(&site, &[]);
    assert_ne!(site.status(&name)["leader"], 0, "or else this says nothing");
    site.bivouac(["down", "--keep", &name]).ok();
    for log in std::fs::read_dir(site.home().join(&name).join("logs")).expect("listed") {
        let log = log.expect("an entry").path();
        let text = std::fs::read_to_string(&log).expect("a log");
        assert!(text.contains("stopped"), "{} was killed: {text}", log.display());
    }
}

#[test]
fn a_node_whose_link_is_cut_is_down_within_two_seconds_and_comes_back_with_its_files() {
    let Some(net) = nodes() else { return };
    let site = Site::new("cut");
    let name = net.deploy(&site, &[]);
    let fill = "for i in $(seq 1 20); do mkdir /bivouac/d$i; echo content $i > /bivouac/d$i/f; done";
    on_node(&net.names[0], &site, &name, fill).ok();
    let read = "ok=0; io=0; for i in $(seq 1 20); do if out=$(cat /bivouac/d$i/f 2>&1); then \
        [ \"$out\" = \"content $i\" ] && ok=$((ok + 1)) || echo \"wrong: $out\"; else case $out in \
        *'Input/output error'*) io=$((io + 1));; *) echo \"other: $out\";; esac; fi; done; echo $ok $io $((ok + io))";
    assert_eq!(on_node(&net.names[0], &site, &name, read).ok(), "20 0 20\n");
    let state = || site.status(&name)["servers"][1]["state"].as_str().map(str::to_owned);
    net.link(1, false);
    let took = eventually("down", || state().as_deref() == Some("down"));
    // Two seconds, and then what `status` itself takes to give up on the node, where the machine has time;
    // never the ten after which a server is down that only hangs.
    assert!(took < Duration::from_secs(8), "{took:?}");
    let start = Instant::now();
    let counts = on_node(&net.names[0], &site, &name, read).ok();
    assert!(counts.ends_with(" 20\n") && !counts.starts_with("20 "), "{counts}");
    assert!(start.elapsed() < HANG / 2, "{:?}", start.elapsed());
    net.link(1, true);
    eventually("up again", || state().as_deref() == Some("up"));
    for node in &net.names {
        assert_eq!(on_node(node, &site, &name, read).ok(), "20 0 20\n");
    }
}

#[test]
fn what_a_call_returned_is_seen_on_every_node() {
    let Some(net) = nodes() else { return };
    let site = Site::new("turns");
    let name = net.deploy(&site, &["--block-size", "16K"]);
    let turns = format!("{}/programs/turns.py", env!("CARGO_MANIFEST_DIR"));
    // One file, written, truncated and read in turns on two nodes; on each node a worker in each way of
    // access.
    let mut command = Command::new("python3");
    command.args([&turns, "600", "3", "no"]).env("BIVOUAC_HOME", site.home());
    for node in &net.names {
        for access in accesses() {
            command.arg(format!(
                "ip netns exec {node} {} exec {name} --access {access} -- python3 -B {turns} work /bivouac/turns",
                bivouac().display()
            ));
        }
    }
    assert_eq!(finish(command).ok(), "600 operations\n");
}

#[test]
fn locks_hold_among_nodes_and_go_with_a_killed_client() {
    let Some(net) = nodes() else { return };
    let site = Site::new("netlocks");
    let name = net.deploy(&site, &[]);
    let holder = r#"python3 -B - <<'END'
import fcntl, os, struct, time
files = [open(f'/bivouac/{kind}', 'r+') for kind in ('process', 'description', 'whole')]
fcntl.lockf(files[0], fcntl.LOCK_EX)
fcntl.fcntl(files[1], 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))
fcntl.flock(files[2], fcntl.LOCK_EX)
open('/bivouac/ready', 'w').close()
while not os.path.exists('/bivouac/go'): time.sleep(0.02)
os.kill(os.getpid(), 9)
END"#;
    let waiter = r#"python3 -B - <<'END'
import errno, fcntl, os, signal, struct, time
names = ('process', 'description', 'whole')
while not os.path.exists('/bivouac/ready'): time.sleep(0.02)
def take(file, wait):
    kind = os.path.basename(file.name)
    try:
        if kind == 'process': fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        elif kind == 'whole': fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        else: fcntl.fcntl(file, 38 if wait else 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))
        return 'taken'
    except OSError as e:
        return errno.errorcode[e.errno]
files = [open(f'/bivouac/{kind}', 'r+') for kind in names]
print(*[take(file, False) for file in files])
pids = []
for file in files:
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        again = open(file.name, 'r+')
        os._exit(take(again, True) != 'taken')
    pids.append(pid)
time.sleep(0.3)
print([os.waitpid(pid, os.WNOHANG)[0] for pid in pids])
open('/bivouac/go', 'w').close()
print([os.waitpid(pid, 0)[1] for pid in pids])
END"#;
    for access in accesses() {
        let prepare = "rm -f /bivouac/*; touch /bivouac/process /bivouac/description /bivouac/whole";
        on_node(&net.names[0], &site, &name, prepare).ok();
        let said = std::thread::scope(|scope| {
            let held = scope.spawn(|| on_node_by(access, &net.names[0], &site, &name, holder));
            let said = on_node_by(access, &net.names[1], &site, &name, waiter).ok();
            assert_eq!(held.join().expect("it ends").code, 137, "{access}");
            said
        });
        assert_eq!(said, "EAGAIN EAGAIN EAGAIN\n[0, 0, 0]\n[0, 0, 0]\n", "{access}");
    }
}
