//! Which programs of the node a kernel holds files for.
//!
//! A server knows the session for which a kernel holds a file; the agent knows the process. That may be one
//! that serves a mount: then the programs meant are those that have the file open or mapped there. They are
//! looked for in `/proc`, only when somebody asks, and without a call that could wait for the mount.

use super::Agent;
use bivouac_layout::Ino;
use bivouac_proto::control::{HELD_MAX, HeldFile, Holder};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::Ordering;

/// The name of a process that serves a mount.
const MOUNT: &str = "bivouac";

impl Agent {
    /// Lets programs attach from now on, or not. Those that use the deployment at this moment, apart from
    /// those that copy it.
    pub(crate) fn admit(&self, programs: bool) -> Vec<(u32, String)> {
        let sessions = self.shared.sessions();
        self.shared.closed.store(!programs, Ordering::Release);
        let programs = sessions.processes.values().filter(|process| role(process.pid) == Role::Program);
        let alive = programs.filter(|process| !super::is_dead(&process.pidfd));
        let pids: BTreeSet<u32> = alive.map(|process| process.pid).collect();
        drop(sessions);
        pids.into_iter().map(|pid| (pid, command_of(pid))).collect()
    }

    /// Has nobody attach any more, if nobody on the node uses the deployment, and servers have heard of all that ended here;
    /// or only says whether that is so (`ask`). Who uses it.
    pub(crate) fn leave(&self, ask: bool) -> (bool, Vec<(u32, String)>) {
        let sessions = self.shared.sessions();
        let alive = sessions.processes.values().filter(|process| !super::is_dead(&process.pidfd));
        let pids: BTreeSet<u32> = alive.map(|process| process.pid).collect();
        let idle = sessions.processes.is_empty()
            && !self.shared.owes.load(Ordering::Acquire)
            && self.shared.table.in_use().next().is_none();
        if idle && !ask {
            self.shared.leaves.store(true, Ordering::Release);
        }
        drop(sessions);
        (idle, pids.into_iter().map(|pid| (pid, command_of(pid))).collect())
    }

    /// The programs that hold files by sessions of this node.
    pub(crate) fn holders(&self, held: &[HeldFile]) -> Vec<Holder> {
        let mut found = BTreeSet::new();
        let mut mounted: BTreeMap<Ino, u32> = BTreeMap::new();
        {
            let sessions = self.shared.sessions();
            for HeldFile { ino, session } in held {
                let Some(process) = sessions.processes.get(session) else { continue };
                let (pid, command) = (process.pid, command_of(process.pid));
                match command == MOUNT {
                    true => drop(mounted.insert(*ino, pid)),
                    false => drop(found.insert(Holder { ino: *ino, pid, command })),
                }
            }
        }
        if !mounted.is_empty() {
            let users = users_of(&mounted.keys().copied().collect());
            for (ino, mount) in mounted {
                let of_file: Vec<u32> = users
                    .iter()
                    .filter(|(of, pid)| *of == ino && *pid != mount)
                    .map(|(_, pid)| *pid)
                    .collect();
                // Those of another user cannot be seen, perhaps.
                let pids = if of_file.is_empty() { vec![mount] } else { of_file };
                found.extend(pids.into_iter().map(|pid| Holder { ino, pid, command: command_of(pid) }));
            }
        }
        found.into_iter().take(HELD_MAX).collect()
    }
}

/// What a process is to its deployment.
#[derive(PartialEq, Eq, Debug)]
enum Role {
    Program,
    /// One of this program's own that copy a deployment: they go on where programs are kept out.
    Copier,
    /// It is about to end, and has no memory any more. That takes a moment in which it is not dead yet.
    Gone,
}

/// Whether a process is a [`Role::Copier`].
pub(super) fn copies(pid: u32) -> bool {
    role(pid) == Role::Copier
}

