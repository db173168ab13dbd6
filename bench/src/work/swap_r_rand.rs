//! `swap-r-rand`: threads read single pages at random from more than fits, of contents as programs
//! have them.

use crate::measure::counters::{Counted, Counters, Ratio};
use crate::measure::{Failure, Sample, pool, threads};
use overspill::units::PAGE_SIZE;
use overspill::{Pool, Region};
use overspill_bench::contents::{Contents, Random, WORDS, tag};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Pages read a second, by all threads together; asking for the counters is part of the time.
pub const RATE: &str = "reads_per_s";
/// Pages written for each page read from the device.
pub const WRITTEN: &str = "pages_written_per_page_read";
/// Fewest reads from which a percentile is told, in units of those that lie beyond it.
const BEYOND: f64 = 3.0;

/// Reads before anything is timed, as a share of the pages: what lies where has settled then.
const WARM_UP: u64 = 2;

/// Of so many reads, the source of one is told by the counters before and after it: reading them
/// takes as long as reading many pages.
const TOLD_EVERY: u64 = 4;

/// What to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Settings of the pool.
    pub settings: String,
    /// How many threads.
    pub threads: usize,
    /// Budget in bytes.
    pub memory: u64,
    /// Bytes that are read from.
    pub bytes: u64,
    /// Reads, of all threads together.
    pub reads: u64,
    /// The swap device, as the engine reads it.
    pub device: String,
}

/// What one thread found.
#[derive(Default)]
struct Found {
    /// Nanoseconds of each read, with where the page came from if that was told.
    ns: Vec<(Option<Source>, u64)>,
    wrong: u64,
}

/// Measures in this process, which does nothing else.
pub fn measure_one(request: Request) -> Result<Sample, Failure> {
    let pool = pool::open(request.memory, Some(&request.device), &request.settings)?;
    let pages = request.bytes / PAGE_SIZE as u64;
    let mut region = pool::map(&pool, request.bytes)?;
    for (page, number) in region.as_mut_slice::<u64>().chunks_exact_mut(WORDS).zip(0..) {
        fill(page, number);
    }
    let reader = Reader { pool: &pool, region: &region, pages, alone: request.threads == 1 };
    let run = |reads: u64, seed: u64| {
        let mut seeds: Vec<u64> = (0..request.threads as u64).map(|thread| seed + thread).collect();
        threads::each(&mut seeds, |seed| {
            reader.read(reads / request.threads as u64, Random::new(*seed))
        })
    };
    run(pages / WARM_UP, 1);
    let before = pool.stats();
    let timed = run(request.reads, 1 << 32);
    let after = pool.stats();
    pool::right(timed.results.iter().map(|found| found.wrong).sum())?;
    let reads: Vec<(Option<Source>, u64)> =
        timed.results.into_iter().flat_map(|found| found.ns).collect();
    let counted = Counted { before: &before.counters, after: &after.counters };
    figures(&reads, timed.elapsed, counted)
}

/// What all threads read from.
struct Reader<'a> {
    pool: &'a Pool,
    region: &'a Region<'a>,
    pages: u64,
    /// Whether one thread reads, so that what is counted meanwhile is its own doing.
    alone: bool,
}

impl Reader<'_> {
    /// Reads pages at random, and times each read.
    fn read(&self, reads: u64, mut random: Random) -> Found {
        let mut found = Found { ns: Vec::with_capacity(reads as usize), wrong: 0 };
        let words = self.region.as_slice::<u64>();
        for read in 0..reads {
            let page = random.below(self.pages);
            // What a read is told by is dear to count, so that it is told for some.
            let told = self.alone && read.is_multiple_of(TOLD_EVERY);
            let before = told.then(|| self.pool.stats());
            let began = Instant::now();
            let word = black_box(words[page as usize * WORDS]);
            let ns = began.elapsed().as_nanos() as u64;
            let source =
                before.map(|before| Source::between(&before.counters, &self.pool.stats().counters));
            found.ns.push((source, ns));
            found.wrong += u64::from(word != tag(page));
        }
        found
    }
}

/// Where the page of a read came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// It was there: no fault.
    Resident,
    /// The swap cache: a minor fault.
    Minor,
    /// The compressed tier.
    Compressed,
    /// The swap device.
    Device,
}

impl Source {
    /// All of them.
    pub const ALL: [Source; 4] =
        [Source::Resident, Source::Minor, Source::Compressed, Source::Device];

