//! `vs-kernel`: the same program on the same RAM, with the kernel's swap and with overspill, in
//! turn ([`crate::work::vs_kernel`]).
//!
//! [`args`] are the options, [`plan`] is all that is measured in order,
//! [`declared`] what is told of it and what is to be reached, [`ram`] how much RAM each gets,
//! [`round`] measures, [`notes`] tells what the figures do not, [`page`] writes a page. [`own`] is
//! a command of the user's.

mod args;
mod declared;
mod notes;
mod own;
mod page;
mod plan;
mod ram;
mod round;

pub use args::{Args, Sides};
pub use declared::LADDER;
#[cfg(test)]
pub use declared::OWN;
pub use plan::case;

use crate::machine::*;
use crate::measure::*;
use crate::model::*;
use crate::render::OutFile;
use crate::work::vs_kernel::case::{Kind, Peer, Program};
use crate::work::vs_kernel::program::Inputs;
use crate::work::vs_kernel::{beside, peer, program};
use overspill::units::Bytes;
use own::Own;
use plan::Setup;
use ram::Ram;
use round::{Rounds, TIME_BY_DEFAULT};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

/// The least that tells anything: at four times overcommit the budget is 8 MiB.
const SIZE_MIN: Bytes = Bytes(32 << 20);

pub fn run(args: &Args) -> Result<Findings, Failure> {
    let html = args.html.as_deref().map(|path| OutFile::open("page", path)).transpose()?;
    let mut findings = if args.command.is_empty() {
        compared(Compared {
            ladder: &LADDER,
            sides: &args.sides,
            size: args.sides.size(),
            rounds: args.common.rounds,
            cases: plan::plan(args),
            own: None,
        })?
    } else {
        own::run(args)?
    };
    if args.overcommit.len() * args.contents.len() * args.threads.len() > 1 {
        findings.groups = &["overcommit", "contents", "threads", "workload", "peer"];
    }
    if let Some(file) = html {
        page::write(file, &command_line(), &findings)?;
    }
    Ok(findings)
}

/// What is to be compared.
pub struct Compared<'a> {
    /// What is told of it.
    pub ladder: &'static Ladder,
    pub sides: &'a Sides,
    /// Memory that is worked on.
    pub size: Bytes,
    pub rounds: Option<u32>,
    pub cases: Vec<Case<Kind>>,
    /// The command of the user's, if it is that.
    pub own: Option<&'a Own>,
}

/// Measures all cases in turn that can be measured here, and tells what a ladder declares of them.
pub fn compared(job: Compared<'_>) -> Result<Findings, Failure> {
    let Compared { ladder, sides, size, rounds, mut cases, own } = job;
    if size < SIZE_MIN {
        match own {
            Some(_) => fail!(
                "the command takes {size} by itself, too little to tell anything: give one that \
                 takes {SIZE_MIN} or more"
            ),
            None => fail!("{size} is too little to tell anything: give --size {SIZE_MIN} or more"),
        }
    }
    let began = Instant::now();
    let swap_dir = SwapDir::find(sides.dir.as_deref())?;
    // All of it may be in memory at once, packed or not.
    memory_for(size, size.0 + size.0 / 4)?;
    swap_dir.has_room(size, 2 * size.0, "--dir")?;
    let command = command()?;
    let busy_before = host::load_average();
    // 1. What can be measured here.
    let left_out = missing(&cases);
    cases.retain(|case| !left_out.keys().any(|name| case.what.needs(name)));
    let programs: Vec<Program> = cases.iter().filter_map(|case| case.what.program()).collect();
    let words = own.map_or(Vec::new(), |own| own.words.clone());
    let inputs = Inputs::make(&programs, &swap_dir.dir, size.0, words)?;
    // 2. All of it, in turn.
    let setup = Setup { sides, size, rounds, swap_dir: &swap_dir, command, inputs };
    let mut seen = Rounds::new(began, Ram::new(size, own.map(|own| own.memory)), left_out);
    own.inspect(|own| seen.saw_alone(Program::Own, &own.native));
    let measured = ladder.measure(&cases, rounds, |case| seen.measure(&setup, case))?;
    drop(setup);
    // 3. What was found.
    let busy = [busy_before, host::load_average()];
    let settings = json!({
        "size_bytes": size.0,
        "dir": swap_dir.to_string(),
        "pinned": false,
        "delivery": "thread and signal, by step",
        "settings": sides.set,
        "load_average": busy,
        "left_out": by_name(seen.left_out.iter().map(|(name, why)| (name, why.as_str()))),
    });
    let mut findings = Findings::of(ladder, measured, settings);
    tell(size, &cases, &seen, busy, &mut findings);
    own.inspect(|own| own::tell(own, &seen, &mut findings));
    Ok(findings)
}

/// Adds what the figures do not tell.
fn tell(size: Bytes, cases: &[Case<Kind>], seen: &Rounds, busy: [f64; 2], findings: &mut Findings) {
    let Rounds { ram, left_out, failed, late, .. } = seen;
    findings.notes = notes::of(cases, &findings.rows, ram, left_out, busy);
    if !late.is_empty() {
        findings.notes.push(format!(
            "{} of {} were left out, as this would have taken more than {} s on this machine: \
             --rounds 1 measures all.",
            late.len(),
            cases.len(),
            TIME_BY_DEFAULT.as_secs()
        ));
    }
    findings.subject = format!("{size} of memory beside the kernel's swap");
    findings.failed = (!failed.is_empty()).then(|| Failure::new(failed.join("; ")));
}

/// What this machine lacks, by the name of the peer or the program that it is for.
fn missing(cases: &[Case<Kind>]) -> BTreeMap<String, String> {
    let of_peer = |one| Some((one, kernel_swap::missing().or_else(|| peer::missing(one))?));
    let of_program = |one| Some((one, program::missing(one)?));
    let peers: BTreeSet<Peer> = cases.iter().filter_map(|case| case.what.peer()).collect();
    let programs: BTreeSet<Program> = cases.iter().filter_map(|case| case.what.program()).collect();
    let peers = peers.into_iter().filter_map(of_peer);
    peers
        .map(|(peer, why)| (peer.to_string(), why))
        .chain(programs.into_iter().filter_map(of_program).map(|(one, why)| (one.to_string(), why)))
        .collect()
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

/// The `overspill` that programs run under: what `OVERSPILL_BIN` names, or the one beside this
/// program.
fn command() -> Result<PathBuf, Failure> {
    match std::env::var_os("OVERSPILL_BIN") {
        Some(path) => Ok(path.into()),
        None => beside("overspill"),
    }
}
