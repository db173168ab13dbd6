//! Lines to the program's standard error, from any thread. No locks.

use crate::descriptors::{self, OwnDescriptor};
use crate::directory::Directory;
use crate::{process, tls};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;
use std::ffi::CString;
use std::fmt::{Display, Write};
use std::sync::OnceLock;

/// Longest line of [`report`], in bytes: a sentence with a path in it. Longer ones are cut off.
const REPORT_BYTES: usize = 1024;

/// Longest wait of an engine thread for room in the pipe that it reports to.
const REPORT_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

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

/// What the program's standard error was when it began: device, number and special device of the
/// file. [`NOTHING`] where it was closed.
static STANDARD_ERROR: OnceLock<[u64; 3]> = OnceLock::new();
const NOTHING: [u64; 3] = [0; 3];
/// The directory of the run, and the file there that lines are appended to where the program has
/// made something else of its standard error.
static ELSEWHERE: OnceLock<[CString; 2]> = OnceLock::new();

/// From now on descriptor 2 is reported to only while it is the file that it is now: a program may
/// close it, and find its database under that number. Then lines go to a file of the run's
/// directory, both of which are `elsewhere`, or nowhere.
pub fn keep_standard_error(elsewhere: Option<[CString; 2]>) {
    // SAFETY: the descriptor is borrowed for one call.
    let _ = STANDARD_ERROR.set(identity(unsafe { BorrowedFd::borrow_raw(2) }));
    elsewhere.map(|names| ELSEWHERE.set(names));
}

fn identity(fd: BorrowedFd<'_>) -> [u64; 3] {
    rustix::fs::fstat(fd).map_or(NOTHING, |stat| [stat.st_dev, stat.st_ino, stat.st_rdev])
}

/// Whether a descriptor is the standard error that the program began with.
fn is_standard_error(fd: BorrowedFd<'_>) -> bool {
    STANDARD_ERROR.get().is_none_or(|known| identity(fd) == *known && *known != NOTHING)
}

/// Writes a line to the program's standard error, also from a thread whose descriptor table lacks
/// it. Allocates nothing.
pub fn report(line: impl Display) {
    use rustix::fs::{Mode, OFlags};
    let mut text = Text { bytes: [0; REPORT_BYTES], len: 0 };
    let _ = writeln!(text, "overspill: {line}");
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let elsewhere = || {
        let opened = |[run_dir, file]: &[CString; 2]| {
            Directory::trusted(run_dir).ok()?.open_shared(file, flags).ok()
        };
        if let Some(file) = ELSEWHERE.get().and_then(opened) {
            let _ = rustix::io::write(&file, text.as_bytes());
        }
    };
    if !tls::is_engine_thread() {
        // SAFETY: descriptor 2 is borrowed for a look and a write; if it is closed both fail.
        let fd = unsafe { BorrowedFd::borrow_raw(2) };
        if is_standard_error(fd) {
            let _ = rustix::io::write(fd, text.as_bytes());
        } else {
            elsewhere();
        }
        return;
    }
    // Not opened anew if it can be helped: a file would have a position of its own then, and a
    // socket cannot be.
    let program = process::program().as_raw_nonzero().get();
    let mut path = Text { bytes: [0; REPORT_BYTES], len: 0 };
    let _ = write!(path, "/proc/{program}/fd/2");
    let opened =
        || descriptors::open_path(|| rustix::fs::open(path.as_bytes(), flags, Mode::empty()));
    let file =
        descriptors::duplicate(process::program(), 2).or_else(|_| opened()).map(OwnDescriptor::new);
    match file.as_ref().map(OwnDescriptor::fd) {
        Ok(fd) if is_standard_error(fd) => {
            // A pipe that nobody reads must not stop an engine thread.
            let mut writable = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
            if rustix::event::poll(&mut writable, Some(&REPORT_WAIT)).is_ok_and(|ready| ready > 0) {
                let _ = rustix::io::write(fd, text.as_bytes());
            }
        }
        _ => elsewhere(),
    }
}
