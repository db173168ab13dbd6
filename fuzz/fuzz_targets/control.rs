//! The target `control`, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| overspill_fuzz::control::run(bytes));
