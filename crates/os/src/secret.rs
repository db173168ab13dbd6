//! Memory for a secret: on no disk, in no core dump, and gone afterwards.
//!
//! Where the kernel has memfd_secret(2) it is a page that only the process's own instructions can
//! read: no ptrace, no core dump, no swap, no hibernation. The kernel overwrites it when the last
//! process that has it lets go of it, however it ends. Elsewhere, and where the limit of locked
//! memory leaves no room for it, the page is private memory: locked as far as the limit allows,
//! left out of core dumps, and overwritten when the value is dropped.
//!
//! Children of a fork have the value too. The kernel's page is one for all; of the other kind each
//! has a copy, which it locks by [`Secret::keep_in_child`]. A value is written once and then read
//! only, which the page's protection sees to.

use crate::descriptors;
use crate::io::File;
use crate::units::{Errno, PAGE_SIZE, check};
use crate::vm::{self, Prot, advice};
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::mm::{self, MapFlags, ProtFlags};
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use syscalls::{Sysno, raw_syscall};

/// Bytes of the stack that are overwritten after a value was made there.
const SCRUBBED: usize = 8 << 10;
const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A value in memory for a secret.
#[derive(Debug)]
pub(crate) struct Secret<T> {
    base: usize,
    /// Whether the kernel overwrites it, when nobody has it any more.
    is_kernels: bool,
    of: PhantomData<T>,
}

impl<T: Send + Sync + 'static> Secret<T> {
    /// A value that `make` makes.
    pub(crate) fn new(make: impl FnOnce() -> Result<T, Errno>) -> Result<Secret<T>, Errno> {
        Secret::new_in(
            map_kernels().map(|base| (base, true)).or_else(|_| Ok((map_own()?, false))),
            make,
        )
    }

    fn new_in(
        page: Result<(usize, bool), Errno>,
        make: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<Secret<T>, Errno> {
        const { assert!(size_of::<T>() <= PAGE_SIZE && !std::mem::needs_drop::<T>()) };
        let (base, is_kernels) = page?;
        let secret: Secret<T> = Secret { base, is_kernels, of: PhantomData };
        let made = put(base as *mut T, make);
        scrub_stack();
        made?;
        vm::protect(secret.range(), Prot::READ)?;
        Ok(secret)
    }

    /// In a child of a fork: the lock on the page is the parent's alone.
    pub(crate) fn keep_in_child(&self) {
        if !self.is_kernels {
            // No more than the limit allows.
            let _ = vm::lock(self.range(), false);
        }
    }
}

impl<T> Secret<T> {
    fn range(&self) -> Range<usize> {
        self.base..self.base + PAGE_SIZE
    }
}

impl<T> Deref for Secret<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the page is mapped until the value is dropped, has room for a T, and `new` has
        // written one there before it handed the value out. Nobody writes to it since.
        unsafe { &*(self.base as *const T) }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // The kernel's page may be another process's, too, which goes on with it.
        if !self.is_kernels && vm::protect(self.range(), Prot::READ_WRITE).is_ok() {
            for word in self.range().step_by(size_of::<u64>()) {
                // SAFETY: the page is mapped, writable and this value's own; nothing of it is
                // borrowed any more.
                unsafe { (word as *mut u64).write_volatile(0) };
            }
        }
        let _ = vm::unmap(self.range());
    }
}

/// Makes a value and puts it to its place. Not inlined, so that what it leaves on the stack lies
/// below the caller's frame.
#[inline(never)]
fn put<T>(place: *mut T, make: impl FnOnce() -> Result<T, Errno>) -> Result<(), Errno> {
    let value = make()?;
    // SAFETY: the caller has mapped a page for it, writable and not used otherwise; a page is
    // aligned for any T that fits.
    unsafe { place.write(value) };
    Ok(())
}

/// Overwrites what was on the stack below the caller's frame.
#[inline(never)]
fn scrub_stack() {
    let mut bytes = [0u8; SCRUBBED];
    for byte in &mut bytes {
        // SAFETY: a byte of an array that is borrowed for writing.
        unsafe { std::ptr::from_mut(byte).write_volatile(0) };
    }
}

/// A page of the kernel's.
fn map_kernels() -> Result<usize, Errno> {
    // SAFETY: the call takes flags and no memory.
    let open = || check(unsafe { raw_syscall!(Sysno::memfd_secret, libc::O_CLOEXEC) });
    // SAFETY: the kernel has just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(descriptors::open(open)? as RawFd) };
    let file = File::from_fd(fd);
    file.set_len(PAGE_SIZE as u64)?;
    // SAFETY: `file` holds the descriptor open until this function's end.
    let borrowed = unsafe { BorrowedFd::borrow_raw(file.raw_fd()?) };
    let hint = vm::own_place(PAGE_SIZE);
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let base = unsafe { mm::mmap(hint, PAGE_SIZE, ACCESS, MapFlags::SHARED, borrowed, 0)? };
    Ok(base as usize)
}

/// A page of this process's own.
fn map_own() -> Result<usize, Errno> {
    let hint = vm::own_place(PAGE_SIZE);
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let base = unsafe { mm::mmap_anonymous(hint, PAGE_SIZE, ACCESS, MapFlags::PRIVATE)? } as usize;
    let page = base..base + PAGE_SIZE;
    let kept = vm::advise(page.clone(), advice::DONTDUMP);
    // No more than the limit allows.
    let _ = vm::lock(page.clone(), false);
    if kept.is_err() {
        let _ = vm::unmap(page);
    }
    kept.map(|()| base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::flags;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_secret_is_read_and_is_in_no_dump() {
        let own = Secret::new_in(Ok((map_own().unwrap(), false)), || Ok([7u8; 600])).unwrap();
        let any = Secret::new(|| Ok([8u8; 600])).unwrap();
        assert_eq!((own[599], any[599]), (7, 8));
        assert!([&own, &any].iter().all(|secret| flags(secret.base).contains(" dd")));
        if any.is_kernels {
            let memory = std::fs::File::open("/proc/self/mem").unwrap();
            assert!(memory.read_exact_at(&mut [0; 8], any.base as u64).is_err());
        } else {
            eprintln!("SKIPPED in part: there is no memfd_secret here");
        }
        let locked = flags(own.base).contains(" lo");
        own.keep_in_child();
        assert_eq!((flags(own.base).contains(" lo"), own[0]), (locked, 7));
    }

    /// A page that is mapped twice, so that what is left of it can be looked at.
    #[test]
    fn what_is_given_back_is_overwritten() {
        let file = rustix::fs::memfd_create("twice", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, PAGE_SIZE as u64).unwrap();
        let map = || {
            // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
            unsafe {
                mm::mmap(std::ptr::null_mut(), PAGE_SIZE, ACCESS, MapFlags::SHARED, &file, 0)
                    .unwrap() as usize
            }
        };
        let (base, seen) = (map(), map());
        // SAFETY: the page stays mapped, and any bytes are some.
        let bytes = || unsafe { std::ptr::read_volatile(seen as *const [u8; PAGE_SIZE]) };
        let secret = Secret::new_in(Ok((base, false)), || Ok([7u8; 600])).unwrap();
        assert_eq!((secret[599], bytes()[599]), (7, 7));
        drop(secret);
        assert!(bytes().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_cannot_be_made_is_no_secret() {
        assert!(matches!(Secret::<u64>::new(|| Err(Errno::AGAIN)), Err(Errno::AGAIN)));
    }
}
