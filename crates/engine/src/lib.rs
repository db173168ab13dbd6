//! overspill: more memory than your RAM budget, in user space.
//!
//! ```
//! # if !overspill_os::probe::probe().user_faults() { return Ok(()) }
//! use overspill::Pool;
//!
//! let pool = Pool::builder().memory(16 << 20).swap("/var/tmp").build()?;
//! let mut values = pool.map_of::<u64>(8 << 20)?; // 64 MiB, four times the memory
//! for (i, value) in values.iter_mut().enumerate() {
//!     *value = i as u64;
//! }
//! assert_eq!(values[1_234_567], 1_234_567);
//!
//! let mut more = pool.vec::<u32>(); // it grows
//! more.extend(0..1_000_000);
//! assert_eq!(more.len(), 1_000_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the feature `allocator-api2`, collections of other crates take a pool's allocator
//! (`Pool::allocator`).
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
#[doc = include_str!("../../../docs/guide/library.md")]
#[doc = include_str!("../../../README.md")]
struct Documents;

pub use control::{job, swapoff};
pub use error::Error;
#[cfg(feature = "allocator-api2")]
pub use pool::PoolAllocator;
pub use pool::{Advice, Builder, MapFlags, Plain, Pool, PoolVec, Region, RegionError};
