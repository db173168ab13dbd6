//! The figures, and what the counters of a pool say between two moments.

use crate::measure::Sample;
use crate::measure::failure::Failure;
use std::collections::BTreeMap;
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
/// By how much less time a page than the step that it is compared with a step takes, round by
/// round.
pub const IN_FASTER: &str = "swapin_faster";
/// The same for pages that come in singly.
pub const SINGLE_FASTER: &str = "single_faster";
/// The same for the processor time of pages that come in.
pub const CPU_FASTER: &str = "cpu_faster";
/// And of those that come in singly.
pub const SINGLE_CPU_FASTER: &str = "single_cpu_faster";
/// The same for pages that go out.
pub const OUT_FASTER: &str = "swapout_faster";
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
/// [`LOCKS`] in units of those that are taken where only empty ranges are passed over.
pub const OF_EMPTY: &str = "locks_of_empty";
/// Nanoseconds that an access takes.
pub const NS: &str = "ns_per_access";
/// Nanoseconds of processor time that it takes, that of threads in the background included.
pub const CPU_NS: &str = "cpu_ns_per_access";
/// By how much less time than the step that it is compared with an access takes.
pub const FASTER: &str = "faster";
/// The same for processor time.
pub const CPU_LESS: &str = "cpu_less";
/// Slots of devices in use at the end, as a share of the pages.
pub const SLOTS: &str = "slots_ratio";

/// Counters by name.
type Counters = BTreeMap<&'static str, u64>;

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
///
/// # Errors
/// When no page moved, so that there is nothing to measure.
pub fn add(
    sample: &mut Sample,
    phase: Phase,
    (elapsed, cpu): (Duration, Option<Duration>),
    pages: f64,
    before: &Counters,
    after: &Counters,
) -> Result<(), Failure> {
    if pages < 1.0 {
        return Err(Failure::new("no page was out of memory: measure a larger --size"));
    }
    let us = match phase {
        Phase::Out => OUT_US,
        Phase::In => IN_US,
        Phase::Single => SINGLE_US,
    };
    sample.insert(us.to_owned(), elapsed.as_secs_f64() * 1e6);
    let count = |name: &str| {
        after.get(name).copied().unwrap_or(0) as f64 - before.get(name).copied().unwrap_or(0) as f64
    };
    let per_1000 = |name: &str| count(name) * 1000.0 / pages;
    let mut figure = |name: &str, value: f64| sample.insert(phase.figure(name), value);
    figure(LOCKS, per_1000("zswap_lock"));
    figure("contended_ratio", count("zswap_lock_contended") / count("zswap_lock").max(1.0));
    figure("wait_ns", per_1000("zswap_lock_wait_ns"));
    figure("hold_ns", per_1000("zswap_lock_hold_ns"));
    let short_hold_ns = count("zswap_lock_hold_ns") - count("zswap_lock_long_ns");
    figure("short_hold_ns", short_hold_ns * 1000.0 / pages);
    figure(LOOKUPS, per_1000("zswap_lookup"));
    figure(FREED, per_1000("zswap_erased"));
    figure(PAGE_NS, elapsed.as_nanos() as f64 / pages);
    if let Some(cpu) = cpu {
        figure(PAGE_CPU_NS, cpu.as_nanos() as f64 / pages);
        let wait_ns = count("zswap_lock_wait_ns");
        figure(CPU_US, cpu.as_secs_f64() * 1e6);
        figure(SHARE, (wait_ns + short_hold_ns) / (wait_ns + cpu.as_nanos() as f64).max(1.0));
        figure("unpacked", per_1000("zswpin"));
        figure("read", per_1000("pswpin"));
    }
    Ok(())
}

/// Adds where `out` pages are that are out.
pub fn add_places(sample: &mut Sample, out: f64, now: &Counters) {
    let count = |name: &str| now.get(name).copied().unwrap_or(0) as f64;
    sample.insert(COMPRESSED.to_owned(), count("zswap_stored_pages") / out.max(1.0));
}

/// The figures of accesses at random.
pub fn of_accesses(
    accesses: f64,
    elapsed: Duration,
    cpu: Duration,
    before: &Counters,
    after: &Counters,
) -> Sample {
    let count = |name: &str| {
        after.get(name).copied().unwrap_or(0).saturating_sub(before.get(name).copied().unwrap_or(0))
    };
    let per_1000 = |name: &str| count(name) as f64 * 1000.0 / accesses;
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
    figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(counts: &[(&'static str, u64)]) -> Counters {
        counts.iter().copied().collect()
    }

    #[test]
    fn figures_are_what_was_counted_in_between() {
        let before = counted(&[("zswap_lock", 5), ("zswap_lookup", 1)]);
        let after = counted(&[
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
        add(
            &mut sample,
            Phase::Single,
            (Duration::from_millis(100), Some(Duration::from_micros(39_700))),
            2000.0,
            &before,
            &after,
        )
        .unwrap();
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
        let none =
            add(&mut sample, Phase::In, (Duration::from_millis(1), None), 0.0, &before, &after)
                .unwrap_err();
        assert!(none.to_string().contains("larger --size"), "{none}");
    }

    #[test]
    fn accesses_are_told_in_their_thousands() {
        let (before, after) = (counted(&[("zswpout", 10)]), counted(&[("zswpout", 60)]));
        let sample = of_accesses(
            500.0,
            Duration::from_micros(1000),
            Duration::from_micros(1500),
            &before,
            &after,
        );
        assert_eq!(
            (sample[NS], sample[CPU_NS], sample["per_1000.packed"], sample["per_1000.read"]),
            (2000.0, 3000.0, 100.0, 0.0)
        );
    }
}
