//! A few thread-local words that can be read anywhere: inside malloc, in a signal handler, on an
//! engine thread.
//!
//! A `thread_local!` in a shared library is reached through `__tls_get_addr`, which may allocate
//! memory at a thread's first access; an interposed malloc that asks "which thread am I?" that way
//! would call itself. The words here use the initial-exec model instead: one load of an offset, one
//! access relative to the thread pointer, no call. The loader gives such a library its place in the
//! static TLS block when the program starts.
//!
//! 1. The *context* word says whose work the thread does: the mark of an engine thread, and how
//!    deep it is in sections whose memory must not be managed memory ([`Internal`]). Zero is the
//!    program's own code.
//! 2. The *record* word belongs to the preload library (its per-thread record).
//! 3. The *blocked* word has the signals that the program believes blocked while the kernel does
//!    not block them, as bits of a signal set; the *pending* word those of them that have come.
//! 4. The *signal stack* word is the address of the thread's signal stack, 0 if it has none of
//!    ours.
//! 5. The *number* word is the thread's number, once somebody has asked for it.
//! 6. The *copies* word is the address of what a program was last executed with on this thread; the
//!    *tracee* word the process that wants to be traced from then on. The child of a vfork has both
//!    from its parent's thread.
//! 7. The *served* word counts the faults of the thread that were served by signal.
//! 8. The *stopped* word says that the thread is in the handler of a call that was stopped.
//!
//! Neighbours: [`crate::thread`] marks engine threads; the preload library routes by the context
//! word. No locks.

use std::arch::{asm, global_asm};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// The context bit of an engine thread.
const ENGINE: usize = 1;
/// Words of a thread.
const WORDS: usize = 10;
/// One level of [`Internal`]; the levels are counted in the bits above [`ENGINE`].
const INTERNAL_ONE: usize = 2;

// Zero words in the thread-local zero section, known to the linker but never exported from the
// library.
global_asm!(
    ".pushsection .tbss.overspill_tls,\"awT\",@nobits",
    ".balign 8",
    ".hidden overspill_tls",
    ".globl overspill_tls",
    ".type overspill_tls, @object",
    ".size overspill_tls, 80",
    "overspill_tls: .zero 80",
    ".popsection",
);

/// Reads word `N` of the calling thread.
#[inline(always)]
fn load<const N: usize>() -> usize {
    let value;
    // SAFETY: 1. the symbol is a thread-local object of ten words and N is less, so the access
    // stays inside;
    // 2. only the calling thread accesses it; 3. nothing but the output register changes.
    unsafe {
        asm!(
            "mov {value}, qword ptr [rip + overspill_tls@GOTTPOFF]",
            "mov {value}, qword ptr fs:[{value} + {offset}]",
            value = out(reg) value,
            offset = const N * 8,
            options(nostack, preserves_flags, readonly),
        );
    }
    value
}

/// Writes word `N` of the calling thread.
#[inline(always)]
fn store<const N: usize>(value: usize) {
    // SAFETY: as in `load`; a word is plain data.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + overspill_tls@GOTTPOFF]",
            "mov qword ptr fs:[{place} + {offset}], {value}",
            place = out(reg) _,
            value = in(reg) value,
            offset = const N * 8,
            options(nostack, preserves_flags),
        );
    }
}

/// Marks the calling thread as the engine's, for ever.
pub fn mark_engine_thread() {
    store::<0>(load::<0>() | ENGINE);
}

/// Whether the calling thread is the engine's.
#[inline(always)]
pub fn is_engine_thread() -> bool {
    load::<0>() & ENGINE != 0
}

/// Whether the calling thread runs the program's own code: no engine thread, no [`Internal`]
/// section.
#[inline(always)]
pub fn is_program() -> bool {
    load::<0>() == 0
}

/// Whether a process runs on a thread-local storage that a thread has too.
static SHARED: AtomicBool = AtomicBool::new(false);

/// A process is about to be made that shares the memory and has the calling thread's storage
/// (clone(2) with CLONE_VM and without CLONE_SETTLS), and both go on.
pub fn share() {
    SHARED.store(true, Ordering::Relaxed);
}

/// Whether [`share`] was called: then what debug builds keep of threads may be that of two.
pub fn is_shared() -> bool {
    SHARED.load(Ordering::Relaxed)
}

/// A section of the calling thread whose memory must not be managed memory; sections nest.
#[derive(Debug)]
pub struct Internal {
    /// It counts on the thread that began it.
    not_send: PhantomData<*const ()>,
}

impl Internal {
    /// Begins a section that ends when the value is dropped.
    pub fn enter() -> Internal {
        store::<0>(load::<0>() + INTERNAL_ONE);
        Internal { not_send: PhantomData }
    }
}

impl Drop for Internal {
    fn drop(&mut self) {
        store::<0>(load::<0>() - INTERNAL_ONE);
    }
}

/// The preload library's word of the calling thread; zero at first.
#[inline(always)]
pub fn record() -> usize {
    load::<1>()
}

/// Sets the preload library's word of the calling thread.
#[inline(always)]
pub fn set_record(value: usize) {
    store::<1>(value);
}

/// The signals that the program believes blocked on the calling thread while they are open.
#[inline(always)]
pub fn blocked() -> u64 {
    load::<2>() as u64
}

/// Sets what [`blocked`] returns.
#[inline(always)]
pub fn set_blocked(signals: u64) {
    store::<2>(signals as usize);
}

