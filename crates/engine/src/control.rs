//! What changes the engine while it runs: the budget and its limit, requests for pages to leave,
//! advice, and swap devices that come and go.

pub mod advice;
mod children;
pub mod job;
pub mod limit;
pub mod proactive;
pub mod settings;
pub mod swapoff;

use crate::base::Base;
use crate::device::list::JobSwaps;
use crate::memory::Memory;
use crate::reclaim::Reclaim;
use crate::stats::Stats;
use crate::swap::Swap;
use advice::Wishes;
pub use children::{Child, Children};
use job::JobTable;
use limit::Limits;
use overspill_os::Errno;
use overspill_os::backing::{AnonPrivate, Backing};
use proactive::Proactive;
use settings::ControlSettings;
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
    /// Requests for pages to leave memory ahead of need.
    pub proactive: Proactive,
    /// What the program wishes of pages.
    pub wishes: Wishes,
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
            limits: Limits::new(memory.budget().limit(), request),
            proactive,
            wishes: Wishes::default(),
            swaps: Swaps::new(list),
            children: Children::new()?,
            settings,
        })
    }
}
