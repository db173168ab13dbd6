//! The gate in front of the managed heap: fork finds no thread in the middle of an allocation.
//!
//! A child has a copy of the allocator's memory as it was at the fork. A thread that was half way
//! through malloc then has left locks held and lists half linked, and does not exist in the child
//! to finish. The C library holds all locks of its own allocator over fork for that reason;
//! mimalloc offers no such call. So each thread says in a word of its own when it is inside the
//! allocator, and fork closes the gate and waits until nobody is.
//!
//! The way in costs a store and a load: the store of the own word and the load of the gate's may be
//! reordered by the processor, so the closing side makes every thread execute a barrier
//! (membarrier(2)); where that call is not available each entry executes one.
//!
//! Waits are bounded ([`PATIENCE`]): a thread that holds a lock which fork needs may be waiting
//! here.
//!
//! Lock: [`REGISTRY`]; inside it the internal heap's. Held over fork while the gate is closed.

use crate::heap;
use overspill_os::lock::RawLock;
use overspill_os::tls;
use rustix::thread::futex;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence, fence,
};
use std::time::{Duration, Instant};
use syscalls::{Sysno, raw_syscall};

/// Longest wait on either side of the gate. A fork takes milliseconds, an allocation microseconds;
/// a wait this long means a lock cycle through the C library, which is ended by taking the risk
/// that the gate exists to avoid.
const PATIENCE: Duration = Duration::from_secs(1);

/// [`STATE`]: the gate is closed.
const CLOSED: u32 = 1;
/// [`STATE`]: no membarrier(2), so each entry executes a barrier.
const NO_MEMBARRIER: u32 = 2;
static STATE: AtomicU32 = AtomicU32::new(0);
/// The thread that closed the gate, which may pass.
static CLOSER: AtomicI32 = AtomicI32::new(0);

/// The record word of a thread that is past its thread-specific destructors.
const RETIRED: usize = 1;
/// Threads inside that have no record (any more).
static INSIDE_UNRECORDED: AtomicUsize = AtomicUsize::new(0);

/// A thread's record; never freed, used again by later threads.
#[repr(align(64))]
struct ThreadRecord {
    /// How deep the thread is inside the allocator.
    depth: AtomicU32,
    /// Whether a thread owns the record.
    owned: AtomicBool,
    next: AtomicPtr<ThreadRecord>,
}

/// The list of records grows under this lock.
static REGISTRY: RawLock = RawLock::new();
static RECORDS: AtomicPtr<ThreadRecord> = AtomicPtr::new(std::ptr::null_mut());
/// Thread-specific key whose destructor returns the record; -1 before [`init`].
static KEY: AtomicI32 = AtomicI32::new(-1);

/// The right to be inside the allocator, given back when dropped.
pub struct Pass {
    /// None: counted in [`INSIDE_UNRECORDED`].
    record: Option<&'static ThreadRecord>,
}

/// Enters the allocator; waits while a fork is under way.
#[inline(always)]
pub fn enter() -> Pass {
    let record = tls::record();
    if record <= RETIRED {
        return enter_unrecorded(record);
    }
    // SAFETY: a record word above RETIRED is the address of a record, and records are never freed.
    let record = unsafe { &*(record as *const ThreadRecord) };
    let depth = record.depth.load(Ordering::Relaxed);
    record.depth.store(depth + 1, Ordering::Relaxed);
    // The processor is ordered by the membarrier in `close`.
    compiler_fence(Ordering::SeqCst);
    if depth == 0 && STATE.load(Ordering::Relaxed) != 0 {
        wait_open(&record.depth);
    }
    Pass { record: Some(record) }
}

impl Drop for Pass {
    #[inline(always)]
    fn drop(&mut self) {
        match self.record {
            Some(record) => {
                record.depth.store(record.depth.load(Ordering::Relaxed) - 1, Ordering::Release)
            }
            None => {
                INSIDE_UNRECORDED.fetch_sub(1, Ordering::Release);
            }
        }
    }
}

/// Whether the calling thread is inside the allocator.
pub fn is_inside() -> bool {
    let record = tls::record();
    // SAFETY: as in `enter`.
    record > RETIRED
        && unsafe { &*(record as *const ThreadRecord) }.depth.load(Ordering::Relaxed) != 0
}

