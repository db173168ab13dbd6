//! Accesses to memory that is larger than what fits, timed: in sequence, at random, and at random
//! with favourites.
//!
//! A [`Plan`] says what is done, [`run`] does it to any memory, and [`Outcome`] is what it took.
//! The same code runs in a program of its own and on memory of the library. Threads have equal
//! parts of the memory for themselves.

mod zipf;

use crate::contents::{Contents, Random, Templates, WORDS, tag};
use crate::usage::{Usage, UsageWho};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::time::Instant;
use std::{fmt, fs};
use zipf::Zipf;

/// Of so many accesses one is timed. Not a power of two: folios and clusters are, and would be hit
/// at the same place each time.
const SAMPLE_EVERY: u64 = 7;
/// Of so many accesses of [`Workload::ZipfRead`] one writes.
const WRITE_EVERY: u64 = 20;
/// Pages of a kind that are made.
const TEMPLATES: u64 = 256;
/// Words of a page that hold something where the rest is zeros.
const SPARSE_WORDS: usize = 116;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
pub enum Workload {
    /// Fresh memory is written, page after page
    SeqWrite,
    /// What was written is read, page after page
    SeqRead,
    /// Pages are read at random
    RandRead,
    /// Pages are written to at random
    RandWrite,
    /// Pages are accessed at random, some far more often than others (Zipf, 0.99); one access in
    /// twenty writes
    ZipfRead,
}

crate::named!(Workload);

/// How far LZ4 packs what pages hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
pub enum Packing {
    /// Random bytes: not at all
    #[value(name = "1")]
    None,
    /// Random bytes in every fourth page, 2.5:1 in the others: 1.8:1
    #[value(name = "1.8")]
    Mixed,
    /// What heaps of programs hold: 2.5:1
    #[value(name = "2.5")]
    Heap,
    /// Pages that are mostly zeros: 10:1
    #[value(name = "10")]
    Sparse,
}

impl Packing {
    /// Fills page `number`, all but its first word.
    pub fn fill(self, page: &mut [u64], number: u64) {
        match self {
            Packing::None => Contents::Random.fill(page, number),
            Packing::Mixed if number.is_multiple_of(4) => Contents::Random.fill(page, number),
            Packing::Mixed | Packing::Heap => Contents::Heap.fill(page, number),
            Packing::Sparse => {
                Contents::Heap.fill(&mut page[..SPARSE_WORDS], number);
                page[SPARSE_WORDS..].fill(0);
            }
        }
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:1", self.to_possible_value().expect("no packing is skipped").get_name())
    }
}

/// What is done, and how much of it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What is done.
    pub workload: Workload,
    /// What pages hold.
    pub packing: Packing,
    /// How many threads do it.
    pub threads: usize,
    /// How many times as many accesses as there are pages.
    pub passes: u64,
}

/// What it took.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Seconds that the accesses took, of all threads together. What was written beforehand is no
    /// part of it.
    pub elapsed_s: f64,
    /// Processor time of this process meanwhile; its faults so far.
    #[serde(flatten)]
    pub used: Usage,
    /// Accesses.
    pub accesses: u64,
    /// Nanoseconds of an access: the median, and what all but one in a hundred and one in a
    /// thousand took at most.
    pub percentiles_ns: [u64; 3],
    /// Pages that held something else than was written to them.
    pub wrong: u64,
}

