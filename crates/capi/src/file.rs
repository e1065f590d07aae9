//! Open files.

use crate::deployment::{Deployment, Open, owned};
use crate::error::{Failed, answer, status};
use crate::stat::{bivouac_stat, shown};
use crate::text::{bytes, natural, path, put, room};
use bivouac_client::host::OwnFd;
use bivouac_client::{Handle, Target};
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use libc::{iovec, mode_t, off_t};
use std::ffi::{c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// An open file. It belongs to the process that has opened it.
pub struct File {
    deployment: Arc<Deployment>,
    handle: Arc<Handle>,
    /// How often the process had been forked.
    forks: u64,
    _held: OwnFd,
}

impl File {
    /// Closes it.
    pub(crate) fn close(self) {
        if self.is_own() {
            self.deployment.client.close_alone(self.handle.id());
        }
    }

    fn is_own(&self) -> bool {
        self.forks == self.deployment.client.forks()
    }

    pub(crate) fn handle(&self) -> Result<&Handle, Failed> {
        if self.is_own() {
            return Ok(&self.handle);
        }
        Err(Failed::new(Errno::BADF, "the file was opened before a fork: open it in this process"))
    }
}

/// The file that a program means.
///
/// # Safety
/// `file` is NULL, or came from [`bivouac_open`] and is not closed before `'a` ends.
pub(crate) unsafe fn of<'a>(file: *const File) -> Result<&'a Handle, Failed> {
    // SAFETY: as the caller says.
    unsafe { file.as_ref() }
        .ok_or_else(|| Failed::new(Errno::BADF, "a NULL was given for a file"))
        .and_then(File::handle)
}

/// Buffers to write to.
///
/// # Safety
/// `buffers` is valid for `count` entries, each of which names memory as [`room`] wants it.
unsafe fn rooms<'a>(buffers: *const iovec, count: c_int) -> Result<Vec<IoSliceMut<'a>>, Failed> {
    // SAFETY: as the caller says.
    let given = unsafe { vector(buffers, count) }?;
    // SAFETY: as the caller says.
    given.iter().map(|one| Ok(IoSliceMut::new(unsafe { room(one.iov_base, one.iov_len) }?))).collect()
}

/// # Safety
/// `buffers` is valid for `count` entries.
unsafe fn vector<'a>(buffers: *const iovec, count: c_int) -> Result<&'a [iovec], Failed> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= libc::UIO_MAXIOV as usize && !buffers.is_null() => {
            // SAFETY: as the caller says.
            Ok(unsafe { std::slice::from_raw_parts(buffers, count) })
        }
        _ => Err(Errno::INVAL.into()),
    }
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL; `file` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_open(
    deployment: *const Deployment,
    name: *const c_char,
    flags: c_int,
    mode: mode_t,
    file: *mut *mut File,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, path) = unsafe { (owned(deployment)?, path(name)?) };
        // SAFETY: as the caller says.
        unsafe { open(&deployment, (Ino::ROOT, path, true).into(), (flags, mode), file) }
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `file` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_open_inode(
    deployment: *const Deployment,
    inode: u64,
    flags: c_int,
    file: *mut *mut File,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let deployment = unsafe { owned(deployment) }?;
        if flags & (libc::O_CREAT | libc::O_TMPFILE | libc::O_PATH) != 0 {
            return Err(Failed::new(Errno::INVAL, "by its number, a file is neither made nor only named"));
        }
        let ino = Ino(inode);
        if ino.is_forwarded() {
            return Err(Failed::new(Errno::NOENT, "no file of the deployment has this number"));
        }
        // SAFETY: as the caller says.
        unsafe { open(&deployment, ino.into(), (flags, 0), file) }
    })
}

