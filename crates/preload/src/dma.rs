//! Seeing that the program uses DMA into its memory.
//!
//! A device that writes into a page does not go through the page tables, so a page under direct I/O
//! looks idle; if it were written out meanwhile, the new content would be lost. Once a program is
//! seen to open the door to such I/O, the pool evicts only in the way that refuses pinned pages.
//! What counts:
//!
//! - a descriptor with O_DIRECT: opened, set later by fcntl, inherited, or got from another
//!   process;
//! - a device opened under /dev, other than those that never touch memory directly (null, zero,
//!   random, terminals);
//! - Linux AIO and io_uring, by system call or through libaio and liburing.
//!
//! Not seen: a device opened by another path, sockets of AF_XDP and AF_ALG, and calls that do not
//! pass through the C library (libaio or liburing linked statically), but for those that are found
//! ([`crate::inline`]). The setting `out=move` is for those.

use self::received::{look_at_message, look_at_messages};
use crate::sys::{next_function, real};
use crate::{calls, memory, remote};
use overspill_os::Errno;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

mod look;
mod received;

pub use self::look::{begin, seen, start};
use self::look::{is_dma, is_dma_device, look_at, looking};

/// Looks at a descriptor just opened.
#[inline(always)]
pub fn look_at_open(fd: c_int, path: *const c_char, flags: c_int) {
    if fd >= 0 && looking() {
        look_closer(fd, path, flags);
    }
}

/// Functions that return a descriptor, which is looked at: the C library makes their calls inside.
macro_rules! made_inside {
    ($($(#[$doc:meta])* $name:literal $symbol:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> c_int {
                // SAFETY: the caller's promise.
                let fd = unsafe {
                    real!($name as unsafe extern "C" fn($($type),*) -> c_int)($($argument),*)
                };
                look_at(fd);
                fd
            }
        )*
    };
}

made_inside! {
    /// mkostemp(3).
    c"mkostemp" mkostemp(template: *mut c_char, flags: c_int);
    /// mkostemp64(3).
    c"mkostemp64" mkostemp64(template: *mut c_char, flags: c_int);
    /// mkostemps(3).
    c"mkostemps" mkostemps(template: *mut c_char, suffix: c_int, flags: c_int);
    /// mkostemps64(3).
    c"mkostemps64" mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int);
    /// open_by_handle_at(2).
    c"open_by_handle_at" open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int);
}

/// A function of C's, so that those that call it need nothing for the case that it panics: a
/// cancellation in open(2) unwinds them.
extern "C" fn look_closer(fd: c_int, path: *const c_char, flags: c_int) {
    // SAFETY: the kernel has just read a path there.
    let path = unsafe { CStr::from_ptr(path) };
    if flags & libc::O_DIRECT != 0 || (path.to_bytes().starts_with(b"/dev/") && is_dma_device(fd)) {
        seen();
    }
}

/// The open family: the C library's function (a cancellation point), by [`crate::calls`], then a
/// look.
macro_rules! open_family {
    ($(
        $(#[$doc:meta])*
        $symbol:ident $(in $dir:ident: $dir_type:ty,)?
            ($flags:expr; $($argument:ident: $type:ty),*);
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for open(2). Where it is variadic in C the mode is read only if the flags ask for
            /// it.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol(
                $($dir: $dir_type,)?
                path: *const c_char,
                $($argument: $type),*
            ) -> c_int {
                type Open = unsafe extern "C" fn($($dir_type,)? *const c_char, $($type),*) -> c_int;
                // SAFETY: 1. a function by that name has this type; 2. the caller's promise.
                let fd = unsafe {
                    let open = std::mem::transmute::<unsafe extern "C" fn(), Open>(calls::$symbol);
                    open($($dir,)? path, $($argument),*)
                };
                look_at_open(fd, path, $flags);
                fd
            }
        )*
    };
}