/// Does it to `memory`, which holds zeros; `ready` is called before the accesses begin.
pub fn run(plan: Plan, memory: &mut [u64], ready: impl FnOnce()) -> Outcome {
    let templates = Templates::new(TEMPLATES, |page, number| plan.packing.fill(page, number));
    let pages = memory.len() / WORDS;
    let part = pages.div_ceil(plan.threads.max(1)).max(1) * WORDS;
    let mut workers: Vec<Worker<'_>> = memory
        .chunks_mut(part)
        .zip(0..)
        .map(|(memory, seed)| Worker::new(memory, &templates, plan, seed))
        .collect();
    // 1. What is read later is written, and what a worker needs is made.
    if plan.workload != Workload::SeqWrite {
        each(&mut workers, |worker| worker.fill());
    }
    ready();
    // 2. The accesses.
    let (before, began) = (used(), Instant::now());
    each(&mut workers, |worker| worker.work(plan));
    let (elapsed, after) = (began.elapsed(), used());
    let Usage { user_s, sys_s, .. } = after - before;
    // 3. What it took.
    let mut ns: Vec<u64> = workers.iter().flat_map(|worker| worker.ns.iter().copied()).collect();
    ns.sort_unstable();
    let within =
        |share: f64| ns.get((ns.len() as f64 * share) as usize).or(ns.last()).copied().unwrap_or(0);
    Outcome {
        elapsed_s: elapsed.as_secs_f64(),
        used: Usage { user_s, sys_s, ..after },
        accesses: workers.iter().map(|worker| worker.pages() * plan.passes).sum(),
        percentiles_ns: [0.5, 0.99, 0.999].map(within),
        wrong: workers.iter().map(|worker| worker.wrong).sum(),
    }
}

/// Has each worker work in a thread, the first in this one.
fn each<'a>(workers: &mut [Worker<'a>], work: impl Fn(&mut Worker<'a>) + Sync) {
    let Some((mine, others)) = workers.split_first_mut() else { return };
    std::thread::scope(|scope| {
        let work = &work;
        others.iter_mut().for_each(|worker| _ = scope.spawn(move || work(worker)));
        work(mine);
    });
}

/// A thread's part of the memory.
struct Worker<'a> {
    memory: &'a mut [u64],
    templates: &'a Templates,
    random: Random,
    zipf: Option<Zipf>,
    ns: Vec<u64>,
    wrong: u64,
}

impl<'a> Worker<'a> {
    fn new(memory: &'a mut [u64], templates: &'a Templates, plan: Plan, seed: u64) -> Worker<'a> {
        let pages = (memory.len() / WORDS) as u64;
        let zipf = (plan.workload == Workload::ZipfRead).then(|| Zipf::new(pages));
        let ns = Vec::with_capacity((pages * plan.passes / SAMPLE_EVERY) as usize + 1);
        Worker { memory, templates, random: Random::new(seed), zipf, ns, wrong: 0 }
    }

    fn pages(&self) -> u64 {
        (self.memory.len() / WORDS) as u64
    }

    fn fill(&mut self) {
        (0..self.pages()).for_each(|number| self.write(number));
    }

    fn write(&mut self, number: u64) {
        self.templates.write(&mut self.memory[number as usize * WORDS..][..WORDS], number);
    }

    fn read(&mut self, number: u64) {
        self.wrong += u64::from(self.memory[number as usize * WORDS] != tag(number));
    }

    /// Writes a word and nothing else.
    fn change(&mut self, number: u64, value: u64) {
        self.memory[number as usize * WORDS + 1] = value;
    }

    /// As many accesses as there are pages, so many times.
    fn work(&mut self, Plan { workload, passes, .. }: Plan) {
        let pages = self.pages();
        for access in 0..pages * passes {
            let page = match (&mut self.zipf, workload) {
                (Some(zipf), _) => zipf.next(&mut self.random),
                (None, Workload::RandRead | Workload::RandWrite) => self.random.below(pages),
                _ => access % pages,
            };
            let began = access.is_multiple_of(SAMPLE_EVERY).then(Instant::now);
            match workload {
                Workload::SeqWrite => self.write(page),
                Workload::RandWrite => self.change(page, access),
                Workload::ZipfRead if access.is_multiple_of(WRITE_EVERY) => {
                    self.change(page, access)
                }
                Workload::SeqRead | Workload::RandRead | Workload::ZipfRead => self.read(page),
            }
            if let Some(began) = began {
                self.ns.push(began.elapsed().as_nanos() as u64);
            }
        }
    }
}

