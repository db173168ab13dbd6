//! `page-fault`: threads map memory, write a byte to each page and unmap it, again and again, as
//! page_fault1 of will-it-scale does.

use crate::measure::*;
use memmap2::{Advice, MmapMut};
use overspill::units::{Bytes, PAGE_SIZE};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// What follows from two counters.
const RATIOS: &[Ratio] = &[
    // Acquisitions of the zone lock for 1,000 frames that are taken, and given back again: 1,000
    // without lists if all go back at once when they are unmapped, 2,000 if each goes by itself.
    ("zone_locks_per_1000", "zone_lock", 1000.0, "frame_alloc"),
    ("zone_hold_ns_per_frame", "zone_lock_hold_ns", 1.0, "frame_alloc"),
    ("zone_wait_ns_per_frame", "zone_lock_wait_ns", 1.0, "frame_alloc"),
    // Time that the zone lock is held to give frames back, for each of them.
    ("zone_free_hold_ns_per_frame", "zone_free_hold_ns", 1.0, "frame_free"),
    ("frames_per_batch_alloc", "frame_alloc", 1.0, "frame_batch_alloc"),
    ("frames_per_batch_free", "frame_free", 1.0, "frame_batch_free"),
    ("zone_fallbacks_per_1000", "frame_fallback", 1000.0, "frame_alloc"),
    ("zone_steals_per_1000", "frame_steal", 1000.0, "frame_alloc"),
];

/// How long each measurement lasts, and then until every thread has made one whole pass. Sixty of
/// them, with their warm-ups, make the default run.
pub const MEASURED: Duration = Duration::from_millis(300);
/// The budget in units of what is touched, and the least of it: so much that no watermark is ever
/// passed.
const BUDGET_FACTOR: u64 = 2;
const BUDGET_SPARE: u64 = 64 << 20;

/// What is to be measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FirstWrites {
    /// Settings of the pool; the kernel's own memory has none.
    pub settings: Option<String>,
    pub threads: usize,
    /// Bytes that each maps.
    pub bytes: usize,
    /// Whether each thread stays on one processor.
    pub pinned: bool,
}

/// Where fresh memory comes from: maps so many bytes, lends them, and unmaps them.
type Lend<'a> = &'a (dyn Fn(usize, &mut dyn FnMut(&mut [u8])) -> Result<(), Failure> + Sync);

fn of_kernel(len: usize, borrower: &mut dyn FnMut(&mut [u8])) -> Result<(), Failure> {
    let mapped = MmapMut::map_anon(len)
        .and_then(|memory| memory.advise(Advice::NoHugePage).map(|()| memory));
    let size = Bytes(len as u64);
    borrower(&mut mapped.failing(format_args!("the kernel maps no {size}"))?);
    Ok(())
}

/// Measures in this process, which does nothing else, after one pass of every thread: the host of a
/// virtual machine gives it memory, lists fill, stacks and tables are touched.
pub fn measure_one(request: FirstWrites) -> Result<Sample, Failure> {
    let Some(settings) = &request.settings else {
        passes(&request, &of_kernel, Duration::ZERO)?;
        return Ok(measure(&request, &of_kernel)?.1);
    };
    let touched = (request.threads * request.bytes) as u64;
    let pool = pool::open(BUDGET_FACTOR * touched + BUDGET_SPARE, None, settings)?;
    let of_pool = |len: usize, borrower: &mut dyn FnMut(&mut [u8])| {
        borrower(pool::map(&pool, len as u64)?.as_mut_slice());
        Ok(())
    };
    passes(&request, &of_pool, Duration::ZERO)?;
    let (measured, counted) = Counted::during(&pool, || measure(&request, &of_pool));
    let (pages, mut sample) = measured?;
    add_counted(&mut sample, pages, &counted)?;
    Ok(sample)
}

/// Pages written, and the figures of that.
fn measure(request: &FirstWrites, lend: Lend<'_>) -> Result<(u64, Sample), Failure> {
    let cpu = cpu_time(ClockId::ProcessCPUTime);
    let (pages, elapsed) = passes(request, lend, MEASURED)?;
    let cpu = cpu_time(ClockId::ProcessCPUTime) - cpu;
    let sample = figures([
        // First writes to pages a second, by all threads together, as will-it-scale counts.
        ("faults_per_s", pages as f64 / elapsed.as_secs_f64()),
        // Processor time of the whole process: the engine's threads, mapping and unmapping
        // included. On a busy machine it varies less than the rate.
        ("cpu_ns_per_page", cpu.as_nanos() as f64 / pages as f64),
    ]);
    Ok((pages, sample))
}

/// Passes of all threads for `time`; returns pages written and the time it took.
fn passes(
    request: &FirstWrites,
    lend: Lend<'_>,
    time: Duration,
) -> Result<(u64, Duration), Failure> {
    let timed = threads::run(request.threads, request.pinned, time, |stop| {
        thread(lend, request.bytes, stop)
    });
    let pages: Vec<u64> = timed.results.into_iter().collect::<Result<_, Failure>>()?;
    Ok((pages.into_iter().sum(), timed.elapsed))
}

