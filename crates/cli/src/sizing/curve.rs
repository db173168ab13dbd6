//! How many pages of a process would have come back with more memory, from what one run tells.
//!
//! The engine says of each how much memory would have kept it ([`StackDistances`]). It would have
//! come back from the compressed tier, had there been room for so much there, packed.

use overspill::config::Watermarks;
use overspill::stats::{Counter, Snapshot, StackDistances};
use overspill::units::PAGE_SIZE;

/// Packed less than this the compressed tier gains no room.
const DENSITY_LEAST: f64 = 1.05;

/// What is known of a process: pages, and means over the times at which pages came back.
#[derive(Clone, Debug)]
pub struct RefaultCurve {
    /// The most pages of memory with which some pages would still have left, the least with which
    /// all of them would have stayed, and how many these are.
    curve: Vec<(f64, f64, f64)>,
    /// Pages that came back, and those that left.
    pub refaults: f64,
    evictions: f64,
    /// What it might have in memory.
    pub limit: f64,
    /// The frames of the compressed tier, of these.
    tier: f64,
    /// How many pages a frame of the tier counts for, as what came from devices tells.
    density: f64,
    /// The most pages that it had, wherever they were.
    footprint: f64,
    /// Whether any came from devices: with more memory none would, either, if not.
    reads: bool,
}

/// Pages that come back, by where they come from.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Refaults {
    pub compressed: f64,
    pub device: f64,
}

impl Refaults {
    pub fn all(self) -> f64 {
        self.compressed + self.device
    }
}

/// What is seen of a process, for [`RefaultCurve::new`].
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub distances: StackDistances,
    /// Pages that left.
    pub evictions: f64,
    /// Pages that came back, of which the means are.
    pub limit: f64,
    pub tier_frames: f64,
    pub tier_pages: f64,
    /// Pages unpacked, and read from devices.
    pub unpacked: f64,
    pub read: f64,
    pub footprint: f64,
}

impl Observed {
    /// What the statistics of a process tell, which had at most so many pages.
    pub fn of(process: &Snapshot, footprint: f64) -> Observed {
        let get = |counter| process.get(counter) as f64;
        let seen = get(Counter::RefaultSeen).max(1.0);
        let mean = |counter| get(counter) / seen;
        Observed {
            distances: process.stack_distances.clone(),
            evictions: get(Counter::WorkingsetEvict),
            limit: usable(mean(Counter::RefaultLimitPages)),
            tier_frames: mean(Counter::RefaultTierFrames),
            tier_pages: mean(Counter::RefaultTierPages),
            unpacked: get(Counter::ZswpIn),
            read: get(Counter::PswpIn),
            footprint,
        }
    }
}

impl RefaultCurve {
    pub fn new(seen: &Observed) -> RefaultCurve {
        let curve = seen.distances.curve().map(|(most, least, count)| (most, least, count as f64));
        let nominal = seen.tier_pages / seen.tier_frames.max(1.0);
        let mut process = RefaultCurve {
            curve: curve.collect(),
            refaults: seen.distances.count() as f64,
            evictions: seen.evictions.max(seen.distances.count() as f64),
            limit: seen.limit,
            tier: seen.tier_frames.min(seen.limit),
            density: nominal.max(1.0),
            footprint: seen.footprint.max(seen.limit),
            reads: seen.read > 0.0,
        };
        process.fit_density(seen);
        process
    }

    /// What the tier holds is not quite what left last. So it counts for as much as makes the pages
    /// that were read from devices come out right.
    fn fit_density(&mut self, seen: &Observed) {
        let all = seen.unpacked + seen.read;
        if seen.read == 0.0 || self.tier < 1.0 || self.refaults == 0.0 {
            return;
        }
        let read = self.refaults * seen.read / all;
        let resident = self.limit - self.tier;
        let reach = |density: f64| self.beyond(resident + self.tier * density);
        // As dense as need be; no denser than is ever seen.
        let (mut low, mut high) = (1.0, 8.0 * self.density);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            match reach(middle) > read {
                true => low = middle,
                false => high = middle,
            }
        }
        self.density = high;
    }

    /// Pages that would come back, were there room for so many of those that were used last.
    fn beyond(&self, pages: f64) -> f64 {
        let beyond = |(most, least, count): &(f64, f64, f64)| {
            let [from, to] = [most, least].map(|all| all.min(self.footprint));
            let part = if to > from { (to - pages) / (to - from) } else { f64::from(to > pages) };
            count * part.clamp(0.0, 1.0)
        };
        self.curve.iter().map(beyond).sum()
    }

    /// The frames of the compressed tier with a limit of so many pages: those that what is away
    /// needs, but not a larger part than it had; and whether all of that fits there.
    fn tier(&self, limit: f64, density: f64) -> (f64, bool) {
        let away = (self.footprint - limit).max(0.0);
        let needed = if density > DENSITY_LEAST { away / (density - 1.0) } else { away };
        let most = limit * self.tier / self.limit.max(1.0);
        (needed.min(most), needed <= most && density > DENSITY_LEAST)
    }

    /// Pages that come back with a limit of so many pages, when the tier is so many times denser.
    pub fn refaults(&self, limit: f64, denser: f64) -> Refaults {
        let density = self.density * denser;
        let (tier, fits) = self.tier(limit, density);
        let all = self.beyond(limit - tier);
        let device = match fits || !self.reads {
            true => 0.0,
            false => self.beyond(limit - tier + tier * density).min(all),
        };
        Refaults { compressed: all - device, device }
    }

    /// Pages that leave then: for those that come back, and those that never did.
    pub fn evictions(&self, limit: f64, denser: f64) -> f64 {
        let away = |limit: f64| (self.footprint - limit).max(0.0);
        let part = away(limit) / away(self.limit).max(1.0);
        (self.evictions - self.refaults) * part.min(1.0) + self.refaults(limit, denser).all()
    }

    /// The part of the job's pages that it might have: all of them, if it was alone.
    pub fn share(&self, all: f64) -> f64 {
        (self.limit / all.max(1.0)).min(1.0)
    }
}

