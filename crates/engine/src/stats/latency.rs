//! How long faults took to serve: a histogram for each place that their page came from.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Sub-buckets a power of two: an error of at most 1/8.
const SUB_BUCKETS: usize = 8;
/// Powers of two covered, from 1 ns.
const OCTAVES: usize = 40;
/// Buckets of a histogram.
const BUCKETS: usize = SUB_BUCKETS * OCTAVES;
/// Cells of the histograms in a shard of the table.
pub(super) const CELLS: usize = FaultSource::ALL.len() * BUCKETS;

/// Where the page of a fault came from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum FaultSource {
    /// From nowhere: it is new, and reads as zeros.
    Zero,
    /// The swap cache.
    Cache,
    /// Memory, where it was compressed or kept as a value that repeats.
    Compressed,
    /// A swap device: a major fault.
    Device,
    /// It was in place: a write to a page that was being evicted, or one that came in with another
    /// meanwhile.
    #[default]
    Place,
}

impl FaultSource {
    /// Of the time that such a fault takes, what more memory would spare. One for a new page may
    /// have had to reclaim another, which is not told apart.
    pub fn short_ns(self, ns: u64) -> u64 {
        match self {
            FaultSource::Cache | FaultSource::Compressed | FaultSource::Device => ns,
            FaultSource::Zero => ns / 4,
            FaultSource::Place => 0,
        }
    }

    /// All of them, in the order of the table.
    pub const ALL: [FaultSource; 5] = [
        FaultSource::Zero,
        FaultSource::Cache,
        FaultSource::Compressed,
        FaultSource::Device,
        FaultSource::Place,
    ];

    /// The name under which it is printed.
    pub fn name(self) -> &'static str {
        match self {
            FaultSource::Zero => "zero",
            FaultSource::Cache => "cache",
            FaultSource::Compressed => "compressed",
            FaultSource::Device => "device",
            FaultSource::Place => "place",
        }
    }
}

/// The cell that counts a fault which took so long.
pub(super) fn cell(source: FaultSource, ns: u64) -> usize {
    source as usize * BUCKETS + bucket(ns)
}

/// The bucket of a value, of eight a doubling.
pub(super) fn bucket(ns: u64) -> usize {
    // Values below SUB_BUCKETS have a bucket each; above, the top three bits below the leading one
    // choose.
    if ns < SUB_BUCKETS as u64 {
        return ns as usize;
    }
    let octave = 63 - ns.leading_zeros() as usize;
    let sub = (ns >> (octave - 3)) as usize & (SUB_BUCKETS - 1);
    ((octave - 2) * SUB_BUCKETS + sub).min(BUCKETS - 1)
}

/// Highest value of a bucket.
pub(super) fn bucket_top(index: usize) -> u64 {
    if index < SUB_BUCKETS {
        return index as u64;
    }
    let octave = index / SUB_BUCKETS + 2;
    let sub = (index % SUB_BUCKETS) as u64;
    (1 << octave) + ((sub + 1) << (octave - 3)) - 1
}

/// Times of faults, counted in buckets: each figure is too high by an eighth at most.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    /// Of each bucket; none at all stands for zeros.
    counts: Vec<u64>,
}

impl Histogram {
    /// Of buckets by their number; those beyond the last count as the last.
    pub fn of_buckets(buckets: impl IntoIterator<Item = (u16, u64)>) -> Histogram {
        let mut counts = vec![0u64; BUCKETS];
        for (index, count) in buckets {
            let cell = &mut counts[usize::from(index).min(BUCKETS - 1)];
            *cell = cell.saturating_add(count);
        }
        Histogram { counts }
    }

    /// The buckets that are not empty, by their number.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, u64)> {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(index, count)| (index as u16, *count))
    }

    /// How many faults there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The time within which so many of 1,000 faults were served, in nanoseconds; 0 where there was
    /// none.
    pub fn within_ns(&self, per_mille: u64) -> u64 {
        let total: u128 = self.counts.iter().map(|count| u128::from(*count)).sum();
        let rank = (total * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank {
                return bucket_top(index);
            }
        }
        0
    }

    /// How many of them took less than a time, in nanoseconds: exact for powers of two.
    pub fn count_below(&self, ns: u64) -> u64 {
        let below = self.counts.iter().enumerate().take_while(|(index, _)| bucket_top(*index) < ns);
        below.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// The longest, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.counts.iter().rposition(|count| *count > 0).map_or(0, bucket_top)
    }

    /// All together, in nanoseconds.
    pub fn total_ns(&self) -> u64 {
        let bucket = |(index, count): (usize, &u64)| count.saturating_mul(bucket_top(index));
        self.counts.iter().enumerate().map(bucket).fold(0, u64::saturating_add)
    }

    /// Adds others.
    pub fn merge(&mut self, others: &Histogram) {
        self.counts.resize(BUCKETS, 0);
        self.counts
            .iter_mut()
            .zip(&others.counts)
            .for_each(|(to, from)| *to = to.saturating_add(*from));
    }

    /// What has come since an `earlier` moment.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let earlier = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        Histogram {
            counts: self
                .counts
                .iter()
                .zip(earlier)
                .map(|(now, then)| now.saturating_sub(then))
                .collect(),
        }
    }
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("count", &self.count())?;
        for (name, per_mille) in
            [("p50_ns", 500), ("p90_ns", 900), ("p99_ns", 990), ("p999_ns", 999)]
        {
            map.serialize_entry(name, &self.within_ns(per_mille))?;
        }
        map.serialize_entry("max_ns", &self.max_ns())?;
        map.serialize_entry("total_ns", &self.total_ns())?;
        map.end()
    }
}

