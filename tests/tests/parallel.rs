//! An MPI program on all nodes of a deployment, which grows and shrinks meanwhile.

use bivouac_tests::{Network, Site, eventually, on_node, ranks, skipped_without_root};
use std::time::Instant;

/// How far the program is.
fn round(site: &Site, name: &str, node: &str) -> u32 {
    on_node(node, site, name, "cat /bivouac/mpi/rounds").out.trim().parse().unwrap_or(0)
}

#[test]
fn ranks_on_four_nodes_verify_all_that_they_write_together_while_four_servers_become_two_and_four_and_two_again()
 {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(4);
    let site = Site::in_memory("mpi-grows");
    let name = net.deploy(&site, &["--block-size", "64K"]);
    let (begins, comes) = (net.names[..2].join(","), net.names[2..].join(","));
    let stop = site.path("stop");
    on_node(&net.names[0], &site, &name, "mkdir /bivouac/mpi").ok();
    let mut ranks = ranks::start(&net, &site, &name, "/bivouac/mpi", &stop);
    let at = || round(&site, &name, &net.names[0]);
    let goes_on = |what: &str| {
        let now = at();
        eventually(&format!("all ranks have done two rounds more {what}"), || at() >= now + 2);
    };
    goes_on("on four servers");
    let change = |words: &[&str]| {
        let (begun, before) = (Instant::now(), at());
        let said = site.bivouac(words).ok();
        println!("{} took {:?}, rounds {before} to {}\n{said}", words[0], begun.elapsed(), at());
    };
    // Ranks run on the hosts whose servers have left, too: so their agents stay.
    change(&["shrink", &name, "--hosts", &comes]);
    goes_on("on two");
    change(&["expand", &name, "--hosts", &comes]);
    goes_on("on four again");
    change(&["shrink", &name, "--hosts", &begins]);
    goes_on("on the two that have come");
    std::fs::write(&stop, "").expect("written");
    println!("{}", ranks::verified(&mut ranks));
    let verified = site.bivouac(["verify", &name]).ok();
    assert!(verified.contains("everything that was checked is as it should be"), "{verified}");
    site.bivouac(["down", &name]).ok();
}
