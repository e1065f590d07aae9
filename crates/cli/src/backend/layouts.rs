//! Layouts of files that are not as those of new files in their directories: the site's file system does not
//! keep them. They are written down beside the copy, and files with them are made before they are copied in.
//! (Directories' layouts are extended attributes that are listed, and are copied as such.)
//!
//! A process of its own does it, because a process uses one deployment, and this command two: `bivouac daemon
//! --layouts`, with an [`Order`] as its standard input.

use crate::copy::client;
use crate::error::Error;
use crate::exec::attachable;
use crate::home::Home;
use bivouac_client::{Changed, Client, Fail};
use bivouac_layout::{FileLayout, First, Ino, Template};
use bivouac_proto::Errno;
use bivouac_proto::attr::FileKind;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Entries that are asked for at once.
const AT_ONCE: u32 = 4096;
/// The attribute that shows and sets a layout.
const LAYOUT: &[u8] = b"user.bivouac.layout";

/// What is to be done.
#[derive(Serialize, Deserialize, Debug)]
struct Order {
    name: String,
    file: PathBuf,
    restores: bool,
}

/// A file with a layout of its own: its path in the mount, and the layout.
type Own = (Vec<u8>, String);

/// Writes the layouts down that files have for themselves.
pub fn save(name: &str, file: &Path) -> Result<(), Error> {
    order(&Order { name: name.into(), file: file.into(), restores: false })
}

/// Makes the files that have layouts for themselves, empty.
pub fn restore(name: &str, file: &Path) -> Result<(), Error> {
    order(&Order { name: name.into(), file: file.into(), restores: true })
}

fn order(order: &Order) -> Result<(), Error> {
    let failed = |cause| Error::System { what: "cannot look at the layouts of files".into(), cause };
    let text = serde_json::to_vec(order).map_err(|error| failed(error.into()))?;
    let own = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(own);
    command.args(["daemon", "--layouts"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(&text).map_err(failed)?;
    }
    match child.wait().map_err(failed)?.success() {
        true => Ok(()),
        false => Err(Error::refused(
            "the layouts of files cannot be kept, for the reason given above",
            "repeat the command when it is gone",
        )),
    }
}

/// Does what the order on standard input says.
pub fn work() -> Result<(), Error> {
    let failed = |cause| Error::System { what: "cannot look at the layouts of files".into(), cause };
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text).map_err(failed)?;
    let order: Order = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    let environment = attachable(&Home::from_env()?, &order.name)?;
    let client = client(&order.name, &environment)?;
    if order.restores {
        let text = std::fs::read(&order.file).map_err(|error| Error::file("read", &order.file, error))?;
        let all: Vec<Own> = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        return all.iter().try_for_each(|own| make(&client, own).map_err(|fail| on_path(&own.0, &fail)));
    }
    let all = own_layouts(&client)?;
    let text = serde_json::to_vec(&all).map_err(|error| failed(error.into()))?;
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(&order.file)?;
        file.write_all(&text)?;
        file.sync_all()
    };
    write().map_err(|error| Error::file("write", &order.file, error))
}

fn on_path(path: &[u8], fail: &Fail) -> Error {
    let why = match fail {
        Fail::Errno(errno) => std::io::Error::from_raw_os_error(i32::from(errno.0)).to_string(),
        Fail::Outside(_) => "a symbolic link leads out of the mount".into(),
    };
    Error::refused(
        format!("the layout of {}: {why}", String::from_utf8_lossy(path)),
        "repeat the command when the cause is gone",
    )
}

