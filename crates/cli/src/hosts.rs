//! Which machines, and how others reach them.
//!
//! Names are compared whole, never by prefix or substring: `node1` must not take `node10` for itself. Whether
//! a name means this machine is asked of the machine: its own names, or an address that can be bound here.

use crate::args::{LauncherChoice, ServerArgs};
use crate::error::Error;
use crate::home::LauncherKind;
use rustix::event::{PollFd, PollFlags};
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Longest list of hosts that is read, bytes.
const LONGEST: usize = 16 << 20;

/// One machine of a deployment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its name, as the user gave it.
    pub name: String,
    /// How daemons are started there.
    pub launcher: LauncherKind,
    /// Where its servers listen.
    pub listen: IpAddr,
    /// Where others reach them; `None`: the daemon has to tell (a name that only ssh knows).
    pub reach: Option<IpAddr>,
    /// Whether it is the machine that this command runs on.
    pub here: bool,
}

/// The machine that this command runs on.
pub fn this_machine() -> Host {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let name = own_name().unwrap_or_else(|| "localhost".to_owned());
    Host { name, launcher: LauncherKind::Local, listen: loopback, reach: Some(loopback), here: true }
}

/// The same, as the machine that a deployment on other hosts is started from: they reach its agent, if it has an address
/// by which they can.
pub fn this_machine_beside(hosts: &[Host]) -> Host {
    let own = hosts.iter().find_map(|host| host.reach).and_then(address_towards);
    match own {
        Some(own) => Host { listen: unspecified(own), reach: Some(own), ..this_machine() },
        None => this_machine(),
    }
}

/// The hosts that the user means: this machine alone unless others are named.
pub fn resolve(args: &ServerArgs) -> Result<Vec<Host>, Error> {
    let Some(hosts) = &args.hosts else {
        return match args.launcher {
            LauncherChoice::Auto | LauncherChoice::Local => Ok(vec![this_machine()]),
            _ => Err(Error::refused("this launcher needs hosts", "name them with --hosts")),
        };
    };
    let names = names(hosts)?;
    let mut found =
        names.iter().map(|name| one(name, args.launcher)).collect::<Result<Vec<Host>, Error>>()?;
    let here: Vec<&str> = found.iter().filter(|h| h.here).map(|h| h.name.as_str()).collect();
    if let [first, second, ..] = here[..] {
        return Err(Error::refused(
            format!("{first:?} and {second:?} are the same machine"),
            "name it once; --servers N starts several servers on each host",
        ));
    }
    // Local servers listen on loopback, unless other hosts have to reach them.
    let remote = found.iter().find(|h| !h.here).map(|h| h.reach);
    if let Some(remote) = remote {
        for host in found.iter_mut().filter(|h| h.here) {
            let own = remote.and_then(address_towards).ok_or_else(|| {
                Error::refused(
                    format!("no address of {:?} is known by which the other hosts can reach it", host.name),
                    "name this machine by its address",
                )
            })?;
            (host.listen, host.reach) = (unspecified(own), Some(own));
        }
    }
    Ok(found)
}

/// A host that is added to a deployment whose daemons listen at such an address.
pub fn another(name: &str, launcher: LauncherChoice, others: Option<IpAddr>) -> Result<Host, Error> {
    let found = names(name)?;
    let [name] = &found[..] else {
        return Err(Error::refused(format!("{name:?} names several hosts"), "give one"));
    };
    let mut host = one(name, launcher)?;
    if host.here
        && let Some(own) = others.and_then(address_towards).filter(|own| !own.is_loopback())
    {
        (host.listen, host.reach) = (unspecified(own), Some(own));
    }
    Ok(host)
}

