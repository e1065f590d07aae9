//! Threads that use, close, replace and duplicate numbers of a small table, in every interleaving.
//!
//! The table here puts the steps together as the real one does. Its files are only numbers, and a few atomics
//! are the kernel's table.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

cell!(AtomicU32);

/// What the kernel's table may say of a number; from [`A`] on these are files of ours.
const CLOSED: u32 = 0;
const THEIRS: u32 = 1;
const A: u32 = 2;
const B: u32 = 3;

#[derive(Default)]
struct Entry {
    users: AtomicU32,
    file: UnsafeCell<u32>,
}

#[derive(Default)]
struct Table {
    words: [AtomicU32; 2],
    kernel: [AtomicU32; 2],
    entries: [Entry; 3],
    /// The files that were put into an entry and not taken out of it again.
    open: Mutex<Vec<u32>>,
}

/// A use of an entry, as [`super::super::File`] is.
struct User(Arc<Table>, u32);

impl User {
    fn new(table: &Arc<Table>, file: u32) -> User {
        // SAFETY: loom checks that nobody else uses the cell at the same time.
        let fill = |entry: &Entry| entry.file.with_mut(|place| unsafe { *place = file });
        let free = table.entries.iter().position(|entry| claim(&entry.users, || fill(entry)));
        table.open.lock().unwrap().push(file);
        User(table.clone(), free.expect("there are as many entries as the tests use") as u32)
    }

    fn again(table: &Arc<Table>, index: u32) -> Option<User> {
        enter(&table.entries[index as usize].users).then(|| User(table.clone(), index))
    }

    fn entry(&self) -> &Entry {
        &self.0.entries[self.1 as usize]
    }

    fn file(&self) -> u32 {
        // SAFETY: loom checks that nobody writes to the cell at the same time.
        self.entry().file.with(|file| unsafe { *file })
    }

    /// The state of a number that becomes this user.
    fn into_state(self) -> u32 {
        FIRST_ENTRY + ManuallyDrop::new(self).1
    }
}

impl Clone for User {
    fn clone(&self) -> User {
        share(&self.entry().users);
        User(self.0.clone(), self.1)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: loom checks that nobody else uses the cell at the same time.
        let empty = || self.entry().file.with_mut(|file| unsafe { std::mem::take(&mut *file) });
        if let Some(file) = leave(&self.entry().users, empty) {
            let mut open = self.0.open.lock().unwrap();
            let at = open.iter().position(|other| *other == file).expect("released once");
            open.swap_remove(at);
        }
    }
}

impl Table {
    fn new() -> Arc<Table> {
        Arc::default()
    }

    /// What the kernel says of a number.
    fn asked(self: &Arc<Self>, number: usize) -> (u32, Option<User>) {
        let file = self.kernel[number].load(Ordering::Acquire);
        (file, (file >= A).then(|| User::new(self, file)))
    }

    /// The file that a number stands for.
    fn find(self: &Arc<Self>, number: usize) -> Option<User> {
        let word = &self.words[number];
        loop {
            let seen = Cell::load(word, Ordering::Acquire);
            match meaning(seen) {
                FOREIGN => return None,
                CHANGING => return self.asked(number).1,
                UNKNOWN => {
                    let (file, user) = self.asked(number);
                    if file == THEIRS {
                        learn(word, seen, FOREIGN);
                    }
                    if let Some(shared) = user.clone().map(ManuallyDrop::new)
                        && !learn(word, seen, FIRST_ENTRY + shared.1)
                    {
                        drop(ManuallyDrop::into_inner(shared));
                    }
                    return user;
                }
                entry => match hold(word, seen, || User::again(self, entry - FIRST_ENTRY)) {
                    None => thread::yield_now(),
                    held => return held,
                },
            }
        }
    }

    /// As [`Table::find`]; the file itself.
    fn look(self: &Arc<Self>, number: usize) -> u32 {
        self.find(number).map_or(CLOSED, |user| user.file())
    }

    /// A number is no user any more.
    fn let_go(self: &Arc<Self>, word: u32) {
        if let Some(index) = meaning(word).checked_sub(FIRST_ENTRY) {
            drop(User(self.clone(), index));
        }
    }

    /// The kernel has given out a number.
    fn set(self: &Arc<Self>, number: usize, state: u32) {
        self.let_go(replace(&self.words[number], state));
    }

    fn open(self: &Arc<Self>, number: usize, file: u32) {
        let user = User::new(self, file);
        self.kernel[number].store(file, Ordering::Release);
        self.set(number, user.into_state());
    }

    /// Has the kernel close or replace a number, after which it says `file` of it.
    fn change(self: &Arc<Self>, number: usize, file: u32, state: u32) {
        let word = &self.words[number];
        let (before, mark) = begin(word);
        self.kernel[number].swap(file, Ordering::AcqRel);
        self.let_go(before);
        if let Some(old) = end(word, mark, state) {
            self.let_go(state);
            self.let_go(old);
        }
    }

    fn close(self: &Arc<Self>, number: usize) {
        self.change(number, CLOSED, UNKNOWN);
    }

    /// To be called when the other threads have ended: what is known of a number is what the kernel says, and
    /// when all numbers are closed, all files are released.
    fn check(self: &Arc<Self>) {
        for number in 0..self.words.len() {
            let file = self.kernel[number].load(Ordering::Acquire);
            assert_eq!(self.look(number), if file == THEIRS { CLOSED } else { file });
            self.close(number);
        }
        assert!(self.open.lock().unwrap().is_empty(), "all files are released");
        assert!(self.entries.iter().all(|entry| Cell::load(&entry.users, Ordering::Acquire) == 0));
    }
}

