//! What the processes of a job have done, added up so that it never becomes less.
//!
//! The file of a process goes when it has ended, and when it executes another program: that counts
//! from zero in a file of its own. [`Done`] keeps what was there at the last look.

use overspill::stats::{Counter, DeviceSnapshot, Snapshot};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counters of which one at least is lower in a program that has begun anew. They are only added
/// to, and programs that do anything at all count one of them.
const GROWING: [Counter; 5] =
    [Counter::PgFault, Counter::ZeroFill, Counter::ZswpOut, Counter::PswpOut, Counter::PswpIn];

/// What was done with a swap device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    /// Bytes read.
    pub read_bytes: u64,
    /// Read operations.
    pub reads: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Write operations.
    pub writes: u64,
    /// Reads that failed for good.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Pages that came back other than they were written.
    pub checksum_errors: u64,
}

impl Traffic {
    fn add(&mut self, device: &DeviceSnapshot) {
        let bytes = |pages: u64| pages.saturating_mul(overspill::units::PAGE_SIZE as u64);
        for (sum, more) in [
            (&mut self.read_bytes, bytes(device.pages_read)),
            (&mut self.reads, device.reads),
            (&mut self.written_bytes, bytes(device.pages_written)),
            (&mut self.writes, device.writes),
            (&mut self.read_errors, device.read_errors),
            (&mut self.write_errors, device.write_errors),
            (&mut self.checksum_errors, device.checksum_errors),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// What is done with each swap device of a job, by its number there.
pub type Devices = BTreeMap<u32, Traffic>;

/// A job as it stands.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Living processes.
    pub living: u64,
    /// What all processes have done, and what the living hold.
    pub total: Snapshot,
    /// What they have done with each swap device.
    pub devices: Devices,
    /// What one of them had in use at most.
    pub peak: u64,
}

impl Sum {
    fn add_devices(&mut self, process: &Snapshot) {
        for device in &process.devices {
            self.devices.entry(device.id).or_default().add(device);
        }
    }

    fn add_done(&mut self, process: &Snapshot) {
        self.total.merge_done(process);
        self.add_devices(process);
    }
}

/// Whether another program has been executed: it has an engine of its own, and counts from zero
/// until that has begun. It may have done more than the one before by the time of the next look.
fn has_begun_anew(before: &Snapshot, now: &Snapshot) -> bool {
    let engines = [before.engine, now.engine];
    !engines.contains(&0) && engines[0] != engines[1]
        || GROWING.iter().any(|counter| now.get(*counter) < before.get(*counter))
}

/// What is done.
#[derive(Debug, Default)]
pub struct Done {
    /// By processes and programs that have ended.
    ended: Sum,
    /// By the others, when their files were looked at last.
    seen: BTreeMap<u32, Snapshot>,
}

impl Done {
    /// Notes what the file of a process says.
    pub fn look(&mut self, pid: u32, now: Snapshot) {
        if let Some(before) = self.seen.get(&pid).filter(|before| has_begun_anew(before, &now)) {
            self.ended.add_done(before);
        }
        self.seen.insert(pid, now);
    }

    /// Notes what the file of a process said that has ended. The file goes.
    pub fn take_in(&mut self, pid: u32, last: Snapshot) {
        self.look(pid, last);
        self.forget(|other| other != pid);
    }

    /// Notes which files there are: the program of one that is gone has ended.
    pub fn forget(&mut self, is_there: impl Fn(u32) -> bool) {
        for (_, last) in self.seen.extract_if(.., |pid, _| !is_there(*pid)) {
            self.ended.add_done(&last);
        }
    }

    /// All of it.
    pub fn sum(&self, lives: impl Fn(u32) -> bool) -> Sum {
        let mut sum = self.ended.clone();
        for (pid, process) in &self.seen {
            sum.peak = process.get(Counter::ChargedPeakBytes).max(sum.peak);
            if lives(*pid) {
                sum.living += 1;
                sum.total.merge(process);
                sum.add_devices(process);
            } else {
                sum.add_done(process);
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::stats::{DeviceFigure, DeviceIdentity, DeviceKind, FaultSource, Stats};
    use overspill::units::Bytes;

    /// A program that did so much, and holds ten bytes.
    fn program(faults: u64, reads: u64) -> Snapshot {
        let stats = Stats::anonymous().unwrap();
        stats.add(Counter::PgFault, faults);
        stats.set(Counter::ChargedBytes, 10);
        (0..faults).for_each(|_| stats.fault_ns(FaultSource::Zero, 5));
        stats.device(0).describe(DeviceIdentity {
            path: "/a".as_ref(),
            kind: DeviceKind::File,
            label: "",
            uuid: None,
            priority: Some(1),
            pages: 100,
            id: 7,
        });
        stats.device(0).add(DeviceFigure::Reads, reads);
        stats.device(0).add(DeviceFigure::PagesRead, 2 * reads);
        stats.snapshot()
    }

    fn told(done: &Done, lives: impl Fn(u32) -> bool) -> [u64; 6] {
        let sum = done.sum(lives);
        let device = sum.devices.get(&7).copied().unwrap_or_default();
        let counters = [Counter::PgFault, Counter::ChargedBytes].map(|c| sum.total.get(c));
        let faults = sum.total.latency.all().count();
        [sum.living, counters[0], counters[1], faults, device.reads, device.read_bytes]
    }

    #[test]
    fn what_is_done_stays_when_a_program_ends_or_executes_another() {
        let mut done = Done::default();
        done.look(1, program(5, 1));
        done.look(2, program(7, 2));
        assert_eq!(told(&done, |_| true), [2, 12, 20, 12, 3, 6 * 4096]);
        // The file of one that has ended is still there, and then is not.
        assert_eq!(told(&done, |pid| pid == 1), [1, 12, 10, 12, 3, 6 * 4096]);
        done.take_in(2, program(8, 2));
        assert_eq!(told(&done, |pid| pid == 1), [1, 13, 10, 13, 3, 6 * 4096]);
        // Another program has begun, which counts from zero.
        done.look(1, program(1, 0));
        assert_eq!(told(&done, |_| true), [1, 14, 10, 14, 3, 6 * 4096]);
        // It executes one that has no file yet, and then has.
        done.forget(|_| false);
        assert_eq!(told(&done, |_| true), [0, 14, 0, 14, 3, 6 * 4096]);
        done.look(1, program(4, 1));
        done.look(1, program(6, 1));
        assert_eq!(told(&done, |_| true), [1, 20, 10, 20, 4, 8 * 4096]);
        // One that has done more than the program before it when it is seen first.
        done.look(1, Snapshot { engine: 100, ..program(6, 1) });
        assert_eq!(told(&done, |_| true), [1, 20, 10, 20, 4, 8 * 4096]);
        done.look(1, Snapshot { engine: 101, ..program(9, 1) });
        assert_eq!(told(&done, |_| true), [1, 29, 10, 29, 5, 10 * 4096]);
        assert_eq!(Bytes(done.sum(|_| true).peak), Bytes(0));
    }
}
