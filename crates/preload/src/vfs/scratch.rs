//! Room for paths, for work that may be done in a signal handler: on a small stack of its own, having
//! interrupted the memory allocator. So it is neither on the stack nor from the allocator, but mapped from
//! the kernel; a few pieces are kept for the next time. A piece that a handler leaves behind (by
//! `siglongjmp`) is lost, and nothing else.

use std::ffi::c_char;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Texts in one piece.
const TEXTS: usize = 3;
/// Bytes of one: several times the longest path, as links are put together. Only what is touched is memory.
const ROOM: usize = 16 << 10;
const LENGTH: usize = TEXTS * ROOM;

/// Pieces that nobody uses.
static KEPT: [AtomicPtr<u8>; 4] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 4];

/// A piece of memory for texts; given back when dropped.
pub struct Scratch {
    at: *mut u8,
}

impl Scratch {
    /// A piece. `None`: the kernel has no memory.
    pub fn take() -> Option<Scratch> {
        for kept in &KEPT {
            let at = kept.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !at.is_null() {
                return Some(Scratch { at });
            }
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = sys!(SYS_mmap, 0, LENGTH, protection, flags, usize::MAX, 0).ok()?;
        Some(Scratch { at: at as *mut u8 })
    }

    /// The texts, all empty.
    pub fn texts(&mut self) -> [Text<'_>; TEXTS] {
        std::array::from_fn(|i| {
            // SAFETY: the piece is as long as all texts, which do not overlap, and is borrowed as long as
            // they are.
            let room = unsafe { std::slice::from_raw_parts_mut(self.at.add(i * ROOM), ROOM) };
            let mut text = Text { room, len: 0 };
            text.truncate(0);
            text
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let empty = std::ptr::null_mut();
        let keep = |kept: &AtomicPtr<u8>| {
            kept.compare_exchange(empty, self.at, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if !KEPT.iter().any(keep) {
            let _ = sys!(SYS_munmap, self.at, LENGTH);
        }
    }
}

/// A growing text in room that does not grow. Behind it there is always a NUL.
pub struct Text<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl Text<'_> {
    /// What it says.
    pub fn bytes(&self) -> &[u8] {
        self.room.get(..self.len).unwrap_or_default()
    }

    /// For the kernel: ended by NUL.
    pub fn as_ptr(&self) -> *const c_char {
        self.room.as_ptr().cast()
    }

    /// Shortens it.
    pub fn truncate(&mut self, len: usize) {
        self.len = len.min(self.len);
        if let Some(end) = self.room.get_mut(self.len) {
            *end = 0;
        }
    }

    /// Adds something. `None`: it does not fit, and nothing was added.
    pub fn push(&mut self, more: &[u8]) -> Option<()> {
        let end = self.len.checked_add(more.len()).filter(|end| *end < self.room.len())?;
        self.room.get_mut(self.len..end)?.copy_from_slice(more);
        self.len = end;
        *self.room.get_mut(end)? = 0;
        Some(())
    }

    /// Puts something in the place of its first `until` bytes. `None` as above.
    pub fn replace_start(&mut self, until: usize, by: &[u8]) -> Option<()> {
        let rest = self.len.checked_sub(until)?;
        if by.len() + rest >= self.room.len() {
            return None;
        }
        self.room.copy_within(until..self.len, by.len());
        self.room.get_mut(..by.len())?.copy_from_slice(by);
        self.len = by.len() + rest;
        *self.room.get_mut(self.len)? = 0;
        Some(())
    }

    /// Adds a number, decimal.
    pub fn push_number(&mut self, number: i32) -> Option<()> {
        let mut digits = [0u8; 10];
        let mut rest = u32::try_from(number).ok()?;
        let mut begin = digits.len();
        loop {
            begin -= 1;
            *digits.get_mut(begin)? = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return self.push(digits.get(begin..)?);
            }
        }
    }

    /// Lets the kernel write it: `fill` gets where to and how much fits, and returns how many bytes it says
    /// now.
    pub fn fill<E>(&mut self, fill: impl FnOnce(*mut u8, usize) -> Result<usize, E>) -> Option<()> {
        let fits = self.room.len() - 1;
        self.len = fill(self.room.as_mut_ptr(), fits).ok()?.min(fits);
        *self.room.get_mut(self.len)? = 0;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_never_longer_than_its_room_and_always_ends() {
        let mut scratch = Scratch::take().unwrap();
        let [mut text, mut other, _] = scratch.texts();
        assert_eq!(other.push(b"other"), Some(()));
        while text.push(b"0123456789").is_some() {}
        assert_eq!(text.bytes().len(), (ROOM - 1) / 10 * 10);
        assert_eq!(text.replace_start(0, &[b'x'; 10]), None);
        assert_eq!(text.replace_start(text.bytes().len() - 3, b"/a/b"), Some(()));
        assert_eq!(text.bytes(), b"/a/b789");
        assert_eq!(text.replace_start(5, b""), Some(()));
        assert_eq!(text.push_number(0).and_then(|()| text.push_number(i32::MAX)), Some(()));
        // SAFETY: it ends with NUL.
        let whole = unsafe { std::ffi::CStr::from_ptr(text.as_ptr()) };
        assert_eq!(whole.to_bytes(), b"8902147483647");
        assert_eq!(other.bytes(), b"other");
        assert_eq!(text.push_number(-1), None);
    }

    #[test]
    fn a_piece_is_used_again() {
        let first = Scratch::take().unwrap().at;
        let again: Vec<Scratch> = (0..8).map(|_| Scratch::take().unwrap()).collect();
        assert!(again.iter().any(|scratch| scratch.at == first));
    }
}
