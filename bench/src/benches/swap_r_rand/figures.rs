//! The figures: how long a read takes, by where its page came from, and what the counters of a pool
//! say meanwhile.

use crate::measure::Sample;
use crate::measure::failure::Failure;
use overspill::base::PAGE_SIZE;
use std::collections::BTreeMap;
use std::time::Duration;

/// Pages read a second, by all threads together; asking for the counters is part of the time.
pub const RATE: &str = "reads_per_s";
/// Pages written for each page read from the device.
pub const WRITTEN: &str = "pages_written_per_page_read";
/// What [`RATE`] gains over the plain step, round by round.
pub const GAIN: &str = "gain_over_plain";
/// Fewest reads from which a percentile is told, in units of those that lie beyond it.
const BEYOND: f64 = 3.0;

/// Counters by name.
type Counters = BTreeMap<&'static str, u64>;

/// Where the page of a read came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// It was there: no fault.
    Resident,
    /// The swap cache: a minor fault.
    Minor,
    /// The compressed tier.
    Compressed,
    /// The swap device.
    Device,
}

impl Source {
    /// All of them.
    pub const ALL: [Source; 4] =
        [Source::Resident, Source::Minor, Source::Compressed, Source::Device];

    /// Under which name its figures are.
    pub fn name(self) -> &'static str {
        match self {
            Source::Resident => "resident",
            Source::Minor => "minor",
            Source::Compressed => "compressed",
            Source::Device => "device",
        }
    }

    /// That of a read by the only thread that reads, from the counters before and after it. Reclaim
    /// in the background does not touch these.
    pub fn between(before: &Counters, after: &Counters) -> Source {
        let moved = |name: &str| after.get(name) > before.get(name);
        match () {
            () if moved("pswpin_ops") => Source::Device,
            () if moved("zswpin") => Source::Compressed,
            () if moved("pgfault") => Source::Minor,
            () => Source::Resident,
        }
    }
}

/// The figures of reads, with what a pool counted meanwhile.
///
/// # Errors
/// When nothing was read.
pub fn of(
    reads: &[(Option<Source>, u64)],
    elapsed: Duration,
    before: &Counters,
    after: &Counters,
) -> Result<Sample, Failure> {
    if reads.is_empty() {
        return Err(Failure::new("nothing was read: ask for more --reads"));
    }
    let mut sample = Sample::from([(RATE.to_owned(), reads.len() as f64 / elapsed.as_secs_f64())]);
    percentiles(&mut sample, "any", reads.iter().map(|(_, ns)| *ns).collect());
    let told = reads.iter().filter(|(source, _)| source.is_some()).count();
    for source in Source::ALL {
        let mine: Vec<u64> =
            reads.iter().filter(|(of, _)| *of == Some(source)).map(|(_, ns)| *ns).collect();
        if told > 0 {
            sample.insert(format!("{}.ratio", source.name()), mine.len() as f64 / told as f64);
        }
        percentiles(&mut sample, source.name(), mine);
    }
    if let (Some(bytes), Some(pages @ 1..)) =
        (after.get("zswap_stored_bytes"), after.get("zswap_stored_pages"))
    {
        sample.insert(
            "compressed_size_ratio".to_owned(),
            *bytes as f64 / (*pages as f64 * PAGE_SIZE as f64),
        );
    }
    let count = |name: &str| Some(after.get(name)?.saturating_sub(*before.get(name)?) as f64);
    let mut ratio = |name: &str, of: &str, to: &str| {
        if let (Some(of), Some(to @ 1.0..)) = (count(of), count(to)) {
            sample.insert(name.to_owned(), of / to);
        }
    };
    ratio(WRITTEN, "pswpout", "pswpin");
    ratio("pages_read_per_operation", "pswpin", "pswpin_ops");
    ratio("readahead_hit_ratio", "swap_ra_hit", "swap_ra");
    ratio("clean_dropped_per_page_read", "clean_dropped", "pswpin");
    Ok(sample)
}

/// Adds the median, the 99th and the 99.9th percentile, as far as there are reads enough.
fn percentiles(sample: &mut Sample, group: &str, mut ns: Vec<u64>) {
    ns.sort_unstable();
    for (name, share) in [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999)] {
        if ns.len() as f64 * (1.0 - share) >= BEYOND {
            let rank = (ns.len() as f64 * share).ceil() as usize;
            sample.insert(format!("{group}.{name}"), ns[rank.saturating_sub(1)] as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_told_by_the_farthest_counter_that_moved() {
        let names = ["pgfault", "zswpin", "pswpin_ops"];
        let before = Counters::from(names.map(|name| (name, 7)));
        let after =
            |moved: &[&str]| names.map(|name| (name, 7 + u64::from(moved.contains(&name)))).into();
        let source = |moved: &[&str]| Source::between(&before, &after(moved));
        assert_eq!(source(&[]), Source::Resident);
        assert_eq!(source(&["pgfault"]), Source::Minor);
        assert_eq!(source(&["pgfault", "zswpin"]), Source::Compressed);
        assert_eq!(source(&["pgfault", "zswpin", "pswpin_ops"]), Source::Device);
    }

    #[test]
    fn percentiles_are_told_where_there_are_reads_enough() {
        let reads: Vec<_> = (1..=1000).map(|ns| (Some(Source::Device), ns)).collect();
        let before = Counters::from([("pswpin", 0), ("pswpout", 0), ("pswpin_ops", 0)]);
        let mut after = Counters::from([("pswpin", 400), ("pswpout", 100), ("pswpin_ops", 200)]);
        after.extend([("zswap_stored_bytes", 4096), ("zswap_stored_pages", 2)]);
        let sample = of(&reads, Duration::from_secs(2), &before, &after).unwrap();
        assert_eq!(
            (sample["any.p50_ns"], sample["device.p99_ns"], sample["device.ratio"]),
            (500.0, 990.0, 1.0)
        );
        assert!(
            !sample.contains_key("any.p999_ns") && !sample.contains_key("minor.p50_ns"),
            "{sample:?}"
        );
        assert_eq!(
            (sample[RATE], sample[WRITTEN], sample["pages_read_per_operation"]),
            (500.0, 0.25, 2.0)
        );
        assert_eq!(sample["compressed_size_ratio"], 0.5);
        assert!(!sample.contains_key("readahead_hit_ratio"));
        assert!(of(&[], Duration::from_secs(1), &before, &after).is_err());
    }
}
