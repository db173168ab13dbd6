//! One measurement: threads that read single pages at random from more than fits.

use super::contents;
use super::figures::{self, Source};
use crate::contents::{Random, WORDS, tag};
use crate::measure::Sample;
use crate::measure::failure::Failure;
use crate::measure::pool;
use crate::measure::threads;
use overspill::base::PAGE_SIZE;
use overspill::{Pool, Region};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::hint::black_box;

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
///
/// # Errors
/// When there is no pool or no memory to be had, or what is read is not what was written.
pub fn measure_one(request: Request) -> Result<Sample, Failure> {
    let pool = pool::open(request.memory, Some(&request.device), &request.settings)?;
    let pages = request.bytes / PAGE_SIZE as u64;
    let mut region = pool::map(&pool, request.bytes)?;
    for (page, number) in region.as_mut_slice::<u64>().chunks_exact_mut(WORDS).zip(0..) {
        contents::fill(page, number);
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
    if let wrong @ 1.. = timed.results.iter().map(|found| found.wrong).sum() {
        return Err(Failure::new(format!(
            "{wrong} pages came back with other content than was written"
        )));
    }
    let reads: Vec<(Option<Source>, u64)> =
        timed.results.into_iter().flat_map(|found| found.ns).collect();
    figures::of(&reads, timed.elapsed, &before.counters, &after.counters)
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
            let began = now_ns();
            let word = black_box(words[page as usize * WORDS]);
            let ns = now_ns() - began;
            let source =
                before.map(|before| Source::between(&before.counters, &self.pool.stats().counters));
            found.ns.push((source, ns));
            found.wrong += u64::from(word != tag(page));
        }
        found
    }
}

fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
