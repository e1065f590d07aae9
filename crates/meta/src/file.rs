//! Opening the files of a log, in whose place somebody may have put anything.

use crate::error::OpenError;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens an ordinary file for reading and writing; `None` if there is none. What else may be there is not waited
/// for.
pub(crate) fn open_ordinary(path: &Path) -> Result<Option<File>, OpenError> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match File::options().read(true).write(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            return Err(OpenError::NotAFile(path.into()));
        }
        Err(error) => return Err(OpenError::io(path)(error)),
    };
    let ordinary = file.metadata().map_err(OpenError::io(path))?.is_file();
    if ordinary { Ok(Some(file)) } else { Err(OpenError::NotAFile(path.into())) }
}
