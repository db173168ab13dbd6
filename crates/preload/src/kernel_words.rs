//! Words that the kernel reads or writes in its own time: the number of a thread, which it clears
//! at the thread's end, the list of its robust mutexes, its area of restartable sequences.
//!
//! It does not wait for a page then, and nobody may be left to bring one in: at the end of a thread
//! the word stays as it is, and who waits for the end waits for ever. So the pages of such words
//! become unmanaged where they are, when the kernel is told of them. A child of a fork, which has
//! copies of them, has them so as well.
//!
//! Not covered: the mutexes of a list that a program makes itself, beside that list's head; those
//! of the C library are [`crate::robust`]'s.

use crate::pool;
use crate::route::pages_touched;
use overspill_os::tls;
use std::ffi::{c_int, c_long};

/// Has memory that the kernel is told of stay present.
pub fn keep(at: usize, len: usize) {
    let is_managed = pool::contains(at) && tls::is_program();
    if let Some(pages) = pages_touched(at, len).filter(|_| is_managed) {
        let _ = pool::give_up(pool::split(pages).inside);
    }
}

/// The words of a task that is about to be made by clone(2) or clone3(2), by the flags of that: the
/// kernel passes over what it cannot write.
pub fn keep_of_clone(flags: u64, parents: usize, childs: usize) {
    const CHILDS: c_int = libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID;
    for (flag, word) in [(libc::CLONE_PARENT_SETTID, parents), (CHILDS, childs)] {
        if flags & flag as u64 != 0 {
            keep(word, size_of::<i32>());
        }
    }
}

/// The same for a call by number that tells the kernel of one; its first two arguments.
pub fn keep_of_call(number: c_long, [a, b]: [usize; 2]) {
    match number {
        libc::SYS_set_tid_address => keep(a, size_of::<i32>()),
        libc::SYS_set_robust_list | libc::SYS_rseq => keep(a, b),
        _ => {}
    }
}
