//! The first line of a script, read as the kernel reads it.

use crate::vfs::Errno;

/// How much of a program the kernel looks at, bytes.
pub const HEAD: usize = 256;
/// The kernel's limit for interpreters that are scripts themselves.
pub const MAX_DEPTH: usize = 5;

/// An interpreter and its one argument.
#[derive(PartialEq, Eq, Debug)]
pub struct Line<'a> {
    /// The interpreter's path.
    pub interpreter: &'a [u8],
    /// Everything behind it, in one piece, if there is something.
    pub argument: Option<&'a [u8]>,
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Parses the head of a file (up to [`HEAD`] bytes, less only if the file is shorter). `None`: not a script.
/// ENOEXEC: no interpreter is named, or its name does not end within the head.
pub fn parse(head: &[u8]) -> Result<Option<Line<'_>>, Errno> {
    const NOEXEC: Errno = Errno(libc::ENOEXEC as u16);
    let Some(rest) = head.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let end = rest.iter().position(|&byte| byte == b'\n');
    let whole = end.is_some() || head.len() < HEAD;
    // The kernel pads a shorter file with NULs, and a NUL ends the line as well.
    let line = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
    let line = line.split(|&byte| byte == 0).next().unwrap_or_default();
    let start = line.iter().position(|&byte| !is_blank(byte)).ok_or(NOEXEC)?;
    let line = line.get(start..).unwrap_or_default();
    let name_end = line.iter().position(|&byte| is_blank(byte));
    if !whole && name_end.is_none() {
        return Err(NOEXEC);
    }
    let (interpreter, behind) = line.split_at(name_end.unwrap_or(line.len()));
    let begin = behind.iter().position(|&byte| !is_blank(byte));
    let argument = begin.and_then(|begin| {
        let text = behind.get(begin..)?;
        let last = text.iter().rposition(|&byte| !is_blank(byte))?;
        text.get(..=last)
    });
    Ok(Some(Line { interpreter, argument }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<'a>(interpreter: &'a [u8], argument: Option<&'a [u8]>) -> Result<Option<Line<'a>>, Errno> {
        Ok(Some(Line { interpreter, argument }))
    }

    #[test]
    fn argument_is_one_piece_without_outer_blanks() {
        assert_eq!(
            parse(b"#! /usr/bin/env  python3 -u \t\nrest"),
            line(b"/usr/bin/env", Some(b"python3 -u"))
        );
        assert_eq!(parse(b"#!/bin/sh\n"), line(b"/bin/sh", None));
        assert_eq!(parse(b"#!/bin/sh"), line(b"/bin/sh", None));
    }

    #[test]
    fn programs_and_texts_are_no_scripts() {
        assert_eq!(parse(b"\x7fELF"), Ok(None));
        assert_eq!(parse(b""), Ok(None));
    }

    #[test]
    fn line_without_interpreter_is_refused() {
        assert_eq!(parse(b"#!  \n"), Err(Errno(libc::ENOEXEC as u16)));
    }

    #[test]
    fn interpreter_truncated_at_the_limit_is_refused_but_argument_is_truncated() {
        let long = [b"#!/".as_slice(), &[b'a'; HEAD - 3]].concat();
        assert_eq!(parse(&long), Err(Errno(libc::ENOEXEC as u16)));
        let argument = [b"#!/bin/sh ".as_slice(), &[b'a'; HEAD - 10]].concat();
        assert_eq!(parse(&argument), line(b"/bin/sh", Some(&[b'a'; HEAD - 10])));
    }
}
