//! Deployments that the process is attached to.

use crate::error::{of_client, of_path};
use crate::file::File;
use bivouac_client::host::Plain;
use bivouac_client::{Client, ClientError, Environment, Fail, Location, Wanted};
use bivouac_layout::Ino;
use bivouac_proto::attr::FileKind;
use bivouac_proto::auth::{KEY_LEN, Key};
use bivouac_proto::meta::{AS_IT_IS, SetAttr, SetTime};
use bivouac_proto::{Attr, Errno};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Entries of a directory that are asked for at once.
const AT_ONCE: u32 = 2048;
/// Pieces of more bytes are cut off at the end of the file before there is memory for them.
const LONG: usize = 1 << 20;
/// The position of a directory's first entry: behind `.` and `..`.
const FIRST: u64 = 2;

/// Attributes: mode, inode, links, user, group, size, times of access, change of data, change of attributes and creation in
/// nanoseconds, storage in blocks of 512 bytes.
pub(crate) type Stat = (u32, u64, u32, u32, u32, u64, i64, i64, i64, i64, u64);

pub(crate) fn stat_of(attr: &Attr) -> Stat {
    let mode = attr.kind.mode_bits() | u32::from(attr.mode);
    let times = (attr.atime, attr.mtime, attr.ctime, attr.btime);
    let (accessed, modified, changed, created) = times;
    let (size, blocks) = (attr.st_size(), attr.st_blocks());
    (mode, attr.ino.0, attr.nlink, attr.uid, attr.gid, size, accessed, modified, changed, created, blocks)
}

/// A piece that is wanted: the path, where it begins, and how long it is.
type Piece = (Vec<u8>, u64, usize);

/// Entries of a directory with their attributes; where the next ones begin, if there are any.
type Listed = (Vec<(Py<PyBytes>, Stat)>, Option<u64>);

/// An attached deployment.
#[pyclass(frozen)]
pub(crate) struct Deployment {
    client: Arc<Client>,
    name: String,
    left: AtomicBool,
}

/// Open files of the package refer to it, so none is left when this is.
impl Drop for Deployment {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Deployment {
    fn leave(&self) {
        if !self.left.swap(true, Ordering::AcqRel) {
            self.client.detach();
        }
    }

    /// Does something with a path, without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        path: &[u8],
        body: impl FnOnce(&Arc<Client>, &[u8]) -> Result<T, Fail> + Send,
    ) -> PyResult<T> {
        py.detach(|| body(&self.client, inside(path))).map_err(|fail| of_path(fail, path))
    }
}

/// The root has a name, too.
fn inside(path: &[u8]) -> &[u8] {
    if path.iter().all(|byte| *byte == b'/') && !path.is_empty() { b"." } else { path }
}

fn key_of(digits: &str) -> PyResult<Key> {
    let wrong = || PyValueError::new_err(format!("a key has {} hexadecimal digits", 2 * KEY_LEN));
    Key::from_hex(digits.trim().as_bytes()).ok_or_else(wrong)
}

#[pymethods]
impl Deployment {
    /// Attaches, by name or by the environment.
    #[new]
    #[pyo3(signature = (name=None, key=None))]
    fn attach(py: Python<'_>, name: Option<String>, key: Option<String>) -> PyResult<Deployment> {
        let key = key.as_deref().map(key_of).transpose()?;
        let attached = py.detach(|| match (name, Environment::from_env()) {
            (Some(name), _) => Client::attach_named(&name, key, &Plain).map(|client| (client, name)),
            (None, Some(environment)) => {
                Client::attach(&environment, &Plain).map(|client| (client, environment.name))
            }
            (None, None) => Err(ClientError::Unnamed),
        });
        let (client, name) = attached.map_err(|error| of_client(&error))?;
        Ok(Deployment { client, name, left: AtomicBool::new(false) })
    }

