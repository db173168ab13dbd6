//! What every part of the engine stands on: locks and their order, gates, who is woken, what is
//! said of trouble, and how much the program waits.

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
pub mod sync;
pub mod wake;

use crate::stats::Stats;

/// The state of these that the parts of a pool share.
pub struct Base {
    pub gates: gates::Gates,
    pub wake: wake::Wake,
    pub report: report::Report,
    pub psi: psi::Pressures,
}

impl Base {
    /// Of a pool with so many workers; `own_faults` is whether threads serve their own.
    pub fn new(stats: Stats, workers: usize, own_faults: bool) -> Base {
        Base {
            gates: gates::Gates::new(),
            wake: wake::Wake::new(workers),
            report: report::Report::new(stats),
            psi: psi::Pressures::new(stats, own_faults),
        }
    }
}
