//! The layout of new files: how a new file or directory gets it from its directory, and how extended
//! attributes show and set it.
//!
//! A directory's [`Template`] is in its inode, and once the directory is split, also in its parts, because
//! entries are made there. A new directory takes the template over as it is. A new file takes it over with a
//! server instead of `local`, keeps it in its inode as long as its data is inline, and turns it into its
//! layout when the data moves to blocks.
//!
//! The attributes are `user.bivouac.layout`, the text form of the whole, and one for each field, as
//! `user.bivouac.width`. Of a directory they show what is set; of a file, what its layout comes to. Only a
//! directory's are listed: a tool that copies a file with its attributes should not copy on which servers the
//! file is.

use crate::announce::concerns_others;
use crate::answers::repeated;
use crate::draft::Draft;
use crate::inode::{Body, Inode};
use crate::shard::{Home, Shard};
use crate::store::{Caller, Core};
use bivouac_layout::template::{FIELDS, Field};
use bivouac_layout::{FileLayout, Ino, Map, Template};
use bivouac_proto::meta::XattrMode;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply};

/// What all the attributes' names begin with; other names under it do not exist.
const PREFIX: &[u8] = b"user.bivouac.";
/// The attribute that shows and sets all at once, and is listed.
pub(crate) const WHOLE: &[u8] = b"user.bivouac.layout";

/// Which attribute a name means, among those of the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shown {
    /// Everything.
    Whole,
    One(Field),
    /// A name that is reserved, and means nothing.
    Unknown,
}

/// What a name means; `None` for an attribute that has nothing to do with the layout.
pub(crate) fn meaning(name: &[u8]) -> Option<Shown> {
    let rest = name.strip_prefix(PREFIX)?;
    if name == WHOLE {
        return Some(Shown::Whole);
    }
    let field = FIELDS.into_iter().find(|field| field.name().as_bytes() == rest);
    Some(field.map_or(Shown::Unknown, Shown::One))
}

impl Shard {
    /// What a directory says about what is made in it.
    pub(crate) fn template(&self, home: Home) -> Template {
        match home {
            Home::Packed(dir) => self.inodes.get(dir).map(|inode| inode.template()).unwrap_or_default(),
            Home::Part(dir, part) => self.parts.get(&(dir, part)).map(|part| part.layout).unwrap_or_default(),
        }
    }
}

impl Inode {
    /// What a directory says about new files, or a file with inline data about itself.
    pub(crate) fn template(&self) -> Template {
        match &self.body {
            Body::Directory(directory) => directory.layout,
            _ => self.extra.as_ref().map(|extra| extra.layout).unwrap_or_default(),
        }
    }

    /// Sets it. In a file it takes memory only if it is not empty.
    pub(crate) fn set_template(&mut self, template: Template) {
        match &mut self.body {
            Body::Directory(directory) => directory.layout = template,
            _ if template.is_empty() && self.extra.is_none() => {}
            _ => self.change_extra(|extra| extra.layout = template),
        }
    }

    /// The layout that a regular file has, or will have when it moves to blocks.
    pub(crate) fn layout(&self, ino: Ino, map: &Map) -> FileLayout {
        match &self.body {
            Body::Blocks(blocks) => blocks.layout.clone(),
            _ => self.template().layout(ino, map),
        }
    }

    /// What the attributes show.
    fn shown_template(&self, ino: Ino, map: &Map) -> Template {
        match &self.body {
            Body::Directory(directory) => directory.layout,
            _ => self.layout(ino, map).described(map),
        }
    }
}

/// The text of an attribute; ENODATA where nothing is set.
pub(crate) fn text(inode: &Inode, ino: Ino, map: &Map, shown: Shown) -> Result<String, Errno> {
    let template = inode.shown_template(ino, map);
    match shown {
        Shown::Whole if template.is_empty() => Err(Errno::NODATA),
        Shown::Whole => Ok(template.to_string()),
        Shown::One(field) => template.text(field).ok_or(Errno::NODATA),
        Shown::Unknown => Err(Errno::NODATA),
    }
}

/// What a template becomes when an attribute is set to `value`, or removed (`None`).
fn changed(before: Template, shown: Shown, value: Option<&[u8]>, mode: XattrMode) -> Result<Template, Errno> {
    let mut template = before;
    let (is_set, one) = match shown {
        Shown::Whole => (!before.is_empty(), None),
        Shown::One(field) => (before.text(field).is_some(), Some(field)),
        Shown::Unknown if value.is_some() => return Err(Errno::INVAL),
        Shown::Unknown => return Err(Errno::NODATA),
    };
    match (is_set, mode) {
        (true, XattrMode::Create) => return Err(Errno::EXIST),
        (false, XattrMode::Replace) => return Err(Errno::NODATA),
        _ => {}
    }
    let text = match value {
        None => "",
        // A final end of line comes from tools that take values from files.
        Some(value) => std::str::from_utf8(value).map_err(|_| Errno::INVAL)?.trim_end_matches(['\n', '\0']),
    };
    match one {
        None => template = text.parse().map_err(|_| Errno::INVAL)?,
        Some(field) => {
            template.set(field, if text.is_empty() { "default" } else { text }).map_err(|_| Errno::INVAL)?;
        }
    }
    Ok(template)
}

impl Core {
    /// Sets (or with no `value` removes) an attribute of the layout: of a directory, or of a file that never
    /// had data. ENOTEMPTY for other files.
    pub(crate) fn set_layout(
        &self,
        caller: &Caller,
        ino: Ino,
        shown: Shown,
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<Reply, Failure> {
        let now = self.outside.now();
        let map = self.outside.map();
        let owed = self.partitions.with(ino.shard(), |locked| {
            if repeated(locked.shard, &caller.id)?.is_some() {
                return Ok(locked.shard.announcements.contains_key(&ino));
            }
            let inode = locked.shard.inode(ino)?;
            let name = match shown {
                Shown::One(field) => [PREFIX, field.name().as_bytes()].concat(),
                _ => WHOLE.to_vec(),
            };
            crate::attrs::check_xattr(&inode, &name, &caller.credentials, true)?;
            let template = changed(inode.template(), shown, value, mode)?;
            template.check(&map).map_err(|_| Errno::INVAL)?;
            let directory = inode.as_directory();
            if directory.is_none() {
                locked.shard.is_not_busy(ino)?;
                let never_written = matches!(&inode.body, Body::Inline(data) if data.is_empty());
                if !never_written {
                    return Err(Errno::NOTEMPTY.into());
                }
            }
            let template =
                if directory.is_some() { template } else { template.placed(&map, caller.node, ino) };
            let mut draft = Draft::new(now);
            let changed = draft.inode(locked.shard, ino).ok_or(Errno::NOENT)?;
            changed.set_template(template);
            changed.ctime = now;
            if concerns_others(&inode, changed) {
                draft.owe_announcement(locked.shard, ino);
            }
            draft.answer(&caller.id, &Reply::Done);
            locked.commit(draft)?;
            Ok(locked.shard.announcements.contains_key(&ino))
        })?;
        if owed {
            self.announce(ino)?;
        }
        Ok(Reply::Done)
    }
}
