//! Signal stacks, in signal delivery: every thread of the program has one of ours.
//!
//! A signal frame cannot be pushed onto an absent page, and a program may run on stacks in managed memory (coroutines). So
//! SIGBUS and SIGSYS are always handled on a stack that is not managed. It takes the place of the one that the program may set
//! by sigaltstack(2): that is only noted. Handlers of the program's with SA_ONSTACK run on ours, which is as large and some.
//!
//! A stack comes with the thread and goes with it; some are kept for the next thread. No locks.

use crate::{pool, sys};
use overspill_os::{Errno, PAGE_SIZE, seccomp, tls};
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use syscalls::Sysno;

/// Bytes of a stack: nested frames of both signals, a debug build's handler, and handlers of the program's that are content
/// with SIGSTKSZ. Memory is used only as far as it is touched, mostly two pages.
const BYTES: usize = 256 << 10;
/// Stacks that are kept.
const KEPT: usize = 32;

static FREE: [AtomicUsize; KEPT] = [const { AtomicUsize::new(0) }; KEPT];

/// What stands at the lowest bytes of a stack, above its guard page.
#[repr(C)]
struct Foot {
    /// Bytes of the whole mapping.
    mapped: usize,
    /// What the program has set.
    programs: libc::stack_t,
}

const NONE: libc::stack_t = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };

fn call(new: *const libc::stack_t, old: *mut libc::stack_t) -> Result<usize, Errno> {
    // The thread's own stack, on which these may lie, may be managed memory: the filter lets this through.
    // SAFETY: each is null or a stack_t of ours.
    sys::check(unsafe { seccomp::let_through(Sysno::sigaltstack as usize, [new as usize, old as usize, 0, 0, 0, 0]) })
}

/// The stack that the kernel uses for the calling thread.
fn current() -> libc::stack_t {
    let mut stack = NONE;
    let _ = call(std::ptr::null(), &mut stack);
    stack
}

fn map(bytes: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let mapped = bytes + 2 * PAGE_SIZE;
    // SAFETY: a new mapping replaces nothing; its first page is made a guard.
    unsafe {
        let base = sys::mmap(0, mapped, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).ok()?;
        let _ = sys::on_range(Sysno::mprotect, base, PAGE_SIZE, libc::PROT_NONE);
        ((base + PAGE_SIZE) as *mut Foot).write(Foot { mapped, programs: NONE });
        Some(base)
    }
}

/// Makes the stack at `base` the calling thread's.
fn set(base: usize) {
    // SAFETY: made by `map`.
    let mapped = unsafe { (*((base + PAGE_SIZE) as *const Foot)).mapped };
    let low = base + 2 * PAGE_SIZE;
    let stack = libc::stack_t { ss_sp: low as *mut _, ss_flags: 0, ss_size: base + mapped - low };
    let _ = call(&stack, std::ptr::null_mut());
}

/// Where the mapping of a stack that the kernel uses begins.
fn base(stack: &libc::stack_t) -> usize {
    stack.ss_sp as usize - 2 * PAGE_SIZE
}

/// Gives the calling thread a stack. Without memory for one it does without.
pub fn give() {
    let kept = FREE.iter().map(|place| place.swap(0, AcqRel)).find(|base| *base != 0);
    if let Some(base) = kept.or_else(|| map(BYTES)) {
        set(base);
    }
}

/// The calling thread ends.
pub fn take_back() {
    let stack = current();
    if !pool::signal_delivery() || stack.ss_flags != 0 {
        return;
    }
    let _ = call(&NONE, std::ptr::null_mut());
    let base = base(&stack);
    // SAFETY: the thread's own stack, which is no longer used.
    unsafe {
        let foot = (base + PAGE_SIZE) as *mut Foot;
        (*foot).programs = NONE;
        let mapped = (*foot).mapped;
        let keep = |place: &AtomicUsize| place.compare_exchange(0, base, AcqRel, Relaxed).is_ok();
        if mapped != BYTES + 2 * PAGE_SIZE || !FREE.iter().any(keep) {
            let _ = sys::on_range(Sysno::munmap, base, mapped, 0);
        }
    }
}

/// sigaltstack(2).
///
/// # Safety
///
/// As for sigaltstack(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> i32 {
    sys::to_c_int(set_programs(new, old))
}

fn set_programs(new: *const libc::stack_t, old: *mut libc::stack_t) -> Result<usize, Errno> {
    let ours = current();
    if !pool::signal_delivery() || !tls::is_program() || ours.ss_flags & libc::SS_DISABLE != 0 {
        return call(new, old);
    }
    let foot = (base(&ours) + PAGE_SIZE) as *mut Foot;
    let is_on = ours.ss_flags & libc::SS_ONSTACK != 0;
    // SAFETY: 1. the foot is the thread's own; 2. the caller's promise for both pointers.
    unsafe {
        let before = (*foot).programs;
        let wanted = (!new.is_null()).then(|| new.read());
        if !old.is_null() {
            let on = if is_on && before.ss_flags & libc::SS_DISABLE == 0 { libc::SS_ONSTACK } else { 0 };
            old.write(libc::stack_t { ss_flags: before.ss_flags | on, ..before });
        }
        let Some(wanted) = wanted else { return Ok(0) };
        const AUTODISARM: i32 = 1 << 31;
        const SMALLEST: usize = 2048;
        if is_on && before.ss_flags & libc::SS_DISABLE == 0 {
            return Err(Errno::PERM);
        }
        match wanted.ss_flags & !AUTODISARM {
            libc::SS_DISABLE => (*foot).programs = NONE,
            0 | libc::SS_ONSTACK if wanted.ss_size < SMALLEST => return Err(Errno::NOMEM),
            0 | libc::SS_ONSTACK => {
                (*foot).programs = libc::stack_t { ss_flags: 0, ..wanted };
                if !is_on && wanted.ss_size > BYTES / 2 && ours.ss_size < wanted.ss_size + BYTES / 2 {
                    grow(&ours, wanted.ss_size + BYTES / 2);
                }
            }
            _ => return Err(Errno::INVAL),
        }
    }
    Ok(0)
}

/// Gives the thread, which is not on it, a larger stack in the place of its own.
fn grow(ours: &libc::stack_t, bytes: usize) {
    let Some(larger) = map(bytes.next_multiple_of(PAGE_SIZE)) else { return };
    let old = base(ours);
    // SAFETY: both are the thread's own; once the larger is set nobody uses the other.
    unsafe {
        let (from, to) = ((old + PAGE_SIZE) as *const Foot, (larger + PAGE_SIZE) as *mut Foot);
        (*to).programs = (*from).programs;
        let mapped = (*from).mapped;
        set(larger);
        let _ = sys::on_range(Sysno::munmap, old, mapped, 0);
    }
}