/// A file of host names, or what a shell's `<(command)` writes. A FIFO without a writer counts as empty;
/// opening it does not wait.
fn read_list(path: &Path) -> std::io::Result<String> {
    let mut options = std::fs::File::options();
    let mut file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_fifo() {
        return Err(std::io::Error::other("neither a file nor a pipe"));
    }
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    while text.len() < LONGEST {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(piece.get(..n).unwrap_or_default()),
            // Somebody has the pipe open to write.
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                rustix::event::poll(&mut [PollFd::new(&file, PollFlags::IN)], None)?;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    String::from_utf8(text).map_err(std::io::Error::other)
}

/// Host names from a file (the first word of each line; `#` begins a comment) or a list.
/// The failure domains of hosts, in their order: numbers, the same for hosts of the same domain. The file has a host
/// and its domain on each line.
pub fn domains(file: &Path, hosts: &[Host]) -> Result<Vec<u16>, Error> {
    let shown = file.display();
    let text = read_list(file).map_err(|_| {
        Error::refused(format!("cannot read the file of failure domains {shown}"), "check its path")
    })?;
    let mut domain_of = std::collections::BTreeMap::new();
    let mut known: Vec<&str> = Vec::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (None, ..) => {}
            (Some(host), Some(domain), None) => {
                let at = known.iter().position(|other| *other == domain).unwrap_or(known.len());
                if at == known.len() {
                    known.push(domain);
                }
                domain_of.insert(host.to_ascii_lowercase(), at as u16);
            }
            _ => {
                return Err(Error::refused(
                    format!("{line:?} in {shown} is not a host and its failure domain"),
                    "give two words on each line: a host, and the name of its rack",
                ));
            }
        }
    }
    let domain = |host: &Host| {
        domain_of.get(&host.name.to_ascii_lowercase()).copied().ok_or_else(|| {
            Error::refused(format!("{shown} does not name {}", host.name), "give all hosts a failure domain")
        })
    };
    hosts.iter().map(domain).collect()
}

/// The names of hosts, from a file or a list.
pub fn names(hosts: &str) -> Result<Vec<String>, Error> {
    let text = match read_list(Path::new(hosts)) {
        Ok(text) => text,
        Err(_) if hosts.contains('/') => {
            return Err(Error::refused(format!("cannot read the host file {hosts}"), "check its path"));
        }
        Err(_) => hosts.replace(',', "\n"),
    };
    let mut names: Vec<String> = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let Some(name) = line.split_whitespace().next() else {
            continue;
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-:@%".contains(c);
        if !name.chars().all(plain) || name.starts_with('-') {
            return Err(Error::refused(
                format!("{name:?} is no host name"),
                "give a file with one host name on each line, or a list like h1,h2",
            ));
        }
        // Batch systems list a host once for each processor.
        if !names.iter().any(|n| n.eq_ignore_ascii_case(name)) {
            names.push(name.to_owned());
        }
    }
    if names.is_empty() {
        return Err(Error::refused(format!("{hosts:?} names no host"), "give a file or a list like h1,h2"));
    }
    Ok(names)
}

