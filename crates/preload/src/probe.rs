//! Whether memory can be accessed, asked of the kernel by calls that fail where it cannot, and that
//! concern nobody but the process itself. No locks.

use crate::sys;
use overspill_os::{Errno, PAGE_SIZE, seccomp};
use std::sync::atomic::AtomicU32;

/// A word that nobody waits for.
static NOBODYS: AtomicU32 = AtomicU32::new(0);

/// How many bytes from `at` on can be read, of `len`.
pub fn readable(at: usize, len: usize) -> usize {
    // FUTEX_CMP_REQUEUE reads the word at which it would wake and move 0 threads.
    pages_that(at, len, |word| [word, libc::FUTEX_CMP_REQUEUE as usize, 0, 0, nobodys(), 0])
}

/// How many bytes from `at` on can be written, of `len`.
pub fn writable(at: usize, len: usize) -> usize {
    /// FUTEX_OP_OR of 0; where the word was -2048 one that waits there wakes, as it may anyway.
    const OR_ZERO: usize = 2 << 28 | 0x800;
    pages_that(at, len, |word| [nobodys(), libc::FUTEX_WAKE_OP as usize, 0, 0, word, OR_ZERO])
}

fn nobodys() -> usize {
    &raw const NOBODYS as usize
}

/// How many bytes lie before the first page for whose first word the call of futex(2) fails.
fn pages_that(at: usize, len: usize, call: impl Fn(usize) -> [usize; 6]) -> usize {
    let end = at.saturating_add(len);
    let firsts = (at & !(PAGE_SIZE - 1)..end).step_by(PAGE_SIZE);
    let mut words = firsts.map(|page| page.max(at & !3));
    let fault = words.find(|word| {
        let [a, operation, c, d, e, f] = call(*word);
        let arguments = [a, operation | libc::FUTEX_PRIVATE_FLAG as usize, c, d, e, f];
        // SAFETY: the call changes nothing: a word that it writes is what it was, by an atomic
        // operation.
        let made = unsafe { seccomp::let_through(libc::SYS_futex as usize, arguments) };
        sys::check(made) == Err(Errno::FAULT)
    });
    fault.map_or(len, |word| word.saturating_sub(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_os::vm;

    #[test]
    fn what_can_be_read_and_written_and_how_far() {
        let base = sys::map_for_copies(4 * PAGE_SIZE).unwrap();
        let page = |n: usize| base + n * PAGE_SIZE;
        vm::protect(page(2)..page(3), vm::Prot::READ).unwrap();
        vm::protect(page(3)..page(4), vm::Prot::NONE).unwrap();
        for at in [base, base + 1, page(1) - 1, page(1) + 5] {
            assert_eq!(readable(at, page(3) - at), page(3) - at);
            assert_eq!(readable(at, page(4) - at), page(3) - at);
            assert_eq!(writable(at, page(4) - at), page(2) - at);
        }
        assert_eq!((readable(page(3) + 7, 9), writable(page(2), 1)), (0, 0));
        assert_eq!((readable(8, 100), writable(8, 100), readable(page(3), 0)), (0, 0, 0));
        assert_eq!(readable(usize::MAX - 7, 7), 0);
        // Nothing was changed.
        // SAFETY: the pages are there.
        let bytes = unsafe { std::slice::from_raw_parts(base as *const u8, 3 * PAGE_SIZE) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
