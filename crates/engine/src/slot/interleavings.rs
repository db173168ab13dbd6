//! Clusters that change hands, and caches that are emptied, in interleavings that a checker
//! explores.
//!
//! Clusters with their locks, the books and the caches are the map's own ([`SlotTable`],
//! [`SlotCache`]), on words that the checker watches; the locks of the device and of caches are the
//! checker's. The steps of an actor are those of the method of [`super::SlotMap`] named with it, in
//! the same order; who changes one changes the other.
//!
//! Checked: no slot is handed out twice; at the end every cluster stands where it should, every
//! slot is counted, and all of them can be had. A [`Bug`] is a wrong order of steps that must be
//! found, which shows that mistakes can be.

use super::cache::{CACHE_SLOTS, SlotCache};
use super::cluster::{CLUSTER_SLOTS, RECORD_WORDS, Records};
use super::counts::SlotState;
use super::layout::{Layout, pieces};
use super::runs::{Run, Runs};
use super::table::{After, Books, SlotTable, Taken, Want};
use super::{Disk, SlotSettings};
use crate::stats::Stats;
use overspill_os::Errno;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::Mutex;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};

type Word = shuttle::sync::atomic::AtomicU64;

const CLUSTERS: u64 = 3;
const CPUS: usize = 2;
static STATS: LazyLock<Stats> = LazyLock::new(|| Stats::anonymous().unwrap());

impl Records for Box<[[Word; RECORD_WORDS]]> {
    type Word = Word;
}

/// A disk that is always willing.
#[derive(Debug)]
struct Willing;

impl Disk for Willing {
    fn is_shared(&self) -> bool {
        true
    }
    fn acquire(&self, _: Range<u64>) -> bool {
        shuttle::thread::yield_now();
        true
    }
    fn gives_back(&self) -> bool {
        true
    }
    fn release(&self, _: Range<u64>) {}
    fn allocate(&self, _: Range<u64>) -> Result<(), Errno> {
        shuttle::thread::yield_now();
        Ok(())
    }
}

/// Mistakes that one could make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// What became of a cluster is not looked at again with the device's lock.
    NotSettled,
    /// Whether caches are in use is looked at before one is locked only.
    LookedTooEarly,
    /// Two threads take more of the disk into use at once.
    GrowTogether,
    /// A cache is emptied while it is not locked: its slots are put back, and then it is cleared.
    ClearedTooLate,
}

struct Machine {
    table: SlotTable<Box<[[Word; RECORD_WORDS]]>>,
    books: Mutex<Books>,
    growth: Mutex<()>,
    caches: [Mutex<SlotCache>; CPUS],
    caching: Word,
    owned: std::sync::Mutex<HashSet<u64>>,
    bug: Option<Bug>,
}

impl Machine {
    fn new(cpu_cluster: bool, bug: Option<Bug>) -> Machine {
        let layout = Layout::new(CLUSTERS * CLUSTER_SLOTS as u64, 1);
        let records = (0..CLUSTERS).map(|_| Default::default()).collect();
        let settings = SlotSettings { cpu_cluster, ..SlotSettings::default() };
        let (table, books) = SlotTable::new(layout, records, settings, CPUS, *STATS);
        let (books, growth, caching) = (Mutex::new(books), Mutex::new(()), Word::new(1));
        let caches = [(); CPUS].map(|()| Mutex::new(SlotCache::new()));
        Machine { table, books, growth, caches, caching, owned: Default::default(), bug }
    }

    fn own(&self, run: Run) -> Run {
        let mut owned = self.owned.lock().unwrap();
        assert!(
            (run.0..run.0 + run.1 as u64).all(|slot| owned.insert(slot)),
            "{run:?} was handed out twice"
        );
        run
    }

    fn disown(&self, run: Run) {
        let mut owned = self.owned.lock().unwrap();
        assert!((run.0..run.0 + run.1 as u64).all(|slot| owned.remove(&slot)));
    }

    /// `alloc_run`
    fn alloc(&self, cpu: usize, slots: usize) -> Option<Run> {
        let mut run = Runs::<1>::new();
        self.draw(cpu, Want { slots, run_min: slots.min(8) }, &mut run);
        run.as_slice().first().map(|run| self.own(*run))
    }

