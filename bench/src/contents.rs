//! What pages hold: zeros, random bytes, and what the heaps of programs hold; made anew from a
//! page's number at any time.

use clap::ValueEnum;
use std::fmt;

/// Words of a page of 4 KiB.
pub const WORDS: usize = PAGE_BYTES / size_of::<u64>();
/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// A kind of contents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum Contents {
    /// Zeros
    Zero,
    /// Random bytes: media, ciphertext, what was compressed before
    Random,
    /// Text, numbers and pointers, about 2.5:1 to LZ4
    Heap,
}

impl Contents {
    /// Fills page `number`; the same each time.
    pub fn fill(self, page: &mut [u64], number: u64) {
        let mut random = Random::new(number);
        match self {
            Contents::Zero => page.fill(0),
            Contents::Random => page.fill_with(|| random.next()),
            Contents::Heap => heap(page, &mut random),
        }
    }

    /// Page `number` in bytes.
    pub fn page(self, number: u64) -> [u8; PAGE_BYTES] {
        let mut words = [0; WORDS];
        self.fill(&mut words, number);
        bytes(&words)
    }
}

/// Pages that are made beforehand; all others are copies of these but for their first word, so that
/// making a page costs a copy.
#[derive(Clone, Debug)]
pub struct Templates(Vec<[u64; WORDS]>);

impl Templates {
    /// So many of them, each filled by its number.
    pub fn new(count: u64, fill: impl Fn(&mut [u64], u64)) -> Templates {
        let page = |number: u64| {
            let mut words = [0; WORDS];
            fill(&mut words, number);
            words
        };
        Templates((0..count).map(page).collect())
    }

    /// That of page `number`.
    pub fn of(&self, number: u64) -> &[u64; WORDS] {
        &self.0[number as usize % self.0.len()]
    }

    /// Writes page `number`, with its tag.
    pub fn write(&self, page: &mut [u64], number: u64) {
        page.copy_from_slice(self.of(number));
        page[0] = tag(number);
    }
}

/// The pages of some memory, with their numbers from `first` on.
pub fn pages(memory: &mut [u64], first: u64) -> impl Iterator<Item = (&mut [u64], u64)> {
    memory.chunks_exact_mut(WORDS).zip(first..)
}

/// Fills pages with random numbers, each behind the tag of its own number.
pub fn fill_random(memory: &mut [u64], first: u64, random: &mut Random) {
    for (page, number) in pages(memory, first) {
        page.fill_with(|| random.next());
        page[0] = tag(number);
    }
}

/// A page in bytes.
pub fn bytes(words: &[u64; WORDS]) -> [u8; PAGE_BYTES] {
    let mut bytes = [0; PAGE_BYTES];
    let chunks = bytes.as_chunks_mut::<{ size_of::<u64>() }>().0;
    chunks.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    bytes
}

/// Writes a value of a command line by the name that it has there.
///
/// # Errors
/// Those of the formatter.
pub fn write_name(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(value.to_possible_value().expect("no value is skipped").get_name())
}

/// Displays these by the names that they have on the command line.
#[macro_export]
macro_rules! named {
    ($($of:ty),*) => {$(
        impl std::fmt::Display for $of {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::contents::write_name(self, f)
            }
        }
    )*};
}

named!(Contents);

/// A generator of random numbers: splitmix64, by Steele, Lea and Flood.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// One whose numbers follow from `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    #[allow(
        clippy::should_implement_trait,
        reason = "numbers without an end need no Option around each"
    )]
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

    /// The numbers below `end`, each once, in any order (Fisher and Yates).
    pub fn shuffled(&mut self, end: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..end).collect();
        for last in (1..numbers.len()).rev() {
            numbers.swap(last, self.below(last as u64 + 1) as usize);
        }
        numbers
    }
}

/// What the first word of a page is, to tell it from any other.
pub fn tag(number: u64) -> u64 {
    Random::new(number).next() | 1
}

/// Words that an allocation of a heap page takes, at least and at most: 64 bytes to 1 KiB.
const ALLOCATION_WORDS: [u64; 2] = [8, 128];

/// A page of a heap: allocations of different sizes and kinds, one after the other. Allocations of
/// one size lie together in programs' heaps, so that most of a page are of one or two kinds.
fn heap(page: &mut [u64], random: &mut Random) {
    let mut kinds = [random.below(8), random.below(8)];
    if random.below(2) == 0 {
        kinds[1] = kinds[0];
    }
    let mut rest = page;
    while !rest.is_empty() {
        let words = ALLOCATION_WORDS[0] + random.below(ALLOCATION_WORDS[1] - ALLOCATION_WORDS[0]);
        let (allocation, after) = rest.split_at_mut((words as usize).min(rest.len()));
        let kind = match random.below(8) {
            0 => random.below(8),
            at => kinds[at as usize % 2],
        };
        match kind {
            0..3 => text(allocation, random),
            3 => counts(allocation, random),
            4 => doubles(allocation, random),
            5..7 => nodes(allocation, random),
            _ => table(allocation, random),
        }
        rest = after;
    }
}

