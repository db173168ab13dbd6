//! The end of the program's data: brk(2) and sbrk(3) give managed memory, within a range of the
//! window that is the program's own from the first use on.
//!
//! What the kernel has for it lies behind the program's data, and would not be managed; so a
//! dormant process wakes for it. The C library's own malloc goes on to have the kernel's, by
//! functions that no symbol leads to. Where addresses are not random it is the kernel's: a program
//! that was dumped with its heap, such as a Lisp or an older Emacs, sees to it that they are not,
//! and goes on where its data end.
//!
//! The range is bounded, as it lies low in the window like all else: at its far end it would have
//! the clock go over all that is free between.
//!
//! Two threads at once are the program's mistake: then one of them gets nothing.

use crate::sys::{real, to_c, to_c_int};
use crate::{dormant, limits, pool};
use overspill_os::{Errno, PAGE_SIZE, tls, vm};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Bytes of the range, and the part of a small window that it may be.
const MOST: usize = 16 << 30;
const PART: usize = 8;

/// Where the range begins, 0 before there is one; and where what the program has ends.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// Whether the program has the kernel's. If it has had that, as there was no engine, it goes on
/// with it, since many an allocator expects that what it gets follows what it has.
static IS_KERNELS: AtomicBool = AtomicBool::new(false);

fn len() -> usize {
    MOST.min(pool::window().len() / PART) & !(PAGE_SIZE - 1)
}

/// Whether what the program gets is managed memory: it is from the first use on, or never.
pub fn is_managed() -> bool {
    if tls::is_program() && START.load(Relaxed) == 0 && !IS_KERNELS.load(Relaxed) {
        dormant::wake();
        IS_KERNELS.store(!pool::exists() || !vm::has_random_addresses(), Relaxed);
    }
    tls::is_program() && !IS_KERNELS.load(Relaxed)
}

/// Moves the end to an address, if there is room; where it is then. For memory that is managed.
pub fn set(wanted: usize) -> usize {
    if START.load(Relaxed) == 0 {
        let Ok(start) = pool::mmap(0, len(), libc::PROT_NONE, 0) else { return 0 };
        limits::addresses::set_reserved(len());
        START.store(start, Relaxed);
        END.store(start, Relaxed);
    }
    let (start, end) = (START.load(Relaxed), END.load(Relaxed));
    let is_inside = (start..=start + len()).contains(&wanted);
    let is_allowed = || wanted <= end || may_grow(wanted - start, wanted - end);
    if is_inside && is_allowed() && change(end, wanted).is_ok() {
        limits::addresses::set_reserved(start + len() - wanted);
        END.store(wanted, Relaxed);
    }
    END.load(Relaxed)
}

/// Whether the program may have so much data, `more` than it has.
fn may_grow(len: usize, more: usize) -> bool {
    len as u64 <= limits::data() && limits::addresses::admit(more).is_ok()
}

/// brk(2), as the C library has it: it fails only where the end stays below what was asked for.
///
/// # Safety
///
/// As for brk(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn brk(end: *mut c_void) -> c_int {
    if !is_managed() {
        // SAFETY: the caller's promise.
        return unsafe { real!(c"brk" as unsafe extern "C" fn(*mut c_void) -> c_int)(end) };
    }
    let is_there = set(end as usize) >= end as usize;
    to_c_int(is_there.then_some(0).ok_or(Errno::NOMEM))
}

/// sbrk(3).
///
/// # Safety
///
/// As for sbrk(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sbrk(increment: isize) -> *mut c_void {
    if !is_managed() {
        // SAFETY: the caller's promise.
        return unsafe { real!(c"sbrk" as unsafe extern "C" fn(isize) -> *mut c_void)(increment) };
    }
    let before = set(0);
    let after = before.checked_add_signed(increment).filter(|_| before != 0);
    let is_there = after.is_some_and(|after| set(after) == after);
    to_c(is_there.then_some(before).ok_or(Errno::NOMEM)) as *mut c_void
}

/// sbrk(3) by another name, by which tcmalloc calls it.
///
/// # Safety
///
/// As for sbrk(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __sbrk(increment: isize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { sbrk(increment) }
}

/// Makes what lies between two ends accessible, or gives it up, whatever the program has unmapped
/// there, or mapped. Over a mapping of another kind it does not grow.
fn change(from: usize, to: usize) -> Result<(), Errno> {
    let page = |address: usize| address.next_multiple_of(PAGE_SIZE);
    let (from, to) = (page(from), page(to));
    if to > from {
        match pool::foreign_part(from..to)? {
            Some(_) => Err(Errno::NOMEM),
            None => pool::mprotect(from..to, libc::PROT_READ | libc::PROT_WRITE),
        }
    } else if to < from {
        pool::mmap(to, from - to, libc::PROT_NONE, libc::MAP_FIXED).map(drop)
    } else {
        Ok(())
    }
}
