//! The size of the compressed tier, and its codec, follow what refaults tell.

use super::Swap;
use crate::stats::Counter;
use crate::workingset::tier_size::{FULL_PERCENT, Tiers};
use std::sync::atomic::Ordering::Relaxed;

impl Swap {
    /// Lets the size of the compressed tier, and how densely it packs, follow what
    /// refaults tell.
    pub fn follow_refaults(&self) {
        let tiers = Tiers {
            budget: self.memory.budget().limit(),
            frames: self.zpool.frames() as u64,
            pages: self.stats.get(Counter::CompressedPages),
            is_full: self.zpool.is_above_percent(FULL_PERCENT),
            was_full: self.compressed_full.load(Relaxed),
            has_devices: self.devices_have_room(),
        };
        if self.workingset.follow(tiers) {
            self.zpool.set_limit(self.workingset.tier_size.frames(tiers.budget));
            self.publish_tiers();
        }
    }
}
