//! The target `frame_allocator`, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| overspill_fuzz::frame_allocator::run(bytes));
