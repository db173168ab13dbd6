//! Calls that come by a function of the C library's: made safe without being stopped.
//!
//! A stopped call costs two signals, some microseconds. But what a program calls mostly are
//! functions of the C library's, and they can be interposed. So the functions of [`crate::calls`]
//! prepare a call as the handler of SIGSYS does, by the same code ([`super::data`],
//! [`super::structures`]) and with the same buffers, then call the C library's function with what
//! was prepared, and finish it. That function makes the call, and so it is a cancellation point, is
//! restarted, interrupted and left by siglongjmp as ever. A call that is left keeps its buffer,
//! which is found again as that of a stopped call is ([`super::bounce`]).
//!
//! 1. The function looks at its pointers: none in the window, and it jumps on to the C library's.
//!    That costs 1 ns.
//! 2. [`overspill_around`] makes a [`Frame`] and has the call prepared ([`begin`]). What cannot be
//!    prepared (memory that the program may not access, too many elements) goes to the C library's
//!    function as it came, and is stopped; and so does what another library has by that name.
//! 3. It calls the function, has the result looked at ([`end`]), and does so again for the next
//!    part of a large buffer.
//!
//! Between preparation and end there is no frame of Rust's on the stack, which a cancellation could
//! not unwind; in all there are some 200 bytes of it during the call. No locks.

use super::record::{Next, Record};
use super::{bounce, structures, way};
use crate::memory::vectors::{FILE_VECTORS, look_at_call, looking};
use crate::sys::failure;
use crate::{pool, remote, sys};
use std::arch::global_asm;
use std::ffi::{CStr, c_int, c_void};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// What a function returns, and what its first argument is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prototype {
    /// A number of bytes.
    Long,
    /// An int.
    Int,
    /// A number of bytes; the first argument is a stream in place of its descriptor.
    Stream,
}

/// Longest name of a function, with its end.
const NAME_MAX: usize = 24;

/// A function of the C library's that makes one system call with its arguments.
#[repr(C)]
#[derive(Debug)]
pub struct Function {
    /// Where it is, 0 before it was looked for.
    address: AtomicUsize,
    /// Here, and not elsewhere: the loader relocates each address, in pages that each process
    /// writes to for that.
    name: [u8; NAME_MAX],
    /// The system call.
    number: i64,
    /// How many of its arguments are the call's.
    arguments: usize,
    kind: Prototype,
    /// Whether it is somebody else's by that name, of which nothing is known.
    foreign: AtomicBool,
}

/// Where a function's address stands.
pub const ADDRESS: usize = offset_of!(Function, address);

impl Function {
    /// The function `name`, which makes the call `number` with its first so many arguments.
    pub const fn new(name: &CStr, number: i64, arguments: usize, kind: Prototype) -> Function {
        let bytes = name.to_bytes_with_nul();
        let mut name = [0; NAME_MAX];
        name.split_at_mut(bytes.len()).0.copy_from_slice(bytes);
        Function {
            address: AtomicUsize::new(0),
            name,
            number,
            arguments,
            kind,
            foreign: AtomicBool::new(false),
        }
    }

    fn name(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.name).unwrap_or_default()
    }

    /// Looks for the C library's definition. Returns its address, 0 if there is none.
    pub fn find(&self) -> usize {
        let mut address = self.address.load(Relaxed);
        if address == 0 {
            address = sys::next_definition(self.name());
            self.foreign.store(!is_c_librarys(address), Relaxed);
            self.address.store(address, Relaxed);
        }
        address
    }
}

/// What is looked for: the addresses of the library that contains one.
struct Library {
    contains: usize,
    found: Range<usize>,
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, library: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid entry, and `library` its Library.
    unsafe {
        let (info, library) = (&*info, &mut *library.cast::<Library>());
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize);
        let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let start =
            loaded().map(|header| (info.dlpi_addr + header.p_vaddr) as usize).min().unwrap_or(0);
        let end = loaded()
            .map(|header| (info.dlpi_addr + header.p_vaddr + header.p_memsz) as usize)
            .max()
            .unwrap_or(0);
        let found = (start..end).contains(&library.contains);
        if found {
            library.found = start..end;
        }
        c_int::from(found)
    }
}

