//! The names by which the processes of a node find each other: directories, sockets, environment variables.
//!
//! Everything hangs on the deployment's name, its key and the user's number, so that a client needs no more
//! than its environment to reach its agent. Sockets are abstract Unix sockets: they leave nothing behind; who
//! connects has to prove the deployment's key anyway. Their names contain a part that follows from the key.

use bivouac_layout::hash::job_number;
use bivouac_layout::{NodeId, ServerId};
use bivouac_proto::auth::{Key, derive};
use std::ffi::CStr;

/// Names the deployment.
pub const DEPLOYMENT_VARIABLE: &CStr = c"BIVOUAC_DEPLOYMENT";
/// Where programs see the file system.
pub const MOUNT_VARIABLE: &CStr = c"BIVOUAC_MOUNT";
/// The file that holds the deployment's key.
pub const KEY_VARIABLE: &CStr = c"BIVOUAC_KEY";
/// Names the device number that the kernel mount has at the mount point, `major:minor`.
pub const MOUNTED_VARIABLE: &CStr = c"BIVOUAC_MOUNTED";
/// The environment variable that names the directory of the site's storage that is forwarded.
pub const FORWARDED_VARIABLE: &CStr = c"BIVOUAC_FORWARDED";
/// The environment variable that names the job that a program belongs to, for the schedulers of I/O nodes that tell jobs apart.
pub const JOB_VARIABLE: &CStr = c"BIVOUAC_JOB";
/// Asks the preload library to catch libc's own system calls, too: `1`, or `report` to say how many of them.
pub const CATCH_VARIABLE: &CStr = c"BIVOUAC_CATCH_SYSCALLS";

/// Longest name of a deployment, bytes: it becomes part of a socket's name, which has at most 107.
pub const NAME_MAX: usize = 48;

/// Whether `name` can name a deployment: 1 to [`NAME_MAX`] ASCII letters, digits, `-`, `_`, `.`, not starting
/// with a dot.
pub fn is_valid_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// The file with the deployment's key: 64 hexadecimal digits, mode 0600.
pub fn key_path(run_dir: &str) -> String {
    format!("{run_dir}/key")
}

/// The directory of one node's tables. (In tests several nodes share a machine.)
pub fn node_dir(run_dir: &str, node: NodeId) -> String {
    format!("{run_dir}/node-{node}")
}

/// How many names a daemon's socket can have: names that another user has taken are skipped.
const SOCKET_NAMES: u32 = 8;

/// The abstract sockets, without the leading NUL, on the first free one of which the node's agent listens.
pub fn agent_sockets(uid: u32, name: &str, key: &Key) -> Vec<String> {
    sockets(uid, name, key, "agent")
}

/// The same of a server, for the clients of its node.
pub fn server_sockets(uid: u32, name: &str, key: &Key, server: ServerId) -> Vec<String> {
    sockets(uid, name, key, &format!("server-{server}"))
}

/// Nobody without the key knows these names before they are in use, and so nobody can take them beforehand.
/// When a daemon has ended, others may know its name and take it: then the next daemon uses the next name.
fn sockets(uid: u32, name: &str, key: &Key, role: &str) -> Vec<String> {
    (0..SOCKET_NAMES)
        .map(|i| {
            let secret = derive(key, format!("socket {i} {name}/{role}").as_bytes());
            format!("bivouac/{uid}/{name}/{role}-{secret:016x}")
        })
        .collect()
}

/// What a program's environment says about the deployment that it is to use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Environment {
    /// The deployment's name: [`is_valid_name`].
    pub name: String,
    /// Where programs see the file system: absolute, below `/`, without `//`, `.`, `..` or a trailing slash.
    pub mount: String,
    /// The file that holds the key.
    pub key_path: String,
    /// The device number, major and minor, of the kernel mount that there is at `mount`.
    pub mounted: Option<(u32, u32)>,
    /// The directory of the site's storage that is forwarded, if one is: like `mount`.
    pub forwarded: Option<String>,
    /// The job that the program belongs to, if it says so.
    pub job: Option<String>,
}

