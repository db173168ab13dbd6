//! Dormancy: a process that does little has no engine.
//!
//! Most processes of a build live for milliseconds and use a few hundred KiB. An engine costs more
//! than they do: tables, a userfaultfd, a process beside the program, changes of the C library's
//! code. So a process begins *dormant*. Its blocks come from the internal heap ([`crate::heap`]),
//! its mappings from the kernel, and nothing is managed. It *wakes* before
//!
//! - its blocks and its private anonymous mappings together exceed what the budget allows
//!   ([`limit_for`]), or grow while all dormant processes of the job have much of it;
//! - it asks for much at once, also of shared memory, which an engine counts;
//! - it makes a thread: waking changes code that nobody else may run meanwhile;
//! - it gives up what an engine needs to begin, such as rights or file descriptors.
//!
//! A program with a malloc of its own in its executable wakes at once: it may map memory while it
//! holds a lock that waking would need.
//!
//! What it has then stays where it is, unmanaged, unless mremap may move it as it grows
//! ([`has_left`]): addresses cannot change, and a filter that an
//! ancestor has put on the process ([`overspill_os::seccomp`]) must not stop a process without a
//! handler, so that none of it may lie in the window. It is bounded by the limit. All that comes
//! later is managed.
//!
//! What a dormant process has is said in the account of its job, so that others have as much less:
//! once it is more than [`UNSAID`], as most never have.
//!
//! A child of a fork is dormant if its parent was, and what is executed is dormant again. The child
//! of a vfork does not wake, nor does a process in a handler on a signal stack ([`is_held_up`]).
//!
//! Context: the process has one thread. A handler of a signal may interrupt any of this: the counts
//! are atomic, and signals are blocked while it wakes.

use crate::config::Asked;
use crate::sys::keeping_errno;
use crate::{heap, own_stack, pool};
use overspill::job::JobTable;
use overspill_os::signal::{Blocked, OURS, change_mask};
use overspill_os::{PAGE_SIZE, thread, tls};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

/// What the process may hold at most: this part of its job's budget, within bounds. More than most
/// commands of a build need; less than what an engine has at least while it works (4 MiB); and
/// little beside the budget, as it stays unmanaged.
const LIMIT_PART: u64 = 32;
const LIMIT_LEAST: u64 = 512 << 10;
const LIMIT_MOST: u64 = 4 << 20;
/// A request for so much at once wakes the process: it is worth to be managed, most likely, and
/// that is where it begins to be.
const LARGE: usize = 512 << 10;
/// What all processes of a job that are dormant may have together: this part of its budget. Beyond,
/// those wake that would have more.
const ALL_PART: u64 = 8;

/// What is not worth to be said: less than the difference by which a process may be wrong about its
/// memory. Beyond, it is said in steps.
const UNSAID: usize = 512 << 10;
const SAID_STEP: usize = 256 << 10;

/// Makes the engine.
type Waker = fn(Asked) -> Result<(), String>;

/// How the process wakes.
struct Sleep {
    asked: Asked,
    wake: Waker,
    fail: fn(&str) -> !,
}

static SLEEP: OnceLock<Sleep> = OnceLock::new();
static DORMANT: AtomicBool = AtomicBool::new(false);
/// The process that is dormant: not the child of a vfork, which shares its memory.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Mappings that are counted one by one; those beyond are counted for ever.
const MAPPINGS: usize = 32;
/// Start and length of each, 0 for none.
static MAPPED: [[AtomicUsize; 2]; MAPPINGS] =
    [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; MAPPINGS];
/// Bytes of all.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The table of the job, the process's entry in its account, and how much the process may have
/// before something is to be said there.
static JOB: OnceLock<Option<JobTable>> = OnceLock::new();
static ENTRY: AtomicUsize = AtomicUsize::new(0);
static SAID: AtomicUsize = AtomicUsize::new(UNSAID);
/// What it shares with its parent.
static INHERITED: AtomicUsize = AtomicUsize::new(0);
/// Bytes that the process may have before it wakes.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// What a process may hold in a job with this budget before it wakes.
pub fn limit_for(budget: u64) -> u64 {
    (budget / LIMIT_PART).clamp(LIMIT_LEAST, LIMIT_MOST)
}

