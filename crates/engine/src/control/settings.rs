//! What control is set to.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of control.
#[derive(Clone, Debug)]
pub struct ControlSettings {
    /// The directory of the run, whose table tells the processes of a job about changes.
    pub run_dir: Option<PathBuf>,
    /// Most pages that are read with one operation from a device that is taken out of use, and how
    /// many operations are in flight.
    pub swapoff_run: usize,
    pub swapoff_depth: usize,
    /// How long a fault waits for room.
    pub oom_wait: Duration,
    /// Whether processes that thrash have the job's memory in turns.
    pub token: bool,
}

/// Most operations in flight on a device that is taken out of use: each has a thread and a buffer.
pub const SWAPOFF_DEPTH_MAX: usize = 16;
