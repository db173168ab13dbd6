//! Calls whose arguments point to vectors, in signal delivery: what they name may be managed where they themselves are not.
//!
//! The filter sees arguments only. So the functions here look at what is behind them, and mark the pointer
//! ([`crate::trap::tag`]): the C library's function, a cancellation point as ever, passes it on, and the call is stopped.
//! A vector that lies in managed memory is seen without that.
//!
//! Not covered: vectors outside of managed memory in calls that do not come by one of these functions: inline system calls,
//! and those of the C library's own, whose vectors name memory of its own.

use crate::sys::real;
use crate::{pool, trap};
use overspill_os::tls;
use std::ffi::{c_int, c_uint, c_ulong, c_void};

/// Whether vectors must be looked at.
#[inline(always)]
pub fn looking() -> bool {
    pool::signal_delivery() && tls::is_program()
}

/// The vector, marked if it names managed memory.
///
/// # Safety
///
/// `vector` is one of `count` elements, or null.
unsafe fn vector(vector: *const libc::iovec, count: usize) -> *const libc::iovec {
    if !looking() || vector.is_null() || pool::contains(vector as usize) {
        return vector;
    }
    // SAFETY: the caller's promise.
    let managed = |i: usize| unsafe { pool::contains((*vector.add(i)).iov_base as usize) };
    if (0..count.min(1024)).any(managed) { trap::tag(vector) } else { vector }
}

/// Whether a message names managed memory.
///
/// # Safety
///
/// `message` is one.
unsafe fn names_managed(message: &libc::msghdr) -> bool {
    let iov = message.msg_iov as *const libc::iovec;
    pool::contains(message.msg_name as usize)
        || pool::contains(message.msg_control as usize)
        || pool::contains(iov as usize)
        // SAFETY: the caller's promise.
        || unsafe { vector(iov, message.msg_iovlen) } != iov
}

/// The message, marked if it names managed memory.
///
/// # Safety
///
/// `message` is one, or null.
unsafe fn message(message: *const libc::msghdr) -> *const libc::msghdr {
    if !looking() || message.is_null() || pool::contains(message as usize) {
        return message;
    }
    // SAFETY: the caller's promise.
    if unsafe { names_managed(&*message) } { trap::tag(message) } else { message }
}

/// The messages, marked if one of them names managed memory.
///
/// # Safety
///
/// `messages` are `count`, or null.
unsafe fn messages(messages: *const libc::mmsghdr, count: usize) -> *const libc::mmsghdr {
    if !looking() || messages.is_null() || pool::contains(messages as usize) {
        return messages;
    }
    // SAFETY: the caller's promise.
    let managed = |i: usize| unsafe { names_managed(&(*messages.add(i)).msg_hdr) };
    if (0..count.min(1024)).any(managed) { trap::tag(messages) } else { messages }
}

/// A family of functions: passed on, with one argument looked at.
macro_rules! vector_family {
    ($($(#[$doc:meta])* $name:literal $symbol:ident($($argument:ident: $type:ty),*) { $looked:ident = $look:expr };)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> isize {
                type Call = unsafe extern "C" fn($($type),*) -> isize;
                // SAFETY: the caller's promise.
                unsafe {
                    let $looked = $look;
                    real!($name as Call)($($argument),*)
                }
            }
        )*
    };
}

