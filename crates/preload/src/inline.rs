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
//! - Between number and `syscall` are only instructions that leave the number alone and lead
//!   straight on ([`step`]). Who jumps in between has loaded another number.
//! - A number in a register that comes from elsewhere (Go's `syscall` package) is not found, nor
//!   are calls in libraries. The filter stops those that change managed mappings for their address.
//! - Threads that are made so have no storage of the C library's: [`overspill_os::foreign`].
//! - A call that turns out to be nobody's business is made where it stands, with its number
//!   ([`again`]).
//!
//! The code is read from its file: what was read in memory would count as the program's from then
//! on. Every process is looked at when it wakes; one without libraries when it starts ([`maps`]),
//! since nothing else may wake it.

use crate::memory::{self, touch::touch, vectors};
use crate::route::pages_touched;
use crate::signals::registers::Registers;
use crate::signals::{self, altstack, masks};
use crate::sys::failure;
use crate::{credentials, data_end, fork, image, map, pool, sandbox, sys, syscall, thread, trap};
use overspill_os::foreign::{self, Beginning, Begun};
use overspill_os::{Errno, confined, pointer, seccomp, tls};
use std::ffi::c_int;
use syscalls::{Sysno, raw_syscall};

/// Calls that the engine must see.
const SEEN: [i64; 40] = [
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
/// the stack, beside [`vectors::FILE_VECTORS`]; and those that may be for the file of the program.
/// They are made as those that are stopped for their arguments.
const FOLLOWED: [i64; 14] = [
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
    FOLLOWED.contains(&number) || vectors::FILE_VECTORS.contains(&number)
}

/// Whether the number of a call is replaced.
fn is_replaced(number: u32) -> bool {
    SEEN.contains(&number.into()) || is_followed(number.into())
}

/// The longest code of an executable that is looked at, which takes 0.3 ms a MiB: one that has
/// libraries will mostly leave such calls to them. Go's does not: with cgo it maps memory by the C
/// library, and gives it back by calls of its own.
const MOST: usize = 64 << 20;
const MOST_WITH_LIBRARIES: usize = 8 << 20;

/// `mov eax, number` and `mov rax, number`: what comes before the number, of 32 bits.
const LOADS: [&[u8]; 2] = [&[0xb8], &[0x48, 0xc7, 0xc0]];
const NUMBER_BYTES: usize = 4;
const SYSCALL_BYTES: usize = 2;
/// `xor eax, eax` and `mov al, 56`: clone(2) in musl.
const CLONE_BY_BYTE: [u8; 4] = [0x31, 0xc0, 0xb0, 56];
/// How far before a `syscall` its number is looked for.
const BEFORE_MAX: usize = 48;

/// A number in the code, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site {
    at: usize,
    number: u32,
    /// Whether it has one byte, and not four.
    is_byte: bool,
}

