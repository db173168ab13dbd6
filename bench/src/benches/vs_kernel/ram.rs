//! How much RAM each gets: overspill what the peer took just before, all in all.
//!
//! The pools of zram and zswap lie outside of the cgroup whose limit is set, so that what a peer
//! takes is known only afterwards. Its limit is lowered by that in the next round, so that it comes
//! to what was asked for. Where its pages do not fit so, packed as they are, the limit stays, the
//! peer takes more RAM than was asked for, and overspill gets as much.

use crate::measure::*;
use crate::work::vs_kernel::case::{Program, Setting, Task, Variant};
use overspill::units::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// The least that a limit is lowered to, as a share of what was asked for.
const LOWEST: u64 = 4;
/// What overspill takes beside its budget, until it is known, by step: the program, its tables, the
/// launcher.
const BESIDE: [u64; 5] = [0, 5 << 20, 5 << 20, 5 << 20, 1 << 20];

/// What part of its RAM a peer gets more when it had too little to run with.
const RAISE: u64 = 4;
/// The least RAM that anything gets: a program that cannot keep what it runs from in memory only
/// waits for it.
pub const LEAST: u64 = 8 << 20;

/// What was seen so far.
#[derive(Debug)]
pub struct Ram {
    /// Memory that is accessed.
    size: Bytes,
    /// What anything gets, if that is not a part of what it needs.
    memory: Option<Bytes>,
    /// What programs took that had all that they wanted: bytes and time.
    alone: BTreeMap<Program, (u64, Duration)>,
    seen: BTreeMap<Setting, Seen>,
    /// How often a peer had too little to run with.
    raised: BTreeMap<Setting, u32>,
}

#[derive(Debug)]
struct Seen {
    /// What the peer's pool took at most, and all of it.
    pool: u64,
    total: u64,
    /// What overspill took beside its budget, by step.
    beside: [u64; 5],
}

impl Ram {
    /// Where so much memory is accessed, and all get the same if so much is given.
    pub fn new(size: Bytes, memory: Option<Bytes>) -> Ram {
        let (alone, seen, raised) = Default::default();
        Ram { size, memory, alone, seen, raised }
    }

    /// Takes note of a program that had all that it wanted.
    pub fn saw_alone(&mut self, program: Program, sample: &Sample) {
        if let (Some(bytes), Some(s)) = (sample.get("ram_bytes_peak"), sample.get("elapsed_s")) {
            let elapsed = Duration::try_from_secs_f64(*s).unwrap_or_default();
            self.alone.insert(program, (*bytes as u64, elapsed));
        }
    }

    /// What a program took that had all that it wanted; zero before that is known.
    pub fn elapsed(&self, program: Program) -> Duration {
        self.alone.get(&program).map_or(Duration::ZERO, |(_, elapsed)| *elapsed)
    }

    /// Gives a peer more from now on: the kernel ended the program for want of memory.
    pub fn raise(&mut self, setting: &Setting) {
        *self.raised.entry(*setting).or_default() += 1;
    }

    /// So many more bytes than were asked for is what a setting gets, whose RAM was raised; 0 where
    /// it was not.
    pub fn raised_by(&self, setting: &Setting) -> u64 {
        self.asked(setting) - self.part(setting)
    }

    fn part(&self, setting: &Setting) -> u64 {
        let part = || self.needs(setting.task) / u64::from(setting.overcommit);
        self.memory.map_or_else(part, |memory| memory.0).max(self.least(setting))
    }

    fn least(&self, setting: &Setting) -> u64 {
        setting.task.program().map_or(0, |program| program.least(self.size.0)).max(LEAST)
    }

    fn asked(&self, setting: &Setting) -> u64 {
        let times = self.raised.get(setting).copied().unwrap_or(0);
        (0..times).fold(self.part(setting), |bytes, _| bytes + bytes / RAISE)
    }

    /// Memory that a task takes, in bytes.
    pub fn needs(&self, task: Task) -> u64 {
        let alone = task.program().and_then(|program| self.alone.get(&program));
        alone.map_or(self.size.0, |(bytes, _)| *bytes)
    }

    /// The limit or the budget of the next measurement.
    pub fn of(&self, setting: &Setting, step: Variant) -> u64 {
        let asked = self.asked(setting);
        let least = self.least(setting);
        let lowest = (asked / LOWEST).max(least);
        match (self.seen.get(setting), step) {
            (Some(seen), Variant::Peer) => {
                asked.checked_sub(seen.pool).filter(|lowered| *lowered >= lowest).unwrap_or(asked)
            }
            (Some(seen), step) if seen.total > 0 => {
                let budget = seen.total.saturating_sub(seen.beside[step as usize]);
                budget.max(seen.total / 2).max(least)
            }
            (_, _) => asked,
        }
    }