vector_family! {
    /// readv(2).
    c"readv" readv(fd: c_int, iov: *const libc::iovec, count: c_int) { iov = vector(iov, count.max(0) as usize) };
    /// writev(2).
    c"writev" writev(fd: c_int, iov: *const libc::iovec, count: c_int) { iov = vector(iov, count.max(0) as usize) };
    /// preadv(2).
    c"preadv" preadv(fd: c_int, iov: *const libc::iovec, count: c_int, at: i64) {
        iov = vector(iov, count.max(0) as usize)
    };
    /// preadv64(3).
    c"preadv64" preadv64(fd: c_int, iov: *const libc::iovec, count: c_int, at: i64) {
        iov = vector(iov, count.max(0) as usize)
    };
    /// pwritev(2).
    c"pwritev" pwritev(fd: c_int, iov: *const libc::iovec, count: c_int, at: i64) {
        iov = vector(iov, count.max(0) as usize)
    };
    /// pwritev64(3).
    c"pwritev64" pwritev64(fd: c_int, iov: *const libc::iovec, count: c_int, at: i64) {
        iov = vector(iov, count.max(0) as usize)
    };
    /// preadv2(2).
    c"preadv2" preadv2(fd: c_int, iov: *const libc::iovec, count: c_int, at: i64, flags: c_int) {
        iov = vector(iov, count.max(0) as usize)
    };
    /// preadv64v2(3).
    c"preadv64v2" preadv64v2(fd: c_int, iov: *const libc::iovec, count: c_int, at: i64, flags: c_int) {
        iov = vector(iov, count.max(0) as usize)
    };
    /// pwritev2(2).
    c"pwritev2" pwritev2(fd: c_int, iov: *const libc::iovec, count: c_int, at: i64, flags: c_int) {
        iov = vector(iov, count.max(0) as usize)
    };
    /// pwritev64v2(3).
    c"pwritev64v2" pwritev64v2(fd: c_int, iov: *const libc::iovec, count: c_int, at: i64, flags: c_int) {
        iov = vector(iov, count.max(0) as usize)
    };
    /// vmsplice(2).
    c"vmsplice" vmsplice(fd: c_int, iov: *const libc::iovec, count: usize, flags: c_uint) {
        iov = vector(iov, count)
    };
    /// process_vm_readv(2).
    c"process_vm_readv" process_vm_readv(
        pid: c_int,
        iov: *const libc::iovec,
        count: c_ulong,
        remote: *const libc::iovec,
        remote_count: c_ulong,
        flags: c_ulong
    ) { iov = vector(iov, count as usize) };
    /// process_vm_writev(2).
    c"process_vm_writev" process_vm_writev(
        pid: c_int,
        iov: *const libc::iovec,
        count: c_ulong,
        remote: *const libc::iovec,
        remote_count: c_ulong,
        flags: c_ulong
    ) { iov = vector(iov, count as usize) };
    /// sendmsg(2).
    c"sendmsg" sendmsg(fd: c_int, header: *const libc::msghdr, flags: c_int) { header = message(header) };
    /// recvmsg(2).
    c"recvmsg" recvmsg(fd: c_int, header: *const libc::msghdr, flags: c_int) { header = message(header) };
    /// sendmmsg(2).
    c"sendmmsg" sendmmsg(fd: c_int, list: *const libc::mmsghdr, count: c_uint, flags: c_int) {
        list = messages(list, count as usize)
    };
    /// recvmmsg(2).
    c"recvmmsg" recvmmsg(
        fd: c_int,
        list: *const libc::mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut c_void
    ) { list = messages(list, count as usize) };
}

/// The arguments of a system call that is made by number: the second or third is marked if what it names is managed.
///
/// # Safety
///
/// As for the system call.
pub unsafe fn look_at_call(number: i64, arguments: &mut [usize; 6]) {
    if !looking() {
        return;
    }
    let [_, b, c, ..] = *arguments;
    // SAFETY: the caller's promise.
    unsafe {
        match number {
            libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv
            | libc::SYS_pwritev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_vmsplice
            | libc::SYS_process_vm_readv
            | libc::SYS_process_vm_writev => arguments[1] = vector(b as *const libc::iovec, c) as usize,
            libc::SYS_sendmsg | libc::SYS_recvmsg => arguments[1] = message(b as *const libc::msghdr) as usize,
            libc::SYS_sendmmsg | libc::SYS_recvmmsg => arguments[1] = messages(b as *const libc::mmsghdr, c) as usize,
            // What blocks of asynchronous I/O and arguments of programs name is not worth a look first.
            libc::SYS_io_submit if c != 0 => arguments[2] = trap::tag(c as *const u8) as usize,
            libc::SYS_execve if b != 0 => arguments[1] = trap::tag(b as *const u8) as usize,
            libc::SYS_execveat if c != 0 => arguments[2] = trap::tag(c as *const u8) as usize,
            _ => {}
        }
    }
}
