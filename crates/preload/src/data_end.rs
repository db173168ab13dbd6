//! brk(2) of a program that was loaded here ([`crate::load`]): managed memory, within a range of
//! the window that is its own from the first call on.
//!
//! What the kernel has for it lies behind the loader's data, and is not managed. The range is
//! bounded, as it lies low in the window like all else: at its far end it would have the clock go
//! over all that is free between. Who gets no more maps memory instead.
//!
//! Two threads at once are the program's mistake: then one of them gets nothing.

use crate::{pool, sys};
use overspill_os::{Errno, PAGE_SIZE};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

/// Bytes of the range, and the part of a small window that it may be.
const MOST: usize = 1 << 30;
const PART: usize = 8;

/// Where the range begins, 0 before there is one; and where what the program has ends.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

fn len() -> usize {
    MOST.min(pool::window().len() / PART) & !(PAGE_SIZE - 1)
}

/// Moves the end to an address, if there is room; where it is then.
pub fn set(wanted: usize) -> usize {
    if !pool::exists() {
        // SAFETY: a plain number, which is no address of anything.
        return sys::check(unsafe { raw_syscall!(Sysno::brk, 0) }).unwrap_or(0);
    }
    if START.load(Relaxed) == 0 {
        let Ok(start) = pool::mmap(0, len(), libc::PROT_NONE, 0) else { return 0 };
        START.store(start, Relaxed);
        END.store(start, Relaxed);
    }
    let (start, end) = (START.load(Relaxed), END.load(Relaxed));
    let is_inside = (start..=start + len()).contains(&wanted);
    if is_inside && change(end, wanted).is_ok() {
        END.store(wanted, Relaxed);
    }
    END.load(Relaxed)
}

/// Makes what lies between two ends accessible, or gives it up.
fn change(from: usize, to: usize) -> Result<(), Errno> {
    let page = |address: usize| address.next_multiple_of(PAGE_SIZE);
    let (from, to) = (page(from), page(to));
    if to > from {
        pool::mprotect(from..to, libc::PROT_READ | libc::PROT_WRITE)
    } else if to < from {
        pool::madvise(to..from, libc::MADV_DONTNEED)?;
        pool::mprotect(to..from, libc::PROT_NONE)
    } else {
        Ok(())
    }
}
