//! The map of a device's slots on two processors, in interleavings that a checker explores:
//! clusters that change hands while the device is taken into use, and caches that are emptied.
//!
//! Checked: no slot is handed out twice; at the end every cluster stands where it should, every
//! slot is counted, and all of them can be had. A [`Bug`] is a mistake in the map's own steps,
//! which must be found.

use super::cache::{CACHE_LOW, CACHE_SLOTS};
use super::runs::Run;
use super::{CLUSTER_SLOTS, Disk, SlotMap, SlotSettings};
use crate::base::explore::{MODEL_CPUS, finds_each, finds_nothing};
use crate::base::seeded::Bug;
use crate::base::sync::point;
use crate::stats::Stats;
use overspill_os::Errno;
use shuttle::rand::{Rng, thread_rng};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, Mutex};

/// Of which one slot is reserved.
const SLOTS: u64 = 3 * CLUSTER_SLOTS as u64;

static STATS: LazyLock<Stats> = LazyLock::new(|| Stats::anonymous().unwrap());

/// A disk that is always willing.
#[derive(Debug)]
struct Willing;

impl Disk for Willing {
    fn is_shared(&self) -> bool {
        true
    }
    fn acquire(&self, _: Range<u64>) -> bool {
        point();
        true
    }
    fn gives_back(&self) -> bool {
        true
    }
    fn release(&self, _: Range<u64>) {}
    fn allocate(&self, _: Range<u64>) -> Result<(), Errno> {
        point();
        Ok(())
    }
}

struct Machine {
    map: SlotMap,
    owned: Mutex<HashSet<u64>>,
    /// Of these, what is put back at the end only.
    kept: Mutex<Vec<Run>>,
}

impl Machine {
    fn new(cpu_cluster: bool) -> Machine {
        let settings = SlotSettings { cpu_cluster, ..SlotSettings::default() };
        let map = SlotMap::new(SLOTS, 1, settings, MODEL_CPUS, *STATS).unwrap();
        Machine { map, owned: Mutex::default(), kept: Mutex::default() }
    }

    fn alloc(&self, want: usize) -> Option<Run> {
        let run = self.map.alloc(want, &Willing)?;
        let mut owned = self.owned.lock().unwrap();
        assert!(
            (run.0..run.0 + run.1 as u64).all(|slot| owned.insert(slot)),
            "{run:?} was handed out twice"
        );
        Some(run)
    }

    fn free(&self, run: Run) {
        {
            let mut owned = self.owned.lock().unwrap();
            assert!((run.0..run.0 + run.1 as u64).all(|slot| owned.remove(&slot)));
        }
        self.map.free(run.0, run.1, &Willing);
    }

    /// After the last thread: everything is where it should be, and can be had.
    fn check_at_rest(&self) {
        self.map.check();
        let kept = std::mem::take(&mut *self.kept.lock().unwrap());
        kept.into_iter().for_each(|run| self.free(run));
        self.map.caching.store(false, Relaxed);
        self.map.drain(&Willing);
        self.map.check();
        assert_eq!(self.map.counts().used, 0);
        let runs = std::iter::from_fn(|| self.map.alloc(CLUSTER_SLOTS, &Willing));
        assert_eq!(runs.map(|run| run.1 as u64).sum::<u64>(), SLOTS - 1, "slots are lost");
    }
}

type Actor = fn(&Machine);

fn run(machine: Machine, actors: [Actor; 3]) {
    let machine = Arc::new(machine);
    let threads = actors.map(|actor| {
        let machine = machine.clone();
        shuttle::thread::spawn(move || actor(&machine))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    machine.check_at_rest();
}

/// Takes long runs and puts them back in parts, so that clusters change lists and owners all the
/// time.
fn take_and_put_back(machine: &Machine) {
    let mut random = thread_rng();
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..3 {
        runs.extend(machine.alloc(random.gen_range(100..CLUSTER_SLOTS)));
        if let Some((first, len)) = runs.pop() {
            let half = len / 2;
            machine.free((first, half));
            let other = (first + half as u64, len - half);
            if random.gen_bool(0.5) { machine.free(other) } else { runs.push(other) }
        }
    }
    runs.into_iter().for_each(|run| machine.free(run));
}

fn clusters_change_hands() {
    run(Machine::new(thread_rng().gen_bool(0.5)), [take_and_put_back; 3]);
}

/// Takes short runs, most of them from caches, and puts them back there.
fn use_caches(machine: &Machine) {
    let mut random = thread_rng();
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..3 {
        runs.extend(machine.alloc(random.gen_range(1..4)));
        if random.gen_bool(0.5)
            && let Some(run) = runs.pop()
        {
            machine.free(run);
        }
    }
    runs.into_iter().for_each(|run| machine.free(run));
}

/// A thread empties the caches, as a request does that would fail, and then takes so much that they
/// are given up.
fn caches_are_given_up() {
    let machine = Machine::new(true);
    assert!(machine.map.caching.load(Relaxed), "there is room for caches");
    // Freed slots that lie in a cache, so that one more thread may be the one that has to return
    // them.
    let waiting = machine.alloc(CACHE_SLOTS - 2).unwrap();
    machine.free(waiting);
    let give_up: Actor = |machine| {
        machine.map.drain(&Willing);
        while machine.map.available() >= CACHE_LOW * MODEL_CPUS as u64 {
            let run = machine.alloc(CLUSTER_SLOTS / 2);
            machine.kept.lock().unwrap().extend(run);
        }
    };
    run(machine, [use_caches, use_caches, give_up]);
}

/// Schedules that each scheduler makes up; all of them take some seconds in a build with debug
/// assertions.
const SCHEDULES: usize = 3_000;

#[test]
fn no_interleaving_loses_a_slot_or_hands_one_out_twice() {
    finds_nothing(SCHEDULES, clusters_change_hands);
    finds_nothing(SCHEDULES, caches_are_given_up);
}

#[test]
fn mistakes_with_slots_are_found() {
    let clusters = [Bug::ClusterNotSettled, Bug::GrowTogether];
    finds_each(&clusters, SCHEDULES, clusters_change_hands);
    let caches = [Bug::CachingLookedTooEarly, Bug::CacheClearedLate];
    finds_each(&caches, SCHEDULES, caches_are_given_up);
}
