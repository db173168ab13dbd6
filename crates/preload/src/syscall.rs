//! syscall(2): the same calls as everywhere else, by number.

use crate::sys::{check, real, to_c};
use crate::{
    advices, credentials, dma, exec, fds, fork, map, memory, nested, pool, sandbox, tracee, trap,
    vectors,
};
use overspill_os::{Errno, seccomp, tls};
use std::ffi::{c_int, c_long, c_uint};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

/// syscall(2). Variadic in C: all six arguments are passed on, and the call reads those that it
/// has.
///
/// # Safety
///
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    let real = real!(c"syscall" as Syscall);
    if number == libc::SYS_futex && pool::signal_delivery() && !tls::is_program() {
        // The engine's locks wait so, and leave whatever was in the registers that the call does
        // not read. SAFETY: the caller's promise.
        return to_c(check(unsafe { seccomp::let_through(number as usize, [a, b, c, d, e, f]) }))
            as c_long;
    }
    let kernel = || {
        let mut arguments = [a, b, c, d, e, f];
        vectors::look_at_call(number, &mut arguments);
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the caller's promise.
        unsafe { real(number, a, b, c, d, e, f) as isize }
    };
    // SAFETY: the caller's promise, for each of them.
    let result = unsafe {
        match number {
            libc::SYS_mmap => to_c(map::mmap(a, b, c as c_int, d as c_int, e as c_int, f as i64)),
            libc::SYS_munmap => to_c(map::munmap(a, b)),
            libc::SYS_mprotect => to_c(map::mprotect(a, b, c as c_int)),
            libc::SYS_pkey_mprotect => to_c(map::pkey_mprotect(a, b, c as c_int, d as c_int)),
            libc::SYS_mseal => to_c(map::mseal(a, b, c)),
            libc::SYS_madvise => to_c(map::madvise(a, b, c as c_int)),
            libc::SYS_process_madvise => {
                match advices::own(a as c_int, b, c, d as c_int, e as c_uint) {
                    Some(result) => to_c(result),
                    None => nested::until_present(number, [a, b, c, d, e, f], kernel),
                }
            }
            libc::SYS_mremap => to_c(map::mremap(a, b, c, d as c_int, e)),
            libc::SYS_mlock => to_c(map::mlock(a, b, false)),
            libc::SYS_mlock2 if c == 0 || c == libc::MLOCK_ONFAULT as usize => {
                to_c(map::mlock(a, b, c != 0))
            }
            libc::SYS_munlock => to_c(map::munlock(a, b)),
            libc::SYS_mlockall => to_c(map::mlockall(a as c_int)),
            libc::SYS_munlockall => to_c(map::munlockall()),
            libc::SYS_rt_sigprocmask if pool::signal_delivery() && tls::is_program() => {
                to_c(trap::masks::by_number(a, b, c, d))
            }
            // Of mimalloc's, for a new thread: made from code of ours, which a sandbox lets
            // through.
            libc::SYS_getrandom => to_c(check(raw_syscall!(Sysno::getrandom, a, b, c))),
            libc::SYS_prctl => crate::map_symbols::prctl(a as c_int, b, c, d, e) as isize,
            libc::SYS_seccomp => sandbox::by_number([a, b, c], kernel),
            libc::SYS_execve => {
                exec::execve(a as *const _, b as exec::Strings, c as exec::Strings) as isize
            }
            libc::SYS_execveat => exec::execveat(
                a as c_int,
                b as *const _,
                c as exec::Strings,
                d as exec::Strings,
                e as c_int,
            ) as isize,
            libc::SYS_ptrace if tracee::puts_off(a) => 0,
            libc::SYS_close if fds::is_hidden(a as c_int) => to_c(Err(Errno::BADF)),
            libc::SYS_dup2 => fds::dup2(a as c_int, b as c_int) as isize,
            libc::SYS_dup3 => fds::dup3(a as c_int, b as c_int, c as c_int) as isize,
            libc::SYS_close_range => {
                fds::close_range(a as c_uint, b as c_uint, c as c_int) as isize
            }
            libc::SYS_exit_group => crate::entries::exit(a as c_int),
            libc::SYS_membarrier => barrier(a as c_int, kernel),
            libc::SYS_fork => fork::bare_fork([0; 3], kernel),
            // With a stack of its own the child does not return from here, and with CLONE_VM it is
            // not a copy.
            libc::SYS_clone if a as c_int & libc::CLONE_VM == 0 && b == 0 => {
                let flags = a & !(libc::CLONE_FILES as usize);
                fork::bare_fork([c, d, 0], || real(number, flags, b, c, d, e, f) as isize)
            }
            libc::SYS_clone3 => match copies_memory(a, b) {
                Some(arguments) => {
                    let (at, len) = (arguments.as_ptr() as usize, size_of_val(&arguments));
                    let [_, words @ ..] = arguments;
                    let [pidfd, child_tid, parent_tid, ..] = words.map(|word| word as usize);
                    fork::bare_fork([pidfd, child_tid, parent_tid], || {
                        real(number, at, len, c, d, e, f) as isize
                    })
                }
                None => kernel(),
            },
            _ => {
                credentials::by_number(number, [a, b, c]);
                dma::raw_call(number, [a, b, c, d, e, f], || {
                    nested::until_present(number, [a, b, c, d, e, f], kernel)
                })
            }
        }
    };
    result as c_long
}

/// membarrier(2): the process is registered for commands of the engine's, of which the program does
/// not know.
fn barrier(command: c_int, kernel: impl FnOnce() -> isize) -> isize {
    const PRIVATE_EXPEDITED: c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;
    const GET_REGISTRATIONS: c_int = 1 << 9;
    static PROGRAMS: AtomicI32 = AtomicI32::new(0);
    if command == PRIVATE_EXPEDITED && PROGRAMS.load(Relaxed) == 0 {
        return to_c(Err(Errno::PERM));
    }
    let result = kernel();
    match command {
        REGISTER_PRIVATE_EXPEDITED if result == 0 => PROGRAMS.store(command, Relaxed),
        GET_REGISTRATIONS if result > 0 => {
            return result & !REGISTER_PRIVATE_EXPEDITED as isize | PROGRAMS.load(Relaxed) as isize;
        }
        _ => {}
    }
    result
}

/// struct clone_args of the present kernel, in words.
const CLONE_WORDS: usize = 11;

/// The arguments of a clone3(2) that makes a child which goes on here with a copy of the memory: it
/// gets a copy of the descriptors too ([`fork::clone`]). Arguments that cannot be read, or that are
/// of a newer kind, are the kernel's to judge.
fn copies_memory(arguments: usize, len: usize) -> Option<[u64; CLONE_WORDS]> {
    const FLAGS: usize = 0;
    const STACK: usize = 5;
    /// The oldest kind.
    const LEAST: usize = size_of::<[u64; 8]>();
    let mut words = [0; CLONE_WORDS];
    let (LEAST.., true) = (len, len <= size_of_val(&words) && len.is_multiple_of(size_of::<u64>()))
    else {
        return None;
    };
    if memory::read_into(arguments, &mut words[..len / size_of::<u64>()]) < len {
        return None;
    }
    let copies = words[FLAGS] & libc::CLONE_VM as u64 == 0 && words[STACK] == 0;
    words[FLAGS] &= !(libc::CLONE_FILES as u64);
    copies.then_some(words)
}