/// Map, write, unmap until told to stop, but one whole pass at least; returns pages written.
///
/// A later pass is cut short, and what of it was written is unmapped within the time measured: so
/// every page counted has cost its share of mapping and unmapping too.
fn thread(lend: Lend<'_>, len: usize, stop: &AtomicBool) -> Result<u64, Failure> {
    let mut pages = 0;
    lend(len, &mut |memory| pages += write(memory, || false))?;
    while !stop.load(Relaxed) {
        lend(len, &mut |memory| pages += write(memory, || stop.load(Relaxed)))?;
    }
    Ok(pages)
}

/// Writes a byte to each page; returns how many it wrote to.
fn write(memory: &mut [u8], stop: impl Fn() -> bool) -> u64 {
    let mut pages = 0;
    for byte in memory.iter_mut().step_by(PAGE_SIZE) {
        if stop() {
            break;
        }
        *byte = 1;
        pages += 1;
    }
    black_box(memory);
    pages
}

/// Adds what a pool counted while `pages` pages were written. A figure whose counter the engine
/// lacks, or that is about frames when none was taken, is left out.
fn add_counted(sample: &mut Sample, pages: u64, counted: &Counted) -> Result<(), Failure> {
    if let evicted @ 1.0.. = counted.evicted() {
        fail!("{evicted} pages were evicted, although the budget had room for all");
    }
    if let Some(faults @ 1.0..) = counted.get("pgfault") {
        add(sample, [("pages_per_fault", pages as f64 / faults)]);
    }
    let mut of_zone = counted.lock("zone_lock", 1.0).into_iter();
    let contended = of_zone.find(|(name, _)| *name == "contended_ratio");
    add(sample, contended.map(|(_, share)| ("zone_contended_ratio", share)));
    add(sample, counted.ratios(RATIOS));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::counted;
    use std::sync::Mutex;

    #[test]
    fn every_thread_makes_a_whole_pass_and_all_that_is_written_counts() {
        let request =
            FirstWrites { settings: None, threads: 3, bytes: 5 * PAGE_SIZE, pinned: false };
        let written = Mutex::new(Vec::new());
        let lend = |len: usize, borrower: &mut dyn FnMut(&mut [u8])| {
            let mut memory = vec![0; len];
            borrower(&mut memory);
            assert!(memory.iter().enumerate().all(|(i, byte)| *byte == 0 || i % PAGE_SIZE == 0));
            written.lock().unwrap().push(memory.iter().filter(|byte| **byte == 1).count());
            Ok(())
        };
        let (pages, _) = passes(&request, &lend, Duration::from_millis(5)).unwrap();
        let written = written.into_inner().unwrap();
        assert_eq!(pages as usize, written.iter().sum::<usize>());
        assert!(written.iter().filter(|pages| **pages == 5).count() >= 3, "{written:?}");
        let fails = |_: usize, _: &mut dyn FnMut(&mut [u8])| fail!("no memory");
        assert!(passes(&request, &fails, Duration::ZERO).is_err());
        let of_kernel = measure_one(request).unwrap();
        assert!(of_kernel["faults_per_s"] > 0.0 && of_kernel["cpu_ns_per_page"] > 0.0);
    }

    #[test]
    fn a_pass_that_is_stopped_counts_what_it_wrote() {
        let mut memory = vec![0; 10 * PAGE_SIZE];
        let left = std::cell::Cell::new(4);
        assert_eq!(write(&mut memory, || left.replace(left.get() - 1) == 0), 4);
        assert_eq!(memory.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 4);
    }

    #[test]
    fn figures_are_for_each_frame_and_fault_and_an_eviction_spoils_them() {
        let of = |counters: &[(&'static str, u64, u64)]| {
            let mut sample = Sample::new();
            add_counted(&mut sample, 2000, &counted(counters)).map(|()| sample)
        };
        let zone = [("zone_lock", 7, 67), ("zone_lock_contended", 1, 1)];
        let sample =
            of(&[&zone[..], &[("pgfault", 10, 510), ("frame_alloc", 1000, 3000)]].concat());
        let expected = [
            ("pages_per_fault", 4.0),
            ("zone_locks_per_1000", 30.0),
            ("zone_contended_ratio", 0.0),
        ];
        assert_eq!(sample.unwrap(), figures(expected));
        // No fault and no frame, so nothing for each.
        assert_eq!(of(&zone).unwrap(), figures(expected[2..].iter().copied()));
        for evicted in ["pgsteal_kswapd", "pgsteal_direct"] {
            let failure = of(&[(evicted, 5, 8)]).unwrap_err().to_string();
            assert!(failure.starts_with("3 pages were evicted"), "{failure}");
        }
    }
}
