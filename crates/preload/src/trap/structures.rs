//! Calls that are handed structures: each is made with copies of them.
//!
//! These are the calls that would lose something if the kernel found a page absent at their end (a
//! child that was reaped, a message, an accepted connection, what is left of a time), and those
//! that wait, while pages leave. Structures that the kernel may write are copied back whatever the
//! result: it has written what it wanted. But only bytes that are not as they were go back, since
//! other threads may change the rest meanwhile, such as the descriptors that poll(2) is to look at.

use super::bounce::{self, Buffer};
use super::present;
use super::record::{ALWAYS, Next, Record, untag};
use crate::memory::touch::SYS_IO_PGETEVENTS;
use crate::memory::vectors;
use crate::pool::KernelAccess;
use crate::sys::failure;
use crate::{memory, pool};
use overspill_os::signal::OURS;

/// How large a structure is.
#[derive(Clone, Copy)]
enum Size {
    Bytes(usize),
    /// So many bytes for each of the elements that another argument counts.
    Each(usize, usize),
    /// Bytes that another argument counts, after some more.
    Counted(usize, usize),
    /// A set of descriptors below the number in another argument.
    Set(usize),
    /// As many bytes as the integer says that another argument points to.
    Pointed(usize),
    /// A path, with its end.
    Path,
    /// The signal mask of a call that waits; and one that is behind a pointer to it, and its size.
    Mask,
    MaskPair,
}
use Size::{Bytes, Counted, Each, Mask, MaskPair, Path, Pointed, Set};

/// An argument that is a structure.
#[derive(Clone, Copy)]
pub struct Argument {
    at: usize,
    size: Size,
    /// Whether the kernel writes it.
    out: bool,
    /// Whether the kernel writes it only where it can, and does not mind where not.
    at_will: bool,
}

const fn read(at: usize, size: Size) -> Argument {
    Argument { at, size, out: false, at_will: false }
}

const fn written(at: usize, size: Size) -> Argument {
    Argument { at, size, out: true, at_will: false }
}

/// A time of which the kernel leaves what was not waited of it, if it can.
const fn left(at: usize) -> Argument {
    Argument { at, size: TIMESPEC, out: true, at_will: true }
}

const SIGSET: Size = Bytes(8);
const TIMESPEC: Size = Bytes(size_of::<libc::timespec>());
const TIMER: Size = Bytes(size_of::<libc::itimerspec>());
const RUSAGE: Size = Bytes(size_of::<libc::rusage>());
const SIGINFO: Size = Bytes(size_of::<libc::siginfo_t>());
const OFFSET: Size = Bytes(8);
const INT: Size = Bytes(4);
const VECTOR: usize = size_of::<libc::iovec>();

/// The structures of a call; the integers that others are measured by come first.
pub fn list(number: i64) -> Option<&'static [Argument]> {
    of_waiting(number).or_else(|| of_taking(number))
}

const SELECT: &[Argument] = &[written(1, Set(0)), written(2, Set(0)), written(3, Set(0)), left(4)];

/// Those of a call that only waits: for descriptors, a time, a child, a signal.
fn of_waiting(number: i64) -> Option<&'static [Argument]> {
    Some(match number {
        libc::SYS_poll => const { &[written(0, Each(8, 1))] },
        libc::SYS_ppoll => const { &[written(0, Each(8, 1)), left(2), read(3, Mask)] },
        libc::SYS_select => SELECT,
        libc::SYS_pselect6 => {
            const {
                &[
                    written(1, Set(0)),
                    written(2, Set(0)),
                    written(3, Set(0)),
                    left(4),
                    read(5, MaskPair),
                ]
            }
        }
        libc::SYS_epoll_wait => const { &[written(1, Each(12, 2))] },
        libc::SYS_epoll_pwait => const { &[written(1, Each(12, 2)), read(4, Mask)] },
        libc::SYS_epoll_pwait2 => {
            const { &[written(1, Each(12, 2)), read(3, TIMESPEC), read(4, Mask)] }
        }
        libc::SYS_nanosleep => const { &[read(0, TIMESPEC), written(1, TIMESPEC)] },
        libc::SYS_clock_nanosleep => const { &[read(2, TIMESPEC), written(3, TIMESPEC)] },
        libc::SYS_wait4 => const { &[written(1, INT), written(3, RUSAGE)] },
        libc::SYS_waitid => const { &[written(2, SIGINFO), written(4, RUSAGE)] },
        libc::SYS_rt_sigtimedwait => {
            const { &[read(0, SIGSET), written(1, SIGINFO), read(2, TIMESPEC)] }
        }
        libc::SYS_rt_sigsuspend => const { &[read(0, Mask)] },
        _ => return None,
    })
}

