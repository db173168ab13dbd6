//! Children that ask to be traced (PTRACE_TRACEME), in signal delivery.
//!
//! Who is traced stops at each signal before it comes. The child of a vfork that would stop so
//! before it executes its program would stop for ever, since its parent waits for that. It asks to
//! be traced for what it executes, so it is from the moment on in which nothing more comes of ours:
//! when it has copies of everything that the call needs ([`crate::exec`]). Such a child that ends
//! without was never traced, of which its parent is told nothing that differs.

use crate::memory::vectors::looking;
use crate::nested::until_present;
use crate::signals::actions::is_borrowed;
use crate::sys::real;
use overspill_os::tls;
use std::ffi::c_long;
use syscalls::{Sysno, raw_syscall};

const TRACEME: usize = 0;

fn process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Whether a request of ptrace(2) was noted for later.
pub fn puts_off(request: usize) -> bool {
    let later = request as u32 as usize == TRACEME && looking() && is_borrowed();
    if later {
        tls::set_tracee(process());
    }
    later
}

/// Whether the calling process waits to be traced.
pub fn is_waiting() -> bool {
    tls::tracee() != 0 && tls::tracee() == process()
}

/// Now it is, if it waits for that.
pub fn begin() {
    if is_waiting() {
        tls::set_tracee(0);
        // SAFETY: the call takes no addresses.
        unsafe { raw_syscall!(Sysno::ptrace, TRACEME, 0, 0, 0) };
    }
}

/// ptrace(2). Variadic in C: all four arguments are passed on.
///
/// # Safety
///
/// As for ptrace(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ptrace(
    request: usize,
    process: usize,
    address: usize,
    data: usize,
) -> c_long {
    type Ptrace = unsafe extern "C" fn(usize, usize, usize, usize) -> c_long;
    if puts_off(request) {
        return 0;
    }
    let real = real!(c"ptrace" as Ptrace);
    // SAFETY: the caller's promise.
    let call = || unsafe { real(request, process, address, data) } as isize;
    until_present(libc::SYS_ptrace, [request, process, address, data, 0, 0], call) as c_long
}
