//! The ladder: the steps, their settings, and what their origin published.

use clap::ValueEnum;
use serde_json::{Value, json};
use std::fmt;

/// The ladder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum Step {
    /// A page is read at a time
    #[value(name = "run-1")]
    Run1,
    /// Up to 8 pages with one operation
    #[value(name = "run-8")]
    Run8,
    /// Up to 32
    #[value(name = "run-32")]
    Run32,
    /// Up to 256: 1 MiB
    #[value(name = "run-256")]
    Run256,
    /// The same with two operations in flight: the defaults
    InFlight,
    /// With four
    #[value(name = "in-flight-4")]
    InFlight4,
    /// The kernel's swapoff of a swap file on the same disk
    Kernel,
}

impl Step {
    /// Its settings, beside those of all; the kernel has none.
    pub fn settings(self) -> Option<&'static str> {
        match self {
            Step::Run1 => Some("swapoff.run=1,swapoff.depth=1"),
            Step::Run8 => Some("swapoff.run=8,swapoff.depth=1"),
            Step::Run32 => Some("swapoff.run=32,swapoff.depth=1"),
            Step::Run256 => Some("swapoff.run=256,swapoff.depth=1"),
            Step::InFlight => Some("swapoff.run=256,swapoff.depth=2"),
            Step::InFlight4 => Some("swapoff.run=256,swapoff.depth=4"),
            Step::Kernel => None,
        }
    }

    /// What the origin of the mechanism published: "swapoff to release multiple swap blocks at a
    /// time" of FreeBSD, with 1 GiB, before and after.
    pub fn reference(self) -> Option<Value> {
        match self {
            Step::Run1 => {
                let Reference { elapsed_s, sys_s, operations } = REFERENCE_BEFORE;
                Some(json!({ "elapsed_s": elapsed_s, "sys_s": sys_s, "operations": operations }))
            }
            Step::Run256 => {
                let Reference { elapsed_s, sys_s, operations } = REFERENCE_AFTER;
                Some(json!({
                    "elapsed_s": elapsed_s, "sys_s": sys_s, "operations": operations, "pages_per_operation": 18.3,
                }))
            }
            _ => None,
        }
    }
}

/// Figures that the origin of the mechanism published.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// Seconds until the device was empty.
    pub elapsed_s: f64,
    /// Processor time in the kernel meanwhile, in seconds.
    pub sys_s: f64,
    /// Read operations.
    pub operations: u64,
}

/// A page at a time.
pub const REFERENCE_BEFORE: Reference =
    Reference { elapsed_s: 47.50, sys_s: 11.35, operations: 263_858 };
/// In runs.
pub const REFERENCE_AFTER: Reference =
    Reference { elapsed_s: 7.93, sys_s: 0.77, operations: 14_596 };
/// What it was measured with.
pub const REFERENCE_BYTES: u64 = 1 << 30;

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no step is skipped").get_name())
    }
}

/// What goes on beside the evacuation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Nothing.
    Alone,
    /// See [`super::load`].
    Load,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Workload::Alone => "alone",
            Workload::Load => "load",
        })
    }
}

/// One row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// What goes on beside it.
    pub workload: Workload,
    /// Who empties the device, and how.
    pub step: Step,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.step, self.workload)
    }
}