/// Those of a call that takes, sets or moves something, which is not to be done twice.
fn of_taking(number: i64) -> Option<&'static [Argument]> {
    Some(match number {
        libc::SYS_accept | libc::SYS_accept4 | libc::SYS_getsockname | libc::SYS_getpeername => {
            const { &[written(2, INT), written(1, Pointed(2))] }
        }
        libc::SYS_getsockopt => const { &[written(4, INT), written(3, Pointed(4))] },
        libc::SYS_connect | libc::SYS_bind => const { &[read(1, Counted(2, 0))] },
        libc::SYS_rt_sigprocmask => const { &[read(1, SIGSET), written(2, SIGSET)] },
        libc::SYS_rt_sigaction => const { &[read(1, Bytes(32)), written(2, Bytes(32))] },
        libc::SYS_setitimer => const { &[read(1, TIMER), written(2, TIMER)] },
        libc::SYS_timer_settime | libc::SYS_timerfd_settime => {
            const { &[read(2, TIMER), written(3, TIMER)] }
        }
        libc::SYS_prlimit64 => const { &[read(2, Bytes(16)), written(3, Bytes(16))] },
        libc::SYS_sendfile => const { &[written(2, OFFSET)] },
        libc::SYS_copy_file_range | libc::SYS_splice => {
            const { &[written(1, OFFSET), written(3, OFFSET)] }
        }
        libc::SYS_msgsnd => const { &[read(1, Counted(2, 8))] },
        libc::SYS_msgrcv => const { &[written(1, Counted(2, 8))] },
        libc::SYS_mq_timedsend => const { &[read(1, Counted(2, 0)), read(4, TIMESPEC)] },
        libc::SYS_mq_timedreceive => {
            const { &[written(1, Counted(2, 0)), written(3, INT), read(4, TIMESPEC)] }
        }
        libc::SYS_semop => const { &[read(1, Each(6, 2))] },
        libc::SYS_semtimedop => const { &[read(1, Each(6, 2)), read(3, TIMESPEC)] },
        libc::SYS_io_getevents => const { &[written(3, Each(32, 2)), written(4, TIMESPEC)] },
        SYS_IO_PGETEVENTS => {
            const { &[written(3, Each(32, 2)), written(4, TIMESPEC), read(5, MaskPair)] }
        }
        libc::SYS_getrandom => const { &[written(0, Counted(1, 0))] },
        libc::SYS_getdents64 | libc::SYS_getdents => const { &[written(1, Counted(2, 0))] },
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
            const { &[read(1, Each(VECTOR, 2)), read(3, Each(VECTOR, 4))] }
        }
        _ => return None,
    })
}

/// The paths of a call about files, and what goes with them. Only where it does not cost a signal
/// to have the copy given back: a call that is stopped is made with the path itself, present.
pub fn paths(number: i64) -> Option<&'static [Argument]> {
    const STAT: Size = Bytes(size_of::<libc::stat>());
    const STATX: Size = Bytes(size_of::<libc::statx>());
    Some(match number {
        libc::SYS_open
        | libc::SYS_creat
        | libc::SYS_access
        | libc::SYS_unlink
        | libc::SYS_mkdir => const { &[read(0, Path)] },
        libc::SYS_openat | libc::SYS_unlinkat => const { &[read(1, Path)] },
        libc::SYS_stat | libc::SYS_lstat => const { &[read(0, Path), written(1, STAT)] },
        libc::SYS_fstat => const { &[written(1, STAT)] },
        libc::SYS_newfstatat => const { &[read(1, Path), written(2, STAT)] },
        libc::SYS_statx => const { &[read(1, Path), written(4, STATX)] },
        libc::SYS_readlink => const { &[read(0, Path), written(1, Counted(2, 0))] },
        libc::SYS_rename => const { &[read(0, Path), read(1, Path)] },
        _ => return None,
    })
}

/// Most structures of a call.
const MOST: usize = 5;

/// What was copied where, and what it was.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copied {
    original: usize,
    copy: usize,
    before: usize,
    len: usize,
}

/// Bytes of a path with its end; None where it has none, or a longer one than can be (PATH_MAX).
fn path_len(start: usize) -> Option<usize> {
    let most =
        pool::accessible(start..start.checked_add(libc::PATH_MAX as usize)?, KernelAccess::Read);
    // SAFETY: the program may read so many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, most) };
    bytes.iter().position(|byte| *byte == 0).map(|end| end + 1)
}

