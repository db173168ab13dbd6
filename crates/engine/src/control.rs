//! What changes the engine while it runs.
//!
//! The budget and its limit ([`limit`]), requests for pages to leave ([`proactive`]), advice of the
//! program ([`advice`]), swap devices that come and go ([`swapoff`]), and what children of a fork
//! have of the budget and the devices. Other processes ask through the table of the job ([`job`]).
//!
//! It owns what was asked for, and how much of it is done. The background thread does it, inside
//! the gate of reclaim; threads of the program ask, and wait where the call says so.
//!
//! Locks: one each over the children, the limit, the list of devices and the queue of advice, taken
//! in this order.
//!
//! Below it: reclaim, swap and memory.

pub mod advice;
mod children;
pub mod job;
pub mod limit;
pub mod proactive;
pub mod settings;
pub mod share;
pub mod swapoff;
mod token;
mod unmanaged;

use crate::base::Base;
use crate::device::list::JobSwaps;
use crate::memory::Memory;
use crate::reclaim::Reclaim;
use crate::stats::Stats;
use crate::swap::Swap;
use advice::AdviceQueue;
pub use children::{Child, Children};
use job::JobTable;
use limit::Limits;
use overspill_os::Errno;
use overspill_os::backing::{AnonPrivate, Backing};
use proactive::Proactive;
use settings::ControlSettings;
use share::Sharing;
use std::sync::Arc;
use swapoff::Swaps;

/// What changes the engine while it runs.
pub struct Control<B = AnonPrivate> {
    base: Arc<Base>,
    stats: Stats,
    settings: ControlSettings,
    memory: Arc<Memory<B>>,
    swap: Arc<Swap<B>>,
    reclaim: Arc<Reclaim<B>>,
    job: Option<JobTable>,
    /// What the limit of the budget is to be, and who says so.
    pub limits: Limits,
    /// How this process is doing beside the others of its job.
    pub sharing: Sharing,
    /// Requests for pages to leave memory ahead of need.
    pub proactive: Proactive,
    /// Advice of the program that waits to be followed.
    pub advice: AdviceQueue,
    /// Which devices there are to be.
    pub swaps: Swaps,
    /// Processes that share memory since a fork.
    pub children: Children,
}

impl<B: Backing> Control<B> {
    /// Of a process that follows its job's requests up to the number `request`, with the devices of
    /// a list.
    pub fn new(
        base: &Arc<Base>,
        reclaim: &Arc<Reclaim<B>>,
        swap: &Arc<Swap<B>>,
        memory: &Arc<Memory<B>>,
        settings: ControlSettings,
        (job, request, list): (Option<JobTable>, u32, JobSwaps),
        stats: Stats,
    ) -> Result<Control<B>, Errno> {
        let proactive = Proactive::new(job.as_ref())?;
        stats.set_reclaim_done(proactive.job_done());
        stats.set_answered(request);
        Ok(Control {
            base: base.clone(),
            stats,
            memory: memory.clone(),
            swap: swap.clone(),
            reclaim: reclaim.clone(),
            job,
            limits: Limits::new(request),
            sharing: Sharing::new(),
            proactive,
            advice: AdviceQueue::default(),
            swaps: Swaps::new(list),
            children: Children::new()?,
            settings,
        })
    }
}
