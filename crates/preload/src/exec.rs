//! The functions that execute a program: its environment leads to the job ([`environment`]), and in
//! signal delivery what it is started with may be managed.
//!
//! The kernel reads path, arguments and environment through arrays, which the filter does not see,
//! and the caller may be the child of a vfork that somebody traces, to whom a signal is a stop that
//! nobody answers. So all of it that is managed is copied to unmanaged memory first, and neither a
//! fault nor a stopped call comes from then on. The copies of a call that succeeds in the child of
//! a vfork stay with the thread that it has borrowed, until that executes something again or ends.
//!
//! Such a child that asks to be traced is traced from the last moment on ([`tracee`]), and an
//! executed program starts with the signals blocked that the program has blocked, SIGBUS and
//! SIGSYS among them; not so what is executed by posix_spawn.

use self::arguments::{Arguments, SLACK, copy_all, directories, length, measure};
use self::environment::Change;
use self::file::Executed;
use self::placed::Placing;
use crate::load::LOADER;
use crate::memory::copies::{self, ThreadCopies};
use crate::memory::strings::{Strings, each, environ};
use crate::memory::vectors::looking;
use crate::sys::{self, errno, real, set_errno};
use crate::{dormant, memory, pool};
use overspill_os::signal::change_mask;
use overspill_os::{Errno, tls};
use std::ffi::{CStr, c_char, c_int};

pub mod admit;
pub mod arguments;
pub mod environment;
pub mod file;
pub mod first;
pub mod placed;
pub mod spawn;
pub mod tracee;

type Execve = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;

/// Executes a program, `target`: by `call`, or where it is looked for by execve. It returns only if
/// it fails, errno is set then; None, and no call, where nothing is managed or missing, and nothing
/// to be kept in mind.
///
/// # Safety
///
/// `file` is a string, or anything that the kernel may refuse, and as for [`Arguments::get`].
unsafe fn execute(
    file: *const c_char,
    arguments: Arguments,
    environment: Strings,
    target: Executed,
    call: impl Fn(*const c_char, Strings, Strings) -> c_int,
) -> Option<c_int> {
    let placing = Placing::of(target, environment);
    if placing.is_none() && admit::refuses(target) {
        return Some(-1);
    }
    dormant::leave();
    let variables = Arguments::Array(environment);
    // SAFETY: the caller's promise.
    let managed = || unsafe {
        pool::contains(file as usize) || arguments.are_managed() || variables.are_managed()
    };
    let looks = || looking() && (tls::blocked() != 0 || tracee::is_waiting() || managed());
    let change = Change::of(environment, target);
    if change.is_none() && placing.is_none() && !looks() {
        return None;
    }
    // SAFETY: the caller's promise.
    let measured = || unsafe { Ok((measure(arguments)?, measure(variables)?)) };
    let sizes = match measured() {
        // Something else may be wrong that the kernel sees first.
        Err(Errno::FAULT) => return None,
        sizes => sizes,
    };
    // SAFETY: the caller's promise.
    let result = sizes.and_then(|sizes| unsafe {
        let search = matches!(target, Executed::Search(_));
        let changes = (change, placing);
        execute_copies(file, arguments, variables, changes, sizes, search, call)
    });
    let errno = result.err().unwrap_or_else(|| Errno::from_raw_os_error(sys::errno()));
    copies::forget();
    set_errno(errno);
    Some(-1)
}

