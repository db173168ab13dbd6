//! Reads any text as the list of a job's swap devices. What is accepted is written and read back as
//! it was.

use overspill::device::list::JobSwaps;

/// The target.
pub fn run(bytes: &[u8]) {
    let text = crate::text_of(bytes);
    if let Ok(list) = text.parse::<JobSwaps>() {
        assert_eq!(list.to_string().parse(), Ok(list));
    }
}
