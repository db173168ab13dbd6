//! The swap cache: copies of pages in frames of the arena, where a touch finds them without I/O.
//!
//! Two kinds of pages are here. A page that was *moved out* lies in its frame and nowhere else yet;
//! its page word names the frame. A page that was *read ahead* from a device is found by its slot,
//! in the [`index`]. Both grow older in the [`ages`], whose oldest the second hand of the clock
//! takes: it stores what was moved out, and drops what was read ahead.
//!
//! Locks: those of the partitions of the index and of the ages, counted separately; nothing is
//! taken under one.

pub mod ages;
pub mod index;

pub use ages::Ages;
pub use index::{Entry, GivenUp, SlotIndex, Stamp};
