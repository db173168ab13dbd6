//! Calls whose arguments point to vectors, in signal delivery: what they name may be managed where
//! they themselves are not.
//!
//! The filter sees arguments only. So whoever makes such a call for the program ([`crate::calls`],
//! [`crate::syscall`]) has a look here at what is behind them, and the pointer is marked
//! ([`seccomp::TAG`]): it is passed on with that, and the call is stopped. A vector that lies
//! in managed memory is seen without that.
//!
//! What cannot be read is the kernel's to judge.
//!
//! Not covered: vectors outside of managed memory in calls that do not come by one of these
//! functions: inline system calls, and those of the C library's own, whose vectors name memory of
//! its own.

use crate::{memory, pool};
use overspill_os::{seccomp, tls};

/// Most elements of a vector (UIO_MAXIOV), and messages of a call.
pub const VECTOR_MAX: usize = 1024;

/// Whether vectors must be looked at.
#[inline(always)]
pub fn looking() -> bool {
    #[cfg(test)]
    if pool::explore::window().is_some() {
        return true;
    }
    pool::signal_delivery() && tls::is_program()
}

/// Marks a pointer, so that the call it is passed to is stopped for what lies behind it.
fn tag<T>(pointer: *const T) -> *const T {
    if pool::contains(pointer as usize) {
        pointer
    } else {
        (pointer as usize | seccomp::TAG) as *const T
    }
}

/// The vector, marked if it names managed memory.
fn vector(vector: *const libc::iovec, count: usize) -> *const libc::iovec {
    if !looking() || vector.is_null() || pool::contains(vector as usize) {
        return vector;
    }
    let mut managed = false;
    memory::for_each(vector as usize, count.min(VECTOR_MAX), |piece: libc::iovec| {
        managed |= pool::reaches(piece.iov_base as usize, piece.iov_len);
    });
    if managed { tag(vector) } else { vector }
}

/// Whether a message names managed memory.
fn names_managed(message: &libc::msghdr) -> bool {
    let iov = message.msg_iov as *const libc::iovec;
    pool::reaches(message.msg_name as usize, message.msg_namelen as usize)
        || pool::reaches(message.msg_control as usize, message.msg_controllen)
        || pool::contains(iov as usize)
        || vector(iov, message.msg_iovlen) != iov
}

/// Whether a process is this one.
pub fn is_own(process: usize) -> bool {
    process as i32 == rustix::process::getpid().as_raw_nonzero().get()
}

/// The message, marked if it names managed memory.
fn message(message: *const libc::msghdr) -> *const libc::msghdr {
    if !looking() || message.is_null() || pool::contains(message as usize) {
        return message;
    }
    let managed = memory::read(message as usize).is_some_and(|message| names_managed(&message));
    if managed { tag(message) } else { message }
}

/// The messages, marked if one of them names managed memory.
fn messages(messages: *const libc::mmsghdr, count: usize) -> *const libc::mmsghdr {
    if !looking() || messages.is_null() || pool::contains(messages as usize) {
        return messages;
    }
    let mut managed = false;
    memory::for_each(messages as usize, count.min(VECTOR_MAX), |message: libc::mmsghdr| {
        managed |= names_managed(&message.msg_hdr);
    });
    if managed { tag(messages) } else { messages }
}

/// Calls that move a vector of buffers to or from a file: the vector is the second argument, its
/// length the third.
pub const FILE_VECTORS: [i64; 6] = [
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
];

/// The arguments of a system call that is made by number: the second or third is marked if what it
/// names is managed.
pub fn look_at_call(number: i64, arguments: &mut [usize; 6]) {
    if !looking() {
        return;
    }
    let [a, b, c, d, e, _] = *arguments;
    match number {
        libc::SYS_vmsplice => arguments[1] = vector(b as *const libc::iovec, c) as usize,
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
            arguments[1] = vector(b as *const libc::iovec, c) as usize;
            let remote = d as *const libc::iovec;
            if is_own(a) && vector(remote, e) != remote {
                arguments[1] = tag(b as *const u8) as usize;
            }
        }
        _ if FILE_VECTORS.contains(&number) => {
            arguments[1] = vector(b as *const libc::iovec, c) as usize
        }
        libc::SYS_sendmsg | libc::SYS_recvmsg => {
            arguments[1] = message(b as *const libc::msghdr) as usize
        }
        libc::SYS_sendmmsg | libc::SYS_recvmmsg => {
            arguments[1] = messages(b as *const libc::mmsghdr, c) as usize
        }
        // What blocks of asynchronous I/O name is not worth a look first.
        libc::SYS_io_submit if c != 0 => arguments[2] = tag(c as *const u8) as usize,
        _ => {}
    }
}
