//! Makes up system calls on managed memory: any numbers, any bytes as what they point to, any
//! rights of the pages. Each is made by the kernel alone and as it is made for a program, and must
//! end the same: crates/preload/src/trap/explore.rs.
//!
//! `cargo +nightly fuzz run stopped_call`
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| overspill_preload_tests::explore(bytes));
