//! `swap-w-seq`: threads write more than fits, and read it back, as swap-w-seq of vm-scalability
//! does.

use crate::measure::counters::{Counted, add};
use crate::measure::host::Machine;
use crate::measure::{Failure, Sample, pool, threads};
use overspill::slot::CLUSTER_SLOTS;
use overspill::units::{Bytes, PAGE_SIZE};
use overspill::{Pool, Region};
use overspill_bench::contents::WORDS;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Pages that went out (or came in) a second.
pub const RATE: &str = "pages_per_s";
/// The longest of the times that a page takes at a kind of lock, one page after another, in
/// nanoseconds: the time that locks of the kind are held for each page, divided by how many are in
/// use side by side ([`Sharing::side_by_side`]). Holds of more than 50 us do not count: their
/// holder was interrupted, which a machine with processors enough would not do.
pub const SERIAL: &str = "serial_ns_per_page_max";
/// Pages a second at which the locks of that kind are held all the time.
pub const SATURATION: &str = "saturation_pages_per_s";
/// [`SERIAL`] of the locks of slots, clusters and the swap cache alone, were they in use evenly
/// ([`Sharing::if_spread`]).
pub const SPREAD: &str = "swap_serial_ns_per_page_if_spread";
/// The share of the time of all threads that can run at once which went into waiting for locks of
/// slots, clusters and the swap cache, and holding them.
pub const SHARE: &str = "swap_locks_ratio";

/// A part of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Pages are written, others go out.
    Out,
    /// Pages are read, and come in; others go out.
    In,
}

impl Phase {
    /// A figure of this phase.
    pub fn figure(self, name: &str) -> String {
        match self {
            Phase::Out => name.to_owned(),
            Phase::In => format!("in.{name}"),
        }
    }
}

/// A kind of lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Its counter; those of waiting and holding begin with the same name.
    pub name: &'static str,
    /// What it is called for people.
    pub title: &'static str,
    /// Whether it has to do with swap.
    pub of_swap: bool,
}

/// All kinds.
pub const LOCKS: [Lock; 5] = [
    Lock { name: "slot_lock", title: "slots", of_swap: true },
    Lock { name: "cluster_lock", title: "clusters", of_swap: true },
    Lock { name: "swap_cache_lock", title: "index", of_swap: true },
    Lock { name: "swap_ages_lock", title: "ages", of_swap: true },
    Lock { name: "zone_lock", title: "zone", of_swap: false },
];

impl Lock {
    /// The figure `name` of this kind.
    pub fn figure(self, name: &str) -> String {
        format!("locks.{}.{name}", self.name)
    }
}

/// What shares a lock of the swap cache, and a cluster of slots.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    /// Each processor takes slots from a cluster of its own.
    cpu_clusters: bool,
    /// How much swap space, or how many bytes of frames, share a lock of the swap cache; none if
    /// all do.
    partition: Option<usize>,
}

impl Sharing {
    /// As settings of a pool say.
    fn of(settings: &str) -> Sharing {
        let value = |key: &str| {
            settings.split(',').find_map(|one| one.strip_prefix(key)?.strip_prefix('='))
        };
        let partition = value("cache.partition").and_then(|size| size.parse::<Bytes>().ok());
        Sharing {
            cpu_clusters: value("slot.cpu_cluster") == Some("on"),
            partition: partition.map(|bytes| bytes.0 as usize),
        }
    }

    /// How many locks of a kind are in use side by side while `running` threads swap memory in
    /// sequence: what follows from where their slots lie. Slots that go out at one time come from
    /// the current clusters: one of the device, or one of each processor; they come back in the
    /// order in which they went. So only as many locks of the swap cache's index are in use as
    /// cover the current clusters, which lie side by side, however many there are in all. Frames
    /// come from one zone, and those of all threads from the same part of it, so that one list by
    /// age is in use.
    fn side_by_side(self, lock: Lock, running: usize) -> usize {
        let clusters = if self.cpu_clusters { running } else { 1 };
        let clusters_of = |bytes: usize| bytes / (CLUSTER_SLOTS * PAGE_SIZE);
        match lock.name {
            "cluster_lock" => clusters,
            "swap_cache_lock" => {
                self.partition.map_or(1, |bytes| clusters.div_ceil(clusters_of(bytes)))
            }
            _ => 1,
        }
    }

