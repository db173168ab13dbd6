//! Changes of the signal mask, in signal delivery: they never block our signals, and the program
//! reads back what it has set.
//!
//! glibc blocks all signals while it makes a thread or a child, in the threads that it keeps for
//! itself (timers, asynchronous I/O), and hands masks of the program's to the kernel from wherever
//! they lie (swapcontext). None of that comes by a symbol. So the system call itself is replaced,
//! where glibc makes it, in some twenty places:
//!
//! - The five bytes `mov eax, 14` before a `syscall` become a jump to a copy of a *stub*, which
//!   hands over a copy of the mask without our signals, on the stack, and goes on behind the
//!   `syscall`. What the mask says of ours is kept in a word of the thread ([`tls::blocked`]), and
//!   is in the old mask that the caller gets: so masks are inherited by new threads, saved and
//!   restored as the C library does it. Instructions between the two are taken along, if they are
//!   of a kind that is known here.
//! - Where the number comes from another register (a loop, or asynchronous I/O), the instruction
//!   that takes it from there becomes the jump, and what it jumps to looks at the number first.
//! - Where they are not, only the number is replaced, by one that the filter always stops; the
//!   handler does the rest ([`change`]).
//!
//! A set that cannot be read, or a place that cannot be written, is a fault in the stub. Its
//! handler goes on where the stub ends, which it finds on the stack, with EFAULT ([`recover`]).
//!
//! Where code may not be changed (a policy against memory that is written and executed) signal
//! delivery is refused.

use crate::code::{JUMP_BYTES, SYSCALL, is_jumped_to, jump, moved, syscalls};
use crate::rewrite::Writer;
use crate::signals::registers::{RED_ZONE, Registers};
use crate::sys::failure;
use crate::{image, memory, sys};
use overspill_os::signal::{OURS, change_mask, raise_pending};
use overspill_os::{Errno, PAGE_SIZE, seccomp, tls};
use std::arch::global_asm;
use std::ffi::{c_int, c_void};

/// What glibc's places look like: `mov eax, SYS_rt_sigprocmask`, perhaps something that takes a few
/// bytes, and `syscall`.
const NUMBER: [u8; 5] = [0xb8, libc::SYS_rt_sigprocmask as u8, 0, 0, 0];
const BETWEEN_MAX: usize = 32;
/// How far before its use a register may have got the number.
const BEFORE_MAX: usize = 256;
/// `cmp eax, 14`, and `je` over a plain `syscall` with a jump back.
const IS_MASK: [u8; 5] = [0x83, 0xf8, libc::SYS_rt_sigprocmask as u8, 0x74, 7];
/// Bytes for stubs: some sixty. They are in this library, which the loader puts within the reach of
/// a jump.
const ROOM: usize = 4 * PAGE_SIZE;

/// Stands in the stub for the offset of the thread's words; `start` puts that in its place.
const OFFSET: i32 = 0x7a5a_e11f;

/// Bytes of a stub's frame, with the red zone above it, and where in it the address of the stub's
/// end is.
const FRAME: usize = RED_ZONE + 64;
const END: usize = 48;
/// Where the arguments are that the stub uses registers of.
const SET: usize = 16;
const OLD: usize = 24;

// The arguments are those of the system call: rdi, rsi (the set), rdx (where the old one goes),
// r10. It keeps all registers but rax, rcx and r11, and so does this. The last instruction is the
// jump back.
global_asm!(
    ".pushsection .rodata.overspill_mask_stub,\"a\",@progbits",
    ".hidden overspill_mask_stub",
    ".globl overspill_mask_stub",
    "overspill_mask_stub:",
    "lea rsp, [rsp - {frame}]",
    "mov [rsp + {set}], rsi",
    "mov [rsp + {old}], rdx",
    "lea rcx, [rip + 3f]",
    "mov [rsp + {end}], rcx",
    // What the program believes blocked: before (32), and afterwards (40).
    "mov r11, {offset}",
    "mov rcx, fs:[r11]",
    "mov [rsp + 32], rcx",
    "test rsi, rsi",
    "jz 1f",
    "mov r11, [rsi]",
    "and r11, {ours}",
    "cmp edi, {UNBLOCK}",
    "je 4f",
    "cmp edi, {BLOCK}",
    "je 5f",
    "xor ecx, ecx",
    "5:",
    "or rcx, r11",
    "jmp 6f",
    "4:",
    "not r11",
    "and rcx, r11",
    "6:",
    "mov r11, [rsi]",
    "and r11, {open}",
    "mov [rsp], r11",
    "mov rsi, rsp",
    "1:",
    "mov [rsp + 40], rcx",
    "test rdx, rdx",
    "jz 2f",
    "lea rdx, [rsp + 8]",
    "2:",
    "mov eax, {number}",
    "syscall",
    "mov rsi, [rsp + {set}]",
    "mov rdx, [rsp + {old}]",
    "test rax, rax",
    "jnz 3f",
    "mov rcx, [rsp + 40]",
    "mov r11, {offset}",
    "mov fs:[r11], rcx",
    "test rdx, rdx",
    "jz 7f",
    // The engine may have blocked ours while it makes a thread: that is not the program's.
    "mov rcx, [rsp + 8]",
    "and rcx, {open}",
    "or rcx, [rsp + 32]",
    "mov [rdx], rcx",
    "7:",
    // What has come while it was blocked?
    "mov rcx, [rsp + 40]",
    "not rcx",
    "and rcx, fs:[r11 + 8]",
    "jz 3f",
    "mov rsi, {PENDING}",
    "mov eax, {number}",
    "syscall",
    "mov rsi, [rsp + {set}]",
    "3:",
    "lea rsp, [rsp + {frame}]",
    ".hidden overspill_mask_stub_end",
    ".globl overspill_mask_stub_end",
    "overspill_mask_stub_end:",
    ".popsection",
    frame = const FRAME,
    end = const END,
    set = const SET,
    old = const OLD,
    ours = const OURS as i32,
    // Its sign is extended: the kernel's 64 bits.
    open = const !(OURS as i32),
    offset = const OFFSET,
    UNBLOCK = const libc::SIG_UNBLOCK,
    BLOCK = const libc::SIG_BLOCK,
    number = const libc::SYS_rt_sigprocmask,
    PENDING = const seccomp::PENDING,
);

