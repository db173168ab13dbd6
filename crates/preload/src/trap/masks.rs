//! The C library's own changes of the signal mask, in signal delivery: they never block our signals.
//!
//! glibc blocks all signals while it makes a thread or a child, in the threads that it keeps for itself (timers,
//! asynchronous I/O), and hands masks of the program's to the kernel from wherever they lie (swapcontext). None of that
//! comes by a symbol. So the system call itself is replaced, where glibc makes it, in some twenty places:
//!
//! - The five bytes `mov eax, 14` before a `syscall` become a jump to a copy of a *stub*, which hands over a copy of the mask
//!   without our signals, on the stack, and goes on behind the `syscall`. Instructions between the two are taken along,
//!   if they are of a kind that is known here.
//! - Where they are not, only the number is replaced, by one that the filter always stops; the handler does the rest
//!   ([`change`]).
//!
//! Where code may not be changed (a policy against memory that is written and executed) signal delivery is refused.

use crate::sys;
use overspill_os::{Errno, PAGE_SIZE, seccomp};
use std::arch::global_asm;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use syscalls::Sysno;

/// What glibc's places look like: `mov eax, SYS_rt_sigprocmask`, perhaps something that takes a few bytes, and `syscall`.
const NUMBER: [u8; 5] = [0xb8, libc::SYS_rt_sigprocmask as u8, 0, 0, 0];
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const BETWEEN_MAX: usize = 16;
/// `jmp` with a distance of 32 bits.
const JUMP: u8 = 0xe9;
const JUMP_BYTES: usize = 5;
/// Bytes for stubs: some sixty. They are in this library, which the loader puts within the reach of a jump.
const ROOM: usize = 2 * PAGE_SIZE;

// The arguments are those of the system call: rdi, rsi (the set), rdx (where the old one goes), r10. It keeps all registers but
// rax, rcx and r11, and so does this. The last instruction is the jump back.
global_asm!(
    ".pushsection .rodata.overspill_mask_stub,\"a\",@progbits",
    ".hidden overspill_mask_stub",
    ".globl overspill_mask_stub",
    "overspill_mask_stub:",
    "lea rsp, [rsp - {frame}]",
    "mov [rsp + 16], rsi",
    "mov [rsp + 24], rdx",
    "test rsi, rsi",
    "jz 1f",
    "mov rcx, [rsi]",
    "movabs r11, {open}",
    "and rcx, r11",
    "mov [rsp], rcx",
    "mov rsi, rsp",
    "1:",
    "test rdx, rdx",
    "jz 2f",
    "lea rdx, [rsp + 8]",
    "2:",
    "mov eax, {number}",
    "syscall",
    "mov rsi, [rsp + 16]",
    "mov rdx, [rsp + 24]",
    "test rdx, rdx",
    "jz 3f",
    "test rax, rax",
    "jnz 3f",
    "mov rcx, [rsp + 8]",
    "mov [rdx], rcx",
    "3:",
    "lea rsp, [rsp + {frame}]",
    ".hidden overspill_mask_stub_end",
    ".globl overspill_mask_stub_end",
    "overspill_mask_stub_end:",
    ".popsection",
    frame = const super::RED_ZONE + 32,
    open = const !crate::signals::OURS as i64,
    number = const libc::SYS_rt_sigprocmask,
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
        let len = &raw const overspill_mask_stub_end as usize - &raw const overspill_mask_stub as usize;
        std::slice::from_raw_parts(&raw const overspill_mask_stub, len)
    }
}

/// The executable part of the library that contains an address.
struct Code {
    contains: usize,
    found: Option<Range<usize>>,
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, code: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid entry, and `code_of` its Code.
    unsafe {
        let (info, code) = (&*info, &mut *code.cast::<Code>());
        for n in 0..info.dlpi_phnum as usize {
            let header = &*info.dlpi_phdr.add(n);
            let start = (info.dlpi_addr + header.p_vaddr) as usize;
            let range = start..start + header.p_memsz as usize;
            if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0 && range.contains(&code.contains) {
                code.found = Some(range);
                return 1;
            }
        }
    }
    0
}