#[cold]
fn enter_unrecorded(word: usize) -> Pass {
    if word != RETIRED && register() {
        return enter();
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        INSIDE_UNRECORDED.fetch_add(1, Ordering::SeqCst);
        if STATE.load(Ordering::SeqCst) & CLOSED == 0
            || CLOSER.load(Ordering::Relaxed) == thread_id()
        {
            break;
        }
        if Instant::now() >= deadline {
            break;
        }
        INSIDE_UNRECORDED.fetch_sub(1, Ordering::SeqCst);
        sleep_while_closed(deadline);
    }
    Pass { record: None }
}

#[cold]
fn wait_open(depth: &AtomicU32) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        fence(Ordering::SeqCst);
        if STATE.load(Ordering::Relaxed) & CLOSED == 0
            || CLOSER.load(Ordering::Relaxed) == thread_id()
            || Instant::now() >= deadline
        {
            return;
        }
        depth.store(0, Ordering::Release);
        sleep_while_closed(deadline);
        depth.store(1, Ordering::Relaxed);
    }
}

fn sleep_while_closed(deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout =
        futex::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let state = STATE.load(Ordering::Relaxed);
    if state & CLOSED != 0 {
        let _ = futex::wait(&STATE, futex::Flags::PRIVATE, state, Some(&timeout));
    }
}

fn thread_id() -> i32 {
    overspill_os::thread::id()
}

fn records() -> impl Iterator<Item = &'static ThreadRecord> {
    // SAFETY: records are never freed, and the list only grows, at its head.
    let follow = |at: *mut ThreadRecord| unsafe { at.as_ref::<'static>() };
    std::iter::successors(follow(RECORDS.load(Ordering::Acquire)), move |record| {
        follow(record.next.load(Ordering::Relaxed))
    })
}

/// Gives the calling thread a record. False when that cannot be.
fn register() -> bool {
    if CLOSER.load(Ordering::Relaxed) == thread_id() {
        // This thread holds the registry for its fork.
        return false;
    }
    let key = KEY.load(Ordering::Relaxed);
    let _internal = tls::Internal::enter();
    let record = REGISTRY.with(|| {
        let found = records().find(|record| !record.owned.load(Ordering::Relaxed));
        let record = found.or_else(|| {
            let place = heap::alloc(size_of::<ThreadRecord>(), align_of::<ThreadRecord>())
                .cast::<ThreadRecord>();
            if place.is_null() {
                return None;
            }
            let next = RECORDS.load(Ordering::Relaxed);
            // SAFETY: the block has the size and alignment of a record and is never freed.
            unsafe {
                place.write(ThreadRecord {
                    depth: AtomicU32::new(0),
                    owned: AtomicBool::new(false),
                    next: AtomicPtr::new(next),
                });
            }
            RECORDS.store(place, Ordering::Release);
            // SAFETY: just written.
            Some(unsafe { &*place })
        })?;
        record.owned.store(true, Ordering::Relaxed);
        Some(record)
    });
    let Some(record) = record else { return false };
    let address = record as *const ThreadRecord as usize;
    let value = address as *const libc::c_void;
    // SAFETY: the key is valid; its value is a number to the C library.
    if key < 0 || unsafe { libc::pthread_setspecific(key as u32, value) } != 0 {
        record.owned.store(false, Ordering::Relaxed);
        return false;
    }
    tls::set_record(address);
    true
}

/// Runs when a thread ends: mimalloc gives up its thread's memory while the gate still knows the
/// thread, then the record is free for others. Our key is older than mimalloc's, so this comes
/// before its own destructor.
unsafe extern "C" fn retire(record: *mut libc::c_void) {
    if tls::record() != record as usize {
        return;
    }
    {
        let _pass = enter();
        // SAFETY: mimalloc allows this at any time; its thread data comes back if the thread
        // allocates again.
        unsafe { libmimalloc_sys::mi_thread_done() };
    }
    tls::set_record(RETIRED);
    // SAFETY: the value of our key is the address of a record.
    unsafe { &*record.cast::<ThreadRecord>() }.owned.store(false, Ordering::Release);
}

