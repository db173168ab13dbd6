//! How densely the compressed tier packs, by what it would save (setting `zswap.codec=auto`).
//!
//! LZ4 is the fastest by far. Zstandard takes two to four times as long, and a third to half as
//! many pages more fit into the same frames, by its level. That is a loss while all that is used
//! fits anyway, or nothing comes back; and a gain where pages are read from a device that these
//! frames could hold. How many those are is what the curve of refaults tells ([`super`]): those
//! beyond as many pages as the tier holds, up to as many as it would. What the codecs make of a
//! page, and how long that takes them, is known from one page in [`TRIAL`], which is packed by all.
//!
//! While a program still fills its memory, refaults do not predict reuse. When its pages do not
//! fit, each page is taken to come back once in two times, until enough have left for the curve to
//! tell.
//!
//! Looked at where the size is, and as often; and when the tier is full. No locks.

use super::terms::{DEVICE_NS, MARGIN, PACKING, Past, Tiers};
use crate::units::PAGE_SIZE;
use crate::workingset::settings::CODECS_MAX;
use overspill_os::codec::Compressor;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// One page in so many is packed by all codecs.
const TRIAL: u32 = 512;
/// Trials that are remembered: older ones are forgotten by halves.
const TRIALS_MAX: u64 = 64;

/// Which codec packs pages, and what is known of each. They are named by their density: the
/// quickest is 0.
#[derive(Debug, Default)]
pub(crate) struct Density {
    now: AtomicUsize,
    turn: AtomicU32,
    trials: AtomicU64,
    made: [Made; CODECS_MAX],
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
        [&self.bytes, &self.ns]
            .into_iter()
            .for_each(|sum| sum.store(sum.load(Relaxed) / 2, Relaxed));
    }

    fn bytes(&self) -> f64 {
        self.bytes.load(Relaxed) as f64
    }

    fn ns(&self) -> f64 {
        self.ns.load(Relaxed) as f64
    }
}

/// A codec to choose.
#[derive(Clone, Copy, Default, Debug)]
struct Candidate {
    /// Pages that fit into the tier's frames.
    pages: f64,
    /// How long it takes to pack one.
    ns: f64,
}

impl Density {
    /// What packs pages now.
    pub fn now(&self) -> usize {
        self.now.load(Relaxed)
    }

    /// Packs a page by all codecs if it is its turn, to see what they make of it; `room` is what is
    /// worth having of it.
    pub fn try_all(&self, compressors: &mut [Compressor], page: &[u8; PAGE_SIZE], room: &mut [u8]) {
        if !self.turn.fetch_add(1, Relaxed).is_multiple_of(TRIAL) {
            return;
        }
        let trials = self.trials.load(Relaxed);
        for (made, compressor) in self.made.iter().zip(compressors) {
            // The second time is what it takes one that packs all pages, whose tables are in the
            // processor's caches.
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
            self.made.iter().for_each(Made::halve);
        }
    }

    /// What there is to choose from where `pages` are compressed now; None where nothing was tried
    /// yet.
    fn choices(&self, pages: u64) -> Option<[Candidate; CODECS_MAX]> {
        let trials = self.trials.load(Relaxed) as f64;
        let bytes = pages as f64 * self.made[self.now()].bytes();
        let choice = |made: &Made| Candidate {
            pages: bytes / made.bytes().max(1.0),
            ns: made.ns() / trials,
        };
        (trials > 0.0).then(|| std::array::from_fn(|i| choice(&self.made[i])))
    }

    /// The tier is full, and `left` pages have left memory: while that does not tell what comes
    /// back, takes the codec that is best if it is each page once in two times.
    pub(in crate::workingset) fn overflows(&self, left: u64, tiers: Tiers) {
        let choices =
            self.choices(tiers.pages).filter(|choices| tiers.has_devices && is_open(choices, left));
        let Some(choices) = choices else { return };
        // Whoever fills memory waits for the packing of it.
        let gain = |choice: &Candidate| {
            let [read_less, longer] =
                [1.0 - choices[0].pages / choice.pages, choice.ns - choices[0].ns];
            read_less * DEVICE_NS / 2.0 - MARGIN * longer
        };
        let best = (0..CODECS_MAX).max_by(|a, b| gain(&choices[*a]).total_cmp(&gain(&choices[*b])));
        self.now.store(best.unwrap_or(0), Relaxed);
    }

    /// Changes the codec if it is worth it.
    pub(in crate::workingset) fn follow(&self, past: &Past, tiers: Tiers) {
        let now = self.now();
        let Some(choices) =
            self.choices(tiers.pages).filter(|choices| !is_open(choices, past.left))
        else {
            return;
        };
        // 1. What a page costs that is read, or takes longer to pack. Unpacking takes longer by
        //    half of what packing does.
        let (read_ns, reads) = past.read_ns(tiers.step());
        let (unpacked, packed) = past.packing();
        let work = unpacked / 2.0 + packed * PACKING;
        // 2. Its gain over what packs now, and whether that is clear enough: a denser one while
        //    devices are read, a quicker one at any time.
        let Some(kept) = past.curve.within(choices[now].pages) else { return };
        let gain = |at: usize| {
            let saved_ns = (past.curve.within(choices[at].pages)? - kept) * read_ns;
            let lost_ns = (choices[at].ns - choices[now].ns) * work;
            let is_clear = match at > now {
                _ if !tiers.has_devices => at == 0,
                true => reads && saved_ns > MARGIN * lost_ns,
                false => -saved_ns * MARGIN < -lost_ns,
            };
            is_clear.then_some((saved_ns - lost_ns, at))
        };
        // 3. The best.
        let others = (0..CODECS_MAX).filter(|at| *at != now);
        if let Some((_, best)) = others.filter_map(gain).max_by(|a, b| a.0.total_cmp(&b.0)) {
            self.now.store(best, Relaxed);
        }
    }
}

