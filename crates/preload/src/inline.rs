//! System calls that the program makes by instructions of its own, in signal delivery.
//!
//! A runtime that does without the C library (Go's without cgo), or an allocator in the executable,
//! maps memory, makes threads and sets handlers where no symbol leads. A filter that stopped these
//! calls by the address they come from would stay in force for what is executed later, whose C
//! library lies elsewhere. So the executable's code is looked through, and where a number is loaded
//! shortly before a `syscall` it is replaced by one that the filter always stops
//! ([`seccomp::FOREIGN`]). The handler of SIGSYS does what the function here of that name does
//! ([`call`]).
//!
//! - [`SEEN`] are the calls that the engine must see, [`FOLLOWED`] those whose pointers may hide
//!   others. The rest are made as they are, and stopped for their addresses as anybody's
//!   ([`crate::trap`]).
//! - [`sites`] finds where they are made. A number that is not in the code is looked at when it is
//!   there, in a stub beside the executable ([`crate::stubs`]). Calls in libraries are not found.
//!   The filter stops those that change managed mappings for their address.
//! - Threads that are made so have no storage of the C library's: [`overspill_os::foreign`].
//! - A call that turns out to be nobody's business is made where it stands, with its number
//!   ([`again`]).
//!
//! Every process is looked at when it wakes; one without libraries when it starts ([`maps`]), since
//! nothing else may wake it.

use crate::code::SYSCALL;
use crate::exec::tracee;
use crate::memory::touch::follows;
use crate::memory::{self, vectors};
use crate::rewrite::Writer;
use crate::signals::registers::Registers;
use crate::signals::{self, altstack, masks};
use crate::sys::failure;
use crate::{
    credentials, dma, fds, fork, image, kernel_words, limits, map, remote, sandbox, stubs, sys,
    syscall, thread, trap,
};
use overspill_os::foreign::{self, Beginning, Begun};
use overspill_os::{Errno, confined, pointer, seccomp, tls};
use sites::Site;
use std::ffi::c_int;
use syscalls::{Sysno, raw_syscall};

mod sites;

/// Calls that the engine must see.
const SEEN: [i64; 52] = [
    libc::SYS_io_setup,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_register,
    libc::SYS_openat2,
    libc::SYS_open_by_handle_at,
    libc::SYS_pidfd_getfd,
    libc::SYS_fcntl,
    libc::SYS_msync,
    libc::SYS_membarrier,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_brk,
    libc::SYS_setrlimit,
    libc::SYS_getrlimit,
    libc::SYS_prlimit64,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_pkey_mprotect,
    libc::SYS_mseal,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_fork,
    libc::SYS_arch_prctl,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_exit_group,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
];

/// Calls that follow pointers behind their arguments, which may be managed where these are not: on
/// the stack, beside [`vectors::FILE_VECTORS`]; those that may be for the file of the program; and
/// those that wait with a mask. They are made as those that are stopped for their arguments.
const FOLLOWED: [i64; 18] = [
    libc::SYS_rt_sigsuspend,
    libc::SYS_ppoll,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_io_submit,
    libc::SYS_vmsplice,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ioctl,
    libc::SYS_setsockopt,
];

fn is_followed(number: i64) -> bool {
    let is_followed =
        FOLLOWED.contains(&number) || vectors::FILE_VECTORS.contains(&number) || follows(number);
    is_followed && !SEEN.contains(&number)
}

/// Whether the number of a call is replaced. Go's runtime waits often, and never with a mask.
fn is_replaced(number: u32, in_go: bool) -> bool {
    let number = number.into();
    let never_has_mask = in_go && number == libc::SYS_epoll_pwait;
    (SEEN.contains(&number) || is_followed(number)) && !never_has_mask
}

/// The longest code of an executable that is looked at, which takes 0.3 ms a MiB: one that has
/// libraries will mostly leave such calls to them. Go's does not: with cgo it maps memory by the C
/// library, and gives it back by calls of its own.
const MOST: usize = 64 << 20;
const MOST_WITH_LIBRARIES: usize = 8 << 20;

