//! A comparison: what can be measured here of what is to be, all of it in turn, and what is told.

use super::args::Sides;
use super::notes;
use super::plan::Setup;
use super::ram::Ram;
use super::round::{Rounds, TIME_BY_DEFAULT};
use crate::machine::*;
use crate::measure::*;
use crate::model::*;
use crate::work::vs_kernel::case::{Kind, Peer, Program};
use crate::work::vs_kernel::{peer, program};
use overspill::units::Bytes;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// The least that tells anything: at four times overcommit the budget is 8 MiB.
const SIZE_MIN: Bytes = Bytes(32 << 20);

/// A command of the user's, and what is known of it beforehand.
#[derive(Debug)]
pub struct Own {
    pub words: Vec<String>,
    /// Memory that it takes.
    pub size: Bytes,
    /// The RAM that it gets.
    pub memory: Bytes,
    /// What it took by itself, if that was measured.
    pub native: Sample,
}

/// Measures all cases in turn that can be measured here, of a command of the user's if `own` is
/// one, and tells what a ladder declares of them; and what was seen besides.
pub fn compared(
    ladder: &'static Ladder,
    sides: &Sides,
    rounds: Option<u32>,
    mut cases: Vec<Case<Kind>>,
    own: Option<&Own>,
) -> Result<(Findings, Rounds), Failure> {
    let size = own.map_or_else(|| sides.size(), |own| own.size);
    if size < SIZE_MIN {
        match own {
            Some(_) => fail!(
                "the command takes {size} by itself, too little to tell anything: give one that \
                 takes {SIZE_MIN} or more"
            ),
            None => fail!("{size} is too little to tell anything: give --size {SIZE_MIN} or more"),
        }
    }
    let until = rounds.is_none().then(|| Instant::now() + TIME_BY_DEFAULT);
    // All of it may be in memory at once, packed or not.
    memory_for(size, size.0 + size.0 / 4)?;
    let busy_before = host::load_average();
    // 1. What can be measured here.
    let left_out = missing(&cases);
    cases.retain(|case| !left_out.keys().any(|name| case.what.needs(name)));
    let programs: Vec<Program> = cases.iter().filter_map(|case| case.what.program()).collect();
    let words = own.map_or(Vec::new(), |own| own.words.clone());
    let setup = Setup::new(sides, size, &programs, words)?;
    // 2. All of it, in turn.
    let mut seen = Rounds::new(until, Ram::new(size, own.map(|own| own.memory)), left_out);
    own.inspect(|own| seen.saw_alone(Program::Own, &own.native));
    let findings = ladder.measure(&cases, rounds, |case| seen.measure(&setup, case))?;
    // 3. What was found.
    let busy = [busy_before, host::load_average()];
    let mut findings = findings.with(json!({
        "size_bytes": size.0,
        "dir": setup.swap_dir.to_string(),
        "pinned": false,
        "delivery": "thread and signal, by step",
        "settings": sides.set,
        "load_average": busy,
        "left_out": by_name(seen.left_out.iter().map(|(name, why)| (name, why.as_str()))),
    }));
    tell(size, &cases, &seen, busy, &mut findings);
    Ok((findings, seen))
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
