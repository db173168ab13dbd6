//! `swapoff`: memory is written and pushed out by another allocation, that is freed, and the device
//! is emptied, by the [`engine`] or by the [`kernel`].
//!
//! [`load`] is what goes on meanwhile, [`device_rate`] what the disk can do.

pub mod device_rate;
pub mod engine;
pub mod kernel;
pub mod load;

use crate::measure::*;
use load::{Found, Pageable};
use overspill::units::PAGE_SIZE;
use overspill_bench::contents::{Contents, WORDS, pages};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What is to be measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Evacuation {
    /// Settings of the engine's pool; the kernel has none.
    pub settings: Option<String>,
    /// Where swap files are made.
    pub dir: PathBuf,
    /// The file that is the engine's device, in place of one in the directory.
    pub file: Option<PathBuf>,
    /// Where the pages of the engine's load go, as the engine reads it.
    pub load_device: String,
    /// Bytes that are written and come back.
    pub size: u64,
    /// Bytes of the load's memory; none if there is no load.
    pub load: u64,
}

impl Evacuation {
    /// What fits in memory: all of it, and an eighth more, so that nothing is pushed out again as
    /// it comes in.
    pub fn memory(&self) -> u64 {
        /// Room for what each side keeps for its own use.
        const SPARE: u64 = 16 << 20;
        self.size + self.size / 8 + self.load + SPARE
    }

    /// What the other allocation takes: more than fits, so that all that was written goes out.
    pub fn other(&self) -> u64 {
        self.memory() + self.memory() / 4
    }

    /// The device that is emptied: room for what was written, and for what the other allocation
    /// pushes out of its own.
    pub fn device(&self) -> u64 {
        self.size + self.other()
    }

    /// The most bytes that the disk needs to have room for.
    pub fn disk(&self) -> u64 {
        self.device() + load_device_bytes(self.load) + device_rate::BYTES_MAX
    }
}

/// The size of the device that the pages of so large a load go to.
pub fn load_device_bytes(load: u64) -> u64 {
    2 * load
}

/// Writes every page of `words`; nothing in them compresses.
fn fill(words: &mut [u64]) {
    pages(words, 0).for_each(|(page, number)| Contents::Random.fill(page, number));
}

/// Pushes everything else out: a word in each page is written.
fn touch(words: &mut [u64]) {
    pages(words, 1).for_each(|(page, number)| page[0] = number);
}

/// Reads a word of each page, and how long that takes.
fn access(words: &[u64]) -> Duration {
    let began = Instant::now();
    words.iter().step_by(WORDS).for_each(|word| _ = black_box(*word));
    began.elapsed()
}

/// Checks every word that [`fill`] wrote.
fn verify(words: &[u64]) -> Result<(), Failure> {
    let mut expected = [0; WORDS];
    let wrong = words.chunks_exact(WORDS).zip(0..).filter(|(page, number)| {
        Contents::Random.fill(&mut expected, *number);
        *page != expected
    });
    pool::right(wrong.count() as u64)
}

/// Measures in this process, which does nothing else.
pub fn measure_one(request: Evacuation) -> Result<Sample, Failure> {
    // Written first: what is read later must be no fresher in any cache than what was swapped.
    let rate = device_rate::SequentialFile::write(&request.dir, request.size)?;
    match &request.settings {
        Some(settings) => engine::measure(&request, settings, &rate),
        None => kernel::measure(&request, &rate),
    }
}

/// Who empties a device.
trait Side {
    /// Memory whose pages leave for the device.
    type Memory: Pageable + Send;
    /// Whether the processor time of the load is counted as that of the evacuation.
    const COUNTS_LOAD: bool;
    fn map(&self, bytes: u64) -> Result<Self::Memory, Failure>;
    /// Adds a device of higher priority for the pages of the load: what was pushed out before lies
    /// on the other.
    fn add_load_device(&self) -> Result<(), Failure>;
    fn evacuate(&self) -> Result<Evacuated, Failure>;
}

/// What it took to empty the device.
#[derive(Clone, Copy, Debug)]
struct Evacuated {
    /// Until the device was empty.
    elapsed: Duration,
    /// Processor time meanwhile.
    usage: Usage,
    /// Pages that were read.
    page_ins: u64,
    /// Read operations, where they are known.
    operations: Option<u64>,
}

