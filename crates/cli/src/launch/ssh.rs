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

    fn hint(&self, host: &str) -> String {
        let path = own_path().map(|p| p.display().to_string()).unwrap_or_default();
        format!("`ssh {host} {path} --version` must work without a password and without any other output")
    }
}
