//! Waiting for the program, with the signals that are sent to overspill passed on to it.

use overspill_os::beside;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, set_child_subreaper, waitid,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fs, io};

const FORWARDED: [i32; 6] = [SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2];

/// Set when a signal asks this command to end. One that is ignored stays so.
pub fn asked_to_end() -> io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in not_ignored([SIGINT, SIGTERM, SIGHUP]) {
        signal_hook::flag::register(signal, asked.clone())?;
    }
    Ok(asked)
}

/// The signals in question, caught from [`Signals::catch`] on.
#[derive(Debug)]
pub struct Signals {
    delivery: SignalDelivery<UnixStream, WithOrigin>,
}

impl Signals {
    /// Begins to catch signals; done before the program starts, so that none is lost. A signal that
    /// is ignored stays so, for overspill and for the program: nohup(1) and background jobs of
    /// shells rely on that.
    ///
    /// Orphans of the job come to this process from now on, and are reaped here: each process of it
    /// leaves the process that the engine had beside it, and the init of a container may reap
    /// nobody.
    pub fn catch() -> io::Result<Signals> {
        let _ = set_child_subreaper(Some(getpid()));
        let caught = not_ignored(FORWARDED);
        let (read, write) = UnixStream::pair()?;
        write.set_nonblocking(true)?;
        let delivery =
            SignalDelivery::with_pipe(read, write, WithOrigin::default(), caught.chain([SIGCHLD]))?;
        Ok(Signals { delivery })
    }

    /// Waits until the child has ended, without reaping it: its number stays its own while signals
    /// go to it. Calls `tick` meanwhile, which says after what time it is to be called again at the
    /// latest, and `killed` with the number of each orphan that a signal has ended.
    pub fn wait(
        &mut self,
        child: Pid,
        mut tick: impl FnMut() -> Duration,
        mut killed: impl FnMut(i32),
    ) -> io::Result<()> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            for origin in self.delivery.pending() {
                if is_forwarded(&origin)
                    && let Some(signal) = Signal::from_named_raw(origin.signal)
                {
                    // The child may have ended or changed its user: then there is nobody to be
                    // told.
                    let _ = kill_process(child, signal);
                }
            }
            if waitid(WaitId::Pid(child), options)?.is_some() {
                return Ok(());
            }
            beside::reap_orphans(child, &mut killed);
            let pause = tick();
            let timeout =
                Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
            match poll(&mut [PollFd::new(self.delivery.get_read(), PollFlags::IN)], Some(&timeout))
            {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The terminal sends its signals to the whole process group: the program has them already.
fn is_forwarded(origin: &Origin) -> bool {
    let from_terminal = origin.cause == Cause::Kernel && matches!(origin.signal, SIGINT | SIGQUIT);
    origin.signal != SIGCHLD && !from_terminal
}

/// Those that are not ignored.
pub fn not_ignored(signals: impl IntoIterator<Item = i32>) -> impl Iterator<Item = i32> {
    let ignored = ignored_signals(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    signals.into_iter().filter(move |signal| ignored & 1 << (signal - 1) == 0)
}

/// The mask of ignored signals in the text of /proc/self/status.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        assert_eq!(
            ignored_signals("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"),
            0x1001
        );
        assert_eq!(ignored_signals(""), 0);
        // The runtime of Rust ignores SIGPIPE, number 13.
        assert_ne!(ignored_signals(&fs::read_to_string("/proc/self/status").unwrap()) & 1 << 12, 0);
        assert!(not_ignored([13]).next().is_none() && not_ignored([11]).next().is_some());
    }
}