/// [`execute`] with copies of what was measured.
unsafe fn execute_copies(
    file: *const c_char,
    arguments: Arguments,
    variables: Arguments,
    (change, placing): (Option<Change>, Option<Placing>),
    ((bytes, count), (variable_bytes, variable_count)): ((usize, usize), (usize, usize)),
    search: bool,
    call: impl Fn(*const c_char, Strings, Strings) -> c_int,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let is_managed = pool::contains(file as usize);
        let mut len = if is_managed { length(file as usize)? } else { 0 };
        let name = || CStr::from_ptr(file).to_bytes();
        let looked_for = search && placing.is_none() && !file.is_null() && !name().contains(&b'/');
        let mut room = bytes + variable_bytes + len + SLACK;
        if search && !file.is_null() {
            room += (count + 3) * size_of::<usize>();
        }
        let path = if looked_for { directories() } else { b"" };
        let places = || path.split(|byte| *byte == b':');
        if looked_for {
            if name().is_empty() {
                return Err(Errno::NOENT);
            }
            len = name().len() + 1;
            room += places().map(|directory| directory.len() + len + SLACK).sum::<usize>();
        }
        room += added(change, placing.as_ref(), count, variable_count);
        let mut place = ThreadCopies::new(room)?;
        let strings = ((arguments, count), (variables, variable_count));
        let (array, environment) = copy_strings(&mut place, strings, change, placing.as_ref())?;
        let mut file = file;
        if placing.is_some() {
            file = LOADER.as_ptr();
        } else if is_managed {
            file = place.copy(file as usize, length(file as usize)?.min(len)) as *const c_char;
        }
        let (mut first, mut candidates) = (0, 0);
        if looked_for {
            let name = std::slice::from_raw_parts(file.cast::<u8>(), len);
            (first, candidates) = write_candidates(&mut place, places(), name);
        }
        // From here on no managed memory is touched.
        let before = change_mask(libc::SIG_BLOCK, tls::blocked());
        tracee::begin();
        if looked_for {
            try_each(first, candidates, &mut place, (array, count), environment);
        } else {
            call(file, array, environment);
            if search && errno() == libc::ENOEXEC {
                as_script(file, &mut place, (array, count), environment);
            }
        }
        let failure = errno();
        change_mask(libc::SIG_SETMASK, before);
        Err(Errno::from_raw_os_error(failure))
    }
}

/// Copies of arguments and variables, of which there are so many, with what is changed of them.
///
/// # Safety
///
/// They were measured, and there is room for them.
unsafe fn copy_strings(
    place: &mut ThreadCopies,
    ((arguments, count), (variables, variable_count)): ((Arguments, usize), (Arguments, usize)),
    change: Option<Change>,
    placing: Option<&Placing>,
) -> Result<(Strings, Strings), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let array = copy_all(place, arguments, count)? as Strings;
        let environment = match change {
            Some(change) => {
                let changed = change.write(place.take(change.bytes()));
                copy_all(place, Arguments::Array(changed), each(changed).count())?
            }
            None => copy_all(place, variables, variable_count)?,
        } as Strings;
        let Some(placing) = placing else { return Ok((array, environment)) };
        let placed = placing.write(|len| place.take(len), array, environment);
        Ok((placed.arguments, placed.environment))
    }
}

/// Other arguments for a call that was stopped, if it executes a program that is to get something
/// else than it says, or opens the link to the file of one that was loaded here.
///
/// # Safety
///
/// As for the system call.
pub unsafe fn lead(number: i64, arguments: [usize; 6]) -> Option<[usize; 6]> {
    if number != libc::SYS_execve {
        return placed::lead(number, arguments);
    }
    let [file, array, environment, ..] = arguments;
    let target = Executed::At(libc::AT_FDCWD, file);
    let placing = Placing::of(target, environment as Strings);
    let change = Change::of(environment as Strings, target);
    if placing.is_none() && change.is_none() && !tracee::is_waiting() {
        return None;
    }
    // What is wrong with it the kernel says. SAFETY: the caller's promise.
    let copies =
        unsafe { copies_for(file, array as Strings, environment as Strings, change, placing) };
    let first = copies.ok()?;
    // From here on no managed memory is touched.
    tracee::begin();
    let mut changed = arguments;
    changed[..3].copy_from_slice(&first);
    Some(changed)
}

/// The arguments of an execve(2) in copies, with what is changed of them.
///
/// # Safety
///
/// As for the system call.
unsafe fn copies_for(
    file: usize,
    array: Strings,
    environment: Strings,
    change: Option<Change>,
    placing: Option<Placing>,
) -> Result<[usize; 3], Errno> {
    let (arguments, variables) = (Arguments::Array(array), Arguments::Array(environment));
    // SAFETY: the caller's promise.
    unsafe {
        let (bytes, count) = measure(arguments)?;
        let (variable_bytes, variable_count) = measure(variables)?;
        let len = length(file)?;
        let room = bytes + variable_bytes + len + SLACK;
        let mut place =
            ThreadCopies::new(room + added(change, placing.as_ref(), count, variable_count))?;
        let strings = ((arguments, count), (variables, variable_count));
        let (array, environment) = copy_strings(&mut place, strings, change, placing.as_ref())?;
        let file = match placing {
            Some(_) => LOADER.as_ptr() as usize,
            None => place.copy(file, len),
        };
        Ok([file, array as usize, environment as usize])
    }
}