fn one(name: &str, launcher: LauncherChoice) -> Result<Host, Error> {
    if launcher == LauncherChoice::Netns {
        let address = crate::launch::netns::address(name)?;
        return Ok(Host {
            name: name.to_owned(),
            launcher: LauncherKind::Netns,
            listen: address,
            reach: Some(address),
            here: false,
        });
    }
    let addresses = addresses(name);
    let here = is_own_name(name) || addresses.iter().any(|a| is_own_address(*a));
    let launcher = match launcher {
        LauncherChoice::Ssh => LauncherKind::Ssh,
        _ if here => LauncherKind::Local,
        LauncherChoice::Local => {
            return Err(Error::refused(
                format!("{name:?} is not this machine"),
                "use --launcher ssh, or --servers N for several servers on this machine",
            ));
        }
        _ => LauncherKind::Ssh,
    };
    if here {
        let Host { listen, reach, .. } = this_machine();
        return Ok(Host { name: name.to_owned(), launcher, listen, reach, here });
    }
    let reach = addresses.first().copied();
    let listen = unspecified(reach.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
    Ok(Host { name: name.to_owned(), launcher, listen, reach, here })
}

/// What a name resolves to, IPv4 first. Nothing: the name service does not know it.
fn addresses(name: &str) -> Vec<IpAddr> {
    let host = name.rsplit('@').next().unwrap_or(name);
    let mut found: Vec<IpAddr> =
        (host, 0).to_socket_addrs().map(|all| all.map(|a| a.ip()).collect()).unwrap_or_default();
    found.sort_by_key(IpAddr::is_ipv6);
    found.dedup();
    found
}

fn own_name() -> Option<String> {
    rustix::system::uname().nodename().to_str().ok().filter(|n| !n.is_empty()).map(str::to_owned)
}

fn is_own_name(name: &str) -> bool {
    let Some(own) = own_name() else {
        return name.eq_ignore_ascii_case("localhost");
    };
    let short = own.split('.').next().unwrap_or(&own);
    [own.as_str(), short, "localhost"].iter().any(|n| n.eq_ignore_ascii_case(name))
}

fn is_own_address(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}

/// The own address from which packets to `other` leave. Nothing is sent.
fn address_towards(other: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind(SocketAddr::new(unspecified(other), 0)).ok()?;
    socket.connect(SocketAddr::new(other, 9)).ok()?;
    socket.local_addr().ok().map(|a| a.ip())
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_compared_whole() {
        let own = own_name().expect("a machine has a name");
        assert!(is_own_name(&own) && is_own_name("localhost"));
        for other in [format!("{own}0"), format!("x{own}"), "localhost1".into(), own[..own.len() - 1].into()]
        {
            assert!(!is_own_name(&other), "{other}");
        }
    }

    #[test]
    fn loopback_is_this_machine_and_documentation_addresses_are_not() {
        assert!(is_own_address("127.0.0.1".parse().expect("address")));
        assert!(is_own_address("127.3.2.1".parse().expect("address")));
        assert!(!is_own_address("192.0.2.1".parse().expect("address")));
    }

    #[test]
    fn host_files_may_have_comments_slots_and_repetitions() {
        let path = std::env::temp_dir().join(format!("bivouac-hosts-{}", std::process::id()));
        std::fs::write(&path, "# nodes\nn1 slots=4\nn10\n\nn1\nN10  # again\n").expect("writes");
        let found = names(path.to_str().expect("a plain path"));
        std::fs::remove_file(&path).expect("removes");
        assert_eq!(found.expect("reads"), ["n1", "n10"]);
        assert_eq!(names("a,b").expect("reads"), ["a", "b"]);
    }

    #[test]
    fn names_that_could_be_options_or_commands_are_refused() {
        for bad in ["-oProxyCommand=x", "a;b", "a$(b)", "", ",", "/no/such/file"] {
            assert!(matches!(names(bad), Err(Error::Refused { .. })), "{bad:?}");
        }
    }

    #[test]
    fn hosts_of_one_failure_domain_have_the_same_number_and_every_host_must_have_one() {
        let directory = std::env::temp_dir().join(format!("bivouac-domains-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("made");
        let file = directory.join("racks");
        let host = |name: &str| Host { name: name.into(), ..this_machine() };
        let hosts = [host("a"), host("B"), host("c")];
        std::fs::write(&file, "# racks\nA left\nb right # upper\n\nc left\n").expect("written");
        assert_eq!(domains(&file, &hosts).expect("all have one"), [0, 1, 0]);
        for wrong in ["a left\nb right\n", "a left\nb\nc left\n", "a left x\nb left\nc left\n"] {
            std::fs::write(&file, wrong).expect("written");
            assert!(matches!(domains(&file, &hosts), Err(Error::Refused { .. })), "{wrong:?}");
        }
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn two_names_of_this_machine_are_noticed() {
        let own = own_name().expect("a name");
        let hosts = format!("localhost,{own}");
        let args = ServerArgs {
            servers: None,
            hosts: Some(hosts),
            storage: Vec::new(),
            mount: "/m".into(),
            block_size: crate::args::values::BlockSize(4096),
            forward: None,
            forwarding: crate::args::ForwardingArgs::default(),
            width: None,
            first: None,
            replicas: None,
            metadata_replicas: None,
            min_copies: None,
            heal_after: None,
            heal_rate: None,
            lease: None,
            restarts: None,
            failure_domain: None,
            launcher: LauncherChoice::Auto,
            port: 0,
            log_level: "info".into(),
        };
        if !own.eq_ignore_ascii_case("localhost") {
            assert!(matches!(resolve(&args), Err(Error::Refused { .. })));
        }
        let alone = ServerArgs { hosts: Some("127.0.0.1".into()), ..args.clone() };
        let found = resolve(&alone).expect("resolves");
        assert!(found[0].here && found[0].listen.is_loopback() && found[0].launcher == LauncherKind::Local);
        let local = ServerArgs { hosts: Some("192.0.2.1".into()), launcher: LauncherChoice::Local, ..args };
        assert!(matches!(resolve(&local), Err(Error::Refused { .. })));
    }
}
