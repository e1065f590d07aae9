//! Copies behind a bad network: all that servers ask each other, and all that programs ask servers, is delayed, lost,
//! cut off in the middle, or arrives after its sender has repeated it. No operation fails, nothing is lost or done
//! twice, and in the end all copies are the same.

mod common;

use bivouac_client::{Client, Handle, LockKind};
use bivouac_daemon::controller::ControlLink;
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_proto::verify::{Stage, VerifyRequest, VerifyState};
use bivouac_testing::faults::{Address, FaultProxy, Faults};
use bivouac_testing::{HANG, eventually};
use bivouac_transport::Endpoint;
use common::{Cluster, cluster_announced};
use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const SERVERS: u16 = 4;
const RECORD: usize = 3000;
const APPENDERS: u64 = 3;

fn faults() -> Faults {
    Faults {
        delay: Duration::ZERO..Duration::from_micros(300),
        cut_one_in: 300,
        lose_one_in: 300,
        late_one_in: 300,
        lateness: Duration::from_millis(1)..Duration::from_millis(300),
        ..Faults::default()
    }
}

/// A seeded order of what is tried.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What the programs share.
struct Work<'c> {
    client: Arc<Client>,
    cluster: &'c Cluster,
    stop: AtomicBool,
    done: AtomicU64,
    seed: u64,
}

impl Work<'_> {
    fn goes_on(&self) -> bool {
        self.done.fetch_add(1, Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed)
    }

    fn open(&self, path: &str) -> Arc<Handle> {
        self.cluster.open(path, libc::O_CREAT | libc::O_RDWR).expect("opens")
    }

    /// Makes, renames, links and removes names in a directory: they are those that there should be.
    fn names(&self) {
        let (client, root) = (&self.client, Ino::ROOT);
        let mut random = Random(self.seed);
        client.mkdir(root, b"names", 0o755).expect("made");
        let mut there = BTreeSet::new();
        for turn in 0_u64.. {
            if !self.goes_on() {
                break;
            }
            let (new, path) = (format!("n{turn}"), format!("names/n{turn}"));
            if turn % 3 == 0 {
                client.mkdir(root, path.as_bytes(), 0o755).expect("made");
            } else {
                self.cluster.write(&path, new.as_bytes());
            }
            there.insert(new.clone());
            match random.below(4) {
                0 => {
                    let target = format!("r{turn}");
                    client
                        .rename(root, path.as_bytes(), root, format!("names/{target}").as_bytes(), 0)
                        .expect("renamed");
                    there.remove(&new);
                    there.insert(target);
                }
                1 if turn % 3 != 0 => {
                    let other = format!("l{turn}");
                    client
                        .link((root, path.as_bytes(), false), root, format!("names/{other}").as_bytes())
                        .expect("linked");
                    there.insert(other);
                }
                2 if turn % 3 == 0 => {
                    client.rmdir(root, path.as_bytes()).expect("removed");
                    there.remove(&new);
                }
                2 => {
                    client.unlink(root, path.as_bytes()).expect("removed");
                    there.remove(&new);
                }
                _ => {}
            }
        }
        let listed: BTreeSet<String> =
            self.cluster.names("names").into_iter().filter(|name| !name.starts_with('.')).collect();
        assert_eq!(listed, there);
    }

    /// Writes, truncates and reads a file: it has what was written last.
    fn blocks(&self) {
        let mut random = Random(self.seed + 1);
        let file = self.open("blocks");
        let mut content: Vec<u8> = Vec::new();
        let mut found = vec![0; 2 << 20];
        let mut turn = 0_u8;
        while self.goes_on() {
            turn = turn.wrapping_add(1);
            if random.below(5) == 0 {
                let size = random.below(content.len() as u64 + 30_000);
                file.truncate(size).expect("truncated");
                content.resize(size as usize, 0);
            } else {
                let at = random.below(content.len().min(1_000_000) as u64 + 50_000) as usize;
                let len = [1, 100, 5000, 70_000, 200_000][random.below(5) as usize];
                let data: Vec<u8> = (0..len).map(|at| turn ^ (at / 100) as u8).collect();
                let mut written = 0;
                while written < len {
                    let rest = [IoSlice::new(&data[written..])];
                    written += file.pwrite((at + written) as u64, &rest).expect("written");
                }
                content.resize(content.len().max(at + len), 0);
                content[at..at + len].copy_from_slice(&data);
            }
            let mut count = 0;
            loop {
                let read =
                    file.pread(count as u64, &mut [IoSliceMut::new(&mut found[count..])]).expect("read");
                count += read;
                if read == 0 {
                    break;
                }
            }
            assert_eq!(count, content.len());
            let other = found.iter().zip(&content).position(|(found, written)| found != written);
            assert_eq!(other, None, "of {count} bytes");
        }
        self.client.closed(file.id());
    }

    /// Appends records to a file that all appenders share. How many.
    fn appends(&self, me: u64) -> u64 {
        let file = self.cluster.open("log", libc::O_CREAT | libc::O_WRONLY | libc::O_APPEND).expect("opens");
        let mut turn = 0;
        while self.goes_on() {
            let record = format!("{:<width$}\n", format!("{me} {turn}"), width = RECORD - 1);
            assert_eq!(file.write(&[IoSlice::new(record.as_bytes())]), Ok(RECORD));
            turn += 1;
        }
        self.client.closed(file.id());
        turn
    }

    /// Counts in a file under a lock, which each has to ask for until it gets it. How often.
    fn counts(&self) -> u64 {
        let file = self.open("count");
        let mut count = 0;
        while self.goes_on() {
            match file.lock(LockKind::Description, true, 0, 8) {
                Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
                locked => {
                    locked.expect("locked");
                    let mut value = [0; 8];
                    file.pread(0, &mut [IoSliceMut::new(&mut value)]).expect("read");
                    let next = u64::from_ne_bytes(value) + 1;
                    assert_eq!(file.pwrite(0, &[IoSlice::new(&next.to_ne_bytes())]), Ok(8));
                    file.unlock(LockKind::Description, 0, 8).expect("unlocked");
                    count += 1;
                }
            }
        }
        self.client.closed(file.id());
        count
    }
}