/// Bytes that changes take beside so many arguments and variables.
fn added(
    change: Option<Change>,
    placing: Option<&Placing>,
    arguments: usize,
    variables: usize,
) -> usize {
    let bytes = change.map_or(0, |change| change.bytes() + change.array_bytes());
    let most = change.map_or(0, |change| change.array_bytes() / size_of::<usize>());
    bytes + placing.map_or(0, |placing| placing.bytes(arguments, variables.max(most)))
}

/// Writes where a program may be, one path behind the other: the first, and how many.
///
/// # Safety
///
/// There is room for them.
unsafe fn write_candidates<'a>(
    place: &mut ThreadCopies,
    directories: impl Iterator<Item = &'a [u8]>,
    name: &[u8],
) -> (usize, usize) {
    let (mut first, mut candidates) = (0, 0);
    for directory in directories {
        let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        let at = place.take(directory.len() + separator.len() + name.len());
        let mut to = at;
        for part in [directory, separator, name] {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to as *mut u8, part.len()) };
            to += part.len();
        }
        first = if candidates == 0 { at } else { first };
        candidates += 1;
    }
    (first, candidates)
}

/// Tries the candidates in turn, and goes on as the C library does.
unsafe fn try_each(
    first: usize,
    candidates: usize,
    place: &mut ThreadCopies,
    arguments: (Strings, usize),
    environment: Strings,
) {
    let execve = real!(c"execve" as Execve);
    let (mut at, mut denied) = (first, false);
    for _ in 0..candidates {
        // SAFETY: strings, one behind the other, each aligned to a word.
        unsafe {
            let candidate = at as *const c_char;
            execve(candidate, arguments.0, environment);
            if errno() == libc::ENOEXEC {
                as_script(candidate, place, arguments, environment);
            }
            match errno() {
                libc::EACCES => denied = true,
                libc::ENOENT | libc::ESTALE | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT => {}
                _ => return,
            }
            at += CStr::from_ptr(candidate)
                .to_bytes_with_nul()
                .len()
                .next_multiple_of(size_of::<usize>());
        }
    }
    if denied {
        set_errno(Errno::ACCESS);
    }
}

/// Has the shell run a file that is no program.
unsafe fn as_script(
    file: *const c_char,
    place: &mut ThreadCopies,
    arguments: (Strings, usize),
    environment: Strings,
) {
    const SHELL: &CStr = c"/bin/sh";
    let (array, count) = arguments;
    let used = place.used;
    let script = place.take((count.max(1) + 2) * size_of::<usize>()) as *mut *const c_char;
    // SAFETY: room for one more than there are, and the null, which is copied too.
    unsafe {
        script.write(SHELL.as_ptr());
        script.add(1).write(file);
        script.add(2).write(std::ptr::null());
        if count > 1 {
            std::ptr::copy_nonoverlapping(array.add(1), script.add(2), count);
        }
        real!(c"execve" as Execve)(SHELL.as_ptr(), script, environment);
    }
    place.used = used;
}

/// execve(2).
///
/// # Safety
///
/// As for execve(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let real = real!(c"execve" as Execve);
    // SAFETY: the caller's promise.
    unsafe {
        execute(
            path,
            Arguments::Array(arguments),
            environment,
            Executed::At(libc::AT_FDCWD, path as usize),
            |path, arguments, environment| real(path, arguments, environment),
        )
        .unwrap_or_else(|| real(path, arguments, environment))
    }
}

/// execv(3).
///
/// # Safety
///
/// As for execv(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execve(path, arguments, environ) }
}

/// fexecve(3).
///
/// # Safety
///
/// As for fexecve(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    type Fexecve = unsafe extern "C" fn(c_int, Strings, Strings) -> c_int;
    let real = real!(c"fexecve" as Fexecve);
    // SAFETY: the caller's promise.
    unsafe {
        execute(
            std::ptr::null(),
            Arguments::Array(arguments),
            environment,
            Executed::Open(fd),
            |_, arguments, environment| real(fd, arguments, environment),
        )
        .unwrap_or_else(|| real(fd, arguments, environment))
    }
}

