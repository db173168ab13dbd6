//! The functions that make a child which executes a program: its environment leads to the job
//! ([`super::environment`]).
//!
//! posix_spawn, system and popen make a child that shares the memory and sets handled signals back
//! to the default before it reads what it was given. So in signal delivery all of that is copied to
//! unmanaged memory first, the environment included; lists of file actions are made there from the
//! start.

use super::admit;
use super::environment::Change;
use super::file::Executed;
use super::placed::{Placed, Placing};
use crate::load::LOADER;
use crate::memory;
use crate::memory::strings::{Strings, each, environ, is_managed};
use crate::memory::vectors::looking;
use crate::sys::{self, next_function, real};
use overspill_os::{Errno, PAGE_SIZE, tls};
use std::ffi::{CStr, c_char, c_int, c_void};
use syscalls::Sysno;

/// A block of unmanaged memory that things are copied to.
pub struct CopyBlock {
    base: usize,
    len: usize,
    used: usize,
}

impl CopyBlock {
    /// One for so many bytes; None where there is no memory for it.
    pub fn new(len: usize) -> Option<CopyBlock> {
        let len = len.max(1).next_multiple_of(PAGE_SIZE);
        Some(CopyBlock { base: sys::map_for_copies(len).ok()?, len, used: 0 })
    }

    /// CopyBlock bytes; the block was made large enough.
    fn bytes(&mut self, from: *const u8, len: usize) -> *const u8 {
        let place = self.base + self.used;
        self.used += len.next_multiple_of(16);
        assert!(self.used <= self.len, "the block was measured");
        // SAFETY: 1. the place has so many bytes; 2. who calls this has measured as many.
        unsafe { std::ptr::copy_nonoverlapping(from, place as *mut u8, len) };
        place as *const u8
    }

    /// A copy of a string, or null.
    pub fn string(&mut self, string: *const c_char) -> *const c_char {
        if string.is_null() {
            return string;
        }
        // SAFETY: a string of the program's.
        let len = unsafe { CStr::from_ptr(string) }.to_bytes_with_nul().len();
        self.bytes(string.cast(), len).cast()
    }

    /// A copy of an array of strings and all of them, or null.
    pub fn strings(&mut self, array: Strings) -> Strings {
        if array.is_null() {
            return array;
        }
        let count = each(array).count();
        let copy = self
            .bytes(array.cast(), (count + 1) * size_of::<usize>())
            .cast::<*const c_char>()
            .cast_mut();
        for n in 0..count {
            // SAFETY: the copy has so many elements.
            unsafe { copy.add(n).write(self.string(*array.add(n))) };
        }
        // SAFETY: the last one is the null.
        unsafe { copy.add(count).write(std::ptr::null()) };
        copy
    }

    /// An environment with what it lacks; None where it is as it should be, or there is no memory.
    fn changed(environment: Strings, file: Executed) -> Option<(CopyBlock, Strings)> {
        let change = Change::of(environment, file)?;
        let copies = CopyBlock::new(change.bytes())?;
        // SAFETY: the block is of so many bytes.
        let changed = unsafe { change.write(copies.base) };
        Some((copies, changed))
    }

    /// What is executed in place of a program that is to be loaded; None where there is no memory.
    fn placed(
        placing: &Placing,
        arguments: Strings,
        environment: Strings,
    ) -> Option<(CopyBlock, Placed)> {
        let (words, variables) = (each(arguments).count(), each(environment).count());
        let mut copies = CopyBlock::new(placing.bytes(words, variables))?;
        let mut take = |len: usize| {
            copies.used += len.next_multiple_of(size_of::<usize>());
            copies.base + copies.used - len.next_multiple_of(size_of::<usize>())
        };
        // SAFETY: the block is of so many bytes; the arrays were counted.
        let placed = unsafe { placing.write(&mut take, arguments, environment) };
        Some((copies, placed))
    }

    /// Bytes that a copy of a string takes; EFAULT where it cannot be read.
    pub fn measure(string: *const c_char) -> Result<usize, Errno> {
        if string.is_null() {
            Ok(0)
        } else {
            Ok(memory::string_len(string as usize, usize::MAX)? + 16)
        }
    }

