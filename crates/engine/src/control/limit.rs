//! The limit of this process: what it is to be, and how a lower one is reached.
//!
//! The limit is what the process leases of the job's budget ([`crate::memory::lease`]). It rises by
//! itself as the process needs more. What it is to come down to it *aims* at: where the job's
//! budget became lower, where others need pages more ([`super::share`]), and before a fork. A lower
//! aim is *pressed* towards: the limit follows the pages in use down, step by step while they are
//! reclaimed, and is never below them, so that reclaim always has its reserve and no fault fails
//! because of pages that nobody has taken yet. What cannot be brought down (nothing takes the
//! pages: no swap, a full disk, locked memory) stops the pressing: the process gets room to go on,
//! and its limit follows down only what it gives up by itself.
//!
//! The background thread presses, whatever the baseline `background` says: that is about reclaim
//! ahead of need.
//!
//! Lock: one over the state ([`Rank::Limits`]), never held at a fork: the background thread takes
//! it inside the gate of reclaim, threads of the program as part of a fork or inside the gate of
//! mapping calls. Over it, the limit is set.

mod press;

use crate::base::lockdep::Rank;
use crate::base::sync::RankedMutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Instant;

/// Where pressing stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Press {
    /// The limit is what it is to be.
    Reached,
    /// It comes down as pages are reclaimed.
    Going,
    /// Nothing more can be reclaimed.
    Stuck,
}

#[derive(Debug)]
struct LimitState {
    /// What the limit is to be at most, in pages.
    aim: u64,
    /// The limit that was in force before it was to be lower: enough for the process to go on.
    ceiling: u64,
    /// Fewest pages in use since pressing began, and when that was.
    best: u64,
    since: Instant,
    /// Rounds of reclaim that had freed nothing by then.
    fruitless: u64,
}

/// The limit in force, and the one to come.
#[derive(Debug)]
pub(crate) struct Limits {
    state: RankedMutex<LimitState>,
    /// Pressing has come to nothing, and nothing has changed since.
    stuck: AtomicBool,
    /// Number of the job's request that this process follows.
    request: AtomicU32,
}

impl Limits {
    /// For a process whose limit may rise.
    pub fn new(request: u32) -> Limits {
        let state = LimitState {
            aim: u64::MAX,
            ceiling: u64::MAX,
            best: u64::MAX,
            since: Instant::now(),
            fruitless: 0,
        };
        Limits {
            state: RankedMutex::new(Rank::Limits, state),
            stuck: AtomicBool::new(false),
            request: AtomicU32::new(request),
        }
    }

    /// Whether that has come to nothing.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Relaxed)
    }
}
