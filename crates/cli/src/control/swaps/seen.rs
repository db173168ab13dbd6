//! What changes of swap devices are judged by: the processes of the job, and the devices in use.

use overspill::device::list::ListedSwap;
use overspill::stats::{Snapshot, SwapsOutcome};

/// The living processes of the job, as they are now.
pub struct Processes<'a> {
    /// Their statistics.
    pub snapshots: &'a [(u32, Snapshot)],
    /// Whether a process is expected to answer: it has not begun to run another, unmanaged program.
    pub is_managed: &'a dyn Fn(u32) -> bool,
}

impl Processes<'_> {
    /// Those that answer, with what they say of the list of that number, or of a later one, once
    /// they are done with it.
    pub fn of_list(
        &self,
        number: u32,
    ) -> impl Iterator<Item = (u32, &Snapshot, Option<SwapsOutcome>)> {
        self.snapshots.iter().filter_map(move |(pid, snapshot)| {
            let (done, outcome) = snapshot.swaps_done;
            let outcome = (done >= number).then_some(outcome);
            (outcome.is_some() || (self.is_managed)(*pid)).then_some((*pid, snapshot, outcome))
        })
    }
}

/// A device that is in use.
#[derive(Debug)]
pub struct InUse {
    /// As the list has it.
    pub device: ListedSwap,
    /// Its priority, in this list.
    pub priority: i32,
    /// Whether it is being taken out of use.
    pub leaving: bool,
}
