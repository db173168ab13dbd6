//! Mappings: which requests become managed memory, and which go on to the kernel.
//!
//! Managed are private anonymous mappings that the program lets the system place: no stacks
//! (MAP_STACK, MAP_GROWSDOWN), no huge pages. All of them lie in the window, and nothing else is
//! ever placed there, so for the other calls the address decides. A range that reaches over an edge
//! of the window is cut. A private mapping of /dev/zero is anonymous memory by its older name, and
//! becomes a request for that before anything else is decided.
//!
//! Requests of engine threads and from internal sections go to the kernel as they are. A hint
//! address is followed inside the window. Outside it is not, but for reservations of a program that
//! insists ([`insistence`]), and for code that is to lie near other code, which its jumps may not
//! reach otherwise. MAP_POPULATE is a hint too, and ignored, since what it brings in would have to
//! go out again.
//!
//! Arguments are checked as the kernel checks them before they reach the engine. The functions here
//! return results; [`crate::map::symbols`] makes C functions of them.

use crate::route::{Split, pages, pages_touched};
use crate::{dormant, gate, image, limits, low, pool, sys};
use overspill_os::seccomp::change_mappings;
use overspill_os::{Errno, PAGE_SIZE, confined, tls, vm};
use std::ops::Range;
use syscalls::{Sysno, raw_syscall};

pub mod advices;
mod insistence;
mod remap;
pub mod symbols;

use insistence::INSISTENCE;
pub use remap::mremap;

const PROT_KNOWN: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
/// Mappings with one of these flags are never managed.
const NEVER: i32 = libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;
/// Mappings with one of these are not managed where the system places them, unless they must lie
/// low and there is a range for that ([`crate::low`]). At an address inside the window they make no
/// difference.
const NOT_PLACED: i32 = libc::MAP_STACK | libc::MAP_32BIT;
const MAP_TYPE: i32 = 0x0f;
/// Addresses that the kernel follows as hints.
const HINTS: Range<usize> = 1..1 << 47;

/// Whether the engine has a say in this call.
#[inline(always)]
fn concerns_pool() -> bool {
    pool::exists() && tls::is_program()
}

fn aligned(address: usize) -> bool {
    address.is_multiple_of(PAGE_SIZE)
}

/// The parts of a range if any of it lies in the window and the call concerns the pool.
#[inline(always)]
fn parts(range: Option<Range<usize>>) -> Option<Split> {
    if !concerns_pool() {
        return None;
    }
    Some(pool::split(range?)).filter(|parts| !parts.inside.is_empty())
}

/// Runs `outside` on the non-empty parts outside the window and `inside` on the part inside, in
/// order of address.
fn each(
    parts: Split,
    mut outside: impl FnMut(Range<usize>) -> Result<usize, Errno>,
    inside: impl FnOnce(Range<usize>) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    if !parts.below.is_empty() {
        outside(parts.below)?;
    }
    inside(parts.inside)?;
    if !parts.above.is_empty() {
        outside(parts.above)?;
    }
    Ok(0)
}

/// What can be managed. Under a filter of the program's no code is: that may allow to map it, and
/// not to protect it so.
fn is_private_anonymous(prot: i32, flags: i32) -> bool {
    let is_confined_code = || prot & libc::PROT_EXEC != 0 && confined::is_confined();
    flags & MAP_TYPE == libc::MAP_PRIVATE
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & NEVER == 0
        && prot & !PROT_KNOWN == 0
        && !is_confined_code()
}

/// Whether a request is for a private mapping of /dev/zero.
fn is_private_zero(flags: i32, fd: i32) -> bool {
    const ZERO: libc::dev_t = libc::makedev(1, 5);
    let is_file = flags & MAP_TYPE == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS == 0;
    let is_zero =
        |file: libc::stat| file.st_mode & libc::S_IFMT == libc::S_IFCHR && file.st_rdev == ZERO;
    is_file && flags & NEVER == 0 && sys::status(fd).is_some_and(is_zero)
}

