//! The kernel's side of FUSE: numbers, and where fields lie in its messages.
//!
//! Every message begins with a header; what follows depends on the operation, in the machine's byte order.
//! [`Fields`] takes a message apart with bounds checked, [`Reply`] puts one together. Nothing else knows the
//! layout.

/// The protocol version that this crate speaks. The kernel accepts an older minor version than its own.
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 40;
/// The oldest minor version that is enough (Linux 4.20): before it, requests are limited to 128 KiB.
pub(crate) const OLDEST_MINOR: u32 = 28;

/// Bytes of a reply's header.
pub(crate) const REPLY_HEADER: usize = 16;

/// The kernel's number for the root directory.
pub(crate) const ROOT: u64 = 1;

/// Operations.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
}

/// Capabilities, negotiated by INIT.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const PASSTHROUGH: u64 = 1 << 37;
}

/// Which fields of SETATTR count.
pub(crate) mod set {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const LOCKOWNER: u32 = 1 << 9;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags of single operations.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// The read comes from a system call, and not from filling the page cache.
pub(crate) const READ_LOCK_OWNER: u32 = 1 << 1;
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const LOCK_FLOCK: u32 = 1 << 0;
pub(crate) const OPENED_DIRECT_IO: u32 = 1 << 0;
pub(crate) const OPENED_PARALLEL_WRITES: u32 = 1 << 6;
pub(crate) const OPENED_PASSTHROUGH: u32 = 1 << 7;

/// The fields of a message, from front to back.
#[derive(Clone)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

/// The message ends too early: a kernel would not send it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short;

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (now, later) = self.0.split_first_chunk::<N>().ok_or(Short)?;
        self.0 = later;
        Ok(*now)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        self.take().map(u64::from_ne_bytes)
    }

    /// Leaves `count` bytes out.
    pub(crate) fn skip(&mut self, count: usize) -> Result<(), Short> {
        self.0 = self.0.get(count..).ok_or(Short)?;
        Ok(())
    }

    /// A string that ends with NUL.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Short> {
        let end = self.0.iter().position(|b| *b == 0).ok_or(Short)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(name)
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Short> {
        let bytes = self.0.get(..count).ok_or(Short)?;
        self.skip(count)?;
        Ok(bytes)
    }
}

/// The header of a request: who asks, and for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) operation: u32,
    /// Names the request in its reply, and in an interruption of it.
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The thread that asks, as this process sees it; 0 if it does not see it, or the kernel itself asks.
    pub(crate) pid: u32,
}

impl Asked {
    /// Takes the header off a request.
    pub(crate) fn parse(message: &[u8]) -> Result<(Asked, Fields<'_>), Short> {
        let mut fields = Fields(message);
        let length = fields.u32()? as usize;
        let mut rest = Fields(message.get(..length).ok_or(Short)?);
        rest.skip(4)?;
        let asked = Asked {
            operation: rest.u32()?,
            unique: rest.u64()?,
            node: rest.u64()?,
            uid: rest.u32()?,
            gid: rest.u32()?,
            pid: rest.u32()?,
        };
        // A length.
        rest.skip(4)?;
        Ok((asked, rest))
    }
}

/// What a reply holds behind its header.
#[derive(Default)]
pub(crate) struct Reply(pub(crate) Vec<u8>);

impl Reply {
    pub(crate) fn new() -> Reply {
        Reply(Vec::with_capacity(160))
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Reply {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Reply {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Reply {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn zeros(&mut self, count: usize) -> &mut Reply {
        self.0.resize(self.0.len() + count, 0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: u32, rest: &[u8]) -> Vec<u8> {
        let mut reply = Reply::new();
        reply.u32((40 + rest.len()) as u32).u32(operation).u64(77).u64(5).u32(1000).u32(100);
        reply.u32(4711).u32(0);
        reply.0.extend_from_slice(rest);
        reply.0
    }

    #[test]
    fn a_request_is_taken_apart() {
        let message = request(op::LOOKUP, b"name\0");
        let (asked, mut fields) = Asked::parse(&message).unwrap();
        assert_eq!((asked.operation, asked.unique, asked.node), (op::LOOKUP, 77, 5));
        assert_eq!((asked.uid, asked.gid, asked.pid), (1000, 100, 4711));
        assert_eq!(fields.name(), Ok(&b"name"[..]));
        assert!(fields.0.is_empty());
    }

    #[test]
    fn short_requests_are_refused_at_every_length() {
        let message = request(op::RENAME2, &[7; 16]);
        for length in 0..message.len() {
            assert_eq!(Asked::parse(&message[..length]).map(|_| ()), Err(Short), "{length}");
        }
        let mut fields = Fields(b"no end");
        assert_eq!(fields.name(), Err(Short));
        assert_eq!(fields.bytes(7), Err(Short));
        assert!(fields.u64().is_err() && fields.u32().is_ok());
    }
}
