//! The one pool of the process, and the only module that names the engine's types.
//!
//! Each wrapper runs the engine inside an [`tls::Internal`] section: what the engine allocates or
//! maps on the program's thread then never becomes managed memory, and errno stays as it was. No
//! locks of its own.

use crate::route::{self, Split};
use crate::sys::keeping_errno;
use crate::{image, probe};
use overspill::config::{Config, Delivery};
use overspill::{MapFlags, Pool};
use overspill_os::directory::Directory;
use overspill_os::vm::{self, Prot};
use overspill_os::{Errno, beside, confined, descriptors, rss, seccomp, smaps, tls};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[cfg(test)]
pub mod explore;

static POOL: OnceLock<Pool> = OnceLock::new();
/// The window of managed addresses; empty until the pool is made.
static WINDOW_START: AtomicUsize = AtomicUsize::new(0);
static WINDOW_END: AtomicUsize = AtomicUsize::new(0);
/// Where memory is managed beside it, each a first address and an end; those not used are empty.
static ANNEXES: [[AtomicUsize; 2]; ANNEXES_MAX + 1] =
    [const { [const { AtomicUsize::new(0) }; 2] }; ANNEXES_MAX + 1];
/// Where the segment of each begins, in whole units of the filter: calls are stopped for addresses
/// from there on.
static SEGMENTS: [AtomicUsize; ANNEXES_MAX + 1] = [const { AtomicUsize::new(0) }; ANNEXES_MAX + 1];
/// Most annexes that are arrays; the last of all may be for mappings that must lie low.
pub const ANNEXES_MAX: usize = 4;
static HAS_LOW: AtomicBool = AtomicBool::new(false);
static SIGNAL_DELIVERY: AtomicBool = AtomicBool::new(false);

/// Makes the pool. Called once, by the constructor.
pub fn create(config: Config) -> Result<(), String> {
    let _internal = tls::Internal::enter();
    let signal = config.delivery == Delivery::Signal;
    descriptors::set_apart();
    beside::prepare();
    let annexes: Vec<_> = config.annexes.iter().chain(&config.low).cloned().collect();
    HAS_LOW.store(config.low.is_some(), Ordering::Relaxed);
    let pool = Pool::new(config).map_err(|error| error.to_string())?;
    for (first, range) in SEGMENTS.iter().zip(image::with_segments_before(&annexes)) {
        first.store(range.start & !(seccomp::UNIT - 1), Ordering::Relaxed);
    }
    for ([start, end], annex) in ANNEXES.iter().zip(annexes) {
        start.store(annex.start, Ordering::Relaxed);
        end.store(annex.end, Ordering::Relaxed);
    }
    let window = pool.window();
    let _ = POOL.set(pool);
    SIGNAL_DELIVERY.store(signal, Ordering::Relaxed);
    WINDOW_START.store(window.start, Ordering::Relaxed);
    WINDOW_END.store(window.end, Ordering::Relaxed);
    Ok(())
}

/// Waits for the end of the engine of the program that this process ran before.
pub fn await_predecessor(run_dir: &Directory) {
    Pool::await_predecessor(run_dir);
}

/// Whether the kernel reads or writes memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelAccess {
    Read,
    Write,
}

/// Whether an address is managed.
#[inline(always)]
pub fn contains(address: usize) -> bool {
    window().contains(&address) || annexes().any(|annex| annex.contains(&address))
}

/// Whether any of so many bytes is managed.
#[inline]
pub fn reaches(start: usize, len: usize) -> bool {
    contains(start) || !split(start..start.saturating_add(len)).inside.is_empty()
}

/// Whether a call is stopped that is handed this address: what begins there is managed, or lies
/// before an annex in its segment, or close to one. What reaches into an annex begins there too.
#[inline]
pub fn is_stopped(address: usize) -> bool {
    let first = |first: &AtomicUsize| first.load(Ordering::Relaxed);
    let is_close = |(segment, annex): (usize, Range<usize>)| {
        (segment..annex.end.next_multiple_of(seccomp::UNIT)).contains(&address)
    };
    contains(address) || SEGMENTS.iter().map(first).zip(annexes()).any(is_close)
}

