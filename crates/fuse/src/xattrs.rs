//! Extended attributes.

use crate::abi::Reply;
use crate::face::{Answer, Call};
use bivouac_client::Fail;
use bivouac_proto::Errno;

/// With this begin the names of what the kernel reads to see who may do what.
const ACCESS_LISTS: &[u8] = b"system.posix_acl_";

impl Call<'_> {
    pub(crate) fn setxattr(&mut self) -> Result<Answer, Errno> {
        let (size, flags) = (self.fields.u32()? as usize, self.fields.u32()? as i32);
        let name = self.fields.name()?;
        let value = self.fields.bytes(size)?;
        self.face.client.set_xattr(self.ino(), name, value, flags).map_err(Fail::errno)?;
        Ok(Answer::Empty)
    }

    pub(crate) fn getxattr(&mut self) -> Result<Answer, Errno> {
        let size = self.fields.u32()? as usize;
        self.fields.skip(4)?;
        let name = self.fields.name()?;
        match self.face.client.get_xattr(self.ino(), name).map_err(Fail::errno) {
            // A backend without access control lists: the kernel would refuse every access.
            Err(Errno::OPNOTSUPP) if self.face.lists && name.starts_with(ACCESS_LISTS) => Err(Errno::NODATA),
            value => sized(value?, size),
        }
    }

    pub(crate) fn listxattr(&mut self) -> Result<Answer, Errno> {
        let size = self.fields.u32()? as usize;
        let mut names = self.face.client.list_xattr(self.ino()).map_err(Fail::errno)?;
        if self.asked.uid != 0 && self.face.user.0 == 0 {
            // The server has listed all attributes, including those that only root may see.
            names = names
                .split_inclusive(|b| *b == 0)
                .filter(|name| !name.starts_with(b"trusted."))
                .flatten()
                .copied()
                .collect();
        }
        sized(names, size)
    }

    pub(crate) fn removexattr(&mut self) -> Result<Answer, Errno> {
        let name = self.fields.name()?;
        self.face.client.remove_xattr(self.ino(), name).map_err(Fail::errno)?;
        Ok(Answer::Empty)
    }
}

/// The value, or only its size if the caller has no room at all.
fn sized(value: Vec<u8>, room: usize) -> Result<Answer, Errno> {
    if room == 0 {
        let mut reply = Reply::new();
        reply.u32(value.len() as u32).u32(0);
        return Ok(Answer::Told(reply));
    }
    if value.len() > room { Err(Errno::RANGE) } else { Ok(Answer::Told(Reply(value))) }
}
