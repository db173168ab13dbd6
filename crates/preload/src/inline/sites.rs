//! Where the executable's code makes system calls that the engine must see.
//!
//! - A number is loaded shortly before the `syscall`. Between the two are only instructions that
//!   leave it alone and lead straight on ([`step`]). Who jumps in between has loaded another.
//! - It comes from elsewhere: it is an argument of a function that makes any call (`syscall` of a C
//!   library, Go's `Syscall6`), or kept in a register. What follows the `syscall` tells that it is
//!   one ([`ASKED`]), and makes room for a jump beside it. For rt_sigprocmask(2), without which
//!   others may end the program, what takes it from a register will do as well.
//!
//! The code is read from its file: what was read in memory would count as the program's from then
//! on.

use crate::code::{SYSCALL, is_jumped_to, syscalls};
use crate::image;
use crate::signals::masks;
use crate::stubs::Call;
use crate::sys;
use syscalls::Sysno;

/// `mov eax, number` and `mov rax, number`: what comes before the number, of 32 bits.
const LOADS: [&[u8]; 2] = [&[0xb8], &[0x48, 0xc7, 0xc0]];
const NUMBER_BYTES: usize = 4;
/// `xor eax, eax` and `mov al, 56`: clone(2) in musl.
const CLONE_BY_BYTE: [u8; 4] = [0x31, 0xc0, 0xb0, 56];
/// `xor eax, eax`: read(2), which nobody has to see.
const ZERO: [u8; 2] = [0x31, 0xc0];
/// How far before a `syscall` its number is looked for.
const BEFORE_MAX: usize = 48;

/// What may follow a `syscall` whose number is not known: whether it has failed is asked (`cmp rax`
/// with -4095 or -4096, `cmp eax`). It says as well that this is a `syscall` and no data.
const ASKED: [&[u8]; 3] = [
    &[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff],
    &[0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff],
    &[0x3d, 0x00, 0xf0, 0xff, 0xff],
];
/// The same in musl: `mov rdi, rax`, and a call of who asks.
const HANDED_ON: [u8; 3] = [0x48, 0x89, 0xc7];
const CALL: u8 = 0xe8;

/// What of the code is read at a time, and how much of it before and behind a `syscall` is looked
/// through for jumps.
const CHUNK: usize = 256 << 10;
const AROUND: usize = 32 << 10;

/// Something in the code that is to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// A number of four bytes, and where it stands.
    Number {
        /// Its address.
        at: usize,
        /// Which it is.
        number: u32,
    },
    /// The number of clone(2), of one byte.
    CloneByte {
        /// Its address.
        at: usize,
    },
    /// A `syscall` whose number comes from elsewhere.
    Call(Call),
}

impl Site {
    /// The same in code that begins at an address.
    fn moved(self, start: usize) -> Site {
        match self {
            Site::Number { at, number } => Site::Number { at: start + at, number },
            Site::CloneByte { at } => Site::CloneByte { at: start + at },
            Site::Call(call) => Site::Call(Call { at: start + call.at, ..call }),
        }
    }
}

