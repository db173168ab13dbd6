//! A pool: the library's face.

#[cfg(feature = "allocator-api2")]
mod allocator;
mod builder;
mod refusal;
mod region;
mod vec;

use crate::base::psi::SHORTEST;
use crate::base::sync::sleep;
use crate::config::{Config, Delivery, SwapSpec};
use crate::control::swapoff::{Evacuated, Progress, SwapoffError};
use crate::device::SwapError;
use crate::engine::Engine;
use crate::error::Error;
pub use crate::space::MapFlags;
use crate::stats::{Counter, Snapshot, Stats};
use crate::units::Bytes;
#[cfg(feature = "allocator-api2")]
pub use allocator::PoolAllocator;
pub use builder::Builder;
use overspill_os::directory::Directory;
pub use overspill_os::region::Plain;
use overspill_os::vm::Prot;
use overspill_os::{Errno, signal};
pub use refusal::RegionError;
pub use region::{Advice, Region};
use std::ops::{ControlFlow, Range};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};
pub use vec::PoolVec;

/// Pauses between two looks at what is under way, and between two reports of it.
const LOOK_SHORT: Duration = Duration::from_millis(1);
const LOOK_LONG: Duration = Duration::from_millis(50);

/// A budget of memory with everything behind it: frames, a compressed tier, swap devices.
///
/// Address-space methods have the meaning of the system calls of the same name, for private
/// anonymous memory in [`Pool::window`]; they return the same error numbers.
///
/// Dropping a pool stops it and gives its memory back; its address space stays reserved.
#[derive(Debug)]
pub struct Pool {
    engine: &'static Engine,
}

impl Pool {
    /// Makes a pool.
    ///
    /// # Errors
    /// See [`Error`]: each prints as one sentence that says what to do.
    pub fn new(config: Config) -> Result<Pool, Error> {
        let stats = open_stats(config.run_dir.as_deref())?;
        stats.set_name(&program_name());
        let engine: &'static Engine = Box::leak(Box::new(Engine::build(config, stats)?));
        if engine.config.delivery == Delivery::Signal {
            for range in engine.memory.places.all() {
                signal::serve_window(range, &*engine.fault).map_err(|errno| match errno {
                    Errno::NOSPC => Error::TooManyPools,
                    errno => Error::NoUserfaultfd { errno },
                })?;
            }
        }
        engine.start_threads(false)?;
        engine.swap.publish_metadata();
        Ok(Pool { engine })
    }

    /// Waits for the end of the engine of the program that this process ran before an exec: what
    /// its memory kept attached or busy is free then. The statistics that it left in the directory
    /// of the run go.
    pub fn await_predecessor(run_dir: &Directory) {
        if let Some(engine) = Stats::engine_in_file(run_dir) {
            overspill_os::beside::await_end(engine);
            run_dir.remove(&Stats::file_name(std::process::id()));
        }
    }

