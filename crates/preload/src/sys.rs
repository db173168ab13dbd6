//! The way around ourselves: raw system calls, the C library's own functions, errno.
//!
//! An interposed function gets at the real thing in one of two ways: a raw system call where the C
//! library's function is nothing more (mappings, descriptors), or the next definition of the symbol
//! ([`real!`]) where it is more: cancellation points, signal trampolines, thread creation.

use overspill_os::seccomp::change_mappings;
use overspill_os::{Errno, vm};
use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use syscalls::{Sysno, raw_syscall};

/// Splits a kernel return value.
pub fn check(ret: usize) -> Result<usize, Errno> {
    if ret > -4096isize as usize {
        Err(Errno::from_raw_os_error(-(ret as isize) as i32))
    } else {
        Ok(ret)
    }
}

/// Makes a result of an error number.
pub const fn failure(errno: i32) -> usize {
    -errno as isize as usize
}

/// Whether a result is an error number.
pub fn is_failure(result: usize) -> bool {
    result > -4096isize as usize
}

/// Makes the C return value of a result: the value, or -1 with errno set.
pub fn to_c(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// [`to_c`] for functions that return int.
pub fn to_c_int(result: Result<usize, Errno>) -> i32 {
    to_c(result) as i32
}

/// What a descriptor is of; `None` where it is none.
pub fn status(fd: i32) -> Option<libc::stat> {
    // SAFETY: a zeroed stat is valid, and the kernel fills it.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        check(raw_syscall!(Sysno::fstat, fd, &raw mut stat)).is_ok().then_some(stat)
    }
}

/// Sets the calling thread's errno.
pub fn set_errno(errno: Errno) {
    restore_errno(errno.raw_os_error());
}

/// Gives the calling thread's errno a value that it had; 0, which no error has, is such a value
/// too.
pub fn restore_errno(errno: i32) {
    // SAFETY: the C library gives each thread its own errno.
    unsafe { *libc::__errno_location() = errno };
}

/// The calling thread's errno.
pub fn errno() -> i32 {
    // SAFETY: as in `restore_errno`.
    unsafe { *libc::__errno_location() }
}

/// While this lives the calling thread is not cancelled: a cancellation unwinds the stack, which
/// Rust's functions do not allow, and may come from any function of the C library that waits or
/// closes.
pub struct Uncancelled {
    before: i32,
}

impl Uncancelled {
    /// Puts cancellation off.
    pub fn begin() -> Uncancelled {
        let mut before = 0;
        // SAFETY: the old state is written during the call.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut before) };
        Uncancelled { before }
    }

    /// Leaves it off, for [`Uncancelled::resume`] to end.
    pub fn suspend(self) -> i32 {
        let before = self.before;
        std::mem::forget(self);
        before
    }

    /// Takes up what [`Uncancelled::suspend`] left.
    pub fn resume(before: i32) -> Uncancelled {
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: a state that the thread had; nothing asks for the old one.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

/// PTHREAD_CANCEL_DISABLE.
const CANCEL_DISABLE: i32 = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

/// Runs `call` and leaves errno as it was. The engine's locks and Rust's runtime wait by the C
/// library's `syscall`, which sets errno where a lock is contended; a program does not expect that
/// of a call that succeeds.
pub fn keeping_errno<R>(call: impl FnOnce() -> R) -> R {
    let before = errno();
    let result = call();
    restore_errno(before);
    result
}

/// mmap(2).
///
/// # Safety
///
/// As for mmap(2): with MAP_FIXED, nothing that Rust code refers to may lie in the range.
pub unsafe fn mmap(
    address: usize,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let [prot, flags, fd] = [prot, flags, fd].map(|number| number as usize);
        change_mappings(Sysno::mmap, [address, len, prot, flags, fd, offset as usize])
    }
}

/// mmap(2) of anonymous memory for the library itself, away from the program's.
///
/// # Safety
///
/// As for mmap(2); nothing is replaced.
pub unsafe fn mmap_own(len: usize, prot: i32, flags: i32) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { mmap(vm::own_place(len) as usize, len, prot, flags, -1, 0) }
}