/// The records of the log are those of the appenders, in the order of each, and nothing else.
fn check_log(cluster: &Cluster, appended: &[u64]) {
    let log = cluster.read("log");
    assert_eq!(log.len() as u64, appended.iter().sum::<u64>() * RECORD as u64);
    let mut next = vec![0; appended.len()];
    for (at, record) in log.chunks(RECORD).enumerate() {
        let text = std::str::from_utf8(record).unwrap_or_default();
        let words: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [me, turn] = words[..] else { panic!("record {at} is {text:?}") };
        assert_eq!(turn, next[me as usize], "record {at} is of {me}");
        next[me as usize] += 1;
    }
    assert_eq!(next, appended);
}

/// Compares all copies and logs.
fn verify(cluster: &Cluster) {
    for stage in [Stage::Own, Stage::Together] {
        let links = cluster.daemons.iter().map(|daemon| {
            let endpoint = Endpoint::Tcp(daemon.address.expect("a server"));
            ControlLink::connect(&endpoint, &cluster.key, cluster.map.deployment, HANG).expect("connected")
        });
        for mut link in links {
            link.tell(ControlRequest::Verify(VerifyRequest::Start { stage, dry_run: true, rate: 0 }))
                .expect("begun");
            let mut state = VerifyState::default();
            eventually("it is verified", || {
                match link.request(ControlRequest::Verify(VerifyRequest::State { from: 0 })) {
                    Ok(Some(ControlReply::Verify(now))) => state = *now,
                    other => panic!("{other:?}"),
                }
                !state.is_running
            });
            assert_eq!((state.findings, state.progress.skipped), (Vec::new(), 0), "{stage:?}");
        }
    }
}

#[test]
fn nothing_is_lost_or_done_twice_behind_a_bad_network() {
    // SAFETY: this is the only test of its process, and nothing else runs in it yet. With this, clients take the way over
    // the network to servers of their own node.
    unsafe { std::env::set_var("BIVOUAC_LOCAL", "0") };
    let number =
        |name: &str, otherwise| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise);
    let clock = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_secs());
    let (seed, seconds) = (number("BIVOUAC_FAULTY_SEED", clock), number("BIVOUAC_FAULTY_SECONDS", 20));
    println!("seed {seed}, {seconds} s (BIVOUAC_FAULTY_SEED, BIVOUAC_FAULTY_SECONDS)");
    for copies in [2, 3] {
        let mut proxies = Vec::new();
        let cluster =
            cluster_announced(&format!("faulty{copies}"), SERVERS, copies, |ServerId(id), address| {
                let seed = seed + u64::from(id);
                let proxy =
                    FaultProxy::start(&Address::loopback(), Address::Tcp(address), seed).expect("it listens");
                let Address::Tcp(announced) = *proxy.address() else { panic!("of TCP") };
                proxies.push(proxy);
                announced
            });
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let work = Work { client: cluster.client.clone(), cluster: &cluster, stop, done, seed };
        work.open("count").pwrite(0, &[IoSlice::new(&[0; 8])]).expect("written");
        proxies.iter().for_each(|proxy| proxy.set(faults()));
        let (appended, counted) = std::thread::scope(|scope| {
            let others = [scope.spawn(|| work.names()), scope.spawn(|| work.blocks())];
            let work = &work;
            let appends: Vec<_> = (0..APPENDERS).map(|me| scope.spawn(move || work.appends(me))).collect();
            let counts: Vec<_> = (0..2).map(|_| scope.spawn(|| work.counts())).collect();
            std::thread::sleep(Duration::from_secs(seconds) / 2);
            work.stop.store(true, Ordering::Relaxed);
            others.into_iter().for_each(|thread| thread.join().expect("nothing was wrong"));
            let ends = |threads: Vec<std::thread::ScopedJoinHandle<'_, u64>>| -> Vec<u64> {
                threads.into_iter().map(|thread| thread.join().expect("nothing was wrong")).collect()
            };
            (ends(appends), ends(counts))
        });
        proxies.iter().for_each(|proxy| proxy.set(Faults::default()));
        let done = work.done.load(Ordering::Relaxed);
        let dealt: u64 = proxies.iter().map(FaultProxy::dealt).sum();
        println!("{copies} copies: {dealt} faults, {done} turns, {appended:?} appends, {counted:?} counted");
        assert!(dealt > 10 * seconds, "{dealt} faults in {seconds} s prove nothing");
        check_log(&cluster, &appended);
        let count = cluster.read("count");
        assert_eq!(count, counted.iter().sum::<u64>().to_ne_bytes());
        eventually("all servers have everything", || {
            let mut link = ControlLink::connect(
                &Endpoint::Tcp(cluster.daemons[0].address.expect("a server")),
                &cluster.key,
                cluster.map.deployment,
                HANG,
            )
            .expect("connected");
            match link.request(ControlRequest::Group) {
                Ok(Some(ControlReply::Group { map, .. })) => {
                    map.behind.is_empty() && map.servers.iter().all(|server| map.is_up(server.id))
                }
                other => panic!("{other:?}"),
            }
        });
        verify(&cluster);
    }
}
