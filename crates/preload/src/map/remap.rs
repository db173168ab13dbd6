//! mremap: of managed memory, of other mappings into the window, and of what a process has mapped
//! before it had an engine.

use super::{PROT_KNOWN, aligned, concerns_pool, give_back, parts};
use crate::route::pages;
use crate::{dormant, limits, pool, sys};
use overspill_os::Errno;
use overspill_os::seccomp::change_mappings;
use syscalls::Sysno;

/// mremap(2).
///
/// # Safety
///
/// The caller owns the range, and with MREMAP_FIXED the target too.
pub unsafe fn mremap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: i32,
    new: usize,
) -> Result<usize, Errno> {
    // Otherwise the address is not read: it may be anything where it comes from syscall(2).
    let new = if flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0 { new } else { 0 };
    let arguments = [old, old_len, new_len, flags as usize, new];
    // SAFETY: the caller's promise.
    let kernel = || unsafe { change_mappings(Sysno::mremap, arguments) };
    if dormant::concerns()
        && let Some(result) = mremap_dormant(old, old_len, new_len, kernel)
    {
        return result;
    }
    if !concerns_pool() {
        return kernel();
    }
    if pool::contains(old) {
        let (Some(range), Some(target)) = (pages(old, old_len), pages(new, new_len)) else {
            return Err(Errno::INVAL);
        };
        if !aligned(old) || range.is_empty() || target.is_empty() {
            return Err(Errno::INVAL);
        }
        if range.end > pool::end_of(old) {
            // Two mappings, which mremap never takes.
            return Err(Errno::FAULT);
        }
        limits::addresses::admit(target.len().saturating_sub(range.len()))?;
        return pool::mremap(range, target.len(), flags as u32, new);
    }
    if let Some(moved) = take_in(old, old_len, new_len, flags) {
        return moved;
    }
    if flags & libc::MREMAP_FIXED != 0
        && aligned(new)
        && let Some(parts) = parts(pages(new, new_len))
    {
        // A mapping of another kind moves into the window. How it is protected the kernel knows
        // alone: nobody is kept from it.
        pool::surrender(parts.inside.clone(), PROT_KNOWN, libc::MAP_FIXED)?;
        return kernel().inspect_err(|_| give_back(parts.inside));
    }
    kernel()
}

/// Moves a mapping from before the process had an engine to managed memory as it grows. `None`
/// where it stays the kernel's.
fn take_in(old: usize, old_len: usize, new_len: usize, flags: i32) -> Option<Result<usize, Errno>> {
    let (before, after) = (pages(old, old_len)?, pages(0, new_len)?);
    let grows = flags == libc::MREMAP_MAYMOVE && after.len() > before.len();
    if !grows || !dormant::has_left(&before) || !pool::is_plain(&before) {
        return None;
    }
    if let Err(errno) = limits::addresses::admit(after.len() - before.len()) {
        return Some(Err(errno));
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let new = pool::mmap(0, after.len(), prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).ok()?;
    // SAFETY: 1. the first can be read, the second is new, and larger; 2. the mapping has moved.
    unsafe {
        std::ptr::copy_nonoverlapping(before.start as *const u8, new as *mut u8, before.len());
        dormant::forget(before.clone());
        let _ = sys::on_range(Sysno::munmap, before.start, before.len(), 0);
    }
    Some(Ok(new))
}

/// mremap(2) in a dormant process. `None` where it has woken for it.
fn mremap_dormant(
    old: usize,
    old_len: usize,
    new_len: usize,
    kernel: impl Fn() -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    let (Some(before), Some(after)) = (pages(old, old_len), pages(0, new_len)) else {
        return Some(kernel());
    };
    if dormant::admits(after.len().saturating_sub(before.len())) || dormant::is_held_up() {
        let moved = kernel();
        if let Ok(start) = moved
            && dormant::forget(before)
        {
            dormant::note(start..start + after.len());
        }
        return Some(moved);
    }
    (!dormant::wake()).then_some(Err(Errno::NOMEM))
}
