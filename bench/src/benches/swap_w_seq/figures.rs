//! The figures, and what the counters of a pool say between two moments.

use super::step::Step;
use crate::measure::Sample;
use crate::measure::failure::Failure;
use overspill::base::PAGE_SIZE;
use std::collections::BTreeMap;
use std::time::Duration;

/// Pages that went out (or came in) a second.
pub const RATE: &str = "pages_per_s";
/// The longest of the times that a page takes at a kind of lock, one page after another, in
/// nanoseconds: the time that locks of the kind are held for each page, divided by how many are in
/// use side by side ([`Step::locks_side_by_side`]). Holds of more than 50 us do not count: their
/// holder was interrupted, which a machine with processors enough would not do.
pub const SERIAL: &str = "serial_ns_per_page_max";
/// Pages a second at which the locks of that kind are held all the time.
pub const SATURATION: &str = "saturation_pages_per_s";
/// [`SERIAL`] of the locks of slots, clusters and the swap cache alone, were they in use evenly
/// ([`Step::locks_if_spread`]).
pub const SPREAD: &str = "swap_serial_ns_per_page_if_spread";
/// That of the baseline in units of that here, round by round.
pub const SPREAD_LESS: &str = "swap_serial_if_spread_less_than_baseline";
/// The share of the time of all threads that can run at once which went into waiting for locks of
/// slots, clusters and the swap cache, and holding them.
pub const SHARE: &str = "swap_locks_ratio";
/// [`SERIAL`] of the baseline in units of that here, round by round.
pub const SERIAL_LESS: &str = "serial_less_than_baseline";
/// [`SATURATION`] in units of the baseline's, round by round.
pub const SATURATION_MORE: &str = "saturation_ratio_to_baseline";
/// What [`RATE`] gains over the step before, round by round.
pub const GAIN: &str = "gain_over_step_before";

/// Time held, without the holds so long that their holder must have been interrupted: what a lock
/// is needed for.
const SHORT_HOLDS: &str = "short_hold_ns";

/// Counters by name.
type Counters = BTreeMap<&'static str, u64>;

/// A part of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Pages are written, others go out.
    Out,
    /// Pages are read, and come in; others go out.
    In,
}

impl Phase {
    /// A figure of this phase.
    pub fn figure(self, name: &str) -> String {
        match self {
            Phase::Out => name.to_owned(),
            Phase::In => format!("in.{name}"),
        }
    }
}

/// A kind of lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Its counter; those of waiting and holding begin with the same name.
    pub name: &'static str,
    /// What it is called for people.
    pub title: &'static str,
    /// Whether it has to do with swap.
    pub of_swap: bool,
}

/// All kinds.
pub const LOCKS: [Lock; 5] = [
    Lock { name: "slot_lock", title: "the lock of the device's slots", of_swap: true },
    Lock { name: "cluster_lock", title: "the locks of clusters", of_swap: true },
    Lock { name: "swap_cache_lock", title: "the locks of the swap cache's index", of_swap: true },
    Lock {
        name: "swap_ages_lock",
        title: "the locks of the swap cache's lists by age",
        of_swap: true,
    },
    Lock { name: "zone_lock", title: "the zone lock", of_swap: false },
];

impl Lock {
    /// The figure `name` of this kind.
    pub fn figure(self, name: &str) -> String {
        format!("locks.{}.{name}", self.name)
    }
}

/// Adds the time that each kind of lock takes a page one after another, and the longest of them,
/// which limits how many pages move however many processors there are. `bytes` are how much swap
/// space and frames are in use, the less of them.
pub fn add_serial(sample: &mut Sample, phase: Phase, step: Step, running: usize, bytes: u64) {
    let (mut longest, mut spread): (f64, f64) = (0.0, 0.0);
    for lock in LOCKS {
        let Some(hold_ns) = sample.get(&phase.figure(&lock.figure(SHORT_HOLDS))).copied() else {
            continue;
        };
        let serial = hold_ns / 1000.0 / step.locks_side_by_side(lock, running) as f64;
        sample.insert(phase.figure(&lock.figure("serial_ns_per_page")), serial);
        longest = longest.max(serial);
        if lock.of_swap {
            spread =
                spread.max(hold_ns / 1000.0 / step.locks_if_spread(lock, running, bytes) as f64);
        }
    }
    if longest > 0.0 {
        sample.insert(phase.figure(SERIAL), longest);
        sample.insert(phase.figure(SATURATION), 1e9 / longest);
        sample.insert(phase.figure(SPREAD), spread);
    }
}

