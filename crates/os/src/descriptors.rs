//! The engine's descriptors in a table that is the program's as well: out of the way, and known by
//! their numbers.
//!
//! Threads that serve their own faults have to share the engine's descriptors, a fork hands them
//! on, and a userfaultfd must stay open as long as the program lives: what its last descriptor
//! takes along reads as zeros. A program expects the lowest numbers for its own, and closes numbers
//! that it does not know. So, once [`set_apart`] was called:
//!
//! - The engine's are moved to numbers above the limit that the program has (RLIMIT_NOFILE), which
//!   it can neither get nor name in dup2(2); where the limit is high, to numbers below 4096: the
//!   kernel's table is as long as its highest number, and every fork copies it.
//! - A bit for each number says whether it is the engine's ([`is_engines`]), for whoever stands
//!   between the program and the kernel.
//!
//! The limit is raised for the moment in which that is necessary: to move a descriptor, and to open
//! one ([`open`]) in a program that has all the numbers that are its own. `overspill run` sees to
//! it that there are numbers above the limit ([`make_room`]). Where the limit is so high that the
//! engine's lie below it, some are kept for it. What the sibling opens lies in its own table
//! ([`crate::beside`]): it is moved as well, and not noted. No locks.

use crate::confined;
use crate::process::is_here;
use crate::units::Errno;
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, getrlimit, pidfd_getfd, pidfd_open,
    setrlimit,
};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release,
};

mod kept;
mod noted;

use noted::{BITS, ENGINES, note};
pub use noted::{NUMBERS, is_engines};

/// Numbers from the first that the engine takes: a userfaultfd, a ring, its own memory, and three
/// for each of up to nine devices while a fork is made.
const ROOM: u64 = 32;
/// Where the limit is higher, the engine stays below this: a table of so many takes 32 KiB.
const HIGHEST: u64 = 4096;
/// Attempts to raise the limit, which another thread may restore too soon.
const TRIES: usize = 3;
/// The first number for the engine's, or 0 for any.
static FIRST: AtomicI32 = AtomicI32::new(0);

/// Whether the engine's numbers fit between these limits.
fn fits_between(soft: u64, hard: u64) -> bool {
    soft <= below(hard.min(HIGHEST))
}

/// The first number, with these limits: where there is room half as high again as the soft one,
/// since who wants a number that is no descriptor takes one next to the limit. The kernel's table
/// is as long, a power of two.
fn first(soft: Option<u64>, hard: Option<u64>) -> u64 {
    let (soft, hard) = (soft.unwrap_or(u64::MAX), hard.unwrap_or(u64::MAX));
    let highest = hard.min(HIGHEST);
    if fits_between(soft, hard) {
        (soft + soft / 2).min(below(highest))
    } else {
        below(soft.min(highest))
    }
}

/// The first of the last numbers below a limit: not so many where it is low.
fn below(limit: u64) -> u64 {
    limit - ROOM.min(limit / 4)
}

/// The limits that leave room for the engine's numbers between them where the present ones do not:
/// first with a higher hard limit, which takes CAP_SYS_RESOURCE, then with a lower soft one. None
/// where that limit is so high that the engine stays below it.
fn with_room(soft: u64, hard: u64) -> Option<[(u64, u64); 2]> {
    (soft <= below(HIGHEST) && !fits_between(soft, hard))
        .then(|| [(soft, soft + ROOM), (below(hard), hard)])
}

/// Before a program is started: leaves numbers between its two limits, so that it can use all that
/// its own allows. This process and all that it starts have the new limits.
pub fn make_room() {
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    let set = |(soft, hard)| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: Some(hard) })
    };
    // Where nothing can be changed the engine takes the highest numbers that the program may use.
    let _ = with_room(soft, hard).is_some_and(|ways| ways.into_iter().any(|way| set(way).is_ok()));
}

/// From now on the engine's descriptors are set apart, in this process and its children.
pub fn set_apart() {
    let limit = getrlimit(Resource::Nofile);
    let first = first(limit.current, limit.maximum).max(1);
    FIRST.store(first as i32, Relaxed);
    if limit.current.is_none_or(|soft| soft > first + ROOM) {
        kept::begin((first + ROOM) as RawFd - kept::KEPT);
    }
}

/// Takes a descriptor over for the engine: moves it out of the way, and takes note of it.
pub fn take(fd: OwnedFd) -> RawFd {
    let first = FIRST.load(Relaxed);
    // The sibling's own numbers are in nobody's way. But the exceptions from a filter of the
    // program's, which it may have some day, hold for the engine's only.
    if first == 0 {
        return fd.into_raw_fd();
    }
    let moved = moved(&fd, first);
    // Not through OwnedFd: that calls the symbol `close`, which the preload library replaces.
    let before = fd.into_raw_fd();
    if moved.is_some() {
        // SAFETY: the number was the descriptor's own.
        unsafe { rustix::io::close(before) };
    }
    let raw = moved.unwrap_or(before);
    note_here(raw);
    raw
}