/// What is managed beside the window.
#[inline(always)]
fn annexes() -> impl Iterator<Item = Range<usize>> {
    let load = |[start, end]: &[AtomicUsize; 2]| {
        start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)
    };
    ANNEXES.iter().map(load).take_while(|annex| annex.end != 0)
}

/// Whether there is a range for mappings that must lie low.
pub fn has_low() -> bool {
    HAS_LOW.load(Ordering::Relaxed)
}

/// A range cut at the edges of what is managed of it: of the window, or of the first annex that it
/// reaches into.
pub fn split(range: Range<usize>) -> Split {
    let parts = annexes().map(|annex| route::split(range.clone(), annex));
    let annexed = parts.into_iter().find(|parts| !parts.inside.is_empty());
    annexed.unwrap_or_else(|| route::split(range, window()))
}

/// Where what is managed around an address ends.
pub fn end_of(address: usize) -> usize {
    annexes().find(|annex| annex.contains(&address)).map_or(window().end, |annex| annex.end)
}

/// The window; empty without a pool. What is managed beside it is not in it ([`contains`]).
#[inline(always)]
pub fn window() -> Range<usize> {
    #[cfg(test)]
    if let Some(window) = explore::window() {
        return window;
    }
    WINDOW_START.load(Ordering::Relaxed)..WINDOW_END.load(Ordering::Relaxed)
}

/// Whether faults are delivered by SIGBUS; then system calls and signal masks need care.
#[inline(always)]
pub fn signal_delivery() -> bool {
    SIGNAL_DELIVERY.load(Ordering::Relaxed)
}

/// Whether there is a pool.
#[inline(always)]
pub fn exists() -> bool {
    WINDOW_END.load(Ordering::Relaxed) != 0
}

