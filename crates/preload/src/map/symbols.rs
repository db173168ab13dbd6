//! The C functions on mappings, over [`crate::map`].

use crate::map;
use crate::sys::{to_c, to_c_int};
use overspill_os::Errno;
use std::ffi::{c_int, c_uint, c_ulong, c_void};

/// Result of a function that returns an address.
fn to_address(result: Result<usize, overspill_os::Errno>) -> *mut c_void {
    to_c(result) as *mut c_void
}

/// mmap(2).
///
/// # Safety
///
/// As for mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    to_address(unsafe { map::mmap(address as usize, len, prot, flags, fd, offset) })
}

/// mmap64(3): the same where off_t has 64 bits.
///
/// # Safety
///
/// As for mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    to_address(unsafe { map::mmap(address as usize, len, prot, flags, fd, offset) })
}

/// munmap(2).
///
/// # Safety
///
/// As for munmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(address: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    to_c_int(unsafe { map::munmap(address as usize, len) })
}

/// mprotect(2).
///
/// # Safety
///
/// As for mprotect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(address: *mut c_void, len: usize, prot: c_int) -> c_int {
    // SAFETY: the caller's promise.
    to_c_int(unsafe { map::mprotect(address as usize, len, prot) })
}

/// pkey_mprotect(2). The key -1 asks for plain mprotect, as glibc has it for old kernels.
///
/// # Safety
///
/// As for pkey_mprotect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pkey_mprotect(
    address: *mut c_void,
    len: usize,
    prot: c_int,
    key: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    to_c_int(unsafe {
        match key {
            -1 => map::mprotect(address as usize, len, prot),
            _ => map::pkey_mprotect(address as usize, len, prot, key),
        }
    })
}

/// mseal(2), which older C libraries have no function for.
///
/// # Safety
///
/// None: the address is not used for access.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mseal(address: *mut c_void, len: usize, flags: c_ulong) -> c_int {
    to_c_int(map::mseal(address as usize, len, flags as usize))
}

/// madvise(2).
///
/// # Safety
///
/// As for madvise(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's promise.
    to_c_int(unsafe { map::madvise(address as usize, len, advice) })
}

/// posix_madvise(3): returns its error, and drops no content (POSIX_MADV_DONTNEED does nothing, as
/// in glibc).
///
/// # Safety
///
/// As for posix_madvise(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { map::madvise(address as usize, len, advice) }
        .map_or_else(|errno| errno.raw_os_error(), |_| 0)
}

/// mremap(2). Variadic in C: the new address is read only with MREMAP_FIXED, so a caller that gave
/// none is harmless.
///
/// # Safety
///
/// As for mremap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    to_address(unsafe { map::mremap(old as usize, old_len, new_len, flags, new as usize) })
}

/// msync(2).
///
/// # Safety
///
/// None: the address is not used for access.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn msync(address: *mut c_void, len: usize, flags: c_int) -> c_int {
    to_c_int(map::msync(address as usize, len, flags))
}

/// mincore(2).
///
/// # Safety
///
/// As for mincore(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mincore(address: *mut c_void, len: usize, residency: *mut u8) -> c_int {
    // SAFETY: the caller's promise.
    to_c_int(unsafe { map::mincore(address as usize, len, residency) })
}

/// mlock(2).
///
/// # Safety
///
/// None: the address is not used for access.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlock(address: *const c_void, len: usize) -> c_int {
    to_c_int(map::mlock(address as usize, len, false))
}

/// mlock2(2).
///
/// # Safety
///
/// None: the address is not used for access.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlock2(address: *const c_void, len: usize, flags: c_uint) -> c_int {
    match flags {
        0 | libc::MLOCK_ONFAULT => to_c_int(map::mlock(address as usize, len, flags != 0)),
        _ => to_c_int(Err(overspill_os::Errno::INVAL)),
    }
}

/// munlock(2).
///
/// # Safety
///
/// None: the address is not used for access.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn munlock(address: *const c_void, len: usize) -> c_int {
    to_c_int(map::munlock(address as usize, len))
}

/// mlockall(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    to_c_int(map::mlockall(flags))
}

/// munlockall(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn munlockall() -> c_int {
    to_c_int(map::munlockall())
}

/// prctl(2), for three things: names given to managed memory are dropped, since a name cuts the
/// window's mapping in pieces, of which a process may have only so many (mimalloc names all that it
/// maps); what would stop the engine in the program's threads is answered as by a machine without
/// it; and sandboxes ([`crate::sandbox`]).
///
/// # Safety
///
/// As for prctl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == libc::PR_SET_VMA && crate::pool::contains(b) {
        return 0;
    }
    const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
    const PR_SYS_DISPATCH_ON: usize = 1;
    const PR_TSC_SIGSEGV: usize = libc::PR_TSC_SIGSEGV as usize;
    // A signal for each look at the clock, or for each system call.
    if let (libc::PR_SET_TSC, PR_TSC_SIGSEGV) | (PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON) =
        (option, a)
    {
        return to_c_int(Err(Errno::INVAL));
    }
    // SAFETY: the caller's promise; the C library's function does no more than this.
    let call =
        |b: usize| unsafe { syscalls::raw_syscall!(syscalls::Sysno::prctl, option, a, b, c, d) };
    if option == libc::PR_SET_DUMPABLE {
        // Then the files of the process in /proc may be closed to it.
        crate::dormant::wake();
    }
    if option == libc::PR_SET_SECCOMP {
        // SAFETY: the caller's promise.
        return to_c_int(unsafe { crate::sandbox::enter(a, b, call) });
    }
    let result = crate::sys::check(call(b));
    if option == libc::PR_SET_NO_NEW_PRIVS && result.is_ok() {
        crate::sandbox::note_no_new_privileges();
    }
    to_c_int(result)
}
