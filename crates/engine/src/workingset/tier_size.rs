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
//! refaults there would not have been, had so many pages more been kept. Twice it is looked at:
//!
//! - at its beginning: pages that came back from the tier, or from a device, before a step's worth
//!   of frames was needed by others. A step more of frames for pages as they are would have saved
//!   unpacking them, and the packing of others for them;
//! - around the number of compressed pages: those beyond it came from devices, and would have been
//!   in a tier larger by a step; those before it are in the tier, and would have been on devices
//!   with a smaller one.
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

mod density;

use crate::stats::FaultSource;
use crate::workingset::settings::CompressedMax;
pub(crate) use density::Density;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What sizes are counted in: parts of the budget.
const WHOLE: u32 = 1024;
/// How far the size goes at a time: 1/32 of the budget.
const STEP: u32 = WHOLE / 32;
/// Where it begins: what LZ4 packs 2.5:1 does not go to a device while it is up to twice the
/// budget. Where a few pages are hot, that is too much, and is found out soon.
const FIRST: u32 = WHOLE * 75 / 100;
/// It stays at least here while devices are not read and a smaller one would make them be: a
/// program that fills its memory does not tell yet what it will come back to.
const UNREAD: u32 = WHOLE * 65 / 100;
/// Between these: pages that are used need frames, and so does what waits to be written.
const LEAST: u32 = WHOLE * 10 / 100;
const MOST: u32 = WHOLE * 85 / 100;
/// The same where there is no room on devices.
const MOST_ALONE: u32 = WHOLE * 90 / 100;
/// How often it is looked at: whenever a part of the budget has left memory.
const PERIODS: u64 = 4;
/// What is counted of the past, in periods: so few that a step is not taken again for what led to
/// the last.
const REMEMBERED: u64 = 2;
/// How many reads of devices a step's worth of frames must save for a step up, as a part of these
/// frames; and what is read of devices at all, for that to count.
const READS_LEAST: f64 = 1.0 / 8.0;
/// The same for a step down, of refaults that are near. Where accesses are spread evenly over more
/// than twice the budget, fewer are; and a page that is written to a device for a few, and read
/// again later, is a loss.
const NEAR_LEAST: f64 = 1.0 / 2.0;
/// How full the tier must be for it to take more, in percent of what it may: below that it has room
/// as it is.
pub const FULL_PERCENT: usize = 85;
/// How much more must be saved than lost, so that chance does not move the size, or change the
/// codec, to and fro.
const MARGIN: f64 = 1.25;
/// What part of the pages that leave must be back soon for the program to go round in them: more
/// than is remembered of a loop that has ended.
const MOSTLY: f64 = 0.6;
/// How much more must be saved than lost for three steps at once.
const CLEARLY: f64 = 4.0;
const STRIDE: u32 = 3;
/// What packing a page counts, of the time that unpacking one for a fault takes: it is mostly done
/// by another thread.
const PACKING: f64 = 0.5;
/// What a page is taken to cost that is read from a device, where none was lately.
const DEVICE_NS: f64 = 100_000.0;
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
        let next = match verdict(past, tiers, now) {
            _ if !tiers.has_devices => MOST_ALONE,
            Verdict::Grow(steps) => (now + steps * STEP).min(MOST),
            Verdict::Shrink(steps) => now.saturating_sub(steps * STEP).clamp(LEAST, MOST),
            Verdict::Stay => now.min(MOST),
        };
        self.now.store(next, Relaxed);
        next != now
    }
}

/// What is known of the time that is remembered.
#[derive(Debug)]
pub(super) struct Past {
    curve: Curve,
    copies: CopyFates,
    costs: Costs,
    /// Pages that came back from the tier.
    unpacked: f64,
    /// Pages that have left memory, in all.
    left: u64,
}

impl Past {
    /// Pages that came back from the compressed tier, and those that left and had to be packed.
    fn packing(&self) -> (f64, f64) {
        (self.unpacked, (self.curve.left - self.copies.kept).max(0.0))
    }

    /// What a page takes more that is read from a device than one that is compressed, with a `step`
    /// of frames to compare with, and whether so many are read that this was measured.
    fn read_ns(&self, step: f64) -> (f64, bool) {
        let Costs { compressed_ns, device_ns, device_reads } = self.costs;
        let reads = device_reads >= READS_LEAST * step;
        ((if reads { device_ns } else { DEVICE_NS } - compressed_ns).max(0.0), reads)
    }
}