/// Runs `other` beside `main` in every interleaving, from a table that `prepare` makes. Returns what came of
/// `main`.
fn explore<T: Ord + Send + 'static>(
    prepare: fn(&Arc<Table>),
    other: fn(&Arc<Table>),
    main: fn(&Arc<Table>) -> T,
) -> BTreeSet<T> {
    explore_within(None, prepare, other, main)
}

/// The same, but only those interleavings in which a thread is stopped at most so many times before it waits.
fn explore_within<T: Ord + Send + 'static>(
    preemptions: Option<usize>,
    prepare: fn(&Arc<Table>),
    other: fn(&Arc<Table>),
    main: fn(&Arc<Table>) -> T,
) -> BTreeSet<T> {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let into = seen.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let table = Table::new();
        prepare(&table);
        let thread = {
            let table = table.clone();
            thread::spawn(move || other(&table))
        };
        let came_of_it = main(&table);
        thread.join().unwrap();
        into.lock().unwrap().insert(came_of_it);
        table.check();
    });
    std::mem::take(&mut *seen.lock().unwrap())
}

#[test]
fn a_lookup_beside_a_close_gets_the_file_or_nothing_in_every_interleaving() {
    let seen = explore(|table| table.open(0, A), |table| table.close(0), |table| table.look(0));
    assert_eq!(seen, [CLOSED, A].into());
}

#[test]
fn a_lookup_never_gets_the_file_that_took_over_the_entry_in_every_interleaving() {
    let reuse = |table: &Arc<Table>| {
        table.close(0);
        table.open(1, B);
    };
    let seen = explore(|table| table.open(0, A), reuse, |table| table.look(0));
    assert_eq!(seen, [CLOSED, A].into());
}

/// Every interleaving would take ten seconds.
#[test]
fn a_lookup_beside_close_and_open_of_its_number_gets_one_of_the_files_or_nothing() {
    let reopen = |table: &Arc<Table>| {
        table.close(0);
        table.open(0, B);
    };
    let seen = explore_within(Some(3), |table| table.open(0, A), reopen, |table| table.look(0));
    assert_eq!(seen, [CLOSED, A, B].into());
}

/// The other thread closes the number, and gets it again for another file in a way that does not tell for
/// which one.
#[test]
fn what_was_found_out_about_a_number_is_not_written_where_it_is_another_in_every_interleaving() {
    let receive = |table: &Arc<Table>| {
        table.close(0);
        table.kernel[0].store(B, Ordering::Release);
        table.set(0, UNKNOWN);
    };
    let inherited = |table: &Arc<Table>| table.kernel[0].store(A, Ordering::Release);
    let seen = explore(inherited, receive, |table| table.look(0));
    assert_eq!(seen, [CLOSED, A, B].into());
}

#[test]
fn two_changes_of_one_number_leave_what_the_kernel_says_in_every_interleaving() {
    let prepare = |table: &Arc<Table>| {
        table.kernel[0].store(THEIRS, Ordering::Release);
        table.set(0, FOREIGN);
        table.open(1, A);
    };
    let replace = |table: &Arc<Table>| {
        let user = table.find(1).expect("nobody closes it");
        table.change(0, A, user.into_state());
    };
    explore(prepare, replace, |table| table.close(0));
}

#[test]
fn an_open_may_get_the_number_of_a_close_that_is_still_under_way_in_every_interleaving() {
    let open = |table: &Arc<Table>| {
        let free = table.kernel[0].compare_exchange(CLOSED, B, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if free {
            table.set(0, User::new(table, B).into_state());
        }
        free
    };
    let seen = explore(|table| table.open(0, A), |table| table.close(0), open);
    assert_eq!(seen, [false, true].into());
}

/// As when one thread duplicates the descriptor of a log, and another one puts a new log in its place. Every
/// interleaving would take ten seconds.
#[test]
fn a_duplicate_stands_for_the_file_that_the_kernel_duplicated() {
    let rotate = |table: &Arc<Table>| {
        let user = User::new(table, B);
        table.change(0, B, user.into_state());
    };
    let duplicate = |table: &Arc<Table>| {
        let word = &table.words[0];
        let held = table.find(0);
        let before = Cell::load(word, Ordering::Acquire);
        let file = table.kernel[0].load(Ordering::Acquire);
        table.kernel[1].store(file, Ordering::Release);
        let after = Cell::load(word, Ordering::Acquire);
        let state = duplicated(before, after, held.as_ref().map(|user| user.1));
        if state >= FIRST_ENTRY {
            std::mem::forget(held);
        }
        table.set(1, state);
        (file, state == UNKNOWN)
    };
    let seen = explore_within(Some(3), |table| table.open(0, A), rotate, duplicate);
    assert_eq!(seen, [(A, false), (A, true), (B, false), (B, true)].into());
}

#[test]
fn a_doubt_loses_no_change_of_the_number_in_every_interleaving() {
    let doubted = |table: &Arc<Table>| {
        let word = &table.words[0];
        doubt(word);
        trust(word, Cell::load(word, Ordering::Acquire));
    };
    let reopen = |table: &Arc<Table>| {
        table.close(0);
        table.open(0, B);
    };
    explore(|table| table.open(0, A), doubted, reopen);
}
