//! What a process, its children or a thread have used, as the kernel counts it.

pub use nix::sys::resource::UsageWho;
use nix::sys::resource::getrusage;
use nix::sys::time::TimeVal;
pub use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use std::ops::Sub;
use std::time::Duration;

/// What a clock of processor time says: of this thread, or of this process with all of its threads.
pub fn cpu_time(of: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(of);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What was used.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time in user mode and in the kernel, in seconds.
    pub user_s: f64,
    /// See `user_s`.
    pub sys_s: f64,
    /// Faults without I/O, and with it.
    pub minor_faults: u64,
    /// See `minor_faults`.
    pub major_faults: u64,
    /// The most memory that one of them has had, in bytes.
    pub ram_bytes_peak: u64,
}

impl Usage {
    /// What was used so far.
    pub fn of(who: UsageWho) -> Usage {
        let usage = getrusage(who).expect("the kernel knows what was used");
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        Usage {
            user_s: seconds(usage.user_time()),
            sys_s: seconds(usage.system_time()),
            minor_faults: usage.minor_page_faults().max(0) as u64,
            major_faults: usage.major_page_faults().max(0) as u64,
            ram_bytes_peak: usage.max_rss().max(0) as u64 * 1024,
        }
    }
}

/// What was used in between. A share of it that is counted twice, by a clock that is read a little
/// later, is none. The most is that of both.
impl Sub for Usage {
    type Output = Usage;

    fn sub(self, before: Usage) -> Usage {
        Usage {
            user_s: (self.user_s - before.user_s).max(0.0),
            sys_s: (self.sys_s - before.sys_s).max(0.0),
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            ram_bytes_peak: self.ram_bytes_peak,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_thread_that_computes_uses_processor_time() {
        let (before, began) = (Usage::of(UsageWho::RUSAGE_THREAD), Instant::now());
        let used = || Usage::of(UsageWho::RUSAGE_THREAD) - before;
        while used().user_s + used().sys_s < 0.01 {
            assert!(began.elapsed() < Duration::from_secs(60));
        }
        assert_eq!((before - Usage::of(UsageWho::RUSAGE_THREAD)).user_s, 0.0);
    }
}