/// How things stand.
#[derive(Clone, Copy, Debug)]
pub struct Tiers {
    /// Frames of the budget, and those of the compressed tier.
    pub budget: u64,
    pub frames: u64,
    /// What is compressed.
    pub pages: u64,
    /// Whether the tier takes what it may; and whether it was full, and takes no pages yet.
    pub is_full: bool,
    pub was_full: bool,
    /// Whether devices have room.
    pub has_devices: bool,
}

impl Tiers {
    /// How many frames the size goes at a time.
    fn step(&self) -> f64 {
        (self.budget * u64::from(STEP) / u64::from(WHOLE)) as f64
    }
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
    /// By so many steps.
    Grow(u32),
    Stay,
    Shrink(u32),
}

/// What became of the copies of pages that were in memory, in the time that is remembered.
#[derive(Clone, Copy, Debug)]
struct CopyFates {
    /// Pages that left by their copies.
    kept: f64,
    /// Those that came in, or lost their copies, when there was no room.
    unkept: f64,
}

/// What keeping more pages would save.
#[derive(Debug)]
struct Curve {
    /// Pages that have left memory.
    left: f64,
    /// Those that came back, by bucket of their distance.
    refaults: [f64; BUCKETS],
}

impl Curve {
    /// How many refaults there would not have been, had the last `pages` pages been kept that have
    /// left and not come back; None where the curve does not reach so far: the program has just
    /// begun to do something else.
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

    /// The same; all refaults where the curve does not reach so far.
    fn within_or_all(&self, pages: f64) -> f64 {
        self.within(pages.max(0.0)).unwrap_or_else(|| self.refaults.iter().sum())
    }
}

fn verdict(past: &Past, tiers: Tiers, size: u32) -> Verdict {
    let step = tiers.step();
    if (tiers.frames as f64) < step || past.curve.within(step).is_none() {
        return Verdict::Stay;
    }
    let (read_ns, reads) = past.read_ns(step);
    let trade = Trade { past, tiers, step, read_ns, reads };
    let verdict = trade.go_round(size).or_else(|| trade.grow()).or_else(|| trade.shrink(size));
    verdict.unwrap_or(Verdict::Stay)
}

/// What frames are worth to the one and to the other.
struct Trade<'a> {
    past: &'a Past,
    tiers: Tiers,
    /// Frames that the size goes at a time.
    step: f64,
    /// What a page takes more that is read from a device, and whether they are read.
    read_ns: f64,
    reads: bool,
}

