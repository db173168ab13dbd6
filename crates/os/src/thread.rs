//! Engine threads: all signals blocked, marked as the engine's, with a descriptor table of their own on request.

use crate::signal::Blocked;
use crate::{Errno, tls};
use rustix::thread::UnshareFlags;

/// Starts an engine thread. It is born with all signals blocked, so that none of the program's handlers ever runs on it.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<std::thread::JoinHandle<()>> {
    let _blocked = Blocked::all();
    // Deep enough for debug builds; touched lazily.
    const STACK_BYTES: usize = 256 << 10;
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(move || {
        tls::mark_engine_thread();
        body();
    })
}

/// Gives the calling thread a descriptor table of its own that holds only `keep`.
///
/// The program can then neither see nor close the engine's descriptors, and the engine keeps none of the
/// program's files or pipes open.
pub fn private_descriptors(keep: &[i32]) -> Result<(), Errno> {
    // SAFETY: only the descriptor table is unshared; no code of ours relies on its being shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES)? };
    let mut keep: Vec<u32> = keep.iter().map(|fd| *fd as u32).collect();
    keep.sort_unstable();
    let mut next = 0;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if fd > next {
            close_range(next, fd - 1);
        }
        next = fd.saturating_add(1);
    }
    Ok(())
}

fn close_range(first: u32, last: u32) {
    // SAFETY: the table is the calling thread's own since unshare; whoever owned these numbers owns them elsewhere.
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

/// Id of the calling thread.
pub fn id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Writes a line to the program's standard error, also from a thread whose descriptor table lacks it.
pub fn report(line: &str) {
    use rustix::fs::{Mode, OFlags};
    let text = format!("overspill: {line}\n");
    if !tls::is_engine_thread() {
        // SAFETY: descriptor 2 is borrowed for one write; if it is closed the write fails and nothing is lost.
        let _ = rustix::io::write(unsafe { rustix::fd::BorrowedFd::borrow_raw(2) }, text.as_bytes());
        return;
    }
    // The table of /proc/self is the thread group leader's, which is the program's.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open("/proc/self/fd/2", flags, Mode::empty()) {
        let _ = rustix::io::write(&file, text.as_bytes());
    }
}

/// Closes a descriptor of the calling thread's table by its number, which nothing uses any more.
pub fn close(fd: i32) {
    // SAFETY: the caller owns the number.
    unsafe { rustix::io::close(fd) };
}
