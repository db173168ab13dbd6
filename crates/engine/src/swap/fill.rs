//! Same-filled pages: pages in which one 32-bit value repeats, kept as that value only.
//!
//! Most of them are zero pages. The check runs on every page before it is compressed, so on other
//! pages it must end at once: it compares the last word first (a page filled at its beginning only
//! is the common near miss), then block by block from the front.

use crate::units::PAGE_SIZE;

/// Bytes compared between two looks at the result: a cache line, which the compiler compares with
/// vector instructions.
const BLOCK_BYTES: usize = 64;

/// The value that every aligned 32-bit word of `page` holds, or `None` when they differ.
pub fn same_filled(page: &[u8; PAGE_SIZE]) -> Option<u32> {
    let (blocks, []) = page.as_chunks::<BLOCK_BYTES>() else {
        unreachable!("blocks divide a page")
    };
    let (words, []) = page.as_chunks::<8>() else { unreachable!("words divide a page") };
    let pattern = words[0];
    let value = [pattern[0], pattern[1], pattern[2], pattern[3]];
    if pattern[4..] != value || words[words.len() - 1] != pattern {
        return None;
    }
    let expected = u64::from_ne_bytes(pattern);
    let same = blocks.iter().all(|block| {
        let (words, _) = block.as_chunks::<8>();
        words
            .iter()
            .fold(0, |differences, word| differences | (u64::from_ne_bytes(*word) ^ expected))
            == 0
    });
    same.then(|| u32::from_ne_bytes(value))
}

/// Writes `value` to every 32-bit word of `page`: the inverse of [`same_filled`].
pub fn fill(page: &mut [u8; PAGE_SIZE], value: u32) {
    let (words, _) = page.as_chunks_mut::<4>();
    words.fill(value.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(page: &[u8; PAGE_SIZE]) -> Option<u32> {
        let words: Vec<_> =
            page.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
        words.iter().all(|word| *word == words[0]).then_some(words[0])
    }

    #[test]
    fn every_single_changed_byte_is_seen() {
        for value in [0, u32::MAX, 0x0102_0304, 1] {
            let mut page = [0xEE; PAGE_SIZE];
            fill(&mut page, value);
            assert_eq!(same_filled(&page), Some(value));
            for at in 0..PAGE_SIZE {
                page[at] ^= 0x40;
                assert_eq!(same_filled(&page), None, "byte {at}");
                page[at] ^= 0x40;
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_plain_check(
            value in any::<u32>(),
            period in prop_oneof![1usize..5, 1usize..1024],
            other in any::<u32>(),
        ) {
            // Values that repeat with some period: 1 and equal values are same-filled, all else is
            // not.
            let mut page = [0; PAGE_SIZE];
            for (index, word) in page.chunks_mut(4).enumerate() {
                let value = if index % period == period - 1 { other } else { value };
                word.copy_from_slice(&value.to_ne_bytes());
            }
            prop_assert_eq!(same_filled(&page), plain(&page));
            fill(&mut page, value);
            prop_assert_eq!(plain(&page), Some(value));
        }
    }
}