/// Adds what a pool counted while the threads, of which `running` can run at once, worked for
/// `elapsed`.
///
/// # Errors
/// When no page moved, so that there is nothing to measure.
pub fn add(
    sample: &mut Sample,
    phase: Phase,
    elapsed: Duration,
    running: usize,
    before: &Counters,
    after: &Counters,
) -> Result<(), Failure> {
    let count = |name: &str| Some(after.get(name)?.saturating_sub(*before.get(name)?) as f64);
    let (moved, kib, ops) = match phase {
        Phase::Out => ("pswpout", "so_kib_per_s", "pswpout_ops"),
        Phase::In => ("pswpin", "si_kib_per_s", "pswpin_ops"),
    };
    let pages = count(moved).filter(|pages| *pages > 0.0).ok_or_else(|| {
        Failure::new(format!(
            "no page was counted as {moved}: measure a larger --size or a smaller --memory"
        ))
    })?;
    let seconds = elapsed.as_secs_f64();
    let mut figure = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            sample.insert(phase.figure(name), value);
        }
    };
    figure(RATE, Some(pages / seconds));
    figure(kib, Some(pages * (PAGE_SIZE as f64 / 1024.0) / seconds));
    figure("pages_per_operation", count(ops).map(|ops| pages / ops.max(1.0)));
    let mut in_locks_ns = 0.0;
    for lock in LOCKS {
        let counted = |suffix: &str| count(&format!("{}{suffix}", lock.name));
        let (taken, wait_ns, hold_ns) = (counted(""), counted("_wait_ns"), counted("_hold_ns"));
        let per_1000 = |value: Option<f64>| value.map(|value| value * 1000.0 / pages);
        figure(&lock.figure("per_1000"), per_1000(taken));
        figure(
            &lock.figure("contended_ratio"),
            counted("_contended").and_then(|n| Some(n / taken?.max(1.0))),
        );
        figure(&lock.figure("wait_ns"), per_1000(wait_ns));
        figure(&lock.figure("hold_ns"), per_1000(hold_ns));
        let short = hold_ns.map(|ns| ns - counted("_long_ns").unwrap_or(0.0));
        figure(&lock.figure(SHORT_HOLDS), per_1000(short));
        if lock.of_swap {
            in_locks_ns += wait_ns.unwrap_or(0.0) + hold_ns.unwrap_or(0.0);
        }
    }
    figure(SHARE, Some(in_locks_ns / 1e9 / (seconds * running as f64)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: [(&str, u64); 11] = [
        ("pswpout", 1000),
        ("pswpout_ops", 10),
        ("slot_lock", 5),
        ("slot_lock_contended", 0),
        ("slot_lock_wait_ns", 7),
        ("slot_lock_hold_ns", 9),
        ("slot_lock_long_ns", 3),
        ("cluster_lock", 0),
        ("cluster_lock_contended", 0),
        ("cluster_lock_wait_ns", 0),
        ("cluster_lock_hold_ns", 0),
    ];

    fn measured() -> Sample {
        let before = Counters::from(BEFORE);
        let mut after = before.clone();
        let counted = [
            ("pswpout", 2000),
            ("pswpout_ops", 20),
            ("slot_lock", 40),
            ("slot_lock_contended", 10),
            ("slot_lock_wait_ns", 3_000_000),
            ("slot_lock_hold_ns", 1_000_000),
            ("slot_lock_long_ns", 200_000),
            ("cluster_lock", 4000),
            ("cluster_lock_hold_ns", 6_000_000),
        ];
        counted.iter().for_each(|(name, n)| *after.get_mut(name).unwrap() += n);
        let mut sample = Sample::new();
        add(&mut sample, Phase::Out, Duration::from_millis(500), 4, &before, &after).unwrap();
        sample
    }

    #[test]
    fn figures_are_what_was_counted_in_between() {
        let expected = [
            (RATE, 4000.0),
            ("so_kib_per_s", 16_000.0),
            ("pages_per_operation", 100.0),
            ("locks.slot_lock.per_1000", 20.0),
            ("locks.slot_lock.contended_ratio", 0.25),
            ("locks.slot_lock.wait_ns", 1_500_000.0),
            ("locks.slot_lock.hold_ns", 500_000.0),
            ("locks.slot_lock.short_hold_ns", 400_000.0),
            ("locks.cluster_lock.per_1000", 2000.0),
            ("locks.cluster_lock.contended_ratio", 0.0),
            ("locks.cluster_lock.wait_ns", 0.0),
            ("locks.cluster_lock.hold_ns", 3_000_000.0),
            ("locks.cluster_lock.short_hold_ns", 3_000_000.0),
            (SHARE, 0.005),
        ];
        assert_eq!(
            measured(),
            expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
        );
    }

    #[test]
    fn the_longest_serial_time_is_that_of_a_lock_or_of_its_share() {
        let mut sample = measured();
        add_serial(&mut sample, Phase::Out, Step::ClusterLocks, 8, 64 << 20);
        assert_eq!((sample[SERIAL], sample["locks.slot_lock.serial_ns_per_page"]), (3000.0, 400.0));
        add_serial(&mut sample, Phase::Out, Step::CpuClusters, 8, 64 << 20);
        assert_eq!((sample[SERIAL], sample[SATURATION]), (400.0, 2.5e6));
        assert!(
            !sample.contains_key("locks.zone_lock.serial_ns_per_page"),
            "what was not counted is not told"
        );
    }

    #[test]
    fn without_a_page_there_is_nothing_to_tell() {
        let counters = Counters::from(BEFORE);
        let one = Duration::from_secs(1);
        for phase in [Phase::Out, Phase::In] {
            let failure = add(&mut Sample::new(), phase, one, 1, &counters, &counters).unwrap_err();
            assert!(failure.to_string().contains("larger --size"), "{failure}");
        }
        assert_eq!(
            (Phase::Out.figure("x"), Phase::In.figure("x")),
            ("x".to_owned(), "in.x".to_owned())
        );
    }
}
