//! Numbers that are kept for the engine where the program may use up all others.
//!
//! Where the engine's numbers lie below the program's limit, a program that has opened all that it
//! may leaves none to the child of a fork, whose engine needs a userfaultfd and devices of its own.
//! So a few are taken at the beginning, by duplicates of one eventfd. The sibling closes its copies
//! of them. A filter of the program's may kill for the calls that this takes: under one, nothing is
//! lent or given back. No locks.

use super::noted::note;
use crate::confined::is_confined;
use crate::units::Errno;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::AcqRel, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

/// How many are kept.
pub const KEPT: i32 = 8;

/// The first of them, or 0 where none are kept.
static START: AtomicI32 = AtomicI32::new(0);
/// A bit for each that nobody uses. One always stays: the others are made of it.
static FREE: AtomicU32 = AtomicU32::new(0);

/// The bit of a number, or 0 where it is not one of them.
fn bit(fd: RawFd) -> u32 {
    let start = START.load(Relaxed);
    let is_one = start != 0 && (start..start + KEPT).contains(&fd);
    if is_one { 1 << (fd - start) } else { 0 }
}

/// The lowest number of those in a set.
fn lowest(free: u32) -> RawFd {
    START.load(Relaxed) + free.trailing_zeros() as RawFd
}

/// Keeps numbers from `start` on, those that are not taken.
pub fn begin(start: RawFd) {
    let Ok(event) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
    START.store(start, Relaxed);
    (start..start + KEPT).for_each(|number| keep(event.as_fd(), number));
    // Not through OwnedFd: that calls the symbol `close`, which the preload library replaces.
    let event = event.into_raw_fd();
    // SAFETY: opened here.
    unsafe { rustix::io::close(event) };
}

/// Makes a number one of those that nobody uses, unless it is taken.
fn keep(event: BorrowedFd, number: RawFd) {
    let Ok(made) = rustix::io::fcntl_dupfd_cloexec(event, number) else { return };
    let made = made.into_raw_fd();
    if made == number {
        note(number, true);
        FREE.fetch_or(bit(number), AcqRel);
    } else {
        // SAFETY: made here.
        unsafe { rustix::io::close(made) };
    }
}

/// Whether a number is one that is kept, and nobody uses.
pub fn is_free(fd: RawFd) -> bool {
    FREE.load(Relaxed) & bit(fd) != 0
}

/// A number for the caller, which is the eventfd's still.
fn claim() -> Option<RawFd> {
    let claimed = FREE
        .fetch_update(AcqRel, Relaxed, |free| (free.count_ones() > 1).then(|| free & (free - 1)));
    claimed.ok().map(lowest)
}

/// Makes a number that is kept another name of a descriptor.
pub fn duplicate(fd: RawFd) -> Option<RawFd> {
    let number = claim()?;
    let made = replace(number, fd);
    if !made {
        FREE.fetch_or(bit(number), AcqRel);
    }
    made.then_some(number)
}

/// Makes a call that opens something, which gets a number that is kept where there is no other.
pub fn open<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let number = claim().ok_or(Errno::MFILE)?;
    note(number, false);
    // SAFETY: the caller's, and an eventfd that nobody uses.
    unsafe { rustix::io::close(number) };
    let result = call();
    if result.is_err() {
        // Unless another thread has taken it meanwhile. SAFETY: one always stays.
        keep(unsafe { BorrowedFd::borrow_raw(lowest(FREE.load(Relaxed))) }, number);
    }
    result
}

/// Closes a descriptor of the engine's if its number is one that is kept.
pub fn give_back(fd: RawFd) -> bool {
    let (free, own) = (FREE.load(Relaxed), bit(fd));
    let is_lent = own != 0 && free & own == 0 && free != 0;
    let given = is_lent && !is_confined() && replace(fd, lowest(free));
    if given {
        FREE.fetch_or(own, AcqRel);
    }
    given
}

/// Makes one number another name of what another has.
fn replace(number: RawFd, of: RawFd) -> bool {
    // SAFETY: the number is the engine's, and the caller has it.
    unsafe { raw_syscall!(Sysno::dup3, of, number, libc::O_CLOEXEC) == number as usize }
}

#[cfg(test)]
mod tests {
    use super::super::is_engines;
    use super::*;
    use rustix::fd::AsRawFd;

    #[test]
    fn numbers_are_kept_lent_and_given_back() {
        let start = 900;
        begin(start);
        assert!((start..start + KEPT).all(|number| is_engines(number) && is_free(number)));
        let (end, _other) = rustix::pipe::pipe().unwrap();
        let lent: Vec<_> = std::iter::from_fn(|| duplicate(end.as_raw_fd())).collect();
        assert_eq!(lent, (start..start + KEPT - 1).collect::<Vec<_>>());
        assert!(lent.iter().all(|number| is_engines(*number) && !is_free(*number)));
        assert!(matches!(open(|| Ok(())), Err(Errno::MFILE)));
        assert!(lent.iter().all(|number| give_back(*number)) && !give_back(end.as_raw_fd()));
        // What fails gives its number back; what succeeds has it.
        assert!(matches!(open(|| Err::<(), _>(Errno::NOENT)), Err(Errno::NOENT)));
        assert!((start..start + KEPT).all(|number| is_engines(number) && is_free(number)));
        assert!(open(|| Ok(())).is_ok() && !is_engines(start) && !is_free(start));
    }
}
