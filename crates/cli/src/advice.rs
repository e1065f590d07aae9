//! `advise`: what a Darshan log says about how to run a program. The Python package does the work.

use crate::args::AdviseArgs;
use crate::error::Error;
use crate::python;
use std::ffi::OsString;
use std::process::ExitCode;

/// `advise`.
pub fn advise(args: &AdviseArgs) -> Result<ExitCode, Error> {
    let mut words: Vec<OsString> = vec!["advise".into(), args.log.clone().into()];
    for results in &args.with {
        words.extend(["--with".into(), results.into()]);
    }
    if args.json {
        words.push("--json".into());
    }
    python::call(&words)
}
