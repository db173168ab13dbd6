//! The target `swap_spec`, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| overspill_fuzz::swap_spec::run(bytes));
