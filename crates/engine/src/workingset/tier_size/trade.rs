//! What a step of frames is worth to pages as they are, and to the compressed tier: a step up or
//! down, by the curve of refaults and by what they have taken.

use super::terms::{LEAST, MARGIN, PACKING, Past, READS_LEAST, STEP, Tiers, WHOLE};

/// The tier stays at least this large while devices are not read, and a smaller one would cause
/// such reads. While a program still fills its memory, refaults do not predict reuse.
const UNREAD: u32 = WHOLE * 65 / 100;
/// How many refaults must be near for a step down, as a part of its frames (as [`READS_LEAST`] for
/// one up). Where accesses are spread evenly over more than twice the budget, fewer are; and a page
/// that is written to a device for a few, and read again later, is a loss.
const NEAR_LEAST: f64 = 1.0 / 2.0;
/// What part of the pages that leave must be back soon for the program to go round in them: more
/// than is remembered of a loop that has ended.
const MOSTLY: f64 = 0.6;
/// How much more must be saved than lost for three steps at once.
const CLEARLY: f64 = 4.0;
pub const STRIDE: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// By so many steps.
    Grow(u32),
    Stay,
    Shrink(u32),
}

/// What to do of the size, which is `size` now.
pub fn verdict(past: &Past, tiers: Tiers, size: u32) -> Verdict {
    let step = tiers.step();
    if (tiers.frames as f64) < step || past.curve.within(step).is_none() {
        return Verdict::Stay;
    }
    let (read_ns, reads) = past.read_ns(step);
    let trade = Trade { past, tiers, step, read_ns, reads };
    let verdict = trade.go_round(size).or_else(|| trade.grow()).or_else(|| trade.shrink(size));
    verdict.unwrap_or(Verdict::Stay)
}

/// What frames are worth to pages as they are, and to the tier.
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

    /// Reads of devices that a step more of tier would spare.
    fn farther(&self) -> Option<f64> {
        let pages = self.tiers.pages as f64;
        let (curve, more) = (&self.past.curve, self.pages_of(self.step));
        curve.within(pages + more).zip(curve.within(pages)).map(|(behind, edge)| behind - edge)
    }

    /// What a step up would save of reads and of packing, if that is worth it at all.
    fn larger_ns(&self) -> Option<f64> {
        let Past { curve, copies, .. } = self.past;
        let read_less = self.farther().unwrap_or(0.0);
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
            nearer.max(self.farther().unwrap_or(0.0))
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
        let margin = if self.reads { MARGIN } else { CLEARLY };
        let larger_ns = self.larger_ns().unwrap_or(0.0);
        let pays = |steps: &u32| {
            let frames = f64::from(*steps) * self.step;
            let near = curve.within_or_all(frames);
            // What comes back in time does not leave.
            let leave = self.copies_of(frames, (curve.left - near).max(0.0));
            let repacked = leave.min(copies.kept);
            let nearer =
                curve.within_or_all(pages) - curve.within_or_all(pages - self.pages_of(frames));
            let smaller_ns = nearer * self.read_ns + repacked * self.packing_ns();
            let lost_ns = smaller_ns + larger_ns;
            // It is a loop where most of what has left is back so soon. While a program still fills
            // its memory, refaults do not predict reuse.
            near >= MOSTLY * curve.left
                && near >= NEAR_LEAST * frames
                && self.as_they_are_ns(near) > margin * lost_ns
        };
        // What the size has been told to give already, and the tier still has, is on its way.
        let has = (self.tiers.frames * u64::from(WHOLE) / self.tiers.budget) as u32;
        let most = size.saturating_sub(LEAST) / STEP;
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
pub mod tests {
    use super::*;
    use crate::workingset::tier_size::curve::Curve;
    use crate::workingset::tier_size::curve::tests::curve;
    use crate::workingset::tier_size::{CopyFates, Costs, FIRST};

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
}
