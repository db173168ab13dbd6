//! Engine threads: all signals blocked, marked as the engine's, with a descriptor table of their own on request.

use crate::io::File;
use crate::signal::Blocked;
use crate::{Errno, tls};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::RawFd;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use rustix::thread::UnshareFlags;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// Bytes of an engine thread's stack: deep enough for debug builds; touched lazily.
const STACK_BYTES: usize = 256 << 10;
/// The C library puts the program's thread-local variables on the stack as well, and refuses a stack that is too small
/// for them. How large they are it does not say, so larger stacks are tried, up to this: 4 GiB of addresses.
const STACK_BYTES_MAX: usize = 4 << 30;

/// Threads that have been made and do not run their body yet.
static STARTING: AtomicU32 = AtomicU32::new(0);
/// Whether no more are made.
static SEALED: AtomicBool = AtomicBool::new(false);

/// Makes no more threads, from now on: a filter of system calls for all threads is to come, and the C library makes calls for new
/// ones that it may forbid. Waits until those that have been made run their bodies, but not for long. False where that was so before.
pub fn seal() -> bool {
    const LOOKS: usize = 1000;
    let is_first = !SEALED.swap(true, SeqCst);
    for _ in 0..LOOKS {
        if STARTING.load(SeqCst) == 0 {
            break;
        }
        sleep(Duration::from_micros(100));
    }
    is_first
}

/// Makes threads again: no filter came, and there was none at [`seal`].
pub fn unseal() {
    SEALED.store(false, SeqCst);
}

/// In the child of a fork, which has one thread, and needs others whatever its filter says of them.
pub fn reset_in_child() {
    STARTING.store(0, SeqCst);
    unseal();
}

/// What a new thread runs.
struct Start {
    name: &'static std::ffi::CStr,
    body: Box<dyn FnOnce() + Send>,
}

/// Starts an engine thread. It is born with all signals blocked, so that none of the program's handlers ever runs on it,
/// and is the engine's from its first instruction: not through std, which allocates on a new thread before its body runs.
///
/// # Errors
/// EPERM after [`seal`]; what pthread_create(3) says.
pub fn spawn(name: &'static std::ffi::CStr, body: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let _blocked = Blocked::all();
    // Whoever seals sees it, or is seen here.
    STARTING.fetch_add(1, SeqCst);
    if SEALED.load(SeqCst) {
        STARTING.fetch_sub(1, SeqCst);
        return Err(Errno::PERM);
    }
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
            STARTING.fetch_sub(1, SeqCst);
        }
        failed
    };
    // In a process in which the C library never blocks some of them they are open now, here and in the new thread.
    let _ = Blocked::all().suspend();
    if failed == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(failed)) }
}

extern "C" fn run(start: *mut libc::c_void) -> *mut libc::c_void {
    tls::mark_engine_thread();
    let _ = Blocked::all().suspend();
    // SAFETY: `spawn` gives this thread the box, and nobody else.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    let _ = rustix::thread::set_name(start.name);
    STARTING.fetch_sub(1, SeqCst);
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

/// A duplicate of descriptor `fd` of thread `tid` of this process, whose table may be another than the caller's: the same
/// open file, whatever its permissions, also where there is no /proc.
///
/// # Errors
/// EINVAL for a thread that is not the process's first one before Linux 6.9, EPERM in some sandboxes.
pub fn duplicate(tid: i32, fd: RawFd) -> Result<File, Errno> {
    // O_EXCL of pidfd_open(2): a thread rather than a process.
    const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
    let pid = Pid::from_raw(tid).ok_or(Errno::SRCH)?;
    let flags = if pid == rustix::process::getpid() { PidfdFlags::empty() } else { THREAD };
    let thread = File::from_fd(rustix::process::pidfd_open(pid, flags)?);
    Ok(File::from_fd(rustix::process::pidfd_getfd(thread.fd()?, fd, PidfdGetfdFlags::empty())?))
}

/// Sleeps without a libc symbol that a program could have replaced, and without a cancellation point.
pub fn sleep(time: Duration) {
    let spec = rustix::thread::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos() as i64 };
    let _ = rustix::thread::nanosleep(&spec);
}

/// Processor time that this process has used.
pub fn process_cpu_time() -> Duration {
    cpu_time_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Processor time that thread `tid` of this process has used; 0 if there is none.
pub fn cpu_time(tid: i32) -> Duration {
    /// In the number of a clock, behind the inverted number of the thread: the time that the scheduler gave to a thread.
    const THREAD_SCHED: i32 = 0b110;
    cpu_time_of(!tid << 3 | THREAD_SCHED)
}

fn cpu_time_of(clock: i32) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which lives through the call.
    let ret = unsafe { syscalls::raw_syscall!(syscalls::Sysno::clock_gettime, clock, &mut time as *mut _) };
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
    // The program's table is the thread group leader's, which /proc/self shows too. Not opened anew if it can be helped: a
    // file would have a position of its own then, and a socket cannot be.
    let leader = rustix::process::getpid().as_raw_nonzero().get();
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = || rustix::fs::open("/proc/self/fd/2", flags, Mode::empty()).map(File::from_fd);
    if let Ok(file) = duplicate(leader, 2).or_else(|_| opened())
        && let Ok(fd) = file.fd()
    {
        // A pipe that nobody reads must not stop an engine thread.
        let mut writable = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
        if rustix::event::poll(&mut writable, Some(&REPORT_WAIT)).is_ok_and(|ready| ready > 0) {
            let _ = rustix::io::write(fd, text.as_bytes());
        }
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

    /// A thread gets at a descriptor in another thread's table that has no name.
    #[test]
    fn descriptors_of_other_tables() {
        let (send, receive) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        spawn(c"other", move || {
            private_descriptors(&[]).unwrap();
            let (read, write) = rustix::pipe::pipe().unwrap();
            send.send((id(), std::os::fd::AsRawFd::as_raw_fd(&write))).unwrap();
            let _ = wait.recv();
            let mut byte = [0];
            assert_eq!(rustix::io::read(&read, &mut byte), Ok(1));
            send.send((byte[0].into(), 0)).unwrap();
        })
        .unwrap();
        let (tid, fd) = receive.recv().unwrap();
        let copy = match duplicate(tid, fd) {
            Ok(copy) => copy,
            // Before Linux 6.9, and in sandboxes.
            Err(errno) => return assert!(matches!(errno, Errno::INVAL | Errno::PERM | Errno::NOSYS), "{errno}"),
        };
        assert_eq!(rustix::io::write(copy.fd().unwrap(), b"x"), Ok(1));
        done.send(()).unwrap();
        assert_eq!(receive.recv().unwrap().0, i32::from(b'x'));
        assert_eq!(duplicate(id(), 1_000_000).unwrap_err(), Errno::BADF);
    }
}