fn pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// The process is dormant from now on. Called by the constructor.
pub fn begin(asked: Asked, wake: Waker, fail: fn(&str) -> !) {
    LIMIT.store(limit_for(asked.config.memory.0) as usize, Relaxed);
    let _ = SLEEP.set(Sleep { asked, wake, fail });
    OWNER.store(pid(), Relaxed);
    DORMANT.store(true, Relaxed);
}

/// Whether the process has no engine yet.
#[inline(always)]
pub fn is_dormant() -> bool {
    DORMANT.load(Relaxed)
}

/// Whether this is the program's own code in a process that has no engine yet.
#[inline(always)]
pub fn concerns() -> bool {
    is_dormant() && tls::is_program()
}

/// In the child of a fork.
pub fn begin_in_child() {
    OWNER.store(pid(), Relaxed);
    INHERITED.store(has(), Relaxed);
    ENTRY.store(0, Relaxed);
    SAID.store(has() + UNSAID, Relaxed);
}

/// Bytes that the process has.
fn has() -> usize {
    BYTES.load(Relaxed) + heap::used()
}

/// Says in the account what the process has by now.
#[inline(always)]
fn tell() {
    if has() > SAID.load(Relaxed) {
        tell_anew();
    }
}

#[cold]
fn tell_anew() {
    let Some(sleep) = SLEEP.get().filter(|_| !is_held_up()) else { return };
    let _blocked = Blocked::all();
    let to = has().next_multiple_of(SAID_STEP);
    SAID.store(to, Relaxed);
    if let Some(job) = job(sleep) {
        let _internal = tls::Internal::enter();
        let pages = (to - INHERITED.load(Relaxed)) / PAGE_SIZE;
        ENTRY.store(job.hold(ENTRY.load(Relaxed), pages as u64), Relaxed);
        let (_, held) = job.held();
        if held.0 > sleep.asked.config.memory.0 / ALL_PART {
            LIMIT.store(has(), Relaxed);
        }
    }
}

/// The table of the job, of which a process that does little has no need until it asks.
fn job(sleep: &Sleep) -> Option<&'static JobTable> {
    let _blocked = Blocked::all();
    let _internal = tls::Internal::enter();
    let open = || sleep.asked.config.run_dir.as_deref().and_then(JobTable::open_at);
    keeping_errno(|| JOB.get_or_init(open).as_ref())
}

/// The program is about to write into the memory of another process.
pub fn remote_writes_seen() {
    SLEEP.get().and_then(job).into_iter().for_each(JobTable::note_remote_writes);
}

/// The process has nothing any more, as it wakes or executes another program. Where that fails it
/// says again what it has when that grows.
pub fn leave() {
    let entry = ENTRY.load(Relaxed);
    if entry != 0
        && pid() == OWNER.load(Relaxed)
        && let Some(Some(job)) = JOB.get()
    {
        ENTRY.store(job.hold(entry, 0), Relaxed);
        SAID.store(INHERITED.load(Relaxed) + UNSAID, Relaxed);
    }
}

/// Bytes that blocks may have.
fn room() -> usize {
    LIMIT.load(Relaxed).saturating_sub(BYTES.load(Relaxed))
}

/// A block for the program of a dormant process, null where it has to wake first.
pub fn alloc(size: usize, align: usize) -> *mut u8 {
    if size >= LARGE {
        return std::ptr::null_mut();
    }
    let block = heap::alloc_within(size, align, room());
    tell();
    block
}

