//! What a decoder says of bytes that are no page.

use std::fmt;

/// A packed page that does not decode to exactly one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CorruptPage;

impl fmt::Display for CorruptPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a compressed page does not decode: its stored bytes were changed")
    }
}

impl std::error::Error for CorruptPage {}
