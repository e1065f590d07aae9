//! A server that others have replaced without its knowledge answers nobody any more, and the processes of its node
//! believe nothing that it told them.

use bivouac_tests::{Cut, Network, Site, eventually, on_node, skipped_without_root};
use rustix::process::Signal;
use std::time::Duration;

/// So many files that the server in question answers for some of them.
const FILES: usize = 8;

/// Looks at each file again and again, by its attributes and by its content, and notes when each look began and how long
/// the file was, as far as there was an answer.
const WATCH: &str = r#"
import os, sys, time
out, stop = sys.argv[1], sys.argv[2]
for number in range(int(sys.argv[3])):
    if os.fork(): continue
    path, log = f'/bivouac/f{number}', open(f'{out}.{number}', 'w', buffering=1)
    f = os.open(path, os.O_RDONLY)
    while not os.path.exists(stop):
        for look in (lambda: os.stat(path).st_size, lambda: len(os.pread(f, 1 << 20, 0))):
            begun = time.monotonic()
            try: log.write(f'{begun} {look()}\n')
            except OSError: pass
        time.sleep(0.01)
    os._exit(0)
try:
    while True: os.wait()
except ChildProcessError: pass
"#;

/// What programs on the node of a server see, when the server is kept from everybody else, by `part`, and a program on
/// another node changes files in the meantime.
fn nobody_is_told_old_news(what: &str, part: impl Fn(&Network, &Site, &str, bool)) {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(3);
    let site = Site::in_memory(what);
    let name = net.deploy(&site, &["--replicas", "2"]);
    let (seen, stop) = (site.path("seen"), site.path("stop"));
    std::fs::write(site.path("watch.py"), WATCH).expect("written");
    let monotonic = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let of =
        |number: usize| std::fs::read_to_string(format!("{}.{number}", seen.display())).unwrap_or_default();
    let all_see = |size: &str| {
        let sees = |number| of(number).lines().rev().take(4).filter(|line| line.ends_with(size)).count() == 4;
        (0..FILES).all(sees)
    };
    let each = |script: &str| {
        let names: Vec<String> = (0..FILES).map(|number| format!("/bivouac/f{number}")).collect();
        let line = format!("for f in {}; do {script} || exit 1; done", names.join(" "));
        on_node(&net.names[0], &site, &name, &line).ok();
    };
    each("head -c 20000 /dev/zero > $f");
    let changed = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let program = site.path("watch.py");
            let (program, seen, stop) = (program.display(), seen.display(), stop.display());
            let line = format!("exec python3 -B {program} {seen} {stop} {FILES}");
            on_node(&net.names[1], &site, &name, &line)
        });
        eventually("they look", || all_see(" 20000"));
        part(&net, &site, &name, true);
        each("head -c 10000 /dev/zero >> $f");
        let changed = monotonic();
        std::thread::sleep(Duration::from_secs(2));
        part(&net, &site, &name, false);
        eventually("they see the change", || all_see(" 30000"));
        std::fs::write(&stop, "").expect("written");
        watch.join().expect("ends").ok();
        changed
    });
    for number in 0..FILES {
        for (begun, size) in of(number).lines().filter_map(|line| line.split_once(' ')) {
            let (begun, size): (f64, u64) = (begun.parse().expect("a time"), size.parse().expect("a size"));
            let late = begun - changed;
            assert!(
                size == 30000 || late <= 0.0,
                "file {number}: {size} bytes {late:.3} s after the change to 30000 had returned"
            );
        }
    }
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_server_that_is_cut_off_serves_nobody_on_its_own_node_after_its_lease() {
    nobody_is_told_old_news("cut-off", |net, _, _, is_parted| net.cut(1, Cut::Link, is_parted));
}

#[test]
fn a_server_that_is_stopped_for_longer_than_its_lease_serves_nothing_old_when_it_goes_on() {
    nobody_is_told_old_news("stopped", |_, site, name, is_parted| {
        let signal = if is_parted { Signal::STOP } else { Signal::CONT };
        Site::kill(site.server_pid(name, 1), signal);
    });
}

#[test]
fn status_shows_leases_and_counts_servers_that_were_replaced_although_they_lived() {
    let site = Site::in_memory("leases");
    let name = site.up_with(3, &["--replicas", "2", "--lease", "0.5"]);
    let lease = |server: usize| site.status(&name)["servers"][server]["lease_ms"].clone();
    eventually("there are leases", || (0..3).all(|server| lease(server).as_u64().is_some_and(|ms| ms > 0)));
    assert_eq!(site.status(&name)["false_failovers"], 0);
    let pid = site.server_pid(&name, 2);
    Site::stop(pid);
    let state = || site.status(&name)["servers"][2]["state"].clone();
    eventually("it is down", || state() == "down");
    Site::kill(pid, Signal::CONT);
    eventually("it is up", || state() == "up");
    assert_eq!(site.status(&name)["false_failovers"], 1);
    site.bivouac(["down", &name]).ok();
    let name = site.up(1);
    assert!(site.status(&name)["servers"][0]["lease_ms"].is_null(), "nothing has copies");
    site.bivouac(["down", &name]).ok();
    site.bivouac(["up", "wrong", "--lease", "0.1"]).fails(2, &["0.4"]);
}
