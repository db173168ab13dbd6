//! Processor time, in user mode and in the kernel.

use super::failure::{Failing, Failure};
pub use nix::sys::resource::UsageWho;
use nix::sys::resource::getrusage;
use nix::sys::time::TimeVal;
pub use rustix::time::ClockId;
use rustix::time::clock_gettime;
use std::ops::Sub;
use std::time::Duration;

/// Processor time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// In user mode.
    pub user: Duration,
    /// In the kernel.
    pub sys: Duration,
}

impl Usage {
    /// What was used so far.
    pub fn of(who: UsageWho) -> Result<Usage, Failure> {
        let usage = getrusage(who).failing("processor time cannot be asked for")?;
        Ok(Usage { user: duration(usage.user_time()), sys: duration(usage.system_time()) })
    }
}

/// What was used in between. A share of it that is counted twice, by a clock that is read a little
/// later, is none.
impl Sub for Usage {
    type Output = Usage;

    fn sub(self, before: Usage) -> Usage {
        Usage {
            user: self.user.saturating_sub(before.user),
            sys: self.sys.saturating_sub(before.sys),
        }
    }
}

/// What a clock of processor time says: of this thread, or of this process with all of its threads.
pub fn cpu_time(of: ClockId) -> Duration {
    let time = clock_gettime(of);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn duration(time: TimeVal) -> Duration {
    Duration::from_secs(time.tv_sec().max(0) as u64)
        + Duration::from_micros(time.tv_usec().max(0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_thread_that_computes_uses_processor_time_in_user_mode() {
        let (before, began) = (Usage::of(UsageWho::RUSAGE_THREAD).unwrap(), Instant::now());
        let used = || Usage::of(UsageWho::RUSAGE_THREAD).unwrap() - before;
        while used().user + used().sys < Duration::from_millis(10) {
            assert!(began.elapsed() < Duration::from_secs(60));
        }
        assert_eq!(before - used() - before, Usage::default());
    }
}
