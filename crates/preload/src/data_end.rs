//! brk(2) of a program that was loaded here ([`crate::load`]): managed memory, at the far end of
//! the window.
//!
//! What the kernel has for it lies behind the loader's data, and is not managed. Mappings are
//! placed as low in the window as can be, so there is room where this begins.
//!
//! Two threads at once are the program's mistake: then one of them gets nothing.

use crate::{pool, sys};
use overspill_os::PAGE_SIZE;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

/// The part of the window that it may take.
const PART: usize = 4;
/// What it begins at a multiple of.
const ALIGN: usize = 2 << 20;

/// Where it ends now; 0 before it was asked for.
static END: AtomicUsize = AtomicUsize::new(0);

/// Moves the end to an address, if there is room; where it is then.
pub fn set(wanted: usize) -> usize {
    if !pool::exists() {
        // SAFETY: a plain number, which is no address of anything.
        return sys::check(unsafe { raw_syscall!(Sysno::brk, 0) }).unwrap_or(0);
    }
    let window = pool::window();
    let start = (window.end - window.len() / PART).next_multiple_of(ALIGN);
    let end = END.load(Relaxed).max(start);
    if !(start..=window.end).contains(&wanted) {
        return end;
    }
    let page = |address: usize| address.next_multiple_of(PAGE_SIZE);
    let (is, wants) = (page(end), page(wanted));
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let done = match wants {
        _ if wants > is => pool::mmap(is, wants - is, prot, libc::MAP_FIXED_NOREPLACE).map(drop),
        _ if wants < is => pool::munmap(wants..is),
        _ => Ok(()),
    };
    let end = if done.is_ok() { wanted } else { end };
    END.store(end, Relaxed);
    end
}
