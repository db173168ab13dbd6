//! syscall(2): the same calls as everywhere else, by number.

use crate::alloc::entries;
use crate::exec::{self, tracee};
use crate::map::{self, advices};
use crate::memory::strings::Strings;
use crate::memory::{self, vectors};
use crate::signals::{self, OpenedMask, altstack, masks};
use crate::sys::{check, real, to_c};
use crate::{credentials, data_end, dma, fds, fork, kernel_words, limits, nested, pool, sandbox};
use overspill_os::{Errno, seccomp, tls};
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

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
    let real = real!(c"syscall" as Syscall);
    if number == libc::SYS_futex && pool::signal_delivery() && !tls::is_program() {
        // The engine's locks wait so, and leave whatever was in the registers that the call does
        // not read. SAFETY: the caller's promise.
        return to_c(check(unsafe { seccomp::let_through(number as usize, [a, b, c, d, e, f]) }))
            as c_long;
    }
    let kernel = || {
        let (mut arguments, mut mask) = ([a, b, c, d, e, f], OpenedMask::default());
        vectors::look_at_call(number, &mut arguments);
        mask.put(number, &mut arguments);
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the caller's promise.
        unsafe { real(number, a, b, c, d, e, f) as isize }
    };
    let arguments = [a, b, c, d, e, f];
    // SAFETY: the caller's promise, for each of them.
    let result = unsafe {
        // 1. What is a function here is that function.
        let own = of_mappings(number, arguments)
            .or_else(|| of_descriptors(number, arguments))
            .or_else(|| of_programs(number, arguments))
            .or_else(|| of_threads(number, a));
        if let Some(result) = own {
            return result as c_long;
        }
        // 2. Calls that are changed or looked at on their way to the kernel.
        match number {
            libc::SYS_process_madvise => {
                match advices::own(a as c_int, b, c, d as c_int, e as c_uint) {
                    Some(result) => to_c(result),
                    None => nested::until_present(number, arguments, kernel),
                }
            }
            // mimalloc's, for a thread: made from code of ours, which a sandbox lets through.
            libc::SYS_getrandom => to_c(check(raw_syscall!(Sysno::getrandom, a, b, c))),
            libc::SYS_seccomp => sandbox::by_number([a, b, c], kernel),
            libc::SYS_membarrier => barrier(a as c_int, kernel),
            libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => {
                make_task(number, arguments, real, kernel)
            }
            // 3. All others.
            _ => {
                credentials::by_number(number, [a, b, c]);
                kernel_words::keep_of_call(number, [a, b]);
                dma::raw_call(number, arguments, || {
                    nested::until_present(number, arguments, kernel)
                })
            }
        }
    };
    result as c_long
}

/// A call about mappings, as the C library's `syscall` returns it.
///
/// # Safety
///
/// As for the system call.
unsafe fn of_mappings(number: c_long, arguments: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    unsafe { mapping(number, arguments) }.map(to_c)
}

/// A call about mappings.
///
/// # Safety
///
/// As for the system call.
pub unsafe fn mapping(
    number: c_long,
    [a, b, c, d, e, f]: [usize; 6],
) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's promise.
    let result = unsafe {
        match number {
            libc::SYS_mmap => map::mmap(a, b, c as c_int, d as c_int, e as c_int, f as i64),
            libc::SYS_munmap => map::munmap(a, b),
            libc::SYS_brk if data_end::is_managed() => Ok(data_end::set(a)),
            libc::SYS_mprotect => map::mprotect(a, b, c as c_int),
            libc::SYS_pkey_mprotect => map::pkey_mprotect(a, b, c as c_int, d as c_int),
            libc::SYS_mseal => map::mseal(a, b, c),
            libc::SYS_madvise => map::madvise(a, b, c as c_int),
            libc::SYS_msync => map::msync(a, b, c as c_int),
            libc::SYS_mremap => map::mremap(a, b, c, d as c_int, e),
            libc::SYS_mlock => map::mlock(a, b, false),
            libc::SYS_mlock2 if c == 0 || c == libc::MLOCK_ONFAULT as usize => {
                map::mlock(a, b, c != 0)
            }
            libc::SYS_munlock => map::munlock(a, b),
            libc::SYS_mlockall => map::mlockall(a as c_int),
            libc::SYS_munlockall => map::munlockall(),
            _ => return None,
        }
    };
    Some(result)
}

