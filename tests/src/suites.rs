//! Test suites of others for file systems, as they are run in a mount.

use crate::{Site, tool};
use std::fs;
use std::path::Path;
use std::process::Command;

/// pjdfstest, which tries what POSIX says of names, modes, owners and times, in a directory.
pub fn pjdfstest(site: &Site, at: &Path) -> Command {
    let config = site.path("pjdfstest.toml");
    let text = "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutimensat = {}\nutime_now = {}\n\
                stat_st_birthtime = {}\n[settings]\nnaptime = 0.01\nallow_remount = false\n\
                [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n";
    fs::write(&config, text).expect("written");
    let mut command = Command::new(tool("pjdfstest"));
    command.arg("-c").arg(&config).arg("-p").arg(at);
    command
}

/// fsx, which does 2,000 random things to a file, mappings among them, and compares what is in it each time.
pub fn fsx(site: &Site, seed: &str, file: &Path) -> Command {
    let config = site.path("fsx.toml");
    let text = "flen = 150000\n[opsize]\nmax = 20000\nmin = 1\nalign = 1\n[weights]\nclose_open = 1\ninvalidate = 1\n\
                truncate = 10\nfsync = 1\nfdatasync = 1\nread = 10\nwrite = 10\nmapread = 10\nmapwrite = 10\n\
                copy_file_range = 5\nposix_fallocate = 5\npunch_hole = 5\nsendfile = 3\nposix_fadvise = 1\n";
    fs::write(&config, text).expect("written");
    let mut command = Command::new(tool("fsx"));
    command.args(["-q", "-N", "2000", "-S", seed, "-P"]).arg(site.path(""));
    command.arg("-f").arg(&config).arg(file);
    command
}