/// Runs `call` on the pool, or nothing without one.
fn with<R>(call: impl FnOnce(&'static Pool) -> R) -> Option<R> {
    let pool = POOL.get()?;
    let _internal = tls::Internal::enter();
    Some(keeping_errno(|| call(pool)))
}

/// [`with`] where the caller has seen an address inside the window.
fn managed<R>(call: impl FnOnce(&'static Pool) -> Result<R, Errno>) -> Result<R, Errno> {
    with(call).unwrap_or(Err(Errno::NOMEM))
}

/// mmap(2) of private anonymous memory in the window; `flags` are mmap's, and without a fixed
/// address `at` is a hint.
pub fn mmap(at: usize, len: usize, prot: i32, flags: i32) -> Result<usize, Errno> {
    managed(|pool| pool.mmap(Some(at), len, Prot(prot as u32), map_flags(flags)))
}

fn map_flags(flags: i32) -> MapFlags {
    MapFlags {
        hint: flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == 0,
        noreplace: flags & libc::MAP_FIXED_NOREPLACE != 0,
        locked: flags & libc::MAP_LOCKED != 0,
        grows_down: flags & libc::MAP_GROWSDOWN != 0,
        low: flags & libc::MAP_32BIT != 0,
    }
}

/// Forgets the pages of a range over which a mapping of another kind is about to be put; with
/// `noreplace` there must be none; `flags` are mmap's.
pub fn surrender(range: Range<usize>, prot: i32, flags: i32) -> Result<(), Errno> {
    managed(|pool| pool.surrender(range, Prot(prot as u32), map_flags(flags)))
}

/// Makes memory in the window unmanaged where it is, with its content: from the first page of a
/// range that is mapped on, up to the first that is not. Which these are; `None` where nothing is
/// mapped.
pub fn give_up(range: Range<usize>) -> Result<Option<Range<usize>>, Errno> {
    managed(|pool| pool.give_up(range))
}

/// The first part of a range in the window that is not managed, `None` where all that is mapped is.
/// EINVAL where nothing is mapped.
pub fn foreign_part(range: Range<usize>) -> Result<Option<Range<usize>>, Errno> {
    managed(|pool| pool.foreign_part(range))
}

/// Whether the program has the page at an address of the window for itself.
pub fn is_foreign(address: usize) -> bool {
    POOL.get().is_some_and(|pool| pool.is_foreign(address))
}

/// munmap(2) inside the window.
pub fn munmap(range: Range<usize>) -> Result<(), Errno> {
    managed(|pool| pool.munmap(range))
}

/// mprotect(2) inside the window.
pub fn mprotect(range: Range<usize>, prot: i32) -> Result<(), Errno> {
    managed(|pool| pool.mprotect(range, Prot(prot as u32)))
}

/// pkey_mprotect(2) inside the window.
pub fn pkey_mprotect(range: Range<usize>, prot: i32, key: i32) -> Result<(), Errno> {
    managed(|pool| pool.pkey_mprotect(range, Prot(prot as u32), key))
}

/// mseal(2) inside the window.
pub fn mseal(range: Range<usize>) -> Result<(), Errno> {
    managed(|pool| pool.mseal(range))
}

/// madvise(2) inside the window.
pub fn madvise(range: Range<usize>, advice: i32) -> Result<(), Errno> {
    managed(|pool| pool.madvise(range, advice))
}

/// mremap(2) of a range inside the window.
pub fn mremap(
    old: Range<usize>,
    new_len: usize,
    flags: u32,
    new_address: usize,
) -> Result<usize, Errno> {
    managed(|pool| pool.mremap(old, new_len, flags, new_address))
}

/// mlock2(2) inside the window.
pub fn mlock(range: Range<usize>, on_fault: bool) -> Result<(), Errno> {
    managed(|pool| pool.mlock(range, on_fault))
}

/// ENOMEM unless all of a range inside the window is mapped.
pub fn check_mapped(range: Range<usize>) -> Result<(), Errno> {
    managed(|pool| if pool.is_mapped(range) { Ok(()) } else { Err(Errno::NOMEM) })
}

/// How many bytes of a range in the window, from its start on, may be accessed in this way, as it
/// is mapped.
pub fn accessible(range: Range<usize>, access: KernelAccess) -> usize {
    #[cfg(test)]
    if let Some(len) = explore::accessible(&range, access) {
        return len;
    }
    if !contains(range.start) && is_stopped(range.start) {
        return accessible_beside(range, access);
    }
    let write = access == KernelAccess::Write;
    // Mostly that is known: then nothing is allocated, and errno stays.
    if POOL.get().is_some_and(|pool| pool.is_accessible(range.clone(), write)) {
        return range.len();
    }
    with(|pool| pool.accessible(range, write)).unwrap_or(0)
}

/// [`accessible`] of a range that begins beside an annex: as the kernel has it, up to the annex.
fn accessible_beside(range: Range<usize>, access: KernelAccess) -> usize {
    let inside = split(range.clone()).inside;
    let first = if inside.is_empty() { range.end } else { inside.start };
    let there = match access {
        KernelAccess::Read => probe::readable(range.start, first - range.start),
        KernelAccess::Write => probe::writable(range.start, first - range.start),
    };
    let goes_on = range.start + there == first && first < range.end;
    there + if goes_on { accessible(first..range.end, access) } else { 0 }
}

/// [`accessible`] between the halves of the preparation of a fork, by the thread that forks.
pub fn accessible_in_fork(range: Range<usize>, access: KernelAccess) -> usize {
    with(|pool| pool.accessible_in_fork(range, access == KernelAccess::Write)).unwrap_or(0)
}

/// Keeps a range inside the window in memory while the kernel is at it; `false` if it cannot be
/// kept.
pub fn hold(range: Range<usize>) -> bool {
    managed(|pool| pool.hold(range)).is_ok()
}

/// Ends what [`hold`] began.
pub fn release(range: Range<usize>) {
    let _ = with(|pool| pool.release(range));
}

/// munlock(2) inside the window.
pub fn munlock(range: Range<usize>) -> Result<(), Errno> {
    managed(|pool| pool.munlock(range))
}

/// mlockall(2). What is not managed is locked as it comes into memory: to bring all of it in would
/// have stacks that were never used fill the budget. Where not all of it may be locked none is, and
/// the call says nothing of it: the engine's library counts there, natively it does not.
pub fn mlockall(flags: u32) -> Result<(), Errno> {
    managed(|pool| {
        pool.mlockall(flags)?;
        if flags & libc::MCL_CURRENT as u32 != 0 {
            let beside = lockable();
            if beside.iter().any(|range| vm::lock(range.clone(), true).is_err()) {
                unlock(beside);
            }
        }
        Ok(())
    })
}

/// munlockall(2).
pub fn munlockall() -> Result<(), Errno> {
    managed(|pool| {
        unlock(lockable());
        pool.munlockall()
    })
}

/// What is not managed, where it may be looked at.
fn lockable() -> Vec<Range<usize>> {
    if confined::is_confined() { Vec::new() } else { mapped_beside().unwrap_or_default() }
}

/// What was unmapped meanwhile needs no unlocking.
fn unlock(ranges: Vec<Range<usize>>) {
    for range in ranges {
        let _ = vm::unlock(range);
    }
}

/// The program is seen using DMA into its memory.
pub fn dma_seen() {
    with(Pool::dma_seen);
}

/// The program is about to write into the memory of another process.
pub fn remote_writes_seen() {
    with(Pool::remote_writes_seen);
}

/// Bytes of address space that are managed.
pub fn managed_bytes() -> u64 {
    with(|pool| pool.managed_bytes().0).unwrap_or(0)
}

/// Bytes of managed memory that have contents, wherever that is.
pub fn held_bytes() -> u64 {
    with(|pool| pool.held_bytes().0).unwrap_or(0)
}

/// The mappings that are neither managed nor the engine's.
fn mapped_beside() -> Result<Vec<Range<usize>>, Errno> {
    let managed: Vec<_> = annexes().chain([window()]).collect();
    smaps::beside(&managed)
}

/// Whether a range beside what is managed lies in one private mapping of no file that may be read
/// and written, where that can be seen.
pub fn is_plain(range: &Range<usize>) -> bool {
    !confined::is_confined() && with(|_| smaps::is_plain(range)).unwrap_or(false)
}

/// Bytes of address space that are neither managed nor the engine's; `None` where that cannot be
/// seen.
pub fn bytes_beside() -> Option<u64> {
    /// The process that was looked at, and how much in it is managed or the engine's.
    static LOOKED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    with(|_| {
        let (pid, all) = (rustix::process::getpid().as_raw_nonzero().get(), rss::address_bytes()?);
        if LOOKED[0].load(Ordering::Relaxed) != pid as u64 {
            let beside: u64 = mapped_beside()?.into_iter().map(|range| range.len() as u64).sum();
            let others = all.saturating_sub(beside);
            LOOKED[1].store(others, Ordering::Relaxed);
            LOOKED[0].store(pid as u64, Ordering::Relaxed);
        }
        Ok::<_, Errno>(all.saturating_sub(LOOKED[1].load(Ordering::Relaxed)))
    })?
    .ok()
}

/// A request was left to the kernel although it was of the kind that is managed.
pub fn count_unmanaged() {
    with(Pool::count_unmanaged);
}

/// Before a fork, first half: nothing is evicted any more.
pub fn fork_prepare_begin() {
    with(Pool::fork_prepare_begin);
}

/// Before a fork, second half: the engine stands still.
pub fn fork_prepare_freeze() {
    with(Pool::fork_prepare_freeze);
}

/// After a fork, in the parent; `made` is whether there is a child.
pub fn fork_parent(made: bool) {
    with(|pool| pool.fork_parent(made));
}

/// After a fork, in the child.
pub fn fork_child() {
    with(Pool::fork_child);
}

/// At exit. A debug build looks whether everything is accounted for.
pub fn report_exit() {
    #[cfg(debug_assertions)]
    with(Pool::check);
    with(Pool::report_exit);
}
