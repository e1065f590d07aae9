//! By ssh: the same program, under the same path, on another machine.

use super::{Launcher, own_path, shell_quote_path};
use crate::error::Error;
use std::process::Command;

/// `ssh HOST /path/to/bivouac daemon`, without ever asking anything.
pub(super) struct Ssh;

impl Launcher for Ssh {
    fn command(&self, host: &str, arguments: &[&str]) -> Result<Command, Error> {
        // The user's shell on the host takes the words apart again.
        let mut remote = format!("{} daemon", shell_quote_path(&own_path()?));
        for argument in arguments {
            remote.push(' ');
            remote.push_str(argument);
        }
        let mut command = Command::new("ssh");
        command.args(["-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "--", host, &remote]);
        Ok(command)
    }

    /// What `ssh` says of itself before there is a session; what it says of one that breaks off is something
    /// else.
    fn never_arrived(&self, code: Option<i32>, said: &str) -> bool {
        let before_any_session = |line: &str| {
            line.starts_with("ssh: Could not resolve hostname ")
                || line.starts_with("ssh: connect to host ")
                || line == "Host key verification failed."
                || line.contains(": Permission denied (")
        };
        // Any other code is the remote program's.
        code == Some(255) && said.lines().last().is_some_and(|line| before_any_session(line.trim()))
    }

    fn hint(&self, host: &str) -> String {
        let path = own_path().map(|p| p.display().to_string()).unwrap_or_default();
        format!("`ssh {host} {path} --version` must work without a password and without any other output")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_before_a_session_nothing_can_have_been_done() {
        for said in [
            "ssh: Could not resolve hostname nod1: Name or service not known",
            "Warning: Permanently added 'x' (ED25519).\r\nu@x: Permission denied (publickey,password).\r",
            "ssh: connect to host 10.0.0.9 port 22: No route to host",
            "Host key verification failed.",
        ] {
            assert!(Ssh.never_arrived(Some(255), said), "{said}");
            assert!(!Ssh.never_arrived(Some(1), said), "a login script's words");
        }
        for said in [
            "",
            "Connection to x closed by remote host.",
            "client_loop: send disconnect: Broken pipe",
            "sh: 1: x: Permission denied",
        ] {
            assert!(!Ssh.never_arrived(Some(255), said), "{said}");
        }
    }
}
