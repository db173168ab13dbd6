//! Limits of resources: a dormant process wakes before it changes one of what an engine takes as it
//! begins, and a limit of data (RLIMIT_DATA) is one of what the program has itself.
//!
//! As data the kernel counts all private memory that may be written, touched or not: with an engine
//! that is 9 GiB of tables and of room for the heap, in a window of 1 TiB. Under a limit below that
//! the program would get no memory any more, not even to say so, and nor would what it executes. So
//! the kernel's limit is higher than the program's by what the engine has and may come to have. The
//! program reads back what it has set; what it executes reads the kernel's.
//!
//! Two threads that set the limit at once read back either's.

use crate::sys::real;
use crate::{dormant, memory, pool};
use overspill_os::{beside, confined, rss};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

/// The kernel's struct rlimit64: soft and hard limit.
type Pair = [u64; 2];

const UNLIMITED: u64 = libc::RLIM64_INFINITY;

/// The limit of data that the program has set, and that the kernel got for it.
static WANTED: [AtomicU64; 2] = [const { AtomicU64::new(UNLIMITED) }; 2];
static GIVEN: [AtomicU64; 2] = [const { AtomicU64::new(UNLIMITED) }; 2];

/// A limit is about to be changed.
pub fn change_first(resource: usize) {
    let taken = [libc::RLIMIT_AS, libc::RLIMIT_DATA, libc::RLIMIT_FSIZE, libc::RLIMIT_NOFILE];
    if taken.iter().any(|taken| *taken as usize == resource as u32 as usize) {
        dormant::wake();
    }
}

/// Bytes of data that the program may have.
pub fn data() -> u64 {
    told(kernels_data())[0]
}

fn kernels_data() -> Pair {
    let mut limit = [UNLIMITED; 2];
    // SAFETY: the kernel writes a limit of this process.
    unsafe { raw_syscall!(Sysno::prlimit64, 0, libc::RLIMIT_DATA, 0, &raw mut limit) };
    limit
}

/// What the program is told of the kernel's limit of data.
fn told(kernels: Pair) -> Pair {
    let read = |pair: &[AtomicU64; 2]| [pair[0].load(Relaxed), pair[1].load(Relaxed)];
    if kernels == read(&GIVEN) { read(&WANTED) } else { kernels }
}

/// The kernel's limit of data for one of the program's, where the kernel has `now` and an engine
/// has `more`. What the kernel refuses it is to refuse.
fn raised(wanted: Pair, now: Pair, more: u64) -> Pair {
    if wanted[0] > wanted[1] {
        return wanted;
    }
    let raise = |limit: u64| if limit == UNLIMITED { limit } else { limit.saturating_add(more) };
    let [soft, mut hard] = wanted.map(raise);
    if wanted[1] <= told(now)[1] {
        // The program may set that, so it is to be had.
        hard = hard.min(now[1]);
    }
    [soft.min(hard), hard]
}

/// What the engine has, and may come to have: a budget of frames, and what each fork adds, which
/// leaves to the child most of what its parent's engine had.
fn engines_data() -> u64 {
    let window = pool::window().len() as u64;
    let seen = if confined::is_confined() { None } else { rss::data_bytes().ok() };
    // Where a filter of the program's keeps the engine from looking: more than it has.
    let has = seen.unwrap_or(window / 64);
    has.saturating_add(pool::budget()).saturating_add(window / 256)
}

/// Sets a limit by `call`, which is handed where the limit stands.
///
/// # Safety
///
/// `new` is a limit, or anything that the kernel may refuse.
unsafe fn set(
    resource: c_int,
    new: *const c_void,
    call: impl FnOnce(*const c_void) -> c_int,
) -> c_int {
    change_first(resource as usize);
    let is_data = resource as u32 == libc::RLIMIT_DATA && pool::exists();
    let Some(wanted) = is_data.then(|| memory::read::<Pair>(new as usize)).flatten() else {
        return call(new);
    };
    let given = raised(wanted, kernels_data(), engines_data());
    let result = call((&raw const given).cast());
    // The child of a vfork has its parent's memory.
    if result == 0 && beside::program() == rustix::process::getpid() {
        (0..2).for_each(|which| {
            WANTED[which].store(wanted[which], Relaxed);
            GIVEN[which].store(given[which], Relaxed);
        });
    }
    result
}

/// Says of a limit that was read what the program is told.
///
/// # Safety
///
/// `found` is null, or the kernel has written a limit there.
unsafe fn tell(resource: c_int, found: *mut c_void) {
    if resource as u32 == libc::RLIMIT_DATA && !found.is_null() {
        // SAFETY: the caller's promise.
        unsafe { found.cast::<Pair>().write(told(found.cast::<Pair>().read())) };
    }
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
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    if process != 0 && process != pid {
        // SAFETY: the caller's promise.
        return unsafe { real(process, resource, new, old) };
    }
    // What was set before is told by what was noted of that.
    let before = (resource as u32 == libc::RLIMIT_DATA).then(|| told(kernels_data()));
    // SAFETY: the caller's promise; a call that succeeds has written the old limit.
    unsafe {
        let result = match new.is_null() {
            true => real(process, resource, new, old),
            false => set(resource, new, |new| real(process, resource, new, old)),
        };
        if let (0, Some(before), false) = (result, before, old.is_null()) {
            old.cast::<Pair>().write(before);
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
    fn a_limit_that_may_be_set_can_be_had() {
        let all = [UNLIMITED; 2];
        assert_eq!(raised([10, UNLIMITED], all, 5), [15, UNLIMITED]);
        assert_eq!(raised([10, 20], all, 5), [15, 25]);
        assert_eq!(raised(all, all, 5), all);
        // The hard limit stays below what it is, unless the kernel lets it rise.
        assert_eq!(raised([10, 20], [15, 22], 5), [15, 22]);
        assert_eq!(raised([30, 30], [15, 22], 5), [35, 35]);
        // The kernel refuses a soft limit above the hard one.
        assert_eq!(raised([20, 10], all, 5), [20, 10]);
    }
}
