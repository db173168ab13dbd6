//! Signal stacks, in signal delivery: every thread of the program has one of ours.
//!
//! A signal frame cannot be pushed onto an absent page, and a program may run on stacks in managed
//! memory (coroutines). So SIGBUS and SIGSYS are always handled on a stack that is not managed. It
//! takes the place of the one that the program may set by sigaltstack(2): that is only noted, and
//! used by hand for the program's handlers ([`crate::signals::handlers`]), and so is the thread's
//! own where the program has set none. Those for SIGBUS and SIGSYS run on ours.
//!
//! A stack comes with the thread and goes with it, for threads that the C library makes for itself
//! with their first call that is stopped; some are kept for the next thread. A child of clone(2)
//! that shares the memory has the thread-local words of its parent too, and the kernel takes the
//! signal stack from it: it is *lent* one, which is used again when it is gone. A thread ends when
//! its thread-specific data are destroyed: our destructor asks for another round until the last
//! that there is, so that others, which may run code of the program, come first. No locks.

use crate::memory::{self, copies};
use crate::signals::registers::RED_ZONE;
use crate::sys;
use overspill_os::{Errno, PAGE_SIZE, seccomp, signal, tls};
use std::cell::Cell;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{
    AtomicI32, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release,
};
use syscalls::{Sysno, raw_syscall};

/// The least that is left for the kernel while a handler runs on the program's stack.
const LEFT: usize = 64 << 10;
/// Bytes of a block: a guard page, the page of the foot, room for a frame of the kernel's with
/// which a handler returns, and the stack.
const MAPPED: usize = signal::STACK_BYTES;
/// Pages of that room: what processors have in registers is up to 11 KiB.
const FRAME_PAGES: usize = 4;
/// Stacks that are kept.
const KEPT: usize = 32;

/// Rounds of destructors that POSIX and the C library promise.
const ROUNDS: usize = 4;
/// Thread-specific key whose destructor takes the stack back; -1 before [`init`].
static KEY: AtomicI32 = AtomicI32::new(-1);

static FREE: [AtomicUsize; KEPT] = [const { AtomicUsize::new(0) }; KEPT];

/// What stands at the lowest bytes of a stack, above its guard page.
struct Foot {
    /// What the program has set.
    programs: Cell<libc::stack_t>,
}

const NONE: libc::stack_t =
    libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };

fn call(new: *const libc::stack_t, old: *mut libc::stack_t) -> Result<usize, Errno> {
    // The thread's own stack, on which these may lie, may be managed memory: the filter lets this
    // through. SAFETY: each is null or a stack_t of ours.
    sys::check(unsafe {
        seccomp::let_through(Sysno::sigaltstack as usize, [new as usize, old as usize, 0, 0, 0, 0])
    })
}

/// The stack that the kernel uses for the calling thread.
fn current() -> libc::stack_t {
    let mut stack = NONE;
    let _ = call(std::ptr::null(), &mut stack);
    stack
}

fn map() -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping replaces nothing; its first page is made a guard.
    unsafe {
        let base = sys::mmap_own(MAPPED, libc::PROT_READ | libc::PROT_WRITE, flags).ok()?;
        let _ = sys::on_range(Sysno::mprotect, base, PAGE_SIZE, libc::PROT_NONE);
        ((base + PAGE_SIZE) as *mut Foot).write(Foot { programs: Cell::new(NONE) });
        Some(base)
    }
}

/// Makes the stack at `base` the calling thread's.
fn set(base: usize) {
    let (low, high) = room(base);
    let _ = call(
        &libc::stack_t { ss_sp: low as *mut _, ss_flags: 0, ss_size: high - low },
        std::ptr::null_mut(),
    );
    tls::set_signal_stack(base);
}

/// The first address of the stack at `base` that is used, and the one behind its last.
fn room(base: usize) -> (usize, usize) {
    (base + (2 + FRAME_PAGES) * PAGE_SIZE, base + MAPPED)
}

/// The room for a frame in the calling thread's block; none for a thread without one.
pub fn frame_room() -> Option<Range<usize>> {
    let base = tls::signal_stack();
    (base != 0).then(|| base + 2 * PAGE_SIZE..room(base).0)
}

