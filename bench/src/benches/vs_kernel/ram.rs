//! How much RAM each gets: overspill what the peer took just before, all in all.
//!
//! The pools of zram and zswap lie outside of the cgroup whose limit is set, so that what a peer
//! takes is known only afterwards. Its limit is lowered by that in the next round, so that it comes
//! to what was asked for. Where its pages do not fit so, packed as they are, the limit stays, the
//! peer takes more RAM than was asked for, and overspill gets as much.

use super::case::{Setting, Step, Task};
use crate::measure::Sample;
use crate::work::vs_kernel::figures;
use crate::work::vs_kernel::names::Program;
use overspill::units::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// The least that a limit is lowered to, as a share of what was asked for.
const LOWEST: u64 = 4;
/// What overspill takes beside its budget, until it is known, by step: the program, its tables, the
/// launcher.
const BESIDE: [u64; 4] = [0, 5 << 20, 5 << 20, 1 << 20];

/// What part of its RAM a peer gets more when it had too little to run with.
const RAISE: u64 = 4;
/// The least RAM that anything gets: a program that cannot keep what it runs from in memory only
/// waits for it.
const LEAST: u64 = 8 << 20;

/// What was seen so far.
#[derive(Debug)]
pub struct Ram {
    /// Memory that is accessed.
    size: Bytes,
    /// What programs took that had all that they wanted.
    alone: BTreeMap<Program, Alone>,
    seen: Vec<Seen>,
    /// How often a peer had too little to run with.
    raised: Vec<Setting>,
}

#[derive(Debug)]
struct Alone {
    bytes: u64,
    elapsed: Duration,
}

#[derive(Debug)]
struct Seen {
    setting: Setting,
    /// What the peer's pool took at most, and all of it.
    pool: u64,
    total: u64,
    /// What overspill took beside its budget, by step.
    beside: [u64; 4],
}

impl Ram {
    /// Where so much memory is accessed.
    pub fn new(size: Bytes) -> Ram {
        Ram { size, alone: BTreeMap::new(), seen: Vec::new(), raised: Vec::new() }
    }

    /// Takes note of a program that had all that it wanted.
    pub fn saw_alone(&mut self, program: Program, sample: &Sample) {
        if let (Some(bytes), Some(elapsed)) =
            (sample.get(figures::RAM), sample.get(figures::ELAPSED))
        {
            let elapsed = Duration::try_from_secs_f64(*elapsed).unwrap_or_default();
            self.alone.insert(program, Alone { bytes: *bytes as u64, elapsed });
        }
    }

    /// What a program took that had all that it wanted; zero before that is known.
    pub fn elapsed(&self, program: Program) -> Duration {
        self.alone.get(&program).map_or(Duration::ZERO, |alone| alone.elapsed)
    }

    /// Gives a peer more from now on: the kernel ended the program for want of memory.
    pub fn raise(&mut self, setting: &Setting) {
        self.raised.push(*setting);
    }

    /// So many more bytes than were asked for is what a setting gets, whose RAM was raised; 0 where
    /// it was not.
    pub fn raised_by(&self, setting: &Setting) -> u64 {
        self.asked(setting) - self.part(setting)
    }

    fn part(&self, setting: &Setting) -> u64 {
        (self.needs(setting.task) / u64::from(setting.overcommit)).max(LEAST)
    }

    fn asked(&self, setting: &Setting) -> u64 {
        let times = self.raised.iter().filter(|raised| *raised == setting).count();
        (0..times).fold(self.part(setting), |bytes, _| bytes + bytes / RAISE)
    }

    /// Memory that a task takes, in bytes.
    pub fn needs(&self, task: Task) -> u64 {
        task.program()
            .and_then(|program| self.alone.get(&program))
            .map_or(self.size.0, |alone| alone.bytes)
    }

    /// The limit or the budget of the next measurement.
    pub fn of(&self, setting: &Setting, step: Step) -> u64 {
        let asked = self.asked(setting);
        let lowest = (asked / LOWEST).max(LEAST);
        let seen = self.seen.iter().find(|seen| seen.setting == *setting);
        match (seen, step) {
            (Some(seen), Step::Peer) => {
                asked.checked_sub(seen.pool).filter(|lowered| *lowered >= lowest).unwrap_or(asked)
            }
            (None, Step::Peer) => asked,
            (Some(seen), step) if seen.total > 0 => {
                seen.total.saturating_sub(seen.beside[step as usize]).max(seen.total / 2)
            }
            (_, _) => asked,
        }
    }