    /// `alloc_cached`
    fn alloc_cached(&self, cpu: usize, want: usize) -> Option<Run> {
        let mut cache = self.try_cache(cpu)?;
        let run = cache.take(want).or_else(|| {
            cache.fill(|slots, runs| self.draw(cpu, Want { slots, run_min: want }, runs));
            cache.take(want).or_else(|| cache.take_longest())
        })?;
        drop(cache);
        Some(self.own(run))
    }

    /// `try_cache`
    fn try_cache(&self, cpu: usize) -> Option<shuttle::sync::MutexGuard<'_, SlotCache>> {
        let early = self.caching.load(Relaxed);
        let cache = self.caches[cpu].try_lock().ok()?;
        let caching =
            if self.bug == Some(Bug::LookedTooEarly) { early } else { self.caching.load(Relaxed) };
        if caching == 1 { Some(cache) } else { None }
    }

    /// `draw`
    fn draw<const N: usize>(&self, cpu: usize, want: Want, runs: &mut Runs<N>) -> bool {
        let mut may_grow = true;
        self.table.take_current(cpu, want, runs)
            || loop {
                let taken = self.table.take_anywhere(
                    &mut self.books.lock().unwrap(),
                    cpu,
                    want,
                    may_grow,
                    runs,
                );
                match taken {
                    Taken::Grow => may_grow = self.grow(),
                    taken => break taken == Taken::Yes,
                }
            }
    }

    /// `grow`
    fn grow(&self) -> bool {
        let _one = (self.bug != Some(Bug::GrowTogether)).then(|| self.growth.lock().unwrap());
        self.table.grow(|| self.books.lock().unwrap(), &Willing)
    }

    /// `free_on`, and `collect` if `cached`
    fn free(&self, cpu: usize, run: Run, cached: bool) {
        self.disown(run);
        for slot in run.0..run.0 + run.1 as u64 {
            let Some(mut cache) = self.try_cache(cpu).filter(|_| cached) else {
                // As much as is left.
                return self.put(pieces(slot, run.1 - (slot - run.0) as usize));
            };
            let full = cache.push(slot);
            drop(cache);
            if let Some(mut batch) = full {
                self.put(batch.pieces());
            }
        }
    }

    /// `put`
    fn put(&self, pieces: impl Iterator<Item = (u32, usize, usize)>) {
        for (cluster, start, len) in pieces {
            let after = self.table.put(cluster, std::iter::once((start, len)));
            if after == After::Settle && self.bug != Some(Bug::NotSettled) {
                let books = &mut *self.books.lock().unwrap();
                self.table.settle(books, cluster);
                self.table.release_idle(books, cluster, &Willing);
            }
        }
    }

    /// `review`, when there is too little room
    fn give_up_caches(&self) {
        self.caching.store(0, Relaxed);
        self.drain();
    }

    /// `drain`
    fn drain(&self) {
        for cell in &self.caches {
            let mut cache = cell.lock().unwrap();
            let (ready, mut freed) = match self.bug {
                Some(Bug::ClearedTooLate) => cache.clone().drain(),
                _ => cache.drain(),
            };
            drop(cache);
            self.put(ready.as_slice().iter().flat_map(|run| pieces(run.0, run.1)));
            self.put(freed.pieces());
            if self.bug == Some(Bug::ClearedTooLate) {
                cell.lock().unwrap().drain();
            }
        }
    }

    /// After the last thread, with the caches given up: everything is where it should be, and can
    /// be had.
    fn check_at_rest(&self) {
        assert!(
            self.caches.iter().all(|cache| cache.lock().unwrap().slots() == 0),
            "slots in caches that are not used"
        );
        self.table.check(&self.books.lock().unwrap());
        assert_eq!(self.table.tally.get(SlotState::Taken), 0);
        let runs = std::iter::from_fn(|| self.alloc(0, CLUSTER_SLOTS));
        assert_eq!(
            runs.map(|run| run.1 as u64).sum::<u64>(),
            CLUSTERS * CLUSTER_SLOTS as u64 - 1,
            "slots are lost"
        );
    }
}

