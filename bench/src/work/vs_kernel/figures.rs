//! The figures of a measurement.

use crate::measure::Sample;
use overspill_bench::workload::Outcome;

/// Seconds that the accesses took.
pub const ELAPSED: &str = "elapsed_s";
/// Nanoseconds an access: elapsed time over all of them.
pub const PER_ACCESS: &str = "ns_per_access";
/// Processor time of the process meanwhile, in seconds; that of overspill's threads is part of it.
pub const CPU: &str = "cpu_s";
/// The part of it in user mode.
pub const USER: &str = "user_s";
/// The part of it in the kernel.
pub const SYS: &str = "sys_s";
/// How long an access took: the median, and what all but one in a hundred and one in a thousand
/// took at most.
pub const P50: &str = "p50_ns";
/// See [`P50`].
pub const P99: &str = "p99_ns";
/// See [`P50`].
pub const P999: &str = "p999_ns";
/// Pages of the whole run that were brought in: unpacked, or read from a device.
pub const PAGES_IN: &str = "pages_in";
/// Faults of the whole run that waited for a device; zram is one to the kernel, and what is in
/// zswap counts, too.
pub const MAJOR: &str = "major_faults";
/// Other faults of the whole run.
pub const MINOR: &str = "minor_faults";
/// Bytes written to a device, and read from it, in the whole run.
pub const DEVICE: &str = "device_bytes";
/// The part of them that was written.
pub const WRITTEN: &str = "device_bytes_written";
/// RAM at most: of the memory cgroup, and of the compressed pool where that is outside of it.
pub const RAM: &str = "ram_bytes_peak";
/// The part of it that is a compressed pool outside of the cgroup.
pub const POOL: &str = "pool_bytes_peak";
/// Bytes of overspill's tables ([`overspill::stats::Counter::MetadataBytes`]).
pub const METADATA: &str = "metadata_bytes";
/// How far the peer packed what was in that pool, where the kernel says.
pub const PACKED: &str = "packed";
/// What a program put out, to tell whether it was the same each time.
pub const CHECKSUM: &str = "checksum";
/// 1 where the peer compresses with LZ4 as overspill does, or not at all; 0 where the kernel has
/// none for it.
pub const SAME_CODEC: &str = "same_codec";
/// What fits: limit of the cgroup, or budget.
pub const LIMIT: &str = "limit_bytes";
/// A fault by signal and a copy of a page, with nothing around it, in nanoseconds.
pub const BARE_COPY: &str = "bare_copy_fault_ns";
/// The same with a page that is moved.
pub const BARE_MOVE: &str = "bare_move_fault_ns";
/// The first access to a page of a pool that has room, in nanoseconds.
pub const MINOR_FAULT: &str = "minor_fault_ns";
/// That as a ratio to [`BARE_COPY`].
pub const MINOR_RATIO: &str = "minor_fault_ratio";
/// What LZ4 takes to pack a page, in nanoseconds.
pub const COMPRESS: &str = "compress_ns";
/// What it takes to unpack one.
pub const DECOMPRESS: &str = "decompress_ns";

/// Those of the accesses.
pub fn of(outcome: &Outcome) -> Sample {
    let per_access = outcome.elapsed_s * 1e9 / outcome.accesses.max(1) as f64;
    let figures = [
        (ELAPSED, outcome.elapsed_s),
        (PER_ACCESS, per_access),
        (CPU, outcome.user_s + outcome.sys_s),
        (USER, outcome.user_s),
        (SYS, outcome.sys_s),
        (P50, outcome.p50_ns as f64),
        (P99, outcome.p99_ns as f64),
        (P999, outcome.p999_ns as f64),
        (MINOR, outcome.minor_faults as f64),
        (MAJOR, outcome.major_faults as f64),
    ];
    figures.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Adds others.
pub fn add<const N: usize>(sample: &mut Sample, figures: [(&str, u64); N]) {
    sample.extend(figures.map(|(name, value)| (name.to_owned(), value as f64)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_both_modes() {
        let outcome = Outcome {
            elapsed_s: 2.0,
            user_s: 0.5,
            sys_s: 1.0,
            accesses: 1000,
            p50_ns: 1,
            p99_ns: 2,
            p999_ns: 3,
            minor_faults: 4,
            major_faults: 5,
            wrong: 0,
        };
        let mut sample = of(&outcome);
        add(&mut sample, [(MAJOR, 7)]);
        assert_eq!(
            (sample[CPU], sample[PER_ACCESS], sample[MAJOR], sample[MINOR]),
            (1.5, 2e6, 7.0, 4.0)
        );
    }
}
