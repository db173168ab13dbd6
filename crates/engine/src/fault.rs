//! Serving a fault: from the page's word ([`serve`]) to an installed page ([`install`]) and its new
//! word ([`publish`]).
//!
//! The same code serves both deliveries ([`delivery`]). It allocates nothing, takes no lock that
//! the program's own calls hold while they can fault, and touches no managed memory. Neighbouring
//! pages come in beside the faulting one as a folio while a thread goes through memory in sequence
//! ([`streams`], [`folio`]), else not; what lies around it on its device ([`readahead`]); and what
//! a long sequence goes on to, by a thread beside ([`ahead`]).
//!
//! It owns the buffers that faults are served with, the stacks on which the program's threads run
//! engine code, and the streams of sequential faults.
//!
//! Locks: a fault holds its buffers, and then the locks of its pages, which it only tries.
//!
//! Below it: reclaim, which a fault without a frame calls; swap, which loads pages; memory.

mod ahead;
mod context;
mod cow;
pub mod delivery;
pub mod folio;
mod install;
mod polling;
mod publish;
pub mod readahead;
mod serve;
pub mod settings;
mod streams;

use crate::base::Base;
use crate::base::buffers::{Buffers, TakenBuffers};
use crate::base::costs::Choice;
use crate::base::lockdep::Rank;
use crate::memory::Memory;
use crate::reclaim::Reclaim;
use crate::stats::Stats;
use crate::swap::Swap;
use crate::workingset::WorkingSet;
use context::FaultContext;
use folio::Folios;
use overspill_os::backing::{AnonPrivate, Backing};
use overspill_os::stack::EngineStacks;
use overspill_os::{Errno, cpu};
use readahead::size::ReadaheadSize;
use settings::{Delivery, FaultSettings};
use std::sync::Arc;
use streams::{Streams, Waiting};

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// The access can be repeated.
    Done,
    /// The page is somebody else's just now, or reclaim stands still for a fork: serve it again a
    /// little later.
    Busy,
    /// There is no frame for it: reclaim, and serve it again ([`crate::reclaim::direct`]).
    NoRoom,
    /// It cannot be served; the program is to get SIGBUS.
    Failed,
    /// The page is none of the engine's: the kernel says what the access is to meet.
    Foreign,
}

/// What the program was about to do.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// A store.
    pub write: bool,
    /// Stopped by protection, or perhaps by it.
    pub protected: bool,
}

/// What serves faults.
pub struct Fault<B = AnonPrivate> {
    base: Arc<Base>,
    stats: Stats,
    settings: FaultSettings,
    memory: Arc<Memory<B>>,
    workingset: Arc<WorkingSet>,
    swap: Arc<Swap<B>>,
    reclaim: Arc<Reclaim<B>>,
    contexts: Buffers<FaultContext>,
    stacks: EngineStacks,
    streams: Streams,
    waiting: Waiting,
    readahead_size: ReadaheadSize,
    /// Way in from the swap cache: copying (0) or moving (1), by log2 of the run.
    way_in: [Choice; 7],
}

/// Stacks for threads that are inside the engine at the same time; the next one waits.
const STACKS: usize = 64;

impl<B: Backing> Fault<B> {
    /// With buffers for as many faults at once as processors and delivery make sense of.
    pub fn new(
        base: &Arc<Base>,
        reclaim: &Arc<Reclaim<B>>,
        swap: &Arc<Swap<B>>,
        memory: &Arc<Memory<B>>,
        workingset: &Arc<WorkingSet>,
        settings: FaultSettings,
        stats: Stats,
    ) -> Result<Fault<B>, Errno> {
        let contexts = match settings.delivery {
            Delivery::Signal => 2 * cpu::available().clamp(2, 32),
            // One for the handler, one for what goes ahead of it.
            Delivery::Thread => 1 + usize::from(settings.ahead),
        };
        let folios = Folios::new(settings.folio);
        let least = folios.memory.max(settings.readahead_max);
        let contexts = Buffers::new(
            Rank::FaultContext,
            contexts,
            || FaultContext::new(least, folios.device.max(least), &swap.settings.codecs()),
            memory.charges(least as u64, 1),
        )?;
        Ok(Fault {
            base: base.clone(),
            stats,
            memory: memory.clone(),
            workingset: workingset.clone(),
            swap: swap.clone(),
            // A stack for each that reclaims for itself, beside those for everything else.
            stacks: EngineStacks::new(STACKS + reclaim.direct_count())?,
            reclaim: reclaim.clone(),
            contexts,
            streams: Streams::new(folios),
            waiting: Waiting::default(),
            readahead_size: ReadaheadSize::default(),
            way_in: std::array::from_fn(|_| Choice::default()),
            settings,
        })
    }

    /// In the child of a fork: nobody is on a stack.
    pub fn reset_in_child(&self) {
        self.stacks.reset_in_child();
    }

    /// Something to work with; waits where others have all of them.
    fn take_context(&self) -> TakenBuffers<'_, FaultContext> {
        self.grown(self.contexts.take())
    }

    /// With as many pages as are worth their memory here, if there is room for them.
    fn grown<'a>(
        &self,
        mut context: TakenBuffers<'a, FaultContext>,
    ) -> TakenBuffers<'a, FaultContext> {
        let budget = self.memory.budget();
        let share = Folios::share(budget.limit() as usize, self.contexts.len());
        let growth = match context.growth(share) {
            0 => 0,
            growth => growth.min(budget.free_pages() as usize / 2),
        };
        if growth > 0 {
            budget.charge_more(growth as u64);
            context.grow(growth);
        }
        context
    }

    /// Frames that contexts hold until they are dropped with others.
    #[cfg(debug_assertions)]
    pub fn spent(&self) -> usize {
        self.contexts.iter().map(|context| context.spent.len()).sum()
    }
}
