//! The figures, and what the counters of a pool say at the end.

use crate::measure::Sample;
use std::collections::BTreeMap;
use std::time::Duration;

/// Seconds from the moment that all threads start to the arrival of the last message.
pub const BENCHMARK: &str = "benchmark_s";
/// Processor time of the process in user mode, in seconds.
pub const USER: &str = "user_s";
/// Processor time of the process in the kernel, in seconds.
pub const SYS: &str = "sys_s";
/// Seconds from the beginning of the process to its end.
pub const ELAPSED: &str = "elapsed_s";
/// Faults that had to read the device, from the moment that all threads start.
pub const MAJOR: &str = "major_faults";
/// Most threads that reclaimed for themselves at once.
pub const PARALLEL: &str = "parallel_reclaimers_max";
/// The longest time that one of them did so in one go, in milliseconds.
pub const RECLAIM_MS: &str = "reclaim_ms_max";
/// Pages that were evicted and came back within a second.
pub const REFAULTS: &str = "refaults_1s";
/// The longest wait for a turn to reclaim, in milliseconds.
pub const WAIT_MS: &str = "throttle_wait_ms_max";
/// Pages evicted.
pub const EVICTED: &str = "evicted_pages";
/// Those of them that threads evicted for which there was no frame.
pub const EVICTED_DIRECT: &str = "evicted_directly_pages";
/// Times that a thread reclaimed for itself.
pub const STALLS: &str = "direct_reclaims";
/// Times that a thread waited for its turn to.
pub const THROTTLED: &str = "throttled";
/// How many times sooner than the first step of a round a step is done.
pub const SOONER: &str = "times_sooner";
/// By what share it has fewer major faults.
pub const MAJOR_LESS: &str = "major_faults_less";

/// Counters by name.
type Counters = BTreeMap<&'static str, u64>;

/// What took how long.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// See [`BENCHMARK`].
    pub benchmark: Duration,
    /// See [`USER`].
    pub user: Duration,
    /// See [`SYS`].
    pub sys: Duration,
    /// See [`ELAPSED`].
    pub elapsed: Duration,
}

/// All figures of a measurement; `before` was counted when the threads started.
pub fn of(times: Times, before: &Counters, after: &Counters) -> Sample {
    let get = |counters: &Counters, name: &str| counters.get(name).copied().unwrap_or(0);
    let count = |name: &str| get(after, name).saturating_sub(get(before, name)) as f64;
    let ms = |name: &str| get(after, name) as f64 / 1e6;
    let direct = count("pgsteal_direct");
    let figures = [
        (BENCHMARK, times.benchmark.as_secs_f64()),
        (USER, times.user.as_secs_f64()),
        (SYS, times.sys.as_secs_f64()),
        (ELAPSED, times.elapsed.as_secs_f64()),
        (MAJOR, count("pgmajfault")),
        (PARALLEL, get(after, "reclaimers_max") as f64),
        (RECLAIM_MS, ms("direct_reclaim_ns_max")),
        (REFAULTS, count("refaults_1s")),
        (WAIT_MS, ms("throttle_wait_ns_max")),
        (EVICTED, direct + count("pgsteal_kswapd")),
        (EVICTED_DIRECT, direct),
        (STALLS, count("allocstall")),
        (THROTTLED, count("pgscan_direct_throttle")),
    ];
    figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_from_the_start_and_maxima_are_what_they_are() {
        let before: Counters =
            [("pgmajfault", 10), ("reclaimers_max", 2), ("pgsteal_direct", 5)].into();
        let after = [
            ("pgmajfault", 110),
            ("reclaimers_max", 4),
            ("pgsteal_direct", 15),
            ("pgsteal_kswapd", 30),
            ("direct_reclaim_ns_max", 2_500_000),
        ];
        let times = Times {
            benchmark: Duration::from_secs(1),
            user: Duration::from_secs(2),
            sys: Duration::from_secs(3),
            elapsed: Duration::from_secs(4),
        };
        let sample = of(times, &before, &after.into());
        let get = |name: &str| sample[name];
        assert_eq!((get(BENCHMARK), get(USER), get(SYS), get(ELAPSED)), (1.0, 2.0, 3.0, 4.0));
        assert_eq!((get(MAJOR), get(PARALLEL), get(RECLAIM_MS)), (100.0, 4.0, 2.5));
        assert_eq!((get(EVICTED), get(EVICTED_DIRECT), get(WAIT_MS)), (40.0, 10.0, 0.0));
    }
}
