//! What is done and timed, in the process of one measurement: samples come from here.

pub mod codecs;
pub mod page_fault;
pub mod swap_r_rand;
pub mod swapoff;
