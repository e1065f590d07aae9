//! Descriptions and the bytes of files.
use super::*;

/// What counts beside O_PATH.
const PATH_FLAGS: i32 = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;

impl Reference {
    pub(super) fn open(&mut self, client: usize, slot: u8, path: &str, flags: i32, mode: u32) -> Outcome {
        // Of all others the kernel takes no notice then.
        let flags = if flags & libc::O_PATH == 0 { flags } else { flags & PATH_FLAGS };
        let temporary = flags & libc::O_TMPFILE == libc::O_TMPFILE;
        let node =
            if temporary { self.temporary(path, flags, mode)? } else { self.opened(path, flags, mode)? };
        self.described(client, slot, node, if temporary { flags & !libc::O_TRUNC } else { flags })
    }

    /// Opens what a descriptor is of.
    pub(super) fn reopen(&mut self, client: usize, slot: u8, from: u8, flags: i32) -> Outcome {
        let node = self.description(client, from).node;
        let flags = if flags & libc::O_PATH == 0 { flags } else { flags & PATH_FLAGS };
        match self.tree.node(node).kind {
            Kind::Symlink(_) if flags & libc::O_DIRECTORY != 0 => return Err(libc::ENOTDIR),
            Kind::Symlink(_) if flags & libc::O_PATH == 0 => return Err(libc::ELOOP),
            Kind::Directory(..) => {
                self.alive(node)?;
                if flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0 {
                    return Err(libc::EISDIR);
                }
            }
            Kind::File(_) if flags & libc::O_DIRECTORY != 0 => return Err(libc::ENOTDIR),
            _ => {}
        }
        self.may_open(node, flags)?;
        self.described(client, slot, node, flags)
    }

    fn may_open(&self, node: u64, flags: i32) -> Result<(), i32> {
        if flags & libc::O_PATH != 0 {
            return Ok(());
        }
        let rights = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        self.tree.may(node, if flags & libc::O_TRUNC != 0 { rights | WRITE } else { rights })
    }

    /// A new description.
    fn described(&mut self, client: usize, slot: u8, node: u64, flags: i32) -> Outcome {
        let inode = self.tree.node_mut(node);
        if flags & libc::O_TRUNC != 0
            && let Kind::File(data) = &mut inode.kind
        {
            data.clear();
            inode.mtime = Time::Fresh;
            self.tree.content_changes(node);
        }
        let inode = self.tree.node_mut(node);
        match flags & libc::O_PATH {
            0 => inode.opens += 1,
            _ => inode.paths += 1,
        }
        let number = self.next;
        self.next += 1;
        self.descriptions
            .insert(number, Description { number, node, flags, offset: 0, strayed: false, holders: 1 });
        self.slots[client][slot as usize] = Some(number);
        done()
    }

