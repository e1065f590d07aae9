//! Reads into several buffers, and writes from several, by way of one buffer, so that they take no more
//! requests than for one buffer.

use super::Data;
use bivouac_proto::Errno;
use bivouac_proto::attr::TRANSFER_MAX;
use std::io::{IoSlice, IoSliceMut};

/// Least size of the buffer for a read into several buffers, bytes, where as much is asked for.
const GATHERED_AT_LEAST: usize = 64 << 10;

impl Data<'_> {
    /// Reads into several buffers with as few requests as one read takes: by way of a buffer for all of them,
    /// which is no larger than what the file seems to have.
    pub(crate) fn read_several(self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let wanted = into.iter().map(|b| b.len()).sum::<usize>().min(TRANSFER_MAX);
        let seen = usize::try_from(self.size_seen().saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut gathered = vec![0; wanted.min(seen.max(GATHERED_AT_LEAST))];
        let mut done = 0;
        while done < wanted {
            let room = gathered.len().min(wanted - done);
            let buffer = &mut gathered[..room];
            let count = match self.read_one(offset + done as u64, buffer) {
                Ok(count) => count,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            };
            scatter(&buffer[..count], into, done);
            done += count;
            if count < room {
                break;
            }
            // The file is longer than it seemed: all that is still wanted, in one more read.
            if done < wanted {
                gathered.resize(wanted - done, 0);
            }
        }
        Ok(done)
    }
}

/// Copies what was read behind the first `skip` bytes of several buffers.
fn scatter(mut from: &[u8], into: &mut [IoSliceMut<'_>], mut skip: usize) {
    for buffer in into {
        let start = skip.min(buffer.len());
        skip -= start;
        let (now, later) = from.split_at(from.len().min(buffer.len() - start));
        buffer[start..start + now.len()].copy_from_slice(now);
        from = later;
    }
}

/// Several slices as one. As the kernel does, no more than 2 GiB less a page.
pub(crate) fn gather(from: &[IoSlice<'_>]) -> Vec<u8> {
    let mut data = Vec::with_capacity(from.iter().map(|d| d.len()).sum::<usize>().min(TRANSFER_MAX));
    for slice in from {
        data.extend_from_slice(&slice[..slice.len().min(TRANSFER_MAX - data.len())]);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_goes_behind_what_was_there_across_buffers_and_no_further() {
        for skip in 0..=9 {
            for length in 0..=12 {
                let (mut a, mut b, mut c) = ([0u8; 3], [0u8; 0], [0u8; 6]);
                let from: Vec<u8> = (1..=length).collect();
                scatter(
                    &from,
                    &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b), IoSliceMut::new(&mut c)],
                    skip,
                );
                let found = [&a[..], &c].concat();
                let mut expected = [vec![0; skip], from].concat();
                expected.resize(9.max(expected.len()), 0);
                assert_eq!(found, expected[..9], "{skip} {length}");
            }
        }
    }

    #[test]
    fn slices_are_gathered_in_their_order() {
        let parts = [IoSlice::new(b"one"), IoSlice::new(b""), IoSlice::new(b"two")];
        assert_eq!(gather(&parts), b"onetwo");
    }
}
