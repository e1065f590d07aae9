//! `layout`: how files are spread over the servers, shown and set, as Lustre users know it from `lfs
//! getstripe` and `lfs setstripe`.
//!
//! What directories say is set through the same extended attributes (`user.bivouac.*`) that programs can use.

use crate::args::LayoutArgs;
use crate::copy::{client, inside};
use crate::error::Error;
use crate::exec::attachable;
use crate::home::Home;
use crate::text::size;
use bivouac_client::{Client, Fail};
use bivouac_layout::template::Field;
use bivouac_layout::{Ino, ServerId, Template};
use bivouac_node::Environment;
use bivouac_proto::Errno;
use bivouac_proto::attr::FileKind;
use std::path::Path;

/// The attribute of the whole layout.
const WHOLE: &[u8] = b"user.bivouac.layout";

/// Shows or sets the layout of all paths; ends at the first that fails.
pub fn layout(home: &Home, args: &LayoutArgs) -> Result<(), Error> {
    let name = match (&args.deployment, Environment::from_env()) {
        (Some(name), _) => name.clone(),
        (None, Some(environment)) => environment.name,
        (None, None) => {
            return Err(Error::refused(
                "no deployment is named",
                "give --deployment NAME, or run the command inside with `bivouac exec NAME -- bivouac layout ...`",
            ));
        }
    };
    let environment = attachable(home, &name)?;
    let client = client(&name, &environment)?;
    let changes = changes(args, &client)?;
    for path in &args.paths {
        let within = place(path, &environment.mount, args.deployment.is_some())?;
        let shown = path.display().to_string();
        if args.default || !changes.is_empty() {
            set(&client, &within, &shown, args.default, &changes)?;
        } else {
            print!("{}", show(&client, &within, &shown)?);
        }
    }
    Ok(())
}

/// The path from the mount's root. A path without the mount path in front is accepted only if the deployment
/// was named (`-d`).
fn place(path: &Path, mount: &str, named: bool) -> Result<Vec<u8>, Error> {
    let whole = if named {
        path.to_owned()
    } else {
        std::path::absolute(path).map_err(|e| Error::file("find", path, e))?
    };
    if !named && !whole.starts_with(mount) {
        return Err(Error::refused(
            format!("{} is not in the mount {mount}", path.display()),
            format!("give a path below {mount}"),
        ));
    }
    let within = inside(&whole, mount);
    // The root has a name, too.
    Ok(if within == b"/" { b".".to_vec() } else { within })
}

/// The fields to be set, each with its text, once they are found to make sense.
fn changes(args: &LayoutArgs, client: &Client) -> Result<Vec<(Field, String)>, Error> {
    let given = [
        (Field::Block, &args.block_size),
        (Field::Width, &args.width),
        (Field::First, &args.first),
        (Field::Replicas, &args.replicas),
    ];
    let mut template = Template::default();
    let mut changes = Vec::new();
    for (field, text) in given {
        let Some(text) = text else { continue };
        let refused = |e: bivouac_layout::template::TemplateError| {
            Error::refused(format!("{}={text} is no layout", field.name()), e.to_string())
        };
        template.set(field, text).map_err(refused)?;
        template.check(&client.deployment_map()).map_err(refused)?;
        changes.push((field, text.clone()));
    }
    Ok(changes)
}

fn set(
    client: &Client,
    path: &[u8],
    shown: &str,
    clear: bool,
    changes: &[(Field, String)],
) -> Result<(), Error> {
    let failed = |fail: Fail| failure(shown, "cannot set the layout of", fail);
    match client.stat((Ino::ROOT, path, true)) {
        Ok(_) => {}
        // A new file, to be written with this layout.
        Err(Fail::Errno(Errno::NOENT)) => {
            client.mknod(Ino::ROOT, path, libc::S_IFREG | (0o666 & !umask())).map_err(failed)?;
        }
        Err(other) => return Err(failed(other)),
    }
    if clear {
        match client.set_xattr((Ino::ROOT, path, true), WHOLE, b"", 0) {
            Ok(()) => {}
            Err(fail) => return Err(failed(fail)),
        }
    }
    for (field, text) in changes {
        let name = format!("user.bivouac.{}", field.name());
        client.set_xattr((Ino::ROOT, path, true), name.as_bytes(), text.as_bytes(), 0).map_err(failed)?;
    }
    Ok(())
}

fn umask() -> u32 {
    // It can only be read by setting it; no other thread of this program makes files.
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}

fn show(client: &Client, path: &[u8], shown: &str) -> Result<String, Error> {
    let failed = |fail: Fail| failure(shown, "cannot tell the layout of", fail);
    let spread = client.spread((Ino::ROOT, path, true)).map_err(failed)?;
    let set = match client.get_xattr((Ino::ROOT, path, true), WHOLE) {
        Ok(value) => String::from_utf8_lossy(&value).into_owned(),
        Err(Fail::Errno(Errno::NODATA)) => String::new(),
        Err(other) => return Err(failed(other)),
    };
    let map = client.deployment_map();
    let mut text = format!("{shown}\n");
    match spread.attr.kind {
        FileKind::Directory => {
            let template: Template = set.parse().unwrap_or_default();
            let whole = template.or(map.defaults());
            let whole = Template { replicas: whole.replicas.filter(|replicas| *replicas != 1), ..whole };
            let set = if set.is_empty() { "nothing" } else { &set };
            text += &format!("  set here   {set}\n  new files  {whole}\n");
        }
        FileKind::File => text += &format!("  layout     {set}\n"),
        _ => {}
    }
    let named = |server: ServerId| {
        let node = map.server(server).map(|s| s.node);
        let host = map.nodes.iter().find(|n| Some(n.id) == node).map_or("?", |n| &n.host);
        format!("server {server} ({host})")
    };
    if spread.attr.kind == FileKind::File && spread.blocks.is_empty() {
        text += &format!("  {:<24} {} in its inode\n", named(spread.home), size(spread.attr.size));
    }
    for holding in &spread.blocks {
        text += &format!("  {:<24} {}\n", named(holding.server), size(holding.stored));
    }
    Ok(text)
}

fn failure(shown: &str, what: &str, fail: Fail) -> Error {
    let errno = fail.errno();
    let remedy = match errno {
        Errno::NOTEMPTY => {
            "a file's layout is fixed once it has had data: set it for the directory, and copy the file there"
        }
        Errno::NOENT => "check the path",
        Errno::ACCESS | Errno::PERM => "check the permissions and the owner; links have no layout",
        Errno::XDEV => "a symbolic link leads out of the mount",
        _ => "`bivouac status` shows the deployment",
    };
    let cause = if errno == Errno::NOTEMPTY { "it has data".into() } else { errno.to_string() };
    Error::refused(format!("{what} {shown}: {cause}"), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_outside_the_mount_need_a_named_deployment() {
        assert_eq!(place(Path::new("/bivouac/a"), "/bivouac", false).expect("inside"), b"/a");
        assert_eq!(place(Path::new("/bivouac"), "/bivouac", false).expect("inside"), b".");
        assert_eq!(place(Path::new("/a"), "/bivouac", true).expect("inside"), b"/a");
        assert_eq!(place(Path::new("a"), "/bivouac", true).expect("inside"), b"/a");
        assert!(place(Path::new("/a"), "/bivouac", false).is_err());
        assert!(place(Path::new("/bivouac2/a"), "/bivouac", false).is_err());
    }
}
