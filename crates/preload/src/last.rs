//! The last thread of the program ends the process.
//!
//! A program whose first thread calls pthread_exit lives until its last thread ends; then the C library calls
//! exit(0). It counts the engine's threads too, which never end. So the program's own threads are counted here, and
//! the last one to end calls exit(0) in their place.
//!
//! A thread ends when its thread-specific data are destroyed. The destructor asks for another round until the last
//! that there is, so that other destructors, which may run code of the program, come first.

use crate::{altstack, pool, sys};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Rounds of destructors that POSIX and the C library promise.
const ROUNDS: usize = 4;
/// Beside the round, for a thread that is not counted.
const UNCOUNTED: usize = 1 << 8;

static KEY: AtomicI32 = AtomicI32::new(-1);
/// Threads of the program that have not ended; the first thread is one.
static THREADS: AtomicUsize = AtomicUsize::new(1);

/// Counts the first thread. Called by the constructor.
pub fn start() {
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: `key` receives the key; the destructor lives for ever.
    if unsafe { libc::pthread_key_create(&mut key, Some(ended)) } == 0 {
        KEY.store(key as i32, Ordering::Relaxed);
        mark(1);
    }
}

/// A thread is about to be made. If it is not after all, [`not_born`] takes that back.
pub fn born() {
    THREADS.fetch_add(1, Ordering::Relaxed);
}

/// See [`born`].
pub fn not_born() {
    THREADS.fetch_sub(1, Ordering::Relaxed);
}

/// Called on a new thread of the program: notes that its end is to be counted.
pub fn begin() {
    mark(1);
}

/// Called on a thread that the C library has made for itself: its end is noticed, and not counted.
pub fn begin_uncounted() {
    mark(1 | UNCOUNTED);
}

/// In the child of a fork there is one thread.
pub fn reset_in_child() {
    THREADS.store(1, Ordering::Relaxed);
}

fn mark(round: usize) {
    let key = KEY.load(Ordering::Relaxed);
    if key >= 0 {
        // SAFETY: the key was made by `start`. Its first 32 values lie in the thread's control block, so nothing is
        // allocated; and should that fail the end of the thread is not noticed, no worse.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, round as *const c_void) };
    }
}

unsafe extern "C" fn ended(round: *mut c_void) {
    let round = round as usize;
    if round & !UNCOUNTED < ROUNDS {
        return mark(round + 1);
    }
    altstack::take_back();
    if round & UNCOUNTED != 0 {
        return;
    }
    if THREADS.fetch_sub(1, Ordering::AcqRel) == 1 && pool::exists() {
        unsafe extern "C" {
            fn exit(status: c_int) -> !;
        }
        // What follows are cancellation points, and Rust's functions cannot be unwound.
        let _whole = sys::Uncancelled::begin();
        if nobody_else() {
            // SAFETY: what the C library does for the last thread.
            unsafe { exit(0) }
        }
    }
}

/// Whether the process has no thread but this one, the engine's, the kernel's for io_uring, and a first thread that has
/// ended: threads that the C library makes for itself are not counted above.
fn nobody_else() -> bool {
    let (own, first) = (rustix::thread::gettid(), rustix::process::getpid());
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return false };
    tasks.flatten().all(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let id = task.file_name().to_string_lossy().parse().unwrap_or(0);
        id == own.as_raw_nonzero().get()
            || id == first.as_raw_nonzero().get()
            || name.starts_with("overspill")
            || name.starts_with("iou-")
    })
}
