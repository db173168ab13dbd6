//! Copies that the calling thread keeps of what it executes a program with, until it executes
//! something again or ends.

use crate::sys;
use overspill_os::{Errno, PAGE_SIZE, tls};
use syscalls::Sysno;

/// Unmanaged memory that belongs to the thread: its first word has its length.
pub struct ThreadCopies {
    base: usize,
    /// Bytes that are taken.
    pub used: usize,
}

impl ThreadCopies {
    /// Room for so many bytes, in place of what the thread had before.
    pub fn new(len: usize) -> Result<ThreadCopies, Errno> {
        forget();
        let len = (len + size_of::<usize>()).next_multiple_of(PAGE_SIZE);
        let base = sys::map_for_copies(len)?;
        // SAFETY: a new mapping, which is the caller's alone.
        unsafe { (base as *mut usize).write(len) };
        tls::set_copies(base);
        Ok(ThreadCopies { base, used: size_of::<usize>() })
    }

    /// Takes room that was counted when the place was made.
    pub fn take(&mut self, len: usize) -> usize {
        let start = self.base + self.used;
        self.used += len.next_multiple_of(size_of::<usize>());
        // SAFETY: the place begins with its length.
        assert!(self.used <= unsafe { *(self.base as *const usize) }, "the place was measured");
        start
    }

    /// A copy of a string with its end.
    ///
    /// # Safety
    ///
    /// The caller has measured the string.
    pub unsafe fn copy(&mut self, string: usize, len: usize) -> usize {
        let place = self.take(len);
        // SAFETY: the caller has measured the string; another thread may have changed it since, so
        // its end is written.
        unsafe {
            std::ptr::copy_nonoverlapping(string as *const u8, place as *mut u8, len);
            ((place + len - 1) as *mut u8).write(0);
        }
        place
    }
}

/// Gives up what the calling thread has last executed a program with.
pub fn forget() {
    let base = tls::copies();
    if base != 0 {
        tls::set_copies(0);
        // SAFETY: made by `ThreadCopies::new`; the call that used it is over.
        let _ = unsafe { sys::on_range(Sysno::munmap, base, *(base as *const usize), 0) };
    }
}
