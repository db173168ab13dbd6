//! Reads any text as a list of swap devices. What is accepted is written and read back as it was,
//! as a whole and device by device: it travels through an environment variable.
//!
//! `cargo +nightly fuzz run swap_spec`
#![no_main]

use libfuzzer_sys::fuzz_target;
use overspill::config::{SwapList, SwapSpec};

fuzz_target!(|text: &str| {
    match text.parse::<SwapList>() {
        Ok(list) => {
            assert_eq!(list.to_string().parse().as_ref(), Ok(&list));
            for spec in &list.0 {
                assert_eq!(spec.to_string().parse().as_ref(), Ok(spec));
            }
            assert_eq!(SwapSpec::priorities(&list.0).len(), list.0.len());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
