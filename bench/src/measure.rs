//! Measuring: rounds, a process for each measurement, threads that start together, and samples.

pub mod child;
mod failure;
pub mod host;
pub mod pool;
mod rounds;
mod sample;
pub mod threads;

pub use child::Printed;
pub(crate) use failure::fail;
pub use failure::{Failing, Failure, write_line};
pub use host::{Machine, entry};
pub use overspill_bench::usage::{ClockId, Usage, UsageWho, cpu_time};
pub use pool::{Counted, Counters, Ratio};
pub use rounds::{ROUNDS_BY_DEFAULT, rounds};
pub use sample::{Sample, Series, Spread, add, figures, summarise};
