//! The target `swap_list`, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| overspill_fuzz::swap_list::run(bytes));
