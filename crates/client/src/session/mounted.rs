//! Where programs see the file system: absolute paths below the mount point, and below the forwarded directory.

use super::Session;
use bivouac_layout::Ino;

impl Session {
    /// Where an absolute path leads that lies below the mount point or the forwarded directory: the inode of that one, and the
    /// rest of the path.
    pub(crate) fn below<'p>(&self, path: &'p [u8]) -> Option<(Ino, &'p [u8])> {
        let inside = strip_mount(self.mount(), path).map(|inside| (Ino::ROOT, inside));
        inside.or_else(|| Some((Ino::FORWARDED, strip_mount(self.forwarded()?, path)?)))
    }

    /// The path of the directory that paths to an inode begin with.
    pub(crate) fn path_to(&self, ino: Ino) -> &[u8] {
        match self.forwarded() {
            Some(forwarded) if ino.is_forwarded() => forwarded,
            _ => self.mount(),
        }
    }
}

/// What follows the mount point in an absolute path below it (or at it: empty).
pub fn strip_mount<'p>(mount: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let mut at = 0;
    for component in mount.split(|&b| b == b'/').filter(|c| !c.is_empty()) {
        while path.get(at) == Some(&b'/') {
            at += 1;
        }
        if !path[at..].starts_with(component) {
            return None;
        }
        at += component.len();
        if path.get(at).is_some_and(|&b| b != b'/') {
            return None;
        }
    }
    Some(&path[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_components_are_the_mount() {
        assert_eq!(strip_mount(b"/bivouac", b"/bivouac/a"), Some(&b"/a"[..]));
        assert_eq!(strip_mount(b"/bivouac", b"//bivouac"), Some(&b""[..]));
        assert_eq!(strip_mount(b"/bivouac", b"/bivouac2/a"), None);
        assert_eq!(strip_mount(b"/a/b", b"/a//b/c"), Some(&b"/c"[..]));
        assert_eq!(strip_mount(b"/a/b", b"/a"), None);
    }
}
