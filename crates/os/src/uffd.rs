//! userfaultfd: thin bindings, errno turned into meanings.
//!
//! [`Uffd`] is one open descriptor bound to this process's address space. Each method is one ioctl.
//! Layouts and numbers are in `abi`.

mod abi;

pub use abi::{
    Features, Register, Transfer, UFFDIO_COPY, UFFDIO_MOVE, UFFDIO_REGISTER, UFFDIO_UNREGISTER,
    UffdRange,
};

use crate::descriptors;
use crate::io::File;
use crate::units::{Errno, PAGE_SIZE, check};
use crate::vm;
use abi::{
    API_VERSION, Api, COPY_MODE_WP, EVENT_PAGEFAULT, Fill, MODE_DONTWAKE, PAGEFAULT_FLAG_WP,
    PAGEFAULT_FLAG_WRITE, REGISTER_MODE_MISSING, REGISTER_MODE_WP, UFFD_USER_MODE_ONLY, UFFDIO_API,
    UFFDIO_POISON, UFFDIO_WAKE, UFFDIO_WRITEPROTECT, USERFAULTFD_IOC_NEW,
    WRITEPROTECT_MODE_DONTWAKE, WRITEPROTECT_MODE_WP, WriteProtect,
};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ops::Range;
use std::sync::atomic::{AtomicI32, Ordering};
use syscalls::{Sysno, raw_syscall};

/// What a transfer did: how many bytes from the start, and why it stopped there if it did not reach
/// the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transferred {
    /// Bytes transferred from the start of the range.
    pub bytes: usize,
    /// Why it stopped early.
    pub stop: Option<Stop>,
}

/// Why a transfer stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// A page is there already (EEXIST).
    Exists,
    /// The source of a move has a hole there (ENOENT), or the destination is no longer registered.
    Absent,
    /// The page is pinned for DMA, shared after a fork, or part of a large folio (EBUSY).
    Busy,
    /// Mappings are being changed: try again (EAGAIN).
    Again,
    /// The ranges differ in protection or kind (EINVAL), so the page cannot be moved that way.
    Unsuitable,
    /// The address space is being torn down (ESRCH).
    Gone,
    /// Anything else.
    Other(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        match errno {
            Errno::EXIST => Stop::Exists,
            Errno::NOENT => Stop::Absent,
            Errno::BUSY => Stop::Busy,
            Errno::AGAIN => Stop::Again,
            Errno::INVAL => Stop::Unsuitable,
            Errno::SRCH => Stop::Gone,
            other => Stop::Other(other),
        }
    }
}

/// How a userfaultfd was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenedBy {
    /// The system call, kernel faults included (root, CAP_SYS_PTRACE, or
    /// vm.unprivileged_userfaultfd = 1).
    SystemCall,
    /// /dev/userfaultfd, kernel faults included.
    Device,
    /// The system call, faults from user mode only: a system call that is handed an absent page
    /// gets EFAULT.
    UserModeOnly,
}

/// A page fault to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultEvent {
    /// Address of the page.
    pub address: usize,
    /// Whether it was a store.
    pub write: bool,
    /// Whether it hit a write-protected page.
    pub write_protected: bool,
    /// The faulting thread.
    pub thread: u32,
}

/// An open userfaultfd of this process. The descriptor can be replaced, which a child of a fork
/// does.
#[derive(Debug)]
pub struct Uffd {
    fd: AtomicI32,
    features: Features,
    /// /dev/userfaultfd: who has it open may make more of them, whatever rights the process has
    /// given up since.
    device: Option<File>,
}

/// Opens a descriptor in the most capable way that is allowed; `user_mode_only` settles for
/// user-mode faults where nothing more is to be had.
pub fn open_descriptor(user_mode_only: bool) -> Result<(OwnedFd, OpenedBy), Errno> {
    descriptor(user_mode_only, None)
}