/// Bytes of the operand of an instruction that names memory or a register, with its first byte;
/// None where it may name rax. `rex` is the prefix, 0 for none.
fn operand(code: &[u8], rex: u8) -> Option<usize> {
    let form = *code.first()?;
    let (mode, register, base) = (form >> 6, form >> 3 & 7, form & 7);
    let is_rax = |register: u8, bit: u8| register == 0 && rex & bit == 0;
    const REGISTER: u8 = 4;
    const INDEX: u8 = 2;
    const BASE: u8 = 1;
    if is_rax(register, REGISTER) {
        return None;
    }
    let (mut len, mut base_of) = (1, base);
    if mode != 3 && base == 4 {
        let scaled = *code.get(1)?;
        base_of = scaled & 7;
        if is_rax(scaled >> 3 & 7, INDEX) {
            return None;
        }
        len += 1;
    }
    if is_rax(base_of, BASE) {
        return None;
    }
    len += match mode {
        0 if base_of == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(len)
}

/// Bytes of an instruction that has nothing to do with rax and goes on to the next; None for what
/// is not known to.
fn step(code: &[u8]) -> Option<usize> {
    const WIDE: u8 = 8;
    let rex = *code.first().filter(|byte| **byte & 0xf0 == 0x40).unwrap_or(&0);
    let prefix = usize::from(rex != 0);
    let code = &code[prefix..];
    let not_rax = |register: u8| register & 7 != 0 || rex & 1 != 0;
    let len = match *code {
        // nop.
        [0x90, ..] if rex == 0 => 1,
        // mov, lea, movsxd, and calculations of registers and memory.
        [0x89 | 0x8b | 0x8d | 0x63, ..] => 1 + operand(&code[1..], rex)?,
        [0x01 | 0x03 | 0x09 | 0x0b | 0x21 | 0x23 | 0x29 | 0x2b | 0x31 | 0x33, ..] => {
            1 + operand(&code[1..], rex)?
        }
        // movzx, movsx.
        [0x0f, 0xb6 | 0xb7 | 0xbe | 0xbf, ..] => 2 + operand(&code[2..], rex)?,
        // mov of a number to a register.
        [load @ 0xb8..=0xbf, ..] if not_rax(load) => 1 + if rex & WIDE != 0 { 8 } else { 4 },
        [0xc7, form @ 0xc0..=0xc7, ..] if not_rax(form) => 2 + 4,
        // Calculations of a register and a number.
        [0x83, form @ 0xc0..=0xff, ..] if not_rax(form) => 2 + 1,
        [0x81, form @ 0xc0..=0xff, ..] if not_rax(form) => 2 + 4,
        _ => return None,
    };
    Some(prefix + len)
}

/// Whether instructions lead straight from one place to another.
fn leads(code: &[u8], mut from: usize, to: usize) -> bool {
    while from < to {
        let Some(len) = code.get(from..).and_then(step) else { return false };
        from += len;
    }
    from == to
}

/// The number that a `syscall` is made with, if it is one to be replaced.
fn site(code: &[u8], syscall: usize) -> Option<Site> {
    let first = syscall.saturating_sub(BEFORE_MAX);
    let by_byte = code[first..syscall].windows(CLONE_BY_BYTE.len());
    if let Some(at) = by_byte.clone().rposition(|bytes| bytes == CLONE_BY_BYTE)
        && leads(code, first + at + CLONE_BY_BYTE.len(), syscall)
    {
        let at = first + at + CLONE_BY_BYTE.len() - 1;
        return Some(Site { at, number: libc::SYS_clone as u32, is_byte: true });
    }
    let last = syscall.checked_sub(NUMBER_BYTES)?;
    (first..=last).rev().find_map(|at| {
        let before = &code[..at];
        let is_load = LOADS.iter().any(|load| before.ends_with(load));
        // With this prefix it is another register.
        let is_other = |byte: &u8| byte & 0xf1 == 0x41;
        let is_plain = before.ends_with(LOADS[0]);
        if !is_load || is_plain && at >= 2 && is_other(&code[at - 2]) {
            return None;
        }
        let number = u32::from_le_bytes(code[at..at + NUMBER_BYTES].try_into().ok()?);
        (is_replaced(number) && leads(code, at + NUMBER_BYTES, syscall)).then_some(Site {
            at,
            number,
            is_byte: false,
        })
    })
}

/// The code of an executable, read from its file, and what is to be replaced in it.
fn sites(executable: &image::Executable) -> Vec<Site> {
    const CHUNK: usize = 64 << 10;
    const AGAIN: usize = 64;
    let mut found = Vec::new();
    let code = executable.code.clone();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(image::file(), flags, rustix::fs::Mode::empty()) else {
        return found;
    };
    let mut bytes = vec![0; CHUNK.min(code.len())];
    let mut done = 0;
    while done < code.len() {
        let wanted = bytes.len().min(code.len() - done);
        let from = (executable.offset + done) as u64;
        let Ok(len) = rustix::io::pread(&file, &mut bytes[..wanted], from) else { break };
        let chunk = &bytes[..len];
        // The first were at the end of the chunk before.
        let new = if done == 0 { 0 } else { AGAIN - SYSCALL_BYTES + 1 };
        let calls = masks::syscalls(chunk).filter(|at| *at >= new);
        found.extend(
            calls
                .filter_map(|at| site(chunk, at))
                .map(|site| Site { at: code.start + done + site.at, ..site }),
        );
        if len <= AGAIN || done + len >= code.len() {
            break;
        }
        done += len - AGAIN;
    }
    found
}

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
        sites(&executable).iter().any(|site| i64::from(site.number) == libc::SYS_mmap)
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
    for Site { at, number, is_byte } in sites(&executable) {
        let Some(pages) = pages_touched(at, NUMBER_BYTES) else { continue };
        let protect = |prot| {
            // SAFETY: code keeps its protection, or gets more.
            unsafe { sys::on_range(Sysno::mprotect, pages.start, pages.len(), prot) }
        };
        if let Err(errno) = protect(executable.prot | libc::PROT_WRITE) {
            return if executable.is_go { Err(errno) } else { Ok(()) };
        }
        let place = at as *mut u32;
        // SAFETY: the code's memory, which can be written now; nobody else runs. It may not be what
        // is in the file: then it stays.
        unsafe {
            if is_byte && place.cast::<u8>().read() == number as u8 {
                place.cast::<u8>().write(seccomp::FOREIGN_CLONE as u8);
            } else if !is_byte && place.read_unaligned() == number {
                place.write_unaligned(seccomp::FOREIGN as u32 | number);
            }
        }
        let _ = protect(executable.prot);
    }
    Ok(())
}

