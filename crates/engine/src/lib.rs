//! A complete swap and page-reclaim subsystem in user space, on userfaultfd.
#![forbid(unsafe_code)]

pub mod base;
pub mod config;
pub mod stats;
