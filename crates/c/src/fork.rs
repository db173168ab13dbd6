//! fork: the child has the pools of its parent, with the same content, and engines of its own.
//!
//! fork(3), and what goes through it, runs the handlers registered here. They are registered when
//! the library is loaded, before those of the program: so they run last before a fork and first
//! after it, and the program's find memory that works. `_Fork`, vfork and clone run none: in such a
//! child every call says so ([`crate::pools`]).
//!
//! The thread that forks keeps the table of pools locked from the first handler to the last, which
//! the child has a copy of.

use crate::pools::{Still, own};
use overspill::Pool;
use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::Once;

/// A fork that is being made.
struct Forking {
    still: Still,
    pools: Vec<&'static Pool>,
    /// The thread's errno before.
    errno: c_int,
}

thread_local! {
    /// That of this thread.
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

/// Run when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        register();
    }
    begin
};

/// Registers the handlers. A program that is linked with the static library may come here before
/// the loader has run what it is to run, or without: nothing but this names it.
pub fn register() {
    static REGISTERED: Once = Once::new();
    std::hint::black_box(&BEGIN);
    REGISTERED.call_once(|| {
        // SAFETY: the handlers live for as long as the process: this library is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

fn errno() -> *mut c_int {
    // SAFETY: the address of the thread's own.
    unsafe { libc::__errno_location() }
}

/// Reads and sets the thread's errno.
fn replace_errno(new: c_int) -> c_int {
    // SAFETY: the thread's own word.
    unsafe { errno().replace(new) }
}

unsafe extern "C" fn before() {
    let errno = replace_errno(0);
    let still = Still::begin();
    let pools = still.table.pools();
    Pool::fork_prepare_all(&pools);
    FORKING.set(Some(Forking { still, pools, errno }));
    replace_errno(0);
}

unsafe extern "C" fn in_parent() {
    // Set where there is no child; nothing else tells. What a fork is refused for is known, so that
    // a word that somebody else left does not make it seem so: a child that the engine does not
    // know of would lose its memory.
    let errno = replace_errno(0);
    let made = !matches!(errno, libc::EAGAIN | libc::ENOMEM);
    if let Some(forking) = FORKING.take() {
        Pool::fork_parent_all(&forking.pools, made);
        replace_errno(if made { forking.errno } else { errno });
    }
}

unsafe extern "C" fn in_child() {
    if let Some(mut forking) = FORKING.take() {
        own();
        forking.still.table.forget_calls();
        Pool::fork_child_all(&forking.pools);
        replace_errno(forking.errno);
    }
}