fn len(argument: Argument, arguments: &[usize; 6]) -> Option<usize> {
    let integer = |at: usize| arguments[at] as u32 as usize;
    match argument.size {
        Path => path_len(arguments[argument.at]),
        Bytes(len) => Some(len),
        Mask => Some(size_of::<u64>()),
        MaskPair => Some(size_of::<[usize; 2]>()),
        Each(len, at) => integer(at).checked_mul(len),
        Counted(at, more) => arguments[at].checked_add(more),
        Set(at) => Some(integer(at).min(1 << 20).div_ceil(64) * 8),
        Pointed(at) if arguments[at] == 0 => Some(0),
        Pointed(at) => memory::read::<u32>(arguments[at]).map(|len| len as usize),
    }
}

/// Those of a list that are managed, and each mask that can be read.
fn copies(list: &[Argument], arguments: &[usize; 6]) -> ArgumentList {
    let copied = list.iter().filter(|argument| {
        let at = arguments[argument.at];
        pool::is_stopped(at)
            || match argument.size {
                Mask => memory::read::<u64>(at).is_some(),
                MaskPair => memory::read::<[usize; 2]>(at).is_some(),
                _ => false,
            }
    });
    copied
        .map(|argument| {
            let is_writable = || usable(*argument, arguments, KernelAccess::Write).is_some();
            Argument { out: argument.out && (!argument.at_will || is_writable()), ..*argument }
        })
        .collect()
}

/// Bytes of an argument; None where the program may not access all of them.
fn usable(argument: Argument, arguments: &[usize; 6], access: KernelAccess) -> Option<usize> {
    let (start, len) = (arguments[argument.at], len(argument, arguments)?);
    let is_usable =
        !pool::is_stopped(start) || pool::accessible(start..start.checked_add(len)?, access) >= len;
    is_usable.then_some(len)
}

/// How much room copies take; None where the program may not access all that is to be copied.
pub fn measure(list: &[Argument], arguments: &[usize; 6]) -> Option<usize> {
    // An integer that says how long another is may itself be in managed memory: read as the program
    // would.
    let mut total = size_of::<[Copied; MOST]>() + 16;
    for argument in copies(list, arguments).iter() {
        let access = if argument.out { KernelAccess::Write } else { KernelAccess::Read };
        let len = usable(*argument, arguments, access)?;
        let copies = if argument.out { 2 } else { 1 };
        let room = len.checked_next_multiple_of(16)?.checked_add(16)?.checked_mul(copies)?;
        total = total.checked_add(room)?;
    }
    Some(total)
}

/// Prepares a call; None where its memory is not as it should be, or where there is too much of it.
pub fn begin(record: &mut Record, list: &[Argument], mut arguments: [usize; 6]) -> Option<Next> {
    let total = measure(list, &arguments).filter(|total| *total <= bounce::CHUNK)?;
    let wanted = copies(list, &arguments);
    let mut buffer = bounce::claim(record, total)?;
    let table = buffer.array::<Copied>(MOST)?;
    for (n, slot) in (0..MOST).map(|n| (n, wanted.get(n))) {
        let mut copied = Copied { original: 0, copy: 0, before: 0, len: 0 };
        if let Some(argument) = slot {
            let original = arguments[argument.at];
            let len = len(argument, &arguments)?;
            let room = len + if matches!(argument.size, MaskPair) { size_of::<u64>() } else { 0 };
            let copy = buffer.array::<u8>(room)?;
            // SAFETY: the program may read these bytes, and the copy is as long; there is room.
            unsafe {
                std::ptr::copy_nonoverlapping(original as *const u8, copy, len);
                open_mask(argument.size, copy);
            }
            if argument.out {
                let before = buffer.array::<u8>(len)?;
                // SAFETY: both are as long.
                unsafe { std::ptr::copy_nonoverlapping(copy, before, len) };
                copied = Copied { original, copy: copy as usize, before: before as usize, len };
            }
            arguments[argument.at] = copy as usize;
        }
        // SAFETY: the table has so many entries.
        unsafe { table.add(n).write(copied) };
    }
    let number = record.number;
    record.tries.touch(|_| touch_remote(number, &arguments));
    record.finish = ALWAYS;
    Some(Next::Call(arguments))
}

