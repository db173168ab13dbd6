//! Calls whose pages are made present: paths, structures that are only read, everything that is not
//! known.
//!
//! Made again after EFAULT, with more pages around each address, since a page may have left
//! meanwhile and since it is not known how far the kernel reads. EFAULT says that the call has done
//! nothing; calls for which that is not so are elsewhere ([`super::structures`], [`super::data`]).

use super::{NEVER, Next, ON_FAULT, Record, failure};
use crate::route::{pages_touched, split};
use crate::{memory, pool};
use overspill_os::{PAGE_SIZE, seccomp};
use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};

/// Tries before the program gets its EFAULT. The last one has made 256 pages around each address
/// present.
pub const TRIES: usize = 8;

/// Whether the kernel reads or writes memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
}

/// Makes the managed pages of a range present as far as the program may access them: for writing
/// where it may write. Pages that the program has for itself are the kernel's affair: a touch would
/// be one of the program's, and be told to a userfaultfd of its own.
pub fn touch(start: usize, len: usize) {
    let Some(range) = pages_touched(start, len.max(1)) else { return };
    let inside = split(range, pool::window()).inside;
    if inside.is_empty() {
        return;
    }
    let end = inside.start + pool::accessible(inside.clone(), Access::Read);
    let writable = inside.start + pool::accessible(inside.clone(), Access::Write);
    for page in (inside.start..end).step_by(PAGE_SIZE).filter(|page| !pool::is_foreign(*page)) {
        // SAFETY: the page may be accessed in this way.
        unsafe { touch_byte(page, if page < writable { Access::Write } else { Access::Read }) };
    }
}

/// Makes one page present, and for [`Access::Write`] writable without another fault.
///
/// # Safety
///
/// The byte is the program's, and valid for the access.
unsafe fn touch_byte(byte: usize, access: Access) {
    // SAFETY: the caller's promise. A write that changes nothing is atomic, so that no other
    // thread's is lost.
    unsafe {
        match access {
            Access::Read => drop((byte as *const u8).read_volatile()),
            Access::Write => {
                let byte = AtomicU8::from_ptr(byte as *mut u8);
                let mut value = byte.load(Ordering::Relaxed);
                // Not fetch_or(0), of which the compiler makes a load.
                while let Err(now) = byte.compare_exchange_weak(
                    value,
                    black_box(value),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    value = now;
                }
            }
        }
    }
}

/// Whether a call reads all of its sixth argument: such a call cannot be let through.
fn has_sixth(number: usize) -> bool {
    matches!(
        number as i64,
        libc::SYS_recvfrom
            | libc::SYS_pselect6
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_process_vm_readv
            | libc::SYS_process_vm_writev
            | SYS_IO_PGETEVENTS
    )
}

/// Where nothing is mapped, and no filter looks.
pub const NOWHERE: usize = 64;

/// io_pgetevents(2), for which libc has no name.
pub const SYS_IO_PGETEVENTS: i64 = 333;

/// The call with its pages present.
pub fn call(record: &mut Record, mut arguments: [usize; 6]) -> Next {
    if has_sixth(record.number) {
        // The kernel is to say what it says of memory that is not there.
        let is_nowhere =
            |at: usize| pool::contains(at) && pool::accessible(at..at + 1, Access::Read) == 0;
        arguments
            .iter_mut()
            .filter(|argument| is_nowhere(**argument))
            .for_each(|argument| *argument = NOWHERE);
        record.finish = NEVER;
        return match arguments.iter().any(|argument| pool::contains(*argument)) {
            true => Next::Result(failure(libc::EFAULT)),
            false => Next::Call(arguments),
        };
    }
    let pages = 2usize << record.tries;
    for argument in arguments.iter().filter(|argument| pool::contains(**argument)) {
        touch(*argument, ((pages - 1) * PAGE_SIZE).min(pool::window().end - argument));
    }
    nested(record.number as i64, &arguments);
    if record.tries > 0 {
        follow(record.number as i64, &arguments, record.tries);
    }
    record.tries += 1;
    record.finish = if record.tries < TRIES { ON_FAULT } else { NEVER };
    arguments[5] = seccomp::exempt(arguments[5]);
    Next::Call(arguments)
}

