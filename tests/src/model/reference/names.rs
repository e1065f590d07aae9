//! Making, moving and removing names.
use super::*;

impl Reference {
    /// Where a new name goes. `directory`: a slash behind it is meant.
    fn place(&self, path: &str, directory: bool) -> Result<(u64, Vec<u8>), i32> {
        let Last::Name(dir, name, slash) = self.tree.walk(path)? else {
            return Err(libc::EEXIST);
        };
        match self.tree.look(dir, &name)? {
            Some(_) => Err(libc::EEXIST),
            None if slash && !directory => Err(libc::ENOENT),
            None => Ok((dir, name)),
        }
    }

    pub(super) fn mkdir(&mut self, path: &str, mode: u32) -> Outcome {
        let (dir, name) = self.place(path, true)?;
        self.tree.may(dir, WRITE | EXECUTE)?;
        let node = self.tree.add(Kind::Directory(BTreeMap::new(), dir), mode);
        self.tree.entries_mut(dir).insert(name, node);
        self.tree.node_mut(dir).links += 1;
        done()
    }

    pub(super) fn mknod(&mut self, path: &str, mode: u32) -> Outcome {
        let (dir, name) = self.place(path, false)?;
        self.tree.may(dir, WRITE | EXECUTE)?;
        let kind = ((mode & libc::S_IFMT) >> 12) as u8;
        let node = self.tree.add(Kind::Special(kind), mode & 0o7777);
        self.tree.node_mut(node).links = 1;
        self.tree.entries_mut(dir).insert(name, node);
        done()
    }

    pub(super) fn symlink(&mut self, target: &str, path: &str) -> Outcome {
        if target.is_empty() {
            return Err(libc::ENOENT);
        }
        let (dir, name) = self.place(path, false)?;
        self.tree.may(dir, WRITE | EXECUTE)?;
        let node = self.tree.add(Kind::Symlink(target.as_bytes().to_vec()), 0o777);
        self.tree.node_mut(node).links = 1;
        self.tree.entries_mut(dir).insert(name, node);
        done()
    }

    pub(super) fn link(&mut self, from: &str, to: &str, follow: bool) -> Outcome {
        let node = self.tree.find(from, follow)?;
        self.link_node(node, to)
    }

    pub(super) fn link_slot(&mut self, client: usize, slot: u8, to: &str) -> Outcome {
        self.link_node(self.description(client, slot).node, to)
    }

    /// Who does not own something makes names for it only if that gives him nothing (`protected_hardlinks`).
    fn may_link(&self, node: u64) -> Result<(), i32> {
        let file = self.tree.data(node).is_some();
        let harmless = file && self.tree.may(node, READ | WRITE).is_ok();
        if harmless || self.tree.owns(node) || !self.rules.protected_links {
            Ok(())
        } else {
            Err(libc::EPERM)
        }
    }

    fn link_node(&mut self, node: u64, to: &str) -> Outcome {
        let (dir, name) = self.place(to, false)?;
        self.may_link(node)?;
        self.tree.may(dir, WRITE | EXECUTE)?;
        if self.tree.is_directory(node) {
            return Err(libc::EPERM);
        }
        let inode = self.tree.node_mut(node);
        if inode.links == 0 && !inode.nameable {
            return Err(libc::ENOENT);
        }
        inode.links += 1;
        inode.nameable = false;
        self.tree.entries_mut(dir).insert(name, node);
        done()
    }

    pub(super) fn unlink(&mut self, path: &str) -> Outcome {
        let Last::Name(dir, name, slash) = self.tree.walk(path)? else {
            return Err(libc::EISDIR);
        };
        let node = self.tree.look(dir, &name)?.ok_or(libc::ENOENT)?;
        let directory = self.tree.is_directory(node);
        if slash {
            return Err(if directory { libc::EISDIR } else { libc::ENOTDIR });
        }
        self.tree.may_remove(dir, node)?;
        if directory {
            return Err(libc::EISDIR);
        }
        self.tree.entries_mut(dir).remove(&name);
        self.tree.drop_name(node);
        done()
    }

