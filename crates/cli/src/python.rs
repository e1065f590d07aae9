//! The analysis, which is a Python package: found, called, and its exit code made one of ours.

use crate::error::{Error, exit};
use std::ffi::OsString;
use std::process::{Command, ExitCode};

const PACKAGE: &str = "bivouac_analysis";
/// Modules of the directory that the command happens to be run in are none of the package's.
const HERE_IS_NO_PLACE: &str = "-P";
/// Says by exit code 3 that the package is not there.
const FIND: &str =
    "import importlib.util, sys; sys.exit(3 if importlib.util.find_spec('bivouac_analysis') is None else 0)";

/// Runs the package with these words. What it prints is printed.
pub fn call(words: &[OsString]) -> Result<ExitCode, Error> {
    let python = std::env::var_os("BIVOUAC_PYTHON").filter(|python| !python.is_empty());
    let python = python.unwrap_or_else(|| "python3".into());
    let shown = python.to_string_lossy().into_owned();
    let failed = |cause: std::io::Error| {
        Error::refused(
            format!("cannot run {shown}: {cause}"),
            "install Python 3, or set BIVOUAC_PYTHON to another interpreter",
        )
    };
    let found = Command::new(&python).args([HERE_IS_NO_PLACE, "-c", FIND]).status().map_err(failed)?;
    match found.code() {
        Some(0) => {}
        Some(3) => {
            return Err(Error::refused(
                format!("{shown} does not have the package {PACKAGE}"),
                format!(
                    "install it from the directory `python` of Bivouac's sources: {shown} -m pip install ./python"
                ),
            ));
        }
        _ => {
            return Err(Error::refused(
                format!("{shown} does not run as Python 3.11 or newer does ({found})"),
                "set BIVOUAC_PYTHON to a Python 3.11 or newer",
            ));
        }
    }
    let done =
        Command::new(&python).args([HERE_IS_NO_PLACE, "-m", PACKAGE]).args(words).status().map_err(failed)?;
    Ok(match done.code() {
        Some(0) => ExitCode::SUCCESS,
        Some(1) => ExitCode::from(exit::REFUSED),
        Some(2) => ExitCode::from(2),
        _ => ExitCode::from(exit::SYSTEM),
    })
}