open_family! {
    /// open(2).
    open(flags; flags: c_int, mode: c_uint);
    /// open64(3).
    open64(flags; flags: c_int, mode: c_uint);
    /// openat(2).
    openat in dir: c_int, (flags; flags: c_int, mode: c_uint);
    /// openat64(3).
    openat64 in dir: c_int, (flags; flags: c_int, mode: c_uint);
    /// creat(2).
    creat(0; mode: c_uint);
    /// creat64(3).
    creat64(0; mode: c_uint);
    /// open(2) in programs built with _FORTIFY_SOURCE.
    __open_2(flags; flags: c_int);
    /// open64(3) in programs built with _FORTIFY_SOURCE.
    __open64_2(flags; flags: c_int);
    /// openat(2) in programs built with _FORTIFY_SOURCE.
    __openat_2 in dir: c_int, (flags; flags: c_int);
    /// openat64(3) in programs built with _FORTIFY_SOURCE.
    __openat64_2 in dir: c_int, (flags; flags: c_int);
}

/// openat2(2), which older C libraries have no function for.
///
/// # Safety
///
/// As for openat2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn openat2(
    dir: c_int,
    path: *const c_char,
    how: *const c_void,
    len: usize,
) -> c_int {
    type Open = unsafe extern "C" fn(c_int, *const c_char, *const c_void, usize) -> c_int;
    // SAFETY: 1. a function by that name has this type; 2. the caller's promise.
    let fd = unsafe {
        match next_function::<Open>(c"openat2") {
            Some(real) => real(dir, path, how, len),
            None => libc::syscall(libc::SYS_openat2, dir, path, how, len) as c_int,
        }
    };
    if fd >= 0 && looking() {
        look_at(fd);
    }
    fd
}

macro_rules! fcntl_family {
    ($($(#[$doc:meta])* $name:literal $symbol:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for fcntl(2). Variadic in C; an argument that was not given is passed on unread.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol(fd: c_int, command: c_int, argument: usize) -> c_int {
                type Fcntl = unsafe extern "C" fn(c_int, c_int, usize) -> c_int;
                if crate::fds::is_hidden(fd) {
                    crate::sys::set_errno(Errno::BADF);
                    return -1;
                }
                // SAFETY: the caller's promise.
                let result = unsafe { real!($name as Fcntl)(fd, command, argument) };
                let direct = command == libc::F_SETFL && argument as c_int & libc::O_DIRECT != 0;
                if direct && result == 0 && looking() {
                    seen();
                }
                result
            }
        )*
    };
}

fcntl_family! {
    /// fcntl(2).
    c"fcntl" fcntl;
    /// fcntl64(3).
    c"fcntl64" fcntl64;
}

/// Functions of libaio and liburing: seen, then passed on with six arguments, whatever they mean to
/// a program that has a function of that name of its own.
macro_rules! asynchronous_io {
    ($($(#[$doc:meta])* $name:literal $symbol:ident $(= $call:ident)?;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol(
                a: usize,
                b: usize,
                c: usize,
                d: usize,
                e: usize,
                f: usize,
            ) -> isize {
                type Any = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;
                if looking() {
                    seen();
                }
                // SAFETY: a function by that name takes its arguments as we got them.
                unsafe {
                    if let Some(next) = next_function::<Any>($name) {
                        return next(a, b, c, d, e, f);
                    }
                }
                // No library in sight has it, although the program does not define it: as if the
                // kernel had no such call, except where the function is the call.
                let result: Result<usize, Errno> = Err(Errno::NOSYS);
                $(
                    // SAFETY: the caller's promise.
                    let result = result.or_else(|_| crate::sys::check(unsafe {
                        syscalls::raw_syscall!(syscalls::Sysno::$call, a, b, c, d, e, f)
                    }));
                )?
                // These libraries return the error, negative.
                result.map_or_else(|errno| -(errno.raw_os_error() as isize), |value| value as isize)
            }
        )*
    };
}