/// What this process has used so far, with what is used beside it.
fn used() -> Usage {
    let own = Usage::of(UsageWho::RUSAGE_SELF);
    let [user_s, sys_s] = beside();
    Usage { user_s: own.user_s + user_s, sys_s: own.sys_s + sys_s, ..own }
}

/// Processor time, in user mode and in the kernel, in seconds, of other children of this process's
/// parent: under `overspill run` the engine works in one of these. By ticks of the clock, 10 ms
/// mostly.
fn beside() -> [f64; 2] {
    let parent = std::os::unix::process::parent_id();
    let own = std::process::id().to_string();
    let children =
        fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let ticks =
        children.split_ascii_whitespace().filter(|child| *child != own).filter_map(|child| {
            let text = fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
            ticks_of(&text)
        });
    let sum = ticks.fold([0, 0], |[user, sys], of| [user + of[0], sys + of[1]]);
    sum.map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The ticks that `/proc/PID/stat` tells of: the name in it may hold anything.
fn ticks_of(text: &str) -> Option<[u64; 2]> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some([fields.next()?.parse().ok()?, fields.next()?.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::bytes;
    use overspill_os::codec::{Codec, Compressor};

    #[test]
    fn every_workload_accesses_as_often_as_there_are_pages_and_finds_what_it_wrote() {
        for &workload in Workload::value_variants() {
            for (threads, passes) in [(1, 1), (2, 3), (3, 2)] {
                let mut memory = vec![0; 100 * WORDS];
                let plan = Plan { workload, packing: Packing::Heap, threads, passes };
                let outcome = run(plan, &mut memory, || ());
                let told = (outcome.accesses, outcome.wrong);
                assert_eq!(told, (100 * passes, 0), "{workload}, {threads} threads");
                assert!(
                    outcome.elapsed_s > 0.0 && outcome.percentiles_ns.is_sorted(),
                    "{outcome:?}"
                );
                // Each thread numbers the pages of its own part.
                assert_eq!(memory[0], tag(0), "all pages are written, whatever is done");
                assert_eq!(memory[100_usize.div_ceil(threads) * WORDS % memory.len()], tag(0));
                assert_ne!(memory[99 * WORDS], 0);
            }
        }
    }

    #[test]
    fn ticks_are_told_whatever_the_name_of_the_process() {
        let text = "17 (a) b) S 1 17 17 0 -1 4194560 100 200 0 0 31 42 7 8 20 0 1 0 99";
        assert_eq!([text, "17 (a", ""].map(ticks_of), [Some([31, 42]), None, None]);
        assert!(ticks_of(&fs::read_to_string("/proc/self/stat").unwrap()).is_some());
    }

    #[test]
    fn a_page_that_changed_is_noticed() {
        let templates = Templates::new(1, |page, _| page.fill(7));
        let mut memory = vec![0; 10 * WORDS];
        let (workload, packing) = (Workload::SeqRead, Packing::Heap);
        let plan = Plan { workload, packing, threads: 1, passes: 1 };
        let mut worker = Worker::new(&mut memory, &templates, plan, 0);
        worker.fill();
        worker.work(plan);
        assert_eq!(worker.wrong, 0);
        worker.memory[3 * WORDS] ^= 1;
        worker.work(plan);
        assert_eq!(worker.wrong, 1);
    }

    #[test]
    fn pages_pack_as_far_as_their_names_say() {
        let mut compressor = Compressor::new(Codec::Lz4).unwrap();
        for (packing, low, high) in [
            (Packing::None, 0.9, 1.1),
            (Packing::Mixed, 1.7, 1.9),
            (Packing::Heap, 2.3, 2.7),
            (Packing::Sparse, 9.0, 11.0),
        ] {
            let mut packed = |number| {
                let mut words = [7; WORDS];
                packing.fill(&mut words, number);
                compressor.compress(&bytes(&words), &mut [0; 8192]).unwrap()
            };
            let total: usize = (0..TEMPLATES).map(&mut packed).sum();
            let ratio = (TEMPLATES * 4096) as f64 / total as f64;
            assert!(low < ratio && ratio < high, "{packing}: {ratio:.2}");
        }
    }
}