/// A call about descriptors, some of which the program has no knowledge of.
///
/// # Safety
///
/// As for the system call.
pub unsafe fn of_descriptors(number: c_long, [a, b, c, ..]: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    let result = unsafe {
        match number {
            libc::SYS_close if fds::is_hidden(a as c_int) => to_c(Err(Errno::BADF)),
            libc::SYS_dup2 => fds::dup2(a as c_int, b as c_int) as isize,
            libc::SYS_dup3 => fds::dup3(a as c_int, b as c_int, c as c_int) as isize,
            libc::SYS_close_range => {
                fds::close_range(a as c_uint, b as c_uint, c as c_int) as isize
            }
            _ => return None,
        }
    };
    Some(result)
}

/// A call about the program that runs, or is to run, its signals and its limits.
///
/// # Safety
///
/// As for the system call.
unsafe fn of_programs(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    let result = unsafe {
        match number {
            libc::SYS_rt_sigaction if signals::guarded() => {
                to_c(signals::by_number(a as c_int, b, c, d))
            }
            libc::SYS_rt_sigprocmask if signals::guarded() => to_c(masks::by_number(a, b, c, d)),
            libc::SYS_sigaltstack => altstack::sigaltstack(a as *const _, b as *mut _) as isize,
            libc::SYS_setrlimit | libc::SYS_getrlimit | libc::SYS_prlimit64 => {
                to_c(limits::by_number(number, [a, b, c, d])?)
            }
            libc::SYS_prctl => map::symbols::prctl(a as c_int, b, c, d, e) as isize,
            libc::SYS_execve => exec::execve(a as *const _, b as Strings, c as Strings) as isize,
            libc::SYS_execveat => {
                let (path, flags) = (b as *const _, e as c_int);
                exec::execveat(a as c_int, path, c as Strings, d as Strings, flags) as isize
            }
            libc::SYS_ptrace if tracee::puts_off(a) => 0,
            libc::SYS_exit_group => entries::exit(a as c_int),
            _ => return None,
        }
    };
    Some(result)
}

/// A call that makes a process or a thread, by `kernel` unless its arguments change.
///
/// # Safety
///
/// As for the system call.
unsafe fn make_task(
    number: c_long,
    [a, b, c, d, e, f]: [usize; 6],
    real: Syscall,
    kernel: impl FnOnce() -> isize,
) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        match number {
            libc::SYS_fork => fork::bare_fork([0; 3], kernel),
            libc::SYS_clone => {
                kernel_words::keep_of_clone(a as u64, c, d);
                // With a stack of its own the child does not return from here, and with CLONE_VM it
                // is not a copy.
                if a as c_int & libc::CLONE_VM != 0 || b != 0 {
                    return kernel();
                }
                let flags = a & !(libc::CLONE_FILES as usize);
                fork::bare_fork([c, d, 0], || real(number, flags, b, c, d, e, f) as isize)
            }
            _ => {
                if let Some([flags, _, childs, parents]) = memory::read::<[u64; 4]>(a) {
                    kernel_words::keep_of_clone(flags, parents as usize, childs as usize);
                }
                match copies_memory(a, b) {
                    Some(copied) => {
                        bare_clone3(&copied, |at, len| real(number, at, len, c, d, e, f) as isize)
                    }
                    None => kernel(),
                }
            }
        }
    }
}

/// A call that makes a thread, where the engine that there must be for it cannot begin.
fn of_threads(number: c_long, first: usize) -> Option<isize> {
    let flags = match number {
        libc::SYS_clone => first as u64,
        libc::SYS_clone3 => memory::read::<u64>(first).unwrap_or(0),
        _ => return None,
    };
    (!fork::may_be_made(flags)).then(|| to_c(Err(Errno::AGAIN)))
}

/// clone3(2) with these arguments, made by `call`, which gets their place and length.
fn bare_clone3(arguments: &[u64; CLONE_WORDS], call: impl FnOnce(usize, usize) -> isize) -> isize {
    let (at, len) = (arguments.as_ptr() as usize, size_of_val(arguments));
    let [_, words @ ..] = *arguments;
    let [pidfd, child_tid, parent_tid, ..] = words.map(|word| word as usize);
    fork::bare_fork([pidfd, child_tid, parent_tid], || call(at, len))
}

/// process_madvise(2).
///
/// # Safety
///
/// As for process_madvise(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn process_madvise(
    process: c_int,
    vector: *const c_void,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    let [process, advice] = [process, advice].map(|number| number as isize as usize);
    // SAFETY: the caller's promise.
    unsafe {
        syscall(
            libc::SYS_process_madvise,
            process,
            vector as usize,
            count,
            advice,
            flags as usize,
            0,
        ) as isize
    }
}

/// membarrier(2): the process is registered for commands of the engine's, of which the program does
/// not know.
pub fn barrier(command: c_int, kernel: impl FnOnce() -> isize) -> isize {
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