fn code_of(address: usize) -> Option<Range<usize>> {
    let mut code = Code { contains: address, found: None };
    // SAFETY: the function is called with the Code, during the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut code).cast()) };
    code.found
}

/// A jump from one address to another.
fn jump(from: usize, to: usize) -> [u8; JUMP_BYTES] {
    let distance = to.wrapping_sub(from + JUMP_BYTES) as i32;
    let mut code = [JUMP; JUMP_BYTES];
    code[1..].copy_from_slice(&distance.to_le_bytes());
    code
}

/// A place in code: its address, and how many bytes stand between its two instructions.
struct Place {
    at: usize,
    between: usize,
}

fn places(code: &Range<usize>) -> Vec<Place> {
    // SAFETY: the library's code, which stays where it is.
    let bytes = unsafe { std::slice::from_raw_parts(code.start as *const u8, code.len()) };
    let find = |(at, _): (usize, &[u8])| {
        let behind = &bytes[at + NUMBER.len()..bytes.len().min(at + NUMBER.len() + BETWEEN_MAX)];
        let between = behind.windows(SYSCALL.len()).position(|window| *window == SYSCALL)?;
        Some(Place { at: code.start + at, between })
    };
    bytes.windows(NUMBER.len()).enumerate().filter(|(_, window)| **window == NUMBER).filter_map(find).collect()
}

/// Moves instructions by a distance to other addresses: what they name relative to themselves is adjusted. None where one is
/// not known.
fn moved(code: &[u8], distance: usize) -> Option<Vec<u8>> {
    let mut out = code.to_vec();
    let mut at = 0;
    while at < code.len() {
        let rest = &code[at..];
        at += match *rest {
            // lea and mov of 64 bits: relative to themselves; to a register with 32 or 8 bits; to the stack; of registers.
            [0x48 | 0x4c | 0x49 | 0x4d, 0x89 | 0x8b | 0x8d, form, ..] => match (form >> 6, form & 7) {
                (0, 5) => {
                    let old = i32::from_le_bytes(rest.get(3..7)?.try_into().ok()?);
                    let new = i32::try_from((old as isize).checked_sub(distance as isize)?).ok()?;
                    out[at + 3..at + 7].copy_from_slice(&new.to_le_bytes());
                    7
                }
                (2, 4) => 8,
                (2, _) => 7,
                (1, 4) => 5,
                (1, _) => 4,
                (0, 4) => 4,
                _ => 3,
            },
            // add, sub and others of a register with 8 bits.
            [0x48 | 0x49, 0x83, 0xc0..=0xff, ..] => 4,
            // mov of a number to the top of the stack.
            [0x48, 0xc7, 0x04, 0x24, ..] => 8,
            // mov, xor of registers; mov of a number to a register.
            [0x89 | 0x31, 0xc0..=0xff, ..] => 2,
            [0x41 | 0x44 | 0x45, 0x89 | 0x31, 0xc0..=0xff, ..] => 3,
            [0xb8..=0xbf, ..] => 5,
            [0x41, 0xb8..=0xbf, ..] => 6,
            _ => return None,
        };
    }
    (at == code.len()).then_some(out)
}

/// Changes the mask in the context of a stopped call, which is in force when the handler returns. Returns the result of the
/// call.
///
/// # Safety
///
/// The addresses are those of sets, or null: the C library's, which checks nothing either.
pub unsafe fn change(mask: &mut u64, how: usize, set: usize, old: usize) -> usize {
    let before = *mask;
    if set != 0 {
        // SAFETY: the caller's promise.
        let set = unsafe { (set as *const u64).read_unaligned() } & !crate::signals::OURS;
        *mask = match how as c_int {
            libc::SIG_BLOCK => before | set,
            libc::SIG_UNBLOCK => before & !set,
            _ => set,
        };
    }
    if old != 0 {
        // SAFETY: the caller's promise.
        unsafe { (old as *mut u64).write_unaligned(before) };
    }
    0
}