/// Bytes of the operand of an instruction that names memory or a register, with its first byte;
/// None where it may name rax. `rex` is the prefix, 0 for none.
fn operand(code: &[u8], rex: u8) -> Option<usize> {
    let form = *code.first()?;
    let (mode, register, base) = (form >> 6, form >> 3 & 7, form & 7);
    let is_rax = |register: u8, bit: u8| register == 0 && rex & bit == 0;
    const REGISTER: u8 = 4;
    const INDEX: u8 = 2;
    const BASE: u8 = 1;
    if is_rax(register, REGISTER) {
        return None;
    }
    let (mut len, mut base_of) = (1, base);
    if mode != 3 && base == 4 {
        let scaled = *code.get(1)?;
        base_of = scaled & 7;
        if is_rax(scaled >> 3 & 7, INDEX) {
            return None;
        }
        len += 1;
    }
    if is_rax(base_of, BASE) {
        return None;
    }
    len += match mode {
        0 if base_of == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(len)
}

/// Bytes of an instruction that has nothing to do with rax and goes on to the next; None for what
/// is not known to.
fn step(code: &[u8]) -> Option<usize> {
    const WIDE: u8 = 8;
    let rex = *code.first().filter(|byte| **byte & 0xf0 == 0x40).unwrap_or(&0);
    let prefix = usize::from(rex != 0);
    let code = &code[prefix..];
    let not_rax = |register: u8| register & 7 != 0 || rex & 1 != 0;
    let len = match *code {
        // nop.
        [0x90, ..] if rex == 0 => 1,
        // mov, lea, movsxd, and calculations of registers and memory.
        [0x89 | 0x8b | 0x8d | 0x63, ..] => 1 + operand(&code[1..], rex)?,
        [0x01 | 0x03 | 0x09 | 0x0b | 0x21 | 0x23 | 0x29 | 0x2b | 0x31 | 0x33, ..] => {
            1 + operand(&code[1..], rex)?
        }
        // movzx, movsx.
        [0x0f, 0xb6 | 0xb7 | 0xbe | 0xbf, ..] => 2 + operand(&code[2..], rex)?,
        // mov of a number to a register.
        [load @ 0xb8..=0xbf, ..] if not_rax(load) => 1 + if rex & WIDE != 0 { 8 } else { 4 },
        [0xc7, form @ 0xc0..=0xc7, ..] if not_rax(form) => 2 + 4,
        // Calculations of a register and a number.
        [0x83, form @ 0xc0..=0xff, ..] if not_rax(form) => 2 + 1,
        [0x81, form @ 0xc0..=0xff, ..] if not_rax(form) => 2 + 4,
        _ => return None,
    };
    Some(prefix + len)
}

/// Whether instructions lead straight from one place to another.
fn leads(code: &[u8], mut from: usize, to: usize) -> bool {
    while from < to {
        let Some(len) = code.get(from..).and_then(step) else { return false };
        from += len;
    }
    from == to
}

/// The number that is loaded for a `syscall`, and where.
fn loaded(code: &[u8], syscall: usize) -> Option<(usize, u32)> {
    let first = syscall.saturating_sub(BEFORE_MAX);
    let last = syscall.checked_sub(NUMBER_BYTES)?;
    (first..=last).rev().find_map(|at| {
        let before = &code[..at];
        let is_load = LOADS.iter().any(|load| before.ends_with(load));
        // With this prefix it is another register.
        let is_other = |byte: &u8| byte & 0xf1 == 0x41;
        let is_plain = before.ends_with(LOADS[0]);
        if !is_load || is_plain && at >= 2 && is_other(&code[at - 2]) {
            return None;
        }
        let number = u32::from_le_bytes(code[at..at + NUMBER_BYTES].try_into().ok()?);
        leads(code, at + NUMBER_BYTES, syscall).then_some((at, number))
    })
}

/// Whether instructions lead straight to a `syscall` from some bytes before it; where these end.
fn straight_from(code: &[u8], syscall: usize, bytes: &[u8]) -> Option<usize> {
    let first = syscall.saturating_sub(BEFORE_MAX);
    let at = code[first..syscall].windows(bytes.len()).rposition(|found| found == bytes)?;
    let end = first + at + bytes.len();
    leads(code, end, syscall).then_some(end)
}

/// What is to be replaced for a `syscall`, if the engine must see it.
fn site(code: &[u8], syscall: usize, is_replaced: impl Fn(u32) -> bool) -> Option<Site> {
    if let Some(end) = straight_from(code, syscall, &CLONE_BY_BYTE) {
        return Some(Site::CloneByte { at: end - 1 });
    }
    if let Some((at, number)) = loaded(code, syscall) {
        return is_replaced(number).then_some(Site::Number { at, number });
    }
    if let Some(at) = masks::from_register(code, syscall) {
        return Some(Site::Call(Call { at, before: syscall - at, behind: 0 }));
    }
    let is_zero = straight_from(code, syscall, &ZERO).is_some();
    let behind = syscall + SYSCALL.len();
    let rest = code.get(behind..)?;
    let asked = ASKED.iter().find(|bytes| rest.starts_with(bytes)).map(|bytes| bytes.len());
    let is_handed_on = || rest.starts_with(&HANDED_ON) && rest.get(HANDED_ON.len()) == Some(&CALL);
    let taken = asked.or_else(|| is_handed_on().then_some(HANDED_ON.len()))?;
    let call = Call { at: syscall, before: 0, behind: taken };
    (!is_zero && !is_jumped_to(code, behind)).then_some(Site::Call(call))
}

/// Room for code, which goes when it has been looked at: pages of the heap would stay.
struct CodeRoom {
    start: usize,
    len: usize,
}

impl CodeRoom {
    fn new(len: usize) -> Option<CodeRoom> {
        const PROT: i32 = libc::PROT_READ | libc::PROT_WRITE;
        const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: nothing is replaced.
        let start = unsafe { sys::mmap(0, len, PROT, FLAGS, -1, 0).ok()? };
        Some(CodeRoom { start, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is ours, and can be written.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.len) }
    }
}

impl Drop for CodeRoom {
    fn drop(&mut self) {
        // SAFETY: nobody else knows of it.
        let _ = unsafe { sys::on_range(Sysno::munmap, self.start, self.len, 0) };
    }
}

/// The code of an executable, read from its file, and what is to be replaced in it: calls with
/// these numbers.
pub fn find(executable: &image::Executable, is_replaced: impl Fn(u32) -> bool + Copy) -> Vec<Site> {
    let mut found = Vec::new();
    let code = executable.code.clone();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(image::file(), flags, rustix::fs::Mode::empty()) else {
        return found;
    };
    let Some(mut buffer) = CodeRoom::new(CHUNK.min(code.len())) else { return found };
    let bytes = buffer.bytes();
    let mut done = 0;
    while done < code.len() {
        let wanted = bytes.len().min(code.len() - done);
        let from = (executable.offset + done) as u64;
        let Ok(len) = rustix::io::pread(&file, &mut bytes[..wanted], from) else { break };
        let is_last = len < CHUNK || done + len == code.len();
        // What is near an edge is looked at with what lies beyond it.
        let first = if done == 0 { 0 } else { AROUND };
        let looked_at = first..if is_last { len } else { len - AROUND };
        let chunk = &bytes[..len];
        let calls = syscalls(chunk).filter(|at| looked_at.contains(at));
        let sites = calls.filter_map(|at| site(chunk, at, is_replaced));
        found.extend(sites.map(|site| site.moved(code.start + done)));
        if is_last {
            break;
        }
        done += len - 2 * AROUND;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in code that ends with a `syscall`.
    fn found(code: &[u8]) -> Option<(usize, u32)> {
        let code = [code, &[0x0f, 0x05, 0xc3]].concat();
        match site(&code, code.len() - 3, |number| [9, 56, 158].contains(&number))? {
            Site::Number { at, number } => Some((at, number)),
            Site::CloneByte { at } => Some((at, 56)),
            Site::Call(_) => panic!("nothing says that this is one"),
        }
    }

    /// The same with what follows the `syscall`.
    fn call(code: &[u8], behind: &[u8]) -> Option<Site> {
        let whole = [code, &[0x0f, 0x05], behind].concat();
        site(&whole, code.len(), |number| number == 9)
    }

    #[test]
    fn numbers_are_found_where_instructions_lead_straight_on() {
        // mov eax, 9; and mov rax, 158.
        assert_eq!(found(&[0xb8, 9, 0, 0, 0]), Some((1, 9)));
        assert_eq!(found(&[0x48, 0xc7, 0xc0, 158, 0, 0, 0]), Some((3, 158)));
        // mov r9d, [rsp + 36]; mov eax, 9; mov edi, esi; xor edx, edx; mov r10d, 34; lea rsi,
        // [rdi + 8 * rcx]; mov r8, -1.
        let call = [
            &[0x44, 0x8b, 0x4c, 0x24, 0x24, 0xb8, 9, 0, 0, 0, 0x89, 0xf7, 0x31, 0xd2][..],
            &[0x41, 0xba, 34, 0, 0, 0, 0x48, 0x8d, 0x34, 0xcf],
            &[0x49, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff],
        ]
        .concat();
        assert_eq!(found(&call), Some((6, 9)));
        // Another call, another register, and the number of 64 bits.
        assert_eq!(found(&[0xb8, 1, 0, 0, 0]), None);
        assert_eq!(found(&[0x41, 0xb8, 9, 0, 0, 0]), None);
        assert_eq!(found(&[0x48, 0xb8, 9, 0, 0, 0, 0, 0, 0, 0]), None);
        // A jump, a call, and what reads or changes rax.
        for between in [
            &[0xeb, 0][..],
            &[0x74, 0],
            &[0xe8, 0, 0, 0, 0],
            &[0x89, 0xc2],
            &[0x31, 0xc0],
            &[0x48, 0x83, 0xc0, 1],
            &[0x8b, 0x10],
            &[0x8b, 0x14, 0x07],
            &[0xb8, 1, 0, 0, 0],
            &[0x90, 0x66],
        ] {
            let code = [&[0xb8, 9, 0, 0, 0][..], between].concat();
            assert_eq!(found(&code), None, "{between:x?}");
        }
        // A byte, as in musl: mov r11, rdi between.
        assert_eq!(found(&[0x31, 0xc0, 0xb0, 56, 0x49, 0x89, 0xfb]), Some((3, 56)));
        assert_eq!(found(&[0x31, 0xc0, 0xb0, 57]), None);
        // r8 is not rax.
        assert_eq!(found(&[0xb8, 9, 0, 0, 0, 0x4d, 0x89, 0xc0]), Some((1, 9)));
    }

    #[test]
    fn numbers_from_elsewhere_are_found_by_what_follows() {
        // mov rax, rdi; mov r9, [rsp + 8]; syscall; cmp rax, -4095; jae; as in glibc.
        let before = [0x48, 0x89, 0xf8, 0x4c, 0x8b, 0x4c, 0x24, 0x08];
        let asked = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 0x01, 0xc3];
        let taken = |behind| Some(Site::Call(Call { at: before.len(), before: 0, behind }));
        assert_eq!(call(&before, &asked), taken(6));
        assert_eq!(call(&before, &asked[1..]), None, "cmp eax is with -4096");
        let asked_short = [0x3d, 0x00, 0xf0, 0xff, 0xff];
        assert_eq!(call(&before, &asked_short), taken(5));
        // mov rdi, rax; call: as in musl.
        let handed_on = [0x48, 0x89, 0xc7, 0xe8, 1, 2, 3, 4];
        assert_eq!(call(&before, &handed_on), taken(3));
        assert_eq!(call(&before, &handed_on[..3]), None);
        // Nothing that is known follows.
        assert_eq!(call(&before, &[0xc3; 8]), None);
        // It is known what the number is.
        assert_eq!(call(&[0xb8, 1, 0, 0, 0], &asked), None);
        assert_eq!(call(&[0x31, 0xc0], &asked), None);
        assert_eq!(call(&[0xb8, 9, 0, 0, 0], &asked), Some(Site::Number { at: 1, number: 9 }));
        // mov r15d, 14; mov eax, r15d; mov rdx, r8; syscall: as glibc makes a thread.
        let kept = [0x41, 0xbf, 14, 0, 0, 0, 0x44, 0x89, 0xf8, 0x4c, 0x89, 0xc2];
        let from_register = Call { at: 6, before: 6, behind: 0 };
        assert_eq!(call(&kept, &[0xc3; 8]), Some(Site::Call(from_register)));
        // Somebody jumps to what would be taken along, from behind and from before.
        let back = [&asked[..6], &[0xeb, 0xf8]].concat();
        assert_eq!(call(&before, &back), None);
        let over = [&[0xe9, 10, 0, 0, 0][..], &before].concat();
        assert_eq!(call(&over, &asked), None);
    }

    #[test]
    fn the_executable_is_read_as_it_is_in_memory() {
        let executable = image::executable().unwrap();
        let own = the_executable_is_read_as_it_is_in_memory as *const () as usize;
        assert!(executable.code.contains(&own) && executable.has_libraries);
        for site in find(&executable, |_| true) {
            // SAFETY: code of this program.
            unsafe {
                match site {
                    Site::Number { at, number } => {
                        assert_eq!((at as *const u32).read_unaligned(), number);
                    }
                    Site::CloneByte { at } => assert_eq!((at as *const u8).read(), 56),
                    Site::Call(call) => {
                        assert_eq!(((call.at + call.before) as *const [u8; 2]).read(), [0x0f, 5])
                    }
                }
            }
        }
    }
}
