//! The figures, and what the counters of a pool say between two moments.

use crate::measure::Sample;
use crate::measure::failure::Failure;
use std::collections::BTreeMap;

/// First writes to pages a second, by all threads together; will-it-scale counts the same.
pub const RATE: &str = "faults_per_s";
/// Processor time for each page, of the whole process: the engine's threads, mapping and unmapping
/// included. On a busy machine it varies less than [`RATE`].
pub const CPU: &str = "cpu_ns_per_page";
/// Acquisitions of the zone lock for 1,000 frames that are taken, and given back again: 1,000
/// without lists if all go back at once when they are unmapped, 2,000 if each goes back by itself.
pub const LOCKS: &str = "zone_locks_per_1000";
/// Time that the zone lock is held to give frames back, for each of them.
pub const FREE_HOLD: &str = "zone_free_hold_ns_per_frame";
/// [`RATE`] in units of the kernel's, round by round.
pub const KERNEL_RATIO: &str = "ratio_to_kernel";
/// [`CPU`] in units of the kernel's, round by round.
pub const KERNEL_CPU_RATIO: &str = "cpu_ratio_to_kernel";
/// [`LOCKS`] without lists, in units of those here, round by round.
pub const LOCKS_FEWER: &str = "zone_locks_fewer_than_no_percpu";
/// What [`RATE`] gains by picking outside the lock, round by round.
pub const PICK_GAIN: &str = "gain_over_pick_inside";
/// [`FREE_HOLD`] in units of that with picking inside, round by round.
pub const PICK_HOLD: &str = "free_hold_ratio_to_pick_inside";

/// Counters by name.
type Counters = BTreeMap<&'static str, u64>;

/// Adds what a pool counted while `pages` pages were written. A figure whose counter the engine
/// lacks, or that is about frames when none was taken, is left out.
///
/// # Errors
/// When pages were evicted: the measurement is not of first writes alone then.
pub fn add(
    sample: &mut Sample,
    pages: u64,
    before: &Counters,
    after: &Counters,
) -> Result<(), Failure> {
    let count = |name: &str| Some(after.get(name)?.saturating_sub(*before.get(name)?) as f64);
    let evicted = count("pgsteal_kswapd").unwrap_or(0.0) + count("pgsteal_direct").unwrap_or(0.0);
    if evicted > 0.0 {
        return Err(Failure::new(format!(
            "{evicted} pages were evicted, although the budget had room for all"
        )));
    }
    let mut figure = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            sample.insert(name.to_owned(), value);
        }
    };
    let frames = |value: Option<f64>, frames: Option<f64>| {
        Some(value? / frames.filter(|frames| *frames > 0.0)?)
    };
    let (taken, freed) = (count("frame_alloc"), count("frame_free"));
    let locks = count("zone_lock");
    figure("pages_per_fault", frames(Some(pages as f64), count("pgfault")));
    figure(LOCKS, frames(locks.map(|locks| locks * 1000.0), taken));
    // A lock that nobody took was not contended.
    figure(
        "zone_contended_ratio",
        count("zone_lock_contended").and_then(|n| Some(n / locks?.max(1.0))),
    );
    figure("zone_hold_ns_per_frame", frames(count("zone_lock_hold_ns"), taken));
    figure("zone_wait_ns_per_frame", frames(count("zone_lock_wait_ns"), taken));
    figure(FREE_HOLD, frames(count("zone_free_hold_ns"), freed));
    figure("frames_per_batch_alloc", frames(taken, count("frame_batch_alloc")));
    figure("frames_per_batch_free", frames(freed, count("frame_batch_free")));
    figure("zone_fallbacks_per_1000", frames(count("frame_fallback").map(|n| n * 1000.0), taken));
    figure("zone_steals_per_1000", frames(count("frame_steal").map(|n| n * 1000.0), taken));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: [(&str, u64); 14] = [
        ("pgfault", 10),
        ("pgsteal_kswapd", 5),
        ("pgsteal_direct", 5),
        ("frame_alloc", 1000),
        ("frame_free", 1000),
        ("frame_batch_alloc", 1),
        ("frame_batch_free", 1),
        ("zone_lock", 7),
        ("zone_lock_contended", 1),
        ("zone_lock_wait_ns", 100),
        ("zone_lock_hold_ns", 100),
        ("zone_free_hold_ns", 50),
        ("frame_fallback", 0),
        ("frame_steal", 0),
    ];

    #[test]
    fn figures_are_what_was_counted_in_between() {
        let before = Counters::from(BEFORE);
        let mut after = before.clone();
        let counted = [
            ("pgfault", 500),
            ("frame_alloc", 2000),
            ("frame_free", 1000),
            ("frame_batch_alloc", 40),
            ("frame_batch_free", 20),
            ("zone_lock", 60),
            ("zone_lock_contended", 15),
            ("zone_lock_wait_ns", 3000),
            ("zone_lock_hold_ns", 8000),
            ("zone_free_hold_ns", 6000),
            ("frame_fallback", 2),
            ("frame_steal", 4),
        ];
        counted.iter().for_each(|(name, n)| *after.get_mut(name).unwrap() += n);
        let mut sample = Sample::from([(RATE.to_owned(), 1.0)]);
        add(&mut sample, 2000, &before, &after).unwrap();
        let expected = [
            (RATE, 1.0),
            ("pages_per_fault", 4.0),
            (LOCKS, 30.0),
            ("zone_contended_ratio", 0.25),
            ("zone_hold_ns_per_frame", 4.0),
            ("zone_wait_ns_per_frame", 1.5),
            (FREE_HOLD, 6.0),
            ("frames_per_batch_alloc", 50.0),
            ("frames_per_batch_free", 50.0),
            ("zone_fallbacks_per_1000", 1.0),
            ("zone_steals_per_1000", 2.0),
        ];
        assert_eq!(
            sample,
            expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
        );
    }

    #[test]
    fn what_is_not_counted_is_left_out() {
        let (before, after) = (Counters::from([("pgfault", 0)]), Counters::from([("pgfault", 2)]));
        let mut sample = Sample::new();
        add(&mut sample, 6, &before, &after).unwrap();
        assert_eq!(sample, Sample::from([("pages_per_fault".to_owned(), 3.0)]));
        // Counters that stand still: no frame, so nothing a frame; a lock that nobody took was not
        // contended.
        let mut sample = Sample::new();
        add(&mut sample, 6, &Counters::from(BEFORE), &Counters::from(BEFORE)).unwrap();
        assert_eq!(sample, Sample::from([("zone_contended_ratio".to_owned(), 0.0)]));
    }

    #[test]
    fn an_eviction_spoils_the_measurement() {
        let before = Counters::from(BEFORE);
        for name in ["pgsteal_kswapd", "pgsteal_direct"] {
            let mut after = before.clone();
            *after.get_mut(name).unwrap() += 3;
            let failure = add(&mut Sample::new(), 6, &before, &after).unwrap_err();
            assert!(failure.to_string().starts_with("3 pages were evicted"), "{failure}");
        }
    }
}