// Whole pages for the copies.
global_asm!(
    ".pushsection .text.overspill_mask_stubs,\"ax\",@progbits",
    ".balign 4096",
    ".hidden overspill_mask_stubs",
    ".globl overspill_mask_stubs",
    "overspill_mask_stubs:",
    ".zero {room}",
    ".popsection",
    room = const ROOM,
);

unsafe extern "C" {
    static overspill_mask_stubs: u8;
    static overspill_mask_stub: u8;
    static overspill_mask_stub_end: u8;
}

/// The stub without its jump.
fn stub() -> &'static [u8] {
    // SAFETY: both symbols are in one section, in this order.
    unsafe {
        let len =
            &raw const overspill_mask_stub_end as usize - &raw const overspill_mask_stub as usize;
        std::slice::from_raw_parts(&raw const overspill_mask_stub, len)
    }
}

/// A place in code.
#[derive(Debug, PartialEq, Eq)]
struct CallSite {
    at: usize,
    /// Bytes of what puts the number into eax.
    first: usize,
    /// Bytes between that and the `syscall`.
    between: usize,
    /// Whether the number is known to be the one.
    certain: bool,
}

/// What loads the number right before `end`, `between` bytes before a `syscall`.
fn place_before(bytes: &[u8], end: usize, between: usize) -> Option<CallSite> {
    let code = &bytes[..end];
    if code.ends_with(&NUMBER) {
        let at = end - NUMBER.len();
        return Some(CallSite { at, first: NUMBER.len(), between, certain: true });
    }
    // `mov reg, 14` far before `mov eax, reg`: the registers from 8 on have a prefix.
    let (first, register) = match *code {
        [.., 0x44, 0x89, form] if form & 0xc7 == 0xc0 => (3, 8 + (form >> 3 & 7)),
        [.., 0x40..=0x4f, 0x89, _] => return None,
        [.., 0x89, form] if form & 0xc7 == 0xc0 => (2, form >> 3 & 7),
        _ => return None,
    };
    let at = end - first;
    let before = &bytes[at.saturating_sub(BEFORE_MAX)..at];
    let long = [0x41, 0xb8 + (register & 7), NUMBER[1], 0, 0, 0];
    let load = if register < 8 { &long[1..] } else { &long[..] };
    // Instructions that the jump covers besides: none that is known here has less than two bytes.
    let mut covered = (end..at + JUMP_BYTES).step_by(2);
    let loaded = before.windows(load.len()).any(|part| part == load);
    let fits = loaded && first + between + SYSCALL.len() >= JUMP_BYTES;
    (fits && !covered.any(|to| is_jumped_to(bytes, to))).then_some(CallSite {
        at,
        first,
        between,
        certain: false,
    })
}

/// The places in a library's code, as offsets.
fn places(bytes: &[u8]) -> Vec<CallSite> {
    let mut places = Vec::new();
    let mut last = 0;
    for syscall in syscalls(bytes) {
        // A number that another `syscall` takes before this one is that one's.
        let first = last.max((syscall + SYSCALL.len()).saturating_sub(BETWEEN_MAX));
        places.extend((first..=syscall).filter_map(|end| place_before(bytes, end, syscall - end)));
        last = syscall + 1;
    }
    places
}

