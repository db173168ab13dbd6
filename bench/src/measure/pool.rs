//! The pool that is measured, and what its counters say between two moments.

use super::failure::{Failing, Failure, fail};
use overspill::config::{Config, Delivery};
use overspill::units::{Bytes, PAGE_SIZE};
use overspill::{Pool, Region};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the process of a measurement of the engine is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request<W = ()> {
    /// Settings of the pool, as the engine reads them.
    pub settings: String,
    pub threads: usize,
    /// The budget in bytes.
    pub memory: u64,
    /// Bytes of the memory that is worked on.
    pub bytes: u64,
    /// The swap device, as the engine reads it.
    pub device: String,
    /// What else the bench needs to know.
    pub what: W,
}

impl<W> Request<W> {
    pub fn pool(&self) -> Result<Pool, Failure> {
        open(self.memory, Some(&self.device), &self.settings)
    }

    /// Pages of the memory that is worked on.
    pub fn pages(&self) -> u64 {
        self.bytes / PAGE_SIZE as u64
    }
}

/// A pool in signal delivery with a budget of `memory` bytes; `device` and `settings` are as the
/// engine reads them.
pub fn open(memory: u64, device: Option<&str>, settings: &str) -> Result<Pool, Failure> {
    let device = device.map(str::parse).transpose().map_err(Failure::of)?;
    let swap = device.into_iter().collect();
    let mut config =
        Config { memory: Bytes(memory), swap, delivery: Delivery::Signal, ..Config::default() };
    config.apply_with_baselines(settings).map_err(Failure::of)?;
    Pool::new(config).map_err(Failure::of)
}

pub fn map(pool: &Pool, bytes: u64) -> Result<Region<'_>, Failure> {
    pool.map(bytes as usize).failing(format_args!("the pool maps no {}", Bytes(bytes)))
}

/// Fails unless every page came back with what was written to it.
pub fn right(wrong: u64) -> Result<(), Failure> {
    if wrong > 0 {
        fail!("{wrong} pages came back with other content than was written");
    }
    Ok(())
}

pub type Counters = BTreeMap<&'static str, u64>;

/// A figure that is one counter for so many of another: name, counter, factor, other counter.
pub type Ratio = (&'static str, &'static str, f64, &'static str);

/// Counters at two moments.
#[derive(Clone, Debug)]
pub struct Counted {
    pub before: Counters,
    pub after: Counters,
}

impl Counted {
    /// While something was done with a pool.
    pub fn during<T>(pool: &Pool, work: impl FnOnce() -> T) -> (T, Counted) {
        let before = pool.stats().counters;
        let done = work();
        (done, Counted { before, after: pool.stats().counters })
    }

    /// By how much a counter went up; `None` if the engine lacks it.
    pub fn get(&self, name: &str) -> Option<f64> {
        let before = self.before.get(name).copied().unwrap_or(0);
        Some(self.after.get(name)?.saturating_sub(before) as f64)
    }

    /// The same, or 0.
    pub fn count(&self, name: &str) -> f64 {
        self.get(name).unwrap_or(0.0)
    }

    /// What a counter says in the end, or 0.
    pub fn now(&self, name: &str) -> f64 {
        self.after.get(name).copied().unwrap_or(0) as f64
    }

    /// How many pages left memory.
    pub fn evicted(&self) -> f64 {
        self.count("pgsteal_kswapd") + self.count("pgsteal_direct")
    }

    /// Those figures whose counters the engine has, and of whose other counter there is something.
    pub fn ratios<'r>(
        &'r self,
        ratios: &'r [Ratio],
    ) -> impl Iterator<Item = (&'static str, f64)> + use<'r> {
        ratios.iter().filter_map(|(figure, counter, factor, other)| {
            let other = self.get(other).filter(|other| *other > 0.0)?;
            Some((*figure, self.get(counter)? * factor / other))
        })
    }

    /// The figures of a kind of lock, for 1,000 of `things`: how often it was taken (`per_1000`),
    /// the share of it that was contended, nanoseconds waited, held, and held without the holds so
    /// long that the holder must have been interrupted. Their counters begin with the lock's name.
    pub fn lock(&self, lock: &str, things: f64) -> Vec<(&'static str, f64)> {
        let counted = |end: &str| self.get(&format!("{lock}{end}"));
        let taken = counted("");
        let hold_ns = counted("_hold_ns");
        let short_ns = hold_ns.map(|ns| ns - counted("_long_ns").unwrap_or(0.0));
        let per_1000 = |value: Option<f64>| value.map(|value| value * 1000.0 / things);
        let figures = [
            ("per_1000", per_1000(taken)),
            // A lock that nobody took was not contended.
            ("contended_ratio", counted("_contended").zip(taken).map(|(n, of)| n / of.max(1.0))),
            ("wait_ns", per_1000(counted("_wait_ns"))),
            ("hold_ns", per_1000(hold_ns)),
            ("short_hold_ns", per_1000(short_ns)),
        ];
        figures.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::counted;

    #[test]
    fn figures_are_what_was_counted_in_between() {
        let counters =
            [("lock", 5, 25), ("lock_contended", 0, 5), ("lock_hold_ns", 9, 1009), ("still", 7, 7)];
        let counted = counted(&counters);
        let expected = [
            ("per_1000", 200.0),
            ("contended_ratio", 0.25),
            ("hold_ns", 10_000.0),
            ("short_hold_ns", 10_000.0),
        ];
        assert_eq!(counted.lock("lock", 100.0), expected, "what is not counted is left out");
        assert_eq!(counted.lock("still", 1.0), [("per_1000", 0.0)]);
        let ratios = [
            ("a", "lock_hold_ns", 2.0, "lock"),
            ("b", "lock", 1.0, "none"),
            ("c", "lock", 1.0, "still"),
        ];
        assert_eq!(counted.ratios(&ratios).collect::<Vec<_>>(), [("a", 100.0)]);
    }
}
