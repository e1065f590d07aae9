//! Where data is, and how files are spread.

use crate::deployment::{Deployment, of};
use crate::error::{Failed, answer, status};
use crate::text::{copy, natural, path, put, text};
use bivouac_client::{Client, Fail, Location};
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use libc::off_t;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};

/// `BIVOUAC_COPIES_MAX`.
const COPIES: usize = 8;
/// The attribute that shows and sets a layout.
const LAYOUT: &[u8] = b"user.bivouac.layout";

/// `struct bivouac_location`.
#[repr(C)]
struct bivouac_location {
    offset: u64,
    length: u64,
    hosts: u32,
    local: u32,
    host: [*const c_char; COPIES],
    reserved: [u64; 2],
}

/// Locations in one piece of memory from malloc: the entries, and behind them the names that they point to.
fn packed(client: &Client, found: &[Location]) -> Result<*mut bivouac_location, Failed> {
    let map = client.deployment_map();
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut length = found.len() * size_of::<bivouac_location>();
    let hosts = |location: &Location| -> Vec<&str> {
        let mut hosts = location.hosts(&map);
        hosts.truncate(COPIES);
        hosts
    };
    let all: Vec<Vec<&str>> = found.iter().map(hosts).collect();
    for host in all.iter().flatten() {
        names.entry(host).or_insert_with(|| {
            let at = length;
            length += host.len() + 1;
            at
        });
    }
    // SAFETY: any length may be asked for; zeros are a NUL behind each name.
    let memory = unsafe { libc::calloc(1, length.max(1)) }.cast::<u8>();
    if memory.is_null() {
        return Err(Errno::NOMEM.into());
    }
    for (host, at) in &names {
        // SAFETY: there is room for all names behind the entries, at the places that were counted above.
        unsafe { memory.add(*at).copy_from_nonoverlapping(host.as_ptr(), host.len()) };
    }
    let entries = memory.cast::<bivouac_location>();
    for (index, (location, hosts)) in found.iter().zip(&all).enumerate() {
        let mut host = [std::ptr::null(); COPIES];
        for (place, name) in host.iter_mut().zip(hosts) {
            // SAFETY: as above.
            *place = unsafe { memory.add(names.get(name).copied().unwrap_or_default()) }.cast();
        }
        let first = location.servers.first().and_then(|server| map.server(*server));
        let entry = bivouac_location {
            offset: location.offset,
            length: location.len,
            hosts: hosts.len() as u32,
            local: u32::from(first.is_some_and(|server| server.node == client.node())),
            host,
            reserved: [0; 2],
        };
        // SAFETY: there is room for all entries; memory from malloc is aligned for any type.
        unsafe { entries.add(index).write(entry) };
    }
    Ok(entries)
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL; `locations` and `count` are NULL or valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_locate(
    deployment: *const Deployment,
    name: *const c_char,
    offset: off_t,
    length: off_t,
    locations: *mut *mut c_void,
    count: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, path) = unsafe { (of(deployment)?, path(name)?) };
        let (start, length) = (natural(offset)?, natural(length)?);
        let client = &deployment.client;
        let attr = client.stat((Ino::ROOT, path, true))?;
        let found = client.locations(&attr, start..start.saturating_add(length));
        let memory = packed(client, &found)?;
        // SAFETY: as the caller says.
        let told = unsafe { put(count, found.len()).and_then(|()| put(locations, memory.cast())) };
        // SAFETY: it came from malloc, and nobody has it.
        told.inspect_err(|_| unsafe { libc::free(memory.cast()) })
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `pointer` is NULL or came from a function that says that it is to be given here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_free(pointer: *mut c_void) {
    // SAFETY: it came from malloc.
    unsafe { libc::free(pointer) };
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL; `layout` is valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_get_layout(
    deployment: *const Deployment,
    name: *const c_char,
    layout: *mut c_char,
    length: usize,
) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let (deployment, path) = unsafe { (of(deployment)?, path(name)?) };
        let found = match deployment.client.get_xattr((Ino::ROOT, path, true), LAYOUT) {
            Err(Fail::Errno(Errno::NODATA)) => Vec::new(),
            found => found?,
        };
        // SAFETY: as the caller says.
        unsafe { copy(&found, layout.cast(), length) }
    }) as isize
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` and `layout` are NULL or end with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_set_layout(
    deployment: *const Deployment,
    name: *const c_char,
    layout: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, path, layout) = unsafe { (of(deployment)?, path(name)?, text(layout)?) };
        Ok(deployment.client.set_xattr((Ino::ROOT, path, true), LAYOUT, layout, 0)?)
    })
}