    pub fn saw(&mut self, setting: &Setting, step: Variant, sample: &Sample) {
        let get = |name: &str| sample.get(name).map(|value| *value as u64);
        let none = Seen { pool: 0, total: 0, beside: BESIDE };
        let seen = self.seen.entry(*setting).or_insert(none);
        let Some(total) = get("ram_bytes_peak") else { return };
        if step == Variant::Peer {
            (seen.pool, seen.total) = (get("pool_bytes_peak").unwrap_or(0), total);
        } else {
            seen.beside[step as usize] = total.saturating_sub(get("limit_bytes").unwrap_or(total));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::figures;
    use crate::work::vs_kernel::case::Peer;
    use overspill_bench::workload::{Packing, Workload};

    const MIB: u64 = 1 << 20;

    #[test]
    fn overspill_gets_what_the_peer_took_and_the_peer_less_next_time() {
        let task = Task::Accesses(Workload::SeqRead);
        let packing = Some(Packing::Heap);
        let setting = Setting { task, peer: Peer::Zram, overcommit: 2, packing, threads: 1 };
        let mut ram = Ram::new(Bytes(200 * MIB), None);
        let saw = |ram: &mut Ram, step, name, mib: u64, all: u64| {
            let sample = figures(
                [(name, mib), ("ram_bytes_peak", all)]
                    .map(|(name, mib)| (name, (mib * MIB) as f64)),
            );
            ram.saw(&setting, step, &sample);
        };
        let mib = |ram: &Ram, step| ram.of(&setting, step) / MIB;
        assert_eq!([Variant::Peer, Variant::Library].map(|step| mib(&ram, step)), [100; 2]);
        saw(&mut ram, Variant::Peer, "pool_bytes_peak", 30, 130);
        assert_eq!(mib(&ram, Variant::Library), 129);
        saw(&mut ram, Variant::Library, "limit_bytes", 124, 134);
        assert_eq!(mib(&ram, Variant::Library), 120, "what it took beside its budget counts");
        assert_eq!(mib(&ram, Variant::OverspillThread), 125, "of each step by itself");
        assert_eq!(mib(&ram, Variant::Peer), 70);
        saw(&mut ram, Variant::Peer, "pool_bytes_peak", 90, 190);
        assert_eq!(mib(&ram, Variant::Peer), 100, "it would not fit");
        assert_eq!(ram.of(&Setting { threads: 2, ..setting }, Variant::Peer), 100 * MIB);
    }

    #[test]
    fn a_program_gets_a_part_of_what_it_took_alone_and_nothing_gets_too_little_to_run() {
        let task = Task::Program(Program::Sort);
        let setting = Setting { task, peer: Peer::File, overcommit: 4, packing: None, threads: 1 };
        let mut ram = Ram::new(Bytes(200 * MIB), None);
        assert_eq!(ram.of(&setting, Variant::Peer), 50 * MIB, "before it is known");
        let alone =
            |mib: u64| figures([("ram_bytes_peak", (mib * MIB) as f64), ("elapsed_s", 2.0)]);
        ram.saw_alone(Program::Sort, &alone(400));
        let elapsed = [Program::Sort, Program::Cxx].map(|program| ram.elapsed(program).as_secs());
        assert_eq!(elapsed, [2, 0]);
        assert_eq!((ram.needs(task), ram.of(&setting, Variant::Peer)), (400 * MIB, 100 * MIB));
        ram.raise(&setting);
        ram.raise(&setting);
        let raised = (ram.of(&setting, Variant::Peer), ram.raised_by(&setting));
        assert_eq!(raised, (156 * MIB + MIB / 4, 56 * MIB + MIB / 4));
        let other = Setting { overcommit: 2, ..setting };
        assert_eq!((ram.of(&other, Variant::Peer), ram.raised_by(&other)), (200 * MIB, 0));
        ram.saw_alone(Program::Sort, &alone(12));
        assert_eq!(ram.of(&other, Variant::Peer), LEAST);
        let given = Ram::new(Bytes(200 * MIB), Some(Bytes(70 * MIB)));
        assert_eq!(given.of(&other, Variant::Peer), 70 * MIB);
    }
}