/// Replaces the calls of the C library. Called while the process has one thread.
///
/// # Errors
/// When its code cannot be changed.
pub fn start() -> Result<(), Errno> {
    let code = code_of(sys::next_definition(c"pthread_sigmask")).ok_or(Errno::NOENT)?;
    let size = (BETWEEN_MAX + stub().len() + JUMP_BYTES).next_multiple_of(16);
    let page = &raw const overspill_mask_stubs as usize;
    let places = places(&code);
    let reach =
        (places.len() * size <= ROOM) && page.abs_diff(code.start).max(page.abs_diff(code.end)) < i32::MAX as usize;
    if places.is_empty() || !reach {
        return Err(Errno::NOEXEC);
    }
    let protect = |range: Range<usize>, prot| {
        let (start, end) = (range.start & !(PAGE_SIZE - 1), range.end.next_multiple_of(PAGE_SIZE));
        // SAFETY: code keeps its protection, or gets more.
        unsafe { sys::on_range(Sysno::mprotect, start, end - start, prot) }
    };
    const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;
    protect(page..page + ROOM, CODE | libc::PROT_WRITE)?;
    protect(code.clone(), CODE | libc::PROT_WRITE)?;
    for (n, Place { at: place, between }) in places.into_iter().enumerate() {
        let at = page + n * size;
        // SAFETY: 1. there is room for so many; 2. nobody runs this code now: the process has one thread; 3. the place is five
        // bytes that were one instruction, and a jump to its first byte finds another.
        unsafe {
            let between = std::slice::from_raw_parts((place + NUMBER.len()) as *const u8, between);
            let Some(first) = moved(between, at.wrapping_sub(place + NUMBER.len())) else {
                ((place + 1) as *mut u32).write_unaligned(seccomp::MASK as u32);
                continue;
            };
            let body = at + first.len();
            let back = body + stub().len();
            std::ptr::copy_nonoverlapping(first.as_ptr(), at as *mut u8, first.len());
            std::ptr::copy_nonoverlapping(stub().as_ptr(), body as *mut u8, stub().len());
            let next = place + NUMBER.len() + between.len() + SYSCALL.len();
            (back as *mut [u8; JUMP_BYTES]).write_unaligned(jump(back, next));
            (place as *mut [u8; JUMP_BYTES]).write_unaligned(jump(place, at));
        }
    }
    protect(code, CODE)?;
    protect(page..page + ROOM, CODE)?;
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
            let result = unsafe { change(&mut mask, how as usize, &raw const set as usize, &raw mut before as usize) };
            (result, mask, before)
        };
        assert_eq!(result(1, libc::SIG_BLOCK), (0, 0b111, 1));
        assert_eq!(result(0b11, libc::SIG_UNBLOCK), (0, 1, 0b11));
        assert_eq!(result(8, libc::SIG_SETMASK), (0, 0b110, 8));
    }

    #[test]
    fn instructions_are_moved_or_refused() {
        // lea rsi, [rip + 16]; sub rsp, 8
        let code = [0x48, 0x8d, 0x35, 16, 0, 0, 0, 0x48, 0x83, 0xec, 8];
        let mut expected = code;
        expected[3..7].copy_from_slice(&(-240i32).to_le_bytes());
        assert_eq!(moved(&code, 256).unwrap(), expected);
        // mov qword ptr [rsp], 32
        let store = [0x48, 0xc7, 0x04, 0x24, 32, 0, 0, 0];
        assert_eq!(moved(&store, 7).unwrap(), store);
        assert_eq!(moved(&[], 7), Some(vec![]));
        assert_eq!(moved(&[0xe8, 1, 2, 3, 4], 7), None, "a call");
        assert_eq!(moved(&code[..10], 7), None, "cut off");
    }

    #[test]
    fn jumps_reach_both_ways() {
        assert_eq!(jump(0x1000, 0x1005), [JUMP, 0, 0, 0, 0]);
        assert_eq!(jump(0x2000, 0x1000), [JUMP, 0xfb, 0xef, 0xff, 0xff]);
    }

    #[test]
    fn the_c_library_has_places_to_replace() {
        let code = code_of(sys::next_definition(c"pthread_sigmask")).unwrap();
        let places = places(&code);
        assert!((5..60).contains(&places.len()), "{}", places.len());
        assert!(stub().len() < 120);
    }
}