impl Environment {
    /// Reads the process's environment. `None`: no deployment is named, or what is named cannot be one.
    /// Allocates only when there is something to return, and takes no lock.
    pub fn from_env() -> Option<Environment> {
        Self::from_lookup(|name| {
            // SAFETY: `name` ends with NUL. The value is copied at once; like any reader of the environment
            // this relies on no other thread changing the variable meanwhile.
            let value = unsafe { libc::getenv(name.as_ptr()) };
            // SAFETY: getenv returned a string that ends with NUL.
            (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
        })
    }

    /// The same over any source of variables: for code that runs before libc knows its environment.
    pub fn from_lookup<'a>(lookup: impl Fn(&CStr) -> Option<&'a CStr>) -> Option<Environment> {
        let name = lookup(DEPLOYMENT_VARIABLE)?.to_str().ok()?;
        let mount = lookup(MOUNT_VARIABLE)?.to_str().ok()?;
        let key_path = lookup(KEY_VARIABLE)?.to_str().ok()?;
        let mounted = lookup(MOUNTED_VARIABLE).and_then(|device| {
            let (major, minor) = device.to_str().ok()?.split_once(':')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
        let forwarded = lookup(FORWARDED_VARIABLE).and_then(|path| path.to_str().ok());
        (is_valid_name(name) && is_valid_mount(mount) && key_path.starts_with('/')).then(|| Environment {
            name: name.into(),
            mount: mount.into(),
            key_path: key_path.into(),
            mounted,
            forwarded: forwarded.filter(|path| is_valid_mount(path)).map(Into::into),
            job: lookup(JOB_VARIABLE)
                .and_then(|job| job.to_str().ok())
                .filter(|job| !job.is_empty())
                .map(Into::into),
        })
    }

    /// The variables to export.
    pub fn to_env(&self) -> impl Iterator<Item = (&'static str, String)> {
        let mounted = self.mounted.map(|(major, minor)| ("BIVOUAC_MOUNTED", format!("{major}:{minor}")));
        let always = [
            ("BIVOUAC_DEPLOYMENT", self.name.clone()),
            ("BIVOUAC_MOUNT", self.mount.clone()),
            ("BIVOUAC_KEY", self.key_path.clone()),
        ];
        let forwarded = self.forwarded.clone().map(|path| ("BIVOUAC_FORWARDED", path));
        let job = self.job.clone().map(|job| ("BIVOUAC_JOB", job));
        always.into_iter().chain(mounted).chain(forwarded).chain(job)
    }

    /// The number of the program's job, 0 if it does not say which it belongs to.
    pub fn job_number(&self) -> u64 {
        self.job.as_deref().map_or(0, job_number)
    }
}

/// Whether a path can be a mount point: absolute, below `/`, in its plainest form.
pub fn is_valid_mount(mount: &str) -> bool {
    mount.len() > 1
        && mount.starts_with('/')
        && mount.bytes().all(|b| b != 0)
        && mount.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_their_directory_are_refused() {
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "ü", &"x".repeat(49)] {
            assert!(!is_valid_name(bad), "{bad}");
        }
        for good in ["a", "job-17.x_Y", &"x".repeat(48)] {
            assert!(is_valid_name(good), "{good}");
        }
    }

    #[test]
    fn mounts_are_in_their_plainest_form() {
        for bad in ["", "/", "//", "a", "/a/", "/a//b", "/./a", "/a/..", "//a"] {
            assert!(!is_valid_mount(bad), "{bad}");
        }
        assert!(is_valid_mount("/bivouac") && is_valid_mount("/a/..b/c"));
    }

    #[test]
    fn an_environment_survives_its_own_variables() {
        for mounted in [None, Some((0, 4711))] {
            let env = Environment {
                name: "job".into(),
                mount: "/m".into(),
                key_path: "/k".into(),
                mounted,
                forwarded: mounted.map(|_| "/scratch/me".into()),
                job: mounted.map(|_| "7.step-0".into()),
            };
            let pairs: Vec<_> = env.to_env().map(|(k, v)| (k, std::ffi::CString::new(v).unwrap())).collect();
            let find = |name: &CStr| {
                pairs.iter().find(|(k, _)| k.as_bytes() == name.to_bytes()).map(|(_, v)| v.as_c_str())
            };
            assert_eq!(Environment::from_lookup(find), Some(env));
        }
        assert_eq!(Environment::from_lookup(|_| None), None);
    }

    #[test]
    fn socket_names_fit_into_an_address() {
        let (key, longest) = (Key([7; 32]), "x".repeat(NAME_MAX));
        let servers = server_sockets(u32::MAX, &longest, &key, ServerId(u16::MAX));
        let agents = agent_sockets(u32::MAX, &longest, &key);
        assert!(servers.iter().chain(&agents).all(|name| name.len() <= 107));
    }

    #[test]
    fn socket_names_differ_and_follow_from_the_key() {
        let names = |key: u8| agent_sockets(1, "job", &Key([key; 32]));
        let all: std::collections::BTreeSet<_> = names(1).into_iter().chain(names(2)).collect();
        assert_eq!(all.len(), 2 * SOCKET_NAMES as usize);
        assert_eq!(names(1), names(1));
    }
}