/// Where a `syscall` of any code gets its number from a register that may be the one, if a jump
/// can be put there.
pub fn from_register(bytes: &[u8], syscall: usize) -> Option<usize> {
    let first = (syscall + SYSCALL.len()).saturating_sub(BETWEEN_MAX);
    let place = |end| place_before(bytes, end, syscall - end).filter(|place| !place.certain);
    let at = (first..=syscall).rev().find_map(place)?.at;
    moved(&bytes[at..syscall], 0).map(|_| at)
}

/// The stub, with the offset of the thread's words in it.
fn with_words() -> Vec<u8> {
    let mut code = stub().to_vec();
    let offset = i32::try_from(tls::blocked_offset())
        .expect("thread-local memory is less than 2 GiB")
        .to_le_bytes();
    for at in 0..code.len() - offset.len() {
        if code[at..at + offset.len()] == OFFSET.to_le_bytes() {
            code[at..at + offset.len()].copy_from_slice(&offset);
        }
    }
    code
}

/// In the handler of a fault: whether a stub has met it. The stub ends when the handler returns.
///
/// # Safety
///
/// `context` is what the kernel has passed to the handler.
pub unsafe fn recover(context: *mut c_void) -> bool {
    // SAFETY: the caller's promise.
    let mut registers =
        Registers(unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs });
    let stubs = &raw const overspill_mask_stubs as usize;
    let (at, frame) = (registers.get(libc::REG_RIP), registers.get(libc::REG_RSP));
    if !(stubs..stubs + ROOM).contains(&at) {
        return false;
    }
    // SAFETY: the stack of who runs the stub. All that may fault in it comes after it has written
    // these words.
    let [set, old, end] =
        [SET, OLD, END].map(|word| unsafe { ((frame + word) as *const usize).read() });
    // Not so the instructions of the C library's that were taken along.
    let met = (at..at + stub().len()).contains(&end);
    if met {
        registers.set(libc::REG_RSI, set);
        registers.set(libc::REG_RDX, old);
        registers.set(libc::REG_RIP, end);
        registers.set(libc::REG_RAX, failure(libc::EFAULT));
    }
    met
}

/// Changes a mask that is in force when the handler returns, and what the program believes blocked.
/// Returns the result of the call.
///
/// # Safety
///
/// The program has handed `old` to a call that writes there, or it is null.
pub unsafe fn change(mask: &mut u64, how: usize, set: usize, old: usize) -> usize {
    let (before, blocked) = (*mask & !OURS, tls::blocked());
    if set != 0 {
        let Some(set) = memory::read::<u64>(set) else { return failure(libc::EFAULT) };
        let changed = |before: u64| match how as c_int {
            libc::SIG_BLOCK => Some(before | set),
            libc::SIG_UNBLOCK => Some(before & !set),
            libc::SIG_SETMASK => Some(set),
            _ => None,
        };
        let Some(after) = changed(before | blocked) else { return failure(libc::EINVAL) };
        *mask = after & !OURS;
        tls::set_blocked(after & OURS);
    }
    // SAFETY: the caller's promise.
    if old == 0 || unsafe { memory::write(old, before | blocked) } {
        0
    } else {
        failure(libc::EFAULT)
    }
}

/// rt_sigprocmask(2), by number.
///
/// # Safety
///
/// As for the system call.
pub unsafe fn by_number(how: usize, set: usize, old: usize, len: usize) -> Result<usize, Errno> {
    if len != size_of::<u64>() {
        return Err(Errno::INVAL);
    }
    const UNBLOCKABLE: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
    let mut mask = change_mask(libc::SIG_BLOCK, 0);
    // SAFETY: the caller's promise.
    let result = unsafe { change(&mut mask, how, set, old) };
    change_mask(libc::SIG_SETMASK, mask & !UNBLOCKABLE);
    raise_pending();
    sys::check(result)
}

