//! `vs-kernel`: the same program on the same RAM, with the kernel's swap and with overspill, in
//! turn ([`crate::work::vs_kernel`]).
//!
//! [`args`] are the options, [`plan`] is all that is measured in order, [`declared`] what is told
//! of it and what is to be reached, [`ram`] how much RAM each gets, [`mod@compare`] measures it in
//! [`round`]s, [`notes`] tells what the figures do not, [`page`] writes a page. [`own`] is a
//! command of the user's.

mod args;
mod compare;
mod declared;
mod notes;
mod own;
mod page;
mod plan;
mod ram;
mod round;

pub use args::{Args, Meant, Sides, meant};
pub use compare::compared;
pub use declared::LADDER;
pub use plan::case;

use crate::measure::*;
use crate::model::*;
use crate::render::OutFile;

pub fn run(args: &Args, rounds: Option<u32>) -> Result<Findings, Failure> {
    let html = args.html.as_deref().map(|path| OutFile::open("page", path)).transpose()?;
    let mut findings = if args.command.is_empty() {
        compared(&LADDER, &args.sides, rounds, plan::plan(args), None)?.0
    } else {
        own::run(args, rounds)?
    };
    if args.overcommit.len() * args.contents.len() * args.threads.len() > 1 {
        findings.groups = &["overcommit", "contents", "threads", "workload", "peer"];
    }
    if let Some(file) = html {
        page::write(file, &command_line(), &findings)?;
    }
    Ok(findings)
}

/// What the user typed, as a line that a shell reads the same way.
fn command_line() -> String {
    let plain = |word: &str| {
        !word.is_empty()
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c))
    };
    let quoted = |word: String| {
        if plain(&word) { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    let words = std::env::args_os().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    ["sudo".to_owned(), "overspill-bench".to_owned()]
        .into_iter()
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}
