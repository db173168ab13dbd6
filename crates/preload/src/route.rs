//! Which part of a range of addresses lies in the window.

use overspill_os::PAGE_SIZE;
use std::ops::Range;

/// A range cut at the edges of the window. Parts may be empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// The part below the window.
    pub below: Range<usize>,
    /// The part inside it.
    pub inside: Range<usize>,
    /// The part above it.
    pub above: Range<usize>,
}

/// Cuts `range` at the edges of `window`.
pub fn split(range: Range<usize>, window: Range<usize>) -> Split {
    let low = window.start.clamp(range.start, range.end);
    let high = window.end.clamp(low, range.end);
    Split { below: range.start..low, inside: low..high, above: high..range.end }
}

/// The whole pages of `len` bytes at `address`, which must be aligned; None where the sum
/// overflows.
pub fn pages(address: usize, len: usize) -> Option<Range<usize>> {
    let len = len.checked_next_multiple_of(PAGE_SIZE)?;
    Some(address..address.checked_add(len)?)
}

/// The whole pages that `len` bytes at any address touch, as mlock(2) rounds; None where the sum
/// overflows.
pub fn pages_touched(address: usize, len: usize) -> Option<Range<usize>> {
    let start = address & !(PAGE_SIZE - 1);
    Some(start..address.checked_add(len)?.checked_next_multiple_of(PAGE_SIZE)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_in_order_cover_the_range_and_know_their_side() {
        let edges = [0, 1, 9, 10, 11, 19, 20, 21, 30];
        for start in edges {
            for end in edges.into_iter().filter(|end| *end >= start) {
                let parts = split(start..end, 10..20);
                assert_eq!((parts.below.start, parts.above.end), (start, end));
                assert_eq!(
                    (parts.below.end, parts.inside.end),
                    (parts.inside.start, parts.above.start)
                );
                for address in start..end {
                    let expected = (address < 10, (10..20).contains(&address), address >= 20);
                    let Split { below, above, .. } = &parts;
                    assert_eq!(
                        (
                            below.contains(&address),
                            parts.inside.contains(&address),
                            above.contains(&address)
                        ),
                        expected,
                        "{address} of {start}..{end}"
                    );
                }
            }
        }
        assert!(split(5..15, 0..0).inside.is_empty(), "without a pool nothing is inside");
    }

    #[test]
    fn lengths_round_to_pages_and_overflow_is_seen() {
        assert_eq!(pages(8192, 1), Some(8192..12288));
        assert_eq!(pages(8192, 0), Some(8192..8192));
        assert_eq!(pages(8192, usize::MAX), None);
        assert_eq!(pages(usize::MAX - 4095, 4097), None);
        assert_eq!(pages_touched(4097, 4096), Some(4096..12288));
        assert_eq!(pages_touched(4097, 0), Some(4096..8192));
        assert_eq!(pages_touched(usize::MAX, 2), None);
    }
}
