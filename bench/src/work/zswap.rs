//! `zswap`: pages that are swapped out and in as a whole, or by accesses.
//!
//! [`pages`] is what they hold, [`mod@figures`] what is told.

pub mod figures;
pub mod pages;

use crate::measure::*;
use overspill::units::{Bytes, PAGE_SIZE};
use overspill::{Pool, Region};
use overspill_bench::contents::{self, Random, WORDS};
use pages::{Pages, Work};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Share of the pages of the sequence that are read singly at random besides.
pub const SINGLE: u64 = 4;
/// The budget is taken down until so many of 1,000 pages are out.
const OUT_OF_1000: u64 = 985;
/// How long that may take at most, and for how long nothing may happen.
const SHRINK_LIMIT: Duration = Duration::from_secs(20);
const SHRINK_PAUSE: Duration = Duration::from_millis(300);
/// Figures of pages that come in: of the microseconds that all of it took, and what the names of
/// the others begin with.
const IN_SEQUENCE: (&str, &str) = ("swapin_us", "");
const SINGLY: (&str, &str) = ("single_us", "single.");
/// Accesses of a page, on average, of those that are timed.
const ACCESSES_PER_PAGE: u64 = 2;

/// What a measurement is told besides: `bytes` are written, and then read in sequence or accessed
/// at random.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct What {
    /// What pages hold, and what is done with them.
    pub work: Work,
    /// The budget to which it is taken down before pages are read, so that what is left in memory
    /// leaves it too.
    pub rest: u64,
}

/// Measures in this process, which does nothing else. `threads` are those that read.
pub fn measure_one(request: pool::Request<What>) -> Result<Sample, Failure> {
    let pool = request.pool()?;
    let pages = Pages::of(request.what.work);
    match request.what.work.writes_of_16() {
        None => swap(&pool, &pages, &request),
        Some(writes) => threads::alone(|| access(&pool, &pages, &request, writes)),
    }
}

fn fill(region: &mut Region<'_>, pages: &Pages, first: u64) {
    contents::pages(region.as_mut_slice(), first).for_each(|(page, at)| pages.fill(page, at));
}

/// Swaps all pages out, then in.
fn swap(pool: &Pool, pages: &Pages, request: &pool::Request<What>) -> Result<Sample, Failure> {
    let count = request.pages();
    let singles = count / SINGLE;
    let all = singles + count;
    let mut region = pool::map(pool, request.bytes)?;
    let mut single = pool::map(pool, singles * PAGE_SIZE as u64)?;
    let mut sample = Sample::new();
    // 1. Out: with these the budget is used up,
    threads::each(&mut [&mut single], |single| fill(single, pages, count));
    // by these pages leave.
    let out_before = pages_out(pool, singles);
    let (timed, counted) = Counted::during(pool, || {
        threads::each(&mut [&mut region], |region| fill(region, pages, 0))
    });
    let out = pages_out(pool, all) - out_before;
    let names = ("swapout_us", "out.");
    figures::add_moved(&mut sample, names, (timed.elapsed, None), out, &counted)?;
    // 2. What is still in memory leaves too.
    shrink(pool, Bytes(request.what.rest), all)?;
    let out = pages_out(pool, all);
    let stored = pool.stats().counters.get("zswap_stored_pages").copied().unwrap_or(0) as f64;
    // Share of the pages that are out, and share of those that are compressed.
    add(
        &mut sample,
        [("out_ratio", out / all as f64), ("compressed_ratio", stored / out.max(1.0))],
    );
    // 3. In: with room enough that none leaves meanwhile.
    let written = Bytes::from_pages(all).0;
    pool.set_memory(Bytes(written + written / 2 + request.memory)).map_err(Failure::of)?;
    let mut wrong = 0;
    let mut read = |names, order: &[u64], region: &Region<'_>, first: u64| {
        let out_before = pages_out(pool, all);
        let is_right = |page: &[u64], at| pages.is_right(page, first + at);
        let (timed, counted) =
            Counted::during(pool, || read_all(order, request.threads, region.as_slice(), is_right));
        wrong += timed.results.iter().map(|read| read.wrong).sum::<u64>();
        let cpu = timed.results.iter().map(|read| read.cpu).sum();
        let pages_in = out_before - pages_out(pool, all);
        if names == SINGLY && pages_in < 1.0 {
            // All of these few were left in memory.
            return Ok(());
        }
        figures::add_moved(&mut sample, names, (timed.elapsed, Some(cpu)), pages_in, &counted)
    };
    read(IN_SEQUENCE, &(0..count).collect::<Vec<_>>(), &region, 0)?;
    let order = Random::new(1).shuffled(singles as u32).into_iter().map(u64::from);
    read(SINGLY, &order.collect::<Vec<_>>(), &single, count)?;
    pool::right(wrong)?;
    Ok(sample)
}