    /// Detaches. The package has closed what was open.
    fn detach(&self, py: Python<'_>) {
        py.detach(|| self.leave());
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Where programs see it.
    #[getter]
    fn mount(&self) -> String {
        String::from_utf8_lossy(self.client.mount()).into_owned()
    }

    /// The node that this process runs on.
    #[getter]
    fn host(&self) -> Option<String> {
        let map = self.client.deployment_map();
        map.nodes.iter().find(|node| node.id == self.client.node()).map(|node| node.host.clone())
    }

    /// Opens; `flags` as for `open(2)`.
    fn open(&self, py: Python<'_>, path: &[u8], flags: i32, mode: u32) -> PyResult<File> {
        let open = |client: &Arc<Client>, path: &[u8]| {
            client.open_held((Ino::ROOT, path, true), flags, mode & 0o7777)
        };
        Ok(File::new(self.client.clone(), self.with(py, path, open)?))
    }

    fn stat(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<Stat> {
        self.with(py, path, |client, path| Ok(stat_of(&client.stat((Ino::ROOT, path, follow))?)))
    }

    fn access(&self, py: Python<'_>, path: &[u8], mask: u32) -> PyResult<()> {
        self.with(py, path, |client, path| client.access((Ino::ROOT, path, true), mask))
    }

    fn mkdir(&self, py: Python<'_>, path: &[u8], mode: u32) -> PyResult<()> {
        self.with(py, path, |client, path| client.mkdir(Ino::ROOT, path, mode).map(drop))
    }

    fn rmdir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.with(py, path, |client, path| client.rmdir(Ino::ROOT, path))
    }

    fn unlink(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.with(py, path, |client, path| client.unlink(Ino::ROOT, path))
    }

    fn rename(&self, py: Python<'_>, path: &[u8], to: &[u8], flags: u32) -> PyResult<()> {
        self.with(py, path, |client, path| client.rename(Ino::ROOT, path, Ino::ROOT, inside(to), flags))
    }

    fn link(&self, py: Python<'_>, path: &[u8], name: &[u8]) -> PyResult<()> {
        self.with(py, path, |client, path| {
            client.link((Ino::ROOT, path, false), Ino::ROOT, inside(name)).map(drop)
        })
    }

    fn symlink(&self, py: Python<'_>, target: &[u8], path: &[u8]) -> PyResult<()> {
        self.with(py, path, |client, path| client.symlink(target, Ino::ROOT, path).map(drop))
    }

    fn readlink<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let target = self.with(py, path, |client, path| client.readlink((Ino::ROOT, path, false)))?;
        Ok(PyBytes::new(py, &target))
    }

