//! Descriptors that come from other processes: in messages, and by pidfd_getfd(2).
//!
//! What looks are functions of C's, so that those that call them need nothing for the case that one
//! panics: a cancellation in recvmsg(2) unwinds them.

use super::look::{look_at, looking};
use crate::{calls, sys};
use std::ffi::{c_int, c_uint};

/// Looks at the descriptors that a message has brought.
///
/// # Safety
///
/// The message was filled in by the kernel.
#[inline(never)]
pub unsafe extern "C" fn look_at_message(message: *const libc::msghdr) {
    if !looking() {
        return;
    }
    // SAFETY: the caller's promise. Those of a number that is no multiple of a descriptor's size
    // are cut off.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = part.as_ref() {
            if [header.cmsg_level, header.cmsg_type] == [libc::SOL_SOCKET, libc::SCM_RIGHTS] {
                let count = (header.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<c_int>();
                let first = libc::CMSG_DATA(part).cast::<c_int>();
                (0..count).for_each(|i| look_at(first.add(i).read_unaligned()));
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
}

/// Looks at so many.
///
/// # Safety
///
/// As for one.
#[inline(never)]
pub unsafe extern "C" fn look_at_messages(messages: *const libc::mmsghdr, count: c_int) {
    // SAFETY: the caller's promise.
    (0..count).for_each(|i| unsafe {
        look_at_message(&raw const (*messages.add(i as usize)).msg_hdr);
    });
}

/// recvmsg(2).
///
/// # Safety
///
/// As for recvmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    type Receive = unsafe extern "C" fn(c_int, *mut libc::msghdr, c_int) -> isize;
    // SAFETY: 1. the function by that name has this type; 2. the caller's promise; 3. the kernel
    // has filled it in.
    unsafe {
        let receive = std::mem::transmute::<unsafe extern "C" fn(), Receive>(calls::recvmsg);
        let received = receive(fd, message, flags);
        if received >= 0 {
            look_at_message(message);
        }
        received
    }
}

/// recvmmsg(2).
///
/// # Safety
///
/// As for recvmmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    type Receive = unsafe extern "C" fn(
        c_int,
        *mut libc::mmsghdr,
        c_uint,
        c_int,
        *mut libc::timespec,
    ) -> c_int;
    // SAFETY: 1. the function by that name has this type; 2. the caller's promise; 3. the kernel
    // has filled in so many.
    unsafe {
        let receive = std::mem::transmute::<unsafe extern "C" fn(), Receive>(calls::recvmmsg);
        let received = receive(fd, messages, count, flags, timeout);
        look_at_messages(messages, received);
        received
    }
}

/// pidfd_getfd(2), which C libraries have not had for long.
///
/// # Safety
///
/// As for pidfd_getfd(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
    // SAFETY: numbers only.
    let got = sys::to_c_int(sys::check(unsafe {
        syscalls::raw_syscall!(syscalls::Sysno::pidfd_getfd, process, fd, flags)
    }));
    look_at(got);
    got
}
