//! How much memory a million small files take, and how fast they are made, looked up and removed.
//!
//! `cargo run --release -p bivouac-meta --example million [FILES]`

#[path = "../tests/alone/mod.rs"]
mod alone;

use bivouac_layout::{Ino, NodeId};
use bivouac_meta::{Caller, Options};
use bivouac_proto::auth::Credentials;
use bivouac_proto::header::{OpenId, RequestId};
use bivouac_proto::meta::{At, Create, MetaReply, MetaRequest, OpenHow};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Counts what is allocated, rounded as glibc rounds it.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

fn rounded(size: usize) -> usize {
    (size + 8).next_multiple_of(16).max(32)
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(rounded(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(rounded(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Resident memory of this process, bytes.
fn resident() -> Result<usize, Box<dyn std::error::Error>> {
    let pages: usize =
        std::fs::read_to_string("/proc/self/statm")?.split(' ').nth(1).unwrap_or("0").parse()?;
    Ok(pages * 4096)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files: usize = std::env::args().nth(1).map_or(Ok(1_000_000), |n| n.parse())?;
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let store = alone::open(dir.path(), Options::new(1))?;
    let mut sequence = 0;
    let mut out = Vec::new();
    let mut send = |request: MetaRequest<'_>, data: &[u8]| -> Result<Reply, Failure> {
        sequence += 1;
        let id = RequestId { session: 1, slot: 0, sequence };
        let shard = match request {
            MetaRequest::Open { at, .. } | MetaRequest::Lookup { at } | MetaRequest::Unlink { at } => {
                at.dir.shard()
            }
            _ => Ino::ROOT.shard(),
        };
        out.clear();
        store.meta(
            &Caller {
                credentials: Credentials::default(),
                node: NodeId::NONE,
                id,
                shard,
                change: Default::default(),
            },
            &request,
            data,
            &mut out,
        )
    };
    // Directories of 1,000 files.
    let mut directories = Vec::new();
    for n in 0..files.div_ceil(1000) {
        let name = format!("directory-{n}");
        let at = At { dir: Ino::ROOT, split: n > 2000, name: name.as_bytes() };
        match send(MetaRequest::Mkdir { at, mode: 0o755 }, &[]) {
            Ok(Reply::Meta(MetaReply::Entry { attr, .. })) => directories.push(attr.ino),
            other => return Err(format!("{other:?}").into()),
        }
    }
    let before = ALLOCATED.load(Ordering::Relaxed);
    let resident_before = resident()?;
    let each = |what: &str, work: &mut dyn FnMut(At<'_>) -> Result<(), Failure>| {
        let started = Instant::now();
        for n in 0..files {
            let name = format!("name-{:07}", n % 10_000_000);
            let dir = directories[n / 1000];
            work(At { dir, split: false, name: name.as_bytes() })
                .map_err(|e| format!("{what} {name}: {e:?}"))?;
        }
        let seconds = started.elapsed().as_secs_f64();
        println!("{what}: {:.0}/s", files as f64 / seconds);
        Ok::<(), String>(())
    };
    let how =
        OpenHow { write: true, create: Some(Create { mode: 0o644, exclusive: true }), ..OpenHow::default() };
    let open = OpenId { agent: 1, slot: 1, incarnation: 1 };
    each("create, write 8 bytes, close", &mut |at| {
        let Reply::Meta(MetaReply::Opened { attr, .. }) = send(MetaRequest::Open { at, how, open }, &[])?
        else {
            return Err(Errno::PROTO.into());
        };
        let ino = attr.ino;
        send(MetaRequest::WriteInline { ino, offset: 0 }, b"8 bytes.")?;
        send(MetaRequest::Release { ino, open, wrote: None }, &[]).map(drop)
    })?;
    let used = ALLOCATED.load(Ordering::Relaxed) - before;
    println!(
        "{} bytes of memory a file, {} bytes of log",
        used / files,
        store.counts().log_bytes / files as u64
    );
    println!("resident: {} bytes a file", resident()?.saturating_sub(resident_before) / files);
    each("lookup", &mut |at| send(MetaRequest::Lookup { at }, &[]).map(drop))?;
    each("getattr", &mut |at| {
        send(MetaRequest::GetAttr { ino: Ino::new(at.dir.shard(), 2) }, &[]).map(drop)
    })?;
    each("unlink", &mut |at| send(MetaRequest::Unlink { at }, &[]).map(drop))?;
    println!(
        "resident: {} bytes a file, now that they are gone",
        resident()?.saturating_sub(resident_before) / files
    );
    store.close();
    Ok(())
}
