//! Which start of the machine this is.
//!
//! What a process wrote to a file is there until the machine stops, whatever becomes of the process; only
//! what was synced is sure to be there after that. So to check whether a file is whole, one has to know
//! whether the machine ran without interruption.

use rustix::fs::{Mode, OFlags};

/// One start of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boot(u128);

impl Boot {
    /// Bytes of its written form.
    pub const LEN: usize = 16;

    /// The one that this process runs in; `None` if the kernel does not say.
    pub fn current() -> Option<Boot> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(c"/proc/sys/kernel/random/boot_id", flags, Mode::empty()).ok()?;
        let mut text = [0; 64];
        let length = rustix::io::read(&file, &mut text).ok()?;
        let text = std::str::from_utf8(text.get(..length)?).ok()?;
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        u128::from_str_radix(&digits, 16).ok().and_then(Boot::numbered)
    }

    /// The one with this number, which is not 0.
    pub fn numbered(number: u128) -> Option<Boot> {
        (number != 0).then_some(Boot(number))
    }

    /// For a file; an unknown one is written as zeros.
    pub fn to_bytes(boot: Option<Boot>) -> [u8; Boot::LEN] {
        boot.map_or(0, |boot| boot.0).to_le_bytes()
    }

    /// What [`Boot::to_bytes`] wrote.
    pub fn from_bytes(bytes: [u8; Boot::LEN]) -> Option<Boot> {
        Boot::numbered(u128::from_le_bytes(bytes))
    }

    /// Whether the machine has run without interruption since `then`. False if either boot is not known.
    pub fn is_since(now: Option<Boot>, then: Option<Boot>) -> bool {
        now.is_some() && now == then
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_itself_and_an_unknown_one_is_none() {
        let now = Boot::current();
        assert!(now.is_some());
        assert_eq!(Boot::from_bytes(Boot::to_bytes(now)), now);
        assert!(Boot::is_since(now, now) && !Boot::is_since(now, Boot::numbered(1)));
        assert_eq!(Boot::from_bytes(Boot::to_bytes(None)), None);
        assert!(!Boot::is_since(None, None));
    }
}
