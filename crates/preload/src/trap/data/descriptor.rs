//! Of what kind a descriptor is: whether parts of a call on it show.

use crate::sys;
use syscalls::{Sysno, raw_syscall};

/// Whether a descriptor is that of a file or a disk, from which a read is as long as it can be.
pub fn is_file(fd: usize) -> bool {
    sys::status(fd as i32)
        .is_some_and(|file| matches!(file.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK))
}

/// Whether a descriptor is a socket on which data are a stream, so that parts do not show.
pub fn is_stream(fd: usize) -> bool {
    socket_type(fd) == Some(libc::SOCK_STREAM)
}

/// Whether it is one on which each call is a message.
pub fn is_of_messages(fd: usize) -> bool {
    socket_type(fd).is_some_and(|kind| kind != libc::SOCK_STREAM)
}

/// The type of a socket; None of anything else.
fn socket_type(fd: usize) -> Option<i32> {
    let (mut kind, mut len) = (0i32, size_of::<i32>() as u32);
    // SAFETY: the kernel writes one integer.
    let ret = unsafe {
        raw_syscall!(
            Sysno::getsockopt,
            fd,
            libc::SOL_SOCKET,
            libc::SO_TYPE,
            &raw mut kind,
            &raw mut len
        )
    };
    sys::check(ret).is_ok().then_some(kind)
}