/// After EFAULT.
pub fn again(record: &mut Record) -> Next {
    let mut arguments = record.arguments;
    super::untag(&mut arguments);
    call(record, arguments)
}

/// How much of what an argument points to is searched for addresses, and how much at once.
const SEARCHED: usize = 4096;
const AT_ONCE: usize = 32;

/// Makes present what the arguments of a call point to, and what is pointed to from there: words
/// that may be managed addresses. Returns whether there was one. It is not known what they are, so
/// that is for calls that have met an absent page; with each round more pages behind each are.
pub fn follow(number: i64, arguments: &[usize; 6], round: usize) -> bool {
    let Ok(number) = usize::try_from(number) else { return false };
    let addresses = seccomp::arguments::pointers(number);
    let behind = arguments.iter().enumerate().filter(|(n, _)| addresses & 1 << n != 0);
    behind.fold(false, |found, (_, address)| follow_words(*address, 2, 2 << round) || found)
}

fn follow_words(at: usize, depth: usize, pages: usize) -> bool {
    let mut found = false;
    for start in (at..at.saturating_add(SEARCHED)).step_by(AT_ONCE * size_of::<usize>()) {
        let mut words = [0usize; AT_ONCE];
        let len = memory::read_into(start, &mut words);
        for word in &words[..len / size_of::<usize>()] {
            if pool::contains(*word) && !pool::is_foreign(*word) {
                found = true;
                touch(*word, ((pages - 1) * PAGE_SIZE).min(pool::window().end - word));
                if depth > 1 {
                    follow_words(*word, depth - 1, pages);
                }
            }
        }
        if len < size_of_val(&words) {
            break;
        }
    }
    found
}

/// Makes present what lies behind the arguments, as far as that can be read.
fn nested(number: i64, arguments: &[usize; 6]) {
    let [_, second, third, fourth, ..] = *arguments;
    match number {
        libc::SYS_execve => {
            strings(second);
            strings(third);
        }
        libc::SYS_execveat => {
            strings(third);
            strings(fourth);
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
fn strings(array: usize) {
    // Reading a string makes it present.
    crate::exec::each(array as crate::exec::Strings)
        .filter(|string| pool::contains(*string as usize))
        .for_each(|string| {
            let _ = memory::string_len(string as usize, usize::MAX);
        });
}

/// Makes what a vector names present.
pub fn vector(at: usize, count: usize) {
    memory::for_each(at, count, |libc::iovec { iov_base, iov_len }| {
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
    memory::for_each(at, count, |block: usize| {
        let Some(ControlBlock { opcode, buffer, bytes, .. }) = memory::read(block) else { return };
        each(block, 64);
        let (buffer, bytes) = (buffer as usize, bytes as usize);
        // IOCB_CMD_PREAD, PWRITE; PREADV, PWRITEV.
        match opcode {
            0 | 1 => each(buffer, bytes),
            7 | 8 => {
                each(buffer, bytes.saturating_mul(size_of::<libc::iovec>()));
                memory::for_each(buffer, bytes, |piece: libc::iovec| {
                    each(piece.iov_base as usize, piece.iov_len)
                });
            }
            _ => {}
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;

    /// Page faults of this thread so far.
    fn faults() -> i64 {
        // SAFETY: a zeroed rusage is valid, and the call fills it.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
            usage.ru_minflt
        }
    }

    #[test]
    fn a_write_touch_writes_and_changes_nothing() {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, used within its page and unmapped at the end.
        unsafe {
            let page = libc::mmap(std::ptr::null_mut(), PAGE_SIZE, prot, flags, -1, 0) as usize;
            // Touching for a read maps the shared zero page; only a write then faults again, once.
            let count = |access| {
                let before = faults();
                touch_byte(page + 5, access);
                faults() - before
            };
            let counts = (
                count(Access::Read),
                count(Access::Read),
                count(Access::Write),
                count(Access::Write),
            );
            assert_eq!(counts, (1, 0, 1, 0));
            *(page as *mut u8).add(5) = 77;
            touch_byte(page + 5, Access::Write);
            assert_eq!(*(page as *const u8).add(5), 77);
            libc::munmap(page as *mut c_void, PAGE_SIZE);
        }
    }
}