/// Three threads that take runs and put them back in parts, so that clusters change lists and
/// owners all the time.
fn clusters_change_hands(bug: Option<Bug>) {
    let machine = Arc::new(Machine::new(thread_rng().gen_range(0..2) == 0, bug));
    let threads: Vec<_> = (0..3)
        .map(|thread| {
            let machine = machine.clone();
            shuttle::thread::spawn(move || {
                let mut random = thread_rng();
                let mut runs: Vec<Run> = Vec::new();
                for _ in 0..3 {
                    // A thread may be moved to the other processor between any two calls.
                    let cpu = random.gen_range(0..CPUS);
                    runs.extend(machine.alloc(cpu, random.gen_range(100..CLUSTER_SLOTS)));
                    if let Some((first, len)) = runs.pop() {
                        let half = len / 2;
                        machine.free(cpu, (first, half), false);
                        match thread {
                            0 => machine.free(cpu, (first + half as u64, len - half), false),
                            _ => runs.push((first + half as u64, len - half)),
                        }
                    }
                }
                runs.into_iter().for_each(|run| machine.free(thread % CPUS, run, false));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    machine.check_at_rest();
}

/// Two threads that use the caches, while a third empties them.
fn caches_are_given_up(bug: Option<Bug>) {
    let machine = Arc::new(Machine::new(true, bug));
    // Freed slots that lie in a cache, so that one more thread may be the one that has to return
    // them.
    let waiting = machine.alloc(0, CACHE_SLOTS - 2).unwrap();
    machine.free(0, waiting, true);
    let mut threads: Vec<_> = (0..2)
        .map(|thread| {
            let machine = machine.clone();
            shuttle::thread::spawn(move || {
                let mut random = thread_rng();
                let mut runs: Vec<Run> = Vec::new();
                for _ in 0..3 {
                    let cpu = random.gen_range(0..CPUS);
                    let want = random.gen_range(1..4);
                    runs.extend(
                        machine.alloc_cached(cpu, want).or_else(|| machine.alloc(cpu, want)),
                    );
                    if thread == 0
                        && let Some(run) = runs.pop()
                    {
                        machine.free(random.gen_range(0..CPUS), run, true);
                    }
                }
                runs.into_iter().for_each(|run| machine.free(thread, run, true));
            })
        })
        .collect();
    let draining = machine.clone();
    threads.push(shuttle::thread::spawn(move || {
        // As a request does that would fail, and then as one does that found little left.
        draining.drain();
        draining.give_up_caches();
    }));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    machine.check_at_rest();
}

type Scenario = fn(Option<Bug>);

fn explore(scheduler: impl Scheduler + 'static, scenario: Scenario, bug: Option<Bug>) {
    shuttle::Runner::new(scheduler, shuttle::Config::default()).run(move || scenario(bug));
}

/// Schedules that each scheduler makes up; all of them take some seconds in a build with debug
/// assertions.
const SCHEDULES: usize = 3_000;

#[test]
fn no_interleaving_loses_a_slot_or_hands_one_out_twice() {
    for scenario in [clusters_change_hands, caches_are_given_up] as [Scenario; 2] {
        explore(RandomScheduler::new(SCHEDULES), scenario, None);
        [2, 3, 5]
            .into_iter()
            .for_each(|depth| explore(PctScheduler::new(depth, SCHEDULES), scenario, None));
    }
}

#[test]
fn the_model_finds_every_seeded_bug() {
    let bugs: [(Bug, Scenario); 4] = [
        (Bug::NotSettled, clusters_change_hands),
        (Bug::GrowTogether, clusters_change_hands),
        (Bug::LookedTooEarly, caches_are_given_up),
        (Bug::ClearedTooLate, caches_are_given_up),
    ];
    for (bug, scenario) in bugs {
        let scheduler = RandomScheduler::new_from_seed(1, SCHEDULES);
        let found = std::panic::catch_unwind(|| explore(scheduler, scenario, Some(bug)));
        assert!(found.is_err(), "{bug:?} was not found");
    }
}
