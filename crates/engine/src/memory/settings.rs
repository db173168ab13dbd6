//! What memory is made for, and within which bounds.

use crate::account::Account;
use crate::frame::{ARENA_MAX, FrameSettings};
use crate::units::Bytes;
use std::ops::Range;

/// Smallest budget a pool runs in: its reserves and one batch of pages out and in.
pub const MEMORY_MIN: Bytes = Bytes(4 << 20);
/// Largest budget: half of the largest arena.
pub const MEMORY_MAX: Bytes = Bytes(ARENA_MAX.0 / 2);
/// The largest window: a page of it is told by 32 bits where there is an entry a slot.
pub const WINDOW_MAX: Bytes = Bytes(8 << 40);

/// What memory is made for.
#[derive(Clone, Debug)]
pub struct MemorySettings {
    /// The budget, and the largest that there is to be room for.
    pub memory: Bytes,
    pub memory_max: Bytes,
    /// Size of the window.
    pub window: Bytes,
    /// Where it is to lie; anywhere if there is nothing here.
    pub window_at: Option<Range<usize>>,
    /// What is managed where it lies.
    pub annexes: Vec<Range<usize>>,
    /// Addresses that are reserved for mappings that must lie low.
    pub low: Option<Range<usize>>,
    /// How frames are handed out.
    pub frames: FrameSettings,
    /// Whether threads serve their own faults.
    pub own_faults: bool,
    /// The account of the job; this process and the children that it forks have one of their own if
    /// there is nothing here.
    pub account: Option<Account>,
}
