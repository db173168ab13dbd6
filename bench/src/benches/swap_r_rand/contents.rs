//! Page contents as programs have them: about 2.5:1 to LZ4, and some that does not compress.

use crate::contents::{Contents, Random, WORDS, tag};

/// Of so many pages, one does not compress: media, ciphertext, what was compressed before.
const RANDOM_EVERY: u64 = 8;

/// Fills a page with what follows from its number: records of a pointer, a counter, a double and a
/// word of text.
pub fn fill(page: &mut [u64], number: u64) {
    const TEXT: [&[u8; 8]; 8] = [
        b"status: ",
        b"pending ",
        b"complete",
        b"customer",
        b"invoice ",
        b"street  ",
        b"2024-07-",
        b"null    ",
    ];
    let mut random = Random::new(number);
    if number.is_multiple_of(RANDOM_EVERY) {
        Contents::Random.fill(page, number);
    } else {
        for (record, words) in page.chunks_mut(4).enumerate() {
            let text = TEXT[random.below(TEXT.len() as u64) as usize];
            let values = [
                0x7F3A_5C00_0000 + random.below(1 << 8) * 16,
                number * (WORDS as u64) + record as u64,
                f64::to_bits(random.below(256) as f64 / 4.0),
                u64::from_le_bytes(*text),
            ];
            words.copy_from_slice(&values[..words.len()]);
        }
    }
    page[0] = tag(number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_differ_and_follow_from_their_numbers() {
        let page = |number: u64| {
            let mut words = [0; WORDS];
            fill(&mut words, number);
            words
        };
        assert_eq!(page(5), page(5));
        for number in 0..20 {
            assert_eq!(page(number)[0], tag(number));
            assert_ne!(page(number), page(number + 1));
        }
    }
}
