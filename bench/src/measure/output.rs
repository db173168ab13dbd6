//! Standard output, which may be closed or full.

use super::failure::{Failing, Failure};
use std::io::Write;

/// Writes a line to standard output.
pub fn write_line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let done = writeln!(out, "{text}").and_then(|()| out.flush());
    done.failing("standard output cannot be written")
}
