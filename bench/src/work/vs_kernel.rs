//! `vs-kernel`: the same work with the kernel's swap and with overspill.
//!
//! Accesses to memory, or a real [`program`], are run by themselves in a memory cgroup with zram,
//! zswap or a swap file ([`peer`]), by `overspill run`, and in a process of the library ([`ours`]).
//! The [`floor`] says what the mechanisms cost alone. [`launch`] starts programs and waits for
//! them, [`case`] is what is compared with what, [`shares`] who has how much of a job's memory.

pub mod case;
pub mod floor;
pub mod launch;
pub mod ours;
pub mod peer;
pub mod program;
mod request;
mod shares;

use crate::measure::*;
use case::{Kind, Variant};
pub use program::beside;
pub use request::Measurement;

/// Measures in this process, which does nothing else.
pub fn measure_one(request: Measurement) -> Result<Sample, Failure> {
    match request.kind {
        Kind::Floor => floor::measure(),
        Kind::Alone(_) => peer::alone(&request),
        Kind::Work(setting, Variant::Peer) => peer::measure(&request, setting.peer),
        Kind::Work(_, Variant::OverspillThread) => ours::run(&request, "thread", ""),
        Kind::Work(_, Variant::OverspillSignal) => ours::run(&request, "signal", ""),
        Kind::Work(_, Variant::OverspillUnsealed) => ours::run(&request, "signal", ",crypt=off"),
        Kind::Work(_, Variant::Library) => ours::library(&request),
    }
}
