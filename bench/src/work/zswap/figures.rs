//! The figures, and what the counters of a pool say between two moments.

use crate::measure::counters::{Counted, add};
use crate::measure::{Failure, Sample};
use std::time::Duration;

/// Microseconds in which all pages were written, so that they or others went out.
pub const OUT_US: &str = "swapout_us";
/// Microseconds in which all pages came in in sequence.
pub const IN_US: &str = "swapin_us";
/// Microseconds in which a part of them more came in, singly at random.
pub const SINGLE_US: &str = "single_us";
/// Microseconds of processor time of the threads that read, together.
pub const CPU_US: &str = "cpu_us";
/// Share of the pages that were out when they began to be read.
pub const OUT: &str = "out_ratio";
/// Share of those that were compressed.
pub const COMPRESSED: &str = "compressed_ratio";
/// Nanoseconds a page of those that came in or went out.
pub const PAGE_NS: &str = "ns_per_page";
/// Nanoseconds of processor time of the threads that read, a page.
pub const PAGE_CPU_NS: &str = "cpu_ns_per_page";
/// For 1,000 pages that move: times that locks of the tier's index were taken,
pub const LOCKS: &str = "locks";
/// look-ups in it,
pub const LOOKUPS: &str = "lookups";
/// entries that went because their slot was given back.
pub const FREED: &str = "freed";
/// Share of the processor time of these threads, and of their waiting for those locks, that went
/// into waiting for them and holding them, without the holds of more than 50 us, in which it was
/// interrupted.
pub const SHARE: &str = "locks_ratio";
/// Nanoseconds that an access takes.
pub const NS: &str = "ns_per_access";
/// Nanoseconds of processor time that it takes, that of threads in the background included.
pub const CPU_NS: &str = "cpu_ns_per_access";
/// Slots of devices in use at the end, as a share of the pages.
pub const SLOTS: &str = "slots_ratio";

/// A part of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Pages are written, others go out.
    Out,
    /// Pages come in in sequence.
    In,
    /// Pages come in singly, at random.
    Single,
}

impl Phase {
    /// A figure of this phase.
    pub fn figure(self, name: &str) -> String {
        match self {
            Phase::Out => format!("out.{name}"),
            Phase::In => name.to_owned(),
            Phase::Single => format!("single.{name}"),
        }
    }
}

/// Adds what a pool counted while `pages` pages moved within `elapsed`, and within `cpu` of
/// processor time of the threads that alone moved them, if they did.
pub fn add_moved(
    sample: &mut Sample,
    phase: Phase,
    (elapsed, cpu): (Duration, Option<Duration>),
    pages: f64,
    counted: Counted<'_>,
) -> Result<(), Failure> {
    if pages < 1.0 {
        return Err(Failure::new("no page was out of memory: measure a larger --size"));
    }
    let us = match phase {
        Phase::Out => OUT_US,
        Phase::In => IN_US,
        Phase::Single => SINGLE_US,
    };
    add(sample, [(us, elapsed.as_secs_f64() * 1e6)]);
    let per_1000 = |name: &str| counted.count(name) * 1000.0 / pages;
    let mut figures = vec![
        (LOOKUPS, per_1000("zswap_lookup")),
        (FREED, per_1000("zswap_erased")),
        (PAGE_NS, elapsed.as_nanos() as f64 / pages),
    ];
    // Where the tier is off the engine counts its lock all the same: 0 times.
    let lock = |(name, value)| (if name == "per_1000" { LOCKS } else { name }, value);
    figures.extend(counted.lock("zswap_lock", pages).into_iter().map(lock));
    if let Some(cpu) = cpu {
        let cpu_ns = cpu.as_nanos() as f64;
        let wait_ns = counted.count("zswap_lock_wait_ns");
        let held_ns = counted.count("zswap_lock_hold_ns") - counted.count("zswap_lock_long_ns");
        figures.extend([
            (PAGE_CPU_NS, cpu_ns / pages),
            (CPU_US, cpu.as_secs_f64() * 1e6),
            (SHARE, (wait_ns + held_ns) / (wait_ns + cpu_ns).max(1.0)),
            ("unpacked", per_1000("zswpin")),
            ("read", per_1000("pswpin")),
        ]);
    }
    add(sample, figures.into_iter().map(|(name, value)| (phase.figure(name), value)));
    Ok(())
}

