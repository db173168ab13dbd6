//! Measuring: rounds, a process for each measurement, threads that start together, and samples.

pub mod child;
pub mod failure;
pub mod host;
pub mod pool;
pub mod rounds;
pub mod sample;
pub mod threads;
pub mod usage;

pub(crate) use failure::fail;
pub use failure::{Failing, Failure};
pub use rounds::{ROUNDS_BY_DEFAULT, rounds};
pub use sample::{Sample, Series, Spread, add, figures, summarise};
