//! One measurement: threads that write more than fits, and read it back.

use super::figures::{self, Phase};
use crate::measure::Sample;
use crate::measure::failure::Failure;
use crate::measure::pool;
use crate::measure::threads;
use overspill::base::PAGE_SIZE;
use overspill::{Pool, Region};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Words of a page.
const WORDS: usize = PAGE_SIZE / size_of::<u64>();

/// What to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Settings of the pool.
    pub settings: String,
    /// How many threads.
    pub threads: usize,
    /// Budget in bytes.
    pub memory: u64,
    /// What all threads together write beyond that.
    pub beyond: u64,
    /// The swap device, as the engine reads it.
    pub device: String,
}

/// What one thread works on.
struct Share<'a> {
    region: Region<'a>,
    /// The first words of its own.
    first: u64,
    /// Pages that are written before anything is timed.
    head: usize,
}

/// Measures in this process, which does nothing else.
///
/// # Errors
/// When there is no pool or no memory to be had, or what is read is not what was written.
pub fn measure_one(request: Request) -> Result<Sample, Failure> {
    let pool = pool::open(request.memory, Some(&request.device), &request.settings)?;
    let pages = |bytes: u64| (bytes as usize / request.threads / PAGE_SIZE).max(1);
    let (head, tail) = (pages(request.memory), pages(request.beyond));
    let share = |index: usize| {
        let region = pool::map(&pool, ((head + tail) * PAGE_SIZE) as u64)?;
        Ok(Share { region, first: ((index * (head + tail)) * WORDS) as u64, head })
    };
    let mut shares: Vec<Share<'_>> =
        (0..request.threads).map(share).collect::<Result<_, Failure>>()?;

    // 1. The budget is used up.
    threads::each(&mut shares, |share| share.write(0, share.head));
    // 2. Every page written pushes one out.
    let mut sample = Sample::new();
    timed(&pool, Phase::Out, &request, &mut sample, || {
        threads::each(&mut shares, Share::write_tail).elapsed
    })?;
    // 3. All is read back from its beginning, which pushes out what was written last.
    let mut wrong = 0;
    timed(&pool, Phase::In, &request, &mut sample, || {
        let timed = threads::each(&mut shares, |share| share.wrong_pages());
        wrong = timed.results.into_iter().sum();
        timed.elapsed
    })?;
    if wrong > 0 {
        return Err(Failure::new(format!(
            "{wrong} pages came back with other content than was written"
        )));
    }
    Ok(sample)
}

/// Does something that takes the time it returns, and adds what the pool counted meanwhile.
fn timed(
    pool: &Pool,
    phase: Phase,
    request: &Request,
    sample: &mut Sample,
    work: impl FnOnce() -> Duration,
) -> Result<(), Failure> {
    let before = pool.stats();
    let elapsed = work();
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let running = request.threads.min(cpus);
    figures::add(sample, phase, elapsed, running, &before.counters, &pool.stats().counters)
}

impl Share<'_> {
    /// Writes every word of some pages, as usemem of vm-scalability does: its own number.
    fn write(&mut self, first_page: usize, pages: usize) {
        let first = self.first;
        let words = self.region.as_mut_slice::<u64>();
        let part = first_page * WORDS..(first_page + pages) * WORDS;
        for (number, word) in (first + part.start as u64..).zip(&mut words[part]) {
            *word = number;
        }
    }

    fn write_tail(&mut self) {
        let pages = self.region.range().len() / PAGE_SIZE;
        self.write(self.head, pages - self.head);
    }

    /// Reads every page in turn; how many do not have what was written to them.
    fn wrong_pages(&self) -> usize {
        let pages = self.region.as_slice::<u64>().chunks_exact(WORDS);
        let firsts = (self.first..).step_by(WORDS);
        pages
            .zip(firsts)
            .filter(|(page, first)| {
                page[0] != *first || page[WORDS - 1] != first + WORDS as u64 - 1
            })
            .count()
    }
}