    /// The path without links, `.` and `..`, from the root.
    fn resolve<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let found = self.with(py, path, |client, path| client.real_path(Ino::ROOT, path))?;
        let below = bivouac_client::strip_mount(self.client.mount(), &found).unwrap_or(&found);
        Ok(PyBytes::new(py, if below.is_empty() { b"/" } else { below }))
    }

    fn truncate(&self, py: Python<'_>, path: &[u8], length: u64) -> PyResult<()> {
        self.with(py, path, |client, path| client.truncate((Ino::ROOT, path, true), length).map(drop))
    }

    fn chmod(&self, py: Python<'_>, path: &[u8], mode: u32, follow: bool) -> PyResult<()> {
        let set = SetAttr { mode: Some((mode & 0o7777) as u16), ..SetAttr::default() };
        self.with(py, path, |client, path| client.set_attr((Ino::ROOT, path, follow), set).map(drop))
    }

    /// `None`: as it is.
    #[pyo3(signature = (path, user, group, follow))]
    fn chown(
        &self,
        py: Python<'_>,
        path: &[u8],
        user: Option<u32>,
        group: Option<u32>,
        follow: bool,
    ) -> PyResult<()> {
        let set = SetAttr { uid: Some(user.unwrap_or(AS_IT_IS)), gid: group, ..SetAttr::default() };
        self.with(py, path, |client, path| client.set_attr((Ino::ROOT, path, follow), set).map(drop))
    }

    /// Nanoseconds since 1970; `None`: now.
    #[pyo3(signature = (path, times, follow))]
    fn utimes(&self, py: Python<'_>, path: &[u8], times: Option<(i64, i64)>, follow: bool) -> PyResult<()> {
        let (accessed, modified) =
            times.map_or((SetTime::Now, SetTime::Now), |(a, m)| (SetTime::To(a), SetTime::To(m)));
        let set = SetAttr { atime: Some(accessed), mtime: Some(modified), ..SetAttr::default() };
        self.with(py, path, |client, path| client.set_attr((Ino::ROOT, path, follow), set).map(drop))
    }

    fn getxattr<'py>(&self, py: Python<'py>, path: &[u8], name: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.with(py, path, |client, path| client.get_xattr((Ino::ROOT, path, true), name))?;
        Ok(PyBytes::new(py, &value))
    }

    fn setxattr(&self, py: Python<'_>, path: &[u8], name: &[u8], value: &[u8], flags: i32) -> PyResult<()> {
        self.with(py, path, |client, path| client.set_xattr((Ino::ROOT, path, true), name, value, flags))
    }

    fn removexattr(&self, py: Python<'_>, path: &[u8], name: &[u8]) -> PyResult<()> {
        self.with(py, path, |client, path| client.remove_xattr((Ino::ROOT, path, true), name))
    }

    fn listxattr<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let names = self.with(py, path, |client, path| client.list_xattr((Ino::ROOT, path, true)))?;
        Ok(PyBytes::new(py, &names))
    }

    /// Total, available, inodes, block size.
    fn statfs(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u32)> {
        self.with(py, b"/", |client, _| {
            let found = client.statfs(Ino::ROOT)?;
            Ok((found.total, found.available, found.inodes, found.block_size))
        })
    }

    /// Some entries of a directory, from a position on (`None`: its first). What is removed meanwhile is left out.
    #[pyo3(signature = (path, after))]
    fn list(&self, py: Python<'_>, path: &[u8], after: Option<(u64, u64)>) -> PyResult<(u64, Listed)> {
        let (dir, found, next) = self.with(py, path, |client, path| {
            let (dir, after) = match after {
                Some((dir, after)) => (Ino(dir), after),
                None => {
                    let attr = client.stat((Ino::ROOT, path, true))?;
                    if attr.kind != FileKind::Directory {
                        return Err(Errno::NOTDIR.into());
                    }
                    client.access((Ino::ROOT, path, true), 4)?;
                    (attr.ino, FIRST)
                }
            };
            let listed = client.list_after(dir, after, AT_ONCE, true)?;
            let next = listed.entries.last().map(|entry| entry.cookie).filter(|_| !listed.end);
            let mut found = Vec::with_capacity(listed.entries.len());
            for entry in listed.entries {
                let attr = match entry.attr {
                    Some(attr) => client.exact(*attr).map_err(Fail::from),
                    None => client.stat((dir, &entry.name, false)),
                };
                match attr {
                    Ok(attr) => found.push((entry.name, stat_of(&attr))),
                    Err(Fail::Errno(Errno::NOENT | Errno::STALE)) => {}
                    Err(fail) => return Err(fail),
                }
            }
            Ok((dir.0, found, next))
        })?;
        let entries = found.into_iter().map(|(name, stat)| (PyBytes::new(py, &name).unbind(), stat));
        Ok((dir, (entries.collect(), next)))
    }

    /// Which hosts have a range of a file: offset, length, hosts, those of this node first.
    fn locate(
        &self,
        py: Python<'_>,
        path: &[u8],
        offset: u64,
        length: u64,
    ) -> PyResult<Vec<(u64, u64, Vec<String>)>> {
        self.with(py, path, |client, path| {
            let attr = client.stat((Ino::ROOT, path, true))?;
            let found = client.locations(&attr, offset..offset.saturating_add(length));
            let map = client.deployment_map();
            let hosts = |location: &Location| location.hosts(&map).into_iter().map(String::from).collect();
            Ok(found.iter().map(|location| (location.offset, location.len, hosts(location))).collect())
        })
    }

    /// Reads pieces of many files at once: the bytes of each, or its errno.
    fn read_many<'py>(&self, py: Python<'py>, pieces: Vec<Piece>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        // Whoever does not know how long a file is asks for more than there is.
        let length = |(path, offset, length): &Piece| match *length {
            few if few <= LONG => few,
            many => py.detach(|| {
                let attr = self.client.stat((Ino::ROOT, inside(path), true));
                attr.map_or(0, |attr| attr.size.saturating_sub(*offset).min(many as u64) as usize)
            }),
        };
        let mut buffers: Vec<Vec<u8>> = pieces.iter().map(|piece| vec![0; length(piece)]).collect();
        let counts: Vec<Result<usize, Errno>> = py.detach(|| {
            let mut wanted: Vec<Wanted<'_>> = pieces
                .iter()
                .zip(&mut buffers)
                .map(|((path, offset, _), into)| {
                    let (path, offset, result) = (inside(path), *offset, Err(Errno::IO));
                    Wanted { path, offset, into, result }
                })
                .collect();
            self.client.read_many(Ino::ROOT, &mut wanted);
            wanted.into_iter().map(|one| one.result).collect()
        });
        let piece = |(count, buffer): (Result<usize, Errno>, Vec<u8>)| match count {
            Ok(count) => Ok(PyBytes::new(py, &buffer[..count]).into_any()),
            Err(errno) => Ok(i32::from(errno.0).into_pyobject(py)?.into_any()),
        };
        counts.into_iter().zip(buffers).map(piece).collect()
    }

    /// Reads all of many files at once: the bytes of each, or its errno.
    fn read_files<'py>(&self, py: Python<'py>, paths: Vec<Vec<u8>>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let found = py.detach(|| {
            let paths: Vec<&[u8]> = paths.iter().map(|path| inside(path)).collect();
            self.client.read_files(Ino::ROOT, &paths)
        });
        let file = |file: Result<Vec<u8>, Errno>| match file {
            Ok(bytes) => Ok(PyBytes::new(py, &bytes).into_any()),
            Err(errno) => Ok(i32::from(errno.0).into_pyobject(py)?.into_any()),
        };
        found.into_iter().map(file).collect()
    }
}
