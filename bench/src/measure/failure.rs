//! Why a bench could not measure: one sentence that says what to do.

use std::fmt;
use std::io::Write;

/// What every line on standard error begins with.
const PREFIX: &str = "overspill-bench: ";

/// Why a bench could not measure, without a full stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure(String);

impl Failure {
    pub fn new(sentence: impl Into<String>) -> Failure {
        Failure(sentence.into())
    }

    /// An error of something else, in its own words.
    pub fn of(error: impl fmt::Display) -> Failure {
        Failure(error.to_string())
    }

    /// What [`Failure::say`] wrote to the standard error of another process; whatever else is there
    /// is kept.
    pub fn heard(text: &str) -> Failure {
        let text = text.trim();
        Failure(text.strip_prefix(PREFIX).unwrap_or(text).to_owned())
    }

    /// Puts what was being done in front.
    pub fn during(self, what: impl fmt::Display) -> Failure {
        Failure(format!("{what}: {}", self.0))
    }

    /// Says it on standard error; one that is closed or full is no reason to stop.
    pub fn say(&self) {
        let _ = writeln!(std::io::stderr(), "{PREFIX}{self}");
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A failure for the errors of others.
pub trait Failing<T> {
    /// Says what went wrong, in front of the error.
    fn failing(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Failing<T> for Result<T, E> {
    fn failing(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}

/// Writes a line to standard output, which may be closed or full.
pub fn write_line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let done = writeln!(out, "{text}").and_then(|()| out.flush());
    done.failing("standard output cannot be written")
}

/// Returns with a failure, whose sentence is formatted.
macro_rules! fail {
    ($($sentence:tt)*) => {
        return Err($crate::measure::Failure::new(format!($($sentence)*)))
    };
}
pub(crate) use fail;
