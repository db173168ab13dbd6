//! Where the slots of a device are, in numbers.

use crate::base::sync::Atomic;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Where the usable slots of a device are; the fields add up to their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Handed out.
    pub used: u64,
    /// In the caches of processors: set aside to be handed out, or freed and not yet back in their
    /// cluster.
    pub cached: u64,
    /// Can be handed out at once.
    pub free: u64,
    /// Need to be acquired, or disk space, first.
    pub ungrown: u64,
    /// Free, but in clusters shared with a process on the other side of a fork.
    pub sealed: u64,
    /// In allotments that other processes own.
    pub another: u64,
    /// Failed to be written; never handed out again.
    pub bad: u64,
}

/// As the fields of [`Counts`], except that clusters do not tell who has what was taken out of
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum SlotState {
    /// In use or cached.
    Taken,
    /// Free.
    Free,
    /// Ungrown.
    Ungrown,
    /// Sealed.
    Sealed,
    /// Another's.
    Another,
    /// Bad.
    Bad,
}

/// How many slots there are in each state. Changed along with what it counts, under the lock that
/// guards that.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Tally([AtomicU64; 6]);

impl Tally {
    /// How many slots are in a state.
    pub fn get(&self, state: SlotState) -> u64 {
        Atomic::load(&self.0[state as usize], Relaxed)
    }

    /// Moves slots from one state to another: they are in one of them at every moment, or seen in
    /// both.
    pub fn shift(&self, from: SlotState, to: SlotState, slots: u64) {
        if slots > 0 {
            Atomic::fetch_add(&self.0[to as usize], slots, Relaxed);
            Atomic::fetch_sub(&self.0[from as usize], slots, Relaxed);
        }
    }

    /// Counts slots for the first time.
    pub fn begin(&self, state: SlotState, slots: u64) {
        self.0[state as usize].store(slots, Relaxed);
    }

    /// What a fork copies.
    #[cfg(test)]
    pub fn copy_to(&self, other: &Tally) {
        self.0.iter().zip(&other.0).for_each(|(from, to)| to.store(from.load(Relaxed), Relaxed));
    }
}