    /// The same for an array of strings.
    pub fn measure_all(array: Strings) -> Result<usize, Errno> {
        let mut bytes = 32;
        let mut count = 0;
        for string in each(array) {
            bytes += CopyBlock::measure(string)? + size_of::<usize>();
            count += 1;
        }
        // It ends with a null, not where it cannot be read.
        let end = (array as usize).checked_add(count * size_of::<usize>());
        match array.is_null() || end.and_then(memory::read::<usize>).is_some() {
            true => Ok(bytes),
            false => Err(Errno::FAULT),
        }
    }
}

impl Drop for CopyBlock {
    fn drop(&mut self) {
        // SAFETY: the mapping was made here, and the calls that used it are over.
        let _ = unsafe { sys::on_range(Sysno::munmap, self.base, self.len, 0) };
    }
}

/// Runs `call` while the environment leads to the job, and is not managed memory.
fn with_plain_environment<R>(call: impl FnOnce() -> R) -> R {
    // SAFETY: the program's environment, which nobody may change now (system(3) is not safe beside
    // setenv(3)).
    unsafe {
        let before = environ;
        let shell = Executed::At(libc::AT_FDCWD, c"/bin/sh".as_ptr() as usize);
        let changed = CopyBlock::changed(before, shell);
        let mut meanwhile = changed.as_ref().map_or(before, |(_, changed)| *changed);
        let mut copies = None;
        if looking() && is_managed(meanwhile) {
            copies = CopyBlock::measure_all(meanwhile).ok().and_then(CopyBlock::new);
        }
        if let Some(copies) = &mut copies {
            meanwhile = copies.strings(meanwhile);
        }
        if std::ptr::eq(meanwhile, before) {
            return call();
        }
        environ = meanwhile;
        let result = call();
        if std::ptr::eq(environ, meanwhile) {
            environ = before;
        }
        result
    }
}

type Actions = libc::posix_spawn_file_actions_t;
type Attributes = libc::posix_spawnattr_t;
type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const Actions,
    *const Attributes,
    Strings,
    Strings,
) -> c_int;

/// posix_spawn and posix_spawnp with copies.
///
/// # Safety
///
/// As for posix_spawn(3).
unsafe fn spawn(
    (real, file): (Spawn, fn(usize) -> Executed),
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const Actions,
    attributes: *const Attributes,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let file = file(path as usize);
    // The child may change its directory first.
    let placing =
        Placing::of(file, environment).filter(|placing| actions.is_null() || placing.is_anywhere());
    if placing.is_none() && admit::refuses(file) {
        return libc::EPERM;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let changed = CopyBlock::changed(environment, file);
        let environment = changed.as_ref().map_or(environment, |(_, changed)| *changed);
        let placed =
            placing.and_then(|placing| CopyBlock::placed(&placing, arguments, environment));
        let (path, arguments, environment) =
            placed.as_ref().map_or((path, arguments, environment), |(_, placed)| {
                (LOADER.as_ptr(), placed.arguments, placed.environment)
            });
        if !looking() {
            return real(pid, path, actions, attributes, arguments, environment);
        }
        let measure = || {
            Ok(CopyBlock::measure(path)?
                + CopyBlock::measure_all(arguments)?
                + CopyBlock::measure_all(environment)?)
        };
        let len = match measure() {
            Ok(len) => len + size_of::<Actions>() + size_of::<Attributes>() + PAGE_SIZE,
            Err(errno) => return Errno::raw_os_error(errno),
        };
        let Some(mut copies) = CopyBlock::new(len) else { return libc::ENOMEM };
        let path = copies.string(path);
        let arguments = copies.strings(arguments);
        let environment = copies.strings(environment);
        let mut plain =
            |from: *const u8, len| if from.is_null() { from } else { copies.bytes(from, len) };
        let actions = plain(actions.cast(), size_of::<Actions>()).cast();
        let attributes = plain(attributes.cast(), size_of::<Attributes>()).cast();
        let mut child = 0;
        let result = with_plain_environment(|| {
            real(&mut child, path, actions, attributes, arguments, environment)
        });
        if result == 0 && !pid.is_null() {
            pid.write(child);
        }
        result
    }
}

/// The functions that execute a file, found as the last part says. What the C library has not it
/// would not have done.
macro_rules! spawn_family {
    ($($(#[$doc:meta])* $symbol:ident = $real:expr, $file:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for posix_spawn(3).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol(
                pid: *mut libc::pid_t,
                path: *const c_char,
                actions: *const Actions,
                attributes: *const Attributes,
                arguments: Strings,
                environment: Strings,
            ) -> c_int {
                // SAFETY: 1. a function by that name has this type; 2. the caller's promise.
                unsafe {
                    let Some(real) = $real else { return libc::ENOSYS };
                    spawn((real, $file), pid, path, actions, attributes, arguments, environment)
                }
            }
        )*
    };
}

