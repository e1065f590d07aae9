//! The identity file of a storage directory: which server of which deployment the directory belongs to, and
//! its position among the store's directories.
//!
//! Five lines of text, so that a person who finds a directory left behind can see what it is:
//! ```text
//! bivouac sub-file store, format 1
//! deployment 00000000deadbeef
//! server 3
//! directory 0 of 2
//! made by the store: yes
//! ```

use bivouac_layout::ServerId;

/// First line: what the file is, and the version of the format on disk.
const TITLE: &str = "bivouac sub-file store, format 1";

/// Longest identity file, bytes; a longer one is not ours.
pub(crate) const MAX_LEN: usize = 512;

/// What the file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    /// The deployment.
    pub(crate) deployment: u64,
    /// The server.
    pub(crate) server: ServerId,
    /// Position among the store's directories.
    pub(crate) index: u16,
    /// How many directories the store has.
    pub(crate) count: u16,
    /// The store made the directory itself, and so removes it when it is destroyed.
    pub(crate) made: bool,
}

impl Identity {
    /// The file's content.
    pub(crate) fn to_text(self) -> String {
        format!(
            "{TITLE}\ndeployment {:016x}\nserver {}\ndirectory {} of {}\nmade by the store: {}\n",
            self.deployment,
            self.server,
            self.index,
            self.count,
            if self.made { "yes" } else { "no" }
        )
    }

    /// Reads the file's content; says what is wrong with it.
    pub(crate) fn parse(text: &[u8]) -> Result<Identity, &'static str> {
        let text = std::str::from_utf8(text).map_err(|_| "it is not text")?;
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err("it is not of this format");
        }
        let mut field = |name| lines.next().and_then(|line| line.strip_prefix(name));
        let deployment = field("deployment ").and_then(|v| u64::from_str_radix(v, 16).ok());
        let server = field("server ").and_then(|v| v.parse().ok());
        let place = field("directory ").and_then(|v| v.split_once(" of "));
        let made = match field("made by the store: ") {
            Some("yes") => true,
            Some("no") => false,
            _ => return Err("its last line is missing"),
        };
        let (index, count) = place.ok_or("it has no position")?;
        let identity = Identity {
            deployment: deployment.ok_or("it has no deployment")?,
            server: ServerId(server.ok_or("it has no server")?),
            index: index.parse().map_err(|_| "its position is no number")?,
            count: count.parse().map_err(|_| "its position is no number")?,
            made,
        };
        if identity.index < identity.count { Ok(identity) } else { Err("its position is out of range") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(deployment: u64, server: u16, index in 0..u16::MAX, more: u16, made: bool) {
            let count = index.saturating_add(more).max(index + 1);
            let identity = Identity { deployment, server: ServerId(server), index, count, made };
            let text = identity.to_text();
            prop_assert!(text.len() <= MAX_LEN);
            prop_assert_eq!(Identity::parse(text.as_bytes()), Ok(identity));
        }

        #[test]
        fn garbage_does_not_panic(bytes: Vec<u8>) {
            prop_assert!(Identity::parse(&bytes).is_err());
        }
    }

    #[test]
    fn a_torn_file_is_refused() {
        let whole = Identity { deployment: 1, server: ServerId(2), index: 0, count: 1, made: true }.to_text();
        // Only the last newline may be missing.
        for cut in 0..whole.len() - 1 {
            assert!(Identity::parse(&whole.as_bytes()[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn a_position_beyond_the_count_is_refused() {
        let text = Identity { deployment: 1, server: ServerId(2), index: 2, count: 2, made: false }.to_text();
        assert!(Identity::parse(text.as_bytes()).is_err());
    }
}
