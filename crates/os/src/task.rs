//! What the kernel says of threads and processes by their numbers, and sleeping. No locks.

use rustix::process::Pid;
use std::time::Duration;

/// Sleeps without a libc symbol that a program could have replaced, and without a cancellation
/// point.
pub fn sleep(time: Duration) {
    let spec = rustix::thread::Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos() as i64,
    };
    let _ = rustix::thread::nanosleep(&spec);
}

/// Processor time that a process has used; 0 if there is none.
pub(crate) fn cpu_time_of_process(process: Pid) -> Duration {
    /// In the number of a clock, behind the inverted number of the process.
    const PROCESS_SCHED: i32 = 0b010;
    cpu_time_of(!process.as_raw_nonzero().get() << 3 | PROCESS_SCHED)
}

/// Processor time that thread `tid` of this process has used; 0 if there is none.
pub fn cpu_time(tid: i32) -> Duration {
    /// In the number of a clock, behind the inverted number of the thread: the time that the
    /// scheduler gave to a thread.
    const THREAD_SCHED: i32 = 0b110;
    cpu_time_of(!tid << 3 | THREAD_SCHED)
}

/// Whether two processes have the same memory, as after vfork(2); `false` also where that may not
/// be asked.
pub fn share_memory(one: i32, other: i32) -> bool {
    const KCMP_VM: usize = 1;
    // SAFETY: the call takes numbers.
    let order = unsafe {
        syscalls::raw_syscall!(syscalls::Sysno::kcmp, one, other, KCMP_VM, 0usize, 0usize)
    };
    order == 0
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