fn open_device() -> Result<File, Errno> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    descriptors::open_path(|| {
        rustix::fs::open("/dev/userfaultfd", flags, rustix::fs::Mode::empty())
    })
    .map(File::from_fd)
}

/// [`open_descriptor`], where `device` may be open already.
fn descriptor(user_mode_only: bool, device: Option<&File>) -> Result<(OwnedFd, OpenedBy), Errno> {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    let by_call = |extra: usize| {
        // SAFETY: the call takes flags only and returns a new descriptor that nothing else owns.
        unsafe {
            let fd = descriptors::open(|| check(raw_syscall!(Sysno::userfaultfd, flags | extra)))?;
            Ok::<_, Errno>(OwnedFd::from_raw_fd(fd as i32))
        }
    };
    let first = match by_call(0) {
        Ok(fd) => return Ok((fd, OpenedBy::SystemCall)),
        Err(errno) => errno,
    };
    let opened = if device.is_none() { open_device().ok() } else { None };
    if let Some(Ok(device)) = device.or(opened.as_ref()).map(File::raw_fd) {
        // SAFETY: the ioctl takes flags by value and returns a new descriptor that nothing else
        // owns.
        unsafe {
            if let Ok(fd) = descriptors::open(|| {
                check(raw_syscall!(Sysno::ioctl, device, USERFAULTFD_IOC_NEW, flags))
            }) {
                return Ok((OwnedFd::from_raw_fd(fd as i32), OpenedBy::Device));
            }
        }
    }
    if user_mode_only {
        by_call(UFFD_USER_MODE_ONLY).map(|fd| (fd, OpenedBy::UserModeOnly))
    } else {
        Err(first)
    }
}

impl Uffd {
    /// Opens a userfaultfd and agrees on features: those in `wanted` that the kernel has, minus
    /// `without`.
    pub fn open(
        wanted: Features,
        without: Features,
        user_mode_only: bool,
    ) -> Result<(Uffd, OpenedBy), Errno> {
        // The features of a kernel can be asked for only on a descriptor of its own: the answer
        // binds it.
        let (probe, _) = open_descriptor(user_mode_only)?;
        let has = handshake(&probe, Features(0))?;
        drop(probe);
        let features = Features(has.0 & wanted.0 & !without.0);
        let (fd, by) = open_descriptor(user_mode_only)?;
        handshake(&fd, features)?;
        let fd = descriptors::take(fd);
        // User-mode faults need no right.
        let device = if user_mode_only { None } else { open_device().ok() };
        Ok((Uffd { fd: AtomicI32::new(fd), features, device }, by))
    }

    /// Replaces the descriptor by a new one with the same features, bound to the address space of
    /// the calling process: after a fork. The old one is closed first: its number may be the only
    /// one that can be had.
    pub fn reopen(&self, user_mode_only: bool) -> Result<(), Errno> {
        descriptors::close(self.raw_fd());
        let (fd, _) = descriptor(user_mode_only, self.device.as_ref())?;
        handshake(&fd, self.features)?;
        self.fd.store(descriptors::take(fd), Ordering::Release);
        Ok(())
    }

    /// The agreed features.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Number of the descriptor.
    pub fn raw_fd(&self) -> i32 {
        self.fd.load(Ordering::Acquire)
    }

    fn ioctl<T>(&self, number: u64, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: the argument has the layout that the number stands for. The kernel reads and
        // writes it only during the call. What the ioctl does to page tables concerns ranges the
        // engine owns (see `vm`).
        let ret = unsafe { raw_syscall!(Sysno::ioctl, self.raw_fd(), number, argument as *mut T) };
        check(ret).map(drop)
    }

    /// Registers a range for missing and write-protection faults.
    pub fn register(&self, range: Range<usize>) -> Result<(), Errno> {
        let mode = REGISTER_MODE_MISSING | REGISTER_MODE_WP;
        self.ioctl(UFFDIO_REGISTER, &mut Register { range: range.into(), mode, ioctls: 0 })
    }

