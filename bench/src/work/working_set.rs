//! `working-set`: a trace of accesses on a pool of the library, and what other policies would miss
//! on the same trace.
//!
//! [`trace`] is what is accessed, [`policies`] are the others, [`figures`] what is counted.

pub mod figures;
pub mod policies;
pub mod trace;

use crate::measure::counters::{Counted, Counters, add};
use crate::measure::{Failure, Sample, pool};
use figures::Count;
use overspill::units::{Bytes, PAGE_SIZE};
use overspill_bench::contents::{WORDS, tag};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use trace::Pattern;

/// How much is in memory is looked at once in so many accesses.
const LOOK_EVERY: usize = 1024;

/// What to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// What is accessed.
    pub pattern: Pattern,
    /// Settings of the pool.
    pub settings: String,
    /// Budget in bytes.
    pub memory: u64,
    /// The swap device, as the engine reads it.
    pub device: String,
}

/// Measures in this process, which does nothing else.
pub fn measure_one(request: Request) -> Result<Sample, Failure> {
    let fits = Bytes(request.memory).pages();
    let trace = request.pattern.trace(fits as u32);
    let pool = pool::open(request.memory, Some(&request.device), &request.settings)?;
    let mut region = pool::map(&pool, u64::from(trace.pages) * PAGE_SIZE as u64)?;
    let words = region.as_mut_slice::<u64>();
    let mut touched = vec![false; trace.pages as usize];
    let mut wrong = 0_u64;
    // 1. A page is written to when it is touched for the first time, and read after that.
    let mut access = |page: u32| {
        let word = &mut words[page as usize * WORDS];
        if std::mem::replace(&mut touched[page as usize], true) {
            wrong += u64::from(*black_box(word) != tag(page.into()));
        } else {
            *word = tag(page.into());
        }
    };
    // 2. The warm-up, then what counts.
    let (warm_up, counted) = trace.accesses.split_at(trace.warm_up);
    warm_up.iter().for_each(|page| access(*page));
    let before = pool.stats().counters;
    let (mut resident, mut charged) = (Vec::new(), Vec::new());
    for chunk in counted.chunks(LOOK_EVERY) {
        chunk.iter().for_each(|page| access(*page));
        let counters = pool.stats().counters;
        resident.push(in_memory(&counters));
        charged.push(Bytes(counters["charged_bytes"]).pages());
    }
    let after = pool.stats().counters;
    pool::right(wrong)?;
    // 3. The figures, with those of LRU in as much memory as there was on average.
    let counted = Counted { before: &before, after: &after };
    let misses = Count::between(&trace, counted);
    let mut sample = misses.sample(&trace);
    let [resident, charged] =
        [resident, charged].map(|looks| looks.iter().sum::<u64>() as f64 / looks.len() as f64);
    let fits = fits as f64;
    add(&mut sample, [(figures::RESIDENT, resident / fits), (figures::CHARGED, charged / fits)]);
    let lru = Count::of(&trace, &policies::lru(&trace.accesses, resident.round() as usize));
    for (figure, ours, lru) in [
        (figures::OF_LRU_RESIDENT, misses.all, lru.all),
        (figures::HOT_OF_LRU_RESIDENT, misses.hot, lru.hot),
    ] {
        if lru > 0 {
            add(&mut sample, [(figure, ours as f64 / lru as f64)]);
        }
    }
    if misses.all > 0 {
        let minor = (counted.count("pgfault") - misses.all as f64).max(0.0);
        add(&mut sample, [(figures::MINOR, minor / misses.all as f64)]);
    }
    Ok(sample)
}

/// Pages that are in memory, the swap cache included.
fn in_memory(counters: &Counters) -> u64 {
    ["nr_resident", "nr_swapcached"].iter().filter_map(|name| counters.get(name)).sum()
}

/// What a policy that is simulated misses.
pub fn simulate(pattern: Pattern, frames: u32, policy: policies::Policy) -> Sample {
    let trace = pattern.trace(frames);
    Count::of(&trace, &policy(&trace.accesses, frames as usize)).sample(&trace)
}
