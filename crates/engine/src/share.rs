//! The compressed tier's share of the budget, by what refaults tell (setting `compressed=auto`).
//!
//! A frame holds a page as it is, or two or three compressed ones. What is right for the one or the other depends on the program:
//! where accesses are spread evenly, compressed pages save more reads of devices the more there are; where few pages are hot, each
//! frame less for them is paid for with pages that are unpacked again and again.
//!
//! Each page that comes back says how many others have left since it did: its *refault distance*, known by the stamp that its slot
//! keeps. A histogram of these distances is a curve: so many refaults there would not have been, had so many pages more been kept.
//! Twice it is looked at:
//!
//! - at its beginning: pages that came back from the tier, or from a device, before a step's worth of frames was needed by others.
//!   A step more of frames for pages as they are would have saved unpacking them, and the packing of others for them;
//! - around the number of compressed pages: those beyond it came from devices, and would have been in a tier larger by a step;
//!   those before it are in the tier, and would have been on devices with a smaller one.
//!
//! Each is worth its count by what such faults have taken lately. The share goes a step to where more is saved. Pages that come
//! back do not age further: of what has left, the curve counts as kept only what had not come back by then.
//!
//! Without room on devices there is no choice: the tier takes as much as it may. While devices are not read it stays as it is. The method is that of miss ratio curves from
//! reuse distances, with the kernel's shadow entries as the source of these (mm/workingset.c).
//!
//! Looked at by the background thread alone, inside the gate of reclaim. No locks.

use crate::base::PAGE_SHIFT;
use crate::config::CompressedMax;
use crate::engine::Engine;
use crate::stats::{Counter, FaultSource};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What shares are counted in: parts of the budget.
const WHOLE: u32 = 1024;
/// How far the share goes at a time: 1/32 of the budget.
const STEP: u32 = WHOLE / 32;
/// Where it begins: what fits compressed at 1.8 times the budget does not go to a device.
const FIRST: u32 = WHOLE * 65 / 100;
/// Between these: pages that are used need frames, and so does what waits to be written.
const LEAST: u32 = WHOLE * 10 / 100;
const MOST: u32 = WHOLE * 85 / 100;
/// The same where there is no room on devices.
const MOST_ALONE: u32 = WHOLE * 90 / 100;
/// How often it is looked at: whenever a part of the budget has left memory.
const PERIODS: u64 = 4;
/// What is counted of the past, in periods: so few that a step is not taken again for what led to the last.
const REMEMBERED: u64 = 2;
/// How many reads of devices a step's worth of frames must save for a step up, as a part of these frames.
const READS_LEAST: f64 = 1.0 / 8.0;
/// The same for a step down, of refaults that are near. Where accesses are spread evenly over more than twice the budget, fewer are;
/// and a page that is written to a device for a few, and read again later, is a loss.
const NEAR_LEAST: f64 = 1.0 / 2.0;
/// How full the tier must be for it to take more, in percent of what it may: below that it has room as it is.
const FULL_PERCENT: usize = 85;
/// How much more must be saved than lost, so that chance does not move the share to and fro.
const MARGIN: f64 = 1.25;
/// What is saved along with an unpacked page: another has to be packed for its frame, mostly by another thread.
const PACKING: f64 = 1.5;
/// Buckets of distances: four a power of two, up to what stamps can tell.
const BUCKETS: usize = 4 * 30;