/// Whether the program's calls may be replaced.
fn is_possible() -> bool {
    pointer::is_possible() && !confined::is_confined()
}

/// The executable, if its code is looked at.
fn looked_at() -> Option<image::Executable> {
    image::executable().filter(|executable| {
        let most = match executable {
            image::Executable { is_go: true, .. } => usize::MAX,
            image::Executable { has_libraries: true, .. } => MOST_WITH_LIBRARIES,
            _ => MOST,
        };
        executable.code.len() <= most && is_possible()
    })
}

/// Whether the program must not be managed. One in Go would find again what it has given back: with
/// faults `by_thread` nothing stops its own calls. Where its code cannot be changed it would take
/// the engine's handlers away, and so does a library in Go anywhere.
pub fn forbids(by_thread: bool) -> bool {
    let is_go = image::executable().is_some_and(|executable| executable.is_go);
    is_go && (by_thread || !is_possible()) || image::has_go_library()
}

/// Whether the program has no libraries, and maps memory by instructions of its own.
pub fn maps() -> bool {
    let _internal = tls::Internal::enter();
    let executable = looked_at().filter(|executable| !executable.has_libraries);
    executable.is_some_and(|executable| {
        let is_map = |number: u32| i64::from(number) == libc::SYS_mmap;
        let is_number = |site: &Site| matches!(site, Site::Number { .. });
        sites::find(&executable, is_map).iter().any(is_number)
    })
}

/// Replaces the numbers in the executable. Called while the process has one thread. Where the code
/// cannot be changed its calls stay as they are, and what they map is not managed.
///
/// # Errors
/// That of mprotect(2), for a program in Go, which must not go on so.
pub fn start() -> Result<(), Errno> {
    let _internal = tls::Internal::enter();
    let Some(executable) = looked_at() else { return Ok(()) };
    trap::answer_replaced_by(call);
    let writer = Writer::new(executable.prot);
    let write = |at, old: &[u8], new: &[u8]| write_code(&writer, at, old, new);
    let is_replaced = |number| is_replaced(number, executable.is_go);
    let mut calls = Vec::new();
    let numbers =
        sites::find(&executable, is_replaced).into_iter().try_for_each(|site| match site {
            Site::Number { at, number } => {
                write(at, &number.to_le_bytes(), &(seccomp::FOREIGN as u32 | number).to_le_bytes())
            }
            Site::CloneByte { at } => {
                write(at, &[libc::SYS_clone as u8], &[seccomp::FOREIGN_CLONE as u8])
            }
            Site::Call(call) => {
                calls.push(call);
                Ok(())
            }
        });
    let replaced = numbers.and_then(|()| stubs::put(&calls, is_replaced, write));
    if executable.is_go { replaced } else { Ok(()) }
}

/// Writes into the code, which may not be what is in the file: then it stays as it is.
fn write_code(writer: &Writer, at: usize, old: &[u8], new: &[u8]) -> Result<(), Errno> {
    // SAFETY: the code's memory.
    let code = unsafe { std::slice::from_raw_parts(at as *const u8, new.len()) };
    if !code.starts_with(old) {
        return Ok(());
    }
    // SAFETY: an instruction of the program's, which has not begun.
    unsafe { writer.write(at, new) }
}

