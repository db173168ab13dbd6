//! `swap-w-seq`: threads write more than fits, and read it back, as swap-w-seq of vm-scalability
//! does.

use crate::measure::*;
use overspill::Region;
use overspill::slot::CLUSTER_SLOTS;
use overspill::units::{Bytes, PAGE_SIZE};
use overspill_bench::contents::WORDS;
use std::time::Duration;

/// What the figures of pages that come in, while others go out, begin with; those of pages that
/// go out begin with nothing.
const IN: &str = "in.";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Its counter; those of waiting and holding begin with the same name.
    pub name: &'static str,
    /// What it is called for people.
    pub title: &'static str,
    /// Whether it has to do with swap.
    pub of_swap: bool,
}

pub const LOCKS: [Lock; 5] = [
    Lock { name: "slot_lock", title: "slots", of_swap: true },
    Lock { name: "cluster_lock", title: "clusters", of_swap: true },
    Lock { name: "swap_cache_lock", title: "index", of_swap: true },
    Lock { name: "swap_ages_lock", title: "lru", of_swap: true },
    Lock { name: "zone_lock", title: "zone", of_swap: false },
];

/// What shares a lock of the swap cache, and a cluster of slots, while memory is swapped.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    /// Threads that can run at once.
    running: usize,
    /// How much swap space and frames are in use, the less of them.
    bytes: u64,
    /// Each processor takes slots from a cluster of its own.
    cpu_clusters: bool,
    /// How much swap space, or how many bytes of frames, share a lock of the swap cache; none if
    /// all do.
    partition: Option<usize>,
}

impl Sharing {
    /// As settings of a pool say.
    fn of(settings: &str, running: usize, bytes: u64) -> Sharing {
        let value = |key: &str| {
            settings.split(',').find_map(|one| one.strip_prefix(key)?.strip_prefix('='))
        };
        let partition = value("cache.partition").and_then(|size| size.parse::<Bytes>().ok());
        Sharing {
            running,
            bytes,
            cpu_clusters: value("slot.cpu_cluster") == Some("on"),
            partition: partition.map(|bytes| bytes.0 as usize),
        }
    }

    /// How many locks of a kind are in use side by side while the threads swap memory in
    /// sequence: what follows from where their slots lie. Slots that go out at one time come from
    /// the current clusters: one of the device, or one of each processor; they come back in the
    /// order in which they went. So only as many locks of the swap cache's index are in use as
    /// cover the current clusters, which lie side by side, however many there are in all. Frames
    /// come from one zone, and those of all threads from the same part of it, so that one LRU
    /// list is in use.
    fn side_by_side(self, lock: Lock) -> usize {
        let clusters = if self.cpu_clusters { self.running } else { 1 };
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
    /// and the frames: the most that partitions can do, where [`Sharing::side_by_side`] is what
    /// they do here.
    fn if_spread(self, lock: Lock) -> usize {
        match (lock.name, self.partition) {
            ("swap_cache_lock" | "swap_ages_lock", Some(partition)) => {
                (self.bytes as usize).div_ceil(partition)
            }
            _ => self.side_by_side(lock),
        }
    }
}

/// What one thread works on.
struct Share<'a> {
    region: Region<'a>,
    /// The first words of its own.
    first: u64,
    /// Pages that are written before anything is timed.
    head: usize,
}

