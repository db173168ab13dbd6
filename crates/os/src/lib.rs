//! Linux mechanisms under overspill, and the only place of the engine with unsafe code.
//!
//! Mechanism, no policy: each module wraps one thing the kernel offers in types whose safe methods
//! check what they are given. System calls are made directly (not through libc symbols), because
//! the preload library replaces those symbols for the whole process and must not call itself.
//!
//! Bottom up: [`vm`] (mappings), [`uffd`] (userfaultfd), [`arena`] (the memory behind page frames),
//! [`backing`] (the seam by which pages come and go), [`io`] and [`uring`] (direct I/O), [`codec`]
//! (LZ4, Zstandard), [`lock`] (held over forks), [`copy`] (of memory that may not be there),
//! [`descriptors`], [`thread`], [`beside`], [`signal`], [`stack`], [`token`], [`tls`],
//! [`fault_path`] (its rules), [`seccomp`] (stopping system calls), [`probe`]; [`region`] for users
//! of the library.

pub mod arena;
pub mod backing;
pub mod beside;
pub mod codec;
pub mod copy;
pub mod cpu;
pub mod credentials;
pub mod descriptors;
pub mod fault_path;
pub mod io;
pub mod lock;
pub mod observer;
pub mod probe;
pub mod region;
pub mod seccomp;
pub mod signal;
pub mod stack;
pub mod table;
pub mod thread;
pub mod tls;
pub mod token;
pub mod uffd;
pub mod uring;
pub mod vm;

/// Size of a page and of a page frame in bytes.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// An error number of the kernel.
pub type Errno = rustix::io::Errno;

/// Limits that the user's session sets.
#[derive(Clone, Copy, Debug)]
pub struct Rlimit;

impl Rlimit {
    /// Bytes that may be locked into memory; `None` when there is no limit or none that binds this
    /// user.
    pub fn memlock() -> Option<u64> {
        if rustix::process::geteuid().is_root() {
            return None;
        }
        rustix::process::getrlimit(rustix::process::Resource::Memlock).current
    }
}
