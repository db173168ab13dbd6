//! The benches, a module each. Each declares a [`crate::model::declare::Ladder`], and has `Args`
//! (its options, with [`common::Common`] among them), `run` (plans, has everything measured and
//! returns [`crate::model::findings::Findings`]) and `measure_one` (one measurement, in a process
//! of its own, from [`crate::work`]).

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
