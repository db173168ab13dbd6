//! The sibling watches over the program, and ends when no thread of it is in their memory any more.
//!
//! The kernel clears a word of the program's first thread when that leaves the address space, by
//! exit or exec, and wakes who waits on it.

use super::filters::come_by;
use super::guard::end;
use crate::process::{is_here, program};
use crate::units::{Errno, check};
use crate::{confined, seccomp, task, tls};
use rustix::process::Pid;
use rustix::thread::futex;
use std::ffi::CStr;
use std::io::Write;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};
use std::time::Duration;
use syscalls::{Sysno, raw_syscall};

/// The word that the kernel clears when the program's first thread leaves the address space.
pub(super) static FIRST_THREAD: AtomicUsize = AtomicUsize::new(0);
/// Set by a program that exits: the sibling ends.
pub(super) static LEAVING: AtomicU32 = AtomicU32::new(0);

/// FIRST_THREAD's word, where the C library has given none.
static OWN_WORD: AtomicU32 = AtomicU32::new(0);

/// Longest sleep of the watcher while the program's first thread lives: a bound on the harm of a
/// wake-up that went to somebody else who waits for the end of that thread.
const WATCH_EVERY: futex::Timespec = futex::Timespec { tv_sec: 1, tv_nsec: 0 };
/// Pauses between two looks at a program whose first thread has left.
pub(super) const LOOK_FIRST: Duration = Duration::from_micros(200);
const LOOK_LAST: Duration = Duration::from_millis(100);

/// In the child of a fork, which does not exit yet.
pub(super) fn reset_in_child() {
    LEAVING.store(0, Relaxed);
}

/// On the program's first thread: takes note of the word that tells of its end.
pub(super) fn begin() {
    FIRST_THREAD.store(first_thread_word() as *const AtomicU32 as usize, Relaxed);
}

/// The word that the kernel clears when the calling thread, the first of its process, leaves the
/// address space.
fn first_thread_word() -> &'static AtomicU32 {
    const PR_GET_TID_ADDRESS: usize = 40;
    let mut address = 0usize;
    // SAFETY: 1. the call writes one address; 2. what the C library has given lives as long as its
    // first thread, and is read and waited on only; 3. our own word lives for ever.
    unsafe {
        let failed = raw_syscall!(
            Sysno::prctl,
            PR_GET_TID_ADDRESS,
            &raw mut address,
            0usize,
            0usize,
            0usize
        ) != 0;
        if failed {
            // A kernel without the call. glibc has kept the number there since 2.4.
            const NUMBER_AT: usize = 0x2d0;
            let place = (tls::thread_pointer() + NUMBER_AT) as *const AtomicU32;
            if (*place).load(Relaxed) == task::id() as u32 {
                address = place as usize;
            }
        }
        if address == 0 {
            OWN_WORD.store(task::id() as u32, Relaxed);
            raw_syscall!(Sysno::set_tid_address, &raw const OWN_WORD);
            return &OWN_WORD;
        }
        &*(address as *const AtomicU32)
    }
}

/// The word that the kernel clears when the program's first thread leaves. It is not unmapped while
/// that thread lives, and a wait on a word that is gone fails.
pub(super) fn first_thread() -> &'static AtomicU32 {
    // SAFETY: `start` has stored the address of a word that lives as long as it is said above.
    unsafe { &*(FIRST_THREAD.load(Relaxed) as *const AtomicU32) }
}

/// Has the watcher look, and who else waits for the first thread's end.
pub(super) fn nudge() {
    let _ = on_first_thread(libc::FUTEX_WAKE, i32::MAX as u32, None);
}

