//! Page contents as programs have them: about 2.5:1 to LZ4, and some that does not compress.

use overspill::base::PAGE_SIZE;

/// Words of a page.
pub const WORDS: usize = PAGE_SIZE / size_of::<u64>();
/// Of so many pages, one does not compress: media, ciphertext, what was compressed before.
const RANDOM_EVERY: u64 = 8;

/// A generator of random numbers: splitmix64, by Steele, Lea and Flood.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// One whose numbers follow from `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// The next number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// What the first word of a page is, to tell it from any other.
pub fn tag(number: u64) -> u64 {
    Random::new(number).next() | 1
}

/// Fills a page with what follows from its number: records of a pointer, a counter, a double and a word of text.
pub fn fill(page: &mut [u64], number: u64) {
    const TEXT: [&[u8; 8]; 8] =
        [b"status: ", b"pending ", b"complete", b"customer", b"invoice ", b"street  ", b"2024-07-", b"null    "];
    let mut random = Random::new(number);
    if number.is_multiple_of(RANDOM_EVERY) {
        page.fill_with(|| random.next());
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

    #[test]
    fn numbers_below_an_end_reach_all_of_it() {
        let mut random = Random::new(7);
        let mut seen = [0; 10];
        (0..10_000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }
}
