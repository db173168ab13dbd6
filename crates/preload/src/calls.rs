//! Functions of the C library's that hand the program's memory to the kernel: in signal delivery
//! they are made with memory that is safe ([`crate::trap::around`]).
//!
//! These are the functions that real programs call often: what redis, GNU sort, Python, SQLite and
//! a compiler do. All others, and inline system calls, are stopped by the filter, which is as right
//! and dearer. A function that is given no managed memory goes to the C library's at once, in any
//! delivery.
//!
//! The C library's streams do not call the functions by these names. They call by tables, in which
//! their two functions are replaced ([`crate::streams`]).

use crate::trap::around::{ADDRESS, Function, Prototype, overspill_around};
use overspill_os::seccomp;

/// An address of the window, shifted by so many bits, is this.
const WINDOW_SHIFT: u32 = (seccomp::WINDOW.end - seccomp::WINDOW.start).trailing_zeros();
const WINDOW_TOP: usize = seccomp::WINDOW.start >> WINDOW_SHIFT;
const _: () = assert!(
    WINDOW_TOP == (seccomp::WINDOW.end - 1) >> WINDOW_SHIFT
        && WINDOW_TOP != seccomp::WINDOW.end >> WINDOW_SHIFT
);

/// The functions of one kind of symbol: each looks at those of its registers that are named, and
/// goes on to the C library's unless one is in the window, or it has not been looked for yet. With
/// none named it is always looked at closer.
macro_rules! functions {
    ($list:ident, $export:meta;
     $(
        $(#[$doc:meta])*
        $entry:ident $name:literal $symbol:ident =
            $kind:ident $number:ident($count:literal) $([$($register:literal),*])?;
     )*) => {
        $(
            static $entry: Function = Function::new($name, libc::$number, $count, Prototype::$kind);

            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[$export]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $symbol() {
                std::arch::naked_asm!(
                    "lea r11, [rip + {entry}]",
                    $(
                        $(
                            concat!("mov rax, ", $register),
                            "shr rax, {shift}",
                            "cmp eax, {top}",
                            "je {around}",
                        )*
                        "mov rax, [r11 + {address}]",
                        "test rax, rax",
                        "jz {around}",
                        "jmp rax",
                    )?
                    "jmp {around}",
                    "/* {shift} {top} {address} */",
                    entry = sym $entry,
                    shift = const WINDOW_SHIFT,
                    top = const WINDOW_TOP,
                    address = const ADDRESS,
                    around = sym overspill_around,
                )
            }
        )*

        static $list: &[&Function] = &[$(&$entry),*];
    };
}

functions! {
    EXPORTED, cfg_attr(not(test), unsafe(no_mangle));
    /// read(2).
    READ c"read" read = Long SYS_read(3) ["rsi"];
    /// write(2).
    WRITE c"write" write = Long SYS_write(3) ["rsi"];
    /// pread(2).
    PREAD c"pread" pread = Long SYS_pread64(4) ["rsi"];
    /// pread64(3).
    PREAD64 c"pread64" pread64 = Long SYS_pread64(4) ["rsi"];
    /// pwrite(2).
    PWRITE c"pwrite" pwrite = Long SYS_pwrite64(4) ["rsi"];
    /// pwrite64(3).
    PWRITE64 c"pwrite64" pwrite64 = Long SYS_pwrite64(4) ["rsi"];
    /// recv(2).
    RECV c"recv" recv = Long SYS_recvfrom(4) ["rsi"];
    /// recvfrom(2).
    RECVFROM c"recvfrom" recvfrom = Long SYS_recvfrom(6) ["rsi", "r8", "r9"];
    /// send(2).
    SEND c"send" send = Long SYS_sendto(4) ["rsi"];
    /// sendto(2).
    SENDTO c"sendto" sendto = Long SYS_sendto(6) ["rsi", "r8"];
    /// readv(2).
    READV c"readv" readv = Long SYS_readv(3);
    /// writev(2).
    WRITEV c"writev" writev = Long SYS_writev(3);
    /// preadv(2).
    PREADV c"preadv" preadv = Long SYS_preadv(4);
    /// preadv64(3).
    PREADV64 c"preadv64" preadv64 = Long SYS_preadv(4);
    /// pwritev(2).
    PWRITEV c"pwritev" pwritev = Long SYS_pwritev(4);
    /// pwritev64(3).
    PWRITEV64 c"pwritev64" pwritev64 = Long SYS_pwritev(4);
    /// preadv2(2), whose flags are its fifth argument; of the system call they are the sixth.
    PREADV2 c"preadv2" preadv2 = Long SYS_preadv2(5);
    /// preadv64v2(3).
    PREADV64V2 c"preadv64v2" preadv64v2 = Long SYS_preadv2(5);
    /// pwritev2(2).
    PWRITEV2 c"pwritev2" pwritev2 = Long SYS_pwritev2(5);
    /// pwritev64v2(3).
    PWRITEV64V2 c"pwritev64v2" pwritev64v2 = Long SYS_pwritev2(5);
    /// vmsplice(2).
    VMSPLICE c"vmsplice" vmsplice = Long SYS_vmsplice(4);
    /// process_vm_readv(2).
    PROCESS_VM_READV c"process_vm_readv" process_vm_readv = Long SYS_process_vm_readv(6);
    /// process_vm_writev(2).
    PROCESS_VM_WRITEV c"process_vm_writev" process_vm_writev = Long SYS_process_vm_writev(6);
    /// sendmsg(2).
    SENDMSG c"sendmsg" sendmsg = Long SYS_sendmsg(3);
    /// sendmmsg(2).
    SENDMMSG c"sendmmsg" sendmmsg = Int SYS_sendmmsg(4);
    /// epoll_wait(2).
    EPOLL_WAIT c"epoll_wait" epoll_wait = Int SYS_epoll_wait(4) ["rsi"];
    /// poll(2).
    POLL c"poll" poll = Int SYS_poll(3) ["rdi"];
    /// select(2).
    SELECT c"select" select = Int SYS_select(5) ["rsi", "rdx", "rcx", "r8"];
    /// getrandom(2).
    GETRANDOM c"getrandom" getrandom = Long SYS_getrandom(3) ["rdi"];
    /// nanosleep(2).
    NANOSLEEP c"nanosleep" nanosleep = Int SYS_nanosleep(2) ["rdi", "rsi"];
    /// accept(2).
    ACCEPT c"accept" accept = Int SYS_accept(3) ["rsi", "rdx"];
    /// accept4(2).
    ACCEPT4 c"accept4" accept4 = Int SYS_accept4(4) ["rsi", "rdx"];
    /// stat(2).
    STAT c"stat" stat = Int SYS_stat(2) ["rdi", "rsi"];
    /// stat64(3).
    STAT64 c"stat64" stat64 = Int SYS_stat(2) ["rdi", "rsi"];
    /// lstat(2).
    LSTAT c"lstat" lstat = Int SYS_lstat(2) ["rdi", "rsi"];
    /// lstat64(3).
    LSTAT64 c"lstat64" lstat64 = Int SYS_lstat(2) ["rdi", "rsi"];
    /// fstatat(2).
    FSTATAT c"fstatat" fstatat = Int SYS_newfstatat(4) ["rsi", "rdx"];
    /// fstatat64(3).
    FSTATAT64 c"fstatat64" fstatat64 = Int SYS_newfstatat(4) ["rsi", "rdx"];
    /// statx(2).
    STATX c"statx" statx = Int SYS_statx(5) ["rsi", "r8"];
    /// access(2).
    ACCESS c"access" access = Int SYS_access(2) ["rdi"];
    /// readlink(2).
    READLINK c"readlink" readlink = Long SYS_readlink(3) ["rdi", "rsi"];
    /// unlink(2).
    UNLINK c"unlink" unlink = Int SYS_unlink(1) ["rdi"];
    /// unlinkat(2).
    UNLINKAT c"unlinkat" unlinkat = Int SYS_unlinkat(3) ["rsi"];
    /// rename(2).
    RENAME c"rename" rename = Int SYS_rename(2) ["rdi", "rsi"];
    /// mkdir(2).
    MKDIR c"mkdir" mkdir = Int SYS_mkdir(2) ["rdi"];
}

// Called by what is exported elsewhere ([`crate::dma`], [`crate::fds`]) or replaced in a table.
functions! {
    INNER, allow(missing_docs);
    RECVMSG c"recvmsg" recvmsg = Long SYS_recvmsg(3);
    RECVMMSG c"recvmmsg" recvmmsg = Int SYS_recvmmsg(5);
    OPEN c"open" open = Int SYS_open(3) ["rdi"];
    OPEN64 c"open64" open64 = Int SYS_open(3) ["rdi"];
    OPENAT c"openat" openat = Int SYS_openat(4) ["rsi"];
    OPENAT64 c"openat64" openat64 = Int SYS_openat(4) ["rsi"];
    FSTAT c"fstat" fstat = Int SYS_fstat(2) ["rsi"];
    FSTAT64 c"fstat64" fstat64 = Int SYS_fstat(2) ["rsi"];
    CREAT c"creat" creat = Int SYS_creat(2) ["rdi"];
    CREAT64 c"creat64" creat64 = Int SYS_creat(2) ["rdi"];
    OPEN_2 c"__open_2" __open_2 = Int SYS_open(2) ["rdi"];
    OPEN64_2 c"__open64_2" __open64_2 = Int SYS_open(2) ["rdi"];
    OPENAT_2 c"__openat_2" __openat_2 = Int SYS_openat(3) ["rsi"];
    OPENAT64_2 c"__openat64_2" __openat64_2 = Int SYS_openat(3) ["rsi"];
    STREAM_READ c"_IO_file_read" stream_read = Stream SYS_read(3) ["rsi"];
    STREAM_WRITE c"_IO_file_write" stream_write = Stream SYS_write(3) ["rsi"];
}

unsafe extern "C" {
    /// Ends a program that was built with _FORTIFY_SOURCE.
    fn __chk_fail() -> !;
}

/// Functions in programs built with _FORTIFY_SOURCE: they compare a length with that of the buffer,
/// and are then the same as others.
macro_rules! checked {
    ($($(#[$doc:meta])* $symbol:ident = $function:ident: $($line:literal),*;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $symbol() {
                std::arch::naked_asm!(
                    $($line,)*
                    "jmp {function}",
                    "2:",
                    "sub rsp, 8",
                    "call {fail}",
                    function = sym $function,
                    fail = sym __chk_fail,
                )
            }
        )*
    };
}

checked! {
    /// read(2), checked.
    __read_chk = read: "cmp rdx, rcx", "ja 2f";
    /// pread(2), checked.
    __pread_chk = pread: "cmp rdx, r8", "ja 2f";
    /// pread64(3), checked.
    __pread64_chk = pread64: "cmp rdx, r8", "ja 2f";
    /// recv(2), checked.
    __recv_chk = recv: "cmp rdx, rcx", "ja 2f", "mov ecx, r8d";
    /// recvfrom(2), checked.
    __recvfrom_chk = recvfrom: "cmp rdx, rcx", "ja 2f", "mov ecx, r8d", "mov r8, r9", "mov r9, \
                                                                                       [rsp + 8]";
    /// poll(2), checked.
    __poll_chk = poll: "mov rax, rcx", "shr rax, 3", "cmp rsi, rax", "ja 2f";
}

/// Looks for all of them: later that may not be possible, since the loader's lock may be held by
/// whoever waits for a page, or is interrupted by a handler that calls one of them.
pub fn find() {
    for function in EXPORTED.iter().chain(INNER) {
        function.find();
    }
}

/// The C library's functions of streams, and what they are replaced by.
pub fn of_streams() -> [(usize, usize); 2] {
    [
        (STREAM_READ.find(), stream_read as *const () as usize),
        (STREAM_WRITE.find(), stream_write as *const () as usize),
    ]
}