impl Trade<'_> {
    fn packing_ns(&self) -> f64 {
        self.past.costs.compressed_ns * PACKING
    }

    fn density(&self) -> f64 {
        self.tiers.pages as f64 / self.tiers.frames as f64
    }

    /// How many pages are compressed more, or less, for so many frames: the other takes a frame for
    /// each page as it is.
    fn pages_of(&self, frames: f64) -> f64 {
        frames * (self.density() - 1.0).max(0.0)
    }

    /// What it took that so many frames more do not hold pages as they are.
    fn as_they_are_ns(&self, near: f64) -> f64 {
        near * (self.past.costs.compressed_ns + self.packing_ns())
    }

    /// So often leave the copies of pages in memory that fit into some frames, where `left` pages
    /// leave.
    fn copies_of(&self, frames: f64, left: f64) -> f64 {
        let turns = left / (self.tiers.budget as f64 - self.tiers.frames as f64).max(1.0);
        frames * self.density() * turns
    }

    /// Reads of devices that so many pages more in the tier would spare.
    fn farther(&self, step: f64) -> Option<f64> {
        let pages = self.tiers.pages as f64;
        let (curve, more) = (&self.past.curve, self.pages_of(step));
        curve.within(pages + more).zip(curve.within(pages)).map(|(behind, edge)| behind - edge)
    }

    /// What a step up would save of reads and of packing, if that is worth it at all.
    fn larger_ns(&self) -> Option<f64> {
        let Past { curve, copies, .. } = self.past;
        let read_less = self.farther(self.step).unwrap_or(0.0);
        let is_read = self.reads && read_less >= READS_LEAST * self.step;
        let read_less = if is_read { read_less } else { 0.0 };
        let spared = self.copies_of(self.step, curve.left).min(copies.unkept);
        (self.tiers.is_full && (is_read || spared >= NEAR_LEAST * self.step))
            .then(|| read_less * self.read_ns + spared * self.packing_ns())
    }

    /// A step up, if what it saves is more than what it costs.
    fn grow(&self) -> Option<Verdict> {
        let lost_ns = self.as_they_are_ns(self.past.curve.within(self.step)?);
        let saved_ns = self.larger_ns().filter(|saved_ns| *saved_ns > MARGIN * lost_ns)?;
        Some(Verdict::Grow(steps(saved_ns, lost_ns)))
    }

    /// A step down, the same. While devices are not read all is well, so it takes more to have them
    /// be.
    fn shrink(&self, size: u32) -> Option<Verdict> {
        let Past { curve, copies, .. } = self.past;
        let (step, pages) = (self.step, self.tiers.pages as f64);
        let near = curve.within(step)?;
        // 1. A smaller tier drops copies first.
        let leave = self.copies_of(step, curve.left);
        let drops_copies = leave <= copies.kept;
        let read_more = if drops_copies {
            0.0
        } else {
            let before = curve.within(pages - self.pages_of(step));
            let nearer = curve.within(pages).zip(before).map(|(edge, before)| edge - before)?;
            nearer.max(self.farther(step).unwrap_or(0.0))
        };
        // 2. What it saves, and what it costs.
        let (margin, least) =
            if self.reads || drops_copies { (MARGIN, 0) } else { (CLEARLY, UNREAD) };
        let smaller_ns = read_more * self.read_ns + leave.min(copies.kept) * self.packing_ns();
        let saved_ns = self.as_they_are_ns(near);
        let steps = steps(saved_ns, smaller_ns).min(size.saturating_sub(least) / STEP);
        (steps > 0 && near >= NEAR_LEAST * step && saved_ns > margin * smaller_ns)
            .then_some(Verdict::Shrink(steps))
    }

    /// Steps down for a program that goes round in what it has: no page of it comes back before all
    /// of it has left, so one step more of frames would save nothing, and as many as all of it
    /// takes would save everything. So it looks ahead, as far as the size may go (the method is the
    /// lookahead of Qureshi and Patt, "Utility-Based Cache Partitioning", 2006).
    fn go_round(&self, size: u32) -> Option<Verdict> {
        let Past { curve, copies, .. } = self.past;
        let pages = self.tiers.pages as f64;
        let (margin, most) =
            (if self.reads { MARGIN } else { CLEARLY }, size.saturating_sub(LEAST) / STEP);
        let pays = |steps: &u32| {
            let frames = f64::from(*steps) * self.step;
            let near = curve.within_or_all(frames);
            // What comes back in time does not leave.
            let repacked = self.copies_of(frames, curve.left - near).min(copies.kept);
            let nearer =
                curve.within_or_all(pages) - curve.within_or_all(pages - self.pages_of(frames));
            let smaller_ns = nearer * self.read_ns + repacked * self.packing_ns();
            let lost_ns = smaller_ns + self.larger_ns().unwrap_or(0.0);
            // It is a loop where most of what has left is back so soon: who fills memory does not
            // tell yet what it will come back to.
            near >= MOSTLY * curve.left
                && near >= NEAR_LEAST * frames
                && self.as_they_are_ns(near) > margin * lost_ns
        };
        // What the size has been told to give already, and the tier still has, is on its way.
        let has = (self.tiers.frames * u64::from(WHOLE) / self.tiers.budget) as u32;
        let wanted = (1..=most).find(pays).map(|steps| has.saturating_sub(steps * STEP))?;
        match size.saturating_sub(wanted) / STEP {
            0 => Some(Verdict::Stay),
            steps => Some(Verdict::Shrink(steps.min(STRIDE))),
        }
    }
}

