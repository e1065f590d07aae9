//! What a directory says about how the files made in it are spread.
//!
//! A [`Template`] need not say everything: the deployment's defaults (in the [`Map`]) fill in the rest. New
//! files and new directories take over the template of their directory; a later change of the directory does
//! not change them. `first = local` means the node of the process that makes the file. Only the server that
//! makes the file knows which that is; it replaces `local` by a server ([`Template::placed`]), and so fixes
//! the file's layout.
//!
//! Templates have a text form, `block=1M width=2 first=local`, in which the command line and extended
//! attributes show and take them.

use crate::hash::{self, Use};
use crate::ids::{Ino, NodeId, ServerId};
use crate::map::{Map, ServerState};
use crate::placement::{FileLayout, is_block_size};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which server holds a file's first block.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, Debug)]
pub enum First {
    /// One that the inode's number chooses: all servers get the same share.
    #[default]
    Hashed,
    /// One on the node of the process that makes the file; hashed where that node has none.
    Local,
    /// This one; hashed if files are not striped over it.
    Server(ServerId),
}

/// How new files are to be spread, as far as it is said.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, Debug)]
pub struct Template {
    /// Unit of striping, bytes; as in [`FileLayout::block_size`].
    pub block_size: Option<u32>,
    /// Over how many servers; 0 means all. More than there are counts as all.
    pub width: Option<u16>,
    /// Where the first block goes.
    pub first: Option<First>,
    /// Copies of each block, at most as many as of the metadata.
    pub replicas: Option<u8>,
}

/// One thing that a template says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// [`Template::block_size`], `block`.
    Block,
    /// [`Template::width`], `width`.
    Width,
    /// [`Template::first`], `first`.
    First,
    /// [`Template::replicas`], `replicas`.
    Replicas,
}

/// All fields, in the order of the text form.
pub const FIELDS: [Field; 4] = [Field::Block, Field::Width, Field::First, Field::Replicas];

/// Why a text is not a template, or a template cannot be used; what to do instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TemplateError(pub &'static str);

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for TemplateError {}

impl Field {
    /// Its name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Field::Block => "block",
            Field::Width => "width",
            Field::First => "first",
            Field::Replicas => "replicas",
        }
    }

    /// The field of a name.
    pub fn named(name: &str) -> Option<Field> {
        FIELDS.into_iter().find(|field| field.name() == name)
    }
}

impl Template {
    /// Whether it leaves everything open.
    pub fn is_empty(&self) -> bool {
        *self == Template::default()
    }

    /// Its own fields, and for those that it leaves open, the fields of `other`.
    pub fn or(self, other: Template) -> Template {
        Template {
            block_size: self.block_size.or(other.block_size),
            width: self.width.or(other.width),
            first: self.first.or(other.first),
            replicas: self.replicas.or(other.replicas),
        }
    }

    /// Whether files can be spread like this in `map`; says what to change if not.
    pub fn check(&self, map: &Map) -> Result<(), TemplateError> {
        if self.block_size.is_some_and(|bytes| !is_block_size(bytes)) {
            Err(TemplateError("block sizes are multiples of 4K, from 4K to 128M"))
        } else if self.replicas == Some(0) {
            Err(TemplateError("replicas counts the original too: it is 1 or more"))
        } else if self.replicas.is_some_and(|n| n > map.copies) {
            Err(TemplateError(
                "a file cannot have more replicas than its metadata: start the deployment with more of those \
                 (`bivouac up --metadata-replicas N`)",
            ))
        } else if let Some(First::Server(id)) = self.first
            && position(map, id).is_none()
        {
            Err(TemplateError("new files are not striped over that server: `bivouac status` lists them"))
        } else {
            Ok(())
        }
    }

    /// What a file that a process of node `creator` makes keeps of it: everything, but with a server instead
    /// of `local`. Empty, which takes no memory, where the deployment's defaults and the inode's number give
    /// the same result.
    pub fn placed(self, map: &Map, creator: NodeId, ino: Ino) -> Template {
        if self.first.unwrap_or(map.first) != First::Local {
            return self;
        }
        let servers = map.generations.last().map_or(&[][..], |g| &g.servers);
        let is_near = |id: &&ServerId| {
            map.server(**id).is_some_and(|s| s.node == creator && s.state == ServerState::Up)
        };
        let near: Vec<ServerId> = servers.iter().filter(is_near).copied().collect();
        let chosen = hash::number(Use::FirstServer, ino.0) % (near.len().max(1) as u64);
        let first = near.get(chosen as usize).map_or(First::Hashed, |id| First::Server(*id));
        Template { first: Some(first), ..self }
    }