/// Where the words lie: bytes from every thread's thread pointer.
fn offset() -> isize {
    let offset: isize;
    // SAFETY: as in `load`, without an access to the word.
    unsafe {
        asm!(
            "mov {offset}, qword ptr [rip + overspill_tls@GOTTPOFF]",
            offset = out(reg) offset,
            options(nostack, preserves_flags),
        );
    }
    offset
}

/// Where the words of [`blocked`] and [`pending`] lie, one behind the other: bytes from every
/// thread's thread pointer.
pub fn blocked_offset() -> isize {
    offset() + 16
}

/// The calling thread's thread pointer.
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: the first word at the thread pointer is its own address, on x86-64.
    unsafe {
        asm!(
            "mov {}, qword ptr fs:[0]",
            out(reg) pointer,
            options(nostack, preserves_flags, readonly),
        )
    };
    pointer
}

/// Sets all words of a thread that does not run yet to zero, given its thread pointer.
pub(crate) fn clear_of(thread_pointer: usize) {
    let words = thread_pointer.wrapping_add_signed(offset()) as *mut [usize; WORDS];
    // SAFETY: the caller has made the storage of that thread, in which the words lie.
    unsafe { words.write([0; WORDS]) };
}

/// Sets what [`blocked`] and [`signal_stack`] return on a thread that does not run yet.
pub(crate) fn begin_of(thread_pointer: usize, blocked: u64, signal_stack: usize) {
    let words = thread_pointer.wrapping_add_signed(offset()) as *mut usize;
    // SAFETY: as in `clear_of`.
    unsafe {
        words.add(2).write(blocked as usize);
        words.add(4).write(signal_stack);
    }
}

/// Those of them that have come meanwhile.
#[inline(always)]
pub fn pending() -> u64 {
    load::<3>() as u64
}

/// Sets what [`pending`] returns.
#[inline(always)]
pub fn set_pending(signals: u64) {
    store::<3>(signals as usize);
}

/// The calling thread's signal stack; zero at first.
#[inline(always)]
pub fn signal_stack() -> usize {
    load::<4>()
}

/// Sets what [`signal_stack`] returns.
#[inline(always)]
pub fn set_signal_stack(address: usize) {
    store::<4>(address);
}

/// The calling thread's number, as [`crate::task::id`], without a system call after the first.
#[inline(always)]
pub fn number() -> i32 {
    match load::<5>() {
        0 => {
            let id = crate::task::id();
            store::<5>(id as usize);
            id
        }
        number => number as i32,
    }
}

/// What a program was last executed with; zero at first.
pub fn copies() -> usize {
    load::<6>()
}

/// Sets what [`copies`] returns.
pub fn set_copies(address: usize) {
    store::<6>(address);
}

/// The process that wants to be traced once it executes a program; zero at first.
pub fn tracee() -> i32 {
    load::<7>() as i32
}

/// Sets what [`tracee`] returns.
pub fn set_tracee(process: i32) {
    store::<7>(process as usize);
}

/// How many faults of the calling thread were served by signal, modulo 2^64.
#[inline(always)]
pub fn served() -> usize {
    load::<8>()
}

/// One more was served.
#[inline(always)]
pub fn count_served() {
    store::<8>(load::<8>().wrapping_add(1));
}

/// How far the calling thread is with a call that was stopped, where it has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answering {
    /// It has none.
    Nothing,
    /// Its handler works on one.
    Works,
    /// What has come for the program meanwhile was looked at: the handler does nothing any more but
    /// return.
    Ends,
}

/// In bytes, where the word is that [`answering`] reads, for handlers in assembly, which put it
/// back to what it was.
pub(crate) const ANSWERING: usize = 9 * 8;

/// How far the calling thread is.
pub fn answering() -> Answering {
    match load::<9>() {
        0 => Answering::Nothing,
        1 => Answering::Works,
        _ => Answering::Ends,
    }
}

/// Sets what [`answering`] returns, until the handler returns.
pub fn set_answering(answering: Answering) {
    store::<9>(answering as usize);
}

/// In the child of a fork: its thread has another number than the one that it is a copy of.
pub fn reset_number() {
    store::<5>(0);
}

/// An address on the calling thread's stack.
#[inline(never)]
pub fn stack_address() -> usize {
    let local = 0u8;
    std::hint::black_box(&local) as *const u8 as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_separate_and_belong_to_one_thread() {
        assert!(is_program() && record() == 0);
        set_record(7);
        assert!(is_program(), "the record word is not the context word");
        std::thread::spawn(|| {
            assert_eq!((record(), is_engine_thread()), (0, false));
            mark_engine_thread();
            assert!(is_engine_thread() && !is_program());
        })
        .join()
        .unwrap();
        assert_eq!((record(), is_engine_thread()), (7, false));
    }

    #[test]
    fn the_number_is_that_of_the_thread() {
        assert_eq!(number(), crate::task::id());
        assert_eq!(number(), crate::task::id());
        let other = std::thread::spawn(|| (number(), crate::task::id())).join().unwrap();
        assert!(other.0 == other.1 && other.0 != number());
        reset_number();
        assert_eq!(number(), crate::task::id());
    }

    #[test]
    fn internal_sections_nest() {
        let outer = Internal::enter();
        let inner = Internal::enter();
        assert!(!is_program() && !is_engine_thread());
        drop(outer);
        assert!(!is_program());
        drop(inner);
        assert!(is_program());
    }
}