    /// Takes note of a measurement.
    pub fn saw(&mut self, setting: &Setting, step: Step, sample: &Sample) {
        let get = |name: &str| sample.get(name).map(|value| *value as u64);
        let at = self.seen.iter().position(|seen| seen.setting == *setting).unwrap_or_else(|| {
            self.seen.push(Seen { setting: *setting, pool: 0, total: 0, beside: BESIDE });
            self.seen.len() - 1
        });
        let (seen, Some(total)) = (&mut self.seen[at], get(figures::RAM)) else { return };
        if step == Step::Peer {
            seen.pool = get(figures::POOL).unwrap_or(0);
            seen.total = total;
        } else {
            seen.beside[step as usize] = total.saturating_sub(get(figures::LIMIT).unwrap_or(total));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::figures as sample;
    use crate::work::vs_kernel::names::Peer;
    use overspill_bench::workload::{Packing, Workload};

    const MIB: u64 = 1 << 20;

    #[test]
    fn overspill_gets_what_the_peer_took_and_the_peer_less_next_time() {
        let setting = Setting {
            task: Task::Accesses(Workload::SeqRead),
            peer: Peer::Zram,
            overcommit: 2,
            packing: Some(Packing::Heap),
            threads: 1,
        };
        let mut ram = Ram::new(Bytes(200 * MIB));
        let saw = |ram: &mut Ram, step, figures: [(&str, u64); 2]| {
            ram.saw(&setting, step, &sample(figures.map(|(name, mib)| (name, (mib * MIB) as f64))));
        };
        assert_eq!(ram.of(&setting, Step::Peer), 100 * MIB);
        assert_eq!(
            ram.of(&setting, Step::Library),
            100 * MIB,
            "without a peer it is what was asked for"
        );
        saw(&mut ram, Step::Peer, [(figures::POOL, 30), (figures::RAM, 130)]);
        assert_eq!(ram.of(&setting, Step::Library), 129 * MIB);
        saw(&mut ram, Step::Library, [(figures::LIMIT, 124), (figures::RAM, 134)]);
        assert_eq!(
            ram.of(&setting, Step::Library),
            120 * MIB,
            "what it took beside its budget counts"
        );
        assert_eq!(ram.of(&setting, Step::OverspillThread), 125 * MIB, "of each step by itself");
        assert_eq!(ram.of(&setting, Step::Peer), 70 * MIB);
        saw(&mut ram, Step::Peer, [(figures::POOL, 90), (figures::RAM, 190)]);
        assert_eq!(ram.of(&setting, Step::Peer), 100 * MIB, "it would not fit");
        assert_eq!(ram.of(&Setting { threads: 2, ..setting }, Step::Peer), 100 * MIB);
    }

    #[test]
    fn a_program_gets_a_part_of_what_it_took_alone_and_nothing_gets_too_little_to_run() {
        let task = Task::Program(Program::Sort);
        let setting = Setting { task, peer: Peer::File, overcommit: 4, packing: None, threads: 1 };
        let mut ram = Ram::new(Bytes(200 * MIB));
        assert_eq!(ram.of(&setting, Step::Peer), 50 * MIB, "before it is known");
        let alone =
            |mib: u64| sample([(figures::RAM, (mib * MIB) as f64), (figures::ELAPSED, 2.0)]);
        ram.saw_alone(Program::Sort, &alone(400));
        assert_eq!(
            (ram.elapsed(Program::Sort), ram.elapsed(Program::Cxx)),
            (Duration::from_secs(2), Duration::ZERO)
        );
        assert_eq!((ram.needs(task), ram.of(&setting, Step::Peer)), (400 * MIB, 100 * MIB));
        ram.raise(&setting);
        ram.raise(&setting);
        assert_eq!(
            (ram.of(&setting, Step::Peer), ram.raised_by(&setting)),
            (156 * MIB + MIB / 4, 56 * MIB + MIB / 4)
        );
        let other = Setting { overcommit: 2, ..setting };
        assert_eq!((ram.of(&other, Step::Peer), ram.raised_by(&other)), (200 * MIB, 0));
        ram.saw_alone(Program::Sort, &alone(12));
        assert_eq!(ram.of(&other, Step::Peer), LEAST);
    }
}
