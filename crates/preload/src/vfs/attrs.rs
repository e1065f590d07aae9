//! Attributes: stat in its forms, modes, owners, times, sizes by path, and the file system's own figures.

use super::at::at;
use super::beside::persistent;
use super::place::{Place, place};
use super::{fds, state};
use bivouac_client::{Client, Fail};
use bivouac_layout::Ino;
use bivouac_proto::meta::{CHOWN_AS_IT_IS, SetAttr, SetTime};
use bivouac_proto::{Attr, Errno};
use std::ffi::CStr;
use std::sync::Arc;

/// The device number that files of the mount show: no driver's (major 0xB1), so that it is never a real
/// device's.
const DEVICE_MAJOR: u32 = 0xB1;
/// What `st_blksize` recommends: large enough to keep servers busy, small enough for a buffer in each open
/// file.
const BLOCK_SIZE: i64 = 128 << 10;
/// `statfs`'s type: "BIVO".
const FS_TYPE: u32 = 0x4249_564F;

/// The device number of the mount.
fn device() -> u64 {
    if state::beside() {
        return super::beside::device();
    }
    let name = state::environment().map_or(&b""[..], |environment| environment.name.as_bytes());
    // Two deployments that one program sees should differ, but nothing depends on it.
    let minor = name.iter().fold(5381u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(*byte)) & 0xff;
    libc::makedev(DEVICE_MAJOR, minor)
}

fn seconds(time: i64) -> (i64, i64) {
    (time.div_euclid(1_000_000_000), time.rem_euclid(1_000_000_000))
}

/// A `struct stat`.
pub fn to_stat(attr: &Attr) -> libc::stat {
    // SAFETY: plain numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_dev = device() as _;
    stat.st_ino = attr.ino.0;
    stat.st_mode = attr.kind.mode_bits() | u32::from(attr.mode);
    stat.st_nlink = attr.nlink as _;
    stat.st_uid = attr.uid;
    stat.st_gid = attr.gid;
    stat.st_size = i64::try_from(attr.st_size()).unwrap_or(i64::MAX);
    stat.st_rdev = u64::from(attr.device()) as _;
    stat.st_blksize = BLOCK_SIZE as _;
    stat.st_blocks = attr.st_blocks() as _;
    (stat.st_atime, stat.st_atime_nsec) = seconds(attr.atime);
    (stat.st_mtime, stat.st_mtime_nsec) = seconds(attr.mtime);
    (stat.st_ctime, stat.st_ctime_nsec) = seconds(attr.ctime);
    stat
}

fn to_statx(attr: &Attr) -> libc::statx {
    // SAFETY: as above.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    let time = |time| {
        let (tv_sec, nanos) = seconds(time);
        // SAFETY: as above.
        let mut stamp: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        (stamp.tv_sec, stamp.tv_nsec) = (tv_sec, nanos as u32);
        stamp
    };
    statx.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    statx.stx_blksize = BLOCK_SIZE as u32;
    statx.stx_nlink = attr.nlink;
    statx.stx_uid = attr.uid;
    statx.stx_gid = attr.gid;
    statx.stx_mode = (attr.kind.mode_bits() | u32::from(attr.mode)) as u16;
    statx.stx_ino = attr.ino.0;
    statx.stx_size = attr.st_size();
    statx.stx_blocks = attr.st_blocks();
    statx.stx_atime = time(attr.atime);
    statx.stx_btime = time(attr.btime);
    statx.stx_ctime = time(attr.ctime);
    statx.stx_mtime = time(attr.mtime);
    statx.stx_dev_major = libc::major(device());
    statx.stx_dev_minor = libc::minor(device());
    statx
}

/// `fstat(2)`, for the library itself.
pub fn fstat(fd: i32) -> Result<libc::stat, Errno> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: there is room for one.
    unsafe { fstat_into(fd, &raw mut stat) }?;
    Ok(stat)
}

/// `fstat(2)`, to where the program wants it.
///
/// # Safety
/// `into` points to a `struct stat`, or is NULL.
pub unsafe fn fstat_into(fd: i32, into: *mut libc::stat) -> Result<(), Errno> {
    let kernel = || sys!(SYS_fstat, fd, into).map(|_| ());
    // SAFETY: promised by the caller.
    fds::on(fd, kernel, |file| state::apart(|| unsafe { put(into, to_stat(&file.attr()?)) }))
}

