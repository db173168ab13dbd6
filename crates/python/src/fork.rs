//! fork: every open pool works in the child too.
//!
//! Handlers of the C library, not Python's: they also see a fork by code that is not Python. Before
//! the fork the pools stop evicting, all of them, and then stand still, all of them; so a fork
//! needs no order among pools. A pool that is being made or closed meanwhile is waited for.
//!
//! Known limit: a handler of another library that was registered before ours runs between, and may
//! not wait for a thread that touches memory of a pool.
//!
//! Locks: the list of pools, and then that of each pool; a fork holds all.

use crate::blocks::{Blocks, State};
use overspill::Pool;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

type List = Vec<&'static Blocks>;

/// The pools that are open.
static OPEN: Mutex<List> = Mutex::new(Vec::new());

/// A fork that is prepared.
struct Forking {
    pools: Vec<Arc<Pool>>,
    _states: Vec<MutexGuard<'static, State>>,
    _list: MutexGuard<'static, List>,
}

thread_local! {
    /// That of this thread: the thread that forks goes on in parent and child.
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

/// The list of pools. Whoever makes or closes one holds it, so that no fork comes between.
pub fn list() -> MutexGuard<'static, List> {
    OPEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Registers the handlers, once.
pub fn register() -> PyResult<()> {
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handlers live as long as the process: Python unloads no module.
    let register =
        || unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    match *REGISTERED.get_or_init(register) {
        0 => Ok(()),
        error => Err(PyOSError::new_err((error, "forks cannot be followed"))),
    }
}

/// Where the C library keeps the number of the last error.
fn errno() -> *mut i32 {
    // SAFETY: a function without arguments.
    unsafe { libc::__errno_location() }
}

extern "C" fn prepare() {
    let list = list();
    let states: Vec<_> = list.iter().map(|blocks| blocks.lock()).collect();
    let pools: Vec<_> = states.iter().filter_map(|state| state.pool().cloned()).collect();
    Pool::fork_prepare_all(&all(&pools));
    FORKING.set(Some(Forking { pools, _states: states, _list: list }));
    // SAFETY: the word is this thread's.
    unsafe { *errno() = 0 };
}

fn all(pools: &[Arc<Pool>]) -> Vec<&Pool> {
    pools.iter().map(Arc::as_ref).collect()
}

/// Has the pools go on that were prepared.
fn done(go_on: impl FnOnce(&[&Pool])) {
    if let Some(forking) = FORKING.take() {
        go_on(&all(&forking.pools));
    }
}

extern "C" fn in_parent() {
    // The C library sets it where there is no child, and tells nothing else.
    // SAFETY: the word is this thread's.
    let error = unsafe { *errno() };
    let made = ![libc::EAGAIN, libc::ENOMEM].contains(&error);
    done(|pools| Pool::fork_parent_all(pools, made));
    // SAFETY: as above.
    unsafe { *errno() = error };
}

extern "C" fn in_child() {
    done(Pool::fork_child_all);
}