/// Accesses pages at random or in sequence, of sixteen times so many by a write.
fn access(
    pool: &Pool,
    pages: &Pages,
    request: &pool::Request<What>,
    writes_of_16: u64,
) -> Result<Sample, Failure> {
    let count = request.pages();
    let mut region = pool::map(pool, request.bytes)?;
    fill(&mut region, pages, 0);
    let words = region.as_mut_slice::<u64>();
    let mut wrong = 0;
    let mut run = |accesses: u64, seed: u64| {
        let mut random = Random::new(seed);
        for access in 0..accesses {
            let number = match request.what.work {
                Work::BeyondInSequence => access % count,
                _ => random.below(count),
            };
            let page = &mut words[number as usize * WORDS..][..WORDS];
            if random.below(16) < writes_of_16 {
                // A word that neither tells the page nor makes it compress worse.
                page[1] = access % 256;
            }
            wrong += u64::from(!pages.is_right(black_box(page), number));
        }
    };
    // 1. What lies where settles.
    run(count, 1);
    // 2. What counts.
    let (times, counted) = Counted::during(pool, || {
        let (began, cpu_began) = (Instant::now(), cpu_time(ClockId::ProcessCPUTime));
        run(ACCESSES_PER_PAGE * count, 2);
        (began.elapsed(), cpu_time(ClockId::ProcessCPUTime) - cpu_began)
    });
    pool::right(wrong)?;
    let accesses = (ACCESSES_PER_PAGE * count) as f64;
    let mut sample = figures::of_accesses(accesses, times.0, times.1, &counted);
    // Slots of devices in use at the end, as a share of the pages.
    add(&mut sample, [("slots_ratio", counted.now("nr_swap_used") / count as f64)]);
    Ok(sample)
}

/// What one thread read.
struct ReadBack {
    /// Pages that did not hold what was written to them.
    wrong: u64,
    /// Processor time that it took.
    cpu: Duration,
}

/// Reads the pages of `order` on several threads, each a part of it in that order.
fn read_all(
    order: &[u64],
    threads: usize,
    words: &[u64],
    is_right: impl Fn(&[u64], u64) -> bool + Sync,
) -> threads::Timed<ReadBack> {
    let mut parts: Vec<&[u64]> = order.chunks(order.len().div_ceil(threads).max(1)).collect();
    threads::each(&mut parts, |part| {
        let began = cpu_time(ClockId::ThreadCPUTime);
        let page = |at: u64| &words[at as usize * WORDS..][..WORDS];
        let wrong = part.iter().filter(|at| !is_right(page(**at), **at)).count() as u64;
        ReadBack { wrong, cpu: cpu_time(ClockId::ThreadCPUTime) - began }
    })
}

/// How many of `written` pages are neither mapped nor in the swap cache.
fn pages_out(pool: &Pool, written: u64) -> f64 {
    let counters = pool.stats().counters;
    let count = |name: &str| counters.get(name).copied().unwrap_or(0);
    written.saturating_sub(count("nr_resident") + count("nr_swapcached")) as f64
}

/// Makes the budget smaller until nearly all of `written` pages are out, or as far as it gets. No
/// longer: then compressed pages would leave for the device.
fn shrink(pool: &Pool, memory: Bytes, written: u64) -> Result<(), Failure> {
    pool.set_memory(memory).map_err(Failure::of)?;
    let began = Instant::now();
    let (mut most, mut since) = (0.0, began);
    while since.elapsed() < SHRINK_PAUSE && began.elapsed() < SHRINK_LIMIT {
        let out = pages_out(pool, written);
        if out * 1000.0 >= (written * OUT_OF_1000) as f64 {
            break;
        }
        if out > most {
            (most, since) = (out, Instant::now());
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_pages_and_find_each_wrong_one() {
        let words: Vec<u64> = (0..10 * WORDS as u64).map(|word| word / WORDS as u64).collect();
        let order = [3, 9, 0, 5, 1, 2, 4, 6, 7, 8];
        let read = |threads: usize| {
            read_all(&order, threads, &words, |page, at| page == [at; WORDS] && at % 4 != 1)
        };
        for (threads, parts) in [(1, 1), (3, 3), (10, 10), (64, 10)] {
            let timed = read(threads);
            let wrong: u64 = timed.results.iter().map(|read| read.wrong).sum();
            assert_eq!((timed.results.len(), wrong), (parts, 3), "{threads} threads");
        }
    }
}
