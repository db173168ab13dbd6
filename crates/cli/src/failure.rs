//! Refusals: one sentence that says what to do, and an exit status.

use overspill::config::Baselines;
use overspill_os::probe::Simulated;
use std::io::Write;

/// Exit status for a command line or environment that makes no sense, as clap's.
pub const USAGE: u8 = 2;
/// Exit status of the commands that do not run a program, when they cannot do what they are asked.
pub const FAILED: u8 = 1;
/// Exit status of `overspill run --strict` when the program succeeded, and too much of its memory
/// was not managed.
pub const UNMANAGED: u8 = 123;
/// Exit status for overspill's own failures, as env(1) and timeout(1) have it.
pub const OWN: u8 = 125;
/// Exit status when the program was found and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// Exit status when the program was not found.
pub const NOT_FOUND: u8 = 127;

/// Why overspill stops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Exit status.
    pub status: u8,
    /// What is wrong and what to do about it, without a full stop.
    pub sentence: String,
}

impl Failure {
    /// A failure of overspill itself, or of what it needs.
    pub fn own(sentence: impl Into<String>) -> Failure {
        Failure { status: OWN, sentence: sentence.into() }
    }

    /// A command cannot do what it is asked.
    pub fn failed(sentence: impl Into<String>) -> Failure {
        Failure { status: FAILED, sentence: sentence.into() }
    }

    /// A mistake in how overspill was called.
    pub fn usage(sentence: impl Into<String>) -> Failure {
        Failure { status: USAGE, sentence: sentence.into() }
    }

    /// The program cannot be executed.
    pub fn not_executable(sentence: impl Into<String>) -> Failure {
        Failure { status: NOT_EXECUTABLE, sentence: sentence.into() }
    }

    /// The program does not exist.
    pub fn not_found(sentence: impl Into<String>) -> Failure {
        Failure { status: NOT_FOUND, sentence: sentence.into() }
    }
}

/// Says a sentence on standard error; one that is closed or full is no reason to stop.
pub fn say(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "overspill: {sentence}");
}

/// A misspelt `OVERSPILL_SIMULATE` or `OVERSPILL_BASELINES` would make the test that sets it pass
/// for nothing.
pub fn check_simulation() -> Result<(), Failure> {
    let list = std::env::var("OVERSPILL_BASELINES").unwrap_or_default();
    Baselines::default()
        .apply(&list)
        .map_err(|bad| Failure::usage(format!("OVERSPILL_BASELINES: {bad}")))?;
    let list = std::env::var("OVERSPILL_SIMULATE").unwrap_or_default();
    Simulated::parse(&list).map(drop).map_err(|word| {
        let known = Simulated::NAMES.join(", ");
        Failure::usage(format!("OVERSPILL_SIMULATE cannot be '{word}': choose from {known}"))
    })
}