fn bucket(distance: u64) -> usize {
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

/// How long pages took to bring in, all together.
#[derive(Debug, Default)]
struct Took {
    ns: AtomicU64,
    pages: AtomicU64,
}

impl Took {
    fn average_ns(&self) -> f64 {
        self.ns.load(Relaxed) as f64 / self.pages.load(Relaxed).max(1) as f64
    }

    fn fade(&self) {
        [&self.ns, &self.pages].into_iter().for_each(|sum| fade(sum, 0));
    }
}

/// Forgets a part of a sum, as time passes, and adds to it.
fn fade(sum: &AtomicU64, more: u64) {
    let old = sum.load(Relaxed);
    sum.store(old * (REMEMBERED - 1) / REMEMBERED + more, Relaxed);
}

/// The share, and what it follows from.
#[derive(Debug)]
pub(crate) struct Share {
    /// The tier's, in parts of [`WHOLE`].
    now: AtomicU32,
    /// By bucket of distances.
    refaults: [AtomicU64; BUCKETS],
    compressed: Took,
    device: Took,
    /// Pages that have left memory: in the time that is remembered, and in all when it was looked at last.
    left: AtomicU64,
    looked: AtomicU64,
}

impl Share {
    /// For a pool with this setting.
    pub fn new(setting: CompressedMax) -> Share {
        let now = match setting {
            CompressedMax::Auto => FIRST,
            CompressedMax::Percent(percent) => (WHOLE * u32::from(percent)).div_ceil(100),
        };
        Share {
            now: now.into(),
            refaults: [const { AtomicU64::new(0) }; BUCKETS],
            compressed: Took::default(),
            device: Took::default(),
            left: AtomicU64::new(0),
            looked: AtomicU64::new(0),
        }
    }

    /// Frames that the compressed tier may take of a budget of `pages`.
    pub fn frames(&self, pages: u64) -> usize {
        (pages * u64::from(self.now.load(Relaxed)) / u64::from(WHOLE)) as usize
    }

    /// A page came back after `distance` others had left.
    pub fn note_refault(&self, distance: u64) {
        self.refaults[bucket(distance)].fetch_add(1, Relaxed);
    }

    /// A fault brought in some pages.
    pub fn note_fault(&self, source: FaultSource, ns: u64, pages: usize) {
        let took = match source {
            FaultSource::Compressed => &self.compressed,
            FaultSource::Device => &self.device,
            FaultSource::Zero | FaultSource::Cache | FaultSource::Place => return,
        };
        took.ns.fetch_add(ns, Relaxed);
        took.pages.fetch_add(pages as u64, Relaxed);
    }

    /// Whether a period has passed since the last look, now that `left` pages have left memory in all.
    fn is_due(&self, left: u64, budget: u64) -> bool {
        left.wrapping_sub(self.looked.load(Relaxed)) >= budget / PERIODS
    }

    /// A step up or down, if it is worth it; whether there was one.
    fn follow(&self, left: u64, tiers: Tiers) -> bool {
        let passed = left.wrapping_sub(self.looked.swap(left, Relaxed));
        let now = self.now.load(Relaxed);
        fade(&self.left, passed);
        let curve = Curve {
            left: self.left.load(Relaxed) as f64,
            refaults: std::array::from_fn(|i| self.refaults[i].load(Relaxed) as f64),
        };
        let costs = Costs {
            compressed_ns: self.compressed.average_ns(),
            device_ns: self.device.average_ns(),
            device_reads: self.device.pages.load(Relaxed) as f64,
        };
        let next = match verdict(&curve, tiers, costs) {
            _ if !tiers.has_devices => MOST_ALONE,
            Verdict::Grow => (now + STEP).min(MOST),
            Verdict::Shrink => now.saturating_sub(STEP).clamp(LEAST, MOST),
            Verdict::Stay => now.min(MOST),
        };
        // Refaults of the time that is remembered, as is what left in it.
        self.refaults.iter().for_each(|bucket| fade(bucket, 0));
        [&self.compressed, &self.device].into_iter().for_each(Took::fade);
        self.now.store(next, Relaxed);
        next != now
    }
}

/// How things stand.
#[derive(Clone, Copy, Debug)]
struct Tiers {
    /// Frames of the budget, and those of the compressed tier.
    budget: u64,
    frames: u64,
    /// What is compressed.
    pages: u64,
    /// Whether the tier takes what it may.
    is_full: bool,
    /// Whether devices have room.
    has_devices: bool,
}

/// What a page takes to bring in.
#[derive(Clone, Copy, Debug)]
struct Costs {
    compressed_ns: f64,
    device_ns: f64,
    /// Pages that were read from devices.
    device_reads: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Grow,
    Stay,
    Shrink,
}

/// What keeping more pages would save.
struct Curve {
    /// Pages that have left memory.
    left: f64,
    /// Those that came back, by bucket of their distance.
    refaults: [f64; BUCKETS],
}

impl Curve {
    /// How many refaults there would not have been, had the last `pages` pages been kept that have left and not come back; None where
    /// the curve does not reach so far: the program has just begun to do something else.
    fn within(&self, pages: f64) -> Option<f64> {
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
}

fn verdict(curve: &Curve, tiers: Tiers, costs: Costs) -> Verdict {
    let step = (tiers.budget * u64::from(STEP) / u64::from(WHOLE)) as f64;
    let (pages, frames) = (tiers.pages as f64, tiers.frames as f64);
    // While devices are not read all is well: a smaller tier would make them be.
    if frames < step || costs.device_reads < READS_LEAST * step {
        return Verdict::Stay;
    }
    // What a step more for the one takes from the other: a frame for each page as it is, one for several compressed.
    let more = step * (pages / frames - 1.0).max(0.0);
    let beyond_ns = (costs.device_ns - costs.compressed_ns).max(0.0);
    let marks = [step, pages - more, pages, pages + more].map(|pages| curve.within(pages));
    let [Some(near), Some(before), Some(edge), Some(behind)] = marks else { return Verdict::Stay };
    let (farther, nearer) = (behind - edge, edge - before);
    let as_they_are = near * costs.compressed_ns * PACKING;
    if tiers.is_full && farther >= READS_LEAST * step && farther * beyond_ns > MARGIN * as_they_are {
        Verdict::Grow
    } else if near >= NEAR_LEAST * step && as_they_are > MARGIN * nearer.max(farther) * beyond_ns {
        Verdict::Shrink
    } else {
        Verdict::Stay
    }
}

impl Engine {
    /// Lets the compressed tier's share of the budget follow what refaults tell.
    pub(crate) fn follow_refaults(&self) {
        let left = self.evictions.load(Relaxed);
        if self.config.compressed_max != CompressedMax::Auto || !self.share.is_due(left, self.budget().limit()) {
            return;
        }
        let (used, capacity) =
            (self.stats.get(Counter::DevicePages) << PAGE_SHIFT, self.stats.get(Counter::DeviceCapacityBytes));
        let tiers = Tiers {
            budget: self.budget().limit(),
            frames: self.compressed.frames() as u64,
            pages: self.stats.get(Counter::CompressedPages),
            is_full: self.compressed.is_above_percent(FULL_PERCENT),
            has_devices: used < capacity,
        };
        if self.share.follow(left, tiers) {
            self.compressed.set_limit(self.share.frames(tiers.budget));
            self.publish_tiers();
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn curve(left: u64, distances: impl IntoIterator<Item = u64>) -> Curve {
        let mut refaults = [0.0; BUCKETS];
        distances.into_iter().for_each(|distance| refaults[bucket(distance)] += 1.0);
        Curve { left: left as f64, refaults }
    }

    #[test]
    fn a_curve_counts_what_is_still_away() {
        // Nobody comes back: all that left is away.
        assert_eq!(curve(1000, []).within(500.0), Some(0.0));
        // Half come back after about 100: later ages hold half as many, so 200 kept pages reach to an age of about 300.
        let half = curve(1000, (0..500).map(|_| 100));
        assert_eq!(half.within(50.0), Some(0.0));
        assert_eq!(half.within(200.0), Some(500.0));
        let late = curve(1000, (0..500).map(|_| 100).chain((0..100).map(|_| 300)));
        assert_eq!(late.within(150.0), Some(500.0));
        assert!(late.within(230.0) > Some(520.0), "{:?}", late.within(230.0));
        // All have come back: where the pages are that were not seen is not known.
        assert_eq!(curve(1000, 0..1000).within(2000.0), None);
    }

    /// 10,000 frames, of which 6,500 hold 16,250 compressed pages.
    const TIERS: Tiers = Tiers { budget: 10_000, frames: 6_500, pages: 16_250, is_full: true, has_devices: true };
    const COSTS: Costs = Costs { compressed_ns: 10_000.0, device_ns: 70_000.0, device_reads: 1_000.0 };

    #[test]
    fn the_share_goes_to_where_more_is_saved() {
        // Evenly spread over distances beyond the tier's: a larger one saves reads of devices.
        let even = || (0..9_000u64).map(|i| i * 5);
        assert_eq!(verdict(&curve(10_000, even()), TIERS, COSTS), Verdict::Grow);
        // But not where devices are as fast, or it has room.
        let fast = Costs { device_ns: 12_000.0, ..COSTS };
        assert_eq!(verdict(&curve(10_000, even()), TIERS, fast), Verdict::Stay);
        assert_eq!(verdict(&curve(10_000, even()), Tiers { is_full: false, ..TIERS }, COSTS), Verdict::Stay);
        // Most are back at once: they had better stayed.
        let soon = even().step_by(10).chain((0..5_000).map(|i| i % 300));
        assert_eq!(verdict(&curve(10_000, soon), TIERS, COSTS), Verdict::Shrink);
        // All of a loop over more than both hold: nothing is told.
        assert_eq!(verdict(&curve(10_000, (0..10_000).map(|_| 50_000)), TIERS, COSTS), Verdict::Stay);
        // Nor where no device is read.
        let none = Costs { device_reads: 0.0, ..COSTS };
        assert_eq!(verdict(&curve(10_000, (0..5_000).map(|i| i % 300)), TIERS, none), Verdict::Stay);
        // Pages that hardly compress gain no room.
        let dense = Tiers { pages: 6_600, ..TIERS };
        assert_eq!(verdict(&curve(10_000, even()), dense, COSTS), Verdict::Stay);
    }

    #[test]
    fn it_moves_by_steps_within_its_bounds() {
        let share = Share::new(CompressedMax::Auto);
        assert_eq!(share.frames(1000), 649);
        let mut left = 0;
        let mut follow = |distance: u64, tiers: Tiers| {
            (0..500).for_each(|_| share.note_refault(distance));
            share.note_fault(FaultSource::Compressed, 10_000, 1);
            share.note_fault(FaultSource::Device, 50_000_000, 1_000);
            left += 2500;
            share.follow(left, tiers);
            share.now.load(Relaxed)
        };
        assert_eq!(follow(100, TIERS), FIRST - STEP);
        (0..50).for_each(|_| {
            let frames = share.frames(10_000) as u64;
            follow(100, Tiers { frames, pages: frames * 5 / 2, ..TIERS });
        });
        assert_eq!(share.now.load(Relaxed), LEAST);
        // Without devices it takes what it may; and gives some back where there are some again.
        let alone = Tiers { has_devices: false, ..TIERS };
        assert_eq!(follow(100, alone), MOST_ALONE);
        assert!(follow(200_000, TIERS) <= MOST);
        assert!(!share.is_due(left + 10, 10_000) && share.is_due(left + 2500, 10_000));
    }
}