/// Does a call whose number was replaced, in the handler that it has come to.
///
/// # Safety
///
/// `context` is what the kernel has passed to the handler.
unsafe fn call(context: &mut libc::ucontext_t, number: usize) {
    let mut registers = Registers(&mut context.uc_mcontext.gregs);
    if is_followed(number as i64) {
        return trap::begin(&mut registers, number);
    }
    let arguments = registers.arguments();
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
            libc::SYS_brk if image::is_placed() => Ok(data_end::set(a)),
            libc::SYS_set_tid_address => kept_present(a, size_of::<i32>()),
            libc::SYS_set_robust_list | libc::SYS_rseq => kept_present(a, b),
            libc::SYS_close | libc::SYS_close_range | libc::SYS_dup2 | libc::SYS_dup3 => {
                syscall::of_descriptors(number as i64, arguments).map_or(Err(AGAIN), of_c)
            }
            number => {
                credentials::by_number(number, [a, b, c]);
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

/// A call that the engine does itself, whoever makes it: about mappings, or, in a program that was
/// loaded here, about its file.
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
    link.or_else(|| unsafe { syscall::mapping(number, arguments) })
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
    registers.set(libc::REG_RIP, registers.get(libc::REG_RIP) - SYSCALL_BYTES);
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

/// The kernel writes there at times when nobody serves a fault: it becomes unmanaged where it is.
fn kept_present(at: usize, len: usize) -> Result<usize, Errno> {
    if let Some(pages) = pages_touched(at, len).filter(|_| pool::contains(at)) {
        let _ = pool::give_up(pages);
    }
    Err(AGAIN)
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
    if has(libc::CLONE_CHILD_CLEARTID) {
        let _ = kept_present(child_word, size_of::<i32>());
    }
    for (flag, word) in
        [(libc::CLONE_PARENT_SETTID, parent_word), (libc::CLONE_CHILD_SETTID, child_word)]
    {
        if has(flag) {
            touch(word, size_of::<i32>());
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in code that ends with a `syscall`.
    fn found(code: &[u8]) -> Option<(usize, u32)> {
        let code = [code, &[0x0f, 0x05, 0xc3]].concat();
        let at: Vec<_> = masks::syscalls(&code).collect();
        assert_eq!(at, [code.len() - 3]);
        site(&code, at[0]).map(|site| (site.at, site.number))
    }

    #[test]
    fn numbers_are_found_where_instructions_lead_straight_on() {
        // mov eax, 9; and mov rax, 158.
        assert_eq!(found(&[0xb8, 9, 0, 0, 0]), Some((1, 9)));
        assert_eq!(found(&[0x48, 0xc7, 0xc0, 158, 0, 0, 0]), Some((3, 158)));
        // mov r9d, [rsp + 36]; mov eax, 9; mov edi, esi; xor edx, edx; mov r10d, 34; lea rsi,
        // [rdi + 8 * rcx]; mov r8, -1.
        let call = [
            &[0x44, 0x8b, 0x4c, 0x24, 0x24, 0xb8, 9, 0, 0, 0, 0x89, 0xf7, 0x31, 0xd2][..],
            &[0x41, 0xba, 34, 0, 0, 0, 0x48, 0x8d, 0x34, 0xcf],
            &[0x49, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff],
        ]
        .concat();
        assert_eq!(found(&call), Some((6, 9)));
        // Another call, another register, and the number of 64 bits.
        assert_eq!(found(&[0xb8, 1, 0, 0, 0]), None);
        assert_eq!(found(&[0x41, 0xb8, 9, 0, 0, 0]), None);
        assert_eq!(found(&[0x48, 0xb8, 9, 0, 0, 0, 0, 0, 0, 0]), None);
        // A jump, a call, and what reads or changes rax.
        for between in [
            &[0xeb, 0][..],
            &[0x74, 0],
            &[0xe8, 0, 0, 0, 0],
            &[0x89, 0xc2],
            &[0x31, 0xc0],
            &[0x48, 0x83, 0xc0, 1],
            &[0x8b, 0x10],
            &[0x8b, 0x14, 0x07],
            &[0xb8, 1, 0, 0, 0],
            &[0x90, 0x66],
        ] {
            let code = [&[0xb8, 9, 0, 0, 0][..], between].concat();
            assert_eq!(found(&code), None, "{between:x?}");
        }
        // A byte, as in musl: mov r11, rdi between.
        assert_eq!(found(&[0x31, 0xc0, 0xb0, 56, 0x49, 0x89, 0xfb]), Some((3, 56)));
        assert_eq!(found(&[0x31, 0xc0, 0xb0, 57]), None);
        // r8 is not rax.
        assert_eq!(found(&[0xb8, 9, 0, 0, 0, 0x4d, 0x89, 0xc0]), Some((1, 9)));
    }

    #[test]
    fn the_executable_is_read_as_it_is_in_memory() {
        let executable = image::executable().unwrap();
        let own = the_executable_is_read_as_it_is_in_memory as *const () as usize;
        assert!(executable.code.contains(&own) && executable.has_libraries);
        for Site { at, number, .. } in sites(&executable) {
            // SAFETY: code of this program.
            assert_eq!(unsafe { (at as *const u32).read_unaligned() }, number);
        }
    }
}
