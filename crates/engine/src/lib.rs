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
//! The rooms, bottom up: [`base`], [`stats`], [`frame`], [`device`] and [`slot`], [`compressed`],
//! then inside the crate the swap cache, the tiers, the address space, fault and reclaim.
//! ARCHITECTURE.md tells a fault and a reclaim step by step.
#![forbid(unsafe_code)]

mod access;
pub mod base;
mod cache;
#[cfg(debug_assertions)]
mod check;
mod clean;
pub mod compressed;
pub mod config;
mod costs;
mod counted;
mod delivery;
pub mod device;
mod engine;
mod error;
#[cfg(test)]
mod explore;
mod extent;
mod family;
mod fault;
pub mod fill;
pub mod frame;
mod frames;
mod hints;
pub mod job;
mod limit;
mod lockdep;
mod oom;
mod pack;
mod pool;
mod pressure;
mod proactive;
mod readahead;
mod recent;
mod reclaim;
mod regions;
mod resize;
mod share;
pub mod slot;
mod space;
mod stall;
pub mod stats;
pub mod swapoff;
mod sync;
mod throttle;
mod tier;
mod word;
mod writeback;
mod zswap;

// The examples of the documents compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
#[doc = include_str!("../../../README.md")]
struct Documents;

pub use error::Error;
pub use pool::{Advice, MapFlags, Pool, Region};
