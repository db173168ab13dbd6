//! Linux mechanisms under overspill, and the only place of the engine with unsafe code.
//!
//! Mechanism, no policy: each module wraps one thing the kernel offers in types whose safe methods check what
//! they are given. System calls are made directly (not through libc symbols), because the preload library
//! replaces those symbols for the whole process and must not call itself.
//!
//! Bottom up: [`vm`] (mappings), [`uffd`] (userfaultfd), [`arena`] (the memory behind page frames),
//! [`backing`] (the seam by which pages come and go), [`io`] and [`uring`] (direct I/O), [`codec`] (LZ4),
//! [`thread`], [`signal`], [`tls`], [`cpu`], [`probe`].

pub mod vm;

/// Size of a page and of a page frame in bytes.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// An error number of the kernel.
pub type Errno = rustix::io::Errno;