    /// The layout of a file with this template. (`Local` has been replaced by [`Template::placed`]; here it
    /// counts as hashed.)
    pub fn layout(self, ino: Ino, map: &Map) -> FileLayout {
        let whole = self.or(map.defaults());
        let mut layout =
            FileLayout::spread(ino, whole.block_size.unwrap_or(map.block_size), map.newest_generation());
        for range in &mut layout.ranges {
            if let Some(First::Server(id)) = whole.first
                && let Some(at) = position(map, id)
            {
                range.first = at + beyond(range.first, map);
                layout.placed = true;
            }
        }
        layout.width = whole.width.unwrap_or(0);
        layout.replicas = whole.replicas.unwrap_or(1);
        layout
    }

    /// The text of one field; `None` where it says nothing.
    pub fn text(&self, field: Field) -> Option<String> {
        match field {
            Field::Block => self.block_size.map(size_text),
            Field::Width => self.width.map(|n| if n == 0 { "all".into() } else { n.to_string() }),
            Field::First => self.first.map(|first| first.to_string()),
            Field::Replicas => self.replicas.map(|n| n.to_string()),
        }
    }

    /// Sets one field from its text; `default` leaves it open again.
    pub fn set(&mut self, field: Field, text: &str) -> Result<(), TemplateError> {
        let open = text == "default";
        match field {
            Field::Block => self.block_size = if open { None } else { Some(parse_size(text)?) },
            Field::Width => self.width = if open { None } else { Some(parse_width(text)?) },
            Field::First => self.first = if open { None } else { Some(text.parse()?) },
            Field::Replicas => {
                let parsed = || text.parse().map_err(|_| TemplateError("replicas is a number"));
                self.replicas = if open { None } else { Some(parsed()?) };
            }
        }
        Ok(())
    }
}

/// What of a hashed first position chooses where copies begin.
fn beyond(hashed: u32, map: &Map) -> u32 {
    let servers = map.generations.last().map_or(1, |g| g.servers.len().max(1)) as u32;
    match map.copies {
        1 => 0,
        // With room for a position.
        _ => hashed.saturating_sub(servers) / servers * servers,
    }
}

/// The index of a server in the newest generation.
fn position(map: &Map, id: ServerId) -> Option<u32> {
    map.generations.last()?.servers.iter().position(|s| *s == id).map(|at| at as u32)
}

/// `block=1M width=2 first=local`: what it says, in the order of [`FIELDS`]; empty if it says nothing.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        for field in FIELDS {
            if let Some(text) = self.text(field) {
                write!(f, "{gap}{}={text}", field.name())?;
                gap = " ";
            }
        }
        Ok(())
    }
}

/// The text form, in any order, each field once at most; commas separate as spaces do.
impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Template, TemplateError> {
        let mut template = Template::default();
        let mut seen = Vec::new();
        for word in text.split(|c: char| c == ',' || c.is_ascii_whitespace()).filter(|w| !w.is_empty()) {
            let (name, value) =
                word.split_once('=').ok_or(TemplateError("a layout is like block=1M width=2 first=local"))?;
            let field = Field::named(name)
                .ok_or(TemplateError("a layout has the fields block, width, first and replicas"))?;
            if seen.contains(&field) {
                return Err(TemplateError("a field is given twice"));
            }
            seen.push(field);
            template.set(field, value)?;
        }
        Ok(template)
    }
}

impl fmt::Display for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            First::Hashed => f.write_str("hashed"),
            First::Local => f.write_str("local"),
            First::Server(id) => id.fmt(f),
        }
    }
}

impl FromStr for First {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<First, TemplateError> {
        match text {
            "hashed" => Ok(First::Hashed),
            "local" => Ok(First::Local),
            _ => match text.parse() {
                Ok(id) if is_number(text) => Ok(First::Server(ServerId(id))),
                _ => Err(TemplateError("first is hashed, local, or the number of a server")),
            },
        }
    }
}

/// Digits alone: Rust's parser takes a sign, too.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// A width: a number of servers, or `all`, which is 0.
pub fn parse_width(text: &str) -> Result<u16, TemplateError> {
    match text {
        "all" => Ok(0),
        _ => match text.parse() {
            Ok(n) if n > 0 && is_number(text) => Ok(n),
            _ => Err(TemplateError("width is a number of servers from 1, or all")),
        },
    }
}

/// A block size with K or M, for example 512K; bytes without.
pub fn parse_size(text: &str) -> Result<u32, TemplateError> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        _ => return Err(TemplateError("a block size is a number with K or M, for example 512K")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    match bytes.and_then(|b| u32::try_from(b).ok()) {
        Some(bytes) if is_block_size(bytes) => Ok(bytes),
        _ => Err(TemplateError("block sizes are multiples of 4K, from 4K to 128M")),
    }
}

/// A block size as [`parse_size`] takes it.
pub fn size_text(bytes: u32) -> String {
    match bytes {
        n if n % (1 << 20) == 0 => format!("{}M", n >> 20),
        n if n % (1 << 10) == 0 => format!("{}K", n >> 10),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests;
