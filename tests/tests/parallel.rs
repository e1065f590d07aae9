//! An MPI program on all nodes of a deployment, which grows and shrinks meanwhile.

use bivouac_tests::{Network, Site, eventually, finish, on_node, skipped_without_root};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// What MPICH's launcher is given to start something on a node that is a network namespace.
const REACH: &str = "#!/bin/sh\nnode=$1; shift\nexec ip netns exec \"$node\" sh -c \"$*\"\n";

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
    let (program, reach, stop) = (site.path("mpi_grows"), site.path("reach"), site.path("stop"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/mpi_grows.c");
    let mut compiler = Command::new("mpicc.mpich");
    compiler.args(["-O2", "-o"]).arg(&program).arg(source);
    finish(compiler).ok();
    std::fs::write(&reach, REACH).expect("written");
    std::fs::set_permissions(&reach, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    on_node(&net.names[0], &site, &name, "mkdir /bivouac/mpi").ok();
    let mut ranks = Command::new("mpiexec.mpich");
    ranks.args(["-launcher", "rsh", "-launcher-exec"]).arg(&reach);
    ranks.args(["-localhost", &net.host_address(), "-hosts", &net.names.join(","), "-n", "4"]);
    ranks.arg(bivouac_tests::bivouac()).args(["exec", &name, "--"]).arg(&program);
    ranks.arg("/bivouac/mpi").arg(&stop);
    // What ranks tell each other goes through memory, which reaches from namespace to namespace. By TCP, MPICH 4.0 hangs in
    // MPI_Finalize, also on a local directory.
    ranks.env("UCX_TLS", "sm,self").env("BIVOUAC_HOME", site.home());
    let mut ranks = ranks.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("mpiexec starts");
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
    let mut said = String::new();
    ranks.stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(ranks.wait().expect("ends").success(), "a rank has failed: {said}");
    println!("{said}");
    assert!(said.starts_with("ok ") && said.trim_end().ends_with("read and verified"), "{said}");
    let verified = site.bivouac(["verify", &name]).ok();
    assert!(verified.contains("everything that was checked is as it should be"), "{verified}");
    site.bivouac(["down", &name]).ok();
}
