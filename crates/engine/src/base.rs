//! What every other part stands on.
//!
//! It owns the gates that a fork closes ([`gates`]), the sleep and waking of the engine's threads
//! ([`wake`]), the one line about trouble ([`report`]), and the figures about waiting for memory
//! ([`psi`]). A pool has one [`Base`], which its parts share. The types of the others are used by
//! each part for itself: errors that are sentences ([`sentence`]), mutexes that know their place in
//! the order of locks ([`sync`], [`lockdep`]) or count how they are waited for ([`counted`]), sets
//! of buffers ([`buffers`]), and averages that choose the cheaper of two ways ([`costs`]).
//!
//! Locks: the three gates, and one over the figures of [`psi`]. Each buffer of a set has one, with
//! the rank of the part that uses it. [`lockdep`] has the order of all locks.
//!
//! Below it: units and counters. It knows nothing of pages' states, frames or devices.

pub mod buffers;
pub mod costs;
pub mod counted;
#[cfg(test)]
pub mod explore;
pub mod gates;
pub mod lockdep;
pub mod psi;
pub mod report;
pub mod seeded;
pub mod sentence;
pub mod sync;
pub mod wake;

use crate::stats::Stats;

/// What the parts of a pool share of these.
pub struct Base {
    /// What a fork closes.
    pub gates: gates::Gates,
    /// Who of the engine's threads sleeps, and how it is woken.
    pub wake: wake::Wake,
    /// Whether the line about trouble was printed.
    pub report: report::Report,
    /// How much the program waits for memory.
    pub psi: psi::Pressures,
}

impl Base {
    /// Of a pool with so many workers; `own_faults` is whether threads serve their own.
    pub fn new(
        stats: Stats,
        workers: usize,
        own_faults: bool,
        job: Option<psi::JobPressure>,
    ) -> Base {
        Base {
            gates: gates::Gates::new(),
            wake: wake::Wake::new(workers),
            report: report::Report::new(stats),
            psi: psi::Pressures::new(stats, own_faults, job),
        }
    }
}
