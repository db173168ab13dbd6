//! What is measured: contents, settings, and what the origin of the mechanism published.

use crate::contents::{Contents, WORDS, tag};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;

/// Of so many pages of [`Work::Reviewers`] one compresses: one for each 4 MiB, so that no range of
/// 64 MiB is empty.
const COMPRESSIBLE_EVERY: u64 = 1000;
/// Of so many pages of [`Work::Incompressible`] one does not compress.
const RANDOM_EVERY: u64 = 8;
/// Pages of a kind that are made; later ones repeat them, but for their first words.
const TEMPLATES: u64 = 512;
/// Of sixteen accesses, so many write where most read; where most write, all others do.
const WRITES_OF_16: u64 = 1;

/// What pages hold, and what is done with them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Zeros, swapped out and in
    Zero,
    /// Random bytes, swapped out and in
    Random,
    /// A heap, about 2.5:1 to LZ4, swapped out and in
    Heap,
    /// Random bytes and a page of a heap among 1,000, swapped out and in
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
            Work::Reviewers if number % COMPRESSIBLE_EVERY != COMPRESSIBLE_EVERY - 1 => {
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

    /// Whether accesses are in sequence.
    pub fn in_sequence(self) -> bool {
        self == Work::BeyondInSequence
    }

    /// Whether pages are more than memory and the tier hold.
    pub fn is_beyond(self) -> bool {
        matches!(self, Work::BeyondInSequence | Work::BeyondAtRandom)
    }

    /// What is compared, with the tier on and off.
    pub fn steps(self) -> &'static [(Tier, Step)] {
        use Step::{
            Denser, KeepAuto, KeepOff, KeepOn, OwnSlots, Pages, RawInTier, RawToDevice, SameFilled,
        };
        use Tier::On;
        match self {
            Work::Zero => const { &after_invalidation(SameFilled) },
            Work::Random | Work::Heap | Work::Reviewers => const { &after_invalidation(OwnSlots) },
            Work::ReadMostly | Work::WriteMostly => &[(On, KeepOff), (On, KeepOn), (On, KeepAuto)],
            Work::Incompressible => &[(On, RawToDevice), (On, RawInTier)],
            Work::BeyondInSequence | Work::BeyondAtRandom => &[(On, Pages), (On, Denser)],
        }
    }
}

/// Every setting of `zswap.invalidate`, without the tier and with it, and then one more step with
/// it.
const fn after_invalidation(last: Step) -> [(Tier, Step); 7] {
    use Step::{Always, Empty, EmptyLookup};
    use Tier::{Off, On};
    [
        (Off, Always),
        (Off, Empty),
        (Off, EmptyLookup),
        (On, Always),
        (On, Empty),
        (On, EmptyLookup),
        (On, last),
    ]
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no work is skipped").get_name())
    }
}

/// Whether there is a compressed tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// There is.
    On,
    /// All pages go to the device.
    Off,
}

impl Tier {
    /// The settings of a pool. It may take most of the budget, so that it takes whatever
    /// compresses.
    pub fn settings(self) -> &'static str {
        match self {
            Tier::On => "compressed=90",
            Tier::Off => "compressed=0",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tier::On => "on",
            Tier::Off => "off",
        })
    }
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Step {
    /// The lock is taken for every slot that is given back.
    Always,
    /// Not if its range is empty.
    Empty,
    /// Nor if it has no entry.
    EmptyLookup,
    /// Only pages that go to the device have slots of it: so none of those has an entry.
    OwnSlots,
    /// Zeros get no slot.
    SameFilled,
    /// A page that is read gives its compressed copy up.
    KeepOff,
    /// It keeps it until it is written to.
    KeepOn,
    /// It does while there are many compressed pages for each in memory.
    KeepAuto,
    /// What does not compress goes to the device.
    RawToDevice,
    /// It stays in the tier as it is.
    RawInTier,
    /// What is cold leaves the tier for the device.
    Pages,
    /// It is compressed more densely first, and leaves if it stays cold.
    Denser,
}

