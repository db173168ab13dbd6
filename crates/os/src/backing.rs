//! The seam by which pages of managed memory come and go.
//!
//! [`Backing`] is what the engine asks of a kind of memory: install a run, take a batch out,
//! protect and drop what stays in place. [`AnonPrivate`] is the only kind today: private anonymous
//! memory under a userfaultfd of the same process. Shared memory (for virtual machines) would be a
//! second implementation. Models have one of their own, whose page tables are a table
//! (`simulated`).

#[cfg(feature = "simulated")]
pub mod simulated;

use crate::uffd::{Features, Transferred, Uffd};
use crate::units::{Errno, PAGE_SIZE};
use crate::vm::{self, IoVec};
use std::ops::Range;

/// How pages of one kind of memory are installed, taken out, protected and dropped. Addresses are
/// of whole pages that the engine owns under its page locks.
pub trait Backing: Send + Sync + 'static {
    /// Installs copies of whole pages at `dst`, write-protected if `protect`; wakes who waits.
    fn install(&self, dst: usize, pages: &[u8], protect: bool) -> Transferred;
    /// The same, and wakes nobody.
    fn install_quietly(&self, dst: usize, pages: &[u8], protect: bool) -> Transferred;
    /// Installs a copy of frames of the arena, given by their addresses, write-protected if
    /// `protect`; wakes who waits.
    fn install_frames(&self, dst: usize, frames: Range<usize>, protect: bool) -> Transferred;
    /// Moves frames of the arena in, leaving holes; wakes who waits.
    fn move_in(&self, dst: usize, frames: Range<usize>) -> Transferred;
    /// Moves resident pages out to holes of the arena; wakes nobody.
    fn move_out(&self, frames: usize, src: Range<usize>) -> Transferred;
    /// Write-protects what is resident in a range; when it returns every core knows.
    fn protect(&self, range: Range<usize>) -> Result<(), Errno>;
    /// Waits for whoever has found a page in the page tables before they changed last, and writes
    /// to it while holding their lock ([`vm::settle_writers`]).
    fn settle(&self);
    /// Takes the protection away and wakes who waits.
    fn unprotect(&self, range: Range<usize>) -> Result<(), Errno>;
    /// Copies a page that is in place and accessible, and protected under the lock of its extent
    /// ([`vm::copy_page`]).
    fn read(&self, address: usize, out: &mut [u8; PAGE_SIZE]);
    /// Moves what is resident of a range, with its mapping, to where nothing is
    /// ([`vm::remap_pages`]).
    fn remap(&self, old: Range<usize>, new: usize) -> Result<(), Errno>;
    /// Drops resident pages of many ranges; returns the number of system calls.
    fn drop_pages(&self, ranges: &[IoVec]) -> Result<usize, Errno>;
    /// Drops what is resident in one range, since the program gives its content up.
    fn discard(&self, range: Range<usize>) -> Result<(), Errno>;
    /// Wakes who waits for a fault in a range.
    fn wake(&self, range: Range<usize>) -> Result<(), Errno>;
    /// Makes accesses to a range fail with SIGBUS.
    fn poison(&self, range: Range<usize>) -> Result<(), Errno>;
    /// Puts a range under management.
    fn register(&self, range: Range<usize>) -> Result<(), Errno>;
    /// Takes a range out of management: present pages stay, absent ones are the kernel's to fill;
    /// wakes who waits.
    fn unregister(&self, range: Range<usize>) -> Result<(), Errno>;
    /// Makes a page that is shared since a fork the process's own, and writable; waits for nobody.
    /// A page that the program has dropped meanwhile, by a call of its own, is one of zeros then.
    fn make_exclusive(&self, page: Range<usize>) -> Result<(), Errno>;
    /// Whether pages can be moved.
    fn can_move(&self) -> bool;
    /// Whether ranges can be poisoned.
    fn can_poison(&self) -> bool;
}

/// Private anonymous memory of this process.
#[derive(Debug)]
pub struct AnonPrivate {
    uffd: Uffd,
}

impl AnonPrivate {
    /// Under this userfaultfd.
    pub fn new(uffd: Uffd) -> AnonPrivate {
        AnonPrivate { uffd }
    }

    /// The userfaultfd underneath, to read events from.
    pub fn uffd(&self) -> &Uffd {
        &self.uffd
    }
}

