//! Deployments and their servers as text, for people.

use super::report::{Counters, Deployment};
use crate::text::{count, imbalance, plural, size, table};

pub(super) fn list(deployments: &[Deployment]) -> String {
    if deployments.is_empty() {
        return "no deployments\n".into();
    }
    let mut rows = vec![vec!["NAME", "STATE", "SERVERS", "MOUNT", "FILES", "STORED", "FREE"]];
    let cells: Vec<Vec<String>> = deployments
        .iter()
        .map(|d| {
            let t = &d.totals;
            vec![
                d.name.clone(),
                d.state.word().into(),
                format!("{}/{}", t.servers_up, t.servers),
                d.mount.clone(),
                count(t.counters.inodes),
                size(t.counters.stored),
                size(t.counters.available),
            ]
        })
        .collect();
    let mut all: Vec<Vec<String>> =
        rows.drain(..).map(|r| r.into_iter().map(str::to_owned).collect()).collect();
    all.extend(cells);
    let mut text = table(&all, &[2, 4, 5, 6]);
    for deployment in deployments {
        if let Some(problem) = &deployment.problem {
            text.push_str(&format!("{}: {problem}\n", deployment.name));
        }
    }
    text
}

pub(super) fn one(d: &Deployment) -> String {
    let epoch = d.epoch.map_or(String::new(), |e| format!(", epoch {e}"));
    let mut text = format!(
        "{}: {} at {}, {} of {}, blocks of {}{epoch}\n",
        d.name,
        d.state.word(),
        d.mount,
        d.totals.servers_up,
        plural(d.totals.servers, "server"),
        size(d.block_size.into()),
    );
    if let Some(problem) = &d.problem {
        text.push_str(&format!("{problem}\n"));
    }
    if let [_, _, ..] = d.voters[..] {
        let voters: Vec<String> = d.voters.iter().map(u16::to_string).collect();
        let leader = d.leader.map_or("no controller".into(), |leader| format!("controller: node {leader}"));
        text.push_str(&format!("{leader}; the map is kept by nodes {}\n", voters.join(", ")));
    }
    let leaving = d.agents.iter().filter(|agent| agent.leaving).map(|agent| agent.host.as_str());
    let leaving: Vec<&str> = leaving.collect();
    if !leaving.is_empty() {
        text.push_str(&format!("{} will have left when no program there uses it\n", leaving.join(", ")));
    }
    text.push_str(&moves(d));
    if let Some(policy) = &d.policy {
        text.push_str(&format!("{}\n", policy.line(&d.name)));
    }
    if let Some(forwarding) = &d.forwarding {
        text.push_str(&format!("{}\n", forwarding.line()));
    }
    text.push_str(&servers_table(d));
    text
}

/// What is on its way between servers.
fn moves(d: &Deployment) -> String {
    let mut text = String::new();
    if d.moving_shards > 0 {
        text.push_str(&format!("{} of the metadata to be moved\n", plural(d.moving_shards, "piece")));
    }
    let sum = &d.totals.counters;
    if sum.lazy_files > 0 {
        let files = plural(sum.lazy_files as usize, "file");
        text.push_str(&format!("{files} ({}) still to be fetched from the backend", size(sum.lazy_bytes)));
        if sum.unfetchable > 0 {
            text.push_str(&format!(
                "; {} of them could not be: the servers' logs say why",
                count(sum.unfetchable)
            ));
        }
        text.push('\n');
    }
    if let Some(rebuild) = &d.rebuild {
        text.push_str(&format!(
            "files go to where they are to be: {} done, {} moved; {} left ({})",
            plural(rebuild.files_done as usize, "file"),
            size(rebuild.bytes_done),
            rebuild.files_left,
            size(rebuild.bytes_left)
        ));
        let reasons = [
            (rebuild.held, "wait until the programs end that have them mapped, or open in a mount"),
            (rebuild.failed, "could not be moved yet, and are tried again"),
        ];
        for (count, reason) in reasons.into_iter().filter(|(count, _)| *count > 0) {
            text.push_str(&format!("; {count} {reason}"));
        }
        if rebuild.no_room {
            text.push_str("; a server has no room for what it is to get: remove files, or add servers (`bivouac expand`)");
        }
        text.push('\n');
        for line in crate::holding::lines(&rebuild.held_by) {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}

pub(super) fn servers_table(d: &Deployment) -> String {
    let heading = [
        "SERVER", "HOST", "ADDRESS", "STATE", "CAPACITY", "FREE", "STORED", "FILES", "OPS", "READ", "WRITTEN",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let numbers = |c: Option<&Counters>| match c {
        Some(c) => vec![
            size(c.capacity),
            size(c.available),
            size(c.stored),
            count(c.inodes),
            count(c.operations()),
            size(c.read()),
            size(c.written()),
        ],
        None => vec!["-".to_owned(); 7],
    };
    for s in &d.servers {
        let address = s.address.clone().unwrap_or_else(|| "-".into());
        let state = match s {
            s if s.given_up => format!("{}, given up", s.state),
            s if s.departing => format!("{}, to leave", s.state),
            s => s.state.to_owned(),
        };
        let mut row = vec![s.id.to_string(), s.host.clone(), address, state];
        row.extend(numbers(s.counters.as_ref()));
        rows.push(row);
    }
    if d.servers.len() > 1 && d.totals.servers_up > 0 {
        let mut row =
            vec!["all".to_owned(), String::new(), String::new(), format!("{} up", d.totals.servers_up)];
        row.extend(numbers(Some(&d.totals.counters)));
        rows.push(row);
    }
    table(&rows, &[4, 5, 6, 7, 8, 9, 10])
}

/// How evenly the servers were used.
pub(super) fn evenness(d: &Deployment) -> String {
    let share = |what: &str, of: fn(&Counters) -> u64| {
        let shares: Vec<u64> = d.servers.iter().map(|s| s.counters.as_ref().map_or(0, of)).collect();
        imbalance(&shares).map(|i| format!("{what} {i:.2}"))
    };
    let parts: Vec<String> = [
        share("files", |c| c.inodes),
        share("stored bytes", |c| c.stored),
        share("operations", Counters::operations),
        share("bytes moved", Counters::moved),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() || d.servers.len() < 2 {
        return String::new();
    }
    format!("busiest server against the mean (1.00: perfectly even): {}\n", parts.join(", "))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_list_without_deployments_says_so() {
        assert_eq!(super::list(&[]), "no deployments\n");
    }
}