    fn temporary(&mut self, path: &str, flags: i32, mode: u32) -> Result<u64, i32> {
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(libc::EINVAL);
        }
        let dir = self.tree.find(path, flags & libc::O_NOFOLLOW == 0)?;
        if !self.tree.is_directory(dir) {
            return Err(libc::ENOTDIR);
        }
        self.tree.may(dir, WRITE | EXECUTE)?;
        let node = self.tree.add(Kind::File(Vec::new()), mode);
        self.tree.node_mut(node).nameable = flags & libc::O_EXCL == 0;
        Ok(node)
    }

    fn opened(&mut self, path: &str, flags: i32, mode: u32) -> Result<u64, i32> {
        let create = flags & libc::O_CREAT != 0;
        let exclusive = create && flags & libc::O_EXCL != 0;
        let mut links = 0;
        let mut last = self.tree.walk_from(self.tree.start, path.as_bytes(), &mut links)?;
        let node = loop {
            let (dir, name, slash) = match last {
                Last::Here(_) | Last::Above(_) if exclusive => return Err(libc::EEXIST),
                Last::Here(dir) | Last::Above(dir) => break dir,
                Last::Name(dir, name, slash) => (dir, name, slash),
            };
            if create && slash {
                return Err(libc::EISDIR);
            }
            let follow = (flags & libc::O_NOFOLLOW == 0 || slash) && !exclusive;
            match self.tree.look(dir, &name)? {
                None if create => {
                    self.tree.may(dir, WRITE | EXECUTE)?;
                    let node = self.tree.add(Kind::File(Vec::new()), mode);
                    self.tree.node_mut(node).links = 1;
                    self.tree.entries_mut(dir).insert(name, node);
                    return Ok(node);
                }
                None => return Err(libc::ENOENT),
                Some(_) if exclusive => return Err(libc::EEXIST),
                Some(found) => match &self.tree.node(found).kind {
                    Kind::Symlink(_) | Kind::File(_)
                        if (create || follow) && self.tree.unless_sheltered(dir, found).is_err() =>
                    {
                        return Err(ESCAPED);
                    }
                    Kind::Symlink(target) if follow => {
                        links += 1;
                        if links > 40 {
                            return Err(libc::ELOOP);
                        }
                        let mut target = target.clone();
                        if slash {
                            target.push(b'/');
                        }
                        last = self.tree.walk_from(dir, &target, &mut links)?;
                    }
                    Kind::Symlink(_) if flags & libc::O_DIRECTORY != 0 => return Err(libc::ENOTDIR),
                    Kind::Symlink(_) if flags & libc::O_PATH != 0 => break found,
                    Kind::Symlink(_) => return Err(libc::ELOOP),
                    Kind::File(_) | Kind::Special(_) if slash => return Err(libc::ENOTDIR),
                    _ => break found,
                },
            }
        };
        let directory = self.tree.is_directory(node);
        if directory && (create || flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0) {
            return Err(libc::EISDIR);
        }
        if !directory && flags & libc::O_DIRECTORY != 0 {
            return Err(libc::ENOTDIR);
        }
        self.may_open(node, flags)?;
        Ok(node)
    }

    pub(super) fn close(&mut self, client: usize, slot: u8) -> Outcome {
        let Some(number) = self.slots[client][slot as usize].take() else {
            return Err(ESCAPED);
        };
        let description = self.descriptions.get_mut(&number).expect("open");
        description.holders -= 1;
        let (node, holders, path_only) = (description.node, description.holders, description.path_only());
        if !path_only {
            self.locks.forget(node, Owner::Process(client));
        }
        if holders == 0 {
            self.descriptions.remove(&number);
            self.locks.forget(node, Owner::Description(number));
            self.locks.forget(node, Owner::Whole(number));
            let inode = self.tree.node_mut(node);
            *if path_only { &mut inode.paths } else { &mut inode.opens } -= 1;
            self.tree.forget_if_gone(node);
        }
        done()
    }

    pub(super) fn dup(&mut self, client: usize, from: u8, to: u8) -> Outcome {
        let number = self.slots[client][from as usize];
        // Counted first, so that closing what is replaced is not the end of it.
        self.description_mut(client, from).holders += 1;
        let _ = self.close(client, to);
        self.slots[client][to as usize] = number;
        done()
    }

    pub(super) fn read(&mut self, client: usize, slot: u8, offset: Option<u64>, len: u64) -> Outcome {
        let description = self.description(client, slot);
        if description.flags & libc::O_ACCMODE == libc::O_WRONLY {
            return Err(libc::EBADF);
        }
        let data = self.tree.data(description.node).ok_or(libc::EISDIR)?;
        if offset.is_none() && description.strayed {
            return Err(ESCAPED);
        }
        let at = offset.unwrap_or(description.offset);
        let from = at.min(data.len() as u64) as usize;
        let to = (at + len).min(data.len() as u64) as usize;
        let bytes = data[from..to.max(from)].to_vec();
        if offset.is_none() {
            self.description_mut(client, slot).offset += bytes.len() as u64;
        }
        Ok(Expected::Exactly(Answer::Bytes(bytes)))
    }

    pub(super) fn write(
        &mut self,
        client: usize,
        slot: u8,
        offset: Option<u64>,
        len: u64,
        seed: u8,
    ) -> Outcome {
        let description = self.description(client, slot);
        let (node, flags, own) = (description.node, description.flags, description.offset);
        let strayed = description.strayed;
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(libc::EBADF);
        }
        let inode = self.tree.node_mut(node);
        let Kind::File(data) = &mut inode.kind else { return Err(libc::EBADF) };
        let append = flags & libc::O_APPEND != 0;
        if offset.is_none() && strayed && !append {
            return Err(ESCAPED);
        }
        let at = if append { data.len() as u64 } else { offset.unwrap_or(own) };
        if len > 0 {
            put(data, at, &pattern(seed, len));
            inode.mtime = Time::Fresh;
            self.tree.content_changes(node);
        }
        if offset.is_none() && (len > 0 || !append) {
            let mount = self.mounts[client];
            let description = self.description_mut(client, slot);
            description.offset = at + len;
            description.strayed = append && mount;
        }
        count(len)
    }

    pub(super) fn seek(&mut self, client: usize, slot: u8, offset: i64, whence: i32) -> Outcome {
        let number = self.slots[client][slot as usize].expect("open");
        let description = &self.descriptions[&number];
        let node = description.node;
        let size = self.tree.data(node).ok_or(ESCAPED)?.len() as i64;
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR if description.strayed => return Err(ESCAPED),
            libc::SEEK_CUR => description.offset as i64,
            libc::SEEK_END => size,
            _ if offset < 0 => return Err(libc::ENXIO),
            _ => {
                let (offset, hole) = (offset as u64, whence == libc::SEEK_HOLE);
                return Ok(Expected::Begin { node, description: number, offset, hole });
            }
        };
        let to = u64::try_from(base + offset).map_err(|_| libc::EINVAL)?;
        let description = self.description_mut(client, slot);
        (description.offset, description.strayed) = (to, false);
        count(to)
    }

    pub(super) fn copy(&mut self, client: usize, from: (u8, u64), to: (u8, u64), len: u64) -> Outcome {
        let (source, target) = (self.description(client, from.0), self.description(client, to.0));
        let (source_node, target_node) = (source.node, target.node);
        // A local file system is asked in so many ways that only the plain ones are compared.
        let plain = source.flags & libc::O_ACCMODE != libc::O_WRONLY
            && target.flags & libc::O_ACCMODE != libc::O_RDONLY
            && target.flags & libc::O_APPEND == 0
            && source_node != target_node
            && !self.tree.is_directory(source_node);
        if !plain {
            return Err(ESCAPED);
        }
        let data = self.tree.data(source_node).ok_or(ESCAPED)?;
        let begin = from.1.min(data.len() as u64) as usize;
        let end = (from.1 + len).min(data.len() as u64) as usize;
        let bytes = data[begin..end.max(begin)].to_vec();
        if !bytes.is_empty() {
            let inode = self.tree.node_mut(target_node);
            inode.mtime = Time::Fresh;
            if let Kind::File(data) = &mut inode.kind {
                put(data, to.1, &bytes);
            }
            self.tree.content_changes(target_node);
        }
        count(bytes.len() as u64)
    }

    /// What of a mapping lies in the file, if that is something.
    pub(super) fn mapped(&self, client: usize, slot: u8, offset: u64, len: u64) -> Option<(u64, u64)> {
        let size = self.tree.data(self.description(client, slot).node)?.len() as u64;
        let offset = offset & !4095;
        let len = len.min(size.saturating_sub(offset));
        (len > 0).then_some((offset, len))
    }

    pub(super) fn map_read(&mut self, client: usize, slot: u8, offset: u64, len: u64) -> Outcome {
        let node = self.description(client, slot).node;
        self.tree.may(node, READ)?;
        // It closes a descriptor of the file.
        self.locks.forget(node, Owner::Process(client));
        let data = self.tree.data(node).ok_or(ESCAPED)?;
        Ok(Expected::Exactly(Answer::Bytes(data[offset as usize..(offset + len) as usize].to_vec())))
    }

    pub(super) fn map_write(&mut self, client: usize, slot: u8, offset: u64, len: u64, seed: u8) -> Outcome {
        let node = self.description(client, slot).node;
        self.tree.may(node, READ | WRITE)?;
        self.locks.forget(node, Owner::Process(client));
        let inode = self.tree.node_mut(node);
        inode.mtime = Time::Any;
        if let Kind::File(data) = &mut inode.kind {
            put(data, offset, &pattern(seed, len));
        }
        self.tree.content_changes(node);
        done()
    }

    pub(super) fn truncate(&mut self, client: usize, target: &Target, size: i64) -> Outcome {
        let by_path = !matches!(target, Target::Slot(_));
        let size = usize::try_from(size).map_err(|_| libc::EINVAL)?;
        let node = self.target(client, target)?;
        if let Target::Slot(slot) = target
            && self.description(client, *slot).flags & libc::O_ACCMODE == libc::O_RDONLY
        {
            return Err(libc::EINVAL);
        }
        if by_path && self.tree.data(node).is_some() {
            self.tree.may(node, WRITE)?;
        }
        let inode = self.tree.node_mut(node);
        let Kind::File(data) = &mut inode.kind else {
            return Err(if by_path && self.tree.is_directory(node) { libc::EISDIR } else { libc::EINVAL });
        };
        inode.mtime = if by_path && data.len() == size { Time::Any } else { Time::Fresh };
        data.resize(size, 0);
        self.tree.content_changes(node);
        done()
    }

    pub(super) fn allocate(&mut self, client: usize, slot: u8, mode: i32, offset: i64, len: i64) -> Outcome {
        let description = self.description(client, slot);
        let (node, flags) = (description.node, description.flags);
        if offset < 0 || len <= 0 {
            return Err(libc::EINVAL);
        }
        let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let zero = mode & libc::FALLOC_FL_ZERO_RANGE != 0;
        let punch = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
        if punch && !keep {
            return Err(libc::EOPNOTSUPP);
        }
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(libc::EBADF);
        }
        if zero && !self.rules.zero_range {
            return Err(ESCAPED);
        }
        let inode = self.tree.node_mut(node);
        let Kind::File(data) = &mut inode.kind else { return Err(libc::EBADF) };
        let (begin, end) = (offset as usize, (offset + len) as usize);
        if !keep && end > data.len() {
            data.resize(end, 0);
        }
        if zero || punch {
            let (begin, end) = (begin.min(data.len()), end.min(data.len()));
            data[begin..end].fill(0);
        }
        inode.mtime = Time::Any;
        self.tree.content_changes(node);
        done()
    }
}

/// Puts bytes at an offset, with zeros before them where there is nothing.
fn put(data: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let (at, end) = (at as usize, at as usize + bytes.len());
    if data.len() < end {
        data.resize(end, 0);
    }
    data[at..end].copy_from_slice(bytes);
}
