//! What the program is told of its limits: the kernel's, less what an engine takes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

/// The kernel's struct rlimit64: soft and hard limit.
pub type LimitPair = [u64; 2];

/// No limit.
pub const UNLIMITED: u64 = libc::RLIM64_INFINITY;

/// What an engine takes of addresses, and of data; nothing where limits are the kernel's.
pub static ADDRESSES: AtomicU64 = AtomicU64::new(0);
pub static DATA: AtomicU64 = AtomicU64::new(0);

/// What an engine takes of a limit.
pub fn overhead_of(resource: u32) -> u64 {
    match resource {
        libc::RLIMIT_AS => ADDRESSES.load(Relaxed),
        libc::RLIMIT_DATA => DATA.load(Relaxed),
        _ => 0,
    }
}

/// A limit of this process, as the program is told it.
pub fn of_process(resource: u32) -> LimitPair {
    told(kernels(resource), overhead_of(resource))
}

/// A limit of this process, as the kernel has it.
pub fn kernels(resource: u32) -> LimitPair {
    let mut limit = [UNLIMITED; 2];
    // SAFETY: the kernel writes a limit of this process.
    unsafe { raw_syscall!(Sysno::prlimit64, 0, resource, 0, &raw mut limit) };
    limit
}

/// What the program is told of a limit of the kernel's, of which an engine takes `more`.
pub fn told(kernels: LimitPair, more: u64) -> LimitPair {
    let is_raised = |limit: u64| limit != UNLIMITED && limit >= more;
    kernels.map(|limit| if is_raised(limit) { limit - more } else { limit })
}
