//! Orphans, in a process that gets those of others: it is the init of a namespace, or a subreaper.

use rustix::process::Pid;
use syscalls::{Sysno, raw_syscall};

/// Whether orphans of this process become its children.
pub(super) fn gets_orphans() -> bool {
    let mut subreaper = 0i32;
    // SAFETY: the call writes one integer.
    unsafe {
        raw_syscall!(
            Sysno::prctl,
            libc::PR_GET_CHILD_SUBREAPER,
            &raw mut subreaper,
            0usize,
            0usize,
            0usize
        )
    };
    subreaper != 0 || rustix::process::getpid().is_init()
}

/// In a process that gets the orphans of others: reaps those that have ended, and calls `killed`
/// with the number of each that a signal has ended. Stops at `child`, which is left to its waiter.
pub fn reap_orphans(child: Pid, mut killed: impl FnMut(i32)) {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    loop {
        // SAFETY: 1. zero is a valid siginfo_t, which the first call fills in where somebody has
        // ended; 2. the second call writes nothing.
        unsafe {
            let mut ended: libc::siginfo_t = std::mem::zeroed();
            let failed =
                raw_syscall!(Sysno::waitid, libc::P_ALL, 0usize, &raw mut ended, options, 0usize)
                    != 0;
            let pid = ended.si_pid();
            if failed || pid == 0 || pid == child.as_raw_nonzero().get() {
                return;
            }
            if ended.si_code != libc::CLD_EXITED {
                killed(pid);
            }
            raw_syscall!(Sysno::wait4, pid, 0usize, libc::WNOHANG, 0usize);
        }
    }
}