/// The addresses of the library that contains one, from the first to the last.
fn library(contains: usize) -> Range<usize> {
    let mut library = Library { contains, found: 0..0 };
    // SAFETY: the function is called with the Library, during the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut library).cast()) };
    library.found
}

/// Whether a function is the C library's, which before glibc 2.34 is two.
fn is_c_librarys(function: usize) -> bool {
    static LIBRARIES: OnceLock<[Range<usize>; 2]> = OnceLock::new();
    let libraries = LIBRARIES.get_or_init(|| {
        let known = [c"gnu_get_libc_version", c"pthread_create"];
        known.map(|name| match sys::c_librarys_definition(name) {
            0 => 0..0,
            known => library(known),
        })
    });
    libraries.iter().any(|library| library.contains(&function))
}

/// A call that is under way.
#[repr(C)]
struct Frame {
    record: Record,
    /// The function's arguments.
    arguments: [usize; 6],
    /// Those that it is called with.
    call: [usize; 6],
    result: isize,
    function: &'static Function,
}

/// What is to be done next.
const DIRECT: u32 = 0;
const CALL: u32 = 1;
const RESULT: u32 = 2;

/// Bytes of the frame on the stack, which is 8 bytes short of a multiple of 16 when a function
/// begins.
const FRAME: usize = size_of::<Frame>().next_multiple_of(16) + 8;

// Arguments as for the function; its `Function` in r11.
global_asm!(
    ".pushsection .text.overspill_around,\"ax\",@progbits",
    ".hidden overspill_around",
    ".globl overspill_around",
    ".type overspill_around, @function",
    "overspill_around:",
    ".cfi_startproc",
    "sub rsp, {frame}",
    ".cfi_adjust_cfa_offset {frame}",
    "mov [rsp + {arguments}], rdi",
    "mov [rsp + {arguments} + 8], rsi",
    "mov [rsp + {arguments} + 16], rdx",
    "mov [rsp + {arguments} + 24], rcx",
    "mov [rsp + {arguments} + 32], r8",
    "mov [rsp + {arguments} + 40], r9",
    "mov [rsp + {function}], r11",
    "mov rdi, rsp",
    "call {begin}",
    "cmp eax, {CALL}",
    "jb 3f",
    "ja 2f",
    "1:",
    "mov rdi, [rsp + {call}]",
    "mov rsi, [rsp + {call} + 8]",
    "mov rdx, [rsp + {call} + 16]",
    "mov rcx, [rsp + {call} + 24]",
    "mov r8, [rsp + {call} + 32]",
    "mov r9, [rsp + {call} + 40]",
    "mov r11, [rsp + {function}]",
    "xor eax, eax",
    "call [r11 + {address}]",
    "mov rdi, rsp",
    "mov rsi, rax",
    "call {end}",
    "cmp eax, {CALL}",
    "je 1b",
    "2:",
    "mov rax, [rsp + {result}]",
    "add rsp, {frame}",
    ".cfi_remember_state",
    ".cfi_adjust_cfa_offset -{frame}",
    "ret",
    "3:",
    ".cfi_restore_state",
    "mov rdi, [rsp + {arguments}]",
    "mov rsi, [rsp + {arguments} + 8]",
    "mov rdx, [rsp + {arguments} + 16]",
    "mov rcx, [rsp + {arguments} + 24]",
    "mov r8, [rsp + {arguments} + 32]",
    "mov r9, [rsp + {arguments} + 40]",
    "mov r11, [rsp + {function}]",
    "xor eax, eax",
    "add rsp, {frame}",
    ".cfi_adjust_cfa_offset -{frame}",
    "jmp [r11 + {address}]",
    ".cfi_endproc",
    ".popsection",
    frame = const FRAME,
    arguments = const offset_of!(Frame, arguments),
    call = const offset_of!(Frame, call),
    result = const offset_of!(Frame, result),
    function = const offset_of!(Frame, function),
    address = const ADDRESS,
    CALL = const CALL,
    begin = sym begin,
    end = sym end,
);

