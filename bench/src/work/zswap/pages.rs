//! What pages hold, and what is done with them.

use clap::ValueEnum;
use overspill_bench::contents::{Contents, Templates, WORDS, tag};
use serde::{Deserialize, Serialize};

/// Of so many pages of [`Work::Reviewers`] [`COMPRESSIBLE`] in the middle compress: twice in each
/// range of 64 MiB, so that none is empty.
const COMPRESSIBLE_OF: u64 = 8000;
/// More than the tier passes over between two tries, in whatever batches they leave. A single page
/// among those that do not compress is passed over more often than not.
const COMPRESSIBLE: u64 = 16;
const MIDDLE: u64 = COMPRESSIBLE_OF / COMPRESSIBLE / 2;
/// Of so many pages of [`Work::Incompressible`] one does not compress.
const RANDOM_EVERY: u64 = 8;
/// Pages of a kind that are made; later ones repeat them, but for their first words.
const TEMPLATES: u64 = 512;
/// Of sixteen accesses, so many write where most read; where most write, all others do.
const WRITES_OF_16: u64 = 1;

/// What pages hold, and what is done with them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
pub enum Work {
    /// Zeros, swapped out and in
    Zero,
    /// Random bytes, swapped out and in
    Random,
    /// A heap, about 2.5:1 to LZ4, swapped out and in
    Heap,
    /// Random bytes and 16 pages of a heap among 8,000, swapped out and in
    Reviewers,
    /// A heap, accessed at random, most accesses read
    ReadMostly,
    /// A heap, accessed at random, most accesses write
    WriteMostly,
    /// A heap with random bytes in one page of eight, accessed at random, most accesses read
    Incompressible,
    /// A heap of four times the budget, more than the tier may take, accessed in sequence again and
    /// again
    BeyondInSequence,
    /// The same, accessed at random
    BeyondAtRandom,
}

impl Work {
    /// What a page of its holds, its first word aside.
    fn contents(self, number: u64) -> Contents {
        match self {
            Work::Zero => Contents::Zero,
            Work::Random => Contents::Random,
            Work::Reviewers if number % COMPRESSIBLE_OF / COMPRESSIBLE != MIDDLE => {
                Contents::Random
            }
            Work::Incompressible if number.is_multiple_of(RANDOM_EVERY) => Contents::Random,
            _ => Contents::Heap,
        }
    }

    /// Of sixteen accesses, how many write; none where pages are swapped out and in as a whole.
    pub fn writes_of_16(self) -> Option<u64> {
        match self {
            Work::Zero | Work::Random | Work::Heap | Work::Reviewers => None,
            Work::ReadMostly | Work::Incompressible => Some(WRITES_OF_16),
            Work::WriteMostly => Some(16 - WRITES_OF_16),
            Work::BeyondInSequence | Work::BeyondAtRandom => Some(8),
        }
    }

    /// Whether pages are more than memory and the tier hold.
    pub fn is_beyond(self) -> bool {
        matches!(self, Work::BeyondInSequence | Work::BeyondAtRandom)
    }
}

overspill_bench::named!(Work);

/// The pages of a work, made before anything is timed.
pub struct Pages {
    work: Work,
    random: Templates,
    heap: Templates,
}

impl Pages {
    pub fn of(work: Work) -> Pages {
        let [random, heap] = [Contents::Random, Contents::Heap]
            .map(|contents| Templates::new(TEMPLATES, |page, number| contents.fill(page, number)));
        Pages { work, random, heap }
    }

    fn templates(&self, number: u64) -> Option<&Templates> {
        match self.work.contents(number) {
            Contents::Zero => None,
            Contents::Random => Some(&self.random),
            Contents::Heap => Some(&self.heap),
        }
    }

    pub fn fill(&self, page: &mut [u64], number: u64) {
        match self.templates(number) {
            None => page.fill(0),
            Some(templates) => templates.write(page, number),
        }
    }

    /// Whether a page holds what it was filled with, as far as its first word and its last tell.
    pub fn is_right(&self, page: &[u64], number: u64) -> bool {
        let expected =
            self.templates(number).map_or([0; 2], |all| [tag(number), all.of(number)[WORDS - 1]]);
        [page[0], page[WORDS - 1]] == expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_what_they_were_filled_with_and_nothing_else() {
        for &work in Work::value_variants() {
            let pages = Pages::of(work);
            let mut page = [7; WORDS];
            for number in [0, 7, 999, 512 + 7] {
                pages.fill(&mut page, number);
                assert!(pages.is_right(&page, number), "{work}");
                let repeats = pages.is_right(&page, number + TEMPLATES);
                assert_eq!(repeats, work == Work::Zero, "{work}");
                page[WORDS - 1] ^= 1;
                assert!(!pages.is_right(&page, number), "{work}");
            }
        }
    }

    #[test]
    fn few_pages_of_the_reviewers_compress_and_some_in_each_range() {
        let heap = |number: &u64| Work::Reviewers.contents(*number) == Contents::Heap;
        let heaps = |range: u64| (range << 14..(range + 1) << 14).filter(heap).count();
        assert!((0..8).all(|range| heaps(range) >= 32));
    }
}
