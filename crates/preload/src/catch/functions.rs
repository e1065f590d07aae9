//! Where functions begin and end, by the table that every library carries for unwinding (`.eh_frame_hdr`).
//!
//! The table is sorted by address; behind each beginning it says where the function's description is, which
//! says how long it is. Only the one encoding is known that linkers write; anything else is no table.

use std::ops::Range;

/// Bytes at addresses.
#[derive(Default)]
pub struct Image<'a> {
    parts: Vec<(usize, &'a [u8])>,
}

impl<'a> Image<'a> {
    /// Adds bytes that lie at an address.
    pub fn add(&mut self, at: usize, bytes: &'a [u8]) {
        self.parts.push((at, bytes));
    }

    /// The bytes at a range of addresses, if they are there.
    pub fn bytes(&self, range: Range<usize>) -> Option<&'a [u8]> {
        self.parts
            .iter()
            .find_map(|(at, bytes)| bytes.get(range.start.checked_sub(*at)?..range.end.checked_sub(*at)?))
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.bytes(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// An address written as its distance from another one.
    fn distance(&self, at: usize, from: usize) -> Option<usize> {
        from.checked_add_signed(self.word(at)? as i32 as isize)
    }
}

/// How the table is written: version 1, position of the descriptions relative to here in 4 bytes, count in 4
/// bytes, entries relative to the table in 4 bytes each.
const ENCODING: u32 = u32::from_le_bytes([1, 0x1b, 0x03, 0x3b]);
/// Bytes before the entries, and of an entry.
const HEAD: usize = 12;
const ENTRY: usize = 8;

/// A table of functions.
pub struct Functions<'a> {
    image: &'a Image<'a>,
    at: usize,
    count: usize,
}

impl<'a> Functions<'a> {
    /// The table at an address; empty if it is written in another way.
    pub fn new(image: &'a Image<'a>, at: usize) -> Functions<'a> {
        let count = match (image.word(at), image.word(at + 8)) {
            (Some(ENCODING), Some(count)) => count as usize,
            _ => 0,
        };
        let whole = count.checked_mul(ENTRY).and_then(|len| image.bytes(at..at + HEAD + len));
        Functions { image, at, count: if whole.is_some() { count } else { 0 } }
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.count
    }

    fn start(&self, index: usize) -> Option<usize> {
        (index < self.count).then(|| self.image.distance(self.at + HEAD + index * ENTRY, self.at))?
    }

    /// Where a function is. It ends before the next one begins.
    pub fn range(&self, index: usize) -> Option<Range<usize>> {
        let start = self.start(index)?;
        let description = self.image.distance(self.at + HEAD + index * ENTRY + 4, self.at)?;
        // Length, common part, beginning (to agree with the table), length of the function.
        if self.image.distance(description + 8, description + 8)? != start {
            return None;
        }
        if self.is_of_signals(description)? {
            return None;
        }
        let end = start.checked_add(self.image.word(description + 12)? as usize)?;
        let next = self.start(index + 1).unwrap_or(usize::MAX);
        Some(start..end.min(next))
    }

    /// Whether a description is of what signal handlers return to. Such a one begins a byte too early, on
    /// purpose: what is read from there makes no sense.
    fn is_of_signals(&self, description: usize) -> Option<bool> {
        // The second word is the distance back to the common part, whose letters follow its length, number
        // and version.
        let common = (description + 4).checked_sub(self.image.word(description + 4)? as usize)?;
        let letters = self.image.bytes(common + 9..common + 13)?;
        Some(letters.iter().take_while(|letter| **letter != 0).any(|letter| *letter == b'S'))
    }

    /// The function that an address lies in, by its index.
    pub fn of(&self, address: usize) -> Option<usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.start(middle)? <= address {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let index = low.checked_sub(1)?;
        self.range(index)?.contains(&address).then_some(index)
    }

    /// What lies between a function's end and the next one's beginning.
    pub fn gap(&self, index: usize) -> Option<Range<usize>> {
        let (end, next) = (self.range(index)?.end, self.start(index + 1)?);
        (end < next).then_some(end..next)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A table of functions for a test, to lie at an address.
    pub fn table(at: usize, functions: &[Range<usize>]) -> Vec<u8> {
        table_with(at, functions, b"zR\0\0")
    }

    fn table_with(at: usize, functions: &[Range<usize>], letters: &[u8; 4]) -> Vec<u8> {
        let mut bytes = ENCODING.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend((functions.len() as u32).to_le_bytes());
        let common = HEAD + functions.len() * ENTRY;
        let descriptions = common + 16;
        for (i, function) in functions.iter().enumerate() {
            bytes.extend((function.start.wrapping_sub(at) as u32).to_le_bytes());
            bytes.extend(((descriptions + 16 * i) as u32).to_le_bytes());
        }
        bytes.extend([0; 9]);
        bytes.extend(letters);
        bytes.extend([0; 3]);
        for (i, function) in functions.iter().enumerate() {
            let here = descriptions + 16 * i;
            bytes.extend([0; 4]);
            bytes.extend(((here + 4 - common) as u32).to_le_bytes());
            bytes.extend((function.start.wrapping_sub(at + here + 8) as u32).to_le_bytes());
            bytes.extend((function.len() as u32).to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_function_is_found_by_any_address_in_it_and_not_by_those_between() {
        let bytes = table(0x9000, &[0x1000..0x1010, 0x1020..0x1030, 0x1030..0x1033]);
        let mut image = Image::default();
        image.add(0x9000, &bytes);
        let functions = Functions::new(&image, 0x9000);
        let found = |address| functions.of(address);
        assert_eq!([found(0x0fff), found(0x1000), found(0x100f)], [None, Some(0), Some(0)]);
        assert_eq!([found(0x1010), found(0x1020), found(0x1032)], [None, Some(1), Some(2)]);
        assert_eq!(found(0x1033), None);
        assert_eq!(functions.gap(0), Some(0x1010..0x1020));
        assert_eq!((functions.gap(1), functions.gap(2)), (None, None));
    }

    #[test]
    fn what_signal_handlers_return_to_is_not_looked_into() {
        let bytes = table_with(0x9000, &[0x1000..0x1010, 0x1010..0x1020], b"zRS\0");
        let mut image = Image::default();
        image.add(0x9000, &bytes);
        assert_eq!(Functions::new(&image, 0x9000).of(0x1000), None);
    }

    #[test]
    fn a_table_that_is_truncated_or_written_otherwise_has_no_functions() {
        let bytes = table(0x9000, &[0x1000..0x1010, 0x1020..0x1030]);
        let mut image = Image::default();
        image.add(0x9000, &bytes[..HEAD + ENTRY]);
        assert_eq!(Functions::new(&image, 0x9000).len(), 0);
        let mut other = bytes.clone();
        other[1] = 0x0b;
        let mut image = Image::default();
        image.add(0x9000, &other);
        assert_eq!(Functions::new(&image, 0x9000).len(), 0);
        // A description that does not agree with the table.
        let mut other = bytes;
        other[HEAD + 2 * ENTRY + 16 + 8] ^= 1;
        let mut image = Image::default();
        image.add(0x9000, &other);
        let functions = Functions::new(&image, 0x9000);
        assert_eq!((functions.of(0x1000), functions.of(0x1020)), (None, Some(1)));
    }
}