/// # Safety
/// `file` is valid for a write.
unsafe fn open(
    deployment: &Arc<Deployment>,
    target: Target<'_>,
    (flags, mode): (c_int, mode_t),
    file: *mut *mut File,
) -> Result<(), Failed> {
    let (handle, held) = deployment.client.open_held(target, flags, mode & 0o7777)?;
    let forks = deployment.client.forks();
    let file_of = File { deployment: deployment.clone(), handle, forks, _held: held };
    let open = Box::into_raw(Box::new(file_of));
    // SAFETY: as the caller says.
    match unsafe { put(file, open) } {
        Ok(()) => {
            deployment.opens.add(forks, Open::File(open));
            Ok(())
        }
        Err(failed) => {
            // SAFETY: nobody else has it.
            unsafe { Box::from_raw(open) }.close();
            Err(failed)
        }
    }
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL, or came from [`bivouac_open`], and nobody uses it from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_close(file: *mut File) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let Some(known) = (unsafe { file.as_ref() }) else { return Ok(()) };
        let deployment = known.deployment.clone();
        if known.is_own() && !deployment.opens.take(known.forks, Open::File(file)) {
            return Err(Failed::new(Errno::BADF, "the file is closed already"));
        }
        // SAFETY: as the caller says; from Box::into_raw.
        unsafe { Box::from_raw(file) }.close();
        Ok(())
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open; `buffer` is valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_pread(
    file: *const File,
    buffer: *mut c_void,
    length: usize,
    offset: off_t,
) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let (file, room) = unsafe { (of(file)?, room(buffer, length)?) };
        let (offset, mut filled) = (natural(offset)?, 0);
        // The core transfers 2 GiB at once at most.
        loop {
            let rest = room.get_mut(filled..).unwrap_or_default();
            match file.pread(offset.saturating_add(filled as u64), &mut [IoSliceMut::new(rest)]) {
                Ok(count) if count > 0 && filled + count < length => filled += count,
                Ok(count) => return Ok((filled + count) as i64),
                Err(_) if filled > 0 => return Ok(filled as i64),
                Err(errno) => return Err(errno.into()),
            }
        }
    }) as isize
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open; `buffers` are `count` valid ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_preadv(
    file: *const File,
    buffers: *const iovec,
    count: c_int,
    offset: off_t,
) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let (file, mut rooms) = unsafe { (of(file)?, rooms(buffers, count)?) };
        Ok(file.pread(natural(offset)?, &mut rooms)? as i64)
    }) as isize
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open; `buffer` is valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_pwrite(
    file: *const File,
    buffer: *const c_void,
    length: usize,
    offset: off_t,
) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let (file, data) = unsafe { (of(file)?, bytes(buffer, length)?) };
        let (offset, mut written) = (natural(offset)?, 0);
        // As for reading.
        loop {
            let rest = data.get(written..).unwrap_or_default();
            match file.pwrite(offset.saturating_add(written as u64), &[IoSlice::new(rest)]) {
                Ok(count) if count > 0 && written + count < length => written += count,
                Ok(count) => return Ok((written + count) as i64),
                Err(_) if written > 0 => return Ok(written as i64),
                Err(errno) => return Err(errno.into()),
            }
        }
    }) as isize
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open; `buffers` are `count` valid ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_pwritev(
    file: *const File,
    buffers: *const iovec,
    count: c_int,
    offset: off_t,
) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let (file, given) = unsafe { (of(file)?, vector(buffers, count)?) };
        // SAFETY: as the caller says.
        let data = given.iter().map(|one| Ok(IoSlice::new(unsafe { bytes(one.iov_base, one.iov_len) }?)));
        let data: Vec<IoSlice<'_>> = data.collect::<Result<_, Failed>>()?;
        Ok(file.pwrite(natural(offset)?, &data)? as i64)
    }) as isize
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open; `buffer` is valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_read(file: *const File, buffer: *mut c_void, length: usize) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let (file, room) = unsafe { (of(file)?, room(buffer, length)?) };
        Ok(file.read(&mut [IoSliceMut::new(room)])? as i64)
    }) as isize
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open; `buffer` is valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_write(file: *const File, buffer: *const c_void, length: usize) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let (file, data) = unsafe { (of(file)?, bytes(buffer, length)?) };
        Ok(file.write(&[IoSlice::new(data)])? as i64)
    }) as isize
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_seek(file: *const File, offset: off_t, whence: c_int) -> off_t {
    answer(|| {
        // SAFETY: as the caller says.
        let at = unsafe { of(file) }?.seek(offset, whence)?;
        i64::try_from(at).map_err(|_| Errno(libc::EOVERFLOW as u16).into())
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open; `buffer` is valid for `length` bytes; `end` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_append(
    file: *const File,
    buffer: *const c_void,
    length: usize,
    end: *mut off_t,
) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let (file, data) = unsafe { (of(file)?, bytes(buffer, length)?) };
        let (reached, count) = file.append_for_end(&[IoSlice::new(data)])?;
        if !end.is_null() {
            // SAFETY: as the caller says.
            unsafe { end.write(reached as off_t) };
        }
        Ok(count as i64)
    }) as isize
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_ftruncate(file: *const File, length: off_t) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        Ok(unsafe { of(file) }?.truncate(natural(length)?)?)
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_fallocate(
    file: *const File,
    mode: c_int,
    offset: off_t,
    length: off_t,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        Ok(unsafe { of(file) }?.fallocate(mode, offset, length)?)
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_sync(file: *const File) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        Ok(unsafe { of(file) }?.sync()?)
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open; `attributes` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_fstat(file: *const File, attributes: *mut bivouac_stat) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let file = unsafe { of(file) }?;
        let found = shown(&file.client().deployment_map(), &file.attr()?);
        // SAFETY: as the caller says.
        unsafe { put(attributes, found) }
    })
}
