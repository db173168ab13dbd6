//! What goes wrong with a device that is to fail at random.
//!
//! A fault of a read is over when the pages are read again, as on a device that has trouble with
//! its line and not with its medium; only what is written wrong stays so. No locks: the sequence of
//! chance and the marks are atomic words.

use crate::device::model::{FaultKinds, FaultModel};
use crate::units::PAGE_SIZE;
use overspill_os::Errno;
use overspill_os::uring::{Data, Op};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Writes go wrong for good so many times more rarely than in other ways: data that is gone ends
/// programs.
const ROT_RARER: u64 = 8;

/// What happens to one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InjectedFault {
    /// It fails with this error.
    Fails(Errno),
    /// Only so many bytes are moved.
    Short(usize),
    /// It takes much longer.
    Slow,
    /// One byte is another one: read, or written for good.
    Flips {
        /// Which one of the operation.
        byte: usize,
        /// The bits that change.
        mask: u8,
    },
}

/// The faults of one device.
#[derive(Debug)]
pub struct Faults {
    model: FaultModel,
    chance: AtomicU64,
    /// A bit a page: its last read went wrong, so that the next one does not.
    spared: Box<[AtomicU64]>,
}

impl Faults {
    /// For a device of `pages` pages; the same `seed` gives the same sequence.
    pub fn new(model: FaultModel, seed: u64, pages: u64) -> Faults {
        let spared = (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Faults { model, chance: AtomicU64::new(seed), spared }
    }

    /// The next number of the sequence (splitmix64).
    fn next(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut x = self.chance.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    fn goes_wrong(&self) -> bool {
        self.next() % 1_000_000_000 < u64::from(self.model.per_billion)
    }

    /// One of `kinds` that the model has.
    fn pick<const N: usize>(&self, kinds: [FaultKinds; N]) -> Option<FaultKinds> {
        let count = kinds.iter().filter(|kind| self.model.kinds.has(**kind)).count() as u64;
        let nth = self.next().checked_rem(count)? as usize;
        kinds.into_iter().filter(|kind| self.model.kinds.has(*kind)).nth(nth)
    }

    /// What happens to an operation.
    pub fn draw(&self, op: &Op<'_>) -> Option<InjectedFault> {
        match &op.data {
            Data::Read(buffer) => self.draw_read(op.offset, buffer.len()),
            Data::Write(buffer) => self.draw_write(buffer.len()),
        }
    }

    fn draw_read(&self, offset: u64, len: usize) -> Option<InjectedFault> {
        let pages = offset / PAGE_SIZE as u64..(offset + len as u64).div_ceil(PAGE_SIZE as u64);
        // All of the marks go, also behind the first that is found.
        let spared = pages.clone().filter(|page| self.mark(*page, false)).count() > 0;
        if spared || len == 0 || !self.goes_wrong() {
            return None;
        }
        let kind =
            self.pick([FaultKinds::EIO, FaultKinds::SHORT, FaultKinds::SLOW, FaultKinds::FLIP])?;
        if kind != FaultKinds::SLOW {
            pages.for_each(|page| {
                self.mark(page, true);
            });
        }
        Some(self.of_kind(kind, len))
    }

    fn draw_write(&self, len: usize) -> Option<InjectedFault> {
        if len == 0 || !self.goes_wrong() {
            return None;
        }
        let kinds = [
            FaultKinds::EIO,
            FaultKinds::SHORT,
            FaultKinds::FULL,
            FaultKinds::SLOW,
            FaultKinds::ROT,
        ];
        let kind = self.pick(kinds)?;
        let happens = kind != FaultKinds::ROT || self.next().is_multiple_of(ROT_RARER);
        happens.then(|| self.of_kind(kind, len))
    }

    /// Whether space can be set aside.
    pub fn draw_allocation(&self) -> Result<(), Errno> {
        if self.model.kinds.has(FaultKinds::FULL) && self.goes_wrong() {
            Err(Errno::NOSPC)
        } else {
            Ok(())
        }
    }

    fn of_kind(&self, kind: FaultKinds, len: usize) -> InjectedFault {
        match kind {
            FaultKinds::EIO => InjectedFault::Fails(Errno::IO),
            FaultKinds::FULL => InjectedFault::Fails(Errno::NOSPC),
            FaultKinds::SHORT => InjectedFault::Short(self.next() as usize % len),
            FaultKinds::SLOW => InjectedFault::Slow,
            // Flipped in what is read, or written.
            _ => InjectedFault::Flips {
                byte: self.next() as usize % len,
                mask: 1 << (self.next() % 8),
            },
        }
    }

    /// Sets or clears the mark of a page; returns what it was.
    fn mark(&self, page: u64, marked: bool) -> bool {
        let Some(word) = self.spared.get((page / 64) as usize) else { return false };
        let bit = 1 << (page % 64);
        let before = if marked {
            word.fetch_or(bit, Relaxed)
        } else if word.load(Relaxed) & bit != 0 {
            word.fetch_and(!bit, Relaxed)
        } else {
            0
        };
        before & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn faults(rate: f64, kinds: FaultKinds) -> Faults {
        Faults::new(FaultModel { per_billion: (rate * 1e9) as u32, kinds }, 7, 1024)
    }

    /// How many of 100,000 operations of 4 pages at random places get which fault.
    fn tally(faults: &Faults, write: bool) -> BTreeMap<&'static str, u32> {
        let mut buffer = vec![0; 4 * PAGE_SIZE];
        let mut counts = BTreeMap::new();
        for i in 0..100_000u64 {
            let offset = i % 256 * buffer.len() as u64;
            let op = if write { Op::write(offset, &buffer) } else { Op::read(offset, &mut buffer) };
            let Some(fault) = faults.draw(&op) else { continue };
            let name = match fault {
                InjectedFault::Fails(Errno::IO) => "eio",
                InjectedFault::Fails(Errno::NOSPC) => "full",
                InjectedFault::Short(len) if len < 4 * PAGE_SIZE => "short",
                InjectedFault::Slow => "slow",
                InjectedFault::Flips { byte, mask }
                    if byte < 4 * PAGE_SIZE && mask.count_ones() == 1 =>
                {
                    "flip"
                }
                other => panic!("{other:?}"),
            };
            *counts.entry(name).or_default() += 1;
        }
        counts
    }

    #[test]
    fn every_kind_happens_as_often_as_is_asked_for() {
        let all = faults(0.01, FaultKinds::ALL);
        for (write, kinds, each) in [
            (false, ["eio", "flip", "short", "slow"].as_slice(), 250),
            (true, &["eio", "full", "short", "slow"], 200),
        ] {
            let mut counts = tally(&all, write);
            if write {
                let rot = counts.remove("flip").unwrap();
                assert!((10..50).contains(&rot), "{rot}: an eighth of {each}");
            }
            assert_eq!(counts.keys().copied().collect::<Vec<_>>(), kinds);
            assert!(
                counts.values().all(|count| (each / 2..each * 2).contains(count)),
                "{counts:?}"
            );
        }
        assert!(tally(&faults(0.0, FaultKinds::ALL), false).is_empty());
        assert_eq!(
            tally(&faults(0.1, FaultKinds::SLOW), true).keys().collect::<Vec<_>>(),
            [&"slow"]
        );
        assert!(
            tally(&faults(1.0, FaultKinds::ROT), false).is_empty(),
            "nothing goes wrong with reads"
        );
    }

    #[test]
    fn a_read_goes_wrong_only_once() {
        let faults = faults(1.0, FaultKinds::EIO | FaultKinds::FLIP);
        let mut buffer = vec![0; 16 * PAGE_SIZE];
        let mut draw = |page: usize, pages: usize| {
            faults
                .draw(&Op::read((page * PAGE_SIZE) as u64, &mut buffer[..pages * PAGE_SIZE]))
                .is_some()
        };
        assert!(draw(0, 16));
        assert!(!draw(3, 1) && draw(3, 1));
        assert!(!draw(0, 16) && draw(0, 16));
    }

    #[test]
    fn a_seed_makes_it_the_same_again() {
        let sequence = |seed| {
            let faults = Faults::new(
                FaultModel { per_billion: 500_000_000, kinds: FaultKinds::ALL },
                seed,
                1,
            );
            (0..64).map(|_| faults.draw(&Op::write(0, &[0; PAGE_SIZE]))).collect::<Vec<_>>()
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
    }
}