/// Does a call whose number was replaced, in the handler that it has come to.
///
/// # Safety
///
/// `context` is what the kernel has passed to the handler.
unsafe fn call(context: &mut libc::ucontext_t, number: usize) {
    let mut registers = Registers(&mut context.uc_mcontext.gregs);
    let arguments = registers.arguments();
    dma::look_ahead(number as i64, arguments);
    remote::look_at_call(number as i64);
    if number as i64 == libc::SYS_ptrace && tracee::puts_off(arguments[0]) {
        return registers.set(libc::REG_RAX, 0);
    }
    if is_followed(number as i64) {
        return trap::begin(&mut registers, number);
    }
    let [a, b, c, d, e, _] = arguments;
    let sp = registers.get(libc::REG_RSP);
    // SAFETY: the caller's promise; the call is the program's.
    let result = unsafe {
        match number as i64 {
            libc::SYS_rt_sigaction => signals::by_number(a as c_int, b, c, d),
            libc::SYS_rt_sigprocmask => change_mask(context, arguments),
            libc::SYS_sigaltstack => altstack::by_number(a as *const _, b as *mut _, sp),
            libc::SYS_arch_prctl => set_base(&mut registers, a, b),
            // As before Linux 5.3: there is the other one.
            libc::SYS_clone3 => Err(Errno::NOSYS),
            libc::SYS_fork => fork_here(context, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]),
            libc::SYS_clone => clone(context, arguments),
            libc::SYS_prctl => of_c(map::symbols::prctl(a as c_int, b, c, d, e) as isize),
            libc::SYS_seccomp => {
                let kernel = || sys::to_c(sys::check(raw_syscall!(Sysno::seccomp, a, b, c)));
                of_c(sandbox::by_number([a, b, c], kernel))
            }
            libc::SYS_exit_group => crate::alloc::entries::exit(a as c_int),
            libc::SYS_fcntl if fds::is_hidden(a as c_int) => Err(Errno::BADF),
            libc::SYS_membarrier => {
                let kernel = || sys::to_c(sys::check(raw_syscall!(Sysno::membarrier, a, b, c)));
                of_c(syscall::barrier(a as c_int, kernel))
            }
            libc::SYS_close | libc::SYS_close_range | libc::SYS_dup2 | libc::SYS_dup3 => {
                syscall::of_descriptors(number as i64, arguments).map_or(Err(AGAIN), of_c)
            }
            number => {
                credentials::by_number(number, [a, b, c]);
                kernel_words::keep_of_call(number, [a, b]);
                own(number, arguments).unwrap_or(Err(AGAIN))
            }
        }
    };
    let mut registers = Registers(&mut context.uc_mcontext.gregs);
    match result {
        Err(AGAIN) => again(&mut registers, number),
        Ok(value) => registers.set(libc::REG_RAX, value),
        Err(errno) => registers.set(libc::REG_RAX, failure(errno.raw_os_error())),
    }
}

/// A call that the engine does itself, whoever makes it: about mappings and limits, or, in a
/// program that was loaded here, about its file.
///
/// # Safety
///
/// As for the system call.
pub unsafe fn own(number: i64, arguments: [usize; 6]) -> Option<Result<usize, Errno>> {
    let [a, b, c, d, ..] = arguments;
    let link = match number {
        libc::SYS_readlink => link_to_own_file(a, b, c),
        libc::SYS_readlinkat => link_to_own_file(b, c, d),
        _ => None,
    };
    // SAFETY: the caller's promise.
    unsafe {
        link.or_else(|| syscall::mapping(number, arguments))
            .or_else(|| limits::by_number(number, [a, b, c, d]))
    }
}

/// What the link to the file of a program says that was loaded here, instead of the loader's file.
fn link_to_own_file(path: usize, place: usize, len: usize) -> Option<Result<usize, Errno>> {
    let mut name = [0; image::LINK_MAX];
    let name_len = image::is_placed().then(|| memory::read_string(path, &mut name)).flatten()?;
    if !image::names_program(&name[..name_len]) {
        return None;
    }
    let file = image::file().to_bytes();
    let written = file.iter().take(len).enumerate().all(|(n, byte)| {
        // SAFETY: the program has handed the place to a call that writes there.
        unsafe { memory::write(place + n, *byte) }
    });
    Some(if written { Ok(file.len().min(len)) } else { Err(Errno::FAULT) })
}

/// That a call is to be made as it is: an error that no call of the program's comes to have here.
const AGAIN: Errno = Errno::NOTRECOVERABLE;

/// The call is made once more, with its own number, where it stands.
fn again(registers: &mut Registers<'_>, number: usize) {
    registers.set(libc::REG_RAX, number);
    registers.set(libc::REG_RIP, registers.get(libc::REG_RIP) - SYSCALL.len());
}

/// What a C function has returned.
fn of_c(result: isize) -> Result<usize, Errno> {
    if result == -1 { Err(Errno::from_raw_os_error(sys::errno())) } else { Ok(result as usize) }
}