/// Lines of a log or records of a document: what is the same in each of them, and words.
fn text(words: &mut [u64], random: &mut Random) {
    const LINES: [&str; 4] = [
        "\n2024-07-19T08:14:02 INFO server: request GET /api/v1/items status=200 ",
        "\", \"quantity\": 1, \"currency\": \"EUR\", \"description\": \"",
        "</td></tr>\n<tr class=\"row\"><td align=\"right\">",
        "\nWARN session timeout, user_id=",
    ];
    const VOCABULARY: &str = "the of and to in is that for it was on are as with be at by this \
                              have from or one had not but what all were when we there can an \
                              your which their said if do will each about how up out them then \
                              she many some so these would other into has more her two like him \
                              see time could no make than first been its who now ";
    let line = LINES[random.below(LINES.len() as u64) as usize];
    let words_to_a_line = 2 + random.below(10);
    let mut bytes = std::iter::from_fn(|| {
        // What comes first comes more often.
        let at = random.below(VOCABULARY.len() as u64).min(random.below(VOCABULARY.len() as u64))
            as usize;
        let begin = VOCABULARY[..at].rfind(' ').map_or(0, |at| at + 1);
        let word = VOCABULARY[begin..].split_inclusive(' ').next()?;
        Some(if random.below(words_to_a_line) == 0 { line } else { word })
    })
    .flat_map(str::bytes);
    words.fill_with(|| {
        u64::from_le_bytes(std::array::from_fn(|_| bytes.next().expect("it has no end")))
    });
}

/// An array of numbers, most of them small.
fn counts(words: &mut [u64], random: &mut Random) {
    words.fill_with(|| {
        let bits = random.below(18);
        random.below(1 << bits)
    });
}

/// Measurements with two decimals around a mean.
fn doubles(words: &mut [u64], random: &mut Random) {
    let mean = random.below(100_000) as f64;
    words.fill_with(|| (mean + random.below(64) as f64 / 4.0).to_bits());
}

/// Nodes of a tree or list: two pointers into one arena, a key, flags and a count.
fn nodes(words: &mut [u64], random: &mut Random) {
    let arena = 0x7F3A_0000_0000 + (random.below(64) << 24);
    let key = random.below(1 << 32);
    for (at, node) in words.chunks_mut(4).enumerate() {
        let mut pointer =
            || if random.below(2) == 0 { 0 } else { arena + random.below(1 << 14) * 32 };
        let values = [pointer(), pointer(), key + at as u64, 0x0001_0000_0000 | random.below(4)];
        node.copy_from_slice(&values[..node.len()]);
    }
}

/// A hash table that is partly empty.
fn table(words: &mut [u64], random: &mut Random) {
    let arena = 0x55D0_0000_0000 + (random.below(64) << 24);
    for entry in words.chunks_mut(2) {
        let values = if random.below(4) > 0 {
            [0; 2]
        } else {
            [random.next(), arena + random.below(1 << 16) * 16]
        };
        entry.copy_from_slice(&values[..entry.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::units::PAGE_SIZE;
    use overspill_os::codec::{Codec, Compressor};

    #[test]
    fn numbers_below_an_end_reach_all_of_it_and_are_shuffled() {
        let numbers = Random::new(3).shuffled(1000);
        assert!(numbers.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() < 10);
        let mut sorted = numbers;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
        let (mut random, mut seen) = (Random::new(7), [0; 10]);
        (0..10_000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }

    #[test]
    fn pages_differ_and_follow_from_their_numbers() {
        for contents in [Contents::Random, Contents::Heap] {
            assert_eq!(contents.page(5), contents.page(5));
            (0..20).for_each(|number| assert_ne!(contents.page(number), contents.page(number + 1)));
        }
        assert_eq!(Contents::Zero.page(3), [0; PAGE_SIZE]);
        assert_ne!(tag(1), tag(2));
    }

    #[test]
    fn heaps_pack_as_those_of_programs_do() {
        let mut compressor = Compressor::new(Codec::Lz4).unwrap();
        let mut packed = |contents: Contents, number| {
            compressor.compress(&contents.page(number), &mut [0; 2 * PAGE_SIZE]).unwrap()
        };
        let mut sizes: Vec<usize> = (0..2000).map(|n| packed(Contents::Heap, n)).collect();
        let ratio = (sizes.len() * PAGE_SIZE) as f64 / sizes.iter().sum::<usize>() as f64;
        assert!((2.4..2.6).contains(&ratio), "{ratio:.2}:1");
        sizes.sort_unstable();
        let [low, high] = [sizes[100], sizes[1900]];
        assert!((800..1200).contains(&low), "9 of 10 are of {low} bytes or more");
        assert!((1800..2600).contains(&high), "9 of 10 are of {high} bytes or less");
        assert!(packed(Contents::Random, 1) > PAGE_SIZE && packed(Contents::Zero, 1) < 100);
    }
}
