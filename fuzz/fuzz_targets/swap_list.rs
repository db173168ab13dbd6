//! Reads any text as the list of a job's swap devices. What is accepted is written and read back as
//! it was.
//!
//! `cargo +nightly fuzz run swap_list`
#![no_main]

use libfuzzer_sys::fuzz_target;
use overspill::device::list::JobSwaps;

fuzz_target!(|text: &str| {
    if let Ok(list) = text.parse::<JobSwaps>() {
        assert_eq!(list.to_string().parse(), Ok(list));
    }
});
