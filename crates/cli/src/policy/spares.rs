//! Which of the hosts to grow onto can get a server now.
//!
//! A host has none of the deployment's servers, and has not failed lately. One that failed is tried again: after the settling
//! time first, then after twice that, and so on, after an hour at most.

use super::settings::has_server;
use bivouac_layout::Map;
use std::collections::BTreeMap;
use std::time::Duration;

/// A host that fails again and again is tried so often.
const LONGEST: Duration = Duration::from_secs(3600);

/// The hosts that have failed.
#[derive(Default)]
pub struct Failed(BTreeMap<String, Failure>);

struct Failure {
    /// When it is tried again.
    until: Duration,
    /// How long it was left alone this time.
    pause: Duration,
}

impl Failed {
    /// The hosts that could get a server now, in their order.
    pub fn usable(&self, spares: &[String], map: &Map, now: Duration) -> Vec<String> {
        let rests = |host: &String| self.0.get(host).is_some_and(|failure| now < failure.until);
        spares.iter().filter(|host| !has_server(map, host) && !rests(host)).cloned().collect()
    }

    /// A host has failed. After how long it is tried again.
    pub fn note(&mut self, host: &str, now: Duration, first: Duration) -> Duration {
        let pause = self.0.get(host).map_or(first, |failure| failure.pause * 2).min(LONGEST);
        self.0.insert(host.to_owned(), Failure { until: now + pause, pause });
        pause
    }

    /// A host has got a server.
    pub fn forget(&mut self, host: &str) {
        self.0.remove(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::{Founding, NodeId, Server, ServerId, ServerState, map::Node};

    #[test]
    fn hosts_with_servers_are_not_used_and_those_that_fail_rest_longer_each_time() {
        let address = "10.0.0.1:5".parse().expect("an address");
        let node = Node { id: NodeId(0), host: "N1".into(), agent: address, domain: 0 };
        let server = Server {
            id: ServerId(0),
            node: NodeId(0),
            address: "10.0.0.1:6".parse().expect("an address"),
            state: ServerState::Up,
            joined: 0,
            former: Vec::new(),
        };
        let map = Founding::new(7, "/m", vec![node], vec![server]).map().expect("a map");
        let spares: Vec<String> = ["n1", "n10", "n2"].map(String::from).to_vec();
        let seconds = Duration::from_secs;
        let mut failed = Failed::default();
        assert_eq!(failed.usable(&spares, &map, seconds(0)), ["n10", "n2"]);
        assert_eq!(failed.note("n10", seconds(0), seconds(60)), seconds(60));
        assert_eq!(failed.usable(&spares, &map, seconds(59)), ["n2"]);
        assert_eq!(failed.usable(&spares, &map, seconds(60)), ["n10", "n2"]);
        assert_eq!(failed.note("n10", seconds(60), seconds(60)), seconds(120));
        for _ in 0..20 {
            failed.note("n10", seconds(0), seconds(60));
        }
        assert_eq!(failed.note("n10", seconds(0), seconds(60)), LONGEST);
        failed.forget("n10");
        assert_eq!(failed.usable(&spares, &map, seconds(1)), ["n10", "n2"]);
    }
}
