//! Processor time.

pub use overspill_bench::usage::{Usage, UsageWho};
pub use rustix::time::ClockId;
use std::time::Duration;

/// What a clock of processor time says: of this thread, or of this process with all of its threads.
pub fn cpu_time(of: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(of);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
