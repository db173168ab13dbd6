//! Limits of resources: a dormant process wakes before it changes one of what an engine takes as it
//! begins, and limits of address space (RLIMIT_AS) and of data (RLIMIT_DATA) are limits of what the
//! program has itself.
//!
//! Of addresses an engine has two terabytes; as data the kernel counts all private memory that may
//! be written, touched or not, which is many GiB of tables and of room for the heap. Under a limit
//! below that the program would get no memory any more, not even to say so, and nor would what it
//! executes. So the kernel's limits are higher than the program's by what an engine may come to
//! take, which is the same in all processes of a job ([`Config::overhead`]): where the program sets
//! one, and where `overspill run` begins. The program is told the kernel's less that. How much of
//! its addresses it may still use is for [`addresses`] to say, as the window is all the kernel's.
//!
//! Where a hard limit leaves no room for that, limits are the kernel's, and an engine takes less.

use crate::sys::{self, real};
use crate::{dormant, memory};
use overspill::config::Overhead;
use overspill_os::{Errno, confined};
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::Ordering::Relaxed;
use syscalls::{Sysno, raw_syscall};
use told::{ADDRESSES, DATA, LimitPair, UNLIMITED, kernels, of_process, overhead_of, told};

pub mod addresses;
mod told;

/// The process is of a job, whose engines take so much. Called by the constructor.
pub fn begin(overhead: Overhead) {
    // Where the hard limit has no room for it, nobody has raised a limit by it.
    let fits = |resource, more: u64| if kernels(resource)[1] < more { 0 } else { more };
    ADDRESSES.store(fits(libc::RLIMIT_AS, overhead.addresses.0), Relaxed);
    DATA.store(fits(libc::RLIMIT_DATA, overhead.data.0), Relaxed);
    if overhead_of(libc::RLIMIT_AS) > 0 && of_process(libc::RLIMIT_AS)[0] != UNLIMITED {
        addresses::begin();
    }
}

/// A limit is about to be changed.
pub fn change_first(resource: usize) {
    let taken = [libc::RLIMIT_AS, libc::RLIMIT_DATA, libc::RLIMIT_FSIZE, libc::RLIMIT_NOFILE];
    if taken.iter().any(|taken| *taken as usize == resource as u32 as usize) {
        dormant::wake();
    }
}

/// Bytes of data that the program may have.
pub fn data() -> u64 {
    of_process(libc::RLIMIT_DATA)[0]
}

/// The kernel's limit for one of the program's, of which an engine takes `more`. What the kernel
/// refuses it is to refuse.
fn raised(wanted: LimitPair, more: u64) -> LimitPair {
    if wanted[0] > wanted[1] {
        return wanted;
    }
    let raise = |limit: u64| if limit == UNLIMITED { limit } else { limit.saturating_add(more) };
    wanted.map(raise)
}

/// Sets a limit by `call`, which is handed where the limit stands.
///
/// # Safety
///
/// `new` is a limit, or anything that the kernel may refuse.
unsafe fn set<R>(resource: c_int, new: *const c_void, call: impl FnOnce(*const c_void) -> R) -> R {
    change_first(resource as usize);
    let more = overhead_of(resource as u32);
    let wanted = if more > 0 { memory::read::<LimitPair>(new as usize) } else { None };
    let Some(wanted) = wanted else { return call(new) };
    let given = raised(wanted, more);
    if resource as u32 == libc::RLIMIT_AS {
        addresses::limit_comes();
    }
    call((&raw const given).cast())
}

/// Says of a limit that was read what the program is told.
///
/// # Safety
///
/// `found` is null, or the kernel has written a limit there.
unsafe fn tell(resource: c_int, found: *mut c_void) {
    let more = overhead_of(resource as u32);
    if more > 0 && !found.is_null() {
        // SAFETY: the caller's promise.
        unsafe { found.cast::<LimitPair>().write(told(found.cast::<LimitPair>().read(), more)) };
    }
}