/// Whether it cannot be told yet what the program comes back to, now that `left` pages have left:
/// it shows after as many as fit, and takes as many to be told from chance.
fn is_open(choices: &[Candidate; CODECS_MAX], left: u64) -> bool {
    choices.iter().any(|choice| (left as f64) < 2.0 * choice.pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workingset::settings::TierCodec;
    use crate::workingset::tier_size::Costs;
    use crate::workingset::tier_size::curve::tests::curve;
    use crate::workingset::tier_size::trade::tests::{COSTS, TIERS, past};

    /// After some trials: a codec that makes a fourth as many pages more fit for 3 us a page, and
    /// one that makes half as many fit for 10.
    fn tried() -> Density {
        let density = Density { trials: 10.into(), ..Density::default() };
        for (made, (bytes, ns)) in
            density.made.iter().zip([(15_000, 60_000), (12_000, 90_000), (10_000, 160_000)])
        {
            made.add(bytes, ns);
        }
        density
    }

    #[test]
    fn it_is_dense_while_that_saves_reads() {
        let density = tried();
        let spread = |pages: u64| past(curve(10_000, (0..9_000).map(|i| i * pages / 9_000)), COSTS);
        let follow = |past: &Past, tiers: Tiers| {
            density.follow(past, tiers);
            density.now()
        };
        // Nothing comes back that the tier would have: all of it, or nothing of it.
        assert_eq!(
            (follow(&spread(1_000), TIERS), follow(&past(curve(10_000, []), COSTS), TIERS)),
            (0, 0)
        );
        // Accesses are spread over more than fits.
        assert_eq!((follow(&spread(60_000), TIERS), follow(&spread(60_000), TIERS)), (2, 2));
        // Another phase, in which nothing does.
        assert_eq!(follow(&past(curve(10_000, []), COSTS), TIERS), 0);
        // Where devices are as fast, or have no room, or are not read.
        let fast = Costs { device_ns: 12_000.0, ..COSTS };
        let idle = Costs { device_reads: 0.0, ..COSTS };
        assert_eq!(follow(&Past { costs: fast, ..spread(60_000) }, TIERS), 0);
        assert_eq!(follow(&Past { costs: idle, ..spread(60_000) }, TIERS), 0);
        assert_eq!(follow(&spread(60_000), Tiers { has_devices: false, ..TIERS }), 0);
        // Where they are slower, but not by much, it is the one between.
        let quick = Costs { device_ns: 40_000.0, ..COSTS };
        let slow = Costs { device_ns: 120_000.0, ..COSTS };
        assert_eq!(follow(&Past { costs: quick, ..spread(60_000) }, TIERS), 1);
        assert_eq!(follow(&Past { costs: slow, ..spread(60_000) }, TIERS), 2);
        // It stays where it is when its room is what spares devices reads; not without devices.
        assert_eq!(follow(&Past { costs: idle, ..spread(60_000) }, TIERS), 2);
        assert_eq!(follow(&spread(60_000), Tiers { has_devices: false, ..TIERS }), 0);
    }

    #[test]
    fn a_full_tier_is_enough_while_nothing_can_have_come_back() {
        let density = tried();
        let (few, many) = (TIERS.pages, 10 * TIERS.pages);
        density.overflows(many, TIERS);
        density.overflows(few, Tiers { has_devices: false, ..TIERS });
        assert_eq!(density.now(), 0);
        density.overflows(few, TIERS);
        assert_eq!(density.now(), 1);
        // Nor is it changed for a curve that cannot tell.
        let nothing = |left| Past { left, ..past(curve(10_000, []), COSTS) };
        density.follow(&nothing(few), TIERS);
        assert_eq!(density.now(), 1);
        density.follow(&nothing(many), TIERS);
        assert_eq!(density.now(), 0);
        // What does not make enough more fit for its time.
        let slow = Density { trials: 10.into(), ..Density::default() };
        for (made, (bytes, ns)) in
            slow.made.iter().zip([(15_000, 60_000), (14_500, 140_000), (14_000, 240_000)])
        {
            made.add(bytes, ns);
        }
        slow.overflows(few, TIERS);
        assert_eq!(slow.now(), 0);
    }

    #[test]
    fn one_page_in_many_is_packed_by_all() {
        let density = Density::default();
        let mut all: Vec<_> = TierCodec::Auto
            .codecs()
            .into_iter()
            .map(|codec| Compressor::new(codec).unwrap())
            .collect();
        // Numbers of eight bytes, a few of which come again: 3 bytes each to LZ4, 2 to Zstandard.
        // And bytes of four random bits each: LZ4 finds no matches, Zstandard needs half of the
        // bits, but not at its quickest.
        let mut random = 1u32;
        let mut next = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            u64::from(random >> 16)
        };
        let mut page = [0; PAGE_SIZE];
        for (i, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let number = next() % 64;
            let bits: [u8; 8] = std::array::from_fn(|_| next() as u8 & 15);
            *word = if i < 384 {
                number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()
            } else {
                bits
            };
        }
        for _ in 0..3 * TRIAL {
            density.try_all(&mut all, &page, &mut [0; 3072]);
        }
        assert_eq!(density.trials.load(Relaxed), 3);
        let [first, second, third] = density.made.each_ref().map(Made::bytes);
        assert!(first > 1.1 * second && second > 1.1 * third && third > 1000.0, "{density:?}");
        assert!(density.made.iter().all(|made| made.ns() > 0.0));
    }
}