asynchronous_io! {
    /// libaio's io_setup(2).
    c"io_setup" io_setup = io_setup;
    /// libaio's io_queue_init(3).
    c"io_queue_init" io_queue_init;
    /// liburing's io_uring_setup(2).
    c"io_uring_setup" io_uring_setup = io_uring_setup;
    /// liburing's io_uring_queue_init(3).
    c"io_uring_queue_init" io_uring_queue_init;
    /// liburing's io_uring_queue_init_params(3).
    c"io_uring_queue_init_params" io_uring_queue_init_params;
    /// liburing's io_uring_queue_init_mem(3).
    c"io_uring_queue_init_mem" io_uring_queue_init_mem;
}

/// A call that the program is about to make by instructions of its own. What comes of it is not
/// seen, so what may open the door counts.
pub fn look_ahead(number: libc::c_long, arguments: [usize; 6]) {
    let [a, b, c, ..] = arguments;
    let opens = |path, flags| flags as c_int & libc::O_DIRECT != 0 || may_be_dma_device(path);
    let brings = |message: libc::msghdr| message.msg_controllen != 0;
    let may = || match number {
        libc::SYS_io_setup | libc::SYS_io_uring_setup | libc::SYS_io_uring_register => true,
        libc::SYS_openat2 | libc::SYS_open_by_handle_at | libc::SYS_pidfd_getfd => true,
        libc::SYS_open => opens(a, b),
        libc::SYS_openat => opens(b, c),
        libc::SYS_fcntl => b as c_int == libc::F_SETFL && c as c_int & libc::O_DIRECT != 0,
        libc::SYS_recvmsg => memory::read(b).is_some_and(brings),
        libc::SYS_recvmmsg => {
            memory::read(b).is_some_and(|first: libc::mmsghdr| brings(first.msg_hdr))
        }
        _ => false,
    };
    if looking() && may() {
        seen();
    }
}

/// Whether a path is that of a device, or of what cannot be looked at.
fn may_be_dma_device(path: usize) -> bool {
    const DEVICES: &[u8] = b"/dev/";
    let mut name = [0; 256];
    let Some(len) = memory::read_string(path, &mut name) else { return name.starts_with(DEVICES) };
    name[..len].starts_with(DEVICES)
        && rustix::fs::stat(&name[..len]).is_ok_and(|file| is_dma(file.st_mode, file.st_rdev))
}

/// A system call made through syscall(2) that opens the door to DMA, or writes to the memory of
/// another process, is made, and seen.
///
/// # Safety
///
/// As for that system call.
pub unsafe fn raw_call(
    number: libc::c_long,
    arguments: [usize; 6],
    call: impl FnOnce() -> isize,
) -> isize {
    remote::look_at_call(number);
    let result = call();
    if looking() && result >= 0 {
        match number {
            libc::SYS_io_setup | libc::SYS_io_uring_setup | libc::SYS_io_uring_register => seen(),
            libc::SYS_openat => {
                look_at_open(result as c_int, arguments[1] as *const c_char, arguments[2] as c_int)
            }
            libc::SYS_open => {
                look_at_open(result as c_int, arguments[0] as *const c_char, arguments[1] as c_int)
            }
            libc::SYS_openat2 | libc::SYS_open_by_handle_at | libc::SYS_pidfd_getfd => {
                look_at(result as c_int)
            }
            libc::SYS_fcntl if arguments[1] as c_int == libc::F_SETFL => {
                look_at(arguments[0] as c_int)
            }
            // SAFETY: the kernel has filled it in.
            libc::SYS_recvmsg => unsafe { look_at_message(arguments[1] as *const libc::msghdr) },
            // SAFETY: as above, so many.
            libc::SYS_recvmmsg => unsafe {
                look_at_messages(arguments[1] as *const libc::mmsghdr, result as c_int)
            },
            _ => {}
        }
    }
    result
}
