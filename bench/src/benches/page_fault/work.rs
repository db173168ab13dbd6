//! One measurement: threads that map, write and unmap for a while.

use super::{Step, figures};
use crate::measure::Sample;
use crate::measure::failure::Failure;
use crate::measure::pool;
use crate::measure::threads;
use memmap2::{Advice, MmapMut};
use overspill::Pool;
use overspill::base::{Bytes, PAGE_SIZE};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// How long each measurement lasts, and then until every thread has made one whole pass. Sixty of
/// them, with their warm-ups, make the default run.
pub const MEASURED: Duration = Duration::from_millis(300);
/// The budget in units of what is touched, and the least of it: so much that no watermark is ever
/// passed.
const BUDGET_FACTOR: u64 = 2;
const BUDGET_SPARE: u64 = 64 << 20;

/// What to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Whose memory, and how it is set up.
    pub step: Step,
    /// How many threads.
    pub threads: usize,
    /// Bytes that each maps.
    pub bytes: usize,
    /// Whether each thread stays on one processor.
    pub pinned: bool,
}

/// Where fresh memory comes from.
trait Source: Sync {
    /// Maps `len` bytes, lends them, and unmaps them.
    fn lend(&self, len: usize, borrower: &mut dyn FnMut(&mut [u8])) -> Result<(), Failure>;
}

/// The kernel's own anonymous memory.
struct Kernel;

impl Source for Kernel {
    fn lend(&self, len: usize, borrower: &mut dyn FnMut(&mut [u8])) -> Result<(), Failure> {
        let mapped = MmapMut::map_anon(len)
            .and_then(|memory| memory.advise(Advice::NoHugePage).map(|()| memory));
        let mut memory = mapped
            .map_err(|error| Failure::new(format!("the kernel maps no {}: {error}", size(len))))?;
        borrower(&mut memory);
        Ok(())
    }
}

impl Source for Pool {
    fn lend(&self, len: usize, borrower: &mut dyn FnMut(&mut [u8])) -> Result<(), Failure> {
        borrower(pool::map(self, len as u64)?.as_mut_slice());
        Ok(())
    }
}

fn size(len: usize) -> Bytes {
    Bytes(len as u64)
}

/// Measures in this process, which does nothing else.
///
/// # Errors
/// When there is no pool or no memory to be had, or pages were evicted.
pub fn measure_one(request: Request) -> Result<Sample, Failure> {
    let Some(settings) = request.step.settings() else {
        warm_up(&request, &Kernel)?;
        return Ok(measure(&request, &Kernel)?.sample());
    };
    let touched = (request.threads * request.bytes) as u64;
    let pool = pool::open(BUDGET_FACTOR * touched + BUDGET_SPARE, None, settings)?;
    warm_up(&request, &pool)?;
    let before = pool.stats();
    let measured = measure(&request, &pool)?;
    let mut sample = measured.sample();
    figures::add(&mut sample, measured.pages, &before.counters, &pool.stats().counters)?;
    Ok(sample)
}

/// What was done in how much time.
struct Measured {
    pages: u64,
    elapsed: Duration,
    cpu: Duration,
}

impl Measured {
    fn sample(&self) -> Sample {
        let pages = self.pages as f64;
        Sample::from([
            (figures::RATE.to_owned(), pages / self.elapsed.as_secs_f64()),
            (figures::CPU.to_owned(), self.cpu.as_nanos() as f64 / pages),
        ])
    }
}

/// One pass of every thread: the host of a virtual machine gives it memory, lists fill, stacks and
/// tables are touched.
fn warm_up(request: &Request, source: &impl Source) -> Result<(), Failure> {
    passes(request, source, Duration::ZERO).map(drop)
}

fn measure(request: &Request, source: &impl Source) -> Result<Measured, Failure> {
    let cpu = cpu_time();
    let (pages, elapsed) = passes(request, source, MEASURED)?;
    Ok(Measured { pages, elapsed, cpu: cpu_time() - cpu })
}

/// Passes of all threads for `time`; returns pages written and the time it took.
fn passes(
    request: &Request,
    source: &impl Source,
    time: Duration,
) -> Result<(u64, Duration), Failure> {
    let timed = threads::run(request.threads, request.pinned, time, |stop| {
        thread(source, request.bytes, stop)
    });
    let pages: Vec<u64> = timed.results.into_iter().collect::<Result<_, Failure>>()?;
    Ok((pages.into_iter().sum(), timed.elapsed))
}

/// Map, write, unmap until told to stop, but one whole pass at least; returns pages written.
///
/// A later pass is cut short, and what of it was written is unmapped within the time measured: so
/// every page counted has cost its share of mapping and unmapping too.
fn thread(source: &impl Source, len: usize, stop: &AtomicBool) -> Result<u64, Failure> {
    let mut pages = 0;
    source.lend(len, &mut |memory| pages += write(memory, || false))?;
    while !stop.load(Relaxed) {
        source.lend(len, &mut |memory| pages += write(memory, || stop.load(Relaxed)))?;
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

/// Processor time that this process has used.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Counts what is asked of it, and checks what was written.
    #[derive(Default)]
    struct Counting {
        passes: Mutex<Vec<usize>>,
        fails: bool,
    }

    impl Source for Counting {
        fn lend(&self, len: usize, borrower: &mut dyn FnMut(&mut [u8])) -> Result<(), Failure> {
            if self.fails {
                return Err(Failure::new("no memory"));
            }
            let mut memory = vec![0; len];
            borrower(&mut memory);
            assert!(memory.iter().enumerate().all(|(i, byte)| *byte == 0 || i % PAGE_SIZE == 0));
            self.passes.lock().unwrap().push(memory.iter().filter(|byte| **byte == 1).count());
            Ok(())
        }
    }

    fn request() -> Request {
        Request { step: Step::Kernel, threads: 3, bytes: 5 * PAGE_SIZE, pinned: false }
    }

    #[test]
    fn every_thread_makes_a_whole_pass_and_all_that_is_written_counts() {
        let source = Counting::default();
        let (pages, _) = passes(&request(), &source, Duration::from_millis(5)).unwrap();
        let passes = source.passes.into_inner().unwrap();
        assert_eq!(pages as usize, passes.iter().sum::<usize>());
        assert!(passes.iter().filter(|written| **written == 5).count() >= 3, "{passes:?}");
    }

    #[test]
    fn a_thread_without_memory_fails_the_measurement() {
        let source = Counting { fails: true, ..Counting::default() };
        assert_eq!(
            passes(&request(), &source, Duration::ZERO).unwrap_err(),
            Failure::new("no memory")
        );
    }

    #[test]
    fn a_pass_that_is_stopped_counts_what_it_wrote() {
        let mut memory = vec![0; 10 * PAGE_SIZE];
        let left = std::cell::Cell::new(4);
        let stop = || left.replace(left.get() - 1) == 0;
        assert_eq!(write(&mut memory, stop), 4);
        assert_eq!(memory.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 4);
    }

    #[test]
    fn the_kernel_serves_one_measurement() {
        let sample = measure(&request(), &Kernel).unwrap().sample();
        assert!(sample[figures::RATE] > 0.0 && sample[figures::CPU] > 0.0, "{sample:?}");
    }
}
