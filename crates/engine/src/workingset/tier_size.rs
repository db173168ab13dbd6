//! The size of the compressed tier, a fraction of the budget, by what refaults tell (setting
//! `compressed=auto`).
//!
//! A frame holds a page as it is, or two or three compressed ones. What is right for the one or the
//! other depends on the program: where accesses are spread evenly, compressed pages save more reads
//! of devices the more there are; where few pages are hot, each frame less for them is paid for
//! with pages that are unpacked again and again.
//!
//! Each page that comes back says how many others have left since it did: its *refault distance*,
//! known by the stamp that its slot keeps. A histogram of these distances is a curve: so many
//! refaults there would not have been, had so many pages more been kept. It is looked at in three
//! places:
//!
//! - at its beginning: pages that came back from the tier, or from a device, before a step's worth
//!   of frames was needed by others. One more step of uncompressed memory would have saved these
//!   decompressions, and the compressions that made room;
//! - around the number of compressed pages: those beyond it came from devices, and would have been
//!   in a tier larger by a step; those before it are in the tier, and would have been on devices
//!   with a smaller one;
//! - between the two, for a program that goes round in what it has: no page of it comes back before
//!   all of it has left, so a step saves nothing there, and enough of them save every refault.
//!
//! Each is worth its count by what such faults have taken lately. Pages that come back do not age
//! further: of what has left, the curve counts as kept only what had not come back by then.
//!
//! A tier with room to spare also keeps the copies of pages that it gave back
//! ([`crate::swap::clean`]), which then leave without being packed again. So a step more of tier is
//! worth the packing of as many pages as leave in place of these copies, and a step less costs
//! that, before it costs reads of devices.
//!
//! The size goes a step to where more is saved. Without room on devices there is no choice: the
//! tier takes as much as it may. The method is that of miss ratio curves from reuse distances, with
//! the kernel's shadow entries as the source of these (mm/workingset.c).
//!
//! Looked at by the background thread alone, inside the gate of reclaim. No locks.

mod curve;
mod density;
mod terms;
mod trade;

use crate::stats::FaultSource;
use crate::workingset::settings::CompressedMax;
use curve::{BUCKETS, Curve, bucket};
pub(crate) use density::Density;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
pub use terms::Tiers;
use terms::{CopyFates, Costs, LEAST, MOST, Past, STEP, WHOLE};
use trade::Verdict;

/// Where it begins: what LZ4 packs 2.5:1 does not go to a device while it is up to twice the
/// budget. Where a few pages are hot, that is too much, and is found out soon.
const FIRST: u32 = WHOLE * 75 / 100;
/// The same where there is no room on devices.
const MOST_ALONE: u32 = WHOLE * 90 / 100;
/// How often it is looked at: whenever a part of the budget has left memory.
const PERIODS: u64 = 4;
/// What is counted of the past, in periods: so few that a step is not taken again for what led to
/// the last.
const REMEMBERED: u64 = 2;
/// How full the tier must be for it to take more, in percent of what it may: below that it has room
/// as it is.
pub const FULL_PERCENT: usize = 85;

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

/// The size of the tier, and what it follows from.
#[derive(Debug)]
pub(crate) struct TierSize {
    /// In parts of the budget, [`WHOLE`] of them.
    now: AtomicU32,
    /// By bucket of distances.
    refaults: [AtomicU64; BUCKETS],
    compressed: Took,
    device: Took,
    /// Pages that left as they had come, by a copy that the tier had kept, and those for which it
    /// had no room to keep one.
    kept: AtomicU64,
    unkept: AtomicU64,
    /// Pages that have left memory: in the time that is remembered, and in all when it was looked
    /// at last.
    left: AtomicU64,
    looked: AtomicU64,
}

