//! Whether it pays to keep copies of pages that are in memory, by what became of them lately.

use crate::workingset::settings::Clean;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

/// How far the balance of gains and losses goes to either side: what happened longer ago than so
/// many pages is forgotten.
const BALANCE_MAX: i32 = 1024;
/// Keep compressed copies of resident pages only while the tier holds this many pages per resident
/// page. A copy takes the room of two fifths of a page. Where few pages are resident, most accesses
/// miss anyway: copies cost an eighth more misses, and save every compression. Where most are
/// resident, copies cost half as many misses again, which is more than they save.
const OUTNUMBERED: u64 = 2;
/// One load in so many keeps its slot while that does not pay, to find out when it does again.
const SAMPLE: u32 = 64;

/// Whether it pays to keep the copies that pages in memory still have.
#[derive(Debug, Default)]
pub struct Copies {
    /// Of pages that came from devices.
    stored: Balance,
    /// Of pages that came from the compressed tier.
    compressed: Balance,
    /// Whether compressed pages outnumber those in memory by [`OUTNUMBERED`].
    outnumbered: AtomicBool,
    /// See [`Copies::reach`].
    reach: AtomicU64,
}

/// Whether it has paid lately to keep copies.
#[derive(Debug, Default)]
pub struct Balance {
    /// Pages that left without a write, less those that were written, times their cost.
    gains: AtomicI32,
    loads: AtomicU32,
}

impl Balance {
    /// A page left without a write, for a gain, or was written to, for a loss.
    pub fn count(&self, gain: i32) {
        let gains = (self.gains.load(Relaxed) + gain).clamp(-BALANCE_MAX, BALANCE_MAX);
        self.gains.store(gains, Relaxed);
    }

    /// Whether the copy of a page that comes in now is to be kept.
    pub fn pays(&self, setting: Clean) -> bool {
        match setting {
            Clean::On => true,
            Clean::Off => false,
            Clean::Auto => {
                self.gains.load(Relaxed) >= 0
                    || self.loads.fetch_add(1, Relaxed).is_multiple_of(SAMPLE)
            }
        }
    }
}

impl Copies {
    /// The account of pages that came from the compressed tier, or from devices.
    pub fn account(&self, compressed: bool) -> &Balance {
        if compressed { &self.compressed } else { &self.stored }
    }

    /// Notes how many compressed pages there are, copies of pages in memory included: `clean` of
    /// those that are `resident`. `others` is how many pages the rest of the budget has room for.
    pub fn note_compressed(&self, pages: u64, clean: u64, resident: u64, others: u64) {
        self.outnumbered.store(pages.saturating_sub(clean) >= OUTNUMBERED * resident, Relaxed);
        self.reach.store(if pages > 0 { others + pages } else { 0 }, Relaxed);
    }

    /// Whether compressed pages outnumber those in memory.
    pub fn are_outnumbered(&self) -> bool {
        self.outnumbered.load(Relaxed)
    }

    /// How many pages memory and the compressed tier hold together, of late; 0 without the tier.
    pub fn reach(&self) -> u64 {
        self.reach.load(Relaxed)
    }
}