    /// A pool of `memory` bytes in signal delivery: for a program that manages its own data. Swap
    /// space is an unlinked file in `swap`, if given.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn with_memory(memory: u64, swap: Option<&Path>) -> Result<Pool, Error> {
        let swap = swap.map(crate::config::SwapSpec::new);
        Pool::new(Config {
            memory: Bytes(memory),
            swap: swap.into_iter().collect(),
            delivery: Delivery::Signal,
            ..Config::default()
        })
    }

    /// The addresses under management.
    pub fn window(&self) -> Range<usize> {
        self.engine.memory.places.window()
    }

    /// Changes the budget: of this process, if it is part of a job of several. A larger one is in
    /// force when this returns. A smaller one is reached by and by, by reclaim in the background:
    /// `limit_bytes` and `charged_bytes` of the statistics tell how far it is. What cannot be
    /// brought down to it stays, and the program goes on.
    ///
    /// # Errors
    /// Those of [`Config::check_memory`].
    pub fn set_memory(&self, memory: Bytes) -> Result<(), Error> {
        Config::check_memory(memory)?;
        self.enter(|engine| engine.control.set_job_budget(memory.pages()));
        Ok(())
    }

    /// Takes pages out of memory ahead of need, as memory.reclaim of a memory cgroup does: they are
    /// compressed, which leaves a part of their size in use, or written to swap devices. Waits
    /// until so much has left, or nothing more can, and returns how much has: some pages more than
    /// asked for, perhaps, or less. Calls of several threads come one after the other.
    pub fn reclaim(&self, memory: Bytes) -> Bytes {
        const PAUSE: Duration = Duration::from_millis(1);
        while !self.engine.control.proactive.try_begin() {
            sleep(PAUSE);
        }
        let number = self.enter(|engine| engine.control.ask_reclaim(memory));
        let reclaimed = loop {
            // Outside of the gate of mapping calls in between: a fork need not wait for it.
            if let Some(reclaimed) = self.enter(|engine| engine.control.reclaimed(number)) {
                break reclaimed;
            }
            sleep(PAUSE);
        };
        self.engine.control.proactive.end();
        reclaimed
    }

    /// Adds a swap device while the pool is in use.
    ///
    /// # Errors
    /// See [`SwapError`]: each prints as one sentence that says what to do.
    pub fn swapon(&self, spec: &SwapSpec) -> Result<(), SwapError> {
        let id = self.enter(|engine| engine.control.ask_swapon(spec));
        loop {
            // Outside of the gate of mapping calls in between: a fork need not wait for it.
            if let Some(done) = self.enter(|engine| engine.control.swapped_on(id)) {
                return done;
            }
            sleep(LOOK_SHORT);
        }
    }

    /// Takes a swap device out of use while the pool is: its pages are moved to memory, to the
    /// compressed tier or to other devices, and it is closed. `device` is its path, label or UUID.
    /// `watch` is called some 20 times a second, and may end it.
    ///
    /// Pages that cannot be read are lost ([`Evacuated::lost_pages`]): an access to one of them
    /// fails as it would have before.
    ///
    /// # Errors
    /// When there is no such device, no room for its pages, or `watch` has ended it; then it is in
    /// use as before.
    pub fn swapoff(
        &self,
        device: &str,
        mut watch: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Evacuated, SwapoffError> {
        let asked = self.enter(|engine| engine.control.ask_swapoff(device))?;
        let mut looked = None;
        let ended = loop {
            match self.enter(|engine| engine.control.swapped_off(&asked)) {
                Err(ended) => break ended,
                Ok(progress) if looked.is_none_or(|at: Instant| at.elapsed() >= LOOK_LONG) => {
                    looked = Some(Instant::now());
                    if watch(progress).is_break() {
                        self.enter(|engine| engine.control.take_swapoff_back(&asked));
                    }
                }
                Ok(_) => {}
            }
            sleep(LOOK_SHORT);
        };
        if ended.is_err() {
            self.enter(|engine| engine.control.take_swapoff_back(&asked));
        }
        ended
    }

    /// What the pool has done and holds now.
    pub fn stats(&self) -> Snapshot {
        self.publish();
        self.engine.stats.snapshot()
    }

    /// Bytes of address space under management.
    pub fn managed_bytes(&self) -> Bytes {
        Bytes(self.engine.stats.gauge(Counter::ManagedBytes))
    }

    /// Bytes of managed memory that have contents: in memory, compressed or on devices.
    pub fn held_bytes(&self) -> Bytes {
        let places = [Counter::ResidentPages, Counter::CompressedPages, Counter::DevicePages];
        Bytes::from_pages(places.iter().map(|place| self.engine.stats.get(*place)).sum())
    }

    fn enter<R>(&self, call: impl FnOnce(&'static Engine) -> R) -> R {
        self.engine.fault.enter(|| call(self.engine))
    }

    /// mmap(2) of private anonymous memory; `at` is a MAP_FIXED address in the window, unless the
    /// flags say otherwise.
    pub fn mmap(
        &self,
        at: Option<usize>,
        len: usize,
        prot: Prot,
        flags: MapFlags,
    ) -> Result<usize, Errno> {
        self.enter(|engine| engine.space.map(at, len, prot, flags))
    }

    /// Forgets the pages of a range over which the caller is about to put a mapping of another kind
    /// with this protection; with `noreplace` it fails if there are any (EEXIST). One that
    /// `grows_down` may grow into free addresses below it. A later [`Pool::munmap`] takes the range
    /// back.
    pub fn surrender(&self, range: Range<usize>, prot: Prot, flags: MapFlags) -> Result<(), Errno> {
        self.enter(|engine| engine.space.surrender(range, prot, flags))
    }

    /// Makes managed memory unmanaged where it is, with its content: from the first mapped page of
    /// a range on, up to the first that is not mapped. Returns these addresses, `None` where
    /// nothing is mapped. Pages that were never touched stay absent. A later [`Pool::munmap`] takes
    /// the range back.
    ///
    /// # Errors
    /// ENOMEM when a page cannot be brought in, or the process has too many mappings; what lies
    /// before it is unmanaged then.
    pub fn give_up(&self, range: Range<usize>) -> Result<Option<Range<usize>>, Errno> {
        self.enter(|engine| engine.space.give_up(range))
    }

    /// The first part of a range in the window that is not managed, `None` where all that is mapped
    /// is.
    ///
    /// # Errors
    /// EINVAL where nothing is mapped.
    pub fn foreign_part(&self, range: Range<usize>) -> Result<Option<Range<usize>>, Errno> {
        self.enter(|engine| engine.space.foreign_part(range))
    }

    /// Whether the page at an address in the window was given up ([`Pool::give_up`]), as far as
    /// that is known without a lock.
    pub fn is_foreign(&self, address: usize) -> bool {
        self.engine.space.is_foreign(address)
    }

    /// munmap(2).
    pub fn munmap(&self, range: Range<usize>) -> Result<(), Errno> {
        self.enter(|engine| engine.space.unmap(range))
    }

    /// mprotect(2).
    pub fn mprotect(&self, range: Range<usize>, prot: Prot) -> Result<(), Errno> {
        self.enter(|engine| engine.space.protect(range, prot, None))
    }

    /// pkey_mprotect(2).
    pub fn pkey_mprotect(&self, range: Range<usize>, prot: Prot, key: i32) -> Result<(), Errno> {
        self.enter(|engine| engine.space.protect(range, prot, Some(key)))
    }

    /// mseal(2).
    pub fn mseal(&self, range: Range<usize>) -> Result<(), Errno> {
        self.enter(|engine| engine.space.seal(range))
    }

    /// madvise(2).
    pub fn madvise(&self, range: Range<usize>, advice: i32) -> Result<(), Errno> {
        self.enter(|engine| engine.space.advise(range, advice))
    }

    /// mremap(2); returns the new address.
    pub fn mremap(
        &self,
        old: Range<usize>,
        new_len: usize,
        flags: u32,
        new_at: usize,
    ) -> Result<usize, Errno> {
        self.enter(|engine| engine.space.remap(old, new_len, flags, new_at))
    }

    /// mlock2(2). At most half of the budget can be locked.
    pub fn mlock(&self, range: Range<usize>, on_fault: bool) -> Result<(), Errno> {
        self.enter(|engine| engine.space.pin(range, on_fault))
    }

    /// Whether every page of a range is mapped; what msync(2) and mincore(2) ask.
    pub fn is_mapped(&self, range: Range<usize>) -> bool {
        self.enter(|engine| engine.space.is_mapped(range))
    }

    /// How many bytes of a range in the window, from its start on, may be read, or written, as it
    /// is mapped.
    pub fn accessible(&self, range: Range<usize>, write: bool) -> usize {
        self.enter(|engine| engine.space.accessible(range, write))
    }

    /// Whether it is known without a lock that all of a range in the window may be read, or
    /// written. What was asked of [`Pool::accessible`] is known until the mappings change.
    pub fn is_accessible(&self, range: Range<usize>, write: bool) -> bool {
        self.engine.space.is_accessible(range, write)
    }

    /// Brings the pages of a range in the window into memory and keeps them there, for the kernel,
    /// which is to read or write them: until [`Pool::release`] of the same range, as often as it
    /// was held. Beside what mlock(2) does, and not to be seen by the program.
    ///
    /// # Errors
    /// ENOMEM when more than half of the budget would be held or locked.
    pub fn hold(&self, range: Range<usize>) -> Result<(), Errno> {
        self.enter(|engine| engine.space.hold(range))
    }

    /// Ends what [`Pool::hold`] began.
    pub fn release(&self, range: Range<usize>) {
        self.enter(|engine| engine.space.release(range));
    }

    /// munlock(2).
    pub fn munlock(&self, range: Range<usize>) -> Result<(), Errno> {
        self.enter(|engine| engine.space.unpin(range))
    }

    /// mlockall(2).
    pub fn mlockall(&self, flags: u32) -> Result<(), Errno> {
        self.enter(|engine| engine.space.pin_all(flags))
    }

    /// munlockall(2).
    pub fn munlockall(&self) -> Result<(), Errno> {
        self.enter(|engine| engine.space.unpin_all())
    }

    /// The program is seen using DMA into its memory (O_DIRECT, io_uring, a device): from now on
    /// pages leave by being moved only, which the kernel refuses while a page is pinned. Where the
    /// kernel cannot move pages (before Linux 6.8) nothing is evicted any more, which is said on
    /// standard error.
    pub fn dma_seen(&self) {
        self.engine.reclaim.note_dma();
    }

    /// This process is about to write into the memory of another of the job (process_vm_writev):
    /// from now on the pages of all of them leave as after [`Pool::dma_seen`].
    pub fn remote_writes_seen(&self) {
        self.engine.memory.lease.account.note_remote_writes();
    }

    /// Counts a mapping that was left to the kernel although it is of the kind that is managed.
    pub fn count_unmanaged(&self) {
        self.engine.stats.add(Counter::Unmanaged, 1);
    }

    /// Before fork(2), first half: nothing is evicted any more, faults are still served.
    pub fn fork_prepare_begin(&self) {
        self.engine.fork_prepare_begin();
    }

    /// [`Pool::accessible`] between the halves of the preparation of a fork, by the thread that
    /// forks: mappings stand still then, and every other call waits for the fork.
    pub fn accessible_in_fork(&self, range: Range<usize>, write: bool) -> usize {
        self.engine.space.accessible(range, write)
    }

    /// Before fork(2), second half: faults are not served until one of the next two.
    pub fn fork_prepare_freeze(&self) {
        Engine::fork_prepare_freeze(&[self.engine]);
    }

    /// After fork(2), in the parent; `made` is whether there is a child.
    pub fn fork_parent(&self, made: bool) {
        Engine::fork_parent(&[self.engine], made);
    }

    /// After fork(2), in the child, before it touches managed memory.
    pub fn fork_child(&self) {
        Engine::fork_child(&[self.engine]);
    }

    /// Before fork(2), in a process with several pools: both halves of the preparation for all of
    /// them. Between this and one of the next two no memory of them is to be touched, and nothing
    /// else of them called. One fork at a time.
    pub fn fork_prepare_all(pools: &[&Pool]) {
        if pools.is_empty() {
            return;
        }
        pools.iter().for_each(|pool| pool.fork_prepare_begin());
        Engine::fork_prepare_freeze(&Pool::engines(pools));
    }

    /// [`Pool::fork_parent`] of the pools that were prepared together, in the same order.
    pub fn fork_parent_all(pools: &[&Pool], made: bool) {
        if !pools.is_empty() {
            Engine::fork_parent(&Pool::engines(pools), made);
        }
    }

    /// [`Pool::fork_child`] of the pools that were prepared together, in the same order.
    pub fn fork_child_all(pools: &[&Pool]) {
        if !pools.is_empty() {
            Engine::fork_child(&Pool::engines(pools));
        }
    }

    fn engines(pools: &[&Pool]) -> Vec<&'static Engine> {
        pools.iter().map(|pool| pool.engine).collect()
    }

    /// Brings the statistics up to date as the process ends.
    pub fn report_exit(&self) {
        self.publish();
        self.enter(|engine| engine.control.measure_at_the_end());
    }

    fn publish(&self) {
        self.enter(|engine| {
            engine.swap.publish_tiers();
            engine.swap.publish_metadata();
            engine.base.psi.publish(SHORTEST);
        });
    }

    /// Checks that every page, frame, compressed object and slot is accounted for once, while all
    /// else stands still.
    ///
    /// # Panics
    /// When one is not.
    #[cfg(debug_assertions)]
    pub fn check(&self) {
        let _blocked = overspill_os::signal::Blocked::all();
        self.engine.check();
    }

    /// Flips a bit of the compressed copy of the page at an address, as broken memory does, if it
    /// has one at the moment; for tests. `byte` says which, as a number of any size.
    #[cfg(debug_assertions)]
    pub fn damage_compressed(&self, address: usize, byte: usize) -> bool {
        self.enter(|engine| {
            let page = engine.memory.places.page(address);
            page.is_some_and(|page| engine.swap.damage_compressed(page, byte))
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for range in self.engine.memory.places.mappable() {
            let _ = self.munmap(range);
        }
        if cfg!(debug_assertions) && !std::thread::panicking() {
            self.enter(|engine| {
                // Nobody takes slots or gives them back while this is closed, and nothing is mapped
                // that could fault.
                engine.base.gates.reclaim.close();
                engine.swap.devices.check();
                engine.base.gates.reclaim.open();
            });
        }
        self.engine.base.wake.stop();
        self.engine.memory.places.all().for_each(signal::release_window);
    }
}

fn open_stats(run_dir: Option<&Path>) -> Result<Stats, Error> {
    // A statistics file that cannot be made (the run has ended, another user) must not keep a
    // program from running.
    let file = run_dir.and_then(|path| {
        let run_dir = Directory::trusted(path).ok()?;
        Pool::await_predecessor(&run_dir);
        Stats::make_file(&run_dir).ok()
    });
    let in_file = file.and_then(|file| Stats::in_file(file.as_fd()).ok());
    in_file.map_or_else(Stats::anonymous, Ok).map_err(|_| Error::AddressSpace { window: Bytes(0) })
}

fn program_name() -> String {
    std::fs::read_to_string("/proc/self/comm")
        .map(|name| name.trim_end().to_owned())
        .unwrap_or_default()
}