/// execveat(2).
///
/// # Safety
///
/// As for execveat(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    type Execveat = unsafe extern "C" fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
    let real = real!(c"execveat" as Execveat);
    let is_empty = || memory::read::<u8>(path as usize) == Some(0);
    let target = match flags & libc::AT_EMPTY_PATH != 0 && is_empty() {
        true => Executed::Open(dir),
        false => Executed::At(dir, path as usize),
    };
    // SAFETY: the caller's promise.
    unsafe {
        execute(
            path,
            Arguments::Array(arguments),
            environment,
            target,
            |path, arguments, environment| real(dir, path, arguments, environment, flags),
        )
        .unwrap_or_else(|| real(dir, path, arguments, environment, flags))
    }
}

/// execvp(3).
///
/// # Safety
///
/// As for execvp(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, arguments, environ) }
}

/// execvpe(3).
///
/// # Safety
///
/// As for execvpe(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    type Execvpe = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
    let execve = real!(c"execve" as Execve);
    // SAFETY: the caller's promise.
    unsafe {
        execute(
            file,
            Arguments::Array(arguments),
            environment,
            Executed::Search(file as usize),
            |path, arguments, environment| execve(path, arguments, environment),
        )
        .unwrap_or_else(|| real!(c"execvpe" as Execvpe)(file, arguments, environment))
    }
}

/// Which function with a list of arguments it is.
const EXECL: u32 = 0;
const EXECLP: u32 = 1;
const EXECLE: u32 = 2;

// The functions with a list of arguments: they are made with copies, or go to the C library as they
// came.
macro_rules! list_family {
    ($($(#[$doc:meta])* $symbol:ident $next:ident $which:ident = $name:literal;)*) => {
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
                    ".cfi_startproc",
                    "push r9",
                    "push r8",
                    "push rcx",
                    "push rdx",
                    "push rsi",
                    "push rdi",
                    "sub rsp, 8",
                    ".cfi_adjust_cfa_offset 56",
                    "lea rsi, [rsp + 16]",
                    "lea rdx, [rsp + 64]",
                    "mov ecx, {which}",
                    "call {execute}",
                    "test eax, eax",
                    "jnz 2f",
                    "call {next}",
                    "add rsp, 8",
                    "pop rdi",
                    "pop rsi",
                    "pop rdx",
                    "pop rcx",
                    "pop r8",
                    "pop r9",
                    ".cfi_remember_state",
                    ".cfi_adjust_cfa_offset -56",
                    "mov r11, rax",
                    "xor eax, eax",
                    "jmp r11",
                    "2:",
                    ".cfi_restore_state",
                    "add rsp, 56",
                    ".cfi_adjust_cfa_offset -56",
                    "ret",
                    ".cfi_endproc",
                    which = const $which,
                    execute = sym execute_list,
                    next = sym $next,
                );
            }

            extern "C" fn $next() -> usize {
                type List = unsafe extern "C" fn(*const c_char, *const c_char, ...) -> c_int;
                real!($name as List) as usize
            }
        )*
    };
}

list_family! {
    /// execl(3).
    execl next_execl EXECL = c"execl";
    /// execlp(3).
    execlp next_execlp EXECLP = c"execlp";
    /// execle(3).
    execle next_execle EXECLE = c"execle";
}

/// Executes a program with a list of arguments; 0 where the C library is to do it.
unsafe extern "C" fn execute_list(
    path: *const c_char,
    first: *const usize,
    rest: *const usize,
    which: u32,
) -> c_int {
    let arguments = Arguments::List(first, rest);
    let execve = real!(c"execve" as Execve);
    // SAFETY: a list, which ends with a null; the environment follows in execle(3).
    unsafe {
        let environment = match arguments.count() {
            Some(count) if which == EXECLE => arguments.get(count + 1).unwrap_or(0) as Strings,
            _ => environ,
        };
        let call = |path, arguments, environment| execve(path, arguments, environment);
        let target = match which {
            EXECLP => Executed::Search(path as usize),
            _ => Executed::At(libc::AT_FDCWD, path as usize),
        };
        execute(path, arguments, environment, target, call).unwrap_or(0)
    }
}