    /// The same if what is swapped at one time were spread evenly over all of it, the swap space
    /// and the frames of `bytes` bytes: the most that partitions can do, where
    /// [`Sharing::side_by_side`] is what they do here.
    fn if_spread(self, lock: Lock, running: usize, bytes: u64) -> usize {
        match (lock.name, self.partition) {
            ("swap_cache_lock" | "swap_ages_lock", Some(partition)) => {
                (bytes as usize).div_ceil(partition)
            }
            _ => self.side_by_side(lock, running),
        }
    }
}

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
    let mut wrong = 0_u64;
    timed(&pool, Phase::In, &request, &mut sample, || {
        let timed = threads::each(&mut shares, |share| share.wrong_pages());
        wrong = timed.results.into_iter().sum();
        timed.elapsed
    })?;
    pool::right(wrong)?;
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
    let after = pool.stats();
    let running = request.threads.min(Machine::this().cpus);
    let counted = Counted { before: &before.counters, after: &after.counters };
    add_counted(sample, phase, elapsed, running, counted)?;
    let bytes = request.memory.min(request.beyond);
    add_serial(sample, phase, Sharing::of(&request.settings), running, bytes);
    Ok(())
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
    fn wrong_pages(&self) -> u64 {
        let pages = self.region.as_slice::<u64>().chunks_exact(WORDS);
        let firsts = (self.first..).step_by(WORDS);
        pages
            .zip(firsts)
            .filter(|(page, first)| {
                page[0] != *first || page[WORDS - 1] != first + WORDS as u64 - 1
            })
            .count() as u64
    }
}

/// Adds the time that each kind of lock takes a page one after another, and the longest of them,
/// which limits how many pages move however many processors there are. `bytes` are how much swap
/// space and frames are in use, the less of them.
fn add_serial(sample: &mut Sample, phase: Phase, sharing: Sharing, running: usize, bytes: u64) {
    let (mut longest, mut spread): (f64, f64) = (0.0, 0.0);
    for lock in LOCKS {
        let Some(hold_ns) = sample.get(&phase.figure(&lock.figure("short_hold_ns"))).copied()
        else {
            continue;
        };
        let serial = hold_ns / 1000.0 / sharing.side_by_side(lock, running) as f64;
        sample.insert(phase.figure(&lock.figure("serial_ns_per_page")), serial);
        longest = longest.max(serial);
        if lock.of_swap {
            spread = spread.max(hold_ns / 1000.0 / sharing.if_spread(lock, running, bytes) as f64);
        }
    }
    if longest > 0.0 {
        sample.insert(phase.figure(SERIAL), longest);
        sample.insert(phase.figure(SATURATION), 1e9 / longest);
        sample.insert(phase.figure(SPREAD), spread);
    }
}

