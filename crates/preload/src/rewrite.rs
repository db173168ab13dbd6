//! Changes machine code of the program and of its libraries, while the process has one thread.
//!
//! `/proc/self/mem` writes past the protection of a mapping, which stays one: the program finds as
//! many in `/proc/self/maps` as natively. Where it cannot be had (no /proc, a sandbox, a kernel
//! that forbids such writes), the pages are made writable for the moment, and are a mapping of
//! their own from then on.

use crate::route::pages_touched;
use crate::sys;
use overspill_os::{Errno, descriptors};
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use rustix::fs::{Mode, OFlags};
use std::ffi::c_int;
use syscalls::Sysno;

/// Writes code of one protection.
pub struct Writer {
    memory: Option<RawFd>,
    prot: c_int,
}

impl Writer {
    /// For code that has this protection.
    pub fn new(prot: c_int) -> Writer {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let open = || rustix::fs::open(c"/proc/self/mem", flags, Mode::empty());
        Writer { memory: descriptors::open_path(open).ok().map(|fd| fd.into_raw_fd()), prot }
    }

    /// Writes bytes of code at an address.
    ///
    /// # Errors
    /// Those of mprotect(2), when the code cannot be written either way.
    ///
    /// # Safety
    ///
    /// It is code of this protection, nobody runs it now, and it may be what it becomes.
    pub unsafe fn write(&self, at: usize, code: &[u8]) -> Result<(), Errno> {
        let written = self.memory.is_some_and(|memory| {
            // SAFETY: it is open until self goes.
            let memory = unsafe { BorrowedFd::borrow_raw(memory) };
            rustix::io::pwrite(memory, code, at as u64) == Ok(code.len())
        });
        if written {
            return Ok(());
        }
        let pages = pages_touched(at, code.len()).ok_or(Errno::INVAL)?;
        let protect =
            // SAFETY: code keeps its protection, or gets more.
            |prot| unsafe { sys::on_range(Sysno::mprotect, pages.start, pages.len(), prot) };
        protect(self.prot | libc::PROT_WRITE)?;
        // SAFETY: the caller's promise; it can be written now.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len()) };
        protect(self.prot).map(drop)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory {
            // SAFETY: it is ours, and not used again. Not through OwnedFd, which calls the symbol
            // `close`, that this library replaces.
            unsafe { rustix::io::close(memory) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_os::PAGE_SIZE;
    use rustix::mm::{self, MapFlags, ProtFlags};

    #[test]
    fn code_is_written_both_ways_and_its_protection_stays() {
        let prot = ProtFlags::READ | ProtFlags::EXEC;
        for by_mprotect in [false, true] {
            // SAFETY: a mapping of its own, which nothing refers to when it goes.
            unsafe {
                let base = std::ptr::null_mut();
                let page = mm::mmap_anonymous(base, 2 * PAGE_SIZE, prot, MapFlags::PRIVATE);
                let at = page.unwrap() as usize + PAGE_SIZE - 2;
                let prot = libc::PROT_READ | libc::PROT_EXEC;
                let writer =
                    if by_mprotect { Writer { memory: None, prot } } else { Writer::new(prot) };
                writer.write(at, &[1, 2, 3, 4]).unwrap();
                assert_eq!((at as *const [u8; 4]).read_unaligned(), [1, 2, 3, 4]);
                // A read into it fails, as into what cannot be written.
                let zero = std::fs::File::open("/dev/zero").unwrap();
                let into = libc::read(std::os::fd::AsRawFd::as_raw_fd(&zero), at as *mut _, 1);
                assert_eq!(into, -1, "{by_mprotect}");
                mm::munmap((at + 2 - PAGE_SIZE) as *mut _, 2 * PAGE_SIZE).unwrap();
            }
        }
    }
}