/// Another size for a block of the internal heap's, null where that cannot be.
///
/// # Safety
///
/// As for realloc(3), of a block of the internal heap.
pub unsafe fn resize(block: *mut u8, size: usize) -> *mut u8 {
    if size >= LARGE {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let resized = unsafe { heap::resize_within(block, size, room()) };
    tell();
    resized
}

/// Whether the process may map so many bytes more without waking.
pub fn admits(len: usize) -> bool {
    len < LARGE && len <= room().saturating_sub(heap::used())
}

/// A mapping of the program's is there.
pub fn note(range: Range<usize>) {
    BYTES.fetch_add(range.len(), Relaxed);
    if let Some([start, len]) = MAPPED.iter().find(|[start, _]| start.load(Relaxed) == 0) {
        len.store(range.len(), Relaxed);
        start.store(range.start, Relaxed);
    }
    tell();
}

/// Whether a range is exactly a mapping that was counted, by now of a process with an engine.
pub fn has_left(range: &Range<usize>) -> bool {
    let is_it = |[start, len]: &[AtomicUsize; 2]| {
        start.load(Relaxed) == range.start && len.load(Relaxed) == range.len()
    };
    !is_dormant() && MAPPED.iter().any(is_it)
}

/// A range is unmapped: what is not exactly a mapping that was counted goes on to count. Whether it
/// was one.
pub fn forget(range: Range<usize>) -> bool {
    let is_it = |[start, len]: &&[AtomicUsize; 2]| {
        start.load(Relaxed) == range.start && len.load(Relaxed) == range.len()
    };
    let found = MAPPED.iter().find(is_it);
    if let Some([start, _]) = found {
        start.store(0, Relaxed);
        BYTES.fetch_sub(range.len(), Relaxed);
    }
    found.is_some()
}

/// Wakes the process if it is dormant; whether it has an engine now, or needs none.
pub fn wake() -> bool {
    if !concerns() {
        return true;
    }
    !is_held_up() && keeping_errno(begin_engine)
}

/// Whether the process cannot wake just now, so that it gets what it asks for all the same: the
/// child of a vfork has its parent's memory, and goes on to execute something; and where a handler
/// runs on a signal stack the kernel takes no other for it, so that is for when it has returned.
pub fn is_held_up() -> bool {
    pid() != OWNER.load(Relaxed) || is_on_signal_stack()
}

fn is_on_signal_stack() -> bool {
    let mut stack =
        libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: the kernel writes the stack that is in use.
    let asked = unsafe { raw_syscall!(Sysno::sigaltstack, 0, &raw mut stack) };
    asked == 0 && stack.ss_flags & libc::SS_ONSTACK != 0
}

#[cold]
fn begin_engine() -> bool {
    let Some(sleep) = SLEEP.get() else { return false };
    let _internal = tls::Internal::enter();
    // 1. What cannot be had now may be had later, and the program may do without.
    if let Err(error) = possible() {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Relaxed) {
            thread::report(format_args!(
                "the program gets no more memory, since its engine cannot begin: {error}"
            ));
        }
        return false;
    }
    // 2. No handler runs meanwhile. Faults of ours are not blocked: in signal delivery the mask of
    //    the thread tells what the program has blocked of them.
    let before = change_mask(libc::SIG_BLOCK, !OURS);
    DORMANT.store(false, Relaxed);
    // 3. The program's stack may have little room.
    own_stack::run(|| {
        leave();
        if let Err(error) = (sleep.wake)(sleep.asked.clone()) {
            (sleep.fail)(&error);
        }
    });
    own_stack::forget();
    let open = if pool::signal_delivery() { OURS } else { 0 };
    change_mask(libc::SIG_SETMASK, before & !open);
    true
}

/// Whether an engine can begin, as far as that shows.
fn possible() -> Result<(), String> {
    let opened = |signal| overspill_os::uffd::open_descriptor(signal).map(drop);
    opened(true)
        .or_else(|_| opened(false))
        .map_err(|errno| format!("no userfaultfd can be had ({errno})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_budget_within_bounds() {
        assert_eq!([16 << 20, 64 << 20, 1 << 40].map(limit_for), [512 << 10, 2 << 20, 4 << 20]);
    }

    #[test]
    fn mappings_count_until_they_are_unmapped_as_they_are() {
        let before = BYTES.load(Relaxed);
        note(4096..12288);
        note(1 << 20..2 << 20);
        assert_eq!(BYTES.load(Relaxed) - before, 8192 + (1 << 20));
        forget(4096..8192);
        assert_eq!(BYTES.load(Relaxed) - before, 8192 + (1 << 20));
        forget(4096..12288);
        forget(1 << 20..2 << 20);
        forget(1 << 20..2 << 20);
        assert_eq!(BYTES.load(Relaxed), before);
    }
}
