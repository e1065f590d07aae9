//! Printing that ends nobody.
//!
//! The standard library's macros panic when nobody reads any more (`bivouac verify NAME | head`), in the middle of
//! whatever the command is doing. In this crate, the macros of the same names take their place. Output that nobody wants
//! to read is dropped. If standard output takes no more for another reason (a full disk), the command does its work, and
//! says in the end that what it has printed is not all ([`complete`]).

use crate::error::Error;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::sync::{Mutex, PoisonError};

/// What standard output has failed with, if not because nobody reads.
static FAILED: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// Prints to standard output.
pub(crate) fn out(text: Arguments<'_>) {
    note(stdout().write_fmt(text));
}

/// Prints to standard error.
pub(crate) fn err(text: Arguments<'_>) {
    let _ = stderr().write_fmt(text);
}

fn note(written: std::io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Fails unless standard output has taken everything, or nobody wanted it.
pub(crate) fn complete() -> Result<(), Error> {
    note(stdout().flush());
    match FAILED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(cause) => Err(Error::System { what: "cannot write to standard output".into(), cause }),
        None => Ok(()),
    }
}

macro_rules! print {
    ($($text:tt)*) => { $crate::printing::out(format_args!($($text)*)) };
}

macro_rules! println {
    ($($text:tt)*) => { $crate::printing::out(format_args!("{}\n", format_args!($($text)*))) };
}

macro_rules! eprint {
    ($($text:tt)*) => { $crate::printing::err(format_args!($($text)*)) };
}

macro_rules! eprintln {
    () => { $crate::printing::err(format_args!("\n")) };
    ($($text:tt)*) => { $crate::printing::err(format_args!("{}\n", format_args!($($text)*))) };
}
