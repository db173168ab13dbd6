//! Threads whose thread pointer is not the C library's.
//!
//! A runtime that makes its threads by clone(2) itself, or sets the thread pointer of the first one
//! (Go's without cgo), has its own words where the C library has its own. The engine's handlers
//! come to such threads all the same, and reach their thread-local words by the thread pointer. So
//! a *foreign* thread has storage of the engine's, as the threads beside the program have
//! ([`crate::beside`]); for one that the C library has made it is what the C library gave it. A
//! handler switches to that, and back before the program's code goes on ([`crate::pointer`]).
//!
//! A thread of the program's that begins here begins in a frame of a signal: a copy of that in
//! which the call for it was stopped, so that one system call sets its registers, its mask and its
//! signal stack together ([`Begun::run`]).
//!
//! No locks: entries of a table are claimed one by one, and found free again when their threads
//! have ended.

use crate::beside::{control_bytes, storage_bytes, write_storage};
use crate::pointer::{BYTES, START, Words, set_words, words};
use crate::signal::change_mask;
use crate::units::{Errno, PAGE_SIZE, check};
use crate::{confined, seccomp, tls, vm};
use std::arch::global_asm;
use std::sync::atomic::{
    AtomicI32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use syscalls::{Sysno, raw_syscall};

/// Most foreign threads at once.
const THREADS: usize = 4096;
/// In place of the number of a thread that is being made.
const BUSY: i32 = -1;

/// The thread of each entry, 0 for none.
static NUMBERS: [AtomicI32; THREADS] = [const { AtomicI32::new(0) }; THREADS];

// A frame of a signal that a thread begins in, and where one goes on with another thread pointer.
global_asm!(
    ".pushsection .text.overspill_foreign,\"ax\",@progbits",
    // Where a thread goes on whose thread pointer is in r11, at the address in rcx: a system call
    // changes both.
    ".hidden overspill_set_pointer",
    ".globl overspill_set_pointer",
    ".type overspill_set_pointer, @function",
    "overspill_set_pointer:",
    ".cfi_startproc",
    ".cfi_register rip, rcx",
    "wrfsbase r11",
    "jmp rcx",
    ".cfi_endproc",
    // (flags, place of the frame, parent's word, child's word, thread pointer, words) -> number of
    // the thread, or an error. The thread begins in the frame.
    ".hidden overspill_clone_in_frame",
    ".globl overspill_clone_in_frame",
    ".type overspill_clone_in_frame, @function",
    "overspill_clone_in_frame:",
    ".cfi_startproc",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset r12, -16",
    "mov r12, r9",
    "mov r10, rcx",
    "mov r9, {exempt}",
    "mov eax, {CLONE}",
    "syscall",
    "test rax, rax",
    "jz 3f",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    "3:",
    ".cfi_undefined rip",
    "wrgsbase r12",
    "mov eax, {SIGRETURN}",
    "syscall",
    "ud2",
    ".cfi_endproc",
    ".popsection",
    exempt = const seccomp::exempt(0),
    CLONE = const libc::SYS_clone,
    SIGRETURN = const libc::SYS_rt_sigreturn,
);

unsafe extern "C" {
    fn overspill_set_pointer();
    fn overspill_clone_in_frame(
        flags: usize,
        frame: usize,
        parent_word: usize,
        child_word: usize,
        thread_pointer: usize,
        words: usize,
    ) -> usize;
}

/// Bytes of an entry: the storage, the control block, and its words.
fn entry_bytes() -> usize {
    words_at() + PAGE_SIZE
}

/// Where in an entry its words begin: a page, behind the control block.
fn words_at() -> usize {
    (storage_bytes() + control_bytes()).next_multiple_of(PAGE_SIZE)
}

/// Claims an entry and makes its memory; its number in the table, and its words.
fn claim() -> Result<(usize, usize), Errno> {
    if BYTES.load(Acquire) == 0 {
        // Two at once both reserve, and the first is used: by both, so both say that it is there.
        let start = vm::reserve_own(THREADS * entry_bytes(), PAGE_SIZE)?;
        let _ = START.compare_exchange(0, start, AcqRel, Relaxed);
        BYTES.store(THREADS * entry_bytes(), Release);
    }
    let is_free = |entry: &AtomicI32| {
        let number = entry.load(Relaxed);
        (number == 0 || number > 0 && has_ended(number))
            && entry.compare_exchange(number, BUSY, AcqRel, Relaxed).is_ok()
    };
    let at = NUMBERS.iter().position(is_free).ok_or(Errno::AGAIN)?;
    let start = START.load(Relaxed) + at * entry_bytes();
    let made = vm::protect(start..start + entry_bytes(), vm::Prot::READ_WRITE);
    made.inspect_err(|_| NUMBERS[at].store(0, Release))?;
    Ok((at, start + words_at()))
}

/// Whether nobody has this number: no thread of the process, nor of another one that shares its
/// memory, which may also be who asks. What the program's own filter allows most likely is to ask
/// for threads of the process.
fn has_ended(number: i32) -> bool {
    // SAFETY: signal 0 only asks.
    let asked = unsafe {
        if confined::is_confined() {
            let pid = rustix::process::getpid().as_raw_nonzero().get();
            raw_syscall!(Sysno::tgkill, pid, number, 0)
        } else {
            raw_syscall!(Sysno::tkill, number, 0)
        }
    };
    check(asked) == Err(Errno::SRCH)
}

/// In a handler: the program's code on the calling thread has another thread pointer from now on.
/// `registers` are those of the thread when the handler returns.
pub fn set_programs_pointer(registers: &mut [i64; 23], to: usize) -> Result<(), Errno> {
    if let Some(words) = words() {
        if words.own == to {
            // It has the C library's again.
            let at = (&raw const *words as usize - START.load(Relaxed)) / entry_bytes();
            set_words(0);
            NUMBERS[at].store(0, Release);
            return Ok(());
        }
        let place = (&raw const words.program).cast_mut();
        // SAFETY: the calling thread's own word. The handler leaves by it.
        unsafe { place.write(to) };
        return Ok(());
    }
    let (at, place) = claim()?;
    let place = place as *mut Words;
    // SAFETY: the entry is the calling thread's. The signal stack of who had it before stays there.
    unsafe {
        (&raw mut (*place).own).write(tls::thread_pointer());
        (&raw mut (*place).program).write(to);
    }
    NUMBERS[at].store(crate::task::id(), Release);
    set_words(place as usize);
    // This handler has not entered: nobody leaves.
    registers[libc::REG_R11 as usize] = to as i64;
    registers[libc::REG_RCX as usize] = registers[libc::REG_RIP as usize];
    registers[libc::REG_RIP as usize] = overspill_set_pointer as *const () as usize as i64;
    Ok(())
}

/// In the child of a fork: the calling thread is its only one.
pub fn reset_in_child() {
    if START.load(Relaxed) == 0 {
        // There were none: the table is not touched.
        return;
    }
    let own = words().map(|words| &raw const *words as usize);
    let used = |entry: &AtomicI32| entry.load(Relaxed) != 0;
    for (at, entry) in NUMBERS.iter().enumerate().filter(|(_, entry)| used(entry)) {
        let start = START.load(Relaxed) + at * entry_bytes();
        let is_own = own.is_some_and(|own| (start..start + entry_bytes()).contains(&own));
        entry.store(if is_own { crate::task::id() } else { 0 }, Relaxed);
    }
}

/// A thread of the program's that is about to begin.
#[derive(Debug)]
pub struct Begun {
    at: usize,
    words: &'static Words,
}

/// How a thread begins.
#[derive(Debug)]
pub struct Beginning {
    /// clone(2)'s flags and words, and the stack pointer.
    pub flags: usize,
    /// Where the parent's number of it goes, and its own.
    pub parent_word: usize,
    /// See `parent_word`.
    pub child_word: usize,
    /// Its stack pointer.
    pub stack: usize,
    /// Its thread pointer.
    pub thread_pointer: usize,
    /// Its signal stack.
    pub signal_stack: libc::stack_t,
}

/// Bytes of the kernel's struct ucontext.
const CONTEXT_BYTES: usize = 304;

impl Begun {
    /// One that has storage, and a signal stack, which `make_stack` makes where the entry has none
    /// from a thread before.
    ///
    /// # Errors
    /// Where there is no memory for it, or there are too many.
    pub fn new(make_stack: impl FnOnce() -> Option<usize>) -> Result<Begun, Errno> {
        let (at, place) = claim()?;
        let own = place - control_bytes();
        // SAFETY: the entry is the new thread's alone.
        let words = unsafe {
            write_storage(own);
            (&raw mut (*(place as *mut Words)).own).write(own);
            &*(place as *const Words)
        };
        if words.signal_stack.load(Relaxed) == 0 {
            words.signal_stack.store(make_stack().unwrap_or(0), Relaxed);
        }
        if words.signal_stack.load(Relaxed) == 0 {
            NUMBERS[at].store(0, Release);
            return Err(Errno::NOMEM);
        }
        Ok(Begun { at, words })
    }

    /// What `make_stack` has returned.
    pub fn signal_stack(&self) -> usize {
        self.words.signal_stack.load(Relaxed)
    }

    /// Makes the thread, which goes on as `context` says but for what `beginning` has; its number.
    ///
    /// # Safety
    ///
    /// As for clone(2); `context` is what the kernel has passed to the handler that calls this,
    /// and nobody is on the signal stack.
    pub unsafe fn run(
        self,
        context: *const libc::ucontext_t,
        beginning: &Beginning,
    ) -> Result<usize, Errno> {
        tls::begin_of(self.words.own, tls::blocked(), self.signal_stack());
        // Ours too: the thread has its maker's words until it has set its own. The end of the frame
        // opens them.
        let before = change_mask(libc::SIG_SETMASK, !0);
        // SAFETY: 1. the caller's promise; 2. the words are the new thread's.
        let made = unsafe {
            let frame = copy_frame(context, beginning);
            overspill_clone_in_frame(
                beginning.flags | libc::CLONE_SETTLS as usize,
                frame,
                beginning.parent_word,
                beginning.child_word,
                beginning.thread_pointer,
                &raw const *self.words as usize,
            )
        };
        change_mask(libc::SIG_SETMASK, before);
        let made = check(made);
        NUMBERS[self.at].store(made.map_or(0, |number| number as i32), Release);
        made
    }
}

/// Copies the frame of a signal to the top of a thread's signal stack; where the stack pointer is
/// for the call that ends it.
///
/// # Safety
///
/// As for [`Begun::run`].
unsafe fn copy_frame(context: *const libc::ucontext_t, beginning: &Beginning) -> usize {
    /// Where the kernel says how long the state of the other registers is, with its mark, and how
    /// long it is without.
    const MARK_AT: usize = 464;
    const MARK: u32 = 0x4650_5853;
    const LEAST: usize = 512;
    // SAFETY: the kernel has written the frame, and it lies on this thread's signal stack; the copy
    // lies on that of a thread which has not begun.
    unsafe {
        let state = (*context).uc_mcontext.fpregs.cast::<u8>().cast_const();
        let [mark, len] = state.add(MARK_AT).cast::<[u32; 2]>().read();
        let len = if mark == MARK { len as usize } else { LEAST };
        let stack = &beginning.signal_stack;
        let state_copy = (stack.ss_sp as usize + stack.ss_size - len) & !63;
        let place = (state_copy - CONTEXT_BYTES) & !63;
        std::ptr::copy_nonoverlapping(state, state_copy as *mut u8, len);
        std::ptr::copy_nonoverlapping(context.cast::<u8>(), place as *mut u8, CONTEXT_BYTES);
        let copy = place as *mut libc::ucontext_t;
        (&raw mut (*copy).uc_stack).write(*stack);
        let machine = &mut (*copy).uc_mcontext;
        machine.fpregs = state_copy as *mut _;
        machine.gregs[libc::REG_RSP as usize] = beginning.stack as i64;
        machine.gregs[libc::REG_RAX as usize] = 0;
        place
    }
}