/// The same for copies of what the program has in memory: in no core dump, as that may be in none.
pub fn map_for_copies(len: usize) -> Result<usize, Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let base = unsafe { mmap_own(len, prot, flags)? };
    let made = vm::advise(base..base + len, vm::advice::DONTDUMP);
    made.map(|()| base)
}

/// A system call on a range of addresses with one more argument: munmap, mprotect, madvise, mlock,
/// munlock, mlock2.
///
/// # Safety
///
/// As for that system call: nothing that Rust code refers to may lie in the range.
pub unsafe fn on_range(
    call: Sysno,
    address: usize,
    len: usize,
    argument: i32,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { change_mappings(call, [address, len, argument as usize]) }
}

/// The next definition of a symbol after this library's, 0 if there is none.
#[inline(never)]
pub fn next_definition(name: &CStr) -> usize {
    // SAFETY: the name is a C string. RTLD_NEXT goes by the caller's address, so this must not
    // become a tail call; the use of the result below sees to that.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    std::hint::black_box(address) as usize
}

/// The C library's own definition of a symbol that it always had, 0 if there is none: also where
/// another library, which gives it no version, has one of that name before it.
#[inline(never)]
pub fn c_librarys_definition(name: &CStr) -> usize {
    // SAFETY: both are C strings. RTLD_NEXT as in `next_definition`.
    let address = unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), c"GLIBC_2.2.5".as_ptr()) };
    std::hint::black_box(address) as usize
}

/// The function of that name that is defined after this library, if there is one: newer C libraries
/// have it, or another library.
///
/// # Safety
///
/// `F` is the type of a function, and that of this one.
pub unsafe fn next_function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let address = next_definition(name);
    // SAFETY: the caller's promise.
    (address != 0).then(|| unsafe { std::mem::transmute_copy(&address) })
}

/// Ends the process because a function that every C library has is missing.
#[cold]
pub fn missing(name: &CStr) -> ! {
    overspill_os::thread::report(format_args!(
        "the C library has no {}; this library needs glibc",
        name.to_string_lossy()
    ));
    exit_group(125)
}

/// Ends the process at once: no handlers, no destructors.
pub fn exit_group(status: i32) -> ! {
    // SAFETY: the call does not return.
    unsafe { raw_syscall!(Sysno::exit_group, status) };
    unreachable!("exit_group returned")
}

/// A function of type `F` defined after this library, looked up once. Its name is in the code that
/// looks: a name beside the address would be one more word for the loader to relocate, in pages
/// that each process writes to for that.
pub struct NextFunction<F> {
    address: AtomicUsize,
    function: PhantomData<F>,
}

impl<F: Copy> NextFunction<F> {
    /// Not looked up yet. `F` is the type of a function.
    pub const fn new() -> NextFunction<F> {
        assert!(size_of::<F>() == size_of::<usize>());
        NextFunction { address: AtomicUsize::new(0), function: PhantomData }
    }

    /// The C library's function of this name, which has the type `F`: always the same.
    #[inline(always)]
    pub fn get(&self, name: &'static CStr) -> F {
        let mut address = self.address.load(Ordering::Relaxed);
        if address == 0 {
            address = find(&self.address, name);
        }
        // SAFETY: F is a function pointer, and whoever named the function gave its type, as in an
        // extern block.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

#[cold]
fn find(found: &AtomicUsize, name: &'static CStr) -> usize {
    let address = next_definition(name);
    if address == 0 {
        missing(name);
    }
    found.store(address, Ordering::Relaxed);
    address
}

/// The C library's own function of that name: `real!(c"close" as unsafe extern "C" fn(i32) ->
/// i32)`.
macro_rules! real {
    ($name:literal as $type:ty) => {{
        static NEXT: $crate::sys::NextFunction<$type> = $crate::sys::NextFunction::new();
        NEXT.get($name)
    }};
}
pub(crate) use real;
