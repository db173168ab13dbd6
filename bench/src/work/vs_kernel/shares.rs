//! What each of the busy processes of a job has in memory, to tell how they share it.

use crate::machine::*;
use crate::measure::*;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// The program of a job's processes ([`super::program`]) as the kernel names it, the option that
/// busy ones have, and that of the one that only waits for others.
const NAME: &str = "overspill-load";
const BUSY: &str = "--passes";
const WAITS: &str = "--processes";
/// Until when they are looked at, and how often: a job may end sooner.
const UNTIL: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What was seen while all of them were there.
#[derive(Debug)]
pub struct Shares {
    began: Instant,
    next: Duration,
    /// By process, what it had at all looks together.
    bytes: BTreeMap<u32, u64>,
    looks: u64,
}

impl Shares {
    pub fn new() -> Shares {
        Shares { began: Instant::now(), next: Duration::ZERO, bytes: BTreeMap::new(), looks: 0 }
    }

    /// Looks at the processes of a cgroup, if it is time to.
    pub fn look(&mut self, cgroup: &Cgroup) {
        let now = self.began.elapsed();
        if now > UNTIL || now < self.next {
            return;
        }
        self.next = now + LOOK_EVERY;
        let seen = |process| Some((process, resident(process)?));
        self.add(cgroup.processes().into_iter().filter_map(seen).collect());
    }

    fn add(&mut self, seen: BTreeMap<u32, u64>) {
        if seen.len() < self.bytes.len() {
            return;
        }
        if seen.len() > self.bytes.len() {
            (self.bytes, self.looks) = (BTreeMap::new(), 0);
        }
        self.looks += 1;
        seen.into_iter()
            .for_each(|(process, bytes)| *self.bytes.entry(process).or_default() += bytes);
    }

    /// Tells the shares of a job with `limit` bytes of RAM, on average.
    pub fn tell(&self, limit: u64, sample: &mut Sample) {
        let bytes = || self.bytes.values().map(|bytes| *bytes as f64 / self.looks as f64);
        let (min, max) = (bytes().fold(f64::INFINITY, f64::min), bytes().fold(0.0, f64::max));
        if self.looks == 0 || self.bytes.is_empty() {
            return;
        }
        let mean = bytes().sum::<f64>() / self.bytes.len() as f64;
        if limit > 0 {
            let part = |bytes: f64| bytes / limit as f64;
            // What the busy process with the least, and with the most, has of the RAM.
            add(sample, [("share_min", part(min)), ("share_max", part(max))]);
        }
        // By how much these differ, as a part of the mean.
        add(sample, [("share_spread", (max - min) / mean.max(1.0))]);
    }
}

/// Anonymous memory of a process, in bytes, if it is a busy one of a job.
fn resident(process: u32) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{process}/{name}")).ok();
    let line = read("cmdline")?;
    let has = |option: &str| line.split('\0').any(|word| word == option);
    if read("comm")?.trim() != NAME || !has(BUSY) || has(WAITS) {
        return None;
    }
    entry::<u64>(&read("status")?, "RssAnon:").map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_parts_of_the_ram_and_differ_by_a_part_of_their_mean() {
        let mut shares = Shares::new();
        let told = |shares: &Shares| {
            let mut sample = Sample::new();
            shares.tell(200, &mut sample);
            ["share_min", "share_max", "share_spread"].map(|name| sample.get(name).copied())
        };
        assert_eq!(told(&shares), [None; 3]);
        // Only looks at all of them count; of these the mean does.
        shares.add([(1, 1000)].into());
        shares.add([(1, 40), (2, 120), (3, 90)].into());
        shares.add([(1, 60), (2, 80), (3, 90)].into());
        shares.add([(2, 1000), (3, 1000)].into());
        assert_eq!(told(&shares), [0.25, 0.5, 0.625].map(Some));
        assert_eq!(resident(std::process::id()), None, "it is another program");
    }
}
