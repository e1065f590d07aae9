//! What is to be done about one entry.

use super::{Options, Others};
use crate::tree::{Kind, Meta, State};

/// What is to be done about one entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    Copy,
    /// Only the contents tell whether it is there already.
    Compare,
    /// The content is there; owner or mode are not.
    Attributes,
    /// It is there, complete.
    Complete,
    /// It was not changed since it was staged, whatever is at the destination.
    Unchanged,
    /// What is at the destination was changed by somebody else.
    Conflict,
}

/// What the record says of a file: its state inside, and that of its counterpart in the backend.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Recorded {
    pub(super) inside: Option<State>,
    pub(super) outside: Option<State>,
}

/// `owners`: owners are kept, because this is root.
pub(super) fn decide(
    here: &Meta,
    there: Option<&Meta>,
    recorded: Recorded,
    options: &Options,
    owners: bool,
) -> Decision {
    if options.changed {
        if recorded.inside == Some(here.state()) {
            return Decision::Unchanged;
        }
        if let Some(there) = there {
            if recorded.outside == Some(there.state()) {
                return Decision::Copy;
            }
            // A flush that was interrupted may have put it there without noting it.
            if is_complete(here, there) && !options.checksum {
                return Decision::Complete;
            }
            let keeps = match options.others {
                Others::Kept => true,
                Others::KeptIfStaged => recorded.outside.is_some(),
                Others::Overwritten => false,
            };
            if keeps {
                return Decision::Conflict;
            }
        }
        return Decision::Copy;
    }
    let Some(there) = there.filter(|there| there.kind == here.kind) else { return Decision::Copy };
    if options.checksum && here.kind == Kind::File {
        return if here.size == there.size { Decision::Compare } else { Decision::Copy };
    }
    if !is_complete(here, there) {
        return Decision::Copy;
    }
    let same_owner = !owners || (here.uid, here.gid) == (there.uid, there.gid);
    let same_mode = here.mode == there.mode || here.kind == Kind::Symlink;
    if same_owner && same_mode { Decision::Complete } else { Decision::Attributes }
}

/// Whether what is there is a complete copy, as far as attributes tell: a file gets its time when it is
/// complete.
fn is_complete(here: &Meta, there: &Meta) -> bool {
    here.kind == there.kind
        && here.mtime == there.mtime
        && match here.kind {
            Kind::File | Kind::Symlink => here.size == there.size,
            _ => here.device == there.device,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: u64, mtime: i64, ctime: i64) -> Meta {
        Meta {
            kind: Kind::File,
            mode: 0o644,
            uid: 1,
            gid: 1,
            size,
            atime: 0,
            mtime,
            ctime,
            identity: (0, 1),
            links: 1,
            allocated: size,
            device: 0,
            attributes: false,
            lazy: false,
        }
    }

    #[test]
    fn a_complete_copy_is_not_made_again_and_an_incomplete_one_is() {
        let options = Options::default();
        let decide =
            |there: Option<&Meta>| decide(&file(5, 7, 9), there, Recorded::default(), &options, true);
        assert_eq!(decide(None), Decision::Copy);
        assert_eq!(decide(Some(&file(5, 7, 1))), Decision::Complete);
        assert_eq!(decide(Some(&file(5, 8, 1))), Decision::Copy);
        assert_eq!(decide(Some(&file(4, 7, 1))), Decision::Copy);
        assert_eq!(decide(Some(&Meta { mode: 0o600, ..file(5, 7, 1) })), Decision::Attributes);
        assert_eq!(decide(Some(&Meta { uid: 2, ..file(5, 7, 1) })), Decision::Attributes);
        assert_eq!(decide(Some(&Meta { kind: Kind::Symlink, ..file(5, 7, 1) })), Decision::Copy);
    }

    #[test]
    fn with_checksums_only_the_contents_count() {
        let options = Options { checksum: true, ..Options::default() };
        let decide = |there| decide(&file(5, 7, 9), Some(&there), Recorded::default(), &options, true);
        assert_eq!(decide(file(5, 7, 9)), Decision::Compare);
        assert_eq!(decide(file(6, 7, 9)), Decision::Copy);
    }

    #[test]
    fn changes_are_told_by_the_inodes_time_also_if_the_other_was_set_back() {
        let mut options = Options { changed: true, ..Options::default() };
        let (staged, backend) = (file(5, 7, 9), file(5, 7, 100));
        let recorded = Recorded { inside: Some(staged.state()), outside: Some(backend.state()) };
        let is = |here: Meta, there: Option<Meta>, options: &Options| {
            decide(&here, there.as_ref(), recorded, options, true)
        };
        assert_eq!(is(staged, Some(backend), &options), Decision::Unchanged);
        assert_eq!(is(staged, None, &options), Decision::Unchanged);
        // The same size; once with a new time, once with the old one.
        assert_eq!(is(file(5, 8, 10), Some(backend), &options), Decision::Copy);
        assert_eq!(is(file(5, 7, 10), Some(backend), &options), Decision::Copy);
        // A flush was killed before it noted what it had put there.
        assert_eq!(is(file(5, 8, 10), Some(file(5, 8, 300)), &options), Decision::Complete);
        // Changed on both sides.
        let other = file(5, 50, 200);
        assert_eq!(is(file(5, 8, 10), Some(other), &options), Decision::Conflict);
        assert_eq!(is(file(5, 8, 10), None, &options), Decision::Copy);
        options.others = Others::Overwritten;
        assert_eq!(is(file(5, 8, 10), Some(other), &options), Decision::Copy);
        // Nobody has staged what is there.
        let is =
            |options: &Options| decide(&file(5, 8, 10), Some(&other), Recorded::default(), options, true);
        for (others, expected) in [(Others::Kept, Decision::Conflict), (Others::KeptIfStaged, Decision::Copy)]
        {
            options.others = others;
            assert_eq!(is(&options), expected);
        }
    }
}
