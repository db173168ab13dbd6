//! Code of ours that the executable jumps to, where it makes a system call whose number comes from
//! elsewhere ([`crate::inline`]).
//!
//! A jump takes five bytes and a `syscall` two. So the jump also takes the place of instructions
//! before it or behind it, and the stub is: do what came before, replace the number if it is one
//! that the engine must see, make the call, do what followed, and jump back. It needs no registers,
//! and a `syscall` keeps no flags.
//!
//! The stubs lie below the executable, where a jump reaches them.

use crate::code::{JUMP_BYTES, SYSCALL, jump, moved};
use crate::{image, sys};
use overspill_os::{Errno, PAGE_SIZE, seccomp};
use std::ops::Range;
use std::sync::OnceLock;
use syscalls::Sysno;

/// Bytes for stubs: 80 or so.
const ROOM: usize = 2 * PAGE_SIZE;
/// Distance between two.
const STUB: usize = 96;
/// Which numbers are replaced, a bit each, is said where the room begins.
const NUMBERS: usize = 1024;
const TABLE: usize = NUMBERS / 8;
/// How far below the executable room is looked for, and in which steps.
const BELOW: usize = 1 << 30;
const STEP: usize = 64 << 10;

/// Room for stubs, reserved with the first call; None where there is none.
pub fn room() -> Option<Range<usize>> {
    static PLACE: OnceLock<Option<usize>> = OnceLock::new();
    let start = *PLACE.get_or_init(|| reserve_below(image::executable()?.start));
    start.map(|start| start..start + ROOM)
}

fn reserve_below(end: usize) -> Option<usize> {
    let lowest = end.saturating_sub(BELOW).max(STEP);
    let mut places = (lowest..end.saturating_sub(ROOM)).rev().step_by(STEP);
    places.find_map(|at| {
        let at = at & !(PAGE_SIZE - 1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is replaced.
        let start = unsafe { sys::mmap(at, ROOM, libc::PROT_NONE, flags, -1, 0).ok()? };
        if start != at {
            // A kernel that takes the address for a hint. SAFETY: the range is nobody else's.
            let _ = unsafe { sys::on_range(Sysno::munmap, start, ROOM, 0) };
        }
        (start == at).then_some(at)
    })
}

/// Code that a jump to a stub takes the place of: a `syscall`, or what takes its number from a
/// register, up to the `syscall` or what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its address.
    pub at: usize,
    /// Bytes before the `syscall`.
    pub before: usize,
    /// Bytes behind it.
    pub behind: usize,
}

impl Call {
    /// Its bytes.
    fn code(&self) -> &'static [u8] {
        let len = self.before + SYSCALL.len() + self.behind;
        // SAFETY: code of the executable.
        unsafe { std::slice::from_raw_parts(self.at as *const u8, len) }
    }

    /// The stub for it at an address, if there is one.
    fn stub(&self, at: usize, table: usize, code: &[u8]) -> Option<Vec<u8>> {
        let (before, rest) = code.split_at(self.before);
        let behind = rest.strip_prefix(&SYSCALL)?;
        let mut stub = moved(before, at.wrapping_sub(self.at))?;
        // cmp rax, NUMBERS; jae to the syscall.
        stub.extend([0x48, 0x3d]);
        stub.extend((NUMBERS as u32).to_le_bytes());
        stub.extend([0x73, 14]);
        // bt [table], eax; jnc to the syscall.
        stub.extend([0x0f, 0xa3, 0x05]);
        let next = at + stub.len() + size_of::<i32>();
        stub.extend((table.wrapping_sub(next) as i32).to_le_bytes());
        stub.extend([0x73, 5]);
        // or eax, FOREIGN.
        stub.push(0x0d);
        stub.extend((seccomp::FOREIGN as u32).to_le_bytes());
        stub.extend(SYSCALL);
        stub.extend(behind);
        stub.extend(jump(at + stub.len(), self.at + code.len()));
        (stub.len() <= STUB).then_some(stub)
    }
}

/// Replaces each of these calls by a jump to a stub. Called while the process has one thread.
/// `write` puts bytes of the executable's code in place of others.
///
/// # Errors
/// Those of mprotect(2).
pub fn put(
    calls: &[Call],
    is_replaced: impl Fn(u32) -> bool,
    write: impl Fn(usize, &[u8], &[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let Some(room) = room().filter(|_| !calls.is_empty()) else { return Ok(()) };
    let protect = |prot| {
        // SAFETY: the range is ours.
        unsafe { sys::on_range(Sysno::mprotect, room.start, ROOM, prot) }
    };
    protect(libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: it can be written, and nobody else knows of it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(room.start as *mut u8, ROOM) };
    for number in (0..NUMBERS).filter(|number| is_replaced(*number as u32)) {
        bytes[number / 8] |= 1 << (number % 8);
    }
    let offsets = (TABLE..ROOM - STUB).step_by(STUB);
    let mut jumps = Vec::new();
    for (call, offset) in calls.iter().zip(offsets) {
        let (at, code) = (room.start + offset, call.code());
        if let Some(stub) = call.stub(at, room.start, code) {
            bytes[offset..offset + stub.len()].copy_from_slice(&stub);
            jumps.push((call.at, &code[..JUMP_BYTES], jump(call.at, at)));
        }
    }
    protect(libc::PROT_READ | libc::PROT_EXEC)?;
    jumps.iter().try_for_each(|(at, code, jump)| write(*at, code, jump))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_within_reach_of_the_executable() {
        let (room, executable) = (room().unwrap(), image::executable().unwrap());
        assert!(room.end <= executable.start && executable.code.end - room.start < 1 << 31);
        assert_eq!(super::room(), Some(room));
    }

    #[test]
    fn a_stub_replaces_a_number_and_goes_on_behind() {
        let (at, table) = (0x1_0000, 0xf000);
        // mov eax, r15d; syscall; cmp rax, -4095.
        let code = [0x44, 0x89, 0xf8, 0x0f, 0x05, 0x48, 0x3d, 1, 0xf0, 0xff, 0xff];
        let call = Call { at: 0x2_0000, before: 3, behind: 6 };
        let stub = call.stub(at, table, &code).unwrap();
        assert_eq!(stub[..3], code[..3]);
        let distance = i32::from_le_bytes(stub[14..18].try_into().unwrap());
        assert_eq!(at.wrapping_add_signed(distance as isize) + 18, table);
        // Both jumps lead to the `syscall`.
        let lead = |from: usize| from + 2 + usize::from(stub[from + 1]);
        assert_eq!((stub[9], stub[18], lead(9), lead(18)), (0x73, 0x73, 25, 25));
        assert_eq!(stub[25..33], code[3..]);
        assert_eq!(stub[33..], jump(at + 33, 0x2_0000 + code.len()));
        // What is not known cannot be moved, nor what is none.
        assert_eq!(call.stub(at, table, &[&[0xe8, 1, 2], &code[3..]].concat()), None);
        assert_eq!(call.stub(at, table, &[0x90; 11]), None);
    }
}