/// A duplicate out of the way, with a number that can be noted; None where it is there already, or
/// cannot be moved (a hard limit below): it stays where it is.
fn moved(fd: &OwnedFd, first: RawFd) -> Option<RawFd> {
    if (first..BITS as RawFd).contains(&fd.as_raw_fd()) {
        return None;
    }
    let mut moved = rustix::io::fcntl_dupfd_cloexec(fd, first);
    for _ in 0..TRIES {
        if moved.is_err() {
            moved = duplicate_above_limit(fd, first);
        }
    }
    let moved = moved.ok().map(IntoRawFd::into_raw_fd);
    if moved.is_some_and(|moved| moved < BITS as RawFd) || is_here() {
        return moved;
    }
    // The program has all of these.
    let kept = kept::duplicate(fd.as_raw_fd());
    if let (Some(moved), Some(_)) = (moved, kept) {
        // SAFETY: made here.
        unsafe { rustix::io::close(moved) };
    }
    kept.or(moved)
}

/// Numbers among which the engine's are, as a rule; `None` where they are not set apart.
pub fn numbers() -> Option<Range<u32>> {
    let first = FIRST.load(Relaxed) as u32;
    (first != 0).then(|| first..first + ROOM as u32)
}

/// A duplicate with a number that the limit does not allow.
fn duplicate_above_limit(fd: &OwnedFd, first: RawFd) -> Result<OwnedFd, Errno> {
    with_limit_raised(first, || rustix::io::fcntl_dupfd_cloexec(fd, first))
}

/// Runs `call` while the limit allows the engine's numbers. Several threads may do this at once,
/// and the program may change its limit meanwhile: whoever restores it looks whether it is as they
/// have left it. So the limit ends as the program's, though a thread may find that another has
/// restored it too soon.
fn with_limit_raised<T>(first: RawFd, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let before = getrlimit(Resource::Nofile);
    let wanted = first as u64 + ROOM;
    if before.current.is_none_or(|soft| soft >= wanted) {
        return call();
    }
    let raised = Rlimit {
        current: Some(before.maximum.map_or(wanted, |hard| hard.min(wanted))),
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, raised)?;
    let result = call();
    if getrlimit(Resource::Nofile) == raised {
        let _ = setrlimit(Resource::Nofile, before);
    }
    result
}

/// Opens a path for the engine, as [`open`] does; EPERM in a sandbox of the program's.
pub fn open_path<T>(call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    confined::allows_paths()?;
    open(call)
}

/// The names in a directory that are UTF-8, which is opened as by [`open_path`]. Not by opendir(3):
/// that calls the program's malloc, which may not be ready for that before the program begins.
///
/// # Errors
/// Those of open(2) and getdents(2).
pub fn names(path: &Path) -> Result<Vec<String>, Errno> {
    const ROOM: usize = 2048;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open_path(|| rustix::fs::open(path, flags, Mode::empty()))?;
    let mut room = [MaybeUninit::uninit(); ROOM];
    let mut entries = RawDir::new(&directory, &mut room);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_str().ok().filter(|name| !matches!(*name, "." | ".."));
        names.extend(name.map(str::to_owned));
    }
    Ok(names)
}

/// Makes a call that opens something for the engine. Where the program has used up all numbers that
/// its limit allows, the call is made again with a limit that allows the engine's.
pub fn open<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let first = FIRST.load(Relaxed);
    let mut result = call();
    for _ in 0..TRIES {
        if first == 0 || is_here() || !matches!(result, Err(Errno::MFILE)) {
            break;
        }
        result = with_limit_raised(first, &mut call);
    }
    if first != 0 && !is_here() && matches!(result, Err(Errno::MFILE)) {
        result = kept::open(call);
    }
    result
}

/// Takes note of a number in the program's table.
fn note_here(fd: RawFd) {
    if !is_here() {
        note(fd, true);
    }
}

/// Closes a descriptor of the engine's in the calling thread's table, by its number, which nothing
/// uses any more.
pub fn close(fd: RawFd) {
    if !is_here() && kept::give_back(fd) {
        return;
    }
    // SAFETY: the caller owns the number.
    unsafe { rustix::io::close(fd) };
    if !is_here() {
        note(fd, false);
    }
}

/// A descriptor of the engine's for a moment: the thread that has taken it over closes it, by a
/// direct system call.
#[derive(Debug)]
pub(crate) struct OwnDescriptor(RawFd);

