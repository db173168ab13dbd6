//! Linux mechanisms under overspill, and the only place of the engine with unsafe code.
//!
//! Mechanism, no policy: each module wraps one thing the kernel offers in types whose safe methods
//! check what they are given. System calls are made directly (not through libc symbols), because
//! the preload library replaces those symbols for the whole process and must not call itself.
//!
//! Bottom up, each knowing only those before it: sizes and error numbers (`units`), [`lock`] (held
//! over forks), [`copy`] (of memory that may not be there), [`cpu`], [`region`] and `heap` (for
//! users of the library), `task` (threads by number), [`tls`], [`mod@pointer`] (whose storage a
//! thread has), `process` (in the program or beside it), [`confined`] (under a filter of the
//! program's), [`seccomp`] (stopping system calls), [`descriptors`], [`directory`] (held open),
//! [`signal`], `report`, `job`, [`vm`] (mappings), [`arena`] (the memory behind page frames),
//! [`stack`], [`table`], [`codec`] (LZ4, Zstandard), [`beside`] (the sibling), [`foreign`] (threads
//! with a thread pointer of the program's own), [`io`] (direct I/O), `secret` (memory for keys),
//! [`crypt`] (sealed pages), [`uffd`] (userfaultfd), [`backing`] (the seam by which pages come and
//! go), [`uring`], [`observer`], [`rss`] (how much memory there is), [`smaps`] (of what kinds),
//! [`executable`] (programs as files), [`token`], [`thread`], [`fault_path`] (its rules),
//! [`probe`].

pub mod arena;
pub mod backing;
pub mod beside;
pub mod codec;
pub mod confined;
pub mod copy;
pub mod cpu;
pub mod crypt;
pub mod descriptors;
pub mod directory;
mod engine_thread;
pub mod executable;
pub mod fault_path;
pub mod foreign;
#[cfg(feature = "allocator-api2")]
pub mod heap;
pub mod io;
pub mod list;
pub mod lock;
pub mod observer;
pub mod pointer;
pub mod probe;
mod process;
pub mod region;
mod report;
pub mod rest;
pub mod rss;
pub mod seccomp;
mod secret;
pub mod signal;
pub mod smaps;
pub mod stack;
pub mod table;
mod task;
pub mod thread;
pub mod tls;
pub mod token;
pub mod uffd;
mod units;
pub mod uring;
pub mod vm;

pub use probe::Rlimit;
pub use units::{Errno, PAGE_SHIFT, PAGE_SIZE};
