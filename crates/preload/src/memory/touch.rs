//! Makes managed pages present, in signal delivery: by touching them as the program may.
//!
//! The kernel meets an absent page with EFAULT. So what a call reads or writes is touched first,
//! and again, with more around it, as long as the call fails so.

use crate::pool::Access;
use crate::route::{pages_touched, split};
use crate::{memory, pool};
use overspill_os::{PAGE_SIZE, seccomp};
use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};

/// Tries before the program gets its EFAULT. The last one has made 256 pages around each address
/// present.
pub const TRIES: usize = 8;

/// Makes the managed pages of a range present as far as the program may access them: for writing
/// where it may write. Pages that the program has for itself are the kernel's affair: a touch would
/// be one of the program's, and be told to a userfaultfd of its own.
pub fn touch(start: usize, len: usize) {
    let Some(range) = pages_touched(start, len.max(1)) else { return };
    let inside = split(range, pool::window()).inside;
    if inside.is_empty() {
        return;
    }
    let end = inside.start + pool::accessible(inside.clone(), Access::Read);
    let writable = inside.start + pool::accessible(inside.clone(), Access::Write);
    for page in (inside.start..end).step_by(PAGE_SIZE).filter(|page| !pool::is_foreign(*page)) {
        // SAFETY: the page may be accessed in this way.
        unsafe { touch_byte(page, if page < writable { Access::Write } else { Access::Read }) };
    }
}

/// Makes one page present, and for [`Access::Write`] writable without another fault.
///
/// # Safety
///
/// The byte is the program's, and valid for the access.
unsafe fn touch_byte(byte: usize, access: Access) {
    // SAFETY: the caller's promise. A write that changes nothing is atomic, so that no other
    // thread's is lost.
    unsafe {
        match access {
            Access::Read => drop((byte as *const u8).read_volatile()),
            Access::Write => {
                let byte = AtomicU8::from_ptr(byte as *mut u8);
                let mut value = byte.load(Ordering::Relaxed);
                // Not fetch_or(0), of which the compiler makes a load.
                while let Err(now) = byte.compare_exchange_weak(
                    value,
                    black_box(value),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    value = now;
                }
            }
        }
    }
}

/// How much of what an argument points to is searched for addresses, and how much at once.
const SEARCHED: usize = 4096;
const AT_ONCE: usize = 32;

/// Makes present what the arguments of a call point to, and what is pointed to from there: words
/// that may be managed addresses. Returns whether there was one. It is not known what they are, so
/// that is for calls that have met an absent page; with each round more pages behind each are.
pub fn follow(number: i64, arguments: &[usize; 6], round: usize) -> bool {
    let Ok(number) = usize::try_from(number) else { return false };
    let addresses = seccomp::arguments::pointers(number);
    let behind = arguments.iter().enumerate().filter(|(n, _)| addresses & 1 << n != 0);
    behind.fold(false, |found, (_, address)| follow_words(*address, 2, 2 << round) || found)
}

fn follow_words(at: usize, depth: usize, pages: usize) -> bool {
    let mut found = false;
    for start in (at..at.saturating_add(SEARCHED)).step_by(AT_ONCE * size_of::<usize>()) {
        let mut words = [0usize; AT_ONCE];
        let len = memory::read_into(start, &mut words);
        for word in &words[..len / size_of::<usize>()] {
            if pool::contains(*word) && !pool::is_foreign(*word) {
                found = true;
                touch(*word, ((pages - 1) * PAGE_SIZE).min(pool::window().end - word));
                if depth > 1 {
                    follow_words(*word, depth - 1, pages);
                }
            }
        }
        if len < size_of_val(&words) {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;

    /// Page faults of this thread so far.
    fn faults() -> i64 {
        // SAFETY: a zeroed rusage is valid, and the call fills it.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
            usage.ru_minflt
        }
    }

    #[test]
    fn a_write_touch_writes_and_changes_nothing() {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, used within its page and unmapped at the end.
        unsafe {
            let page = libc::mmap(std::ptr::null_mut(), PAGE_SIZE, prot, flags, -1, 0) as usize;
            // Touching for a read maps the shared zero page; only a write then faults again, once.
            let count = |access| {
                let before = faults();
                touch_byte(page + 5, access);
                faults() - before
            };
            let counts = (
                count(Access::Read),
                count(Access::Read),
                count(Access::Write),
                count(Access::Write),
            );
            assert_eq!(counts, (1, 0, 1, 0));
            *(page as *mut u8).add(5) = 77;
            touch_byte(page + 5, Access::Write);
            assert_eq!(*(page as *const u8).add(5), 77);
            libc::munmap(page as *mut c_void, PAGE_SIZE);
        }
    }
}
