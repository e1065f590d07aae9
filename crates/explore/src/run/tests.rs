//! Whole runs, with nodes and processes that are threads of this one.

use super::*;
use crate::patterns::{Layout, Operation, Phase, Spatiality};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A node whose processes are threads: it speaks the nodes' protocol itself.
fn node(name: &str) -> Link {
    let (here, there) = UnixStream::pair().expect("a pair");
    let thread = std::thread::spawn(move || serve(there));
    let whole = here.try_clone().expect("a copy");
    let end = move || {
        // What is one socket here is two pipes elsewhere.
        let _ = whole.shutdown(std::net::Shutdown::Both);
        let _ = thread.join();
        String::new()
    };
    Link::new(name.into(), Box::new(here.try_clone().expect("a copy")), Box::new(here), Box::new(end))
}

fn serve(stream: UnixStream) {
    let mut output = stream.try_clone().expect("a copy");
    let mut loads: Vec<crate::load::Load> = Vec::new();
    for line in BufReader::new(stream).lines().map_while(std::result::Result::ok) {
        let answer = match serde_json::from_str(&line).expect("an order") {
            NodeOrder::Look { .. } => {
                NodeAnswer::Seen(Seen { boot: "b".into(), load: 1.5, file_system: None })
            }
            NodeOrder::Start { first, count, work, .. } => {
                let Work::Run(task) = *work else { panic!("a run") };
                let begin = |rank| crate::load::Load::begin(task.clone(), rank).expect("begins");
                loads = (first..first + count).map(begin).collect();
                NodeAnswer::Started { forwarded: None }
            }
            NodeOrder::Pass(order) => NodeAnswer::Answers(
                loads
                    .iter_mut()
                    .map(|load| {
                        let done = match &order {
                            Order::Prepare(phase) => load.prepare(*phase).map(Answer::Prepared),
                            Order::Open(phase) => load.open(*phase).map(|()| Answer::Ready),
                            Order::Go { phase, prepared } => load.go(*phase, *prepared).map(Answer::Done),
                            Order::Verify { phase, done } => {
                                load.verify(*phase, done).map(|()| Answer::Ready)
                            }
                            Order::Clean(phase) => load.clean(*phase).map(|()| Answer::Ready),
                            Order::End => load.end().map(|()| Answer::Ready),
                            Order::Begin(..) | Order::Try(_) => Err("twice".into()),
                        };
                        done.unwrap_or_else(Answer::Failed)
                    })
                    .collect(),
            ),
            NodeOrder::DropCaches => NodeAnswer::Dropped(false),
            NodeOrder::Stop => NodeAnswer::Stopped,
        };
        writeln!(output, "{}", serde_json::to_string(&answer).expect("JSON")).expect("written");
    }
    loads.iter_mut().for_each(crate::load::Load::give_up);
}

fn pattern() -> Pattern {
    let phase = Phase {
        operation: Operation::Write,
        layout: Layout::Shared,
        spatiality: Spatiality::Strided,
        request: 4096,
        total: Some(64 << 10),
        stonewall: None,
        read_share: None,
        direct: false,
        fsync: false,
        think: 0.0,
    };
    let read = Phase { operation: Operation::Read, layout: Layout::Own, ..phase.clone() };
    Pattern { name: "x".into(), nodes: 2, processes: 4, phases: vec![phase, read] }
}

fn measured(links: &mut [Link], place: &Path, stop: &dyn Fn() -> bool) -> Result<Measured> {
    let counted = std::cell::Cell::new(0);
    let counts = || {
        counted.set(counted.get() + 5);
        Some(Counts { requests_in: counted.get(), bytes_out: 1, ..Counts::default() })
    };
    let directory = place.join("all/run").to_string_lossy().into_owned();
    let conditions = Conditions {
        deployment: "d",
        directory: &directory,
        run: 7,
        forwarded: false,
        verify: true,
        drop_caches: true,
        counts: &counts,
        stop,
    };
    measure(links, &pattern(), &conditions)
}

#[test]
fn all_bytes_of_all_phases_are_counted_and_nothing_is_left() {
    let place = tempfile::tempdir().expect("a directory");
    let mut links = vec![node("a"), node("b"), node("not used")];
    let done = measured(&mut links, place.path(), &|| false).expect("is measured");
    let phases: Vec<_> = done.phases.iter().map(|p| (p.operation, p.bytes, p.requests)).collect();
    assert_eq!(phases, [(Operation::Write, 64 << 10, 16), (Operation::Read, 64 << 10, 16)]);
    assert!(done.phases.iter().all(|p| p.seconds > 0.0 && p.bandwidth > 0.0));
    // Around each of the two phases: five each time.
    assert_eq!(done.counts, Some(Counts { requests_in: 10, ..Counts::default() }));
    assert!(done.load == 1.5 && !place.path().join("all").exists());
}

#[test]
fn who_stops_a_run_ends_it_and_too_few_nodes_are_told_of() {
    let place = tempfile::tempdir().expect("a directory");
    let mut links = vec![node("a"), node("b")];
    let asked = std::cell::Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() > 6
    };
    assert!(matches!(measured(&mut links, place.path(), &stop), Err(ExploreError::Interrupted)));
    end(&mut links);
    assert!(!place.path().join("all").exists());
    let error = measured(&mut [node("a")], place.path(), &|| false).expect_err("fails");
    assert_eq!(error.to_string(), "it takes 2 nodes, and there are 1");
}

#[test]
fn a_node_that_is_gone_ends_the_run_with_what_it_said() {
    let (here, there) = UnixStream::pair().expect("a pair");
    drop(there);
    let end = || "ssh: connect to host n7 port 22: No route to host".to_owned();
    let link =
        Link::new("n7".into(), Box::new(here.try_clone().expect("a copy")), Box::new(here), Box::new(end));
    let error = look(&mut [link], "/x", &|| false).expect_err("fails");
    assert_eq!(error.to_string(), "n7: ssh: connect to host n7 port 22: No route to host");
}