    /// Takes a range out of registration.
    pub fn unregister(&self, range: Range<usize>) -> Result<(), Errno> {
        self.ioctl(UFFDIO_UNREGISTER, &mut UffdRange::from(range))
    }

    /// Wakes the threads that wait for faults in a range, without installing anything.
    pub fn wake(&self, range: Range<usize>) -> Result<(), Errno> {
        self.ioctl(UFFDIO_WAKE, &mut UffdRange::from(range))
    }

    /// Installs copies of `len` bytes at `src` at `dst`, write-protected if `protect`, and wakes
    /// who waits there if `wake`.
    fn copy_raw(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        protect: bool,
        wake: bool,
    ) -> Transferred {
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let mode = flag(protect, COPY_MODE_WP) | flag(!wake, MODE_DONTWAKE);
        let mut argument =
            Transfer { dst: dst as u64, src: src as u64, len: len as u64, mode, done: 0 };
        let result = self.ioctl(UFFDIO_COPY, &mut argument);
        transferred(result, argument.done, len)
    }

    /// Installs a copy of `pages` (whole pages) at `dst`, write-protected if `protect`, and wakes
    /// who waits there if `wake`.
    pub fn copy(&self, dst: usize, pages: &[u8], protect: bool, wake: bool) -> Transferred {
        assert!(pages.len().is_multiple_of(PAGE_SIZE));
        self.copy_raw(dst, pages.as_ptr() as usize, pages.len(), protect, wake)
    }

    /// As [`Uffd::copy`], which wakes, with a source given by address: frames of the arena.
    pub fn copy_from(&self, dst: usize, src: Range<usize>, protect: bool) -> Transferred {
        self.copy_raw(dst, src.start, src.len(), protect, true)
    }

    /// Moves the pages of `src` to `dst` in the same address space; both ranges are registered,
    /// `dst` is a hole. Wakes who waits at `dst` if `wake`.
    ///
    /// Linux 6.18 may move pages, lose count of them, and go on to find its own work in the way
    /// (EEXIST, seen once in some hundred thousand moves on busy processors). Taken at its word
    /// that would be a page in place that is gone. So where a move stops early, the page tables are
    /// asked.
    pub fn move_pages(&self, dst: usize, src: Range<usize>, wake: bool) -> Transferred {
        let mode = if wake { 0 } else { MODE_DONTWAKE };
        let mut argument = Transfer {
            dst: dst as u64,
            src: src.start as u64,
            len: src.len() as u64,
            mode,
            done: 0,
        };
        let result = self.ioctl(UFFDIO_MOVE, &mut argument);
        let told = transferred(result, argument.done, src.len());
        if told.stop.is_none() {
            return told;
        }
        let uncounted = moved_uncounted(dst + told.bytes, src.start + told.bytes..src.end);
        if uncounted == 0 {
            return told;
        }
        if wake {
            let _ = self.wake(dst + told.bytes..dst + told.bytes + uncounted);
        }
        let bytes = told.bytes + uncounted;
        Transferred { bytes, stop: (bytes < src.len()).then_some(Stop::Again) }
    }

    /// Write-protects the present pages of a range.
    pub fn protect(&self, range: Range<usize>) -> Result<(), Errno> {
        retry(|| {
            let mode = WRITEPROTECT_MODE_WP;
            self.ioctl(UFFDIO_WRITEPROTECT, &mut WriteProtect { range: range.clone().into(), mode })
        })
    }

    /// Takes the write protection away, and wakes who waits there if `wake`.
    pub fn unprotect(&self, range: Range<usize>, wake: bool) -> Result<(), Errno> {
        retry(|| {
            let mode = if wake { 0 } else { WRITEPROTECT_MODE_DONTWAKE };
            self.ioctl(UFFDIO_WRITEPROTECT, &mut WriteProtect { range: range.clone().into(), mode })
        })
    }

