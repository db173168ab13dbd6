//! The target `shared_tables`, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| overspill_fuzz::shared_tables::run(bytes));