/// Refuses flags that a call does not have, as the kernel does.
fn check_flags(flags: i32, known: i32) -> Result<(), Errno> {
    if flags & !known == 0 { Ok(()) } else { Err(Errno::INVAL) }
}

/// Flags of the calls that set an attribute, and of those that only look.
const SETTING: i32 = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
const LOOKING: i32 = SETTING | libc::AT_NO_AUTOMOUNT;

/// Whether a call is about the descriptor itself.
fn names_descriptor(path: &CStr, flags: i32) -> bool {
    flags & libc::AT_EMPTY_PATH != 0 && path.is_empty()
}

/// The path that a call means: an empty path with AT_FDCWD means the working directory. (For the kernel that
/// may be a mirror.)
fn meant(dirfd: i32, path: &CStr, flags: i32) -> &CStr {
    if dirfd == libc::AT_FDCWD && names_descriptor(path, flags) { c"." } else { path }
}

/// The open file of ours that a call means by its descriptor alone, or (`follow`) by the descriptor's path in
/// `/proc` or `/dev`.
#[inline(never)]
pub(super) fn described(
    dirfd: i32,
    path: &CStr,
    flags: i32,
    follow: bool,
) -> Result<Option<fds::File>, Errno> {
    if names_descriptor(path, flags) {
        return fds::get(dirfd);
    }
    match place(dirfd, path) {
        Ok(Place::Descriptor(fd)) if follow => fds::get(fd),
        _ => Ok(None),
    }
}

/// The attributes of what a path names, if it is ours in any way; the kernel is asked by `kernel`.
fn attr_at(
    dirfd: i32,
    path: &CStr,
    (flags, known): (i32, i32),
    kernel: impl Fn(i32, &CStr) -> Result<(), Errno>,
    show: impl Fn(&Attr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if !state::active() {
        return persistent(&[], || kernel(dirfd, path));
    }
    let path = meant(dirfd, path, flags);
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    if let Some(file) = described(dirfd, path, flags, follow)? {
        check_flags(flags, known)?;
        return state::apart(|| show(&file.attr()?));
    }
    at(dirfd, path, follow, kernel, |client, start, path| {
        check_flags(flags, known)?;
        Ok(show(&client.stat((start, path, follow))?)?)
    })
}

/// `fstatat(2)`, for the library itself.
pub fn fstatat(dirfd: i32, path: &CStr, flags: i32) -> Result<libc::stat, Errno> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: there is room for one.
    unsafe { fstatat_into(dirfd, path, flags, &raw mut stat) }?;
    Ok(stat)
}

/// `fstatat(2)` beside a mount. `None`: it is the kernel's. (Not inlined, so that calls which are not take no
/// stack for it.)
///
/// # Safety
/// `into` points to a `struct stat`, or is NULL.
#[inline(never)]
unsafe fn stat_beside(
    dirfd: i32,
    path: &CStr,
    flags: i32,
    into: *mut libc::stat,
) -> Option<Result<(), Errno>> {
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT) != 0 {
        return None;
    }
    let attr = super::beside::attrs::stat(dirfd, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0)?;
    // SAFETY: promised by the caller.
    Some(attr.and_then(|attr| unsafe { put(into, to_stat(&attr)) }))
}

/// `statx(2)` beside a kernel mount, of what the client knows as the kernel does. `None`: the kernel is to be
/// asked. (Not inlined, as above.)
///
/// # Safety
/// `into` points to a `struct statx`, or is NULL.
#[inline(never)]
unsafe fn statx_beside(
    dirfd: i32,
    path: &CStr,
    (flags, mask): (i32, u32),
    into: *mut libc::statx,
) -> Option<Result<(), Errno>> {
    let plain = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_STATX_SYNC_TYPE;
    if flags & !plain != 0 || mask & !(libc::STATX_BASIC_STATS | libc::STATX_BTIME) != 0 {
        return None;
    }
    match super::beside::attrs::stat(dirfd, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0)? {
        // For the root of a mount, the kernel sets the attribute STATX_ATTR_MOUNT_ROOT.
        Ok(attr) if attr.ino == Ino::ROOT => None,
        // SAFETY: promised by the caller.
        attr => Some(attr.and_then(|attr| unsafe { put(into, to_statx(&attr)) })),
    }
}

