//! The engine: the parts of a pool, from the ground up, and how they are put together.
//!
//! It owns one of each part and decides nothing: [`Engine::build`] makes them, each with those
//! below it. Two things are here because they concern all parts: the threads that work ahead of
//! need ([`background`]), and forks ([`fork`]). Debug builds can check that the parts agree
//! (`check`).
//!
//! Locks: one over the fork in progress. Threads of the engine take locks inside a gate only, so
//! that a fork finds none taken.
//!
//! Below it: every part, and the configuration.

mod background;
#[cfg(debug_assertions)]
mod check;
mod fork;
#[cfg(all(test, debug_assertions))]
mod interleavings;

use crate::base::Base;
use crate::config::{Config, Delivery, WayOut};
use crate::control::Control;
use crate::control::job::JobTable;
use crate::device::DeviceSettings;
use crate::device::list::JobSwaps;
use crate::device::spec::SwapSpec;
use crate::error::Error;
use crate::fault::Fault;
use crate::memory::{Memory, MemorySettings, NoMemory};
use crate::reclaim::Reclaim;
use crate::space::Space;
use crate::stats::{Counter, Stats};
use crate::swap::Swap;
use crate::units::Bytes;
use crate::workingset::WorkingSet;
use fork::prepared::Forking;
use overspill_os::backing::{AnonPrivate, Backing};
use overspill_os::directory::Directory;
use overspill_os::{cpu, probe, vm};
use std::sync::Arc;

/// Smallest budget with more than one thread that stores pages ahead of need, unless they are asked
/// for: each has buffers of half a megabyte.
const WORKERS_LEAST: Bytes = Bytes(128 << 20);

/// Everything that a pool consists of.
pub(crate) struct Engine<B = AnonPrivate> {
    /// What it was made with; the budget is the job's.
    pub config: Config,
    /// The counters, which others may map.
    pub stats: Stats,
    /// Gates, waking, the line about trouble, pressure.
    pub base: Arc<Base>,
    /// The window, its pages and the frames.
    pub memory: Arc<Memory<B>>,
    /// What refaults tell.
    pub workingset: Arc<WorkingSet>,
    /// Where pages are that have left memory.
    pub swap: Arc<Swap<B>>,
    /// What takes pages out of memory.
    pub reclaim: Arc<Reclaim<B>>,
    /// What brings pages in.
    pub fault: Arc<Fault<B>>,
    /// What changes the engine while it runs.
    pub control: Arc<Control<B>>,
    /// What the program sees of the window.
    pub space: Space<B>,
    /// The fork in progress.
    pub forking: Forking,
}

impl Engine {
    /// Builds a pool's engine, without its threads.
    pub fn build(config: Config, stats: Stats) -> Result<Engine, Error> {
        Engine::over(config, stats, Memory::new)
    }
}

impl<B: Backing> Engine<B> {
    /// The same over a kind of memory.
    pub fn over(
        mut config: Config,
        stats: Stats,
        memory: impl FnOnce(&MemorySettings, Stats) -> Result<Memory<B>, NoMemory>,
    ) -> Result<Engine<B>, Error> {
        // 1. The job's budget may have been changed since it was started.
        let job = config.run_dir.as_deref().and_then(JobTable::open_at);
        let request = job.map(|job| job.budget()).filter(|request| request.number != 0);
        if let Some(request) = request {
            config.memory = request.memory;
        }
        config.check()?;
        if !config.baselines.vector_drop {
            vm::disable_vector_drop();
        }
        let own_faults = config.delivery == Delivery::Signal;
        stats.set(Counter::BudgetBytes, config.memory.0);
        stats.set_target(config.memory);
        // 2. From the ground up.
        let base = Arc::new(Base::new(
            stats,
            workers(&config),
            own_faults,
            job.map(|job| job.shared_pressure()),
        ));
        let settings = MemorySettings { account: job.map(|job| job.account()), ..config.memory() };
        let memory = memory(&settings, stats).map(Arc::new).map_err(|none| match none {
            NoMemory::AddressSpace => Error::AddressSpace { window: config.window_bytes() },
            NoMemory::Userfaultfd(errno) => Error::NoUserfaultfd { errno },
        })?;
        if config.way_out == WayOut::Move && !memory.frames.backing.can_move() {
            return Err(Error::NoMove);
        }
        let workingset = Arc::new(WorkingSet::new(config.compressed_max, config.memory));
        let out_of_address_space = |_| Error::AddressSpace { window: config.window_bytes() };
        let list = first_list(&config, job);
        let devices = (&list, device_settings(&config, job, &memory));
        let swap = Swap::new(&base, &memory, &workingset, config.swap(), devices, stats)?;
        let swap = Arc::new(swap);
        let reclaim = Reclaim::new(&base, &swap, &memory, &workingset, config.reclaim(), stats)
            .map(Arc::new)
            .map_err(out_of_address_space)?;
        let fault = Fault::new(&base, &reclaim, &swap, &memory, &workingset, config.fault(), stats)
            .map(Arc::new)
            .map_err(out_of_address_space)?;
        let of_job = (job, request.map_or(0, |request| request.number), list);
        let control =
            Control::new(&base, &reclaim, &swap, &memory, config.control(), of_job, stats)
                .map(Arc::new)
                .map_err(out_of_address_space)?;
        let space = Space::new(&control, &fault, &swap, &memory, config.delivery, stats);
        space.begin_annexes().map_err(out_of_address_space)?;
        Ok(Engine {
            config,
            stats,
            base,
            memory,
            workingset,
            swap,
            reclaim,
            fault,
            control,
            space,
            forking: Forking::default(),
        })
    }
}

/// How many threads store pages ahead of need, beside the background thread.
fn workers(config: &Config) -> usize {
    match config.workers {
        _ if !config.baselines.background => 0,
        Some(workers) => workers as usize - 1,
        None if config.memory < WORKERS_LEAST => 0,
        None => (cpu::available() / 4).clamp(1, 4) - 1,
    }
}

/// The devices of the job, which may have been changed since it was started.
fn first_list(config: &Config, job: Option<JobTable>) -> JobSwaps {
    let changed = config.run_dir.as_deref().filter(|_| job.is_some_and(|job| job.swaps() != 0));
    let list = changed.and_then(|path| JobSwaps::read(&Directory::trusted(path).ok()?).ok());
    list.unwrap_or_else(|| JobSwaps::first(&swap_within(config)))
}

/// The devices of the beginning. Where tables are to be small a directory without a size does not
/// have one for all the space that is free there.
fn swap_within(config: &Config) -> Vec<SwapSpec> {
    let mut specs = config.swap.clone();
    if config.counts_mappings() {
        let unsized_directories =
            specs.iter_mut().filter(|spec| spec.size.is_none() && spec.path.is_dir());
        unsized_directories.for_each(|spec| spec.size = Some(config.window_bytes()));
    }
    specs
}

fn device_settings(
    config: &Config,
    job: Option<JobTable>,
    memory: &Memory<impl Backing>,
) -> DeviceSettings {
    DeviceSettings {
        slots: config.baselines.slot,
        uring: config.baselines.uring && !probe::simulated().no_uring,
        // No more pages can be compressed than there are.
        in_memory: memory.words.len() as u64,
        // What the job executes later may have another user or another root, from which they cannot
        // be reached: its memory is only compressed then.
        reachable_only: config.run_dir.is_some() && job.is_none_or(|job| !job.is_first()),
        run_dir: config.run_dir.clone(),
    }
}

impl<B> std::fmt::Debug for Engine<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", &self.config).finish_non_exhaustive()
    }
}
