//! What every part of the engine stands on: locks and their order, counted locks, waiting for
//! memory and its measure.

pub mod costs;
pub mod counted;
#[cfg(test)]
pub mod explore;
pub mod lockdep;
pub mod psi;
pub mod sync;