impl Backing for AnonPrivate {
    fn install(&self, dst: usize, pages: &[u8], protect: bool) -> Transferred {
        self.uffd.copy(dst, pages, protect, true)
    }

    fn install_quietly(&self, dst: usize, pages: &[u8], protect: bool) -> Transferred {
        self.uffd.copy(dst, pages, protect, false)
    }

    fn install_frames(&self, dst: usize, frames: Range<usize>, protect: bool) -> Transferred {
        self.uffd.copy_from(dst, frames, protect)
    }

    fn move_in(&self, dst: usize, frames: Range<usize>) -> Transferred {
        self.uffd.move_pages(dst, frames, true)
    }

    fn move_out(&self, frames: usize, src: Range<usize>) -> Transferred {
        self.uffd.move_pages(frames, src, false)
    }

    fn protect(&self, range: Range<usize>) -> Result<(), Errno> {
        self.uffd.protect(range)
    }

    fn settle(&self) {
        vm::settle_writers();
    }

    fn unprotect(&self, range: Range<usize>) -> Result<(), Errno> {
        self.uffd.unprotect(range, true)
    }

    fn read(&self, address: usize, out: &mut [u8; PAGE_SIZE]) {
        vm::copy_page(address, out);
    }

    fn remap(&self, old: Range<usize>, new: usize) -> Result<(), Errno> {
        vm::remap_pages(old, new)
    }

    fn drop_pages(&self, ranges: &[IoVec]) -> Result<usize, Errno> {
        vm::drop_ranges(ranges)
    }

    fn discard(&self, range: Range<usize>) -> Result<(), Errno> {
        vm::advise(range, vm::MADV_DONTNEED)
    }

    fn wake(&self, range: Range<usize>) -> Result<(), Errno> {
        self.uffd.wake(range)
    }

    fn poison(&self, range: Range<usize>) -> Result<(), Errno> {
        self.uffd.poison(range)
    }

    fn register(&self, range: Range<usize>) -> Result<(), Errno> {
        self.uffd.register(range)
    }

    fn unregister(&self, range: Range<usize>) -> Result<(), Errno> {
        // Before Linux 6.0 what is protected would stay so.
        self.uffd.unprotect(range.clone(), true)?;
        self.uffd.unregister(range)
    }

    fn make_exclusive(&self, page: Range<usize>) -> Result<(), Errno> {
        if self.uffd.features().has(Features::SIGBUS) {
            self.unprotect(page.clone())?;
            return vm::make_exclusive(page);
        }
        // Where it is absent after all, a fault would be an event that nobody serves while the
        // caller owns the page. So the kernel has the page for this moment.
        self.unregister(page.clone())?;
        let made = vm::make_exclusive(page.clone());
        self.register(page).expect("a page that was registered can be so again");
        made
    }

    fn can_move(&self) -> bool {
        self.uffd.features().has(Features::MOVE)
    }

    fn can_poison(&self) -> bool {
        self.uffd.features().has(Features::POISON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// By an inline madvise(2), between the look that found it and the write.
    #[test]
    fn who_makes_a_page_exclusive_that_was_dropped_waits_for_nobody() {
        let Ok((uffd, _)) = Uffd::open(Features(0), Features(0), false) else {
            return eprintln!("SKIPPED: this user may not have the kernel's faults");
        };
        let page = vm::reserve(PAGE_SIZE, PAGE_SIZE).unwrap();
        let range = page..page + PAGE_SIZE;
        vm::protect(range.clone(), vm::Prot::READ_WRITE).unwrap();
        let backing = AnonPrivate::new(uffd);
        backing.register(range.clone()).unwrap();
        let (done, is_done) = channel();
        std::thread::spawn(move || {
            let made = backing.make_exclusive(range.clone());
            done.send((backing, made)).unwrap();
        });
        let (backing, made) = is_done.recv_timeout(Duration::from_secs(20)).expect("it waits");
        made.unwrap();
        let mut content = [7; PAGE_SIZE];
        vm::copy_page(page, &mut content);
        assert_eq!(content, [0; PAGE_SIZE]);
        // It is managed as before.
        backing.discard(page..page + PAGE_SIZE).unwrap();
        assert_eq!(backing.install(page, &[5; PAGE_SIZE], false).stop, None);
    }
}
