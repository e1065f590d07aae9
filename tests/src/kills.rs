//! Random kills under a load that remembers outside what it was told.
//!
//! Some programs work in a deployment, each in a directory of its own and all together at one file to which
//! they append. Each writes to a [journal](Entry) on the local disk what it begins, before it does it, and
//! what came of it, before it does the next thing. Meanwhile daemons are [killed or stopped](Fault), all are
//! started again, and then everything that there is is [looked at](look) and compared with the journals
//! ([`Judged`]):
//!
//! - What was acknowledged is there, with exactly its content, and nothing else is.
//! - What failed with EIO, or was never answered, because the program was killed, was done or was not done.
//! - No answer was wrong, and none took longer than `docs/semantics.md` allows.
//! - When all programs have ended nothing is open, locked or left without a name.
//!
//! [`Tree`] is the reference. The program that works keeps one to know what it can do next; the judge gets
//! the same one by replaying the journal. A file or directory of which an operation was not answered is left
//! alone until the judge has found out what came of it, so that everything that is not known can be found out
//! by itself.

mod attempt;
mod choose;
mod judge;
mod look;
mod random;
mod siege;
mod step;
mod tree;
mod work;

pub use judge::{Judged, Times};
pub use look::{Found, Look, look};
pub use random::Random;
pub use siege::{Fault, Siege, Totals};
pub use step::{Entry, Outcome, Step, now, pattern};
pub use tree::Tree;
pub use work::work;

/// The file to which all programs append.
const SHARED: &str = "shared";

/// What each of them appends there at a time: program, number, padding.
const RECORD: usize = 32;

/// What the program `kills_client` does: `work` or `look`.
pub fn serve() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["work", mount, directory, seed] => work(mount, directory.as_ref(), seed.parse().expect("a number")),
        ["look", mount, into] => look(mount.as_ref(), into.as_ref()),
        _ => panic!("unknown arguments: {words:?}"),
    }
}