/// Whether an address lies on the calling thread's stack for signals, of ours.
pub fn is_on_ours(address: usize) -> bool {
    let base = tls::signal_stack();
    let (low, high) = room(base);
    base != 0 && (low..high).contains(&address)
}

/// Whether an address lies in the block of the calling thread's stack: a handler may be about to
/// return with a frame there.
pub fn is_in_block(address: usize) -> bool {
    let base = tls::signal_stack();
    base != 0 && (base..base + MAPPED).contains(&address)
}

/// What the calling thread's stack has noted; none for a thread without one.
fn foot() -> Option<&'static Foot> {
    let base = tls::signal_stack();
    // SAFETY: made by `map`, and the calling thread's own.
    (base != 0).then(|| unsafe { &*((base + PAGE_SIZE) as *const Foot) })
}

/// Whether an address is on the stack that the program has set.
fn is_on_programs(programs: &libc::stack_t, address: usize) -> bool {
    programs.ss_flags & libc::SS_DISABLE == 0
        && address.wrapping_sub(programs.ss_sp as usize) <= programs.ss_size
}

/// Where a handler of the program's runs that has come to a thread with the stack pointer `sp`, on
/// the program's own signal stack, or on the thread's if it has none: the stack pointer, and which
/// part of ours the kernel may use meanwhile. `kernels` is what it had when it pushed the frame,
/// `used` the lowest address that is in use. None where the handler stays on ours: that is in use
/// below this handler, or has little left.
pub fn programs_place(
    sp: usize,
    kernels: &libc::stack_t,
    used: usize,
) -> Option<(usize, libc::stack_t)> {
    let programs = foot()?.programs.get();
    let (low, high) = room(tls::signal_stack());
    let on_ours = |address: usize| (low..high).contains(&address);
    if on_ours(sp) || !on_ours(used) {
        return None;
    }
    let kernels = kernels.ss_sp as usize..kernels.ss_sp as usize + kernels.ss_size;
    if !kernels.contains(&used) || !on_ours(kernels.start) || kernels.end > high {
        return None;
    }
    // The function that decides this has its own frame below.
    const SLACK: usize = 256;
    let used = (used - SLACK) & !15;
    let has_none = programs.ss_flags & libc::SS_DISABLE != 0;
    let (below, above) = (kernels.start..used, kernels.end..high);
    // Where no other handler is about, whose frames would be outside of the kernel's part.
    let larger = if used - low >= above.len() { low..used } else { above };
    let (stack, free) = if has_none {
        // There may be some; but as many as fill all of that have been left by siglongjmp.
        (sp - RED_ZONE, if below.len() >= LEFT { below } else { larger })
    } else if is_on_programs(&programs, sp) {
        // It has interrupted another handler there.
        (sp - RED_ZONE, below)
    } else {
        (programs.ss_sp as usize + programs.ss_size, larger)
    };
    let free_stack =
        libc::stack_t { ss_sp: free.start as *mut _, ss_flags: 0, ss_size: free.len() };
    (free.len() >= LEFT).then_some((stack & !15, free_stack))
}

/// Prepares for ends of threads. Called by the constructor.
pub fn init() {
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: `key` receives the key; the destructor lives for ever.
    if unsafe { libc::pthread_key_create(&mut key, Some(ended)) } == 0 {
        KEY.store(key as i32, Relaxed);
    }
}

/// Has the destructor run at the end of the calling thread, for the time that `round` says.
fn watch_end(round: usize) {
    let key = KEY.load(Relaxed);
    if key >= 0 {
        // SAFETY: the key was made by `init`. Its first 32 values lie in the thread's control
        // block, so nothing is allocated; and should that fail the stack stays where it is, no
        // worse.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, round as *const c_void) };
    }
}

unsafe extern "C" fn ended(round: *mut c_void) {
    match round as usize {
        round if round < ROUNDS => watch_end(round + 1),
        _ => take_back(),
    }
}

/// Gives the calling thread a stack, until it ends. Without memory for one it does without.
pub fn give() {
    let kept = FREE.iter().map(|place| place.swap(0, AcqRel)).find(|base| *base != 0);
    if let Some(base) = kept.or_else(map) {
        let programs = current();
        set(base);
        watch_end(1);
        // What the program has set while we had none for it.
        foot().iter().for_each(|foot| foot.programs.set(programs));
    }
}

