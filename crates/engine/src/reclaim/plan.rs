//! What is to leave, on which way, and what came of it: in words that the clock and the ways out
//! share.

use crate::memory::extent::EXTENT_PAGES;
use crate::memory::word::PageWord;

/// Pages of an extent, a bit each.
pub type ExtentBitmap = [u64; EXTENT_PAGES / 64];

/// Where pages go that are evicted in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EvictTo {
    /// To the compressed tier or a device.
    SwapOut,
    /// To the swap cache: a touch brings them back cheaply, and counts as a reference.
    SwapCache,
}

/// How pages are to be evicted.
#[derive(Clone, Copy)]
pub struct EvictPlan {
    /// Whether runs move out that are long enough; whether nothing else is done to any.
    pub moves: bool,
    pub only_move: bool,
    /// Where the others go.
    pub to: EvictTo,
    /// Whether pages stay that are shared since a fork.
    pub spares_shared: bool,
}

impl EvictPlan {
    /// Whether a page stays that is shared since a fork.
    pub fn spares(self, word: PageWord) -> bool {
        self.spares_shared && word.is_shared()
    }
}

/// What a pass of the first hand has come to.
#[derive(Default)]
pub struct ScanProgress {
    /// Extents.
    pub passed: usize,
    /// Pages.
    pub scanned: usize,
    pub deactivated: usize,
    pub freed: usize,
}
