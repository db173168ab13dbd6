//! Makes managed pages present, in signal delivery: by touching them as the program may.
//!
//! The kernel meets an absent page with EFAULT. So what a call reads or writes is touched first,
//! and again, with more around it, as long as the call fails so.

use crate::pool::KernelAccess;
use crate::route::pages_touched;
use crate::{memory, pool};
use overspill_os::{PAGE_SIZE, seccomp, tls};
use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};

/// Rounds before the program gets its EFAULT: the last one makes 256 pages around each address
/// present.
const ROUNDS: u32 = 8;
/// Times that a call is made at most, where pages leave as fast as they come.
const MOST: u32 = 200;

/// How often a call was made that the kernel fails with EFAULT, and how far around its addresses
/// pages are made present.
///
/// A page may leave between the touch and the call, as often as memory is short. So it is the
/// program's EFAULT only when nothing that could be touched was absent any more, in rounds that go
/// further and further; a round in which something was absent is one to be repeated.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tries {
    round: u32,
    made: u32,
}

impl Tries {
    /// Those of a call that is not made again: it is made as it would be at last.
    pub const LAST: Tries = Tries { round: ROUNDS - 1, made: MOST - 1 };

    /// Makes pages present, by a function that is told how many around each address.
    pub fn touch<T>(&mut self, touch: impl FnOnce(usize) -> T) -> T {
        let before = tls::served();
        let result = touch(2 << self.round);
        self.made += 1;
        if tls::served() == before {
            self.round += 1;
        }
        result
    }

    /// Whether no pages were made present before.
    pub fn is_first(self) -> bool {
        self.made == 0
    }

    /// Whether the next EFAULT is the program's.
    pub fn are_over(self) -> bool {
        self.round >= ROUNDS || self.made >= MOST
    }
}

/// Makes the managed pages of a range present as far as the program may access them: for writing
/// where it may write. Pages that the program has for itself are the kernel's affair: a touch would
/// be one of the program's, and be told to a userfaultfd of its own.
pub fn touch(start: usize, len: usize) {
    let Some(range) = pages_touched(start, len.max(1)) else { return };
    let inside = pool::split(range).inside;
    if inside.is_empty() {
        return;
    }
    let end = inside.start + pool::accessible(inside.clone(), KernelAccess::Read);
    let writable = inside.start + pool::accessible(inside.clone(), KernelAccess::Write);
    for page in (inside.start..end).step_by(PAGE_SIZE).filter(|page| !pool::is_foreign(*page)) {
        // SAFETY: the page may be accessed in this way.
        unsafe {
            touch_byte(page, if page < writable { KernelAccess::Write } else { KernelAccess::Read })
        };
    }
}

/// Makes one page present, and for [`KernelAccess::Write`] writable without another fault.
///
/// # Safety
///
/// The byte is the program's, and valid for the access.
unsafe fn touch_byte(byte: usize, access: KernelAccess) {
    // SAFETY: the caller's promise. A write that changes nothing is atomic, so that no other
    // thread's is lost.
    unsafe {
        match access {
            KernelAccess::Read => drop((byte as *const u8).read_volatile()),
            KernelAccess::Write => {
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

/// The calls that follow pointers behind their arguments and have done nothing where they fail with
/// EFAULT. Of others that may not be so: rt_sigtimedwait(2) has taken the signal by then.
const FOLLOWING: [i64; 18] = [
    libc::SYS_ioctl,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_bpf,
    libc::SYS_clone3,
    libc::SYS_futex_waitv,
    SYS_FUTEX_REQUEUE,
    libc::SYS_prctl,
    libc::SYS_ptrace,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_mq_notify,
    libc::SYS_process_madvise,
    libc::SYS_seccomp,
    libc::SYS_kexec_load,
    // The set of signals is behind a pair, which is read before anything is waited for.
    libc::SYS_pselect6,
    SYS_IO_PGETEVENTS,
];

/// io_pgetevents(2), for which libc has no name.
pub const SYS_IO_PGETEVENTS: i64 = 333;

/// futex_requeue(2), for which libc has no name.
const SYS_FUTEX_REQUEUE: i64 = 456;

/// Whether a call follows pointers behind its arguments, as far as it is known.
pub fn follows(number: i64) -> bool {
    FOLLOWING.contains(&number) || number > i64::from(seccomp::arguments::LAST)
}

/// How much of what an argument points to is searched for addresses, and how much at once.
const SEARCHED: usize = 4096;
const AT_ONCE: usize = 32;

/// Makes present what the arguments of a call point to, and what is pointed to from there: words
/// that may be managed addresses. Returns whether there was one. It is not known what they are, so
/// that is for calls that have met an absent page; so many pages behind each are.
pub fn follow(number: i64, arguments: &[usize; 6], pages: usize) -> bool {
    let Ok(number) = usize::try_from(number) else { return false };
    let addresses = seccomp::arguments::addresses(number, arguments);
    let behind = arguments.iter().enumerate().filter(|(n, _)| addresses & 1 << n != 0);
    behind.fold(false, |found, (_, address)| follow_words(*address, 2, pages) || found)
}

fn follow_words(at: usize, depth: usize, pages: usize) -> bool {
    let mut found = false;
    for start in (at..at.saturating_add(SEARCHED)).step_by(AT_ONCE * size_of::<usize>()) {
        let mut words = [0usize; AT_ONCE];
        let len = memory::read_into(start, &mut words);
        for word in &words[..len / size_of::<usize>()] {
            if pool::contains(*word) && !pool::is_foreign(*word) {
                found = true;
                touch(*word, ((pages - 1) * PAGE_SIZE).min(pool::end_of(*word) - word));
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
                count(KernelAccess::Read),
                count(KernelAccess::Read),
                count(KernelAccess::Write),
                count(KernelAccess::Write),
            );
            assert_eq!(counts, (1, 0, 1, 0));
            *(page as *mut u8).add(5) = 77;
            touch_byte(page + 5, KernelAccess::Write);
            assert_eq!(*(page as *const u8).add(5), 77);
            libc::munmap(page as *mut c_void, PAGE_SIZE);
        }
    }
}