/// How far to go where so much is saved, and so much lost.
fn steps(saved_ns: f64, lost_ns: f64) -> u32 {
    if saved_ns > CLEARLY * lost_ns { STRIDE } else { 1 }
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

    pub fn past(curve: Curve, costs: Costs) -> Past {
        Past {
            curve,
            copies: CopyFates { kept: 0.0, unkept: 0.0 },
            costs,
            unpacked: 0.0,
            left: 1_000_000,
        }
    }

    /// 10,000 frames, of which 6,500 hold 16,250 compressed pages.
    pub const TIERS: Tiers = Tiers {
        budget: 10_000,
        frames: 6_500,
        pages: 16_250,
        is_full: true,
        was_full: false,
        has_devices: true,
    };
    pub const COSTS: Costs =
        Costs { compressed_ns: 10_000.0, device_ns: 70_000.0, device_reads: 1_000.0 };

    #[test]
    fn the_size_goes_to_where_more_is_saved() {
        let verdict_of =
            |curve: Curve, tiers: Tiers, costs: Costs| verdict(&past(curve, costs), tiers, FIRST);
        // Evenly spread over distances beyond the tier's: a larger one saves reads of devices.
        let even = || (0..9_000u64).map(|i| i * 5);
        assert!(matches!(verdict_of(curve(10_000, even()), TIERS, COSTS), Verdict::Grow(_)));
        // But not where devices are as fast, or it has room.
        let fast = Costs { device_ns: 12_000.0, ..COSTS };
        assert_eq!(verdict_of(curve(10_000, even()), TIERS, fast), Verdict::Stay);
        assert_eq!(
            verdict_of(curve(10_000, even()), Tiers { is_full: false, ..TIERS }, COSTS),
            Verdict::Stay
        );
        // Most are back at once: they had better stayed.
        let soon = even().step_by(10).chain((0..5_000).map(|i| i % 300));
        assert!(matches!(verdict_of(curve(10_000, soon), TIERS, COSTS), Verdict::Shrink(_)));
        // A loop over less than the frames that the tier has: pages of it come back together, when
        // all have left. Not while that is little of what leaves, nor where it would have others
        // be read.
        let none = Costs { device_reads: 0.0, ..COSTS };
        let round = |others: u64, distance: u64| {
            curve(5_000 + others, (0..5_000).map(|_| 2_500).chain((0..others).map(|_| distance)))
        };
        assert_eq!(verdict_of(round(0, 0), TIERS, none), Verdict::Shrink(STRIDE));
        let at_rest = |curve| verdict(&past(curve, none), TIERS, UNREAD);
        assert_eq!(at_rest(round(0, 0)), Verdict::Shrink(STRIDE));
        assert_eq!(at_rest(curve(20_000, (0..5_000).map(|_| 2_500))), Verdict::Stay);
        assert_eq!(at_rest(round(2_000, 45_000)), Verdict::Stay);
        // All of a loop over more than both hold: nothing is told.
        assert_eq!(
            verdict_of(curve(10_000, (0..10_000).map(|_| 50_000)), TIERS, COSTS),
            Verdict::Stay
        );
        // Where no device is read, none is to be for a little; but for much.
        let none = Costs { device_reads: 0.0, ..COSTS };
        let both = |soon: u64| {
            (0..soon).map(|i| i % 300).chain((0..5_000).map(|i| i * 12)).collect::<Vec<_>>()
        };
        assert!(matches!(verdict_of(curve(200_000, both(700)), TIERS, COSTS), Verdict::Shrink(_)));
        assert_eq!(verdict_of(curve(200_000, both(700)), TIERS, none), Verdict::Stay);
        assert!(matches!(verdict_of(curve(200_000, both(5_000)), TIERS, none), Verdict::Shrink(_)));
        assert_eq!(verdict(&past(curve(200_000, both(5_000)), none), TIERS, UNREAD), Verdict::Stay);
        // Pages that hardly compress gain no room.
        let dense = Tiers { pages: 6_600, ..TIERS };
        assert_eq!(verdict_of(curve(10_000, even()), dense, COSTS), Verdict::Stay);
    }

    #[test]
    fn room_for_copies_is_worth_what_they_save() {
        let verdict_of = |soon: u64, copies: CopyFates| {
            let curve = curve(10_000, (0..soon).map(|i| i % 300).chain((0..5_000).map(|_| 60_000)));
            verdict(
                &Past { copies, ..past(curve, Costs { device_reads: 0.0, ..COSTS }) },
                TIERS,
                FIRST,
            )
        };
        // Pages that come back and leave again as they were, and are packed each time, although no
        // device is read.
        assert!(matches!(
            verdict_of(0, CopyFates { kept: 0.0, unkept: 8_000.0 }),
            Verdict::Grow(_)
        ));
        assert_eq!(verdict_of(0, CopyFates { kept: 8_000.0, unkept: 0.0 }), Verdict::Stay);
        // Not where as many frames would save more; and there copies make room first.
        assert!(!matches!(
            verdict_of(2_000, CopyFates { kept: 0.0, unkept: 8_000.0 }),
            Verdict::Grow(_)
        ));
        assert!(matches!(
            verdict_of(4_000, CopyFates { kept: 8_000.0, unkept: 0.0 }),
            Verdict::Shrink(_)
        ));
    }

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
