//! What a thread of the engine runs, and how one begins that is a thread of this process. Those of
//! the sibling are made by [`crate::beside`].

use crate::signal::Blocked;
use crate::tls;
use crate::units::Errno;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};

/// Bytes of an engine thread's stack: deep enough for debug builds; touched lazily.
const STACK_BYTES: usize = 256 << 10;
/// The C library puts the program's thread-local variables on the stack as well, and refuses a
/// stack that is too small for them. How large they are it does not say, so larger stacks are
/// tried, up to this: 4 GiB of addresses.
const STACK_BYTES_MAX: usize = 4 << 30;

/// How long a new thread is waited for: it may wait for a lock of the dynamic linker, which whoever
/// starts it holds in the constructor of a library.
const RUNS_BY: Duration = Duration::from_secs(1);

/// What one thread of the engine is to run.
pub struct EngineThread {
    /// Its name, of up to 15 bytes.
    pub name: &'static CStr,
    /// What it runs, in the sibling or in this process.
    pub body: Box<dyn FnOnce() + Send>,
}

impl EngineThread {
    /// A thread called `name` that runs `body`.
    pub fn new(name: &'static CStr, body: impl FnOnce() + Send + 'static) -> EngineThread {
        EngineThread { name, body: Box::new(body) }
    }
}

impl std::fmt::Debug for EngineThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("EngineThread").field(&self.name).finish()
    }
}

/// What a new thread is given, and where it says that it runs.
struct Started {
    thread: EngineThread,
    runs: Arc<AtomicBool>,
}

/// Starts an engine thread of this process. It is born with all signals blocked, so that none of
/// the program's handlers ever runs on it, and is the engine's from its first instruction: not
/// through std, which allocates on a new thread before its body runs.
///
/// Returns when it runs, or after [`RUNS_BY`]. What is made for a thread before, a sanitizer may
/// make under locks that it does not take at a fork: a child of a fork meanwhile would wait for
/// them for ever.
pub(crate) fn spawn_here(thread: EngineThread) -> Result<(), Errno> {
    let _blocked = Blocked::all();
    let runs = Arc::new(AtomicBool::new(false));
    let started = Box::into_raw(Box::new(Started { thread, runs: runs.clone() }));
    // SAFETY: 1. the attributes live through the call; 2. `run` takes the box over, once, unless no
    // thread was made;
    // 3. the thread is detached: nobody joins it.
    let failed = unsafe {
        let mut attributes = std::mem::zeroed::<libc::pthread_attr_t>();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut thread = std::mem::zeroed::<libc::pthread_t>();
        let mut bytes = STACK_BYTES;
        let failed = loop {
            libc::pthread_attr_setstacksize(&mut attributes, bytes);
            let failed = libc::pthread_create(&mut thread, &attributes, run, started.cast());
            bytes *= 4;
            if failed != libc::EINVAL || bytes > STACK_BYTES_MAX {
                break failed;
            }
        };
        libc::pthread_attr_destroy(&mut attributes);
        if failed != 0 {
            drop(Box::from_raw(started));
        }
        failed
    };
    if failed != 0 {
        return Err(Errno::from_raw_os_error(failed));
    }
    let until = Instant::now() + RUNS_BY;
    while !runs.load(Acquire) && Instant::now() < until {
        rustix::thread::sched_yield();
    }
    Ok(())
}

extern "C" fn run(started: *mut libc::c_void) -> *mut libc::c_void {
    tls::mark_engine_thread();
    let _ = Blocked::all().suspend();
    // SAFETY: `spawn_here` gives this thread the box, and nobody else.
    let started = unsafe { Box::from_raw(started.cast::<Started>()) };
    let Started { thread: EngineThread { name, body }, runs } = *started;
    let _ = rustix::thread::set_name(name);
    runs.store(true, Release);
    drop(runs);
    body();
    std::ptr::null_mut()
}