/// Of so many pages of a limit those that are not kept free.
pub fn usable(limit: f64) -> f64 {
    let [_, low, _] = Watermarks::default().pages(limit.max(0.0) as u64);
    (limit - low as f64).max(0.0)
}

/// Pages of so many bytes.
pub fn pages(bytes: u64) -> f64 {
    bytes as f64 / PAGE_SIZE as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An LRU list of so many pages: the stack distance of each that came back, and how many left.
    fn lru(accesses: &[u32], frames: usize) -> (Vec<u64>, u64) {
        let (mut stack, mut left, mut distances) = (Vec::new(), 0, Vec::new());
        for page in accesses {
            let at = stack.iter().rposition(|other| other == page);
            let above = at.map(|at| {
                stack.remove(at);
                stack.len() - at
            });
            distances.extend(above.filter(|above| *above >= frames).map(|above| above as u64));
            stack.push(*page);
            left += u64::from(stack.len() > frames && above.is_none_or(|above| above >= frames));
        }
        (distances, left)
    }

    fn predicted(accesses: &[u32], frames: usize, pages: usize) -> RefaultCurve {
        let (distances, left) = lru(accesses, frames);
        RefaultCurve::new(&Observed {
            unpacked: distances.len() as f64,
            distances: StackDistances::of(distances),
            evictions: left as f64,
            limit: frames as f64,
            footprint: pages as f64,
            ..Observed::default()
        })
    }

    /// Pages as a program accesses them: of a loop, at random, and some more often than others.
    fn accesses(kind: u8, pages: u32, mut seed: u64) -> Vec<u32> {
        let mut random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
            (seed >> 33) as f64 / f64::from(1u32 << 31)
        };
        let one = |at: u32| match kind {
            0 => at % pages,
            1 => (random() * f64::from(pages)) as u32 % pages,
            _ => (random().powi(3) * f64::from(pages)) as u32 % pages,
        };
        // All of it first.
        (0..pages).chain((0..20 * pages).map(one)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_predicted_is_what_lru_does(
            kind in 0u8..3, pages in 300u32..1500, part in 3usize..6, more in 1usize..9,
            seed in 1u64..1 << 40,
        ) {
            let accesses = accesses(kind, pages, seed);
            let frames = pages as usize / part;
            let process = predicted(&accesses, frames, pages as usize);
            let larger = frames + (pages as usize - frames) * more / 10;
            let measured = lru(&accesses, larger).0.len() as f64;
            let told = process.refaults(larger as f64, 1.0);
            let off = (told.all() - measured).abs();
            // Of a loop all come back, until it fits.
            prop_assert!(
                off <= 0.05 * process.refaults,
                "{kind}: {} of {} pages: {} predicted, {measured} measured",
                larger, pages, told.all()
            );
        }
    }

    #[test]
    fn a_loop_fits_from_its_size_on() {
        let process = predicted(&accesses(0, 1000, 1), 250, 1000);
        let all = |limit: f64| process.refaults(limit, 1.0).all() / process.refaults;
        assert!(all(250.0) > 0.99 && all(850.0) > 0.99, "{}", all(850.0));
        assert_eq!([all(1000.0), process.evictions(1000.0, 1.0)], [0.0; 2]);
    }

    #[test]
    fn what_is_beyond_the_tier_comes_from_devices_and_less_with_a_denser_one() {
        let (distances, left) = lru(&accesses(1, 1000, 7), 250);
        let n = distances.len() as f64;
        let process = RefaultCurve::new(&Observed {
            distances: StackDistances::of(distances),
            evictions: left as f64,
            limit: 350.0,
            tier_frames: 100.0,
            tier_pages: 250.0,
            unpacked: n / 2.0,
            read: n / 2.0,
            footprint: 1000.0,
        });
        let at = |limit, denser| process.refaults(limit, denser);
        let Refaults { compressed, device } = at(350.0, 1.0);
        assert!((device / n - 0.5).abs() < 0.02 && (compressed / n - 0.5).abs() < 0.02);
        assert!(at(350.0, 1.3).device < 0.9 * device);
        assert!(at(600.0, 1.0).device < 0.1 * device, "{:?}", at(600.0, 1.0));
        assert_eq!(at(1000.0, 1.0), Refaults::default());
    }

    #[test]
    fn a_process_of_which_nothing_left_has_no_refaults() {
        let process =
            RefaultCurve::new(&Observed { limit: 100.0, footprint: 50.0, ..Observed::default() });
        assert_eq!((process.refaults(100.0, 1.0).all(), process.evictions(100.0, 1.0)), (0.0, 0.0));
        assert_eq!(process.share(0.0), 1.0);
    }
}