impl TierSize {
    /// For a pool with this setting.
    pub fn new(setting: CompressedMax) -> TierSize {
        let now = match setting {
            CompressedMax::Auto => FIRST,
            CompressedMax::Percent(percent) => (WHOLE * u32::from(percent)).div_ceil(100),
        };
        TierSize {
            now: now.into(),
            refaults: [const { AtomicU64::new(0) }; BUCKETS],
            compressed: Took::default(),
            device: Took::default(),
            kept: AtomicU64::new(0),
            unkept: AtomicU64::new(0),
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

    /// A page left by the compressed copy that was kept of it.
    pub fn note_kept(&self) {
        self.kept.fetch_add(1, Relaxed);
    }

    /// The tier had no room to keep the copies of `pages` that are in memory.
    pub fn note_unkept(&self, pages: usize) {
        self.unkept.fetch_add(pages as u64, Relaxed);
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

    /// Whether a period has passed since the last look, now that `left` pages have left memory in
    /// all.
    pub(super) fn is_due(&self, left: u64, budget: u64) -> bool {
        left.wrapping_sub(self.looked.load(Relaxed)) >= budget / PERIODS
    }

    /// What there is to be learnt from the time that is remembered, now that `left` pages have
    /// left; a part of it is forgotten.
    pub(super) fn look(&self, left: u64) -> Past {
        fade(&self.left, left.wrapping_sub(self.looked.swap(left, Relaxed)));
        let past = Past {
            curve: Curve {
                left: self.left.load(Relaxed) as f64,
                refaults: std::array::from_fn(|i| self.refaults[i].load(Relaxed) as f64),
            },
            copies: CopyFates {
                kept: self.kept.load(Relaxed) as f64,
                unkept: self.unkept.load(Relaxed) as f64,
            },
            costs: Costs {
                compressed_ns: self.compressed.average_ns(),
                device_ns: self.device.average_ns(),
                device_reads: self.device.pages.load(Relaxed) as f64,
            },
            unpacked: self.compressed.pages.load(Relaxed) as f64,
            left,
        };
        self.refaults.iter().chain([&self.kept, &self.unkept]).for_each(|sum| fade(sum, 0));
        [&self.compressed, &self.device].into_iter().for_each(Took::fade);
        past
    }

    /// A step up or down, if it is worth it; whether there was one.
    pub(super) fn follow(&self, past: &Past, tiers: Tiers) -> bool {
        let now = self.now.load(Relaxed);
        let next = match trade::verdict(past, tiers, now) {
            _ if !tiers.has_devices => MOST_ALONE,
            Verdict::Grow(steps) => (now + steps * STEP).min(MOST),
            Verdict::Shrink(steps) => now.saturating_sub(steps * STEP).clamp(LEAST, MOST),
            Verdict::Stay => now.min(MOST),
        };
        self.now.store(next, Relaxed);
        next != now
    }
}

#[cfg(test)]
mod tests {
    use super::trade::STRIDE;
    use super::trade::tests::TIERS;
    use super::*;

    #[test]
    fn it_moves_by_steps_within_its_bounds() {
        let size = TierSize::new(CompressedMax::Auto);
        assert_eq!(size.frames(1000), 750);
        let mut left = 0;
        let mut follow = |distance: u64, tiers: Tiers| {
            (0..500).for_each(|_| size.note_refault(distance));
            size.note_fault(FaultSource::Compressed, 10_000, 1);
            size.note_fault(FaultSource::Device, 50_000_000, 1_000);
            left += 2500;
            size.follow(&size.look(left), tiers);
            size.now.load(Relaxed)
        };
        assert_eq!(follow(100, TIERS), FIRST - STRIDE * STEP);
        (0..50).for_each(|_| {
            let frames = size.frames(10_000) as u64;
            follow(100, Tiers { frames, pages: frames * 5 / 2, ..TIERS });
        });
        assert_eq!(size.now.load(Relaxed), LEAST);
        // Without devices it takes what it may; and gives some back where there are some again.
        let alone = Tiers { has_devices: false, ..TIERS };
        assert_eq!(follow(100, alone), MOST_ALONE);
        assert!(follow(200_000, TIERS) <= MOST);
        assert!(!size.is_due(left + 10, 10_000) && size.is_due(left + 2500, 10_000));
    }
}