/// Adds what a pool counted while the threads, of which `running` can run at once, worked for
/// `elapsed`.
fn add_counted(
    sample: &mut Sample,
    phase: Phase,
    elapsed: Duration,
    running: usize,
    counted: Counted<'_>,
) -> Result<(), Failure> {
    let (moved, kib, ops) = match phase {
        Phase::Out => ("pswpout", "so_kib_per_s", "pswpout_ops"),
        Phase::In => ("pswpin", "si_kib_per_s", "pswpin_ops"),
    };
    let pages = counted.get(moved).filter(|pages| *pages > 0.0).ok_or_else(|| {
        Failure::new(format!(
            "no page was counted as {moved}: measure a larger --size or a smaller --memory"
        ))
    })?;
    let seconds = elapsed.as_secs_f64();
    let mut figures: Vec<(String, f64)> = vec![
        (RATE.to_owned(), pages / seconds),
        (kib.to_owned(), pages * (PAGE_SIZE as f64 / 1024.0) / seconds),
    ];
    let each = counted.get(ops).map(|ops| pages / ops.max(1.0));
    figures.extend(each.map(|pages| ("pages_per_operation".to_owned(), pages)));
    let mut in_locks_ns = 0.0;
    for lock in LOCKS {
        let of = counted.lock(lock.name, pages);
        figures.extend(of.into_iter().map(|(name, value)| (lock.figure(name), value)));
        if lock.of_swap {
            in_locks_ns += counted.count(&format!("{}_wait_ns", lock.name))
                + counted.count(&format!("{}_hold_ns", lock.name));
        }
    }
    figures.push((SHARE.to_owned(), in_locks_ns / 1e9 / (seconds * running as f64)));
    add(sample, figures.into_iter().map(|(name, value)| (phase.figure(&name), value)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::counters::Counters;

    fn sharing(partition: &str, clusters: &str) -> Sharing {
        Sharing::of(&format!("x=1,cache.partition={partition},slot.cpu_cluster={clusters}"))
    }

    const BEFORE: [(&str, u64); 11] = [
        ("pswpout", 1000),
        ("pswpout_ops", 10),
        ("slot_lock", 5),
        ("slot_lock_contended", 0),
        ("slot_lock_wait_ns", 7),
        ("slot_lock_hold_ns", 9),
        ("slot_lock_long_ns", 3),
        ("cluster_lock", 0),
        ("cluster_lock_contended", 0),
        ("cluster_lock_wait_ns", 0),
        ("cluster_lock_hold_ns", 0),
    ];

    fn measured() -> Sample {
        let before = Counters::from(BEFORE);
        let mut after = before.clone();
        let counted = [
            ("pswpout", 2000),
            ("pswpout_ops", 20),
            ("slot_lock", 40),
            ("slot_lock_contended", 10),
            ("slot_lock_wait_ns", 3_000_000),
            ("slot_lock_hold_ns", 1_000_000),
            ("slot_lock_long_ns", 200_000),
            ("cluster_lock", 4000),
            ("cluster_lock_hold_ns", 6_000_000),
        ];
        counted.iter().for_each(|(name, n)| *after.get_mut(name).unwrap() += n);
        let mut sample = Sample::new();
        let counted = Counted { before: &before, after: &after };
        add_counted(&mut sample, Phase::Out, Duration::from_millis(500), 4, counted).unwrap();
        sample
    }

    #[test]
    fn figures_are_what_was_counted_in_between() {
        let sample = measured();
        let names = [RATE, "so_kib_per_s", "pages_per_operation", "locks.slot_lock.hold_ns", SHARE];
        let expected = [4000.0, 16_000.0, 100.0, 500_000.0, 0.005];
        assert_eq!(names.map(|name| sample[name]), expected);
    }

    #[test]
    fn the_longest_serial_time_is_that_of_a_lock_or_of_its_share() {
        let mut sample = measured();
        add_serial(&mut sample, Phase::Out, sharing("device", "off"), 8, 64 << 20);
        assert_eq!((sample[SERIAL], sample["locks.slot_lock.serial_ns_per_page"]), (3000.0, 400.0));
        add_serial(&mut sample, Phase::Out, sharing("64M", "on"), 8, 64 << 20);
        assert_eq!((sample[SERIAL], sample[SATURATION]), (400.0, 2.5e6));
        assert!(
            !sample.contains_key("locks.zone_lock.serial_ns_per_page"),
            "what was not counted is not told"
        );
    }

    #[test]
    fn without_a_page_there_is_nothing_to_tell() {
        let counters = Counters::from(BEFORE);
        let one = Duration::from_secs(1);
        for phase in [Phase::Out, Phase::In] {
            let counted = Counted { before: &counters, after: &counters };
            let failure = add_counted(&mut Sample::new(), phase, one, 1, counted).unwrap_err();
            assert!(failure.to_string().contains("larger --size"), "{failure}");
        }
        assert_eq!(
            (Phase::Out.figure("x"), Phase::In.figure("x")),
            ("x".to_owned(), "in.x".to_owned())
        );
    }

    #[test]
    fn only_what_lies_apart_is_used_side_by_side() {
        let of = |partition: &str, clusters: &str, running| {
            let sharing = sharing(partition, clusters);
            LOCKS.map(|lock| sharing.side_by_side(lock, running))
        };
        assert_eq!(of("64M", "off", 16), [1, 1, 1, 1, 1]);
        assert_eq!(of("64M", "on", 16), [1, 16, 1, 1, 1]);
        assert_eq!(of("64M", "on", 40), [1, 40, 2, 1, 1]);
        assert_eq!(of("2M", "on", 16), [1, 16, 16, 1, 1]);
        let spread = |partition: &str, clusters: &str| {
            let sharing = sharing(partition, clusters);
            LOCKS.map(|lock| sharing.if_spread(lock, 2, 128 << 20))
        };
        assert_eq!(spread("device", "off"), [1, 1, 1, 1, 1]);
        assert_eq!(spread("64M", "off"), [1, 1, 2, 2, 1]);
        assert_eq!(spread("2M", "on"), [1, 2, 64, 64, 1]);
    }
}
