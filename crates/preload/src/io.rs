//! Reading and writing, for signal delivery: a system call that is handed an absent page fails with EFAULT.
//!
//! The functions here make the pages of their buffers present before the call and, where one was evicted meanwhile,
//! again before another try: EFAULT says that nothing was transferred. It is a safety net, not a guarantee: with a
//! buffer larger than the budget a call may still fail or transfer less than it could.
//!
//! Covered: read, write, pread, pwrite, readv, writev, send, recv, sendto, recvfrom, sendmsg, recvmsg, called by the
//! program. Not covered: every other system call that takes memory, and what the C library calls on its own (stdio,
//! getaddrinfo). In thread delivery the kernel's own faults are served, and these functions only pass on.

use crate::pool;
use crate::route::{pages_touched, split};
use crate::sys::{errno, real};
use overspill_os::{PAGE_SIZE, tls};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};

/// Tries before the program gets its EFAULT.
const TRIES: usize = 8;

/// Whether the kernel reads or writes a buffer.
#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

/// Makes the managed pages of a buffer present.
///
/// # Safety
///
/// The buffer is the program's, and valid for the access.
unsafe fn touch(start: usize, len: usize, access: Access) {
    let Some(range) = pages_touched(start, len).filter(|_| len != 0) else { return };
    for page in split(range, pool::window()).inside.step_by(PAGE_SIZE) {
        // The first byte of the buffer, not of the page: the buffer may begin behind a boundary of protection.
        // SAFETY: the caller's promise.
        unsafe { touch_byte(page.max(start), access) };
    }
}

/// Makes one page present, and for [`Access::Write`] writable without another fault.
///
/// # Safety
///
/// The byte is the program's, and valid for the access.
unsafe fn touch_byte(byte: usize, access: Access) {
    // SAFETY: the caller's promise. A write that changes nothing is atomic, so that no other thread's is lost.
    unsafe {
        match access {
            Access::Read => drop((byte as *const u8).read_volatile()),
            Access::Write => {
                let byte = AtomicU8::from_ptr(byte as *mut u8);
                let mut value = byte.load(Ordering::Relaxed);
                // Not fetch_or(0), of which the compiler makes a load.
                while let Err(now) =
                    byte.compare_exchange_weak(value, black_box(value), Ordering::Relaxed, Ordering::Relaxed)
                {
                    value = now;
                }
            }
        }
    }
}

/// Touches the buffers of a vector, and the vector itself.
///
/// # Safety
///
/// The vector is the program's, and valid.
unsafe fn touch_vector(vector: *const libc::iovec, count: usize, access: Access) {
    // SAFETY: the caller's promise.
    unsafe {
        for i in 0..count {
            let libc::iovec { iov_base, iov_len } = vector.add(i).read();
            touch(iov_base as usize, iov_len, access);
        }
    }
}

/// Touches a message header and all that it names. The kernel writes the header's address and control data of a
/// message received.
///
/// # Safety
///
/// The message is the program's, and valid.
unsafe fn touch_message(message: *const libc::msghdr, access: Access) {
    // SAFETY: the caller's promise.
    unsafe {
        touch(message as usize, size_of::<libc::msghdr>(), access);
        let header = message.read();
        touch(header.msg_name as usize, header.msg_namelen as usize, access);
        touch(header.msg_control as usize, header.msg_controllen, access);
        touch_vector(header.msg_iov, header.msg_iovlen, access);
    }
}

/// Makes a call after `touch`, and again as long as it finds a page absent.
fn with_present(touch: impl Fn(), call: impl Fn() -> isize) -> isize {
    let mut result = -1;
    for _ in 0..TRIES {
        touch();
        result = call();
        if result != -1 || errno() != libc::EFAULT {
            break;
        }
    }
    result
}

/// A family of functions: passed on, in signal delivery with their buffers present.
macro_rules! io_family {
    ($($(#[$doc:meta])* $name:literal $symbol:ident($($argument:ident: $type:ty),*) $touch:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> isize {
                type Call = unsafe extern "C" fn($($type),*) -> isize;
                #[cold]
                #[inline(never)]
                fn guarded(call: Call, $($argument: $type),*) -> isize {
                    // SAFETY: the promise of the caller of $symbol: buffers are valid.
                    with_present(|| unsafe { $touch }, || unsafe { call($($argument),*) })
                }
                let call = real!($name as Call);
                if pool::signal_delivery() && tls::is_program() {
                    return guarded(call, $($argument),*);
                }
                // SAFETY: the caller's promise.
                unsafe { call($($argument),*) }
            }
        )*
    };
}

io_family! {
    /// read(2).
    c"read" read(fd: c_int, buffer: *mut c_void, len: usize) { touch(buffer as usize, len, Access::Write) }
    /// write(2).
    c"write" write(fd: c_int, buffer: *const c_void, len: usize) { touch(buffer as usize, len, Access::Read) }
    /// pread(2).
    c"pread" pread(fd: c_int, buffer: *mut c_void, len: usize, offset: i64) {
        touch(buffer as usize, len, Access::Write)
    }
    /// pread64(3).
    c"pread64" pread64(fd: c_int, buffer: *mut c_void, len: usize, offset: i64) {
        touch(buffer as usize, len, Access::Write)
    }
    /// pwrite(2).
    c"pwrite" pwrite(fd: c_int, buffer: *const c_void, len: usize, offset: i64) {
        touch(buffer as usize, len, Access::Read)
    }
    /// pwrite64(3).
    c"pwrite64" pwrite64(fd: c_int, buffer: *const c_void, len: usize, offset: i64) {
        touch(buffer as usize, len, Access::Read)
    }
    /// readv(2).
    c"readv" readv(fd: c_int, vector: *const libc::iovec, count: c_int) {
        touch_vector(vector, count.max(0) as usize, Access::Write)
    }
    /// writev(2).
    c"writev" writev(fd: c_int, vector: *const libc::iovec, count: c_int) {
        touch_vector(vector, count.max(0) as usize, Access::Read)
    }
    /// send(2).
    c"send" send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) {
        touch(buffer as usize, len, Access::Read)
    }
    /// recv(2).
    c"recv" recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) {
        touch(buffer as usize, len, Access::Write)
    }
    /// sendto(2).
    c"sendto" sendto(
        fd: c_int,
        buffer: *const c_void,
        len: usize,
        flags: c_int,
        address: *const libc::sockaddr,
        address_len: libc::socklen_t
    ) {
        touch(buffer as usize, len, Access::Read);
        touch(address as usize, address_len as usize, Access::Read)
    }
    /// recvfrom(2).
    c"recvfrom" recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        len: usize,
        flags: c_int,
        address: *mut libc::sockaddr,
        address_len: *mut libc::socklen_t
    ) {
        touch(buffer as usize, len, Access::Write);
        if !address.is_null() && !address_len.is_null() {
            touch(address as usize, address_len.read() as usize, Access::Write);
        }
    }
    /// sendmsg(2).
    c"sendmsg" sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) {
        touch_message(message, Access::Read)
    }
    /// recvmsg(2).
    c"recvmsg" recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) {
        touch_message(message, Access::Write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let counts = (count(Access::Read), count(Access::Read), count(Access::Write), count(Access::Write));
            assert_eq!(counts, (1, 0, 1, 0));
            *(page as *mut u8).add(5) = 77;
            touch_byte(page + 5, Access::Write);
            assert_eq!(*(page as *const u8).add(5), 77);
            libc::munmap(page as *mut c_void, PAGE_SIZE);
        }
    }
}