unsafe extern "C" {
    /// Makes the call of a function; jumped to with its arguments, and its [`Function`] in r11.
    pub fn overspill_around();
}

/// The descriptor of a stream, at its place in glibc's ABI.
fn descriptor(stream: usize) -> usize {
    const FILENO: usize = 112;
    // SAFETY: glibc passes its stream.
    unsafe { ((stream + FILENO) as *const i32).read() as usize }
}

/// Prepares a call.
extern "C" fn begin(frame: &mut Frame) -> u32 {
    let &Function { number, arguments: count, kind, .. } = frame.function;
    if frame.function.find() == 0 {
        sys::missing(frame.function.name());
    }
    remote::look_at_call(number);
    if !looking() || frame.function.foreign.load(Relaxed) {
        return DIRECT;
    }
    let mut arguments = [0; 6];
    arguments[..count].copy_from_slice(&frame.arguments[..count]);
    match number {
        libc::SYS_recvmmsg | libc::SYS_sendmmsg => arguments[2] = arguments[2] as u32 as usize,
        // The number of elements is an int, and less than none the kernel's affair.
        _ if FILE_VECTORS.contains(&number) => match arguments[2] as i32 {
            elements @ 0.. => arguments[2] = elements as usize,
            _ => return DIRECT,
        },
        _ => {}
    }
    // What the pointers point to may name managed memory where they are not managed themselves.
    let mut marked = arguments;
    look_at_call(number, &mut marked);
    if marked == arguments && !arguments.iter().any(|argument| pool::is_stopped(*argument)) {
        return DIRECT;
    }
    if kind == Prototype::Stream {
        arguments[0] = descriptor(arguments[0]);
    }
    frame.record = Record::new(number as usize, arguments);
    frame.call = frame.arguments;
    let prepared = way::copy(&mut frame.record, arguments).or_else(|| {
        structures::paths(number)
            .and_then(|list| structures::begin(&mut frame.record, list, arguments))
    });
    match prepared {
        Some(next) => go_on(frame, next),
        None => {
            bounce::release(&mut frame.record);
            frame.arguments[..count].copy_from_slice(&marked[..count]);
            DIRECT
        }
    }
}

/// Looks at the result of a call.
extern "C" fn end(frame: &mut Frame, result: isize) -> u32 {
    let result =
        if frame.function.kind == Prototype::Int { result as i32 as isize } else { result };
    frame.record.result = if result == -1 { failure(sys::errno()) } else { result as usize };
    let next = match structures::paths(frame.function.number) {
        Some(list) => structures::finish(&mut frame.record, list),
        None => way::finish(&mut frame.record),
    };
    go_on(frame, next)
}

fn go_on(frame: &mut Frame, next: Next) -> u32 {
    match next {
        Next::Call(arguments) => {
            let first = usize::from(frame.function.kind == Prototype::Stream);
            let last = frame.function.arguments;
            frame.call[first..last].copy_from_slice(&arguments[first..last]);
            CALL
        }
        Next::Result(result) => {
            bounce::release(&mut frame.record);
            frame.result = sys::to_c(sys::check(result));
            RESULT
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_told_by_their_library() {
        assert!(
            is_c_librarys(sys::next_definition(c"read"))
                && is_c_librarys(sys::next_definition(c"_IO_file_read"))
        );
        assert!(
            !is_c_librarys(functions_are_told_by_their_library as *const () as usize)
                && !is_c_librarys(0)
        );
    }
}