impl OwnDescriptor {
    /// Takes it over.
    pub(crate) fn new(fd: OwnedFd) -> OwnDescriptor {
        OwnDescriptor(take(fd))
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is open until this value is dropped.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for OwnDescriptor {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// A duplicate, in the table of the calling thread, of a descriptor in that of the program or of
/// its sibling: the same open file.
///
/// # Errors
/// EPERM in sandboxes, and where the program has changed its user.
pub(crate) fn duplicate(of: Pid, fd: RawFd) -> Result<OwnedFd, Errno> {
    confined::allows_paths()?;
    let process = OwnDescriptor::new(open(|| pidfd_open(of, PidfdFlags::empty()))?);
    open(|| pidfd_getfd(process.fd(), fd, PidfdGetfdFlags::empty()))
}

/// Descriptors that the sibling has closed and the program has not: a bit for each, and whether
/// there are any.
static LEFT: [AtomicU64; BITS / 64] = [const { AtomicU64::new(0) }; BITS / 64];
static ARE_LEFT: AtomicBool = AtomicBool::new(false);

/// Leaves a number that was open in both tables, and is closed in the sibling's, to the next thread
/// of the program that comes by.
pub(crate) fn leave_to_program(fd: RawFd) {
    if let Some(word) = usize::try_from(fd).ok().and_then(|fd| LEFT.get(fd / 64)) {
        word.fetch_or(1 << (fd % 64), Relaxed);
        ARE_LEFT.store(true, Release);
    }
}

/// On a thread of the program: closes what its sibling has closed. A look at one word, mostly.
#[inline(always)]
pub fn close_left() {
    if ARE_LEFT.load(Relaxed) {
        close_all_left();
    }
}

#[cold]
fn close_all_left() {
    if !ARE_LEFT.swap(false, AcqRel) {
        return;
    }
    for (at, word) in LEFT.iter().enumerate() {
        let mut bits = word.swap(0, Relaxed);
        while bits != 0 {
            close((at * 64) as RawFd + bits.trailing_zeros() as RawFd);
            bits &= bits - 1;
        }
    }
}

/// Closes all descriptors of the calling process but those that the engine uses: in the sibling,
/// whose table is a copy of the program's.
pub(crate) fn keep_engines() {
    let mut next = 0;
    for (at, word) in ENGINES.iter().enumerate() {
        let mut bits = word.load(Relaxed);
        while bits != 0 {
            let fd = (at * 64) as u32 + bits.trailing_zeros();
            if kept::is_free(fd as RawFd) {
                bits &= bits - 1;
                continue;
            }
            if fd > next {
                close_range(next, fd - 1);
            }
            next = fd + 1;
            bits &= bits - 1;
        }
    }
    close_range(next, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: the numbers are copies of the program's, which goes on with its own.
    unsafe {
        let ret = syscalls::raw_syscall!(syscalls::Sysno::close_range, first, last, 0);
        if ret != 0 {
            // Before Linux 5.9: one by one.
            for fd in first..=last.min(65_535) {
                syscalls::raw_syscall!(syscalls::Sysno::close, fd);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lie_above_the_limit_or_at_its_end() {
        assert_eq!(first(Some(1024), Some(524_288)), 1536);
        assert_eq!(first(Some(1024), None), 1536);
        assert_eq!(first(Some(1024), Some(1500)), 1500 - ROOM);
        assert_eq!(first(Some(1024), Some(1024 + ROOM)), 1024);
        assert_eq!(first(Some(1024), Some(1024 + ROOM - 1)), 1024 - ROOM);
        assert_eq!(first(Some(1024), Some(1024)), 1024 - ROOM);
        assert_eq!(first(Some(40), Some(40)), 30);
        assert_eq!(first(Some(30), Some(40)), 30);
        assert_eq!(first(Some(20_000), Some(20_000)), HIGHEST - ROOM);
        assert_eq!(first(None, None), HIGHEST - ROOM);
        assert_eq!(first(Some(HIGHEST - ROOM), Some(1 << 20)), HIGHEST - ROOM);
        assert_eq!(first(Some(0), Some(0)), 0);
    }

    #[test]
    fn limits_leave_room_for_the_engine() {
        assert_eq!(with_room(1024, 524_288), None);
        assert_eq!(with_room(1024, 1024), Some([(1024, 1024 + ROOM), (1024 - ROOM, 1024)]));
        assert_eq!(with_room(1024, 1030), Some([(1024, 1024 + ROOM), (1030 - ROOM, 1030)]));
        assert_eq!(with_room(40, 40), Some([(40, 40 + ROOM), (30, 40)]));
        assert_eq!(with_room(30, 40), None);
        assert_eq!(with_room(20_000, 20_000), None);
        for (soft, hard) in [(1024, 1024), (1024, 1030), (40, 40), (100, 100), (3, 3)] {
            for (soft, hard) in with_room(soft, hard).into_iter().flatten() {
                assert!(
                    (soft..=below(hard)).contains(&first(Some(soft), Some(hard))),
                    "{soft} {hard}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_set_apart_keeps_its_number() {
        let (end, _other) = rustix::pipe::pipe().unwrap();
        let before = end.as_raw_fd();
        assert_eq!(take(end), before);
        assert!(!is_engines(before));
        close(before);
    }
}