/// Measures in this process, which does nothing else. `bytes` are what all threads together
/// write beyond the budget.
pub fn measure_one(request: pool::Request) -> Result<Sample, Failure> {
    let pool = request.pool()?;
    let pages = |bytes: u64| (bytes as usize / request.threads / PAGE_SIZE).max(1);
    let (head, tail) = (pages(request.memory), pages(request.bytes));
    let share = |index: usize| {
        let region = pool::map(&pool, ((head + tail) * PAGE_SIZE) as u64)?;
        Ok(Share { region, first: ((index * (head + tail)) * WORDS) as u64, head })
    };
    let mut shares: Vec<Share<'_>> =
        (0..request.threads).map(share).collect::<Result<_, Failure>>()?;
    let running = request.threads.min(Machine::this().cpus);
    let sharing = Sharing::of(&request.settings, running, request.memory.min(request.bytes));
    let mut sample = Sample::new();
    // 1. The budget is used up.
    threads::each(&mut shares, |share| share.write(0, share.head));
    // 2. Every page written pushes one out.
    let (timed, counted) = Counted::during(&pool, || threads::each(&mut shares, Share::write_tail));
    add_counted(&mut sample, "", timed.elapsed, &counted, sharing)?;
    // 3. All is read back from its beginning, which pushes out what was written last.
    let (timed, counted) =
        Counted::during(&pool, || threads::each(&mut shares, |share| share.wrong_pages()));
    add_counted(&mut sample, IN, timed.elapsed, &counted, sharing)?;
    pool::right(timed.results.into_iter().sum())?;
    Ok(sample)
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

/// Adds what a pool counted while the threads worked for `elapsed`, with the time that each kind of
/// lock takes a page one after another, and the longest of them, which limits how many pages move
/// however many processors there are. Holds of more than 50 us do not count for these: their holder
/// was interrupted, which a machine with processors enough would not do.
fn add_counted(
    sample: &mut Sample,
    phase: &str,
    elapsed: Duration,
    counted: &Counted,
    sharing: Sharing,
) -> Result<(), Failure> {
    let (moved, kib) =
        if phase == IN { ("pswpin", "si_kib_per_s") } else { ("pswpout", "so_kib_per_s") };
    let pages = counted.count(moved);
    if pages == 0.0 {
        fail!("no page was counted as {moved}: measure a larger --size or a smaller --memory");
    }
    let (mut in_locks_ns, mut longest, mut spread): (f64, f64, f64) = (0.0, 0.0, 0.0);
    for lock in LOCKS {
        let mut figures = counted.lock(lock.name, pages);
        if let Some((_, hold_ns)) = figures.iter().find(|(name, _)| *name == "short_hold_ns") {
            let ns = hold_ns / 1000.0;
            // Nanoseconds that locks of the kind are held for each page, divided by how many are in
            // use side by side.
            let serial = ns / sharing.side_by_side(lock) as f64;
            longest = longest.max(serial);
            if lock.of_swap {
                spread = spread.max(ns / sharing.if_spread(lock) as f64);
            }
            figures.push(("serial_ns_per_page", serial));
        }
        if lock.of_swap {
            let ns = ["wait_ns", "hold_ns"].map(|end| format!("{}_{end}", lock.name));
            in_locks_ns += ns.iter().map(|name| counted.count(name)).sum::<f64>();
        }
        let of = |(name, value)| (format!("{phase}locks.{}.{name}", lock.name), value);
        add(sample, figures.into_iter().map(of));
    }
    let seconds = elapsed.as_secs_f64();
    let operations = counted.count(&format!("{moved}_ops"));
    let mut figures = vec![
        // Pages that went out (or came in) a second.
        ("pages_per_s", pages / seconds),
        (kib, pages * (PAGE_SIZE as f64 / 1024.0) / seconds),
        ("pages_per_operation", pages / operations.max(1.0)),
        // The share of the time of all threads that can run at once which went into waiting for
        // locks of slots, clusters and the swap cache, and holding them.
        ("swap_locks_ratio", in_locks_ns / 1e9 / (seconds * sharing.running as f64)),
    ];
    if longest > 0.0 {
        figures.extend([
            ("serial_ns_per_page_max", longest),
            // Pages a second at which the locks of that kind are held all the time.
            ("saturation_pages_per_s", 1e9 / longest),
            // The longest of the locks of slots, clusters and the swap cache alone, were they in
            // use evenly.
            ("swap_serial_ns_per_page_if_spread", spread),
        ]);
    }
    add(sample, figures.into_iter().map(|(name, value)| (format!("{phase}{name}"), value)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn sharing(partition: &str, clusters: &str, running: usize, bytes: u64) -> Sharing {
        let settings = format!("x=1,cache.partition={partition},slot.cpu_cluster={clusters}");
        Sharing::of(&settings, running, bytes)
    }

    #[test]
    fn the_longest_serial_time_is_that_of_a_lock_or_of_its_share() {
        let counted = fixture::counted(&[
            ("pswpout", 1000, 3000),
            ("pswpout_ops", 10, 30),
            ("slot_lock", 5, 45),
            ("slot_lock_wait_ns", 7, 3_000_007),
            ("slot_lock_hold_ns", 9, 1_000_009),
            ("slot_lock_long_ns", 3, 200_003),
            ("cluster_lock", 0, 4000),
            ("cluster_lock_hold_ns", 0, 6_000_000),
        ]);
        let mut sample = Sample::new();
        let mut tell = |phase: &str, sharing: Sharing| {
            add_counted(&mut sample, phase, Duration::from_millis(500), &counted, sharing)
                .map(|()| sample.clone())
        };
        let failure = tell(IN, sharing("device", "off", 1, 64 << 20)).unwrap_err().to_string();
        assert!(failure.starts_with("no page was counted as pswpin: measure a larger --size"));
        let sample = tell("", sharing("device", "off", 8, 64 << 20)).unwrap();
        for (name, expected) in [
            ("pages_per_s", Some(4000.0)),
            ("so_kib_per_s", Some(16_000.0)),
            ("pages_per_operation", Some(100.0)),
            ("locks.slot_lock.hold_ns", Some(500_000.0)),
            ("swap_locks_ratio", Some(0.0025)),
            ("locks.slot_lock.serial_ns_per_page", Some(400.0)),
            ("locks.zone_lock.serial_ns_per_page", None),
            ("serial_ns_per_page_max", Some(3000.0)),
        ] {
            assert_eq!(sample.get(name).copied(), expected, "{name}");
        }
        let sample = tell("", sharing("64M", "on", 8, 64 << 20)).unwrap();
        let limit = ["serial_ns_per_page_max", "saturation_pages_per_s"].map(|name| sample[name]);
        assert_eq!(limit, [400.0, 2.5e6]);
    }

    #[test]
    fn only_what_lies_apart_is_used_side_by_side() {
        let of = |partition: &str, clusters: &str, running| {
            let sharing = sharing(partition, clusters, running, 0);
            LOCKS.map(|lock| sharing.side_by_side(lock))
        };
        assert_eq!(of("64M", "off", 16), [1, 1, 1, 1, 1]);
        assert_eq!(of("64M", "on", 16), [1, 16, 1, 1, 1]);
        assert_eq!(of("64M", "on", 40), [1, 40, 2, 1, 1]);
        assert_eq!(of("2M", "on", 16), [1, 16, 16, 1, 1]);
        let spread = |partition: &str, clusters: &str| {
            let sharing = sharing(partition, clusters, 2, 128 << 20);
            LOCKS.map(|lock| sharing.if_spread(lock))
        };
        assert_eq!(spread("device", "off"), [1, 1, 1, 1, 1]);
        assert_eq!(spread("64M", "off"), [1, 1, 2, 2, 1]);
        assert_eq!(spread("2M", "on"), [1, 2, 64, 64, 1]);
    }
}
