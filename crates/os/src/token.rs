//! Tokens: how a process learns that another, and all its descendants, are gone.
//!
//! A token is the end of a pipe into which nobody writes. It is inherited through every fork, and closed by exec and by
//! the end of a process; whoever watches the other end is told when the last copy is closed. No path, no right and no
//! process id is needed for that, so it works across changes of user and root directory. No locks.

use crate::Errno;
use crate::io::File;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;

/// What the watched hold.
#[derive(Debug)]
pub struct Token(pub File);

/// What the watcher holds.
#[derive(Debug)]
pub struct Watch(pub File);

/// A new token, in the descriptor table of the calling thread; closed by exec.
pub fn pair() -> Result<(Watch, Token), Errno> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Watch(File::from_fd(read)), Token(File::from_fd(write))))
}

impl Watch {
    /// Whether every copy of the token is closed.
    pub fn is_gone(&self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok(fd) = self.0.fd() else { return false };
        let mut end = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        rustix::event::poll(&mut end, Some(&NOW)).is_ok() && end[0].revents().contains(PollFlags::HUP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_gone_with_its_last_copy() {
        let (watch, token) = pair().unwrap();
        assert!(!watch.is_gone());
        let copy = crate::thread::duplicate(std::process::id() as i32, token.0.raw_fd().unwrap()).unwrap();
        drop(token);
        assert!(!watch.is_gone());
        drop(copy);
        assert!(watch.is_gone());
        watch.0.adopt(None);
        assert!(!watch.is_gone(), "who cannot look does not know");
    }
}
