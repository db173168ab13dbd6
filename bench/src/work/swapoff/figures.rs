//! The figures of a measurement.

use super::load::Found;
use crate::measure::Sample;
use crate::measure::counters::add;
use crate::measure::usage::Usage;
use overspill::units::PAGE_SIZE;
use std::time::Duration;

/// Seconds until the device was empty.
pub const ELAPSED: &str = "elapsed_s";
/// Processor time meanwhile in user mode, that of the load aside, in seconds.
pub const USER: &str = "user_s";
/// The same in the kernel.
pub const SYS: &str = "sys_s";
/// Pages that were read.
pub const PAGE_INS: &str = "page_ins";
/// Read operations.
pub const OPERATIONS: &str = "operations";
/// Pages that each of them read, on average.
pub const PAGES_PER_OPERATION: &str = "pages_per_operation";
/// MB of pages that came in a second.
pub const MB_PER_S: &str = "mb_per_s";
/// MB/s at which a file on the same disk is read in sequence at the same time.
pub const DEVICE_MB_PER_S: &str = "device_mb_per_s";
/// [`MB_PER_S`] as a share of that.
pub const DEVICE_RATIO: &str = "device_ratio";
/// Nanoseconds that the first access to a page takes afterwards: what comes back need not be mapped
/// yet.
pub const FIRST_ACCESS: &str = "first_access_ns";
/// Accesses of the load a second, before and during the evacuation.
pub const LOAD_BEFORE: &str = "load_ops_per_s_before";
/// See [`LOAD_BEFORE`].
pub const LOAD_DURING: &str = "load_ops_per_s";
/// How many times slower the load was during the evacuation.
pub const LOAD_SLOWDOWN: &str = "load_slowdown";
/// Seconds of the load's work that were lost by that.
pub const LOAD_LOST: &str = "load_lost_s";
/// The longest access of the load before the evacuation, in milliseconds.
pub const LOAD_MS_BEFORE: &str = "load_longest_ms_before";
/// The longest during it.
pub const LOAD_MS: &str = "load_longest_ms";
/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// See [`ELAPSED`].
    pub elapsed: Duration,
    /// See [`USER`] and [`SYS`].
    pub usage: Usage,
    /// See [`PAGE_INS`].
    pub page_ins: u64,
    /// See [`OPERATIONS`]; `None` where they are not known.
    pub operations: Option<u64>,
    /// See [`DEVICE_MB_PER_S`].
    pub device_mb_per_s: f64,
    /// Time of the first access to all pages.
    pub first_access: Duration,
    /// What the load did, if there was one.
    pub load: Option<Found>,
}

/// All figures.
pub fn of(measured: Measured) -> Sample {
    let elapsed = measured.elapsed.as_secs_f64();
    let pages = measured.page_ins as f64;
    let rate = pages * PAGE_SIZE as f64 / 1e6 / elapsed;
    let mut figures = vec![
        (ELAPSED, elapsed),
        (USER, measured.usage.user.as_secs_f64()),
        (SYS, measured.usage.sys.as_secs_f64()),
        (PAGE_INS, pages),
        (MB_PER_S, rate),
        (DEVICE_MB_PER_S, measured.device_mb_per_s),
        (DEVICE_RATIO, rate / measured.device_mb_per_s),
        (FIRST_ACCESS, measured.first_access.as_nanos() as f64 / pages),
    ];
    if let Some(operations) = measured.operations.filter(|operations| *operations > 0) {
        figures.extend([
            (OPERATIONS, operations as f64),
            (PAGES_PER_OPERATION, pages / operations as f64),
        ]);
    }
    if let Some(Found { before, during }) = measured.load {
        figures.extend([
            (LOAD_BEFORE, before.ops_per_s),
            (LOAD_DURING, during.ops_per_s),
            (LOAD_LOST, elapsed * (1.0 - during.ops_per_s / before.ops_per_s)),
            (LOAD_MS_BEFORE, before.longest.as_secs_f64() * 1e3),
            (LOAD_MS, during.longest.as_secs_f64() * 1e3),
        ]);
        // A load that does nothing at all for as long as it takes has no slowdown that is a number.
        if during.ops_per_s > 0.0 {
            figures.push((LOAD_SLOWDOWN, before.ops_per_s / during.ops_per_s));
        }
    }
    let mut sample = Sample::new();
    add(&mut sample, figures);
    sample
}

#[cfg(test)]
mod tests {
    use super::super::load::Phase;
    use super::*;

    #[test]
    fn rates_and_ratios_follow_from_what_was_measured() {
        let ms = Duration::from_millis;
        let phase =
            |ops_per_s, longest| Phase { ops_per_s, longest: ms(longest), usage: Usage::default() };
        let measured = Measured {
            elapsed: ms(500),
            usage: Usage { user: ms(100), sys: ms(200) },
            page_ins: 25_000,
            operations: Some(100),
            device_mb_per_s: 409.6,
            first_access: ms(20),
            load: Some(Found { before: phase(1000.0, 2), during: phase(400.0, 30) }),
        };
        let sample = of(measured);
        let get = |name: &str| sample[name];
        assert_eq!((get(ELAPSED), get(USER), get(SYS)), (0.5, 0.1, 0.2));
        assert_eq!(
            (get(PAGES_PER_OPERATION), get(MB_PER_S), get(DEVICE_RATIO)),
            (250.0, 204.8, 0.5)
        );
        assert_eq!(get(FIRST_ACCESS), 800.0);
        assert_eq!(
            (get(LOAD_SLOWDOWN), get(LOAD_LOST), get(LOAD_MS_BEFORE), get(LOAD_MS)),
            (2.5, 0.3, 2.0, 30.0)
        );
        let sample = of(Measured { operations: None, load: None, ..measured });
        assert!(
            [OPERATIONS, PAGES_PER_OPERATION, LOAD_SLOWDOWN]
                .iter()
                .all(|name| !sample.contains_key(*name))
        );
    }
}