/// `fstatat(2)`, to where the program wants it.
///
/// # Safety
/// `into` points to a `struct stat`, or is NULL.
pub unsafe fn fstatat_into(dirfd: i32, path: &CStr, flags: i32, into: *mut libc::stat) -> Result<(), Errno> {
    if state::beside()
        // SAFETY: promised by the caller.
        && let Some(done) = unsafe { stat_beside(dirfd, path, flags, into) }
    {
        return done;
    }
    let kernel =
        |dirfd: i32, path: &CStr| sys!(SYS_newfstatat, dirfd, path.as_ptr(), into, flags).map(|_| ());
    // SAFETY: promised by the caller.
    attr_at(dirfd, path, (flags, LOOKING), kernel, |attr| unsafe { put(into, to_stat(attr)) })
}

/// `statx(2)`.
///
/// # Safety
/// `into` points to a `struct statx`, or is NULL.
pub unsafe fn statx(
    dirfd: i32,
    path: &CStr,
    flags: i32,
    mask: u32,
    into: *mut libc::statx,
) -> Result<(), Errno> {
    if state::beside()
        // SAFETY: promised by the caller.
        && let Some(done) = unsafe { statx_beside(dirfd, path, (flags, mask), into) }
    {
        return done;
    }
    let kernel =
        |dirfd: i32, path: &CStr| sys!(SYS_statx, dirfd, path.as_ptr(), flags, mask, into).map(|_| ());
    let known = LOOKING | libc::AT_STATX_SYNC_TYPE;
    // SAFETY: promised by the caller.
    attr_at(dirfd, path, (flags, known), kernel, |attr| unsafe { put(into, to_statx(attr)) })
}

/// Hands a value to the program.
///
/// # Safety
/// `into` points to a `T`, or is NULL.
unsafe fn put<T>(into: *mut T, value: T) -> Result<(), Errno> {
    if into.is_null() {
        return Err(Errno(libc::EFAULT as u16));
    }
    // SAFETY: promised by the caller, and not NULL.
    unsafe { into.write(value) };
    Ok(())
}

/// `faccessat(3)` without flags.
pub fn faccessat(dirfd: i32, path: &CStr, mode: i32) -> Result<(), Errno> {
    faccessat_flags(dirfd, path, mode, 0)
}

/// `faccessat(3)`.
pub fn faccessat_flags(dirfd: i32, path: &CStr, mode: i32, flags: i32) -> Result<(), Errno> {
    let kernel = |dirfd: i32, path: &CStr| kernel_access(dirfd, path, mode, flags);
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    if state::beside()
        && flags == 0
        && (0..=7).contains(&mode)
        && let Some(answer) = super::beside::attrs::access(dirfd, path, mode, follow)
    {
        return answer;
    }
    if state::active() {
        if !(0..=7).contains(&mode) {
            return Err(Errno::INVAL);
        }
        if let Some(file) = described(dirfd, path, flags, follow)? {
            check_flags(flags, SETTING | libc::AT_EACCESS)?;
            let access = || state::client()?.access((file.ino(), b"", true), mode as u32);
            return state::apart(access).map_err(Fail::errno);
        }
    }
    let path = meant(dirfd, path, flags);
    at(dirfd, path, follow, kernel, |client, start, path| {
        check_flags(flags, SETTING | libc::AT_EACCESS)?;
        client.access((start, path, follow), mode as u32)
    })
}

fn kernel_access(dirfd: i32, path: &CStr, mode: i32, flags: i32) -> Result<(), Errno> {
    if flags == 0 {
        return sys!(SYS_faccessat, dirfd, path.as_ptr(), mode).map(|_| ());
    }
    // By a system call where there is one: libc's function may come back here (`catch`).
    let done = sys!(SYS_faccessat2, dirfd, path.as_ptr(), mode, flags).map(|_| ());
    if done != Err(Errno::NOSYS) {
        return done;
    }
    // libc knows what older kernels lack.
    let real = next!("faccessat", fn(i32, *const std::ffi::c_char, i32, i32) -> i32).ok_or(Errno::NOSYS)?;
    // SAFETY: a C string and numbers.
    if unsafe { real(dirfd, path.as_ptr(), mode, flags) } == 0 { Ok(()) } else { Err(crate::raw::errno()) }
}

