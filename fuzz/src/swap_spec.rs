//! Reads any text as a list of swap devices. What is accepted is written and read back as it was,
//! as a whole and device by device: it travels through an environment variable.

use overspill::config::{SwapList, SwapSpec};

/// The target.
pub fn run(bytes: &[u8]) {
    let text = crate::text_of(bytes);
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
}