    /// Under which name its figures are.
    pub fn name(self) -> &'static str {
        match self {
            Source::Resident => "resident",
            Source::Minor => "minor",
            Source::Compressed => "compressed",
            Source::Device => "device",
        }
    }

    /// That of a read by the only thread that reads, from the counters before and after it. Reclaim
    /// in the background does not touch these.
    pub fn between(before: &Counters, after: &Counters) -> Source {
        let moved = |name: &str| after.get(name) > before.get(name);
        match () {
            () if moved("pswpin_ops") => Source::Device,
            () if moved("zswpin") => Source::Compressed,
            () if moved("pgfault") => Source::Minor,
            () => Source::Resident,
        }
    }
}

/// What follows from two counters.
const RATIOS: &[Ratio] = &[
    (WRITTEN, "pswpout", 1.0, "pswpin"),
    ("pages_read_per_operation", "pswpin", 1.0, "pswpin_ops"),
    ("readahead_hit_ratio", "swap_ra_hit", 1.0, "swap_ra"),
    ("clean_dropped_per_page_read", "clean_dropped", 1.0, "pswpin"),
];

/// The figures of reads, with what a pool counted meanwhile.
fn figures(
    reads: &[(Option<Source>, u64)],
    elapsed: Duration,
    counted: Counted<'_>,
) -> Result<Sample, Failure> {
    if reads.is_empty() {
        return Err(Failure::new("nothing was read: ask for more --reads"));
    }
    let mut sample = Sample::from([(RATE.to_owned(), reads.len() as f64 / elapsed.as_secs_f64())]);
    percentiles(&mut sample, "any", reads.iter().map(|(_, ns)| *ns).collect());
    let told = reads.iter().filter(|(source, _)| source.is_some()).count();
    for source in Source::ALL {
        let mine: Vec<u64> =
            reads.iter().filter(|(of, _)| *of == Some(source)).map(|(_, ns)| *ns).collect();
        if told > 0 {
            sample.insert(format!("{}.ratio", source.name()), mine.len() as f64 / told as f64);
        }
        percentiles(&mut sample, source.name(), mine);
    }
    if let pages @ 1.0.. = counted.now("zswap_stored_pages") {
        let bytes = counted.now("zswap_stored_bytes");
        sample.insert("compressed_size_ratio".to_owned(), bytes / (pages * PAGE_SIZE as f64));
    }
    sample.extend(counted.ratios(RATIOS));
    Ok(sample)
}

/// Adds the median, the 99th and the 99.9th percentile, as far as there are reads enough.
fn percentiles(sample: &mut Sample, group: &str, mut ns: Vec<u64>) {
    ns.sort_unstable();
    for (name, share) in [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999)] {
        if ns.len() as f64 * (1.0 - share) >= BEYOND {
            let rank = (ns.len() as f64 * share).ceil() as usize;
            sample.insert(format!("{group}.{name}"), ns[rank.saturating_sub(1)] as f64);
        }
    }
}

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

    #[test]
    fn the_source_is_told_by_the_farthest_counter_that_moved() {
        let names = ["pgfault", "zswpin", "pswpin_ops"];
        let before = Counters::from(names.map(|name| (name, 7)));
        let after =
            |moved: &[&str]| names.map(|name| (name, 7 + u64::from(moved.contains(&name)))).into();
        let source = |moved: &[&str]| Source::between(&before, &after(moved));
        assert_eq!(source(&[]), Source::Resident);
        assert_eq!(source(&["pgfault"]), Source::Minor);
        assert_eq!(source(&["pgfault", "zswpin"]), Source::Compressed);
        assert_eq!(source(&["pgfault", "zswpin", "pswpin_ops"]), Source::Device);
    }

    #[test]
    fn percentiles_are_told_where_there_are_reads_enough() {
        let reads: Vec<_> = (1..=1000).map(|ns| (Some(Source::Device), ns)).collect();
        let before = Counters::from([("pswpin", 0), ("pswpout", 0), ("pswpin_ops", 0)]);
        let mut after = Counters::from([("pswpin", 400), ("pswpout", 100), ("pswpin_ops", 200)]);
        after.extend([("zswap_stored_bytes", 4096), ("zswap_stored_pages", 2)]);
        let counted = Counted { before: &before, after: &after };
        let sample = figures(&reads, Duration::from_secs(2), counted).unwrap();
        assert_eq!(
            (sample["any.p50_ns"], sample["device.p99_ns"], sample["device.ratio"]),
            (500.0, 990.0, 1.0)
        );
        assert!(
            !sample.contains_key("any.p999_ns") && !sample.contains_key("minor.p50_ns"),
            "{sample:?}"
        );
        assert_eq!(
            (sample[RATE], sample[WRITTEN], sample["pages_read_per_operation"]),
            (500.0, 0.25, 2.0)
        );
        assert_eq!(sample["compressed_size_ratio"], 0.5);
        assert!(!sample.contains_key("readahead_hit_ratio"));
        assert!(figures(&[], Duration::from_secs(1), counted).is_err());
    }
}