/// futex(2) on the first thread's word. It is let through: where a thread has forked whose stack is
/// the program's own, the word of its child lies in the window. It is not private, since the kernel
/// wakes by the address alone.
fn on_first_thread(
    operation: i32,
    value: u32,
    time: Option<&futex::Timespec>,
) -> Result<usize, Errno> {
    let time = time.map_or(0, |time| std::ptr::from_ref(time) as usize);
    let arguments = [FIRST_THREAD.load(Relaxed), operation as usize, value as usize, time, 0, 0];
    // SAFETY: the call writes nothing, and reads a time that is borrowed for it.
    check(unsafe { seccomp::let_through(Sysno::futex as usize, arguments) })
}

/// Returns when no thread of the program is in this address space any more.
pub(super) fn watch(program: &rustix::fd::OwnedFd) {
    let word = first_thread();
    let mut pause = LOOK_FIRST;
    while LEAVING.load(Acquire) == 0 {
        come_by();
        match word.load(Acquire) {
            0 => {
                if has_left(program) {
                    return;
                }
                let until = futex::Timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as i64 };
                let _ = futex::wait(&LEAVING, futex::Flags::empty(), 0, Some(&until));
                pause = (pause * 2).min(LOOK_LAST);
            }
            number => {
                let woken = on_first_thread(libc::FUTEX_WAIT, number, Some(&WATCH_EVERY));
                if woken.is_ok() {
                    // The kernel wakes one, who may have been meant to be another.
                    nudge();
                }
                if is_readable(program) || woken == Err(Errno::FAULT) && has_left(program) {
                    return;
                }
            }
        }
    }
}

fn is_readable(program: &rustix::fd::OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let mut end = [PollFd::new(program, PollFlags::IN)];
    rustix::event::poll(&mut end, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
        .is_ok_and(|ready| ready > 0)
}

/// Whether a program whose first thread has left the address space is gone from it: it has ended,
/// or executes another program.
pub(super) fn has_left(pidfd: &rustix::fd::OwnedFd) -> bool {
    const KCMP_VM: usize = 1;
    if is_readable(pidfd) {
        return true;
    }
    let (own, program) = (rustix::process::getpid(), program());
    // SAFETY: the call takes numbers.
    let compared = unsafe {
        raw_syscall!(
            Sysno::kcmp,
            own.as_raw_nonzero().get(),
            program.as_raw_nonzero().get(),
            KCMP_VM,
            0usize,
            0usize
        )
    };
    // The same memory: it is about to end or to execute. Otherwise the first thread has ended
    // before the others, or is about to, unless it has executed.
    compared != 0 && !first_thread_ends(program)
}

/// Ends the sibling if the program has ended. For who waits long for a lock: whoever had it may
/// have been killed, and nobody gives it back then.
pub(super) fn end_if_over() {
    if is_here() && first_thread_ends(program()) {
        end();
    }
}

/// Whether the first thread of a process has ended or is ending, by what `/proc` tells everybody.
/// Nothing is allocated for that: the program may have been killed with the heap's lock.
fn first_thread_ends(program: Pid) -> bool {
    use rustix::fs::{Mode, OFlags};
    /// PF_EXITING of the kernel.
    const EXITING: u64 = 4;
    let (mut path, mut text) = ([0u8; 32], [0u8; 512]);
    let _ = write!(&mut path[..], "/proc/{}/stat", program.as_raw_nonzero());
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    if confined::is_confined() {
        // Nothing is opened: it has ended once its parent knows.
        return rustix::process::test_kill_process(program) == Err(Errno::SRCH);
    }
    let read = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(&file, &mut text));
    let len = match read {
        Ok(len) => len,
        Err(errno) => return errno == Errno::NOENT || errno == Errno::SRCH,
    };
    // "PID (NAME) STATE ...": the name may hold anything. The flags are the sixth field after the
    // state.
    let Some(name_end) = text[..len].iter().rposition(|byte| *byte == b')') else { return false };
    let Ok(fields) = str::from_utf8(&text[name_end + 1..len]) else { return false };
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next().unwrap_or_default();
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    matches!(state, "Z" | "X") || flags & EXITING != 0
}