/// Takes our signals out of a mask that was copied: it is in force also during the handlers that
/// end the wait, which touch managed memory.
///
/// # Safety
///
/// The copy is of that kind, with room for the mask behind a pair.
unsafe fn open_mask(kind: Size, copy: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            Mask => {
                let mask = copy.cast::<u64>();
                mask.write_unaligned(mask.read_unaligned() & !OURS);
            }
            MaskPair => {
                let (pair, behind) = (copy.cast::<usize>(), copy.add(size_of::<[usize; 2]>()));
                // What cannot be read is for the kernel to judge.
                if let Some(mask) = memory::read::<u64>(pair.read_unaligned()) {
                    behind.cast::<u64>().write_unaligned(mask & !OURS);
                    pair.write_unaligned(behind as usize);
                }
            }
            _ => {}
        }
    }
}

/// Copies those bytes that are not as they were before.
///
/// # Safety
///
/// All have so many bytes.
unsafe fn copy_changes(from: *const u8, before: *const u8, to: *mut u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    let mut at = 0;
    while at < len {
        let step = WORD.min(len - at);
        // SAFETY: the caller's promise.
        unsafe {
            let equal = step == WORD
                && from.add(at).cast::<u64>().read_unaligned()
                    == before.add(at).cast::<u64>().read_unaligned();
            if !equal {
                for byte in at..at + step {
                    let now = *from.add(byte);
                    if now != *before.add(byte) {
                        to.add(byte).write_volatile(now);
                    }
                }
            }
        }
        at += step;
    }
}

/// A list of a call's arguments.
#[derive(Default)]
struct ArgumentList {
    list: [Option<Argument>; MOST],
    len: usize,
}

impl ArgumentList {
    fn iter(&self) -> impl Iterator<Item = &Argument> {
        self.list.iter().flatten()
    }

    fn get(&self, n: usize) -> Option<Argument> {
        self.list[n]
    }
}

impl FromIterator<Argument> for ArgumentList {
    fn from_iter<I: IntoIterator<Item = Argument>>(arguments: I) -> ArgumentList {
        let mut copies = ArgumentList::default();
        for argument in arguments {
            copies.list[copies.len] = Some(argument);
            copies.len += 1;
        }
        copies
    }
}

/// The local buffers of a copy between processes, and the others where they are of this one too.
fn touch_remote(number: usize, arguments: &[usize; 6]) {
    let [process, local, local_count, remote, remote_count, _] = *arguments;
    if matches!(number as i64, libc::SYS_process_vm_readv | libc::SYS_process_vm_writev) {
        present::vector(local, local_count);
        if vectors::is_own(process) {
            present::vector(remote, remote_count);
        }
    }
}

/// After the call.
pub fn finish(record: &mut Record, list: &[Argument]) -> Next {
    let remote =
        matches!(record.number as i64, libc::SYS_process_vm_readv | libc::SYS_process_vm_writev);
    if remote && record.result == failure(libc::EFAULT) && !record.tries.are_over() {
        bounce::release(record);
        let mut arguments = record.arguments;
        untag(&mut arguments);
        if let Some(next) = begin(record, list, arguments) {
            return next;
        }
        return Next::Result(failure(libc::EFAULT));
    }
    let table = Buffer::of(record).first::<Copied>();
    for n in 0..MOST {
        // SAFETY: `begin` has made the table; the program may write to what was copied, as was
        // checked.
        unsafe {
            let Copied { original, copy, before, len } = table.add(n).read();
            copy_changes(copy as *const u8, before as *const u8, original as *mut u8, len);
        }
    }
    Next::Result(record.result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals;

    #[test]
    fn masks_are_where_the_calls_have_them() {
        for number in 0..512 {
            let is_mask = |argument: &Argument| match argument.size {
                Mask => Some((argument.at, false)),
                MaskPair => Some((argument.at, true)),
                _ => None,
            };
            let listed = list(number).and_then(|list| list.iter().find_map(is_mask));
            assert_eq!(listed, signals::mask_argument(number), "call {number}");
        }
    }

    #[test]
    fn only_changes_are_copied() {
        let before: Vec<u8> = (0..37).collect();
        let mut after = before.clone();
        (after[3], after[21], after[36]) = (100, 101, 102);
        // Somebody else has changed these, two of them next to what the kernel has written.
        let mut to = before.clone();
        (to[2], to[10], to[35]) = (200, 201, 202);
        // SAFETY: all are as long.
        unsafe { copy_changes(after.as_ptr(), before.as_ptr(), to.as_mut_ptr(), 37) };
        assert_eq!((to[2], to[3], to[10], to[21], to[35], to[36]), (200, 100, 201, 101, 202, 102));
        assert_eq!(to[22], 22);
    }
}
