//! What the counters of a pool say between two moments, and figures made of them.

use super::sample::Sample;
use std::collections::BTreeMap;

/// Counters by name.
pub type Counters = BTreeMap<&'static str, u64>;

/// A figure that is one counter for so many of another: name, counter, factor, other counter.
pub type Ratio = (&'static str, &'static str, f64, &'static str);

/// Counters at two moments.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// When something began.
    pub before: &'a Counters,
    /// When it had ended.
    pub after: &'a Counters,
}

impl Counted<'_> {
    /// By how much a counter went up; `None` if the engine lacks it.
    pub fn get(&self, name: &str) -> Option<f64> {
        Some(self.after.get(name)?.saturating_sub(*self.before.get(name)?) as f64)
    }

    /// The same, or 0. A counter that is absent before has begun at 0.
    pub fn count(&self, name: &str) -> f64 {
        self.now(name) - self.before.get(name).copied().unwrap_or(0) as f64
    }

    /// What a counter says in the end, or 0.
    pub fn now(&self, name: &str) -> f64 {
        self.after.get(name).copied().unwrap_or(0) as f64
    }

    /// How many pages left memory.
    pub fn evicted(&self) -> f64 {
        self.count("pgsteal_kswapd") + self.count("pgsteal_direct")
    }

    /// Those figures whose counters the engine has, and of whose other counter there is something.
    pub fn ratios<'r>(
        &'r self,
        ratios: &'r [Ratio],
    ) -> impl Iterator<Item = (String, f64)> + use<'r> {
        ratios.iter().filter_map(|(figure, counter, factor, other)| {
            let other = self.get(other).filter(|other| *other > 0.0)?;
            Some(((*figure).to_owned(), self.get(counter)? * factor / other))
        })
    }

    /// The figures of a kind of lock, for 1,000 of `things`: how often it was taken (`per_1000`),
    /// the share of it that was contended, nanoseconds waited, held, and held without the holds so
    /// long that the holder must have been interrupted. Their counters begin with the lock's name.
    pub fn lock(&self, lock: &str, things: f64) -> Vec<(&'static str, f64)> {
        let counted = |end: &str| self.get(&format!("{lock}{end}"));
        let taken = counted("");
        let hold_ns = counted("_hold_ns");
        let short_ns = hold_ns.map(|ns| ns - counted("_long_ns").unwrap_or(0.0));
        let per_1000 = |value: Option<f64>| value.map(|value| value * 1000.0 / things);
        let figures = [
            ("per_1000", per_1000(taken)),
            // A lock that nobody took was not contended.
            ("contended_ratio", counted("_contended").zip(taken).map(|(n, of)| n / of.max(1.0))),
            ("wait_ns", per_1000(counted("_wait_ns"))),
            ("hold_ns", per_1000(hold_ns)),
            ("short_hold_ns", per_1000(short_ns)),
        ];
        figures.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// Adds figures to a sample.
pub fn add<N: Into<String>>(sample: &mut Sample, figures: impl IntoIterator<Item = (N, f64)>) {
    sample.extend(figures.into_iter().map(|(name, value)| (name.into(), value)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_what_was_counted_in_between() {
        let before = Counters::from([("lock", 5), ("lock_contended", 0), ("lock_hold_ns", 9)]);
        let after = Counters::from([
            ("lock", 25),
            ("lock_contended", 5),
            ("lock_hold_ns", 1009),
            ("pgsteal_direct", 3),
        ]);
        let counted = Counted { before: &before, after: &after };
        let expected = [
            ("per_1000", 200.0),
            ("contended_ratio", 0.25),
            ("hold_ns", 10_000.0),
            ("short_hold_ns", 10_000.0),
        ];
        assert_eq!(counted.lock("lock", 100.0), expected, "what is not counted is left out");
        assert_eq!((counted.get("pgsteal_direct"), counted.evicted()), (None, 3.0));
        let ratios = [("a", "lock_hold_ns", 2.0, "lock"), ("b", "lock", 1.0, "none")];
        assert_eq!(counted.ratios(&ratios).collect::<Vec<_>>(), [("a".to_owned(), 100.0)]);
        let still = Counted { before: &before, after: &before };
        assert_eq!(still.ratios(&ratios).count(), 0, "nothing for none");
        assert_eq!(still.lock("lock", 1.0)[1], ("contended_ratio", 0.0));
    }
}
