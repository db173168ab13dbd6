//! Numbers that come up the more often the smaller their rank is: the share of rank r goes with 1 /
//! r^0.99, as in YCSB.
//!
//! The method is that of Gray and others, "Quickly generating billion-record synthetic databases"
//! (1994).

use crate::contents::Random;

/// How uneven it is: 0 is uniform.
const THETA: f64 = 0.99;
/// A prime by which ranks are spread over the numbers, so that those that come up often do not lie
/// together.
const SPREAD: u64 = 2_654_435_761;

/// A generator of such numbers below an end.
#[derive(Clone, Debug)]
pub struct Zipf {
    end: u64,
    alpha: f64,
    eta: f64,
    zeta: f64,
    zeta2: f64,
}

impl Zipf {
    /// One of numbers below `end`, which must be less than the prime that ranks are spread by.
    pub fn new(end: u64) -> Zipf {
        let zeta = |n: u64| (1..=n).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let (all, two) = (zeta(end), zeta(2.min(end)));
        let eta = (1.0 - (2.0 / end as f64).powf(1.0 - THETA)) / (1.0 - two / all);
        Zipf { end, alpha: 1.0 / (1.0 - THETA), eta, zeta: all, zeta2: two }
    }

    /// The next number.
    pub fn next(&mut self, random: &mut Random) -> u64 {
        let share = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let uz = share * self.zeta;
        let rank = if uz < 1.0 {
            0
        } else if uz < self.zeta2 {
            1
        } else {
            (self.end as f64 * (self.eta * share - self.eta + 1.0).powf(self.alpha)) as u64
        };
        // The prime divides no end below it, so that each number has one rank.
        (u128::from(rank.min(self.end - 1)) * u128::from(SPREAD) % u128::from(self.end)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_numbers_make_up_most_of_it_and_all_are_below_the_end() {
        const END: u64 = 10_000;
        let (mut zipf, mut random) = (Zipf::new(END), Random::new(1));
        let mut seen = vec![0u32; END as usize];
        (0..200_000).for_each(|_| seen[zipf.next(&mut random) as usize] += 1);
        let first = f64::from(seen[0]) / 200_000.0;
        // 1 / zeta(10,000, 0.99)
        assert!((0.095..0.105).contains(&first), "{first}");
        seen.sort_unstable();
        let top: u32 = seen.iter().rev().take(100).sum();
        assert!((0.5..0.6).contains(&(f64::from(top) / 200_000.0)), "{top}");
        assert!(seen.iter().filter(|n| **n > 0).count() > 8000);
        for end in 1..4 {
            let mut few = Zipf::new(end);
            (0..100).for_each(|_| assert!(few.next(&mut random) < end));
        }
    }
}