fn set_at(
    dirfd: i32,
    path: &CStr,
    flags: i32,
    set: SetAttr,
    kernel: impl Fn(i32, &CStr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    if state::active()
        && let Some(file) = described(dirfd, path, flags, follow)?
    {
        check_flags(flags, SETTING)?;
        return state::apart(|| file.set_attr(set));
    }
    let path = meant(dirfd, path, flags);
    at(dirfd, path, follow, kernel, |client: &Arc<Client>, start: Ino, path: &[u8]| {
        check_flags(flags, SETTING)?;
        if !follow && set.mode.is_some() {
            let attr = client.stat((start, path, false))?;
            if attr.kind == bivouac_proto::FileKind::Symlink {
                return Err(Fail::Errno(Errno::OPNOTSUPP));
            }
        }
        client.set_attr((start, path, follow), set).map(drop)
    })
}

fn set_on(fd: i32, set: SetAttr, kernel: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    match fds::get(fd)? {
        Some(file) if file.is_path_only() => Err(Errno::BADF),
        Some(file) => state::apart(|| file.set_attr(set)),
        None => kernel(),
    }
}

fn mode_of(mode: u32) -> SetAttr {
    SetAttr { mode: Some((mode & 0o7777) as u16), ..SetAttr::default() }
}

/// `fchmodat(3)`; `kernel` does what is not ours.
pub fn fchmodat(
    dirfd: i32,
    path: &CStr,
    mode: u32,
    flags: i32,
    kernel: impl Fn(i32, &CStr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    set_at(dirfd, path, flags, mode_of(mode), kernel)
}

/// `fchmod(2)`.
pub fn fchmod(fd: i32, mode: u32) -> Result<(), Errno> {
    set_on(fd, mode_of(mode), || sys!(SYS_fchmod, fd, mode).map(|_| ()))
}

fn owner(uid: u32, gid: u32) -> SetAttr {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    if (given(uid), given(gid)) == (None, None) {
        return CHOWN_AS_IT_IS;
    }
    SetAttr { uid: given(uid), gid: given(gid), ..SetAttr::default() }
}

/// `fchownat(2)`.
pub fn fchownat(dirfd: i32, path: &CStr, uid: u32, gid: u32, flags: i32) -> Result<(), Errno> {
    set_at(dirfd, path, flags, owner(uid, gid), |dirfd, path| {
        sys!(SYS_fchownat, dirfd, path.as_ptr(), uid, gid, flags).map(|_| ())
    })
}

/// `fchown(2)`.
pub fn fchown(fd: i32, uid: u32, gid: u32) -> Result<(), Errno> {
    set_on(fd, owner(uid, gid), || sys!(SYS_fchown, fd, uid, gid).map(|_| ()))
}

/// Two times as `utimensat` takes them; `None`: now.
pub type Times = Option<[libc::timespec; 2]>;

fn times_of(times: &Times) -> Result<SetAttr, Errno> {
    let one = |time: &libc::timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        nanos @ 0..=999_999_999 => {
            let time = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(nanos);
            Ok(Some(SetTime::To(time)))
        }
        _ => Err(Errno::INVAL),
    };
    let (atime, mtime) = match times {
        None => (Some(SetTime::Now), Some(SetTime::Now)),
        Some([atime, mtime]) => (one(atime)?, one(mtime)?),
    };
    Ok(SetAttr { atime, mtime, ..SetAttr::default() })
}

fn pointer(times: &Times) -> *const libc::timespec {
    times.as_ref().map_or(std::ptr::null(), |times| times.as_ptr())
}

/// Whether neither time is to change: then the kernel does not even look at the path or descriptor.
fn changes_nothing(times: &Times) -> bool {
    times.as_ref().is_some_and(|times| times.iter().all(|time| time.tv_nsec == libc::UTIME_OMIT))
}

/// `utimensat(2)`.
pub fn utimensat(dirfd: i32, path: &CStr, times: Times, flags: i32) -> Result<(), Errno> {
    if changes_nothing(&times) {
        return Ok(());
    }
    let kernel = |dirfd: i32, path: &CStr| {
        sys!(SYS_utimensat, dirfd, path.as_ptr(), pointer(&times), flags).map(|_| ())
    };
    if !state::active() {
        return persistent(&[], || kernel(dirfd, path));
    }
    set_at(dirfd, path, flags, times_of(&times)?, kernel)
}

/// `futimens(3)`.
pub fn futimens(fd: i32, times: Times) -> Result<(), Errno> {
    if changes_nothing(&times) {
        return Ok(());
    }
    match fds::get(fd)? {
        Some(file) if file.is_path_only() => Err(Errno::BADF),
        Some(file) => {
            let set = times_of(&times)?;
            state::apart(|| file.set_attr(set))
        }
        None => sys!(SYS_utimensat, fd, 0, pointer(&times), 0).map(|_| ()),
    }
}

/// `truncate(2)`.
pub fn truncate(path: &CStr, size: i64) -> Result<(), Errno> {
    if state::active()
        && let Some(file) = described(libc::AT_FDCWD, path, 0, true)?
    {
        let size = super::data::position(size)?;
        let truncate = || state::client()?.truncate((file.ino(), b"", true), size).map(drop);
        return state::apart(truncate).map_err(Fail::errno);
    }
    at(
        libc::AT_FDCWD,
        path,
        true,
        |_, path| sys!(SYS_truncate, path.as_ptr(), size).map(|_| ()),
        |client, start, path| client.truncate((start, path, true), super::data::position(size)?).map(drop),
    )
}

/// The figures of the file system that an inode lies on.
fn figures(ino: Ino) -> Result<libc::statfs, Errno> {
    let figures = state::client()?.statfs(ino).map_err(Fail::errno)?;
    // SAFETY: plain numbers, for which zero is a value.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    let unit = u64::from(figures.block_size.max(1));
    statfs.f_type = FS_TYPE as _;
    statfs.f_bsize = unit as _;
    statfs.f_frsize = unit as _;
    statfs.f_blocks = figures.total / unit;
    statfs.f_bfree = figures.available / unit;
    statfs.f_bavail = figures.available / unit;
    statfs.f_files = figures.inodes.saturating_add(figures.free_inodes());
    statfs.f_ffree = figures.free_inodes();
    statfs.f_namelen = bivouac_proto::attr::NAME_MAX as _;
    Ok(statfs)
}

/// `statfs(2)` of what is ours; `kernel` does the rest.
pub fn statfs<T>(
    path: &CStr,
    kernel: impl Fn(&CStr) -> Result<T, Errno>,
    show: impl Fn(&libc::statfs) -> T,
) -> Result<T, Errno> {
    if state::active()
        && let Some(file) = described(libc::AT_FDCWD, path, 0, true)?
    {
        return state::apart(|| figures(file.ino())).map(|figures| show(&figures));
    }
    at(
        libc::AT_FDCWD,
        path,
        true,
        |_, path| kernel(path),
        |client, start, path| Ok(show(&figures(client.stat((start, path, true))?.ino)?)),
    )
}

/// `fstatfs(2)`, likewise.
pub fn fstatfs<T>(
    fd: i32,
    kernel: impl Fn() -> Result<T, Errno>,
    show: impl Fn(&libc::statfs) -> T,
) -> Result<T, Errno> {
    match fds::get(fd)? {
        Some(file) => state::apart(|| figures(file.ino())).map(|figures| show(&figures)),
        None => kernel(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds_positive() {
        assert_eq!(seconds(-1), (-1, 999_999_999));
        assert_eq!(seconds(1_500_000_000), (1, 500_000_000));
    }

    #[test]
    fn omitted_and_current_times_are_told_apart_and_nonsense_is_refused() {
        let time = |sec, nsec| libc::timespec { tv_sec: sec, tv_nsec: nsec };
        let set = times_of(&Some([time(0, libc::UTIME_OMIT), time(0, libc::UTIME_NOW)])).unwrap();
        assert_eq!((set.atime, set.mtime), (None, Some(SetTime::Now)));
        let set = times_of(&Some([time(3, 5), time(-1, 0)])).unwrap();
        assert_eq!(set.atime, Some(SetTime::To(3_000_000_005)));
        assert_eq!(set.mtime, Some(SetTime::To(-1_000_000_000)));
        assert_eq!(times_of(&Some([time(0, 1_000_000_000), time(0, 0)])), Err(Errno::INVAL));
    }
}
