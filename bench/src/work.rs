//! What is done and timed, in the process of one measurement: samples come from here.

pub mod codecs;
pub mod page_fault;
pub mod reclaim_storm;
pub mod swap_r_rand;
pub mod swap_w_seq;
pub mod swapoff;
pub mod vs_kernel;
pub mod working_set;
pub mod zswap;