/// Replaces the calls of the C library. Called while the process has one thread.
///
/// # Errors
/// When its code cannot be changed.
pub fn start() -> Result<(), Errno> {
    if overspill_os::probe::simulated().no_patch {
        return Err(Errno::ACCESS);
    }
    let code = image::of(sys::c_librarys_definition(c"pthread_sigmask")).ok_or(Errno::NOENT)?.code;
    let size = (BETWEEN_MAX + IS_MASK.len() + SYSCALL.len() + stub().len() + 3 * JUMP_BYTES)
        .next_multiple_of(16);
    let page = &raw const overspill_mask_stubs as usize;
    // SAFETY: the library's code, which stays where it is.
    let places = places(unsafe { std::slice::from_raw_parts(code.start as *const u8, code.len()) });
    let reach = (places.len() * size <= ROOM)
        && page.abs_diff(code.start).max(page.abs_diff(code.end)) < i32::MAX as usize;
    if places.is_empty() || !reach {
        return Err(Errno::NOEXEC);
    }
    let writer = Writer::new(libc::PROT_READ | libc::PROT_EXEC);
    for (n, CallSite { at: place, first, between, certain }) in places.into_iter().enumerate() {
        let (at, place) = (page + n * size, code.start + place);
        let behind = place + first + between;
        // What the copy begins with: without the number, which the stub has, or with the
        // instruction that fetches it.
        let taken = if certain { place + first } else { place };
        // SAFETY: the library's code, which stays where it is.
        let taken_bytes = unsafe { std::slice::from_raw_parts(taken as *const u8, behind - taken) };
        let back = |from: usize| jump(from, behind + SYSCALL.len());
        let Some(mut copy) = moved(taken_bytes, at.wrapping_sub(taken)) else {
            if certain {
                // SAFETY: the number in an instruction, and nobody runs it now: the process has one
                // thread.
                unsafe { writer.write(place + 1, &(seccomp::MASK as u32).to_le_bytes()) }?;
            }
            continue;
        };
        if !certain {
            copy.extend(IS_MASK);
            copy.extend(SYSCALL);
            copy.extend(back(at + copy.len()));
        }
        copy.extend(with_words());
        copy.extend(back(at + copy.len()));
        // SAFETY: 1. there is room for so many, which nobody runs yet; 2. the process has one
        // thread; 3. the place is the first byte of an instruction, and nothing jumps to those that
        // its jump covers besides.
        unsafe {
            writer.write(at, &copy)?;
            writer.write(place, &jump(place, at))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_change_as_the_kernel_changes_them() {
        let (sigbus, set) = (1u64 << (libc::SIGBUS - 1), 0b110u64);
        let mut before = 7;
        let mut result = |mask, how| {
            let (mut mask, set) = (mask, set | sigbus);
            // SAFETY: both are sets.
            let result = unsafe {
                change(&mut mask, how as usize, &raw const set as usize, &raw mut before as usize)
            };
            (result, mask, before)
        };
        assert_eq!(result(1, libc::SIG_BLOCK), (0, 0b111, 1));
        assert_eq!(tls::blocked(), sigbus);
        assert_eq!(result(0b11, libc::SIG_UNBLOCK), (0, 1, 0b11 | sigbus));
        assert_eq!(tls::blocked(), 0);
        assert_eq!(result(8, libc::SIG_SETMASK), (0, 0b110, 8));
        assert_eq!(tls::blocked(), sigbus);
        assert_eq!(result(8, 9), (failure(libc::EINVAL), 8, 8));
        tls::set_blocked(0);
    }

    #[test]
    fn places_are_found_by_their_instructions() {
        // mov eax, 14; xor edx, edx; syscall
        let plain = [0xb8, 14, 0, 0, 0, 0x31, 0xd2, 0x0f, 0x05];
        assert_eq!(places(&plain), [CallSite { at: 0, first: 5, between: 2, certain: true }]);
        assert_eq!(places(&plain[..8]), []);
        // mov r15d, 14; nop; mov eax, r15d; mov rdx, r8; syscall
        let register =
            [0x41, 0xbf, 14, 0, 0, 0, 0x90, 0x44, 0x89, 0xf8, 0x4c, 0x89, 0xc2, 0x0f, 0x05, 0xc3];
        assert_eq!(places(&register), [CallSite { at: 7, first: 3, between: 3, certain: false }]);
        let mut other = register;
        other[2] = 15;
        assert_eq!(places(&other), []);
        // The same with ebp; and with a jump to the instruction behind.
        let low = [0xbd, 14, 0, 0, 0, 0x89, 0xe8, 0x31, 0xd2, 0x0f, 0x05];
        assert_eq!(places(&low), [CallSite { at: 5, first: 2, between: 2, certain: false }]);
        assert_eq!(places(&[&register[..], &[0xeb, 0xf8]].concat()), []);
        assert_eq!(places(&[&register[..], &[0xe9, 0xf5, 0xff, 0xff, 0xff]].concat()), []);
        assert_eq!(places(&[&register[..], &[0xeb, 0xfe]].concat()).len(), 1);
    }

    #[test]
    fn the_c_library_has_places_to_replace() {
        let code = image::of(sys::c_librarys_definition(c"pthread_sigmask")).unwrap().code;
        // SAFETY: as in `start`.
        let places =
            places(unsafe { std::slice::from_raw_parts(code.start as *const u8, code.len()) });
        assert!((5..60).contains(&places.len()), "{}", places.len());
        assert!(stub().len() < 256);
        let named = stub().windows(4).filter(|bytes| *bytes == OFFSET.to_le_bytes()).count();
        assert_eq!(named, 2);
    }
}
