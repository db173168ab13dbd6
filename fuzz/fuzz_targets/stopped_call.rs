//! Makes up system calls on managed memory: any numbers, any bytes as what they point to, any
//! rights of the pages. Each is made by the kernel alone and as it is made for a program, and must
//! end the same: crates/preload/src/trap/explore.rs, whose tests run its seeds.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| overspill_preload_tests::explore(bytes));