/// Gives a stack to a thread that the C library has made for itself, when it is in a handler for
/// the first time: its own stack has little more than room for one.
pub fn give_late(context: &mut libc::ucontext_t) {
    if tls::signal_stack() == 0 && tls::is_program() {
        give();
        // What is in force when the handler returns.
        context.uc_stack = current();
    }
}

/// A child of clone(2) that shares the memory, and the block that it has its signal stack in.
struct Lent {
    child: AtomicI32,
    block: AtomicUsize,
}

/// As many as may live at once: the block of one beyond is lost.
static LENT: [Lent; KEPT] =
    [const { Lent { child: AtomicI32::new(0), block: AtomicUsize::new(0) } }; KEPT];
/// While an entry is looked at.
const BUSY: i32 = -1;
/// Bytes at the top of a block on which a child begins.
const FIRST_BYTES: usize = 16 << 10;

/// A block for a child that shares the memory, and the calling thread's thread-local words: it is
/// nobody's own.
pub fn lend() -> Option<usize> {
    for Lent { child, block } in &LENT {
        let id = child.load(Relaxed);
        // SAFETY: signal 0 only asks.
        let is_gone =
            || sys::check(unsafe { raw_syscall!(Sysno::tkill, id, 0) }) == Err(Errno::SRCH);
        if id > 0 && is_gone() && child.compare_exchange(id, BUSY, AcqRel, Relaxed).is_ok() {
            let block = block.load(Relaxed);
            child.store(0, Release);
            return Some(block);
        }
    }
    FREE.iter().map(|place| place.swap(0, AcqRel)).find(|base| *base != 0).or_else(map)
}

/// Where the stack on which a child begins ends, in the block that was lent.
pub fn first_stack(base: usize) -> usize {
    room(base).1
}

/// In the child: its signal stack is the rest of the block.
pub fn borrow(base: usize) {
    let (low, high) = room(base);
    let stack =
        libc::stack_t { ss_sp: low as *mut _, ss_flags: 0, ss_size: high - FIRST_BYTES - low };
    let _ = call(&stack, std::ptr::null_mut());
}

/// Notes which child has the block; none does unless the number is positive.
pub fn lent_to(base: usize, id: i32) {
    if id <= 0 {
        return keep(base);
    }
    for Lent { child, block } in &LENT {
        if child.compare_exchange(0, BUSY, AcqRel, Relaxed).is_ok() {
            block.store(base, Relaxed);
            return child.store(id, Release);
        }
    }
}

/// Keeps a block that nobody uses for another thread, or gives it up.
fn keep(base: usize) {
    let put = |place: &AtomicUsize| place.compare_exchange(0, base, AcqRel, Relaxed).is_ok();
    if !FREE.iter().any(put) {
        // SAFETY: a block of ours, which is no longer used.
        let _ = unsafe { sys::on_range(Sysno::munmap, base, MAPPED, 0) };
    }
}