/// Whether the kernel would map this, without regard to the place.
fn is_possible(len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> Result<(), Errno> {
    const OF_PLACE: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
    let elsewhere = flags & !(OF_PLACE | libc::MAP_POPULATE | libc::MAP_LOCKED);
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing, and nobody else
    // knows of it.
    unsafe {
        let trial = sys::mmap(0, len, prot, elsewhere, fd, offset)?;
        sys::on_range(Sysno::munmap, trial, len, 0).map(drop)
    }
}

/// mmap(2).
///
/// # Safety
///
/// As for mmap(2): with MAP_FIXED, the caller owns the range.
pub unsafe fn mmap(
    address: usize,
    len: usize,
    prot: i32,
    mut flags: i32,
    mut fd: i32,
    mut offset: i64,
) -> Result<usize, Errno> {
    if !aligned(offset as usize) {
        return Err(Errno::INVAL);
    }
    if (dormant::concerns() || concerns_pool()) && is_private_zero(flags, fd) {
        is_possible(len, prot, flags, fd, offset)?;
        (flags, fd, offset) = (flags | libc::MAP_ANONYMOUS, -1, 0);
    }
    // SAFETY: the caller's promise.
    let kernel = || unsafe { sys::mmap(address, len, prot, flags, fd, offset) };
    if address == 0 && flags & libc::MAP_32BIT != 0 && dormant::concerns() {
        low::ask();
    }
    if dormant::concerns()
        && let Some(result) = mmap_dormant(len, prot, flags, kernel)
    {
        return result;
    }
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    if fixed {
        return match parts(pages(address, len)) {
            None => kernel(),
            // SAFETY: the caller's promise.
            Some(parts) => unsafe { mmap_in_window(parts, address, len, prot, flags, fd, offset) },
        };
    }
    if !concerns_pool() || len == 0 {
        return kernel();
    }
    if is_kernels(address, prot, flags) {
        // SAFETY: the caller's promise.
        return unsafe { mmap_where_hinted(address, len, prot, flags, fd, offset) }
            .unwrap_or_else(kernel);
    }
    if pages(0, len).is_none() {
        return Err(Errno::NOMEM);
    }
    let hinted = address != 0 && !pool::contains(address) && is_reservation(prot, flags);
    if hinted && INSISTENCE.is_there() {
        pool::count_unmanaged();
        return kernel();
    }
    limits::addresses::admit(len)?;
    match pool::mmap(address, len, prot, flags) {
        Ok(placed) => {
            if hinted {
                INSISTENCE.note(placed, len);
            }
            Ok(placed)
        }
        Err(Errno::NOMEM) if is_low(address, flags) => {
            pool::count_unmanaged();
            kernel()
        }
        // A reservation of addresses larger than the window needs no memory yet; better unmanaged
        // than not at all. The heap's own memory stays in the window, where free() looks for it.
        Err(Errno::NOMEM) if is_reservation(prot, flags) && !gate::is_inside() => {
            pool::count_unmanaged();
            kernel()
        }
        result => result,
    }
}

/// Whether a mapping that the system places is none of ours.
fn is_kernels(address: usize, prot: i32, flags: i32) -> bool {
    let is_near_code = || {
        prot & libc::PROT_EXEC != 0
            && HINTS.contains(&address)
            && !pool::contains(address)
            && image::is_near_code(address)
    };
    let is_not_placed = flags & NOT_PLACED != 0 && !is_low(address, flags);
    !is_private_anonymous(prot, flags) || is_not_placed || is_near_code()
}

/// Whether a mapping goes to the range for those that must lie low. A hint to elsewhere the kernel
/// follows.
fn is_low(address: usize, flags: i32) -> bool {
    let anywhere = address == 0 || pool::contains(address);
    anywhere && flags & NOT_PLACED == libc::MAP_32BIT && pool::has_low()
}

/// Whether a mapping may come to be memory that others share.
fn is_shared_memory(prot: i32, flags: i32) -> bool {
    matches!(flags & MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE)
        && prot & libc::PROT_WRITE != 0
}

/// A mapping of a dormant process: the kernel's. `None` where it has woken for it.
fn mmap_dormant(
    len: usize,
    prot: i32,
    flags: i32,
    kernel: impl Fn() -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    const PLACED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_STACK;
    // It stays the kernel's, but an engine counts it.
    if is_shared_memory(prot, flags) && !dormant::admits(len) && !dormant::is_held_up() {
        dormant::wake();
        return Some(kernel());
    }
    if !is_private_anonymous(prot, flags) || flags & PLACED != 0 {
        return Some(kernel());
    }
    let Some(whole) = pages(0, len).map(|range| range.len()) else { return Some(kernel()) };
    if dormant::admits(whole) || dormant::is_held_up() {
        let placed = kernel();
        placed.iter().for_each(|start| dormant::note(*start..start + whole));
        return Some(placed);
    }
    (!dormant::wake()).then_some(Err(Errno::NOMEM))
}

/// A file, or shared memory, at a place in the window that the program hints at, if there is room:
/// it may have made that room.
///
/// # Safety
///
/// As for mmap(2).
unsafe fn mmap_where_hinted(
    address: usize,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Option<Result<usize, Errno>> {
    let is_file = flags & NEVER == 0 && !is_private_anonymous(prot, flags);
    let parts =
        parts(pages(address, len)).filter(|_| is_file && address != 0 && aligned(address))?;
    // SAFETY: the caller's promise; nothing is replaced.
    let mapped = unsafe {
        mmap_in_window(parts, address, len, prot, flags | libc::MAP_FIXED_NOREPLACE, fd, offset)
    };
    (mapped != Err(Errno::EXIST)).then_some(mapped)
}

/// Whether a request is for addresses first.
fn is_reservation(prot: i32, flags: i32) -> bool {
    prot == libc::PROT_NONE || flags & libc::MAP_NORESERVE != 0
}

/// A mapping at an address of which some part lies in the window.
///
/// # Safety
///
/// As for mmap(2) with MAP_FIXED.
unsafe fn mmap_in_window(
    parts: Split,
    address: usize,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Result<usize, Errno> {
    if !aligned(address) {
        return Err(Errno::INVAL);
    }
    if is_private_anonymous(prot, flags) {
        if prot & libc::PROT_EXEC != 0 {
            // A policy may forbid it: then what is there stays.
            is_possible(len, prot, flags, fd, offset)?;
        }
        // SAFETY: the caller's promise, for a part of the range.
        let map =
            |part: Range<usize>| unsafe { sys::mmap(part.start, part.len(), prot, flags, -1, 0) };
        each(parts, map, |inside| pool::mmap(inside.start, inside.len(), prot, flags).map(drop))?;
        return Ok(address);
    }
    // Files, shared memory: the kernel's, in the middle of the window.
    let noreplace = flags & libc::MAP_FIXED_NOREPLACE != 0;
    if noreplace && parts.inside.len() != len.next_multiple_of(PAGE_SIZE) {
        // What lies beside the window is nothing that could be asked for and kept free.
        return Err(Errno::EXIST);
    }
    // 1. What is there goes only for a call that succeeds.
    is_possible(len, prot, flags, fd, offset)?;
    // 2. From here on the range is nobody else's. To the kernel the window's own reservation is in
    //    the way.
    pool::surrender(parts.inside.clone(), prot, flags)?;
    let flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
    // SAFETY: the caller's promise.
    unsafe { sys::mmap(address, len, prot, flags, fd, offset) }
        .inspect_err(|_| give_back(parts.inside))
}

/// Takes a part of the window back on which no mapping of another kind was put after all.
#[cold]
fn give_back(surrendered: Range<usize>) {
    let _ = pool::munmap(surrendered);
}

/// munmap(2).
///
/// # Safety
///
/// The caller owns the range.
pub unsafe fn munmap(address: usize, len: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let kernel = |address, len| unsafe { sys::on_range(Sysno::munmap, address, len, 0) };
    let Some(parts) = parts(pages(address, len)) else {
        if dormant::concerns()
            && let Some(range) = pages(address, len)
        {
            dormant::forget(range);
        }
        return kernel(address, len);
    };
    if !aligned(address) {
        return Err(Errno::INVAL);
    }
    INSISTENCE.unmapped(address, len);
    each(parts, |part| kernel(part.start, part.len()), pool::munmap)
}

/// mprotect(2).
///
/// # Safety
///
/// The caller owns the range.
pub unsafe fn mprotect(address: usize, len: usize, prot: i32) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let kernel = |address, len| unsafe { sys::on_range(Sysno::mprotect, address, len, prot) };
    protect(address, len, prot, kernel, |inside| pool::mprotect(inside, prot))
}

/// pkey_mprotect(2).
///
/// # Safety
///
/// The caller owns the range.
pub unsafe fn pkey_mprotect(
    address: usize,
    len: usize,
    prot: i32,
    key: i32,
) -> Result<usize, Errno> {
    let kernel = |address, len| {
        let arguments = [address, len, prot as usize, key as usize];
        // SAFETY: the caller's promise.
        unsafe { change_mappings(Sysno::pkey_mprotect, arguments) }
    };
    protect(address, len, prot, kernel, |inside| {
        // No thread of the engine has the right to what has a key: the program has it for itself.
        if key > 0 {
            pool::give_up(inside.clone())?;
        }
        pool::pkey_mprotect(inside, prot, key)
    })
}

/// A change of protection, by the kernel outside of the window and by the engine inside.
fn protect(
    address: usize,
    len: usize,
    prot: i32,
    kernel: impl Fn(usize, usize) -> Result<usize, Errno>,
    inside: impl FnOnce(Range<usize>) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    let Some(parts) = parts(pages(address, len)) else { return kernel(address, len) };
    if !aligned(address) || prot & !PROT_KNOWN != 0 {
        return Err(Errno::INVAL);
    }
    each(parts, |part| kernel(part.start, part.len()), inside)
}

/// mseal(2).
pub fn mseal(address: usize, len: usize, flags: usize) -> Result<usize, Errno> {
    // SAFETY: sealing changes no content.
    let kernel = |address, len| unsafe { change_mappings(Sysno::mseal, [address, len, flags]) };
    if flags == 0 && is_engines(address, len) {
        return Ok(0);
    }
    let Some(parts) = parts(pages(address, len)) else { return kernel(address, len) };
    if !aligned(address) || flags != 0 {
        return Err(Errno::INVAL);
    }
    each(parts, |part| kernel(part.start, part.len()), pool::mseal)
}

/// madvise(2).
///
/// # Safety
///
/// The caller owns the range, whose content some advices drop.
pub unsafe fn madvise(address: usize, len: usize, advice: i32) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let kernel = |address, len| unsafe { sys::on_range(Sysno::madvise, address, len, advice) };
    let Some(parts) = parts(pages(address, len)) else { return kernel(address, len) };
    if !aligned(address) {
        return Err(Errno::INVAL);
    }
    each(parts, |part| kernel(part.start, part.len()), |inside| pool::madvise(inside, advice))
}

/// Whether a range is the engine's: a program that locks all that it finds in its list of mappings
/// would fill tables over terabytes, and what is sealed the engine cannot change.
fn is_engines(address: usize, len: usize) -> bool {
    concerns_pool() && pages_touched(address, len).is_some_and(|range| vm::is_own(&range))
}

/// mlock(2), or mlock2(2) with MLOCK_ONFAULT.
pub fn mlock(address: usize, len: usize, on_fault: bool) -> Result<usize, Errno> {
    let flags = if on_fault { libc::MLOCK_ONFAULT as i32 } else { 0 };
    // SAFETY: locking changes no content.
    let kernel = |address, len| unsafe {
        if on_fault {
            sys::on_range(Sysno::mlock2, address, len, flags)
        } else {
            sys::on_range(Sysno::mlock, address, len, 0)
        }
    };
    if is_engines(address, len) {
        return Ok(0);
    }
    let Some(parts) = parts(pages_touched(address, len)) else { return kernel(address, len) };
    each(parts, |part| kernel(part.start, part.len()), |inside| pool::mlock(inside, on_fault))
}

/// munlock(2).
pub fn munlock(address: usize, len: usize) -> Result<usize, Errno> {
    // SAFETY: unlocking changes no content.
    let kernel = |address, len| unsafe { sys::on_range(Sysno::munlock, address, len, 0) };
    let Some(parts) = parts(pages_touched(address, len)) else { return kernel(address, len) };
    each(parts, |part| kernel(part.start, part.len()), pool::munlock)
}

/// msync(2). Managed memory has nothing behind it to be written; what it has are holes, which the
/// kernel cannot see.
pub fn msync(address: usize, len: usize, flags: i32) -> Result<usize, Errno> {
    // SAFETY: writing files back changes no memory.
    let kernel = |address, len| unsafe { sys::on_range(Sysno::msync, address, len, flags) };
    let aligned = address.is_multiple_of(PAGE_SIZE);
    let Some(parts) = parts(pages_touched(address, len)).filter(|_| aligned) else {
        return kernel(address, len);
    };
    each(
        parts,
        |part| kernel(part.start, part.len()),
        |part| {
            kernel(part.start, part.len())?;
            pool::check_mapped(part)
        },
    )
}

/// mincore(2), as the kernel sees it: what is evicted is not resident. Holes of the window are told
/// from mapped memory.
///
/// # Safety
///
/// As for mincore(2).
pub unsafe fn mincore(address: usize, len: usize, residency: *mut u8) -> Result<usize, Errno> {
    if let Some(parts) =
        parts(pages_touched(address, len)).filter(|_| address.is_multiple_of(PAGE_SIZE))
    {
        pool::check_mapped(parts.inside)?;
    }
    // SAFETY: the caller's promise.
    sys::check(unsafe { raw_syscall!(Sysno::mincore, address, len, residency) })
}

/// mlockall(2). With a pool it is the pool's affair alone: the kernel's call would make every page
/// of the window and of the engine resident.
pub fn mlockall(flags: i32) -> Result<usize, Errno> {
    if !dormant::wake() {
        return Err(Errno::NOMEM);
    }
    if concerns_pool() {
        return pool::mlockall(flags as u32).map(|()| 0);
    }
    // SAFETY: locking changes no content.
    sys::check(unsafe { raw_syscall!(Sysno::mlockall, flags) })
}

/// munlockall(2).
pub fn munlockall() -> Result<usize, Errno> {
    if concerns_pool() {
        return pool::munlockall().map(|()| 0);
    }
    // SAFETY: unlocking changes no content.
    sys::check(unsafe { raw_syscall!(Sysno::munlockall) })
}
