//! The access patterns of the paper that this explorer is after: J. L. Bez et al., "Towards On-Demand I/O
//! Forwarding in HPC Platforms" (2020), its Table 2 and its 189 scenarios.
//!
//! The paper's processes write with O_DIRECT until a total is transferred or a stonewall is reached; it does not
//! say which. Nodes and processes are those of a large machine: [`Scale`] fits them to a smaller one.

use crate::patterns::{Layout, Operation, PROCESSES_MAX, Pattern, Phase, Spatiality, TOTAL_MAX};

const KIB: u64 = 1 << 10;
/// Bytes of a phase, unless something else is asked for: enough for a request of each process of every scenario.
pub const TOTAL: u64 = 32 << 30;
/// Seconds of a phase, unless something else is asked for.
pub const STONEWALL: f64 = 10.0;
/// Most nodes of a scenario.
pub const NODES: u32 = 32;
/// Most processes of a scenario.
pub const PROCESSES: u32 = 1536;

use Layout::{Own, Shared};
use Spatiality::{Contiguous, Strided};

/// Table 2: name, nodes, processes, layout, spatiality, request in KiB.
const TABLE2: [(&str, u32, u32, Layout, Spatiality, u64); 20] = [
    ("A", 32, 1536, Own, Contiguous, 1024),
    ("B", 32, 1536, Own, Contiguous, 128),
    ("C", 32, 1536, Shared, Contiguous, 1024),
    ("D", 32, 1536, Shared, Contiguous, 4096),
    ("E", 32, 1536, Shared, Strided, 512),
    ("F", 16, 192, Shared, Contiguous, 32),
    ("G", 16, 192, Shared, Strided, 128),
    ("H", 8, 192, Own, Contiguous, 8192),
    ("I", 8, 192, Shared, Strided, 8192),
    ("J", 16, 384, Shared, Contiguous, 128),
    ("K", 16, 384, Shared, Contiguous, 8192),
    ("L", 32, 384, Shared, Strided, 4096),
    ("M", 32, 384, Shared, Strided, 512),
    ("N", 8, 384, Shared, Contiguous, 4096),
    ("O", 16, 768, Shared, Contiguous, 1024),
    ("P", 32, 768, Shared, Contiguous, 1024),
    ("Q", 16, 768, Shared, Strided, 1024),
    ("R", 8, 96, Own, Contiguous, 8192),
    ("S", 8, 96, Shared, Strided, 6144),
    ("T", 8, 96, Shared, Contiguous, 512),
];

/// How patterns are fitted to what is there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scale {
    /// Nodes of what has 32 in the paper; others have their share, and at least one.
    pub nodes: Option<u32>,
    /// Processes of what has 1536 in the paper; others have their share, and at least one on each node.
    pub processes: Option<u32>,
    /// Bytes of a phase.
    pub total: Option<u64>,
    /// Seconds of a phase.
    pub stonewall: Option<f64>,
    /// Without O_DIRECT.
    pub buffered: bool,
}

/// Patterns A to T of Table 2.
pub fn table2(scale: &Scale) -> Vec<Pattern> {
    let row = |(name, nodes, processes, layout, spatiality, request): &(_, _, _, _, _, _)| {
        let name: &&str = name;
        scaled(scale, (*name).to_owned(), *nodes, *processes, *layout, *spatiality, request * KIB)
    };
    TABLE2.iter().map(row).collect()
}

/// The 189 scenarios: 3 numbers of nodes, 3 of processes on each, 3 ways to lay out and go through files, and 7 sizes
/// of requests.
pub fn all(scale: &Scale) -> Vec<Pattern> {
    let mut patterns = Vec::new();
    for nodes in [8, 16, 32] {
        for on_each in [12, 24, 48] {
            for (word, layout, spatiality) in [
                ("own-contiguous", Own, Contiguous),
                ("shared-contiguous", Shared, Contiguous),
                ("shared-strided", Shared, Strided),
            ] {
                for request in [32, 128, 512, 1024, 4096, 6144, 8192] {
                    let processes = nodes * on_each;
                    let name = format!("n{nodes}-p{processes}-{word}-{request}k");
                    patterns.push(scaled(scale, name, nodes, processes, layout, spatiality, request * KIB));
                }
            }
        }
    }
    patterns
}

