//! The benches, a module each. Each has `Args` (its options, with [`crate::Common`] among them),
//! `run` (measures and returns [`crate::report::Findings`]) and `measure_one` (one measurement, in
//! a process of its own).

pub mod codecs;
pub mod common;
pub mod page_fault;
pub mod reclaim_storm;
pub mod swap_r_rand;
pub mod swap_w_seq;
pub mod swapoff;
pub mod vs_kernel;
pub mod working_set;
pub mod zswap;