fn role(pid: u32) -> Role {
    // The first thread may have ended alone, and then only others can tell.
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Role::Program };
    for thread in threads.flatten() {
        // In this order: a thread that has an executable afterwards has had a command line before.
        let line = std::fs::read(thread.path().join("cmdline")).unwrap_or_default();
        match std::fs::read_link(thread.path().join("exe")) {
            Ok(executable) => return role_of(&line, &executable),
            // For a thread that is just ending, the kernel may say that this may not be read (EACCES).
            Err(error) if error.kind() != ErrorKind::NotFound && thread.path().exists() => {
                return Role::Program;
            }
            Err(_) => {}
        }
    }
    Role::Gone
}

fn role_of(line: &[u8], executable: &Path) -> Role {
    let mut words = line.split(|byte| *byte == 0).skip(1);
    let copies =
        words.next() == Some(b"daemon") && words.any(|word| word == b"--stage" || word == b"--layouts");
    let is_own = || std::fs::read_link("/proc/self/exe").is_ok_and(|own| own == executable);
    if copies && is_own() { Role::Copier } else { Role::Program }
}

/// The name of a process, if it lives.
fn command_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The processes that have one of these files open or mapped in a mount.
fn users_of(files: &BTreeSet<Ino>) -> BTreeSet<(Ino, u32)> {
    let mut users = BTreeSet::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        let open = infos.filter_map(|info| inode_in(&std::fs::read_to_string(info.path()).ok()?));
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mapped = maps.lines().filter_map(mapped_inode);
        users.extend(open.chain(mapped).filter(|ino| files.contains(ino)).map(|ino| (ino, pid)));
    }
    users
}

/// The inode that a description in `/proc/PID/fdinfo` is of.
fn inode_in(info: &str) -> Option<Ino> {
    info.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse().ok()).map(Ino)
}

/// The inode that a line of `/proc/PID/maps` is of, if it is on a file system without a device, as mounts
/// are.
fn mapped_inode(line: &str) -> Option<Ino> {
    let mut words = line.split_ascii_whitespace().skip(3);
    let (device, inode) = (words.next()?, words.next()?.parse().ok()?);
    (device.starts_with("00:") && inode != 0).then_some(Ino(inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_and_mappings_name_their_inodes() {
        assert_eq!(
            inode_in("pos:\t0\nflags:\t02\nmnt_id:\t29\nino:\t4503599627370497\n"),
            Some(Ino(1 << 52 | 1))
        );
        assert_eq!(inode_in("pos:\t0\n"), None);
        let line = "7f00-7f01 rw-s 00001000 00:3a 4503599627370497      /bivouac/a b";
        assert_eq!(mapped_inode(line), Some(Ino(1 << 52 | 1)));
        assert_eq!(mapped_inode("7f00-7f01 rw-p 00000000 fe:00 12 /bin/sh"), None);
        assert_eq!(mapped_inode("7f00-7f01 rw-p 00000000 00:00 0"), None);
        assert!(!command_of(std::process::id()).is_empty());
    }

    #[test]
    fn what_is_about_to_end_is_no_program() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("starts");
        assert_eq!(role(child.id()), Role::Program);
        child.kill().expect("ends");
        // A process that nobody has waited for is as one that ends: it is there, and has no memory.
        let begun = std::time::Instant::now();
        while role(child.id()) != Role::Gone {
            assert!(begun.elapsed().as_secs() < 10, "it has ended");
            std::thread::yield_now();
        }
        assert_eq!(command_of(child.id()), "sleep");
        child.wait().expect("ends");
    }

    #[test]
    fn only_this_programs_own_copiers_are_copiers() {
        let own = std::fs::read_link("/proc/self/exe").expect("a link");
        assert_eq!(role_of(b"bivouac\0daemon\0--stage\0", &own), Role::Copier);
        assert_eq!(role_of(b"bivouac\0daemon\0--layouts\0", &own), Role::Copier);
        for (line, executable) in [
            (&b"bivouac\0daemon\0--stage\0"[..], Path::new("/bin/sh")),
            (b"bivouac\0daemon\0--serve\0", &own),
            (b"daemon\0--stage\0", &own),
            (b"", &own),
        ] {
            assert_eq!(role_of(line, executable), Role::Program, "{line:?} {executable:?}");
        }
    }
}