/// All files that have other layouts than new ones in their directories.
fn own_layouts(client: &Client) -> Result<Vec<Own>, Error> {
    let defaults = client.deployment_map().defaults();
    let (mut found, mut left) = (Vec::new(), VecDeque::from([(Ino::ROOT, Vec::new())]));
    while let Some((dir, path)) = left.pop_front() {
        let name = if path.is_empty() { &b"."[..] } else { &path };
        let template: Template = match client.get_xattr((Ino::ROOT, name, false), LAYOUT) {
            Ok(text) => String::from_utf8_lossy(&text).parse().unwrap_or_default(),
            Err(Fail::Errno(Errno::NODATA)) => Template::default(),
            Err(fail) => return Err(on_path(name, &fail)),
        };
        // Positions up to 2 are those of `.` and `..`.
        let mut after = 2;
        loop {
            let listed = client.list_after(dir, after, AT_ONCE, true);
            let listed = listed.map_err(|errno| on_path(name, &Fail::Errno(errno)))?;
            for entry in &listed.entries {
                after = entry.cookie;
                let Some(attr) = &entry.attr else { continue };
                let below = if path.is_empty() {
                    entry.name.clone()
                } else {
                    [&path, &b"/"[..], &entry.name].concat()
                };
                match (attr.kind, attr.layout.as_deref()) {
                    (FileKind::Directory, _) => left.push_back((attr.ino, below)),
                    (FileKind::File, Some(layout)) => {
                        found.extend(own_layout(layout, &template, &defaults).map(|text| (below, text)));
                    }
                    _ => {}
                }
            }
            if listed.end || listed.entries.is_empty() {
                break;
            }
        }
    }
    Ok(found)
}

/// What of a file's layout is not as its directory says. On which server the file begins is not kept: the
/// servers are others.
fn own_layout(layout: &FileLayout, directory: &Template, defaults: &Template) -> Option<String> {
    let of = |field: fn(&Template) -> Option<u32>| field(directory).or(field(defaults));
    let block = of(|template| template.block_size);
    let width = of(|template| template.width.map(u32::from));
    let replicas = of(|template| template.replicas.map(u32::from)).or(Some(1));
    let own = Template {
        block_size: Some(layout.block_size).filter(|size| Some(*size) != block),
        width: Some(layout.width).filter(|count| Some(u32::from(*count)) != width),
        replicas: Some(layout.replicas).filter(|count| Some(u32::from(*count)) != replicas),
        first: None,
    };
    let is_own = own != Template::default();
    // What is not set would be the directory's, which may name a server that is another one now.
    let first = directory.first.filter(|first| matches!(first, First::Hashed | First::Local));
    let own = Template { first, ..own };
    is_own.then(|| own.to_string())
}

/// Makes a file with a layout, and the directories above it.
fn make(client: &Client, (path, text): &Own) -> Result<(), Fail> {
    let exists = |made: Result<Changed, Fail>| match made {
        Err(Fail::Errno(Errno::EXIST)) => Ok(()),
        made => made.map(drop),
    };
    for (end, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
        exists(client.mkdir(Ino::ROOT, &path[..end], 0o700))?;
    }
    let is_new = match client.mknod(Ino::ROOT, path, 0o100_600) {
        // A command that was killed has made it, and perhaps filled it.
        Err(Fail::Errno(Errno::EXIST)) => false,
        made => made.map(|_| true)?,
    };
    match client.set_xattr((Ino::ROOT, path, false), LAYOUT, text.as_bytes(), 0) {
        Err(_) if !is_new => Ok(()),
        set => set,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::GenerationId;

    #[test]
    fn only_what_a_directory_does_not_say_is_a_files_own() {
        let defaults = Template {
            block_size: Some(65_536),
            width: Some(0),
            first: Some(First::Hashed),
            replicas: Some(1),
        };
        let file = FileLayout::spread(Ino(7), 65_536, GenerationId(0));
        assert_eq!(own_layout(&file, &Template::default(), &defaults), None);
        let large = FileLayout { block_size: 1 << 20, width: 2, ..file.clone() };
        let set = Template { block_size: Some(1 << 20), width: Some(2), ..Template::default() };
        assert_eq!(own_layout(&large, &set, &defaults), None);
        assert_eq!(own_layout(&large, &Template::default(), &defaults).as_deref(), Some("block=1M width=2"));
        assert_eq!(own_layout(&file, &set, &defaults).as_deref(), Some("block=64K width=all"));
    }
}
