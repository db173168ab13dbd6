//! The pages that are away, by when they left: how many of them left after one that comes back.
//!
//! That many frames more would have kept it, if those that leave are those that were used last the
//! longest ago. With what is in memory this is the page's LRU stack distance (Mattson, Gecsei,
//! Slutz and Traiger, Evaluation techniques for storage hierarchies, IBM Systems Journal 1970).
//!
//! Times are numbers of pages that have left before. Counts are kept for spans of time, in levels:
//! on each the spans are four times as long as on the one before. A span of the first level that is
//! no longer among the latest ones is added to one of the next. So a page is off by a span, which
//! is a hundredth to a thirtieth of the time since it left.
//!
//! No lock: counts that are added to while spans move on may land in a span that is too late.

use std::array::from_fn;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU64, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

/// Spans of a level.
const SPANS: u64 = 128;
/// Levels; on the last spans have 2^24 of the shortest.
const LEVELS: usize = 12;
/// Times as long spans are on the next level, as a power of two.
const LONGER: u32 = 2;
/// Spans of the first level have at least so many pages, and are the budget in so many parts.
const SHORTEST: u64 = 16;
const PARTS: u64 = 128;

/// Counts of pages that are away.
#[derive(Debug)]
pub struct Away {
    /// Length of the spans of the first level, as a power of two.
    shift: u32,
    levels: [Level; LEVELS],
    /// Whether spans are moved on just now.
    moving: AtomicBool,
}

/// Spans of one length.
#[derive(Debug)]
struct Level {
    /// The number of the latest.
    latest: AtomicU64,
    /// Pages of each, by its number, and of all.
    spans: [AtomicI32; SPANS as usize],
    all: AtomicI64,
}

impl Level {
    fn add(&self, span: u64, pages: i32) {
        self.spans[(span % SPANS) as usize].fetch_add(pages, Relaxed);
        self.all.fetch_add(pages.into(), Relaxed);
    }

    fn pages(&self, span: u64) -> u64 {
        self.spans[(span % SPANS) as usize].load(Relaxed).max(0) as u64
    }

    /// Whether a span is among those that are kept.
    fn has(&self, span: u64) -> bool {
        let latest = self.latest.load(Relaxed);
        span <= latest && latest - span < SPANS
    }
}

impl Away {
    /// For a budget of so many pages.
    pub fn new(budget: u64) -> Away {
        let level = |_| Level {
            latest: AtomicU64::new(0),
            spans: from_fn(|_| AtomicI32::new(0)),
            all: AtomicI64::new(0),
        };
        Away {
            shift: (budget / PARTS).max(SHORTEST).ilog2(),
            levels: from_fn(level),
            moving: AtomicBool::new(false),
        }
    }

    fn span(&self, level: usize, time: u64) -> u64 {
        time >> (self.shift + LONGER * level as u32)
    }

    /// So many pages leave, as so many had left before.
    pub fn leave(&self, time: u64, pages: u64) {
        let span = self.span(0, time);
        if span > self.levels[0].latest.load(Relaxed) && !self.moving.swap(true, Acquire) {
            self.move_on(0, span);
            self.moving.store(false, Release);
        }
        self.levels[0].add(span, pages as i32);
    }

    /// A span becomes the latest of a level: what it was is counted on the next one.
    fn move_on(&self, at: usize, to: u64) {
        let level = &self.levels[at];
        let last = level.latest.load(Relaxed);
        for span in (last + 1).max((to + 1).saturating_sub(SPANS))..=to {
            let pages = level.spans[(span % SPANS) as usize].swap(0, Relaxed);
            level.all.fetch_sub(pages.into(), Relaxed);
            let Some(next) = self.levels.get(at + 1).filter(|_| pages > 0) else { continue };
            // Of those that have had its place the last one.
            let old = last.saturating_sub(last.wrapping_sub(span) % SPANS);
            let longer = old >> LONGER;
            if longer > next.latest.load(Relaxed) {
                self.move_on(at + 1, longer);
            }
            next.add(longer, pages);
        }
        level.latest.store(to, Relaxed);
    }

    /// A page is no longer away that left at `time`: how many are that left after it.
    pub fn come_back(&self, time: u64) -> u64 {
        let mut after = 0;
        for (at, level) in self.levels.iter().enumerate() {
            let span = self.span(at, time);
            if level.has(span) {
                let latest = level.latest.load(Relaxed);
                after += (span + 1..=latest).map(|span| level.pages(span)).sum::<u64>();
                let own = level.pages(span);
                if own > 0 {
                    level.add(span, -1);
                }
                return after + own / 2;
            }
            after += level.all.load(Relaxed).max(0) as u64;
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pages that are away, in the order in which they left, each with the time.
    struct Model(Vec<(u32, u64)>);

    impl Model {
        fn come_back(&mut self, page: u32) -> Option<(u64, u64)> {
            let at = self.0.iter().position(|(away, _)| *away == page)?;
            let (_, time) = self.0.remove(at);
            Some((time, (self.0.len() - at) as u64))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_left_later_is_counted(
            accesses in proptest::collection::vec(any::<u32>(), 20_000), pages in 500u32..8000,
            skew in 1u32..4,
        ) {
            let (away, mut model, mut time) = (Away::new(64), Model(Vec::new()), 0);
            for access in accesses {
                let part = (f64::from(access) / f64::from(u32::MAX)).powi(skew as i32);
                let page = (part * f64::from(pages)) as u32;
                if let Some((left, expected)) = model.come_back(page) {
                    let counted = away.come_back(left);
                    // A span of its age, and half of what left with it.
                    let off = SHORTEST + (time - left) / 24;
                    prop_assert!(
                        counted.abs_diff(expected) <= off,
                        "{counted} counted, {expected} are; it left {} ago", time - left
                    );
                }
                // One that is in memory leaves at once for the next.
                away.leave(time, 1);
                model.0.push((page, time));
                time += 1;
            }
        }
    }

    #[test]
    fn times_far_apart_are_no_mistake() {
        let away = Away::new(1 << 20);
        away.leave(0, 100);
        away.leave(1 << 30, 50);
        assert_eq!(away.come_back(1 << 30), 25);
        assert_eq!(away.come_back(0), 49 + 50);
    }
}
