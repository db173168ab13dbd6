//! How densely the compressed tier packs, by what it would save (setting `zswap.codec=auto`).
//!
//! LZ4 is the fastest by far. Zstandard takes two to four times as long, and half as many pages more fit into the same frames. That is
//! a loss while all that is used fits anyway, or nothing comes back; and a gain where pages are read from a device that these frames
//! could hold. How many those are is what the curve of refaults tells ([`super`]): those beyond as many pages as the tier
//! holds, up to as many as it would. What both codecs make of a page, and how long that takes them, is known from one page in
//! [`TRIAL`], which is packed by both.
//!
//! Looked at where the share is, and as often. No locks.

use super::{MARGIN, PACKING, Past, Tiers};
use crate::base::PAGE_SIZE;
use overspill_os::codec::Compressor;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// One page in so many is packed by both codecs.
const TRIAL: u32 = 512;
/// Trials that are remembered: older ones are forgotten by halves.
const TRIALS_MAX: u64 = 64;

/// Which codec packs pages, and what is known of the two.
#[derive(Debug, Default)]
pub(crate) struct Density {
    is_dense: AtomicBool,
    turn: AtomicU32,
    trials: AtomicU64,
    quick: Made,
    dense: Made,
}

/// What a codec made of the pages that were tried, all together.
#[derive(Debug, Default)]
struct Made {
    bytes: AtomicU64,
    ns: AtomicU64,
}

impl Made {
    fn add(&self, bytes: u64, ns: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.ns.fetch_add(ns, Relaxed);
    }

    fn halve(&self) {
        [&self.bytes, &self.ns].into_iter().for_each(|sum| sum.store(sum.load(Relaxed) / 2, Relaxed));
    }

    fn bytes(&self) -> f64 {
        self.bytes.load(Relaxed) as f64
    }

    fn ns(&self) -> f64 {
        self.ns.load(Relaxed) as f64
    }
}

impl Density {
    /// Whether pages are packed by the denser codec.
    pub fn is_dense(&self) -> bool {
        self.is_dense.load(Relaxed)
    }

    /// Packs a page by both codecs if it is its turn, to see what they make of it; `room` is what is worth having of it.
    pub fn try_both(&self, both: [&mut Compressor; 2], page: &[u8; PAGE_SIZE], room: &mut [u8]) {
        if !self.turn.fetch_add(1, Relaxed).is_multiple_of(TRIAL) {
            return;
        }
        let trials = self.trials.load(Relaxed);
        for (made, compressor) in [&self.quick, &self.dense].into_iter().zip(both) {
            // The second time is what it takes one that packs all pages, whose tables are in the processor's caches.
            let len = compressor.compress(page, room).unwrap_or(PAGE_SIZE);
            let start = Instant::now();
            compressor.compress(page, room);
            // Without times in which the thread did not run.
            let most = 2 * made.ns.load(Relaxed) / trials.max(1);
            let ns = start.elapsed().as_nanos() as u64;
            made.add(len as u64, if trials > 0 { ns.min(most) } else { ns });
        }
        if self.trials.fetch_add(1, Relaxed) >= TRIALS_MAX {
            self.trials.store(TRIALS_MAX / 2, Relaxed);
            [&self.quick, &self.dense].into_iter().for_each(Made::halve);
        }
    }

    /// Changes the codec if it is worth it.
    pub(super) fn follow(&self, past: &Past, tiers: Tiers) {
        let trials = self.trials.load(Relaxed) as f64;
        if trials == 0.0 {
            return;
        }
        let now = self.is_dense();
        // 1. What fits by the one and by the other.
        let ratio = self.quick.bytes() / self.dense.bytes().max(1.0);
        let pages = tiers.pages as f64;
        let (quick, dense) = if now { (pages / ratio, pages) } else { (pages, pages * ratio) };
        let (Some(within_quick), Some(within_dense)) = (past.curve.within(quick), past.curve.within(dense)) else {
            return;
        };
        // 2. Reads of devices that this saves, while there are some; and what it costs.
        let (read_ns, reads) = past.read_ns(tiers.step());
        let saved_ns = (within_dense - within_quick) * read_ns;
        let longer_ns = (self.dense.ns() - self.quick.ns()).max(0.0) / trials;
        let (unpacked, packed) = past.packing();
        // Unpacking takes longer by half of what packing does.
        let lost_ns = (unpacked / 2.0 + packed * PACKING) * longer_ns;
        let next = match now {
            _ if !tiers.has_devices => false,
            false => reads && saved_ns > MARGIN * lost_ns,
            true => saved_ns * MARGIN >= lost_ns,
        };
        self.is_dense.store(next, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Costs;
    use crate::share::tests::{COSTS, TIERS, curve, past};
    use overspill_os::codec::Codec;

    /// After some trials in which the denser codec made half as many pages more fit, and took 8 us longer for a page.
    fn tried() -> Density {
        let density = Density::default();
        density.trials.store(10, Relaxed);
        density.quick.add(15_000, 60_000);
        density.dense.add(10_000, 140_000);
        density
    }

    #[test]
    fn it_is_dense_while_that_saves_reads() {
        let density = tried();
        let spread = |pages: u64| past(curve(10_000, (0..9_000).map(|i| i * pages / 9_000)), COSTS);
        let follow = |past: &Past, tiers: Tiers| {
            density.follow(past, tiers);
            density.is_dense()
        };
        // Nothing comes back that the tier would have: all of it, or nothing of it.
        assert!(!follow(&spread(1_000), TIERS) && !follow(&past(curve(10_000, []), COSTS), TIERS));
        // Accesses are spread over more than fits.
        assert!(follow(&spread(60_000), TIERS) && follow(&spread(60_000), TIERS));
        // Another phase, in which nothing does.
        assert!(!follow(&past(curve(10_000, []), COSTS), TIERS));
        // Where devices are as fast, or have no room, or are not read.
        let fast = Costs { device_ns: 12_000.0, ..COSTS };
        let idle = Costs { device_reads: 0.0, ..COSTS };
        assert!(!follow(&Past { costs: fast, ..spread(60_000) }, TIERS));
        assert!(!follow(&Past { costs: idle, ..spread(60_000) }, TIERS));
        assert!(!follow(&spread(60_000), Tiers { has_devices: false, ..TIERS }));
        // It stays where it is when its room is what spares devices reads.
        assert!(follow(&spread(60_000), TIERS) && follow(&Past { costs: idle, ..spread(60_000) }, TIERS));
    }

    #[test]
    fn one_page_in_many_is_packed_by_both() {
        let density = Density::default();
        let mut both = [Codec::Lz4, Codec::Zstd(1)].map(|codec| Compressor::new(codec).unwrap());
        // Bytes of four random bits each: LZ4 finds no matches, Zstandard needs half of the bits.
        let mut random = 1u32;
        let page: [u8; PAGE_SIZE] = std::array::from_fn(|_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 28) as u8
        });
        for _ in 0..3 * TRIAL {
            let [quick, dense] = &mut both;
            density.try_both([quick, dense], &page, &mut [0; 3072]);
        }
        assert_eq!(density.trials.load(Relaxed), 3);
        assert!(density.quick.ns() > 0.0 && density.dense.ns() > 0.0);
        assert_eq!(density.quick.bytes(), (3 * PAGE_SIZE) as f64);
        assert!((3 * 1500..3 * 2500).contains(&(density.dense.bytes() as usize)), "{density:?}");
    }
}
