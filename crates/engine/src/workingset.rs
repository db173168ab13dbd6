//! The working set: what refaults tell.
//!
//! It decides how large the compressed tier is ([`tier_size`]), how densely it packs ([`Density`]),
//! and whether copies of pages in memory are worth their room ([`copies`]). It knows how many pages
//! have left memory, how many of them a second ago ([`history`]), and which are away ([`away`]). It
//! owns these figures and nothing else: numbers go in, decisions come out, and others act on them.
//!
//! Locks: none. A figure that is read while it changes is off by that change.
//!
//! Below it: units and counters.

pub mod away;
pub mod copies;
pub mod history;
pub mod settings;
pub mod tier_size;

use crate::units::Bytes;
use crate::workingset::settings::CompressedMax;
use away::Away;
use copies::Copies;
use history::EvictionHistory;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tier_size::{Density, TierSize, Tiers};

/// What is known of it.
pub struct WorkingSet {
    /// Pages that have left for the compressed tier or a device.
    pub evictions: AtomicU64,
    /// Which of them are away.
    pub away: Away,
    /// How many had left when.
    pub history: EvictionHistory,
    /// How large the compressed tier may be.
    pub tier_size: TierSize,
    /// How densely it packs.
    pub density: Density,
    /// Copies of pages in memory.
    pub copies: Copies,
    /// Whether the size of the tier changes.
    follows: bool,
}

impl WorkingSet {
    /// Nothing has left yet.
    pub fn new(compressed: CompressedMax, budget: Bytes) -> WorkingSet {
        WorkingSet {
            evictions: AtomicU64::new(0),
            away: Away::new(budget.pages()),
            history: EvictionHistory::default(),
            tier_size: TierSize::new(compressed),
            density: Density::default(),
            copies: Copies::default(),
            follows: compressed == CompressedMax::Auto,
        }
    }

    /// So many pages leave; how many had left before.
    pub fn leave(&self, pages: u64) -> u64 {
        let time = self.evictions.fetch_add(pages, Relaxed);
        self.away.leave(time, pages);
        time
    }

    /// Follows what refaults have told, if it is time to look at that; whether the size of the
    /// compressed tier has changed.
    pub fn follow(&self, tiers: Tiers) -> bool {
        let left = self.evictions.load(Relaxed);
        if tiers.was_full && self.density.now() == 0 {
            self.density.overflows(left, tiers);
        }
        if !self.tier_size.is_due(left, tiers.budget) {
            return false;
        }
        let past = self.tier_size.look(left);
        self.density.follow(&past, tiers);
        self.follows && self.tier_size.follow(&past, tiers)
    }

    /// Notes how many have left by now, for what is told of the last second.
    pub fn sample(&self) {
        self.history.sample(self.evictions.load(Relaxed));
    }
}
