//! What tests of preload and flush share: trees to copy, and the workers that copy them.

use crate::site::Site;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Makes `directories` directories with `files` files in each, of lengths up to `longest`.
pub fn make_tree(root: &Path, directories: usize, files: usize, longest: usize) {
    for directory in 0..directories {
        let directory = root.join(format!("directory {directory}"));
        fs::create_dir_all(&directory).expect("a directory");
        for file in 0..files {
            let length = (file * 7919 + 13) % (longest + 1);
            let content: Vec<u8> = (0..length).map(|at| (at * 31 + file) as u8).collect();
            fs::write(directory.join(format!("file {file}")), content).expect("a file");
        }
    }
}

/// All files below a directory with their contents, sorted. Files that are renamed meanwhile may be missing.
pub fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).expect("listed").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                directories.push(entry);
            } else {
                let name = entry.strip_prefix(directory).expect("below").to_owned();
                match fs::read(&entry) {
                    Ok(content) => found.push((name, content)),
                    Err(error) => {
                        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}", entry.display())
                    }
                }
            }
        }
    }
    found.sort();
    found
}

/// The processes that copy for a site's commands.
pub fn workers(site: &Site) -> Vec<i32> {
    let home = [b"BIVOUAC_HOME=", site.home().as_os_str().as_bytes()].concat();
    let is_worker = |pid: &i32| {
        let read = |file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let words = read("cmdline");
        words.split(|byte| *byte == 0).any(|word| word == b"--stage")
            && read("environ").split(|byte| *byte == 0).any(|variable| variable == home)
    };
    let processes = fs::read_dir("/proc").expect("listed").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_worker).filter(|pid| Site::is_alive(*pid)).collect()
}

/// A file system in memory of a certain size, mounted for the length of a test. Needs root.
pub struct Small(PathBuf);

impl Small {
    /// Mounts it.
    pub fn mount(at: &Path, mebibytes: u32) -> Small {
        fs::create_dir_all(at).expect("a directory");
        let options = format!("size={mebibytes}m");
        let mut mount = std::process::Command::new("mount");
        let status = mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).status();
        assert!(status.is_ok_and(|status| status.success()), "{} is mounted", at.display());
        Small(at.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