    /// Makes a range fail with SIGBUS for user accesses and EFAULT for the kernel's, and wakes who
    /// waits there.
    pub fn poison(&self, range: Range<usize>) -> Result<(), Errno> {
        retry(|| {
            self.ioctl(UFFDIO_POISON, &mut Fill { range: range.clone().into(), mode: 0, done: 0 })
        })
    }

    /// Reads up to `events.len()` fault events; 0 when none is waiting.
    pub fn read(&self, events: &mut [FaultEvent]) -> Result<usize, Errno> {
        const BATCH: usize = 16;
        let mut raw = [[0u64; 4]; BATCH];
        let wanted = events.len().min(BATCH) * size_of::<[u64; 4]>();
        // SAFETY: the buffer is `wanted` bytes at least, of plain integers.
        let ret = unsafe { raw_syscall!(Sysno::read, self.raw_fd(), raw.as_mut_ptr(), wanted) };
        let bytes = match check(ret) {
            Ok(bytes) => bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            Err(errno) => return Err(errno),
        };
        let mut count = 0;
        for message in &raw[..bytes / size_of::<[u64; 4]>()] {
            // struct uffd_msg: event in the first byte, then (at 8) flags, (16) address, (24)
            // thread id.
            if message[0] as u8 == EVENT_PAGEFAULT {
                events[count] = FaultEvent {
                    address: message[2] as usize & !(PAGE_SIZE - 1),
                    write: message[1] & PAGEFAULT_FLAG_WRITE != 0,
                    write_protected: message[1] & PAGEFAULT_FLAG_WP != 0,
                    thread: message[3] as u32,
                };
                count += 1;
            }
        }
        Ok(count)
    }

    /// Waits until an event can be read, for `timeout_ms` milliseconds at most; whether there is
    /// one.
    pub fn wait(&self, timeout_ms: u32) -> Result<bool, Errno> {
        let mut pollfd = libc::pollfd { fd: self.raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = libc::timespec {
            tv_sec: (timeout_ms / 1000) as i64,
            tv_nsec: (timeout_ms % 1000) as i64 * 1_000_000,
        };
        let (timeout, no_mask) = (&time as *const libc::timespec, std::ptr::null::<u8>());
        // SAFETY: one pollfd and one timespec, both alive during the call, and no signal mask.
        let ret =
            unsafe { raw_syscall!(Sysno::ppoll, &mut pollfd as *mut _, 1, timeout, no_mask, 8) };
        match check(ret) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        descriptors::close(self.raw_fd());
    }
}

fn handshake(fd: &OwnedFd, features: Features) -> Result<Features, Errno> {
    let mut api = Api { api: API_VERSION, features: features.0, ioctls: 0 };
    // SAFETY: the argument is a struct uffdio_api that lives through the call.
    check(unsafe { raw_syscall!(Sysno::ioctl, fd.as_raw_fd(), UFFDIO_API, &mut api as *mut Api) })?;
    Ok(Features(api.features))
}

fn retry(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::AGAIN) => rustix::thread::sched_yield(),
            other => return other,
        }
    }
}

/// Bytes at the beginning of `src` that are at `dst`, and not where they were: so they have been
/// moved.
fn moved_uncounted(dst: usize, src: Range<usize>) -> usize {
    const AT_ONCE: usize = 64;
    let mut moved = 0;
    while moved < src.len() {
        let len = (src.len() - moved).min(AT_ONCE * PAGE_SIZE);
        let (mut here, mut there) = ([0; AT_ONCE], [0; AT_ONCE]);
        let from = |start: usize| start + moved..start + moved + len;
        if vm::residency(from(src.start), &mut here).is_err()
            || vm::residency(from(dst), &mut there).is_err()
        {
            return moved;
        }
        let pages = here.iter().zip(there).take(len / PAGE_SIZE);
        let gone = pages.take_while(|(here, there)| **here & 1 == 0 && there & 1 == 1).count();
        moved += gone * PAGE_SIZE;
        if gone * PAGE_SIZE < len {
            return moved;
        }
    }
    moved
}