/// The calling thread ends.
pub fn take_back() {
    copies::forget();
    let Some(foot) = foot() else { return };
    let base = tls::signal_stack();
    if current().ss_flags & libc::SS_ONSTACK != 0 {
        return;
    }
    let _ = call(&NONE, std::ptr::null_mut());
    tls::set_signal_stack(0);
    foot.programs.set(NONE);
    keep(base);
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

/// sigaltstack(2), by the program's own instructions with the stack pointer `sp`, in the handler
/// that has stopped the call.
///
/// # Safety
///
/// As for sigaltstack(2).
pub unsafe fn by_number(
    new: *const libc::stack_t,
    old: *mut libc::stack_t,
    sp: usize,
) -> Result<usize, Errno> {
    let (low, high) = room(tls::signal_stack());
    match foot() {
        Some(foot) => note_programs(foot, new, old, sp, (low..high).contains(&sp)),
        None => Err(Errno::NOMEM),
    }
}

/// A block is that of a thread which has not begun: its signal stack.
pub fn anew(base: usize) -> libc::stack_t {
    let (low, high) = room(base);
    // SAFETY: made by `map`, and nobody's yet.
    unsafe { (*((base + PAGE_SIZE) as *const Foot)).programs.set(NONE) };
    libc::stack_t { ss_sp: low as *mut _, ss_flags: 0, ss_size: high - low }
}

fn set_programs(new: *const libc::stack_t, old: *mut libc::stack_t) -> Result<usize, Errno> {
    let Some(foot) = foot().filter(|_| tls::is_program()) else { return call(new, old) };
    let here = tls::stack_address();
    note_programs(foot, new, old, here, current().ss_flags & libc::SS_ONSTACK != 0)
}

/// sigaltstack(2) of who has the stack pointer `here`; `on_ours` is whether that is on our stack.
fn note_programs(
    foot: &Foot,
    new: *const libc::stack_t,
    old: *mut libc::stack_t,
    here: usize,
    on_ours: bool,
) -> Result<usize, Errno> {
    let before = foot.programs.get();
    // A handler that had to stay on our stack believes to be on its own.
    let is_on =
        before.ss_flags & libc::SS_DISABLE == 0 && (is_on_programs(&before, here) || on_ours);
    const AUTODISARM: i32 = 1 << 31;
    const SMALLEST: usize = 2048;
    // SAFETY: the caller's promise for both pointers.
    unsafe {
        if !new.is_null() {
            let wanted: libc::stack_t = memory::read(new as usize).ok_or(Errno::FAULT)?;
            if is_on {
                return Err(Errno::PERM);
            }
            foot.programs.set(match wanted.ss_flags & !AUTODISARM {
                libc::SS_DISABLE => NONE,
                0 | libc::SS_ONSTACK if wanted.ss_size < SMALLEST => return Err(Errno::NOMEM),
                0 | libc::SS_ONSTACK => libc::stack_t { ss_flags: 0, ..wanted },
                _ => return Err(Errno::INVAL),
            });
        }
        let on = if is_on { libc::SS_ONSTACK } else { 0 };
        let found = libc::stack_t { ss_flags: before.ss_flags | on, ..before };
        if old.is_null() || memory::write(old as usize, found) { Ok(0) } else { Err(Errno::FAULT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_run_on_the_programs_stack_and_the_kernel_on_what_is_left_of_ours() {
        // That of Rust's runtime.
        call(&NONE, std::ptr::null_mut()).unwrap();
        give();
        let (low, high) = room(tls::signal_stack());
        let all = libc::stack_t { ss_sp: low as *mut _, ss_flags: 0, ss_size: high - low };
        let used = high - 4096;
        let (own, _) = programs_place(8192, &all, used).unwrap();
        assert_eq!(own, 8192 - RED_ZONE, "the thread's own: the program has none");
        let last = libc::stack_t { ss_size: LEFT, ..all };
        let (_, other) = programs_place(8192, &last, low + LEFT - 4096).unwrap();
        assert_eq!(other.ss_sp as usize, low + LEFT, "as if by siglongjmp, so many times");
        let size = 1 << 16;
        let programs = libc::stack_t { ss_sp: (1 << 20) as *mut _, ss_flags: 0, ss_size: size };
        set_programs(&programs, std::ptr::null_mut()).unwrap();
        let mut found = NONE;
        set_programs(std::ptr::null(), &mut found).unwrap();
        assert_eq!((found.ss_sp, found.ss_flags), (programs.ss_sp, 0));
        // The first handler: the kernel keeps what is below its frame.
        let (stack, first) = programs_place(4096, &all, used).unwrap();
        assert_eq!(stack, (1 << 20) + size);
        assert!(first.ss_sp as usize == low && first.ss_sp as usize + first.ss_size < used);
        // One that interrupts it: below both.
        let (nested, second) = programs_place(stack - 1000, &first, used - 8192).unwrap();
        assert!(nested < stack - 1000 - RED_ZONE && nested > stack - 1200);
        assert!(second.ss_sp as usize == low && second.ss_size < first.ss_size - 4096);
        // One that comes after that was left by siglongjmp: nobody is on the stack, and the other
        // side has more room.
        let left = libc::stack_t { ss_size: 100 << 10, ..all };
        let (stack, third) = programs_place(4096, &left, low + (96 << 10)).unwrap();
        assert_eq!((stack, third.ss_sp as usize + third.ss_size), ((1 << 20) + size, high));
        // On ours, or with little left.
        assert!(programs_place(used - 100, &all, used - 4096).is_none());
        assert!(programs_place(stack - 8, &second, low + 4096).is_none());
        take_back();
        assert_eq!(tls::signal_stack(), 0);
    }
}
