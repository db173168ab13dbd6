//! The curve that refault distances make: how many refaults there would not have been, had so many
//! pages more been kept.

/// Buckets of distances: four a power of two, up to what stamps can tell.
pub const BUCKETS: usize = 4 * 30;

/// The bucket of a distance.
pub fn bucket(distance: u64) -> usize {
    if distance < 4 {
        return distance as usize;
    }
    let octave = distance.ilog2() as usize;
    ((octave - 1) * 4 + (distance >> (octave - 2) & 3) as usize).min(BUCKETS - 1)
}

/// The shortest distance of a bucket.
fn bottom(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    (4 + bucket as u64 % 4) << (bucket / 4 - 1)
}

/// What keeping more pages would save.
#[derive(Debug)]
pub struct Curve {
    /// Pages that have left memory.
    pub left: f64,
    /// Those that came back, by bucket of their distance.
    pub refaults: [f64; BUCKETS],
}

impl Curve {
    /// How many refaults there would not have been, had the last `pages` pages been kept that have
    /// left and not come back; None where the curve does not reach so far: the program has just
    /// begun to do something else.
    pub fn within(&self, pages: f64) -> Option<f64> {
        let (mut kept, mut back) = (0.0, 0.0);
        for (i, refaults) in self.refaults.iter().enumerate() {
            let width = (bottom(i + 1) - bottom(i)) as f64;
            // Of those that left so long ago, the part that is still away.
            let away = (1.0 - (back + refaults / 2.0) / self.left.max(1.0)).max(0.0);
            if kept + width * away > pages {
                return Some(back + refaults * (pages - kept) / (width * away));
            }
            (kept, back) = (kept + width * away, back + refaults);
        }
        None
    }

    /// The same; all refaults where the curve does not reach so far.
    pub fn within_or_all(&self, pages: f64) -> f64 {
        self.within(pages.max(0.0)).unwrap_or_else(|| self.refaults.iter().sum())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_distances() {
        for bucket_number in 0..BUCKETS {
            let (first, next) = (bottom(bucket_number), bottom(bucket_number + 1));
            assert!(first < next);
            assert_eq!((bucket(first), bucket(next - 1)), (bucket_number, bucket_number));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    /// A curve of refaults with some distances, of so many pages that left.
    pub fn curve(left: u64, distances: impl IntoIterator<Item = u64>) -> Curve {
        let mut refaults = [0.0; BUCKETS];
        distances.into_iter().for_each(|distance| refaults[bucket(distance)] += 1.0);
        Curve { left: left as f64, refaults }
    }

    #[test]
    fn a_curve_counts_what_is_still_away() {
        // Nobody comes back: all that left is away.
        assert_eq!(curve(1000, []).within(500.0), Some(0.0));
        // Half come back after about 100: later ages hold half as many, so 200 kept pages reach to
        // an age of about 300.
        let half = curve(1000, (0..500).map(|_| 100));
        assert_eq!(half.within(50.0), Some(0.0));
        assert_eq!(half.within(200.0), Some(500.0));
        let late = curve(1000, (0..500).map(|_| 100).chain((0..100).map(|_| 300)));
        assert_eq!(late.within(150.0), Some(500.0));
        assert!(late.within(230.0) > Some(520.0), "{:?}", late.within(230.0));
        // All have come back: where the pages are that were not seen is not known.
        assert_eq!(curve(1000, 0..1000).within(2000.0), None);
    }
}