impl Step {
    /// All of them.
    pub const ALL: [Step; 12] = [
        Step::Always,
        Step::Empty,
        Step::EmptyLookup,
        Step::OwnSlots,
        Step::SameFilled,
        Step::KeepOff,
        Step::KeepOn,
        Step::KeepAuto,
        Step::RawToDevice,
        Step::RawInTier,
        Step::Pages,
        Step::Denser,
    ];

    /// Its name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Step::Always => "always",
            Step::Empty => "empty",
            Step::EmptyLookup => "empty+lookup",
            Step::OwnSlots => "slots=own",
            Step::SameFilled => "same-filled",
            Step::KeepOff => "keep=off",
            Step::KeepOn => "keep=on",
            Step::KeepAuto => "keep=auto",
            Step::RawToDevice => "incompressible=device",
            Step::RawInTier => "incompressible=keep",
            Step::Pages => "recompress=off",
            Step::Denser => "recompress=zstd:1",
        }
    }

    /// The settings of its pool, [`Tier::settings`] aside. Copies are not kept where it is not that
    /// which is measured: a page that keeps its slot does not give it back.
    pub fn settings(self) -> &'static str {
        match self {
            Step::Always => {
                "zswap.slots=device,clean=off,zswap.keep=off,same_filled=off,zswap.invalidate=always"
            }
            Step::Empty => {
                "zswap.slots=device,clean=off,zswap.keep=off,same_filled=off,zswap.invalidate=empty"
            }
            Step::EmptyLookup => {
                "zswap.slots=device,clean=off,zswap.keep=off,same_filled=off,zswap.invalidate=empty+lookup"
            }
            Step::OwnSlots => {
                "zswap.slots=own,clean=off,zswap.keep=off,same_filled=off,zswap.invalidate=empty+lookup"
            }
            Step::SameFilled => {
                "zswap.slots=device,clean=off,zswap.keep=off,same_filled=on,zswap.invalidate=empty+lookup"
            }
            Step::KeepOff => "clean=off,zswap.keep=off",
            Step::KeepOn => "clean=off,zswap.keep=on",
            Step::KeepAuto => "clean=off,zswap.keep=auto",
            Step::RawToDevice => "clean=off,zswap.keep=off,zswap.incompressible=device",
            Step::RawInTier => "clean=off,zswap.keep=off,zswap.incompressible=keep",
            Step::Pages => "compressed=20,zswap.recompress=off",
            Step::Denser => "compressed=20,zswap.recompress=zstd:1",
        }
    }

    /// What it is compared with.
    pub fn base(self) -> Option<Step> {
        match self {
            Step::Always | Step::KeepOff | Step::RawToDevice | Step::Pages => None,
            Step::Empty | Step::EmptyLookup | Step::OwnSlots | Step::SameFilled => {
                Some(Step::Always)
            }
            Step::KeepOn | Step::KeepAuto => Some(Step::KeepOff),
            Step::RawInTier => Some(Step::RawToDevice),
            Step::Denser => Some(Step::Pages),
        }
    }

    /// Microseconds that swapping 2 GiB in took at the origin: "mm/zswap: avoid touching XArray for
    /// unnecessary invalidation", Linux 2024.
    pub fn reference_swapin_us(self) -> Option<f64> {
        match self {
            Step::Always => Some(1_905_000.0),
            Step::Empty => Some(1_831_000.0),
            Step::EmptyLookup => Some(1_838_000.0),
            _ => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// What is done.
    pub work: Work,
    /// Whether there is a tier.
    pub tier: Tier,
    /// With which settings.
    pub step: Step,
}

impl Case {
    /// All settings of its pool.
    pub fn settings(self) -> String {
        format!("{},{}", self.tier.settings(), self.step.settings())
    }

    /// What stands in its row of the origin's figures.
    pub fn reference(self) -> Option<Value> {
        let us = self.step.reference_swapin_us().filter(|_| self.work == Work::Zero)?;
        Some(
            json!({ "bytes": 2u64 << 30, "swapin_us": us, "swapin_faster_than_always": 1.0 - us / 1_905_000.0 }),
        )
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, tier {}, {}", self.work, self.tier, self.step)
    }
}

/// The pages of a work, made before anything is timed.
pub struct Pages {
    work: Work,
    random: Vec<[u64; WORDS]>,
    heap: Vec<[u64; WORDS]>,
}

impl Pages {
    /// Those of `work`.
    pub fn of(work: Work) -> Pages {
        let made = |contents: Contents| {
            let page = |number: u64| {
                let mut words = [0; WORDS];
                contents.fill(&mut words, number);
                words
            };
            (0..TEMPLATES).map(page).collect()
        };
        Pages { work, random: made(Contents::Random), heap: made(Contents::Heap) }
    }

    fn template(&self, number: u64) -> Option<&[u64; WORDS]> {
        let at = (number % TEMPLATES) as usize;
        match self.work.contents(number) {
            Contents::Zero => None,
            Contents::Random => Some(&self.random[at]),
            Contents::Heap => Some(&self.heap[at]),
        }
    }

    /// Fills a page.
    pub fn fill(&self, page: &mut [u64], number: u64) {
        match self.template(number) {
            None => page.fill(0),
            Some(template) => {
                page.copy_from_slice(template);
                page[0] = tag(number);
            }
        }
    }

    /// Whether a page holds what it was filled with, as far as its first word and its last tell.
    pub fn is_right(&self, page: &[u64], number: u64) -> bool {
        let expected =
            self.template(number).map_or([0; 2], |template| [tag(number), template[WORDS - 1]]);
        [page[0], page[WORDS - 1]] == expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::config::{Config, baselines};

    #[test]
    fn the_engine_has_the_settings_of_every_case_and_a_base_is_one_setting_away() {
        for work in Work::value_variants() {
            for &(tier, step) in work.steps() {
                baselines::apply(
                    &mut Config::default(),
                    &Case { work: *work, tier, step }.settings(),
                )
                .unwrap();
                let Some(base) = step.base() else { continue };
                assert!(
                    work.steps().contains(&(tier, base)),
                    "{work}: {step} is compared with what is measured"
                );
                let differ = |(here, base): (&str, &str)| {
                    assert_eq!(here.split('=').next(), base.split('=').next());
                    here != base
                };
                let changed = step
                    .settings()
                    .split(',')
                    .zip(base.settings().split(','))
                    .filter(|pair| differ(*pair));
                let expected =
                    if matches!(step, Step::OwnSlots | Step::SameFilled) { 2 } else { 1 };
                assert_eq!(changed.count(), expected, "{step} and {base}");
            }
        }
    }

    #[test]
    fn pages_are_what_they_were_filled_with_and_nothing_else() {
        for work in Work::value_variants() {
            let pages = Pages::of(*work);
            let mut page = [7; WORDS];
            for number in [0, 7, 999, 512 + 7] {
                pages.fill(&mut page, number);
                assert!(pages.is_right(&page, number), "{work}");
                assert_eq!(
                    pages.is_right(&page, number + TEMPLATES),
                    *work == Work::Zero,
                    "{work}"
                );
                page[WORDS - 1] ^= 1;
                assert!(!pages.is_right(&page, number), "{work}");
            }
        }
    }

    #[test]
    fn few_pages_of_the_reviewers_compress_and_some_in_each_range() {
        let heaps = |range: u64| {
            (range << 14..(range + 1) << 14)
                .filter(|n| Work::Reviewers.contents(*n) == Contents::Heap)
                .count()
        };
        assert!((0..8).all(|range| (16..=17).contains(&heaps(range))));
    }
}
