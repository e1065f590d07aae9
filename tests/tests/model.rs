//! Random programs against a reference in memory: through all faces at once, and, so that the reference can
//! be believed, on a local file system.
//!
//! A long run: `BIVOUAC_MODEL_SECONDS=600 BIVOUAC_MODEL_CASES=1000000 BIVOUAC_MODEL_SEED=7 cargo test -p
//! bivouac-tests --test model`. `BIVOUAC_MODEL_CALLS` is the length of the longest program.

use bivouac_node::Environment;
use bivouac_tests::model::{Face, Library, Mover, Plan, Play, Rules};
use bivouac_tests::{
    Mounted, Site, accesses, bivouac, can_mount, default_signals, finish, skipped_without_mount,
};
use std::process::Command;

const CLIENT: &str = env!("CARGO_BIN_EXE_model_client");

#[test]
fn random_programs_through_all_faces_do_what_the_reference_does() {
    let site = Site::new("model");
    // Small blocks, so that files lie on all servers.
    let name = site.up_with(4, &["--block-size", "16K"]);
    let said = site.sh(&name, "chmod 755 $BIVOUAC_MOUNT; echo $BIVOUAC_MOUNT; echo $BIVOUAC_KEY").ok();
    let mut lines = said.lines().map(str::to_owned);
    let environment = Environment {
        name: name.clone(),
        mount: lines.next().expect("a mount"),
        key_path: lines.next().expect("a key"),
        mounted: None,
        forwarded: None,
        job: None,
    };
    let mut faces: Vec<Face> = accesses()
        .iter()
        .map(|access| {
            let command = site.command(["exec", &name, "--access", access, "--", CLIENT]);
            Face::process(access, *access != "preload", command)
        })
        .collect();
    if can_mount() {
        for (access, user) in [("fuse", (1001, 1001)), ("both", (1002, 1001))] {
            let command = site.command(["exec", &name, "--access", access, "--", CLIENT]);
            faces.push(Face::somebody(&format!("{access}, user {}", user.0), true, user, command));
        }
    }
    faces.push(Face::library(Library::attach(&environment)));
    let plan = Plan::from_environment(400);
    let rules = Rules { directory_sizes: true, zero_range: true, protected_links: true, paths_keep: false };
    let mut mover = Mover::start(site.command(["exec", &name, "--"]), &environment.mount);
    let played = Play::new(faces, &environment.mount, rules).all(&plan);
    mover.is_at_it();
    assert!(played > 10, "{played} programs in {:?} prove little", plan.limit);
}

/// A deployment of a user that is not root.
struct Ordinary {
    site: Site,
    name: String,
}

impl Ordinary {
    const USER: u32 = 1001;

    fn new() -> Ordinary {
        let site = Site::new("model-user");
        std::os::unix::fs::chown(site.path(""), Some(Self::USER), Some(Self::USER)).expect("root may");
        let ordinary = Ordinary { name: site.name("user"), site };
        finish(ordinary.command(&["up", &ordinary.name, "--servers", "4", "--block-size", "16K"])).ok();
        ordinary
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        let user = Self::USER.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(bivouac()).args(args);
        command.env("BIVOUAC_HOME", self.site.home()).current_dir("/");
        default_signals(&mut command);
        command
    }
}

impl Drop for Ordinary {
    fn drop(&mut self) {
        finish(self.command(&["down", &self.name]));
    }
}

/// Permissions are the preload library's own to look at, also in what it has cached.
#[test]
fn programs_of_an_ordinary_user_do_what_the_reference_does() {
    if skipped_without_mount() {
        return;
    }
    let ordinary = Ordinary::new();
    // Where that user gets to.
    let program = ordinary.site.path("client");
    std::fs::copy(CLIENT, &program).expect("a copy");
    let program = program.to_string_lossy();
    let faces = ["one", "two"].map(|name| {
        let client = ordinary.command(&["exec", &ordinary.name, "--", &program]);
        let mut face = Face::process(name, false, client);
        face.user = (Ordinary::USER, Ordinary::USER);
        face
    });
    let plan = Plan::from_environment(100);
    let rules = Rules { directory_sizes: true, zero_range: true, protected_links: true, paths_keep: false };
    let played = Play::new(faces.into(), "/bivouac", rules).all(&plan);
    assert!(played > 10, "{played} programs in {:?} prove little", plan.limit);
}

#[test]
fn the_reference_does_what_a_local_file_system_does() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("model-local");
    // Reading leaves access times alone.
    let local = Mounted::new(site.path("local"), "noatime");
    let faces = [0, 0, 1001, 1002].map(|user| {
        let mut command = Command::new(CLIENT);
        default_signals(&mut command);
        match user {
            0 => Face::process("root", false, command),
            user => Face::somebody(&format!("user {user}"), false, (user, 1001), command),
        }
    });
    let protected = std::fs::read_to_string("/proc/sys/fs/protected_hardlinks");
    let protected_links = protected.is_ok_and(|text| text.trim() != "0");
    let plan = Plan::from_environment(400);
    let rules = Rules { directory_sizes: false, zero_range: false, protected_links, paths_keep: true };
    let played = Play::new(faces.into(), &local.path().to_string_lossy(), rules).all(&plan);
    assert!(played > 10, "{played} programs in {:?} prove little", plan.limit);
}