fn measure<S: Side>(
    side: &S,
    request: &Evacuation,
    rate: &device_rate::SequentialFile,
) -> Result<Sample, Failure> {
    // 1. Memory is written, and pushed out by another allocation, which is freed.
    let mut data = side.map(request.size)?;
    fill(data.words());
    touch(side.map(request.other())?.words());
    // What the other allocation left in memory goes too, so that both sides have as much to bring
    // back.
    data.page_out(0..request.size as usize).failing("memory cannot be pushed out")?;
    let device_mb_per_s = rate.mb_per_s()?;
    // 2. The device is emptied, beside a load if there is one.
    let (mut evacuated, load) = if request.load == 0 {
        (side.evacuate()?, None)
    } else {
        side.add_load_device()?;
        let (evacuated, load) = load::beside(side.map(request.load)?, || side.evacuate())?;
        (evacuated, Some(load))
    };
    if let Some(load) = load.filter(|_| S::COUNTS_LOAD) {
        evacuated.usage = evacuated.usage - load.during.usage;
    }
    // 3. Every page is what it was.
    let first_access = access(data.words());
    verify(data.words())?;
    Ok(told(evacuated, device_mb_per_s, first_access, load))
}

fn told(
    evacuated: Evacuated,
    device_mb_per_s: f64,
    first_access: Duration,
    load: Option<Found>,
) -> Sample {
    let elapsed = evacuated.elapsed.as_secs_f64();
    let pages = evacuated.page_ins as f64;
    let mb_per_s = pages * PAGE_SIZE as f64 / 1e6 / elapsed;
    let mut sample = figures([
        ("elapsed_s", elapsed),
        // Processor time without that of the load.
        ("user_s", evacuated.usage.user_s),
        ("sys_s", evacuated.usage.sys_s),
        ("page_ins", pages),
        ("mb_per_s", mb_per_s),
        // MB/s at which a file on the same disk is read in sequence at the same time, and the rate
        // of pages as a share of that.
        ("device_mb_per_s", device_mb_per_s),
        ("device_ratio", mb_per_s / device_mb_per_s),
        // Of a page afterwards: what comes back need not be mapped yet.
        ("first_access_ns", first_access.as_nanos() as f64 / pages),
    ]);
    if let Some(operations @ 1..) = evacuated.operations {
        let operations = operations as f64;
        let each = pages / operations;
        add(&mut sample, [("operations", operations), ("pages_per_operation", each)]);
    }
    if let Some(Found { before, during }) = load {
        let slowdown = before.ops_per_s / during.ops_per_s;
        let figures = [
            ("load_ops_per_s_before", before.ops_per_s),
            ("load_ops_per_s", during.ops_per_s),
            ("load_slowdown", slowdown),
            // Seconds of the load's work that were lost by that.
            ("load_lost_s", elapsed * (1.0 - slowdown.recip())),
            // The longest accesses.
            ("load_longest_ms_before", before.longest.as_secs_f64() * 1e3),
            ("load_longest_ms", during.longest.as_secs_f64() * 1e3),
        ];
        // A load that does nothing at all for as long as it takes has no slowdown that is a number.
        add(&mut sample, figures.into_iter().filter(|(_, value)| value.is_finite()));
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::load::Phase;
    use super::*;

    #[test]
    fn a_word_that_is_another_is_found() {
        let mut words = vec![0; 5 * WORDS];
        fill(&mut words);
        verify(&words).unwrap();
        words[3 * WORDS + 100] ^= 1;
        assert!(verify(&words).unwrap_err().to_string().starts_with("1 pages came back"));
        touch(&mut words);
        assert!(verify(&words).unwrap_err().to_string().starts_with("5 pages came back"));
    }

    #[test]
    fn rates_and_ratios_follow_from_what_was_measured() {
        let ms = Duration::from_millis;
        let usage = Usage { user_s: 0.1, sys_s: 0.2, ..Usage::default() };
        let evacuated =
            Evacuated { elapsed: ms(500), usage, page_ins: 25_000, operations: Some(100) };
        let phase = |ops_per_s, longest| Phase { ops_per_s, longest: ms(longest), usage };
        let load = Some(Found { before: phase(1000.0, 2), during: phase(400.0, 30) });
        let sample = told(evacuated, 409.6, ms(20), load);
        for (name, expected) in [
            ("pages_per_operation", 250.0),
            ("mb_per_s", 204.8),
            ("device_ratio", 0.5),
            ("first_access_ns", 800.0),
            ("load_slowdown", 2.5),
            ("load_lost_s", 0.3),
        ] {
            assert_eq!(sample[name], expected, "{name}");
        }
        assert_eq!(told(Evacuated { operations: None, ..evacuated }, 1.0, ms(1), None).len(), 8);
    }
}
