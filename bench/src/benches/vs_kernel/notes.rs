//! What the figures alone do not tell: how RAM was made equal, and what was left out.

use super::ram::Ram;
use crate::measure::*;
use crate::model::*;
use crate::work::vs_kernel::case::{Kind, Peer, Program, Setting, Variant};
use clap::ValueEnum;
use std::collections::BTreeMap;

/// What of the memory in use a peer takes in RAM where swapping gains nothing.
const AS_MUCH: f64 = 0.9;

/// The notes, a line each; `left_out` says why a peer or a program was not measured, `busy` how
/// many processes ran or waited for a processor or a disk, on average over a minute: before this
/// began, when it was the work of others, and at the end.
pub fn of(
    cases: &[Case<Kind>],
    rows: &[Row],
    ram: &Ram,
    left_out: &BTreeMap<String, String>,
    busy: [f64; 2],
) -> Vec<String> {
    let peers: Vec<(&Setting, Option<&Row>)> =
        cases.iter().filter_map(|case| peer(case, rows)).collect();
    let other_codec = |row: &Row| row.get("same_codec").is_some_and(|same| same.min < 1.0);
    let codec = rows.iter().any(other_codec).then(|| {
        "This kernel has no lz4 for zswap, which compressed with what it has by default.".to_owned()
    });
    let same_ram = peers.iter().any(|(_, row)| row.is_some()).then(|| SAME_RAM.to_owned());
    let mut notes: Vec<String> =
        [same_ram, not_packed(&peers, ram), raised(&peers, ram), codec, others(busy)]
            .into_iter()
            .flatten()
            .collect();
    for (name, reason) in left_out {
        let is_peer = Peer::value_variants().iter().any(|peer| peer.to_string() == *name);
        let whose = if is_peer { "The kernel's " } else { "" };
        let reason = reason.trim_end_matches('.');
        notes.push(format!("{whose}{name} was left out, or in some rounds: {reason}."));
    }
    notes
}

/// The setting and the row of a peer, if a case is one.
fn peer<'a>(case: &'a Case<Kind>, rows: &'a [Row]) -> Option<(&'a Setting, Option<&'a Row>)> {
    let Kind::Work(setting, Variant::Peer) = &case.what else { return None };
    let is_its = |row: &&Row| {
        row.step == case.step
            && case.labels.iter().all(|(name, value)| row.labels.get(*name) == Some(value))
    };
    Some((setting, rows.iter().find(is_its)))
}

/// Why it may be compared.
const SAME_RAM: &str = "RAM is the same on both sides: overspill's budget is what the peer took in \
                        the same round, with its compressed pool outside of the cgroup, less what \
                        overspill takes beside its budget. Where its pages fit, the limit of the \
                        cgroup is lowered by the pool in the next round.";

/// Where a peer took as much RAM as there was memory to swap.
fn not_packed(peers: &[(&Setting, Option<&Row>)], ram: &Ram) -> Option<String> {
    let as_much = |(setting, row): &&(&Setting, Option<&Row>)| {
        let took = row.and_then(|row| row.get("ram_bytes_peak"));
        setting.overcommit > 1
            && took.is_some_and(|took| took.median >= AS_MUCH * ram.needs(setting.task) as f64)
    };
    let n = peers.iter().filter(as_much).count();
    (n > 0).then(|| {
        format!(
            "In {n} of the comparisons the peer took nearly as much RAM as there was memory in \
             use, or more: what it keeps does not pack, and there is little to swap."
        )
    })
}

/// Who got more than was asked for, because the kernel could not do with that.
fn raised(peers: &[(&Setting, Option<&Row>)], ram: &Ram) -> Option<String> {
    let more = |(setting, _): &(&Setting, Option<&Row>)| {
        let Setting { task, peer, overcommit, .. } = setting;
        let bytes = ram.raised_by(setting);
        let part = match task.program() {
            Some(Program::Own) => String::new(),
            _ => format!(" at {overcommit}x"),
        };
        (bytes > 0).then(|| format!("{task} with {peer}{part} got {} MiB more", mib(bytes as f64)))
    };
    let told: Vec<String> = peers.iter().filter_map(more).collect();
    (!told.is_empty()).then(|| {
        format!(
            "The kernel ended programs for want of memory, which then got more, and overspill as \
             much: {}.",
            told.join("; ")
        )
    })
}

fn others([began, ended]: [f64; 2]) -> Option<String> {
    let cpus = Machine::this().cpus;
    (began > cpus as f64 / 2.0).then(|| {
        format!(
            "Others were at work here: the load average was {} before this began and {} at the \
             end, on {cpus} processors. Elapsed times are those of a busy machine; processor \
             times suffer less.",
            short(began),
            short(ended)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::plan::case;
    use super::*;
    use crate::fixture::row;
    use crate::work::vs_kernel::case::Task;
    use overspill::units::Bytes;

    #[test]
    fn how_ram_was_made_equal_and_what_was_left_out_is_told() {
        let setting = |program, peer| Setting {
            task: Task::Program(program),
            peer,
            overcommit: 4,
            packing: None,
            threads: 1,
        };
        let settings = [setting(Program::Sort, Peer::Zram), setting(Program::Redis, Peer::File)];
        let cases = settings.map(|setting| case(Kind::Work(setting, Variant::Peer)));
        let total = f64::from(512 << 20);
        let rows = [
            row("peer", &cases[0].labels, &[("ram_bytes_peak", &[total])]),
            row("peer", &cases[1].labels, &[("ram_bytes_peak", &[1.0]), ("same_codec", &[0.0])]),
        ];
        let mut ram = Ram::new(Bytes(1 << 28), None);
        ram.raise(&settings[1]);
        let left_out = [("zswap", "it needs root."), ("cxx", "none")];
        let left_out = left_out.map(|(name, why)| (name.to_owned(), why.to_owned())).into();
        let notes = of(&cases, &rows, &ram, &left_out, [1e4, 1.0]);
        for (note, said) in notes.iter().zip([
            "RAM is the same on both sides",
            "In 1 of the comparisons",
            "redis with file at 4x got 16 MiB more.",
            "no lz4 for zswap",
            "the load average was 10,000 before",
            "cxx was left out",
            "The kernel's zswap was left out, or in some rounds: it needs root.",
        ]) {
            assert!(note.contains(said), "{said}: {note}");
        }
        assert_eq!(notes.len(), 7);
        assert!(of(&[], &[], &ram, &BTreeMap::new(), [0.0, 9.0]).is_empty());
    }
}