/// The figures of accesses at random.
pub fn of_accesses(
    accesses: f64,
    elapsed: Duration,
    cpu: Duration,
    counted: Counted<'_>,
) -> Sample {
    let per_1000 = |name: &str| counted.count(name) * 1000.0 / accesses;
    let mut sample = Sample::new();
    let figures = [
        (NS, elapsed.as_nanos() as f64 / accesses),
        (CPU_NS, cpu.as_nanos() as f64 / accesses),
        ("per_1000.faults", per_1000("pgfault")),
        ("per_1000.unpacked", per_1000("zswpin")),
        ("per_1000.packed", per_1000("zswpout")),
        ("per_1000.read", per_1000("pswpin")),
        ("per_1000.written", per_1000("pswpout")),
        ("per_1000.left_clean", per_1000("clean_dropped")),
        ("per_1000.written_clean", per_1000("clean_written")),
    ];
    add(&mut sample, figures);
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::counters::Counters;

    #[test]
    fn figures_are_what_was_counted_in_between() {
        let names = ["zswap_lock", "zswap_lock_contended", "zswap_lock_wait_ns"];
        let mut before: Counters = names.map(|name| (name, 0)).into();
        before.extend([("zswap_lock_hold_ns", 0), ("zswap_lock_long_ns", 0)]);
        before.extend([("zswap_lock", 5), ("zswap_lookup", 1)]);
        let after = Counters::from([
            ("zswap_lock", 45),
            ("zswap_lock_contended", 10),
            ("zswap_lock_wait_ns", 300_000),
            ("zswap_lock_hold_ns", 700_000),
            ("zswap_lock_long_ns", 200_000),
            ("zswap_lookup", 201),
            ("zswap_erased", 20),
            ("pswpin", 1000),
        ]);
        let mut sample = Sample::new();
        let counted = Counted { before: &before, after: &after };
        let times = (Duration::from_millis(100), Some(Duration::from_micros(39_700)));
        add_moved(&mut sample, Phase::Single, times, 2000.0, counted).unwrap();
        let expected = [
            (SINGLE_US, 100_000.0),
            ("single.locks", 20.0),
            ("single.contended_ratio", 0.25),
            ("single.wait_ns", 150_000.0),
            ("single.hold_ns", 350_000.0),
            ("single.short_hold_ns", 250_000.0),
            ("single.lookups", 100.0),
            ("single.freed", 10.0),
            ("single.cpu_us", 39_700.0),
            ("single.ns_per_page", 50_000.0),
            ("single.cpu_ns_per_page", 19_850.0),
            ("single.locks_ratio", 0.02),
            ("single.unpacked", 0.0),
            ("single.read", 500.0),
        ];
        assert_eq!(
            sample,
            expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
        );
        let times = (Duration::from_millis(1), None);
        let none = add_moved(&mut sample, Phase::In, times, 0.0, counted).unwrap_err();
        assert!(none.to_string().contains("larger --size"), "{none}");
    }

    #[test]
    fn accesses_are_told_in_their_thousands() {
        let (before, after) =
            (Counters::from([("zswpout", 10)]), Counters::from([("zswpout", 60)]));
        let [elapsed, cpu] = [1000, 1500].map(Duration::from_micros);
        let counted = Counted { before: &before, after: &after };
        let sample = of_accesses(500.0, elapsed, cpu, counted);
        assert_eq!(
            (sample[NS], sample[CPU_NS], sample["per_1000.packed"], sample["per_1000.read"]),
            (2000.0, 3000.0, 100.0, 0.0)
        );
    }
}