spawn_family! {
    /// posix_spawn(3).
    posix_spawn = Some(real!(c"posix_spawn" as Spawn)), |path| Executed::At(libc::AT_FDCWD, path);
    /// posix_spawnp(3).
    posix_spawnp = Some(real!(c"posix_spawnp" as Spawn)), Executed::Search;
    /// pidfd_spawn(3), of glibc from 2.39 on: a descriptor in place of a number.
    pidfd_spawn = next_function(c"pidfd_spawn"), |path| Executed::At(libc::AT_FDCWD, path);
    /// pidfd_spawnp(3).
    pidfd_spawnp = next_function(c"pidfd_spawnp"), Executed::Search;
}

/// Lists of file actions are made in unmanaged memory.
macro_rules! action_family {
    ($($(#[$doc:meta])* $name:literal $symbol:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol(
                actions: *mut Actions,
                $($argument: $type),*
            ) -> c_int {
                type Add = unsafe extern "C" fn(*mut Actions, $($type),*) -> c_int;
                let real = real!($name as Add);
                let _internal = looking().then(tls::Internal::enter);
                // SAFETY: the caller's promise.
                unsafe { real(actions, $($argument),*) }
            }
        )*
    };
}

action_family! {
    /// posix_spawn_file_actions_addopen(3).
    c"posix_spawn_file_actions_addopen" posix_spawn_file_actions_addopen(
        fd: c_int,
        path: *const c_char,
        flags: c_int,
        mode: libc::mode_t
    );
    /// posix_spawn_file_actions_addclose(3).
    c"posix_spawn_file_actions_addclose" posix_spawn_file_actions_addclose(fd: c_int);
    /// posix_spawn_file_actions_adddup2(3).
    c"posix_spawn_file_actions_adddup2" posix_spawn_file_actions_adddup2(fd: c_int, new: c_int);
    /// posix_spawn_file_actions_addchdir_np(3).
    c"posix_spawn_file_actions_addchdir_np" posix_spawn_file_actions_addchdir_np(
        path: *const c_char
    );
    /// posix_spawn_file_actions_addfchdir_np(3).
    c"posix_spawn_file_actions_addfchdir_np" posix_spawn_file_actions_addfchdir_np(fd: c_int);
    /// posix_spawn_file_actions_addclosefrom_np(3).
    c"posix_spawn_file_actions_addclosefrom_np" posix_spawn_file_actions_addclosefrom_np(fd: c_int);
    /// posix_spawn_file_actions_addtcsetpgrp_np(3).
    c"posix_spawn_file_actions_addtcsetpgrp_np" posix_spawn_file_actions_addtcsetpgrp_np(fd: c_int);
}

/// Runs `call` with a copy of a command that is not managed memory, and such an environment.
///
/// # Safety
///
/// `command` is a string, or null.
unsafe fn with_command<R>(command: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    let mut copies = None;
    if looking() {
        copies = CopyBlock::measure(command).ok().and_then(CopyBlock::new);
    }
    let copy = copies.as_mut().map_or(command, |copies| copies.string(command));
    with_plain_environment(|| call(copy))
}

/// system(3).
///
/// # Safety
///
/// As for system(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    type System = unsafe extern "C" fn(*const c_char) -> c_int;
    // SAFETY: the caller's promise.
    unsafe { with_command(command, |command| real!(c"system" as System)(command)) }
}

/// wordexp(3), which has a shell run what stands in `$(...)`.
///
/// # Safety
///
/// As for wordexp(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn wordexp(words: *const c_char, to: *mut c_void, flags: c_int) -> c_int {
    type Wordexp = unsafe extern "C" fn(*const c_char, *mut c_void, c_int) -> c_int;
    let real = real!(c"wordexp" as Wordexp);
    let call = |words| {
        // It puts the command together on the heap.
        let _internal = looking().then(tls::Internal::enter);
        // SAFETY: the caller's promise.
        unsafe { real(words, to, flags) }
    };
    // SAFETY: the caller's promise.
    unsafe { with_command(words, call) }
}

/// popen(3).
///
/// # Safety
///
/// As for popen(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    type Popen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;
    // SAFETY: the caller's promise.
    unsafe { with_command(command, |command| real!(c"popen" as Popen)(command, mode)) }
}
