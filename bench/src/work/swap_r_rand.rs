//! `swap-r-rand`: threads read single pages at random from more than fits, of contents as programs
//! have them.

use crate::measure::*;
use overspill::Pool;
use overspill::units::PAGE_SIZE;
use overspill_bench::contents::{self, Contents, Random, WORDS, tag};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Fewest reads from which a percentile is told, in units of those that lie beyond it.
const BEYOND: f64 = 3.0;
/// Reads before anything is timed, as a share of the pages: what lies where has settled then.
const WARM_UP: u64 = 2;
/// Of so many reads, the source of one is told by the counters before and after it: reading them
/// takes as long as reading many pages.
const TOLD_EVERY: u64 = 4;

/// Nanoseconds of a read, with where the page came from if that was told.
type TimedRead = (Option<&'static str>, u64);

/// Measures in this process, which does nothing else. `what` is how many reads, of all
/// threads together.
pub fn measure_one(request: pool::Request<u64>) -> Result<Sample, Failure> {
    let pool = request.pool()?;
    let mut region = pool::map(&pool, request.bytes)?;
    contents::pages(region.as_mut_slice(), 0).for_each(|(page, number)| fill(page, number));
    let words = region.as_slice::<u64>();
    let threads = request.threads as u64;
    let run = |reads: u64, seed: u64| {
        let mut seeds: Vec<u64> = (0..threads).map(|thread| seed + thread).collect();
        threads::each(&mut seeds, |seed| {
            read(&pool, words, threads == 1, reads / threads, Random::new(*seed))
        })
    };
    run(request.pages() / WARM_UP, 1);
    let (timed, counted) = Counted::during(&pool, || run(request.what, 1 << 32));
    pool::right(timed.results.iter().map(|(_, wrong)| wrong).sum())?;
    let reads: Vec<TimedRead> = timed.results.into_iter().flat_map(|(reads, _)| reads).collect();
    told(&reads, timed.elapsed, &counted)
}

/// Reads pages of a pool at random, and times each read; how many pages were wrong. Where one
/// thread reads `alone`, what is counted meanwhile is its own doing.
fn read(
    pool: &Pool,
    words: &[u64],
    alone: bool,
    reads: u64,
    mut random: Random,
) -> (Vec<TimedRead>, u64) {
    let (mut found, mut wrong) = (Vec::with_capacity(reads as usize), 0);
    for read in 0..reads {
        let page = random.below((words.len() / WORDS) as u64);
        // What a read is told by is dear to count, so that it is told for some.
        let told = alone && read.is_multiple_of(TOLD_EVERY);
        let before = told.then(|| pool.stats());
        let began = Instant::now();
        let word = black_box(words[page as usize * WORDS]);
        let ns = began.elapsed().as_nanos() as u64;
        let source = before.map(|before| source(&before.counters, &pool.stats().counters));
        found.push((source, ns));
        wrong += u64::from(word != tag(page));
    }
    (found, wrong)
}

/// Where the page of a read came from: it was there, without a fault; the swap cache had it, a
/// minor fault; or it was unpacked, or read. The figures of each have its name.
const SOURCES: [&str; 4] = ["resident", "minor", "compressed", "device"];

/// That of a read by the only thread that reads, from the counters before and after it. Reclaim in
/// the background does not touch these.
fn source(before: &Counters, after: &Counters) -> &'static str {
    let moved = |name: &str| after.get(name) > before.get(name);
    let farthest = ["pgfault", "zswpin", "pswpin_ops"].into_iter().rposition(moved);
    SOURCES[farthest.map_or(0, |at| at + 1)]
}

/// What follows from two counters.
const RATIOS: &[Ratio] = &[
    ("pages_written_per_page_read", "pswpout", 1.0, "pswpin"),
    ("pages_read_per_operation", "pswpin", 1.0, "pswpin_ops"),
    ("readahead_hit_ratio", "swap_ra_hit", 1.0, "swap_ra"),
    ("clean_dropped_per_page_read", "clean_dropped", 1.0, "pswpin"),
];

/// The figures of reads, with what a pool counted meanwhile.
fn told(reads: &[TimedRead], elapsed: Duration, counted: &Counted) -> Result<Sample, Failure> {
    if reads.is_empty() {
        fail!("nothing was read: ask for more --reads");
    }
    // Pages read a second, by all threads together; asking for the counters is part of the time.
    let mut sample = figures([("reads_per_s", reads.len() as f64 / elapsed.as_secs_f64())]);
    percentiles(&mut sample, "any", reads.iter().map(|(_, ns)| *ns).collect());
    let told = reads.iter().filter(|(source, _)| source.is_some()).count();
    for name in SOURCES {
        let mine: Vec<u64> =
            reads.iter().filter(|(of, _)| *of == Some(name)).map(|(_, ns)| *ns).collect();
        if told > 0 {
            sample.insert(format!("{name}.ratio"), mine.len() as f64 / told as f64);
        }
        percentiles(&mut sample, name, mine);
    }
    if let pages @ 1.0.. = counted.now("zswap_stored_pages") {
        let ratio = counted.now("zswap_stored_bytes") / (pages * PAGE_SIZE as f64);
        add(&mut sample, [("compressed_size_ratio", ratio)]);
    }
    add(&mut sample, counted.ratios(RATIOS));
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
fn fill(page: &mut [u64], number: u64) {
    const TEXT: &[u8] = b"status: pending completecustomerinvoice street  2024-07-null    ";
    let texts = TEXT.as_chunks::<8>().0;
    if number.is_multiple_of(RANDOM_EVERY) {
        Contents::Random.fill(page, number);
    } else {
        let mut random = Random::new(number);
        for (record, words) in page.chunks_mut(4).enumerate() {
            let text = texts[random.below(texts.len() as u64) as usize];
            let values = [
                0x7F3A_5C00_0000 + random.below(1 << 8) * 16,
                number * (WORDS as u64) + record as u64,
                f64::to_bits(random.below(256) as f64 / 4.0),
                u64::from_le_bytes(text),
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
    fn the_source_is_told_by_the_farthest_counter_that_moved() {
        let names = ["pgfault", "zswpin", "pswpin_ops"];
        let counters = |moved: usize| -> Counters {
            names.iter().zip(0..).map(|(name, at)| (*name, u64::from(at < moved))).collect()
        };
        let sources = [0, 1, 2, 3].map(|moved| source(&counters(0), &counters(moved)));
        assert_eq!(sources, SOURCES);
    }

    #[test]
    fn percentiles_are_told_where_there_are_reads_enough() {
        let reads: Vec<_> = (1..=1000).map(|ns| (Some("device"), ns)).collect();
        let counted = crate::fixture::counted(&[
            ("pswpin", 0, 400),
            ("pswpout", 0, 100),
            ("zswap_stored_bytes", 0, 4096),
            ("zswap_stored_pages", 0, 2),
        ]);
        let sample = told(&reads, Duration::from_secs(2), &counted).unwrap();
        for (name, expected) in [
            ("reads_per_s", Some(500.0)),
            ("any.p50_ns", Some(500.0)),
            ("any.p999_ns", None),
            ("minor.p50_ns", None),
            ("device.p99_ns", Some(990.0)),
            ("device.ratio", Some(1.0)),
            ("pages_written_per_page_read", Some(0.25)),
            ("readahead_hit_ratio", None),
            ("compressed_size_ratio", Some(0.5)),
        ] {
            assert_eq!(sample.get(name).copied(), expected, "{name}");
        }
        assert!(told(&[], Duration::from_secs(1), &counted).is_err());
    }
}
