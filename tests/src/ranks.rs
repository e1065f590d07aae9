//! An MPI program on all nodes of a network: its ranks write a file together, and check all that they read.

use crate::{Network, Site, bivouac, finish};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What MPICH's launcher is given to start something on a node that is a network namespace.
const REACH: &str = "#!/bin/sh\nnode=$1; shift\nexec ip netns exec \"$node\" sh -c \"$*\"\n";

/// Starts a rank on each of four nodes, in a directory that programs in the deployment see, until there is a file `stop`. In the
/// directory, the file `rounds` says how far they are.
pub fn start(net: &Network, site: &Site, name: &str, directory: &str, stop: &Path) -> Child {
    let (program, reach) = (site.path("mpi_grows"), site.path("reach"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/mpi_grows.c");
    let mut compiler = Command::new("mpicc.mpich");
    compiler.args(["-O2", "-o"]).arg(&program).arg(source);
    finish(compiler).ok();
    std::fs::write(&reach, REACH).expect("written");
    std::fs::set_permissions(&reach, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut ranks = Command::new("mpiexec.mpich");
    ranks.args(["-launcher", "rsh", "-launcher-exec"]).arg(&reach);
    ranks.args(["-localhost", &net.host_address(), "-hosts", &net.names.join(","), "-n", "4"]);
    ranks.arg(bivouac()).args(["exec", name, "--"]).arg(&program).arg(directory).arg(stop);
    // What ranks tell each other goes through memory, which reaches from namespace to namespace. By TCP, MPICH 4.0 hangs in
    // MPI_Finalize, also on a local directory.
    ranks.env("UCX_TLS", "sm,self").env("BIVOUAC_HOME", site.home());
    ranks.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("mpiexec starts")
}

/// What they say when they have ended; they have found everything as they had written it.
pub fn verified(ranks: &mut Child) -> String {
    let mut said = String::new();
    ranks.stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(ranks.wait().expect("ends").success(), "a rank has failed: {said}");
    assert!(said.starts_with("ok ") && said.trim_end().ends_with("read and verified"), "{said}");
    said
}
