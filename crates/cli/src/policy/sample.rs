//! What a policy sees of a deployment: how full and how busy its servers are, and what is under way.
//!
//! Servers count bytes since their start; a [`Meter`] makes rates of what they say in two looks. What goes through a server
//! in its busier direction is compared with what its link carries. What processes of its node read and write directly takes
//! no link, and is kept apart: more servers would not make it faster, but without the server it would go over the network.

use super::decide::{Load, Pool, Sample, UnderWay};
use super::settings::Settings;
use crate::home::Record;
use crate::status;
use crate::text::{plural, size};
use bivouac_layout::{Map, NodeId, Server, ServerId, ServerState};
use bivouac_proto::auth::Key;
use bivouac_proto::control::Stats;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Makes rates of counters.
#[derive(Default)]
pub struct Meter {
    before: BTreeMap<ServerId, (Instant, Stats)>,
}

/// Bytes per second, through a server and past it, each in the busier direction.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Rates {
    through: u64,
    direct: u64,
}

impl Meter {
    /// What was transferred since the last look. A server that was started again since counts from 0; it is not known what it
    /// transferred.
    fn rates(&mut self, server: ServerId, now: Instant, stats: &Stats) -> Rates {
        let Some((then, before)) = self.before.insert(server, (now, *stats)) else { return Rates::default() };
        let millis = now.saturating_duration_since(then).as_millis().max(1);
        let rate = |count: fn(&Stats) -> u64| {
            let bytes = count(stats).saturating_sub(count(&before));
            (u128::from(bytes) * 1000 / millis) as u64
        };
        Rates {
            through: rate(|stats| stats.bytes_read).max(rate(|stats| stats.bytes_written)),
            direct: rate(|stats| stats.direct_read).max(rate(|stats| stats.direct_written)),
        }
    }
}

/// Looks at all servers.
pub fn look(
    record: &Record,
    key: &Key,
    map: &Map,
    settings: &Settings,
    meter: &mut Meter,
    (at, spares): (Duration, usize),
) -> Sample {
    let takes_part = |server: &&Server| !map.is_given_up(server.id);
    let servers: Vec<&Server> = map.servers.iter().filter(takes_part).collect();
    let answers: Vec<(Instant, Option<Stats>)> = std::thread::scope(|scope| {
        let ask =
            |server| scope.spawn(move || (Instant::now(), status::counted(server, record.deployment, key)));
        let asked: Vec<_> = servers.iter().map(|server| ask(*server)).collect();
        asked.into_iter().map(|one| one.join().unwrap_or((Instant::now(), None))).collect()
    });
    let silent = servers.iter().zip(&answers).find(|(_, (_, stats))| stats.is_none());
    let mut pools: Vec<(NodeId, u64, Pool)> = Vec::new();
    let mut loads = Vec::new();
    for (server, (now, stats)) in servers.iter().zip(&answers) {
        let Some(stats) = stats else { continue };
        let Rates { through, direct } = meter.rates(server.id, *now, stats);
        let is_same =
            |(node, device, _): &(NodeId, u64, Pool)| (*node, *device) == (server.node, stats.device);
        let pool = pools.iter().position(is_same).unwrap_or_else(|| {
            pools.push((server.node, stats.device, Pool { available: stats.available }));
            pools.len() - 1
        });
        let host = map.node(server.node).map_or("", |node| node.host.as_str());
        loads.push(Load {
            id: server.id,
            pool,
            stored: stats.stored,
            rate: through,
            direct,
            on_spare: settings.spares.iter().any(|spare| spare.eq_ignore_ascii_case(host)),
        });
    }
    Sample {
        at,
        servers: loads,
        pools: pools.into_iter().map(|(.., pool)| pool).collect(),
        under_way: under_way(map).or(silent.map(|(server, _)| UnderWay::Silent(server.id))),
        given_up: servers.len() < map.servers.len(),
        spares,
        copies: map.copies,
    }
}

/// What is under way by the map, and is not disturbed.
pub fn under_way(map: &Map) -> Option<UnderWay> {
    let is_down = |server: &&Server| {
        server.state != ServerState::Up && !map.is_given_up(server.id) && !map.arriving.contains(&server.id)
    };
    if let Some(down) = map.servers.iter().find(is_down) {
        return Some(UnderWay::Down(down.id));
    }
    let all = [
        (!map.arriving.is_empty(), UnderWay::Arriving),
        (!map.departing.is_empty(), UnderWay::Departing),
        (map.rebuild.is_some(), UnderWay::Rebuild),
        (map.balancing || !map.moving.is_empty(), UnderWay::Shards),
        (status::incomplete(map).0 > 0, UnderWay::Copies),
    ];
    all.into_iter().find_map(|(is, what)| is.then_some(what))
}

/// A share in thousandths, for a person.
pub fn percent(permille: u64) -> String {
    format!("{}.{}%", permille / 10, permille % 10)
}

/// What was seen, for a person. `link`: what a server can transfer.
pub fn in_words(sample: &Sample, link: u64) -> String {
    let mut text = plural(sample.servers.len(), "server");
    if let Some((server, full)) = sample.fullest() {
        text.push_str(&format!(
            "; fullest {} (server {server}), together {}",
            percent(full),
            percent(sample.together())
        ));
    }
    if let Some(busiest) = sample.busiest() {
        let (rate, id) = (size(busiest.rate), busiest.id);
        text.push_str(&format!("; busiest {rate}/s of {}/s (server {id})", size(link)));
    }
    let direct = sample.servers.iter().map(|server| server.direct).max().unwrap_or(0);
    text.push_str(&format!(", directly {}/s", size(direct)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_busier_direction_and_of_a_restarted_server_nothing_is_known() {
        let mut meter = Meter::default();
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let stats = |read, written, direct| Stats {
            bytes_read: read,
            bytes_written: written,
            direct_read: direct,
            ..Stats::default()
        };
        let id = ServerId(3);
        assert_eq!(meter.rates(id, at(0), &stats(1000, 0, 50)), Rates::default());
        assert_eq!(meter.rates(id, at(2), &stats(2000, 4000, 150)), Rates { through: 2000, direct: 50 });
        assert_eq!(meter.rates(id, at(3), &stats(10, 20, 0)), Rates::default());
        assert_eq!(meter.rates(id, at(4), &stats(30, 20, 7)), Rates { through: 20, direct: 7 });
        assert_eq!(meter.rates(id, at(4), &stats(40, 20, 7)).through, 10_000, "no division by zero");
        assert_eq!(percent(873), "87.3%");
    }
}
