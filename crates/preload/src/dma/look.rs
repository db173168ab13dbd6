//! Whether there is still something to look for, and what a look at a descriptor tells.

use crate::pool;
use overspill_os::{descriptors, tls};
use std::ffi::{c_int, c_uint};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Nothing more to look for: there is no pool, or DMA has been seen.
static DONE: AtomicBool = AtomicBool::new(true);

/// DMA has been seen while the process was dormant.
static SEEN: AtomicBool = AtomicBool::new(false);

/// DMA has been seen.
#[cold]
pub fn seen() {
    if tls::is_program() && !DONE.swap(true, Ordering::Relaxed) {
        SEEN.store(true, Ordering::Relaxed);
        pool::dma_seen();
    }
}

/// Begins to look, in a dormant process: its pool will be told.
pub fn begin() {
    DONE.store(false, Ordering::Relaxed);
}

/// Goes on to look; called when the pool is there.
pub fn start() {
    if SEEN.load(Ordering::Relaxed) {
        return pool::dma_seen();
    }
    DONE.store(false, Ordering::Relaxed);
    scan_inherited();
}

/// Whether there is still something to look for.
#[inline(always)]
pub fn looking() -> bool {
    !DONE.load(Ordering::Relaxed)
}

/// Looks at the descriptors that the program was started with; where it cannot, there may be one.
fn scan_inherited() {
    let is_direct =
        |name: &String| name.parse().is_ok_and(|fd| !descriptors::is_engines(fd) && is_direct(fd));
    let found = descriptors::names(Path::new("/proc/self/fd"));
    if found.map_or(true, |names| names.iter().any(is_direct)) {
        DONE.store(true, Ordering::Relaxed);
        pool::dma_seen();
    }
}

fn is_direct(fd: c_int) -> bool {
    // SAFETY: asking for the flags of any number is harmless.
    let flags = unsafe { syscalls::raw_syscall!(syscalls::Sysno::fcntl, fd, libc::F_GETFL) };
    crate::sys::check(flags).is_ok_and(|flags| flags as i32 & libc::O_DIRECT != 0)
}

/// Whether a character device never reads or writes a program's memory directly.
fn is_harmless(major: c_uint, minor: c_uint) -> bool {
    /// Memory devices: null, zero, full, random, urandom among them.
    const MEM: c_uint = 1;
    /// Terminals: tty, console, ptmx.
    const TTY: c_uint = 5;
    /// Virtual terminals and serial lines.
    const TTY_LINES: c_uint = 4;
    /// The slave ends of pseudo terminals.
    const PTS: std::ops::RangeInclusive<c_uint> = 136..=143;
    match major {
        MEM => matches!(minor, 3 | 5 | 7 | 8 | 9),
        TTY | TTY_LINES => true,
        _ => PTS.contains(&major),
    }
}

pub fn is_dma_device(fd: c_int) -> bool {
    crate::sys::status(fd).is_some_and(|file| is_dma(file.st_mode, file.st_rdev))
}

pub fn is_dma(mode: libc::mode_t, device: libc::dev_t) -> bool {
    match mode & libc::S_IFMT {
        libc::S_IFBLK => true,
        libc::S_IFCHR => !is_harmless(libc::major(device), libc::minor(device)),
        _ => false,
    }
}

/// Looks at a descriptor just got, of which nothing is known but its number. A function of C's, as
/// `look_closer`.
#[inline(never)]
pub extern "C" fn look_at(fd: c_int) {
    if fd >= 0 && looking() && (is_direct(fd) || is_dma_device(fd)) {
        seen();
    }
}
