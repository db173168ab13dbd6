//! Who reclaims, how pages leave, and what becomes of an access for which there is no room.

use crate::units::parse_time;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Pages that a thread reclaims for itself in one go, as the kernel's SWAP_CLUSTER_MAX: enough to
/// share a flush, few enough that the thread soon goes on.
pub(crate) const DIRECT_PAGES: usize = 32;

/// The settings of reclaim.
#[derive(Clone, Debug)]
pub struct ReclaimSettings {
    pub way_out: WayOut,
    /// How many threads reclaim for themselves at once, where threads serve their own faults.
    pub max: ReclaimMax,
    pub own_faults: bool,
    pub recheck: Recheck,
    /// What becomes of an access for which there is no room, and after how long.
    pub oom: OutOfRoom,
    pub oom_wait: OomWait,
}

/// How resident pages go out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WayOut {
    /// Dense runs are moved, scattered pages are protected, stored and dropped; the cheaper by
    /// measurement in between.
    #[default]
    Auto,
    /// UFFDIO_MOVE only, which refuses pages pinned for DMA. Read-only pages, which the kernel
    /// refuses to move, are still protected and dropped: a device cannot write to them either.
    Move,
    /// Write-protect, store, drop; never moved.
    Drop,
}

/// How many threads reclaim for themselves at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReclaimMax {
    /// Half of the processors, and two a NUMA node at least; fewer of small budgets.
    #[default]
    Auto,
    /// So many.
    Threads(u16),
    /// As many as want to, up to [`ReclaimMax::OFF_THREADS`].
    Off,
}

impl ReclaimMax {
    /// Threads that can reclaim at once where that is not bounded: each has buffers and a stack of
    /// its own, of which some 8 KiB are touched in advance, and some 170 KiB once it reclaims. They
    /// are not part of the budget.
    pub const OFF_THREADS: u16 = 2048;
    /// Most that can be asked for.
    const THREADS_MAX: u16 = 1024;
    /// Fewest by default, a NUMA node.
    const PER_NODE: usize = 2;
    /// Part of the budget that the buffers of more than the fewest may take.
    const BUDGET_SHARE: usize = 64;

    /// How many threads unless somebody says: half of the processors, as reclaim is mostly the work
    /// of a processor, and the other half goes on with the program. With 16 processors and 16
    /// threads, two take half as long again, and no bound two fifths more.
    pub(super) fn auto(nodes: usize, processors: usize, budget_pages: usize) -> usize {
        let fit = budget_pages / ReclaimMax::BUDGET_SHARE / DIRECT_PAGES;
        (processors / 2).min(fit).max(ReclaimMax::PER_NODE * nodes)
    }
}

impl FromStr for ReclaimMax {
    type Err = ();

    fn from_str(text: &str) -> Result<ReclaimMax, ()> {
        match text {
            "auto" => Ok(ReclaimMax::Auto),
            "off" => Ok(ReclaimMax::Off),
            _ => match text.parse() {
                Ok(threads @ 1..=ReclaimMax::THREADS_MAX) => Ok(ReclaimMax::Threads(threads)),
                _ => Err(()),
            },
        }
    }
}

impl fmt::Display for ReclaimMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReclaimMax::Auto => f.write_str("auto"),
            ReclaimMax::Off => f.write_str("off"),
            ReclaimMax::Threads(threads) => threads.fmt(f),
        }
    }
}

/// When a thread that waited for its turn to reclaim looks whether there are frames enough by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recheck {
    /// Whenever it wakes up.
    #[default]
    Wake,
    /// After more than a second of waiting, and then for four times the high watermark: the
    /// mechanism as it was first proposed.
    Timed,
}

/// What becomes of an access for which there is no room, and none is to be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OutOfRoom {
    /// It fails: SIGBUS for the program, EFAULT for a system call.
    Sigbus,
    /// The largest process of the job is killed, with a report of what was used.
    #[default]
    Kill,
}

/// How long reclaim may be fruitless before there is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OomWait(pub Duration);

impl Default for OomWait {
    fn default() -> OomWait {
        OomWait(Duration::from_secs(2))
    }
}

impl FromStr for OomWait {
    type Err = ();

    fn from_str(text: &str) -> Result<OomWait, ()> {
        parse_time(text).map(OomWait).ok_or(())
    }
}

impl fmt::Display for OomWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs_f64() {
            seconds if seconds < 1.0 => write!(f, "{}ms", seconds * 1e3),
            seconds => write!(f, "{seconds}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_refused() {
        let max = |text: &str| text.parse::<ReclaimMax>();
        assert_eq!((max("auto"), max("off")), (Ok(ReclaimMax::Auto), Ok(ReclaimMax::Off)));
        assert_eq!(
            (max("1"), max("1024")),
            (Ok(ReclaimMax::Threads(1)), Ok(ReclaimMax::Threads(1024)))
        );
        ["0", "1025", "-1", "", "two"]
            .iter()
            .for_each(|text| assert_eq!(max(text), Err(()), "{text}"));
        let wait = |text: &str| text.parse::<OomWait>().map(|wait| wait.0);
        assert_eq!(
            (wait("500ms"), wait("0s")),
            (Ok(Duration::from_millis(500)), Ok(Duration::ZERO))
        );
        ["2", "11s", ""].iter().for_each(|text| assert_eq!(wait(text), Err(()), "{text}"));
    }

    #[test]
    fn by_default_half_of_the_processors_reclaim_and_few_of_a_small_budget() {
        const GIB: usize = 1 << 18;
        let auto = ReclaimMax::auto;
        assert_eq!((auto(1, 1, GIB), auto(1, 4, GIB), auto(1, 16, GIB)), (2, 2, 8));
        assert_eq!((auto(4, 16, GIB), auto(1, 64, GIB / 64), auto(1, 64, 64)), (8, 2, 2));
        assert_eq!((auto(1, 64, GIB / 16), auto(1, 1024, 64 * GIB)), (8, 512));
    }

    #[test]
    fn values_are_shown_as_they_are_set() {
        ["500ms", "2s", "2.5s"]
            .iter()
            .for_each(|text| assert_eq!(text.parse::<OomWait>().unwrap().to_string(), *text));
        ["auto", "off", "12"]
            .iter()
            .for_each(|text| assert_eq!(text.parse::<ReclaimMax>().unwrap().to_string(), *text));
    }
}
