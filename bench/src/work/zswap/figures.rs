//! The figures, made of what the counters of a pool say between two moments.

use crate::measure::*;
use std::time::Duration;

/// Adds what a pool counted while `pages` pages moved within `elapsed`, and within `cpu` of
/// processor time of the threads that alone moved them, if they did. `whole` is the figure of the
/// microseconds that all of it took, and `phase` what the names of the others begin with.
pub fn add_moved(
    sample: &mut Sample,
    (whole, phase): (&str, &str),
    (elapsed, cpu): (Duration, Option<Duration>),
    pages: f64,
    counted: &Counted,
) -> Result<(), Failure> {
    if pages < 1.0 {
        fail!("no page was out of memory: measure a larger --size");
    }
    add(sample, [(whole, elapsed.as_secs_f64() * 1e6)]);
    // Of 1,000 pages that move.
    let per_1000 = |name: &str| counted.count(name) * 1000.0 / pages;
    let mut figures = vec![
        // Look-ups in the tier's index, and entries of it that went because their slot was given
        // back.
        ("lookups", per_1000("zswap_lookup")),
        ("freed", per_1000("zswap_erased")),
        ("ns_per_page", elapsed.as_nanos() as f64 / pages),
    ];
    // Where the tier is off the engine counts the locks of its index all the same: 0 times.
    let lock = |(name, value)| (if name == "per_1000" { "locks" } else { name }, value);
    figures.extend(counted.lock("zswap_lock", pages).into_iter().map(lock));
    if let Some(cpu) = cpu {
        let cpu_ns = cpu.as_nanos() as f64;
        let wait_ns = counted.count("zswap_lock_wait_ns");
        let held_ns = counted.count("zswap_lock_hold_ns") - counted.count("zswap_lock_long_ns");
        figures.extend([
            // Processor time of the threads that read.
            ("cpu_ns_per_page", cpu_ns / pages),
            ("cpu_us", cpu.as_secs_f64() * 1e6),
            // Share of the processor time of these threads, and of their waiting for those locks,
            // that went into waiting for them and holding them, without the holds of more than 50
            // us, in which it was interrupted.
            ("locks_ratio", (wait_ns + held_ns) / (wait_ns + cpu_ns).max(1.0)),
            ("unpacked", per_1000("zswpin")),
            ("read", per_1000("pswpin")),
        ]);
    }
    add(sample, figures.into_iter().map(|(name, value)| (format!("{phase}{name}"), value)));
    Ok(())
}

pub fn of_accesses(accesses: f64, elapsed: Duration, cpu: Duration, counted: &Counted) -> Sample {
    let per_1000 = |name: &str| counted.count(name) * 1000.0 / accesses;
    figures([
        ("ns_per_access", elapsed.as_nanos() as f64 / accesses),
        // Processor time, that of threads in the background included.
        ("cpu_ns_per_access", cpu.as_nanos() as f64 / accesses),
        ("per_1000.faults", per_1000("pgfault")),
        ("per_1000.unpacked", per_1000("zswpin")),
        ("per_1000.packed", per_1000("zswpout")),
        ("per_1000.read", per_1000("pswpin")),
        ("per_1000.written", per_1000("pswpout")),
        ("per_1000.left_clean", per_1000("clean_dropped")),
        ("per_1000.written_clean", per_1000("clean_written")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::counted;

    #[test]
    fn figures_are_what_was_counted_in_between() {
        let counted = counted(&[
            ("zswap_lock", 5, 45),
            ("zswap_lock_contended", 0, 10),
            ("zswap_lock_wait_ns", 0, 300_000),
            ("zswap_lock_hold_ns", 0, 700_000),
            ("zswap_lock_long_ns", 0, 200_000),
            ("zswap_lookup", 1, 201),
            ("zswap_erased", 0, 20),
            ("pswpin", 0, 1000),
        ]);
        let mut sample = Sample::new();
        let times = (Duration::from_millis(100), Some(Duration::from_micros(39_700)));
        let names = ("single_us", "single.");
        add_moved(&mut sample, names, times, 2000.0, &counted).unwrap();
        for (name, expected) in [
            ("single_us", 100_000.0),
            ("single.locks", 20.0),
            ("single.wait_ns", 150_000.0),
            ("single.short_hold_ns", 250_000.0),
            ("single.lookups", 100.0),
            ("single.freed", 10.0),
            ("single.cpu_ns_per_page", 19_850.0),
            ("single.locks_ratio", 0.02),
            ("single.read", 500.0),
        ] {
            assert_eq!(sample[name], expected, "{name}");
        }
        let none = add_moved(&mut sample, names, times, 0.0, &counted).unwrap_err();
        assert!(none.to_string().contains("larger --size"), "{none}");
        let [elapsed, cpu] = [1000, 1500].map(Duration::from_micros);
        let sample = of_accesses(500.0, elapsed, cpu, &counted);
        assert_eq!((sample["ns_per_access"], sample["cpu_ns_per_access"]), (2000.0, 3000.0));
        assert_eq!((sample["per_1000.read"], sample["per_1000.packed"]), (2000.0, 0.0));
    }
}
