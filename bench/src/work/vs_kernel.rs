//! `vs-kernel`: the same work with the kernel's swap and with overspill.
//!
//! Accesses to memory, or a real [`program`], are run by themselves in a memory cgroup with zram,
//! zswap or a swap file ([`peer`]), by `overspill run`, and in a process of the library ([`ours`]).
//! The [`floor`] says what the mechanisms cost alone. [`launch`] starts programs and waits for
//! them, [`request`] is what is asked for, [`names`] of whom, [`figures`] what is told.

pub mod figures;
pub mod floor;
pub mod launch;
pub mod names;
pub mod ours;
pub mod peer;
pub mod program;
pub mod request;

use crate::measure::{Failure, Sample};
use overspill_bench::workload::Packing;
use request::{Request, Who};

/// Measures in this process, which does nothing else.
pub fn measure_one(request: Request) -> Result<Sample, Failure> {
    match &request.who {
        Who::Peer(peer) => peer::measure(&request, *peer),
        Who::Overspill { command, fault } => ours::run(&request, command, fault),
        Who::Library => ours::library(&request),
        Who::Alone => peer::alone(&request),
        Who::Floor => floor::measure(Packing::Heap),
    }
}
