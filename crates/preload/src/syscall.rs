//! syscall(2): the same calls as everywhere else, by number.

use crate::sys::{check, real, to_c};
use crate::{dma, fork, map, pool, sandbox, trap, vectors};
use overspill_os::{seccomp, tls};
use std::ffi::{c_int, c_long};

/// syscall(2). Variadic in C: all six arguments are passed on, and the call reads those that it has.
///
/// # Safety
///
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    if number == libc::SYS_futex && pool::signal_delivery() && !tls::is_program() {
        // The engine's locks wait so, and leave whatever was in the registers that the call does not read.
        // SAFETY: the caller's promise.
        return to_c(check(unsafe { seccomp::let_through(number as usize, [a, b, c, d, e, f]) })) as c_long;
    }
    let kernel = || {
        let mut arguments = [a, b, c, d, e, f];
        // SAFETY: the caller's promise.
        unsafe {
            vectors::look_at_call(number, &mut arguments);
            let [a, b, c, d, e, f] = arguments;
            real!(c"syscall" as Syscall)(number, a, b, c, d, e, f) as isize
        }
    };
    // SAFETY: the caller's promise, for each of them.
    let result = unsafe {
        match number {
            libc::SYS_mmap => to_c(map::mmap(a, b, c as c_int, d as c_int, e as c_int, f as i64)),
            libc::SYS_munmap => to_c(map::munmap(a, b)),
            libc::SYS_mprotect => to_c(map::mprotect(a, b, c as c_int)),
            libc::SYS_pkey_mprotect => to_c(map::pkey_mprotect(a, b, c as c_int, d as c_int)),
            libc::SYS_madvise => to_c(map::madvise(a, b, c as c_int)),
            libc::SYS_mremap => to_c(map::mremap(a, b, c, d as c_int, e)),
            libc::SYS_mlock => to_c(map::mlock(a, b, false)),
            libc::SYS_mlock2 if c == 0 || c == libc::MLOCK_ONFAULT as usize => to_c(map::mlock(a, b, c != 0)),
            libc::SYS_munlock => to_c(map::munlock(a, b)),
            libc::SYS_mlockall => to_c(map::mlockall(a as c_int)),
            libc::SYS_munlockall => to_c(map::munlockall()),
            libc::SYS_rt_sigprocmask if pool::signal_delivery() && tls::is_program() => {
                to_c(trap::masks::by_number(a, b, c))
            }
            // Of mimalloc's, for a new thread: made from code of ours, which a sandbox lets through.
            libc::SYS_getrandom => to_c(check(syscalls::raw_syscall!(syscalls::Sysno::getrandom, a, b, c))),
            libc::SYS_prctl => crate::map_symbols::prctl(a as c_int, b, c, d, e) as isize,
            libc::SYS_seccomp => sandbox::by_number([a, b, c], kernel),
            libc::SYS_fork => fork::bare_fork(kernel),
            // With a stack of its own the child does not return from here, and with CLONE_VM it is not a copy.
            libc::SYS_clone if a as c_int & libc::CLONE_VM == 0 && b == 0 => fork::bare_fork(kernel),
            libc::SYS_clone3 if copies_memory(a, b) => fork::bare_fork(kernel),
            _ => dma::raw_call(number, [a, b, c, d, e, f], kernel),
        }
    };
    result as c_long
}

/// Whether clone3(2) with these arguments makes a child that goes on here with a copy of the memory.
///
/// # Safety
///
/// As for clone3(2): `arguments` has `len` bytes.
unsafe fn copies_memory(arguments: usize, len: usize) -> bool {
    // struct clone_args: flags first, stack sixth.
    const STACK: usize = 5;
    if arguments == 0 || len < (STACK + 1) * 8 {
        return false;
    }
    let arguments = arguments as *const u64;
    // SAFETY: the caller's promise.
    let (flags, stack) = unsafe { (arguments.read_unaligned(), arguments.add(STACK).read_unaligned()) };
    flags & libc::CLONE_VM as u64 == 0 && stack == 0
}