/// rt_sigprocmask(2).
///
/// # Safety
///
/// As for the system call.
unsafe fn change_mask(
    context: &mut libc::ucontext_t,
    [how, set, old, len, ..]: [usize; 6],
) -> Result<usize, Errno> {
    if len != size_of::<u64>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: 1. a sigset_t begins with the kernel's 8 bytes; 2. the caller's promise.
    let result =
        unsafe { masks::change(&mut *(&raw mut context.uc_sigmask).cast::<u64>(), how, set, old) };
    sys::check(result)
}

/// arch_prctl(2).
fn set_base(registers: &mut Registers<'_>, what: usize, value: usize) -> Result<usize, Errno> {
    const SET_GS: usize = 0x1001;
    const SET_FS: usize = 0x1002;
    const GET_FS: usize = 0x1003;
    const ADDRESSES: usize = 1 << 47;
    match what {
        SET_FS if value >= ADDRESSES => Err(Errno::PERM),
        SET_FS => foreign::set_programs_pointer(registers.0, value).and(Ok(0)),
        GET_FS => {
            let pointer = pointer::programs_pointer();
            // SAFETY: the program has handed the address to a call that writes there.
            let written = unsafe { memory::write(value, pointer) };
            written.then_some(0).ok_or(Errno::FAULT)
        }
        // It tells a thread of ours.
        SET_GS if pointer::is_foreign() => Err(Errno::PERM),
        _ => Err(AGAIN),
    }
}

/// clone(2).
///
/// # Safety
///
/// As for the system call.
unsafe fn clone(context: &mut libc::ucontext_t, arguments: [usize; 6]) -> Result<usize, Errno> {
    let has = |flag: c_int| arguments[0] & flag as usize != 0;
    if !has(libc::CLONE_VM) {
        // SAFETY: the caller's promise.
        return unsafe { fork_here(context, arguments) };
    }
    if has(libc::CLONE_VFORK) {
        // It has the parent's storage and signal stack until it is gone.
        return Err(AGAIN);
    }
    let [flags, stack, parent_word, child_word, pointer, _] = arguments;
    if !fork::may_be_made(flags as u64) {
        return Err(Errno::AGAIN);
    }
    thread::note_made();
    let begun = Begun::new(altstack::lend)?;
    kernel_words::keep_of_clone(flags as u64, parent_word, child_word);
    let sp = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    let beginning = Beginning {
        flags,
        parent_word,
        child_word,
        stack: if stack == 0 { sp } else { stack },
        thread_pointer: if has(libc::CLONE_SETTLS) { pointer } else { pointer::programs_pointer() },
        signal_stack: altstack::anew(begun.signal_stack()),
    };
    // SAFETY: 1. the caller's promise; 2. the block is the thread's alone.
    unsafe { begun.run(context, &beginning) }
}

/// A child with a copy of the memory, which goes on where its parent does: 0 there.
///
/// # Safety
///
/// As for clone(2).
unsafe fn fork_here(
    context: &mut libc::ucontext_t,
    [flags, stack, parent_word, child_word, pointer, _]: [usize; 6],
) -> Result<usize, Errno> {
    if flags & libc::CLONE_SETTLS as usize != 0 {
        return Err(Errno::INVAL);
    }
    let flags = flags & !(libc::CLONE_FILES as usize);
    let arguments = [flags, 0, parent_word, child_word, pointer, 0];
    let given = |flag: c_int, word| if flags & flag as usize != 0 { word } else { 0 };
    let words = [
        given(libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD, parent_word),
        given(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID, child_word),
        0,
    ];
    // SAFETY: the caller's promise: the child goes on here, in a copy of this stack.
    let pid = fork::bare_fork(words, || unsafe {
        seccomp::let_through(Sysno::clone as usize, arguments) as isize
    });
    if pid == 0 && stack != 0 {
        context.uc_mcontext.gregs[libc::REG_RSP as usize] = stack as i64;
    }
    sys::check(pid as usize)
}
