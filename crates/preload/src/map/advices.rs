//! process_madvise(2): advice about many ranges of memory at once.
//!
//! About the memory of the process itself it means the same as madvise(2) about one range after the
//! other, so it goes the same way ([`crate::map`]). What is about another process, or about no
//! managed memory, or is wrong as a whole, is the kernel's.

use crate::memory::vectors::VECTOR_MAX;
use crate::route::pages;
use crate::{map, memory, pool};
use overspill_os::{PAGE_SIZE, descriptors, tls};
use rustix::fs::{Mode, OFlags};
use std::ffi::{c_int, c_uint};

/// What stands for the calling thread, or its process, in place of a descriptor (PIDFD_SELF_*).
const SELF: [c_int; 2] = [-10000, -10001];
/// Bytes that one call goes through (MAX_RW_COUNT); what lies behind is left out.
const BYTES_MAX: usize = i32::MAX as usize & !(PAGE_SIZE - 1);
/// Where addresses of programs end.
const ADDRESSES_END: usize = (1 << 47) - PAGE_SIZE;

/// The call, where it is ours to make.
///
/// # Safety
///
/// As for process_madvise(2).
pub unsafe fn own(
    process: c_int,
    vector: usize,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> Option<Result<usize, overspill_os::Errno>> {
    if !pool::exists() || !tls::is_program() || flags != 0 || count > VECTOR_MAX {
        return None;
    }
    let mut ranges = Vec::with_capacity(count);
    let readable = memory::for_each(vector, count, |piece: libc::iovec| {
        ranges.push((piece.iov_base as usize, piece.iov_len))
    });
    let is_right = |&(start, len): &(usize, usize)| {
        start.checked_add(len).is_some_and(|end| end <= ADDRESSES_END)
    };
    let is_managed = |&(start, len): &(usize, usize)| {
        pages(start, len).is_some_and(|range| !pool::split(range).inside.is_empty())
    };
    if !readable
        || !ranges.iter().all(is_right)
        || !ranges.iter().any(is_managed)
        || !is_own(process)
    {
        return None;
    }
    let mut done = 0;
    for (start, len) in ranges {
        let len = len.min(BYTES_MAX - done);
        // SAFETY: the caller's promise.
        match unsafe { map::madvise(start, len, advice) } {
            Err(errno) if done == 0 => return Some(Err(errno)),
            Err(_) => break,
            Ok(_) => done += len,
        }
    }
    Some(Ok(done))
}

/// Whether a descriptor stands for this process.
fn is_own(process: c_int) -> bool {
    if SELF.contains(&process) {
        return true;
    }
    let mut text = [0; 512];
    let path = format!("/proc/self/fdinfo/{process}");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let len = descriptors::open_path(|| rustix::fs::open(&path, flags, Mode::empty()))
        .and_then(|file| rustix::io::read(file, &mut text))
        .unwrap_or(0);
    names(&text[..len], rustix::process::getpid().as_raw_nonzero().get())
}

/// Whether what is told of a descriptor says that it stands for this process.
fn names(told: &[u8], process: i32) -> bool {
    let line = told.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Pid:"));
    line.and_then(|number| std::str::from_utf8(number).ok()?.trim().parse().ok()) == Some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_of_a_process_is_told_from_others() {
        let told = b"pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t7\nPid:\t123\nNSpid:\t123\n";
        assert!(names(told, 123) && !names(told, 12) && !names(&told[..20], 123));
        assert!(!names(b"Pid:\t-1\n", 1), "that process has ended");
        assert!(is_own(SELF[0]) && is_own(SELF[1]) && !is_own(-1));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_own(std::os::fd::AsRawFd::as_raw_fd(&null)), "no process");
        let own = rustix::process::pidfd_open(
            rustix::process::getpid(),
            rustix::process::PidfdFlags::empty(),
        )
        .unwrap();
        assert!(is_own(std::os::fd::AsRawFd::as_raw_fd(&own)));
    }
}
