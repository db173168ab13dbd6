//! What is said of a job's swap devices.

use serde::{Deserialize, Serialize};

/// How a device that the job uses is named.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwapName {
    /// By its number in the job, [`SwapDevice::id`].
    Id(u32),
    /// By its label.
    Label(String),
    /// By its UUID.
    Uuid(String),
    /// By its path, or else its label or UUID.
    Any {
        /// What the user wrote, if it is short enough for a label or a UUID.
        text: Option<String>,
        /// The same as an absolute path.
        path: String,
    },
}

/// A swap device of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SwapDevice {
    /// Its number in the job.
    pub id: u32,
    /// Its path; `ram` for a RAM device.
    pub path: String,
    /// Its kind: directory, file, block or ram.
    pub kind: String,
    /// Its size; of RAM devices, of which each process has its own, the sum.
    pub size_bytes: u64,
    /// What all processes use of it.
    pub used_bytes: u64,
    /// Its priority.
    pub priority: i32,
    /// Its UUID, if it has one.
    pub uuid: Option<String>,
    /// Its label, if it has one.
    pub label: Option<String>,
    /// Whether it is being taken out of use.
    pub leaving: bool,
}

/// How a change of the devices ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwapOutcome {
    /// As was asked for.
    Done,
    /// Nothing takes the pages of the device: it stays in use.
    NoRoom,
    /// Somebody has called it off: it stays in use.
    Cancelled,
    /// No process could open the device: it is not in use.
    NotOpened,
}

/// How far a change of the devices is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SwapChange {
    /// Which change.
    pub change: u32,
    /// The device, as people are told of it.
    pub device: String,
    /// How it ends, as soon as that is known.
    pub outcome: Option<SwapOutcome>,
    /// Whether it has ended, and what had to be undone is.
    pub over: bool,
    /// Living processes with managed memory.
    pub processes: u64,
    /// How many of them have nothing more to do.
    pub done: u64,
    /// How many of the others show nothing of it: they have not taken note yet, or are stopped.
    pub silent: u64,
    /// Pages that are still to leave the device.
    pub left_pages: u64,
    /// Pages of the device that could not be read.
    pub lost_pages: u64,
    /// Processes that could not open the device.
    pub not_opened: u64,
}
