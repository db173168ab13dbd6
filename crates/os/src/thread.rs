//! Engine threads: all signals blocked, marked as the engine's, with a descriptor table of their own on request.

use crate::signal::Blocked;
use crate::{Errno, tls};
use rustix::thread::UnshareFlags;
use std::fmt::{Display, Write};

/// Bytes of an engine thread's stack: deep enough for debug builds; touched lazily.
const STACK_BYTES: usize = 256 << 10;
/// The C library puts the program's thread-local variables on the stack as well, and refuses a stack that is too small
/// for them. How large they are it does not say, so larger stacks are tried, up to this: 4 GiB of addresses.
const STACK_BYTES_MAX: usize = 4 << 30;

/// What a new thread runs.
struct Start {
    name: &'static std::ffi::CStr,
    body: Box<dyn FnOnce() + Send>,
}

/// Starts an engine thread. It is born with all signals blocked, so that none of the program's handlers ever runs on it,
/// and is the engine's from its first instruction: not through std, which allocates on a new thread before its body runs.
pub fn spawn(name: &'static std::ffi::CStr, body: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let _blocked = Blocked::all();
    let start = Box::into_raw(Box::new(Start { name, body: Box::new(body) }));
    // SAFETY: 1. the attributes live through the call; 2. `run` takes the box over, once, unless no thread was made;
    // 3. the thread is detached: nobody joins it.
    let failed = unsafe {
        let mut attributes = std::mem::zeroed::<libc::pthread_attr_t>();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut thread = std::mem::zeroed::<libc::pthread_t>();
        let mut bytes = STACK_BYTES;
        let failed = loop {
            libc::pthread_attr_setstacksize(&mut attributes, bytes);
            let failed = libc::pthread_create(&mut thread, &attributes, run, start.cast());
            bytes *= 4;
            if failed != libc::EINVAL || bytes > STACK_BYTES_MAX {
                break failed;
            }
        };
        libc::pthread_attr_destroy(&mut attributes);
        if failed != 0 {
            drop(Box::from_raw(start));
        }
        failed
    };
    if failed == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(failed)) }
}

extern "C" fn run(start: *mut libc::c_void) -> *mut libc::c_void {
    tls::mark_engine_thread();
    // SAFETY: `spawn` gives this thread the box, and nobody else.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    let _ = rustix::thread::set_name(start.name);
    (start.body)();
    std::ptr::null_mut()
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

/// Longest line of [`report`], in bytes: a sentence with a path in it. Longer ones are cut off.
const REPORT_BYTES: usize = 1024;

/// Text that is put together without the heap.
struct Text {
    bytes: [u8; REPORT_BYTES],
    len: usize,
}

impl Text {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Write for Text {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let fits = part.len().min(REPORT_BYTES - self.len);
        self.bytes[self.len..self.len + fits].copy_from_slice(&part.as_bytes()[..fits]);
        self.len += fits;
        Ok(())
    }
}

/// Writes a line to the program's standard error, also from a thread whose descriptor table lacks it. Allocates nothing.
pub fn report(line: impl Display) {
    use rustix::fs::{Mode, OFlags};
    let mut text = Text { bytes: [0; REPORT_BYTES], len: 0 };
    let _ = writeln!(text, "overspill: {line}");
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