/// Times of faults by where their pages came from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Latencies {
    sources: [Histogram; FaultSource::ALL.len()],
}

impl Latencies {
    /// As `of` has them.
    pub fn new(of: impl FnMut(FaultSource) -> Histogram) -> Latencies {
        Latencies { sources: FaultSource::ALL.map(of) }
    }

    /// From the cells of all shards, added up.
    pub(super) fn of_cells(cells: &[u64]) -> Latencies {
        Latencies::new(|source| Histogram {
            counts: cells[source as usize * BUCKETS..][..BUCKETS].to_vec(),
        })
    }

    /// Those of one source.
    pub fn of(&self, source: FaultSource) -> &Histogram {
        &self.sources[source as usize]
    }

    /// All faults together.
    pub fn all(&self) -> Histogram {
        self.sum(|_| true)
    }

    /// Those that read no device.
    pub fn minor(&self) -> Histogram {
        self.sum(|source| source != FaultSource::Device)
    }

    fn sum(&self, counts: impl Fn(FaultSource) -> bool) -> Histogram {
        let mut sum = Histogram::default();
        FaultSource::ALL
            .iter()
            .filter(|source| counts(**source))
            .for_each(|source| sum.merge(self.of(*source)));
        sum
    }

    /// Each kind with its name: all, minor, major, and by source.
    pub fn kinds(&self) -> Vec<(&'static str, Histogram)> {
        let major = self.of(FaultSource::Device).clone();
        let mut kinds = vec![("all", self.all()), ("minor", self.minor()), ("major", major)];
        kinds.extend(FaultSource::ALL.map(|source| (source.name(), self.of(source).clone())));
        kinds
    }

    /// Adds others.
    pub fn merge(&mut self, others: &Latencies) {
        self.sources.iter_mut().zip(&others.sources).for_each(|(to, from)| to.merge(from));
    }

    /// What has come since an `earlier` moment.
    pub fn since(&self, earlier: &Latencies) -> Latencies {
        Latencies::new(|source| self.of(source).since(earlier.of(source)))
    }
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.kinds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_ordered_and_within_an_eighth() {
        let mut last = 0;
        for ns in (0..10_000).chain((10_000..1 << 30).step_by(99_991)) {
            let b = bucket(ns);
            assert!(b >= last || ns == 10_000, "{ns}");
            last = b;
            assert!(bucket_top(b) >= ns && bucket_top(b) - ns <= ns / 8, "{ns} {}", bucket_top(b));
        }
    }

    fn times(source: FaultSource, ns: &[u64]) -> Latencies {
        let of = |of| if of == source { ns } else { &[] };
        Latencies::new(|source| {
            Histogram::of_buckets(of(source).iter().map(|ns| (bucket(*ns) as u16, 1)))
        })
    }

    #[test]
    fn kinds_add_up() {
        let mut all = times(FaultSource::Device, &[80_000; 3]);
        all.merge(&times(FaultSource::Compressed, &[4_000; 5]));
        all.merge(&times(FaultSource::Zero, &[900; 2]));
        let counts: Vec<_> =
            all.kinds().iter().map(|(name, times)| (*name, times.count())).collect();
        let expected = [
            ("all", 10),
            ("minor", 7),
            ("major", 3),
            ("zero", 2),
            ("cache", 0),
            ("compressed", 5),
            ("device", 3),
            ("place", 0),
        ];
        assert_eq!(counts, expected);
        assert!((4_000..4_500).contains(&all.all().within_ns(500)), "{}", all.all().within_ns(500));
        assert!((80_000..90_000).contains(&all.all().max_ns()));
        assert!((240_000..270_000).contains(&all.of(FaultSource::Device).total_ns()));
        let later = {
            let mut later = all.clone();
            later.merge(&times(FaultSource::Zero, &[7; 4]));
            later
        };
        assert_eq!(later.since(&all), times(FaultSource::Zero, &[7; 4]));
        assert_eq!(later.since(&Latencies::default()), later);
        assert_eq!((Histogram::default().within_ns(500), Histogram::default().max_ns()), (0, 0));
    }

    #[test]
    fn buckets_are_what_they_were_made_of() {
        let histogram = Histogram::of_buckets([(3, 5), (200, 1), (u16::MAX, 2)]);
        assert_eq!(
            histogram.buckets().collect::<Vec<_>>(),
            [(3, 5), (200, 1), (BUCKETS as u16 - 1, 2)]
        );
        let json = serde_json::to_value(&histogram).unwrap();
        assert_eq!((&json["count"], &json["p50_ns"]), (&8.into(), &3.into()), "{json}");
    }

    #[test]
    fn counts_below_a_power_of_two_are_exact() {
        let all = [0, 1, 1_023, 1_024, 1_025, 2_047, 2_048, 1 << 50];
        let times = times(FaultSource::Zero, &all);
        let below = [0, 1, 1_024, 2_048, 4_096, u64::MAX];
        let counts = below.map(|ns| times.of(FaultSource::Zero).count_below(ns));
        assert_eq!(counts, [0, 1, 3, 6, 7, 8]);
        assert_eq!(Histogram::default().count_below(1), 0);
    }
}
