//! Where in the directories a sub-file lies.
//!
//! All three choices (directory, subdirectory, part of the descriptor cache) come from different bits of one
//! hash, so that none follows from another. The first two are part of the format on disk:
//! `tests::places_never_change` pins them.

use bivouac_layout::Ino;
use std::ffi::CStr;

/// Subdirectories of each `sub`.
pub(crate) const SUBDIRECTORIES: u16 = 256;

/// The length of a sub-file's path below `sub`: `ab/0123456789abcdef` and NUL.
const PATH_LEN: usize = 2 + 1 + 16 + 1;

/// Spreads inode numbers, whose low bits count up, over all 64 bits. (A bijection: the finaliser of the
/// well-known SplitMix64 generator.)
pub(crate) fn mix(ino: Ino) -> u64 {
    let mut x = ino.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Which of `directories` holds the sub-file.
pub(crate) fn directory(mixed: u64, directories: usize) -> usize {
    (((mixed >> 32) * directories as u64) >> 32) as usize
}

/// Which subdirectory of `sub` holds the sub-file.
pub(crate) fn subdirectory(mixed: u64) -> u8 {
    mixed as u8
}

/// A sub-file's path below `sub`, on the stack.
pub(crate) struct SubPath([u8; PATH_LEN]);

impl SubPath {
    /// The path of an inode's sub-file, which hashes to `mixed`.
    pub(crate) fn new(ino: Ino, mixed: u64) -> SubPath {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut path = [0; PATH_LEN];
        let digits = |value: u64, out: &mut [u8]| {
            for (i, byte) in out.iter_mut().rev().enumerate() {
                *byte = HEX[(value >> (4 * i)) as usize & 15];
            }
        };
        digits(u64::from(subdirectory(mixed)), &mut path[..2]);
        path[2] = b'/';
        digits(ino.0, &mut path[3..19]);
        SubPath(path)
    }

    /// The whole path.
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }

    /// The subdirectory's name.
    pub(crate) fn parent(&self) -> &[u8] {
        &self.0[..2]
    }
}

/// The inode whose sub-file has this name, if it is the name of one.
pub(crate) fn parse_name(name: &[u8]) -> Option<Ino> {
    let text = std::str::from_utf8(name).ok()?;
    let canonical = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    canonical.then(|| u64::from_str_radix(text, 16).ok().map(Ino))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_never_change() {
        let place = |n: u64| {
            let mixed = mix(Ino(n));
            (directory(mixed, 3), SubPath::new(Ino(n), mixed).as_c_str().to_str().unwrap().to_owned())
        };
        assert_eq!(place(1), (1, "c1/0000000000000001".into()));
        assert_eq!(place(0xabc0_0000_0000_0002), (2, "89/abc0000000000002".into()));
        assert_eq!(place(u64::MAX), (2, "20/ffffffffffffffff".into()));
    }

    #[test]
    fn names_lead_back_to_their_inodes() {
        for n in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            let path = SubPath::new(Ino(n), mix(Ino(n)));
            assert_eq!(parse_name(&path.as_c_str().to_bytes()[3..]), Some(Ino(n)));
            assert_eq!(path.parent(), &path.as_c_str().to_bytes()[..2]);
        }
        for other in [
            &b"0123456789ABCDEF"[..],
            b"+123456789abcdef",
            b"0",
            b"",
            b"00000000000000001",
            b"\xff123456789abcde",
        ] {
            assert_eq!(parse_name(other), None, "{other:?}");
        }
    }

    #[test]
    fn files_spread_over_directories_and_subdirectories() {
        // Inode numbers as one shard gives them out.
        let mut by_directory = [0u32; 5];
        let mut by_subdirectory = [0u32; 256];
        for n in 0..256_000 {
            let mixed = mix(Ino(7 << 52 | n));
            by_directory[directory(mixed, 5)] += 1;
            by_subdirectory[usize::from(subdirectory(mixed))] += 1;
        }
        // Five standard deviations around the fair share.
        assert!(by_directory.iter().all(|&n| (50_200..52_200).contains(&n)), "{by_directory:?}");
        assert!(by_subdirectory.iter().all(|&n| (840..1_160).contains(&n)), "{by_subdirectory:?}");
    }
}
