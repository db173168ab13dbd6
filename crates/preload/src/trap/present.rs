//! Calls whose pages are made present: paths, structures that are only read, everything that is not
//! known.
//!
//! Made again after EFAULT, with more pages around each address, since a page may have left
//! meanwhile and since it is not known how far the kernel reads. EFAULT says that the call has done
//! nothing; calls for which that is not so are elsewhere ([`super::structures`], [`super::data`]).
//!
//! Not covered: a call that needs its sixth argument ([`has_sixth`]) and is handed more memory than
//! the program may access fails, also where the kernel would not get as far as that.

use super::record::{NEVER, Next, ON_FAULT, Record, untag};
use crate::memory::strings;
use crate::memory::touch::{SYS_IO_PGETEVENTS, follow, follows, touch};
use crate::memory::vectors::VECTOR_MAX;
use crate::pool::KernelAccess;
use crate::sys::failure;
use crate::{memory, pool};
use overspill_os::{PAGE_SIZE, seccomp};

/// Whether a call reads all of its sixth argument: such a call cannot be let through.
pub fn has_sixth(number: usize, arguments: &[usize; 6]) -> bool {
    match number as i64 {
        // It says how long the fifth is, if there is one.
        libc::SYS_recvfrom | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => arguments[4] != 0,
        libc::SYS_pselect6
        | libc::SYS_process_vm_readv
        | libc::SYS_process_vm_writev
        | SYS_IO_PGETEVENTS => true,
        _ => false,
    }
}

/// Most requests that are looked at: the kernel takes fewer.
const REQUESTS_MAX: usize = 1 << 16;

/// Where nothing is mapped, and no filter looks.
pub const NOWHERE: usize = 64;

/// The call with its pages present.
pub fn call(record: &mut Record, mut arguments: [usize; 6]) -> Next {
    if has_sixth(record.number, &arguments) {
        // The kernel is to say what it says of memory that is not there.
        let is_nowhere = |at: usize| {
            pool::is_stopped(at) && pool::accessible(at..at + 1, KernelAccess::Read) == 0
        };
        arguments
            .iter_mut()
            .filter(|argument| is_nowhere(**argument))
            .for_each(|argument| *argument = NOWHERE);
        record.finish = NEVER;
        return match arguments.iter().any(|argument| pool::is_stopped(*argument)) {
            true => Next::Result(failure(libc::EFAULT)),
            false => Next::Call(arguments),
        };
    }
    let is_first = record.tries.is_first();
    let read = seccomp::arguments::addresses(record.number, &arguments);
    let is_read = |(n, argument): (usize, usize)| (read & 1 << n != 0).then_some(argument);
    let addresses = || arguments.into_iter().enumerate().filter_map(is_read);
    record.tries.touch(|pages| {
        // Also what begins before an annex and reaches into it.
        for argument in addresses() {
            let most = (pages - 1) * PAGE_SIZE;
            let is_managed = pool::contains(argument);
            let end = if is_managed { pool::end_of(argument) } else { usize::MAX };
            touch(argument, most.min(end - argument));
        }
        nested(record.number as i64, &arguments);
        if !is_first && follows(record.number as i64) {
            follow(record.number as i64, &arguments, pages);
        }
    });
    // What was touched first may have made room for the rest.
    addresses().for_each(|argument| touch(argument, 1));
    record.finish = if record.tries.are_over() { NEVER } else { ON_FAULT };
    Next::Call(seccomp::marked(record.number, arguments))
}

/// After EFAULT.
pub fn again(record: &mut Record) -> Next {
    let mut arguments = record.arguments;
    untag(&mut arguments);
    call(record, arguments)
}

/// Makes present what lies behind the arguments, as far as that can be read.
fn nested(number: i64, arguments: &[usize; 6]) {
    let [_, second, third, fourth, ..] = *arguments;
    match number {
        libc::SYS_execve => {
            touch_strings(second);
            touch_strings(third);
        }
        libc::SYS_execveat => {
            touch_strings(third);
            touch_strings(fourth);
        }
        libc::SYS_vmsplice
        | libc::SYS_process_vm_readv
        | libc::SYS_process_vm_writev
        | libc::SYS_process_madvise => vector(second, third),
        libc::SYS_sendmsg | libc::SYS_recvmsg => message(second),
        libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2 => vector(second, third),
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_sendto => touch(second, third),
        _ => {}
    }
}

/// Makes an array of strings present, which ends with a null.
fn touch_strings(array: usize) {
    // Reading a string makes it present.
    strings::each(array as strings::Strings)
        .filter(|string| pool::is_stopped(*string as usize))
        .for_each(|string| {
            let _ = memory::string_len(string as usize, usize::MAX);
        });
}

/// Makes what a vector names present.
pub fn vector(at: usize, count: usize) {
    memory::for_each(at, count.min(VECTOR_MAX), |libc::iovec { iov_base, iov_len }| {
        if iov_len != 0 {
            touch(iov_base as usize, iov_len);
        }
    });
}

fn message(at: usize) {
    let Some(header) = memory::read::<libc::msghdr>(at) else { return };
    touch(header.msg_name as usize, header.msg_namelen as usize);
    touch(header.msg_control as usize, header.msg_controllen);
    vector(header.msg_iov as usize, header.msg_iovlen);
}

/// The head of the kernel's struct iocb.
#[repr(C)]
#[derive(Clone, Copy)]
struct ControlBlock {
    before: [u32; 4],
    opcode: u16,
    priority: u16,
    fd: u32,
    buffer: u64,
    bytes: u64,
}

/// Calls `each` with every piece of memory that an array of `count` control blocks names, and the
/// blocks themselves.
pub fn control_blocks(at: usize, count: usize, mut each: impl FnMut(usize, usize)) {
    memory::for_each(at, count.min(REQUESTS_MAX), |block: usize| {
        let Some(ControlBlock { opcode, buffer, bytes, .. }) = memory::read(block) else { return };
        each(block, 64);
        let (buffer, bytes) = (buffer as usize, bytes as usize);
        // IOCB_CMD_PREAD, PWRITE; PREADV, PWRITEV.
        match opcode {
            0 | 1 => each(buffer, bytes),
            7 | 8 => {
                let pieces = bytes.min(VECTOR_MAX);
                each(buffer, pieces * size_of::<libc::iovec>());
                memory::for_each(buffer, pieces, |piece: libc::iovec| {
                    each(piece.iov_base as usize, piece.iov_len)
                });
            }
            _ => {}
        }
    });
}
