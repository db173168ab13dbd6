//! Engine threads of this process: all signals blocked, marked as the engine's. Those beside it are
//! made by [`crate::beside`].

use crate::beside::{self, Job};
use crate::io::File;
use crate::signal::Blocked;
use crate::{Errno, tls};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;
use std::ffi::CString;
use std::fmt::{Display, Write};
use std::sync::OnceLock;
use std::time::Duration;

/// Bytes of an engine thread's stack: deep enough for debug builds; touched lazily.
const STACK_BYTES: usize = 256 << 10;
/// The C library puts the program's thread-local variables on the stack as well, and refuses a
/// stack that is too small for them. How large they are it does not say, so larger stacks are
/// tried, up to this: 4 GiB of addresses.
const STACK_BYTES_MAX: usize = 4 << 30;

/// Starts one more engine thread: in the sibling where the caller is in it, else in this process.
///
/// # Errors
/// What clone(2) or pthread_create(3) says.
pub fn spawn(
    name: &'static std::ffi::CStr,
    body: impl FnOnce() + Send + 'static,
) -> Result<(), Errno> {
    let job = Job::new(name, body);
    if beside::is_here() { beside::spawn(job) } else { spawn_here(job) }
}

/// Starts an engine thread of this process. It is born with all signals blocked, so that none of
/// the program's handlers ever runs on it, and is the engine's from its first instruction: not
/// through std, which allocates on a new thread before its body runs.
pub(crate) fn spawn_here(job: Job) -> Result<(), Errno> {
    let _blocked = Blocked::all();
    let job = Box::into_raw(Box::new(job));
    // SAFETY: 1. the attributes live through the call; 2. `run` takes the box over, once, unless no
    // thread was made;
    // 3. the thread is detached: nobody joins it.
    let failed = unsafe {
        let mut attributes = std::mem::zeroed::<libc::pthread_attr_t>();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut thread = std::mem::zeroed::<libc::pthread_t>();
        let mut bytes = STACK_BYTES;
        let failed = loop {
            libc::pthread_attr_setstacksize(&mut attributes, bytes);
            let failed = libc::pthread_create(&mut thread, &attributes, run, job.cast());
            bytes *= 4;
            if failed != libc::EINVAL || bytes > STACK_BYTES_MAX {
                break failed;
            }
        };
        libc::pthread_attr_destroy(&mut attributes);
        if failed != 0 {
            drop(Box::from_raw(job));
        }
        failed
    };
    if failed == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(failed)) }
}

extern "C" fn run(job: *mut libc::c_void) -> *mut libc::c_void {
    tls::mark_engine_thread();
    let _ = Blocked::all().suspend();
    // SAFETY: `spawn_here` gives this thread the box, and nobody else.
    let job = unsafe { Box::from_raw(job.cast::<Job>()) };
    let _ = rustix::thread::set_name(job.name);
    (job.body)();
    std::ptr::null_mut()
}

/// Sleeps without a libc symbol that a program could have replaced, and without a cancellation
/// point.
pub fn sleep(time: Duration) {
    let spec = rustix::thread::Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos() as i64,
    };
    let _ = rustix::thread::nanosleep(&spec);
}

/// Processor time that the program has used; without the engine's threads where they live beside
/// it.
pub fn process_cpu_time() -> Duration {
    /// In the number of a clock, behind the inverted number of the process.
    const PROCESS_SCHED: i32 = 0b010;
    cpu_time_of(!beside::program().as_raw_nonzero().get() << 3 | PROCESS_SCHED)
}

/// Processor time that thread `tid` of this process has used; 0 if there is none.
pub fn cpu_time(tid: i32) -> Duration {
    /// In the number of a clock, behind the inverted number of the thread: the time that the
    /// scheduler gave to a thread.
    const THREAD_SCHED: i32 = 0b110;
    cpu_time_of(!tid << 3 | THREAD_SCHED)
}

fn cpu_time_of(clock: i32) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which lives through the call.
    let ret = unsafe {
        syscalls::raw_syscall!(syscalls::Sysno::clock_gettime, clock, &mut time as *mut _)
    };
    if ret == 0 { Duration::new(time.tv_sec as u64, time.tv_nsec as u32) } else { Duration::ZERO }
}

/// Id of the calling thread.
pub fn id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

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
/// The file that lines are appended to where the program has made something else of its standard
/// error.
static ELSEWHERE: OnceLock<CString> = OnceLock::new();

/// From now on descriptor 2 is reported to only while it is the file that it is now: a program may
/// close it, and find its database under that number. Then lines go to the file `elsewhere`, or
/// nowhere.
pub fn keep_standard_error(elsewhere: Option<CString>) {
    // SAFETY: the descriptor is borrowed for one call.
    let _ = STANDARD_ERROR.set(identity(unsafe { BorrowedFd::borrow_raw(2) }));
    elsewhere.map(|file| ELSEWHERE.set(file));
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
        let mode = Mode::RUSR | Mode::WUSR;
        let opened = |path: &CString| {
            rustix::fs::open(path, flags | OFlags::CREATE | OFlags::NOFOLLOW, mode)
        };
        if let Some(Ok(file)) = ELSEWHERE.get().map(opened) {
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
    let program = beside::program().as_raw_nonzero().get();
    let opened = || {
        rustix::fs::open(format!("/proc/{program}/fd/2"), flags, Mode::empty()).map(File::from_fd)
    };
    let file = beside::duplicate(beside::program(), 2).or_else(|_| opened());
    match file.as_ref().map(File::fd) {
        Ok(Ok(fd)) if is_standard_error(fd) => {
            // A pipe that nobody reads must not stop an engine thread.
            let mut writable = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
            if rustix::event::poll(&mut writable, Some(&REPORT_WAIT)).is_ok_and(|ready| ready > 0) {
                let _ = rustix::io::write(fd, text.as_bytes());
            }
        }
        _ => elsewhere(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_told_by_thread() {
        let (send, receive) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let idle = std::thread::spawn(move || {
            send.send(id()).unwrap();
            let _ = wait.recv();
        });
        let other = receive.recv().unwrap();
        let before = (cpu_time(id()), process_cpu_time());
        while cpu_time(id()) - before.0 < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        assert!(process_cpu_time() - before.1 >= Duration::from_millis(20));
        assert!(cpu_time(other) < Duration::from_millis(10), "it does nothing");
        assert_eq!(cpu_time((1 << 22) + 1), Duration::ZERO, "beyond the kernel's largest number");
        done.send(()).unwrap();
        idle.join().unwrap();
    }
}
