//! Where pages are that have left memory: the swap cache, the compressed tier, and what of them is
//! known by slot.
//!
//! The swap cache is copies of pages in frames of the arena, where a touch finds them without I/O.
//! Two kinds of pages are there. A page that was *moved out* lies in its frame and nowhere else yet;
//! its page word names the frame. A page that was *read ahead* from a device is found by its slot,
//! in the [`index`]. Both grow older in the lists of [`lru`], whose oldest the second hand of the
//! clock takes: it stores what was moved out, and drops what was read ahead.
//!
//! Locks: those of the partitions of the index and of the lists, counted separately; nothing is
//! taken under one.

pub mod clean;
pub mod fill;
pub mod index;
pub mod lru;
pub mod store;
pub mod zswap;

pub use index::{Entry, GivenUp, SlotIndex, Stamp};
pub use lru::Ages;