fn scaled(
    scale: &Scale,
    name: String,
    nodes: u32,
    processes: u32,
    layout: Layout,
    spatiality: Spatiality,
    request: u64,
) -> Pattern {
    let share = |of: u32, most: u32, given: Option<u32>| match given {
        // Rounded to the nearest; what is given is at most 2^20.
        Some(given) => {
            ((u64::from(of) * u64::from(given) * 2 + u64::from(most)) / (2 * u64::from(most))).max(1)
        }
        None => u64::from(of),
    };
    let wanted = share(processes, PROCESSES, scale.processes);
    let nodes = share(nodes, NODES, scale.nodes);
    let on_each = ((wanted * 2 + nodes) / (2 * nodes)).clamp(1, (PROCESSES_MAX / nodes).max(1));
    let least = request * nodes * on_each;
    let phase = Phase {
        operation: Operation::Write,
        layout,
        spatiality,
        request,
        total: Some(scale.total.unwrap_or(TOTAL).max(least).min(TOTAL_MAX)),
        stonewall: Some(scale.stonewall.unwrap_or(STONEWALL)),
        read_share: None,
        direct: !scale.buffered,
        fsync: false,
        think: 0.0,
    };
    let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Pattern { name, nodes: number(nodes), processes: number(nodes * on_each), phases: vec![phase] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patterns;
    use std::collections::HashSet;

    #[test]
    fn table_2_has_its_rows_and_each_is_one_of_the_189_scenarios() {
        let (table, all) = (table2(&Scale::default()), all(&Scale::default()));
        assert_eq!((table.len(), all.len()), (20, 189));
        let names: String = table.iter().map(|pattern| pattern.name.as_str()).collect();
        assert_eq!(names, "ABCDEFGHIJKLMNOPQRST");
        let different: HashSet<String> =
            all.iter().map(|p| format!("{} {} {:?}", p.nodes, p.processes, p.phases)).collect();
        assert_eq!(different.len(), 189);
        for row in table {
            let same =
                |p: &&Pattern| (p.nodes, p.processes, &p.phases) == (row.nodes, row.processes, &row.phases);
            assert!(all.iter().any(|p| same(&p)), "{row:?}");
        }
    }

    #[test]
    fn what_is_printed_can_be_read_at_every_scale() {
        for (nodes, processes, total) in [
            (None, None, None),
            (Some(2), Some(4), Some(1 << 20)),
            (Some(1), Some(1), Some(1)),
            (Some(64), Some(1 << 20), Some(TOTAL_MAX)),
        ] {
            let scale = Scale { nodes, processes, total, ..Scale::default() };
            for list in [table2(&scale), all(&scale)] {
                let text = patterns::print(&list).expect("JSON");
                assert_eq!(patterns::parse(&text).expect("is right"), list);
            }
        }
    }

    #[test]
    fn a_scale_keeps_proportions() {
        let scale = Scale { nodes: Some(4), processes: Some(16), total: Some(64 << 20), ..Scale::default() };
        let table = table2(&scale);
        let of = |name: &str| {
            let found = table.iter().find(|p| p.name == name).expect("is there");
            (found.nodes, found.processes)
        };
        assert_eq!((of("A"), of("O"), of("N"), of("R")), ((4, 16), (2, 8), (1, 4), (1, 1)));
        // 1536 processes have become 16, for which 64 MiB are enough with any request but the paper's largest.
        assert_eq!(table[0].phases[0].total, Some(64 << 20));
    }
}
