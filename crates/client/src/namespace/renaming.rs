//! Renaming, with errors in the order in which Linux finds them.

use super::Namespace;
use super::again::{Again, Failing};
use super::walk::{Last, Place};
use crate::error::Fail;
use crate::requests::To;
use bivouac_layout::Ino;
use bivouac_proto::attr::{FileKind, NAME_MAX};
use bivouac_proto::meta::{At, MetaRequest, RenameMode};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};

/// Flags of `renameat2` (Linux).
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;

impl Namespace {
    /// Renames; `flags` as for `renameat2(2)`.
    pub(crate) fn rename(
        &self,
        start: Ino,
        path: &[u8],
        to: Ino,
        to_path: &[u8],
        flags: u32,
    ) -> Result<(), Fail> {
        let mode = match flags {
            0 => RenameMode::Replace,
            RENAME_NOREPLACE => RenameMode::NoReplace,
            RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::INVAL.into()),
        };
        let mut again = Again::default();
        loop {
            let mut dirs = None;
            match self.try_rename((start, path), (to, to_path), mode, again.always_asks, &mut dirs) {
                Ok(()) => return Ok(()),
                Err(failing) => {
                    let (from, to) = dirs.unwrap_or_default();
                    if let Failing::Refused(Refusal::UnknownDirectory) = failing {
                        self.memory().paths().forget_directory(from);
                        self.memory().paths().forget_directory(to);
                    }
                    // The refusal does not say which of the two is unknown. If walking again finds the same
                    // two, it was removed.
                    again.after(failing, Ino(from.0 ^ to.0.rotate_left(32)), false)?;
                }
            }
        }
    }

    /// One attempt; `dirs` are the directories of the two names, once they are found.
    fn try_rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        always_asks: bool,
        dirs: &mut Option<(Ino, Ino)>,
    ) -> Result<(), Failing> {
        let last_of = |(start, path)| self.at_any_last(start, path, always_asks, |_, last| Ok(last));
        let from = last_of(from)?;
        let to = match (last_of(to), &from) {
            (Err(fail), Last::Name(place)) => {
                // An error about the first path comes first, even if only this request finds out that the
                // path is out of date.
                self.confirm(place)?;
                return Err(fail.into());
            }
            (to, _) => to?,
        };
        let Last::Name(from) = from else {
            if let Last::Name(to) = &to {
                // No request follows that would find out whether the other path is out of date.
                self.confirm(to)?;
            }
            return Err(Errno::BUSY.into());
        };
        let Last::Name(to) = to else {
            self.confirm(&from)?;
            let exists = mode == RenameMode::NoReplace;
            return Err(if exists { Errno::EXIST } else { Errno::BUSY }.into());
        };
        if from.dir.is_forwarded() != to.dir.is_forwarded() {
            return Err(Errno::XDEV.into());
        }
        *dirs = Some((from.dir, to.dir));
        if let Err(failing) = self.check_rename(&from, &to, mode) {
            self.confirm(&from)?;
            self.confirm(&to)?;
            return Err(failing);
        }
        let (from_split, to_split) =
            (self.memory().paths().is_split(from.dir), self.memory().paths().is_split(to.dir));
        let request = MetaRequest::Rename {
            from: At { dir: from.dir, split: from_split, name: &from.name },
            to: At { dir: to.dir, split: to_split, name: &to.name },
            mode,
        };
        let reached = from.reached.and(to.reached);
        match self.requests().meta(
            To::entry(from.dir, from_split, &from.name, reached),
            &request,
            &[],
            &mut [],
        ) {
            Ok(_) => {
                self.memory().paths().forget_child(from.dir, &from.name);
                self.memory().paths().forget_child(to.dir, &to.name);
                Ok(())
            }
            Err(Failure::Refused(Refusal::DirectorySplit)) => {
                // The refusal does not say which of the two.
                let mut learned = false;
                for (dir, known) in [(from.dir, from_split), (to.dir, to_split)] {
                    if !known && self.attr_of(dir)?.split {
                        self.memory().paths().learn_split(dir);
                        learned = true;
                    }
                }
                if learned { Err(Refusal::DirectorySplit.into()) } else { Err(Errno::IO.into()) }
            }
            Err(Failure::Errno(errno @ (Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY))) => {
                Err(self.refused_rename(&from, &to, mode)?.unwrap_or(errno).into())
            }
            Err(Failure::Errno(errno)) => {
                // Perhaps an error of the first path, whose server is asked first. (A server that does not
                // answer has said nothing about any path, and may have been waited for.)
                if errno != Errno::IO && to.reached.cached && to.dir != from.dir {
                    self.confirm(&to)?;
                }
                Err(errno.into())
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Fails if a server finds that the cached path to a name is out of date.
    fn confirm(&self, place: &Place) -> Result<(), Failing> {
        let name = place.name.get(..NAME_MAX).unwrap_or(&place.name);
        match self.lookup(place.reached, place.dir, name) {
            Err(refused @ Failing::Refused(_)) => Err(refused),
            _ => Ok(()),
        }
    }

    /// Linux looks at whether one of the two lies in the other before it looks at what they are.
    fn refused_rename(&self, from: &Place, to: &Place, mode: RenameMode) -> Result<Option<Errno>, Failing> {
        let (moved, _) = self.lookup(from.reached, from.dir, &from.name)?;
        if moved.kind == FileKind::Directory && self.lies_in(to.dir, moved.ino)? {
            return Ok(Some(Errno::INVAL));
        }
        let (target, _) = self.lookup(to.reached, to.dir, &to.name)?;
        if target.kind == FileKind::Directory && self.lies_in(from.dir, target.ino)? {
            return Ok(Some(if mode == RenameMode::Exchange { Errno::INVAL } else { Errno::NOTEMPTY }));
        }
        Ok(None)
    }

    /// Whether a directory is `above`, or lies somewhere in it.
    fn lies_in(&self, mut dir: Ino, above: Ino) -> Result<bool, Errno> {
        while dir != above {
            if matches!(dir, Ino::ROOT | Ino::FORWARDED) {
                return Ok(false);
            }
            dir = self.parent(dir)?.0;
        }
        Ok(true)
    }

    /// Checks what the server cannot: a name with a slash after it must be a directory's, and names have a
    /// greatest length.
    fn check_rename(&self, from: &Place, to: &Place, mode: RenameMode) -> Result<(), Failing> {
        let short = |place: &Place| place.name.len() <= NAME_MAX;
        if !from.slash && !to.slash && short(from) && short(to) {
            return Ok(());
        }
        let kind = |place: &Place| {
            if !short(place) {
                return Err(Errno::NAMETOOLONG.into());
            }
            self.lookup(place.reached, place.dir, &place.name).map(|(attr, _)| attr.kind)
        };
        let moved = kind(from)?;
        let target = match kind(to) {
            Ok(kind) => Some(kind),
            Err(Failing::Fail(Fail::Errno(Errno::NOENT))) => None,
            Err(failing) => return Err(failing),
        };
        let directory = |kind: FileKind| kind == FileKind::Directory;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT.into()),
            (RenameMode::Exchange, Some(kind)) if to.slash && !directory(kind) => {
                return Err(Errno::NOTDIR.into());
            }
            _ => {}
        }
        let slash = from.slash || to.slash && mode != RenameMode::Exchange;
        if slash && !directory(moved) { Err(Errno::NOTDIR.into()) } else { Ok(()) }
    }
}
