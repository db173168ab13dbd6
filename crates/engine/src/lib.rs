//! overspill: more memory than your RAM budget, in user space.
//!
//! ```no_run
//! use overspill::Pool;
//!
//! let pool = Pool::with_memory(256 << 20, Some("/var/tmp".as_ref()))?;
//! let mut region = pool.map(4 << 30)?; // sixteen times the memory
//! let values: &mut [u64] = region.as_mut_slice();
//! for (i, value) in values.iter_mut().enumerate() {
//!     *value = i as u64;
//! }
//! assert_eq!(values[123_456_789], 123_456_789);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Pool`] is a complete swap and page-reclaim subsystem on userfaultfd, without root and
//! without kernel swap: a budget of page frames, a compressed tier, swap devices. What a [`Region`]
//! holds beyond the budget is compressed in memory or written to a device, and comes back when it
//! is touched.
//!
//! In signal delivery, which [`Pool::with_memory`] sets up, the faulting thread serves itself, on
//! every core at once. A system call that is handed memory which is not resident just then fails
//! with EFAULT: touch or copy the data first, or make a pool in thread delivery
//! ([`config::Delivery::Thread`]) where system calls work on any memory.
//!
//! The floors, bottom up: [`units`] and [`stats`]; locks and waiting; [`frame`] and [`slot`];
//! [`device`] and [`zpool`]; page words; swap; reclaim; faults; control; the address space. Each is
//! read knowing only those below it. ARCHITECTURE.md tells a fault and a reclaim step by step.
#![forbid(unsafe_code)]

mod account;
mod base;
pub mod config;
mod control;
pub mod device;
mod engine;
mod error;
mod fault;
pub mod frame;
mod memory;
mod pool;
mod reclaim;
pub mod slot;
mod space;
pub mod stats;
mod swap;
pub mod units;
mod workingset;
pub mod zpool;

// The examples of the documents compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
#[doc = include_str!("../../../README.md")]
struct Documents;

pub use control::{job, swapoff};
pub use error::Error;
pub use pool::{Advice, MapFlags, Pool, Region};