/// Prepares the gate: from now on it may be closed. Called while the process has one thread and
/// nobody shares its memory: the kernel would wait for all of its processors to have changed what
/// they do, for some 15 ms.
pub fn init() {
    register_membarrier();
    let mut key = 0;
    // SAFETY: the destructor is a function that lives for ever.
    if unsafe { libc::pthread_key_create(&mut key, Some(retire)) } == 0 {
        KEY.store(key as i32, Ordering::Relaxed);
    }
}

const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn register_membarrier() {
    // SAFETY: the call takes no addresses.
    let ret =
        unsafe { raw_syscall!(Sysno::membarrier, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0, 0) };
    if ret != 0 {
        STATE.fetch_or(NO_MEMBARRIER, Ordering::SeqCst);
    }
}

/// Closes the gate for a fork by the calling thread and waits until no other thread is inside. The
/// registry is held until the gate is opened, since threads register before they enter.
pub fn close() {
    if tls::record() == 0 {
        register();
    }
    REGISTRY.lock();
    CLOSER.store(thread_id(), Ordering::Relaxed);
    let before = STATE.fetch_or(CLOSED, Ordering::SeqCst);
    let own = tls::record();
    if before & NO_MEMBARRIER == 0 {
        // SAFETY: the call takes no addresses.
        unsafe { raw_syscall!(Sysno::membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0, 0) };
    }
    let deadline = Instant::now() + PATIENCE;
    let inside = || {
        INSIDE_UNRECORDED.load(Ordering::Acquire) != 0
            || records().any(|r| {
                r as *const ThreadRecord as usize != own && r.depth.load(Ordering::Acquire) != 0
            })
    };
    let mut rounds = 0;
    while inside() && Instant::now() < deadline {
        // Most stays are shorter than a sleep; a page fault inside is not.
        rounds += 1;
        if rounds < 100 {
            rustix::thread::sched_yield();
        } else {
            overspill_os::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Opens the gate in the parent of a fork.
pub fn open() {
    CLOSER.store(0, Ordering::Relaxed);
    REGISTRY.unlock();
    STATE.fetch_and(!CLOSED, Ordering::SeqCst);
    let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX >> 1);
}

/// Opens the gate in the child of a fork, where the calling thread is the only one.
pub fn open_in_child() {
    let own = tls::record();
    for record in records().filter(|record| *record as *const ThreadRecord as usize != own) {
        record.depth.store(0, Ordering::Relaxed);
        record.owned.store(false, Ordering::Relaxed);
    }
    INSIDE_UNRECORDED.store(0, Ordering::Relaxed);
    REGISTRY.unlock();
    STATE.store(0, Ordering::SeqCst);
    CLOSER.store(0, Ordering::Relaxed);
    register_membarrier();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Threads pass in and out while another closes and opens: while it is closed the counter
    /// inside is zero.
    #[test]
    fn nobody_is_inside_while_the_gate_is_closed() {
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        static STOP: AtomicBool = AtomicBool::new(false);
        init();
        std::thread::scope(|scope| {
            let passers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut passes = 0u64;
                        while !STOP.load(Ordering::Relaxed) {
                            let outer = enter();
                            INSIDE.fetch_add(1, Ordering::Relaxed);
                            drop(enter());
                            INSIDE.fetch_sub(1, Ordering::Relaxed);
                            drop(outer);
                            passes += 1;
                        }
                        passes
                    })
                })
                .collect();
            for _ in 0..300 {
                close();
                for _ in 0..50 {
                    assert_eq!(INSIDE.load(Ordering::SeqCst), 0);
                    std::thread::yield_now();
                }
                // The closer itself may pass.
                drop(enter());
                open();
                std::thread::yield_now();
            }
            STOP.store(true, Ordering::Relaxed);
            for passer in passers {
                assert!(passer.join().unwrap() > 0);
            }
        });
        // A thread that ends gives its record back, and the next one takes it; other tests' threads
        // come and go too.
        let count = records().count();
        for _ in 0..200 {
            std::thread::spawn(|| drop(enter())).join().unwrap();
        }
        assert!(records().count() < count + 100);
    }
}