/// A call about limits by number, where it is about what an engine takes of.
///
/// # Safety
///
/// As for the system call.
pub unsafe fn by_number(number: c_long, [a, b, c, d]: [usize; 4]) -> Option<Result<usize, Errno>> {
    let (resource, new, found) = match number {
        libc::SYS_setrlimit if b != 0 => (a, b, 0),
        libc::SYS_getrlimit => (a, 0, b),
        libc::SYS_prlimit64 if is_own(a as c_int) => (b, c, d),
        _ => return None,
    };
    if overhead_of(resource as u32) == 0 {
        return None;
    }
    let mut before = [UNLIMITED; 2];
    let mut kernel = |new: *const c_void| {
        let (new, before) = (new as usize, &raw mut before);
        // The same number: a filter of the program's may know no other. SAFETY: the caller's
        // promise; there is room for a limit.
        sys::check(unsafe {
            match number {
                libc::SYS_setrlimit => raw_syscall!(Sysno::setrlimit, resource, new),
                libc::SYS_getrlimit => raw_syscall!(Sysno::getrlimit, resource, before),
                _ => raw_syscall!(Sysno::prlimit64, a, resource, new, before),
            }
        })
    };
    let result = match new {
        0 => kernel(std::ptr::null()),
        // SAFETY: the caller's promise.
        new => unsafe { set(resource as c_int, new as *const c_void, kernel) },
    };
    let told = told(before, overhead_of(resource as u32));
    // SAFETY: the caller's promise.
    let is_written = found == 0 || result.is_err() || unsafe { memory::write(found, told) };
    Some(if is_written { result } else { Err(Errno::FAULT) })
}

/// Whether prlimit(2) is about this process.
fn is_own(process: c_int) -> bool {
    process == 0
        || !confined::is_confined() && process == rustix::process::getpid().as_raw_nonzero().get()
}

macro_rules! limits {
    ($($name:literal $symbol:ident sets; $gets_name:literal $gets:ident gets;)*) => {
        $(
            #[doc = concat!(stringify!($symbol), "(2).")]
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol(resource: c_int, limit: *const c_void) -> c_int {
                let real = real!($name as unsafe extern "C" fn(c_int, *const c_void) -> c_int);
                // SAFETY: the caller's promise.
                unsafe { set(resource, limit, |limit| real(resource, limit)) }
            }

            #[doc = concat!(stringify!($gets), "(2).")]
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $gets(resource: c_int, limit: *mut c_void) -> c_int {
                let real = real!($gets_name as unsafe extern "C" fn(c_int, *mut c_void) -> c_int);
                // SAFETY: the caller's promise; a call that succeeds has written the limit.
                unsafe {
                    let result = real(resource, limit);
                    if result == 0 {
                        tell(resource, limit);
                    }
                    result
                }
            }
        )*
    };
}

limits! {
    c"setrlimit" setrlimit sets; c"getrlimit" getrlimit gets;
    c"setrlimit64" setrlimit64 sets; c"getrlimit64" getrlimit64 gets;
}

type Both = unsafe extern "C" fn(c_int, c_int, *const c_void, *mut c_void) -> c_int;

/// prlimit(2), of this process or of another.
///
/// # Safety
///
/// As for prlimit(2).
unsafe fn both(
    real: Both,
    process: c_int,
    resource: c_int,
    new: *const c_void,
    old: *mut c_void,
) -> c_int {
    if !is_own(process) {
        // SAFETY: the caller's promise.
        return unsafe { real(process, resource, new, old) };
    }
    // SAFETY: the caller's promise; a call that succeeds has written the old limit.
    unsafe {
        let result = match new.is_null() {
            true => real(process, resource, new, old),
            false => set(resource, new, |new| real(process, resource, new, old)),
        };
        if result == 0 {
            tell(resource, old);
        }
        result
    }
}

/// prlimit(2).
///
/// # Safety
///
/// As for prlimit(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prlimit(
    process: c_int,
    resource: c_int,
    new: *const c_void,
    old: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { both(real!(c"prlimit" as Both), process, resource, new, old) }
}

/// prlimit64(3): the same where off_t has 64 bits.
///
/// # Safety
///
/// As for prlimit(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prlimit64(
    process: c_int,
    resource: c_int,
    new: *const c_void,
    old: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { both(real!(c"prlimit64" as Both), process, resource, new, old) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_was_set() {
        let all = [UNLIMITED; 2];
        for wanted in [[10, UNLIMITED], [10, 20], [0, 0], all] {
            assert_eq!(told(raised(wanted, 5), 5), wanted);
        }
        assert_eq!(raised([10, 20], 5), [15, 25]);
        // The kernel refuses a soft limit above the hard one.
        assert_eq!(raised([20, 10], 5), [20, 10]);
    }
}