fn transferred(result: Result<(), Errno>, done: i64, len: usize) -> Transferred {
    match result {
        Ok(()) => Transferred { bytes: len, stop: None },
        // A partial transfer says EAGAIN and how far it came; the next try names the reason.
        Err(errno) => Transferred { bytes: done.max(0) as usize, stop: Some(errno.into()) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_were_moved_uncounted_are_counted() {
        let Ok((uffd, _)) = Uffd::open(Features::MOVE, Features(0), true) else {
            return eprintln!("skipped: there is no userfaultfd");
        };
        if !uffd.features().has(Features::MOVE) {
            return eprintln!("skipped: this kernel cannot move pages");
        }
        const PAGES: usize = 80;
        let reserve = || crate::vm::reserve(PAGES * PAGE_SIZE, PAGE_SIZE).unwrap();
        let (src, dst) = (reserve(), reserve());
        for start in [src, dst] {
            let range = start..start + PAGES * PAGE_SIZE;
            crate::vm::protect(range.clone(), crate::vm::Prot::READ_WRITE).unwrap();
            uffd.register(range).unwrap();
        }
        for page in 0..PAGES {
            assert_eq!(
                uffd.copy(src + page * PAGE_SIZE, &[page as u8 + 1; PAGE_SIZE], false, true).stop,
                None
            );
        }
        let pages =
            |start: usize, from: usize, to: usize| start + from * PAGE_SIZE..start + to * PAGE_SIZE;
        // As if the kernel had moved them in one call with what follows, and said nothing.
        assert_eq!(
            uffd.move_pages(dst, pages(src, 0, 70), false),
            Transferred { bytes: 70 * PAGE_SIZE, stop: None }
        );
        let all = uffd.move_pages(dst, pages(src, 0, PAGES), true);
        assert_eq!(all, Transferred { bytes: 70 * PAGE_SIZE, stop: Some(Stop::Again) });
        assert_eq!(uffd.move_pages(dst + 10 * PAGE_SIZE, pages(src, 10, 70), true).stop, None);
        assert_eq!(uffd.move_pages(dst + 70 * PAGE_SIZE, pages(src, 70, PAGES), false).stop, None);
        for page in 0..PAGES {
            let mut out = [0; PAGE_SIZE];
            crate::vm::copy_page(dst + page * PAGE_SIZE, &mut out);
            assert_eq!(out, [page as u8 + 1; PAGE_SIZE]);
        }
        // A page that is in the way, and a hole, are what they are.
        assert_eq!(uffd.copy(src, &[1; PAGE_SIZE], false, true).stop, None);
        let stopped = |stop| Transferred { bytes: 0, stop: Some(stop) };
        assert_eq!(
            uffd.move_pages(dst + 2 * PAGE_SIZE, pages(src, 0, 1), false),
            stopped(Stop::Exists)
        );
        crate::vm::advise(pages(dst, 1, 2), libc::MADV_DONTNEED).unwrap();
        assert_eq!(
            uffd.move_pages(dst + PAGE_SIZE, pages(src, 1, 2), false),
            stopped(Stop::Absent)
        );
    }

    #[test]
    fn numbers_are_those_of_the_interface() {
        assert_eq!(UFFDIO_API, 0xc018aa3f);
        assert_eq!(UFFDIO_REGISTER, 0xc020aa00);
        assert_eq!(UFFDIO_UNREGISTER, 0x8010aa01);
        assert_eq!(UFFDIO_COPY, 0xc028aa03);
        assert_eq!(UFFDIO_MOVE, 0xc028aa05);
        assert_eq!(UFFDIO_WRITEPROTECT, 0xc018aa06);
        assert_eq!(UFFDIO_POISON, 0xc020aa08);
    }
}