    pub(super) fn rmdir(&mut self, path: &str) -> Outcome {
        let (dir, name) = match self.tree.walk(path)? {
            Last::Above(_) => return Err(libc::ENOTEMPTY),
            Last::Here(_) => return Err(libc::EINVAL),
            Last::Name(dir, name, _) => (dir, name),
        };
        let node = self.tree.look(dir, &name)?.ok_or(libc::ENOENT)?;
        self.tree.may_remove(dir, node)?;
        if !self.tree.is_directory(node) {
            return Err(libc::ENOTDIR);
        }
        if !self.tree.entries(node).is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        self.tree.entries_mut(dir).remove(&name);
        self.tree.node_mut(dir).links -= 1;
        self.tree.drop_name(node);
        done()
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, flags: u32) -> Outcome {
        let (keep, exchange) = (flags & libc::RENAME_NOREPLACE != 0, flags & libc::RENAME_EXCHANGE != 0);
        let (from, to) = (self.tree.walk(from)?, self.tree.walk(to)?);
        let Last::Name(from_dir, from_name, from_slash) = from else {
            return Err(libc::EBUSY);
        };
        let Last::Name(to_dir, to_name, to_slash) = to else {
            return Err(if keep { libc::EEXIST } else { libc::EBUSY });
        };
        let node = self.tree.look(from_dir, &from_name)?.ok_or(libc::ENOENT)?;
        let target = self.tree.look(to_dir, &to_name)?;
        let directory = self.tree.is_directory(node);
        match target {
            Some(_) if keep => return Err(libc::EEXIST),
            None if exchange => return Err(libc::ENOENT),
            Some(target) if exchange && to_slash && !self.tree.is_directory(target) => {
                return Err(libc::ENOTDIR);
            }
            _ => {}
        }
        if !directory && (from_slash || to_slash && !exchange) {
            return Err(libc::ENOTDIR);
        }
        if directory && self.tree.holds(node, to_dir) {
            return Err(libc::EINVAL);
        }
        if let Some(target) = target.filter(|target| self.tree.is_directory(*target))
            && self.tree.holds(target, from_dir)
        {
            return Err(if exchange { libc::EINVAL } else { libc::ENOTEMPTY });
        }
        if target == Some(node) {
            return done();
        }
        self.tree.may_remove(from_dir, node)?;
        match target {
            Some(target) => self.tree.may_remove(to_dir, target)?,
            None => self.tree.may(to_dir, WRITE | EXECUTE)?,
        }
        match target.map(|target| (target, self.tree.is_directory(target))) {
            Some((_, false)) if directory && !exchange => return Err(libc::ENOTDIR),
            Some((_, true)) if !directory && !exchange => return Err(libc::EISDIR),
            _ => {}
        }
        if from_dir != to_dir {
            // Where it says what is above it changes.
            for moved in [Some(node), target.filter(|_| exchange)].into_iter().flatten() {
                if self.tree.is_directory(moved) {
                    self.tree.may(moved, WRITE)?;
                }
            }
        }
        if exchange {
            let target = target.expect("looked at above");
            self.tree.entries_mut(from_dir).insert(from_name, target);
            self.tree.entries_mut(to_dir).insert(to_name, node);
            self.moved(node, from_dir, to_dir);
            self.moved(target, to_dir, from_dir);
            return done();
        }
        match target.map(|target| (target, self.tree.is_directory(target))) {
            Some((target, true)) if !self.tree.entries(target).is_empty() => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        self.tree.entries_mut(from_dir).remove(&from_name);
        self.tree.entries_mut(to_dir).insert(to_name, node);
        self.moved(node, from_dir, to_dir);
        if let Some(target) = target {
            if directory {
                self.tree.node_mut(to_dir).links -= 1;
            }
            self.tree.drop_name(target);
        }
        done()
    }

    /// A directory hangs elsewhere now.
    fn moved(&mut self, node: u64, from_dir: u64, to_dir: u64) {
        if let Kind::Directory(_, above) = &mut self.tree.node_mut(node).kind {
            *above = to_dir;
            self.tree.node_mut(from_dir).links -= 1;
            self.tree.node_mut(to_dir).links += 1;
            self.directories_moved |= from_dir != to_dir;
        }
    }
}
