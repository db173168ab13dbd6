//! What is told of each job: families of metrics, with their samples.
//!
//! Names follow the conventions of Prometheus: base units, `_total` behind what only grows. Those
//! that are counted by a job's processes together come from counters that are only added to.

use crate::control::look::Look;
use crate::control::protocol::{Process, SwapDevice, Traffic};
use overspill::stats::{Counter, FaultSource, Histogram};
use overspill::units::PAGE_SIZE;
use std::collections::BTreeMap;

/// What kind of figure it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It only grows.
    Total,
    /// It is in the labels.
    Info,
    /// Counts by size.
    Histogram,
}

/// What it is measured in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// It is counted.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// A figure.
#[derive(Clone, PartialEq, Debug)]
pub enum Figure {
    /// Of a gauge or a counter.
    Whole(u64),
    /// Likewise.
    Fraction(f64),
    /// Of an info.
    Labels,
    /// Of a histogram.
    Times(Histogram),
}

/// Labels in their order.
pub type Labels = Vec<(&'static str, String)>;

/// A figure with what it is about.
pub type Labelled = (Labels, Figure);

/// A family of metrics.
pub struct Family {
    /// Its name, without prefix, unit and suffix.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Its kind.
    pub kind: Kind,
    /// What it means.
    pub help: &'static str,
    /// Those of a job. The label of the job comes before theirs.
    pub samples: fn(&Look) -> Vec<Labelled>,
}

const fn family(
    name: &'static str,
    unit: Unit,
    kind: Kind,
    help: &'static str,
    samples: fn(&Look) -> Vec<Labelled>,
) -> Family {
    Family { name, unit, kind, help, samples }
}

/// Where pages are that are in memory. They are apart from each other, so that the sum of them is
/// what the job holds there.
const HELD: [(&str, Counter); 4] = [
    ("resident", Counter::ResidentPages),
    ("cache", Counter::SwapCachePages),
    ("compressed", Counter::CompressedPages),
    ("same_filled", Counter::SameFilledPages),
];
/// Where pages came from.
const IN: [(&str, Counter); 3] =
    [("cache", Counter::CacheIn), ("compressed", Counter::ZswpIn), ("device", Counter::PswpIn)];
/// Where they went.
const OUT: [(&str, Counter); 3] = [
    ("compressed", Counter::ZswpOut),
    ("same_filled", Counter::SameFilledOut),
    ("device", Counter::PswpOut),
];

/// All of them, in the order in which they are told.
pub const FAMILIES: &[&[Family]] = &[&JOB, &MEMORY, &FAULTS, &RECLAIM, &DEVICES, &PROCESSES];

const JOB: [Family; 6] = {
    use {Kind::*, Unit::*};
    [
        family("job", None, Info, "What the job runs.", |look| {
            vec![(vec![("command", look.command.clone())], Figure::Labels)]
        }),
        family("job_elapsed", Seconds, Gauge, "Time since the job began.", |look| {
            seconds_of(look.stats.elapsed_us)
        }),
        family("processes", None, Gauge, "Living processes with managed memory.", |look| {
            whole(look.stats.processes)
        }),
        family("forks", None, Total, "Forks of processes with managed memory.", |look| {
            counted(look, Counter::Forks)
        }),
        family(
            "pressure_waiting",
            Seconds,
            Total,
            "Time in which at least one thread waited for memory.",
            |look| seconds_of(look.stats.pressure().some.total_us),
        ),
        family(
            "pressure_stalled",
            Seconds,
            Total,
            "Time in which threads waited for memory and none got on.",
            |look| seconds_of(look.stats.pressure().full.total_us),
        ),
    ]
};

const MEMORY: [Family; 7] = {
    use {Kind::*, Unit::*};
    [
        family("budget", Bytes, Gauge, "Budget of the job.", |look| {
            whole(look.budget.memory_bytes)
        }),
        family(
            "used",
            Bytes,
            Gauge,
            "What of the budget is in use, with memory that is not managed.",
            |look| whole(look.budget.used_bytes),
        ),
        family(
            "unmanaged",
            Bytes,
            Gauge,
            "Memory that is not managed: stacks, shared memory, tables.",
            |look| counted(look, Counter::UnmanagedBytes),
        ),
        family(
            "held",
            Bytes,
            Gauge,
            "Pages in memory by where they are, by their own size.",
            |l| tiers(l, &HELD),
        ),
        family(
            "compressed_pool",
            Bytes,
            Gauge,
            "Memory that compressed pages take, with what is lost between them.",
            |look| counted(look, Counter::CompressedPoolBytes),
        ),
        family("swapped_in", Bytes, Total, "Pages brought in by where they were.", |look| {
            tiers(look, &IN)
        }),
        family("swapped_out", Bytes, Total, "Pages taken out by where they went.", |look| {
            tiers(look, &OUT)
        }),
    ]
};

const FAULTS: [Family; 5] = {
    use {Kind::*, Unit::*};
    [
        family("faults", None, Total, "Faults served.", |look| counted(look, Counter::PgFault)),
        family("major_faults", None, Total, "Faults that read a device.", |look| {
            counted(look, Counter::PgMajFault)
        }),
        family(
            "fault_duration",
            Seconds,
            Histogram,
            "How long faults took to serve, by where their page came from.",
            |look| {
                let latency = look.stats.latency();
                let times = |source: FaultSource| {
                    let labels = vec![("tier", source.name().to_owned())];
                    (labels, Figure::Times(latency.of(source).clone()))
                };
                FaultSource::ALL.map(times).into()
            },
        ),
        family(
            "fault_errors",
            None,
            Total,
            "Faults that failed: an unreadable page, or no room.",
            |look| counted(look, Counter::FaultErrors),
        ),
        family(
            "oom_kills",
            None,
            Total,
            "Processes that were killed because there was no room.",
            |look| counted(look, Counter::OomKill),
        ),
    ]
};

const RECLAIM: [Family; 7] = {
    use {Kind::*, Unit::*};
    [
        family("reclaimed_background", Bytes, Total, "Freed by background reclaim.", |look| {
            pages(look, Counter::PgStealKswapd)
        }),
        family("reclaimed_direct", Bytes, Total, "Freed by threads that faulted.", |look| {
            pages(look, Counter::PgStealDirect)
        }),
        family("reclaimed_requested", Bytes, Total, "Freed because somebody asked.", |look| {
            pages(look, Counter::PgStealProactive)
        }),
        family(
            "direct_reclaims",
            None,
            Total,
            "Times that a fault had to reclaim for itself.",
            |look| counted(look, Counter::AllocStall),
        ),
        family(
            "refaulted",
            Bytes,
            Total,
            "Pages that came back from a device, and had left memory not long before.",
            |look| pages(look, Counter::WorkingsetRefault),
        ),
        family("readahead", Bytes, Total, "Pages read from devices ahead of need.", |look| {
            pages(look, Counter::SwapRa)
        }),
        family("readahead_hit", Bytes, Total, "Pages of those that were wanted then.", |look| {
            pages(look, Counter::SwapRaHit)
        }),
    ]
};

const DEVICES: [Family; 9] = {
    use {Kind::*, Unit::*};
    [
        family("swap_size", Bytes, Gauge, "Size of a swap device.", |look| {
            devices(look, |device, _| device.size_bytes)
        }),
        family("swap_used", Bytes, Gauge, "What of a swap device is in use.", |look| {
            devices(look, |device, _| device.used_bytes)
        }),
        family("swap_read", Bytes, Total, "Read from a swap device.", |look| {
            devices(look, |_, traffic| traffic.read_bytes)
        }),
        family("swap_written", Bytes, Total, "Written to a swap device.", |look| {
            devices(look, |_, traffic| traffic.written_bytes)
        }),
        family("swap_reads", None, Total, "Read operations on a swap device.", |look| {
            devices(look, |_, traffic| traffic.reads)
        }),
        family("swap_writes", None, Total, "Write operations on a swap device.", |look| {
            devices(look, |_, traffic| traffic.writes)
        }),
        family("swap_read_errors", None, Total, "Reads that failed for good.", |look| {
            devices(look, |_, traffic| traffic.read_errors)
        }),
        family("swap_write_errors", None, Total, "Writes that failed.", |look| {
            devices(look, |_, traffic| traffic.write_errors)
        }),
        family(
            "swap_checksum_errors",
            None,
            Total,
            "Pages that came back from a device other than they were written.",
            |look| devices(look, |_, traffic| traffic.checksum_errors),
        ),
    ]
};

const PROCESSES: [Family; 8] = {
    use {Kind::*, Unit::*};
    [
        family("process", None, Info, "What a process runs.", |look| {
            processes(look, |process| (vec![("command", process.name.clone())], Figure::Labels))
        }),
        family("process_used", Bytes, Gauge, "What a process has of the budget.", |look| {
            each(look, |process| process.used_bytes)
        }),
        family("process_limit", Bytes, Gauge, "What of the budget a process may have.", |look| {
            each(look, |process| process.limit_bytes)
        }),
        family("process_resident", Bytes, Gauge, "Mapped pages of a process.", |look| {
            each(look, |process| process.figures.resident_bytes)
        }),
        family(
            "process_compressed",
            Bytes,
            Gauge,
            "Its compressed pages, by their size.",
            |look| each(look, |process| process.figures.compressed_bytes),
        ),
        family("process_swap", Bytes, Gauge, "Its space of swap devices.", |look| {
            each(look, |process| process.figures.swap_bytes)
        }),
        family("process_faults", None, Total, "Faults since its program began.", |look| {
            each(look, |process| process.figures.faults)
        }),
        family("process_major_faults", None, Total, "Those that read a device.", |look| {
            each(look, |process| process.figures.major_faults)
        }),
    ]
};

fn whole(figure: u64) -> Vec<Labelled> {
    vec![(Vec::new(), Figure::Whole(figure))]
}

fn seconds_of(us: u64) -> Vec<Labelled> {
    vec![(Vec::new(), Figure::Fraction(us as f64 / 1e6))]
}

fn counter(look: &Look, counter: Counter) -> u64 {
    look.stats.counters.get(counter.name()).copied().unwrap_or(0)
}

fn counted(look: &Look, name: Counter) -> Vec<Labelled> {
    whole(counter(look, name))
}

fn in_bytes(look: &Look, name: Counter) -> u64 {
    counter(look, name).saturating_mul(PAGE_SIZE as u64)
}

fn pages(look: &Look, name: Counter) -> Vec<Labelled> {
    whole(in_bytes(look, name))
}

fn tiers(look: &Look, tiers: &[(&'static str, Counter)]) -> Vec<Labelled> {
    let tier = |(tier, name): &(&'static str, Counter)| {
        (vec![("tier", (*tier).to_owned())], Figure::Whole(in_bytes(look, *name)))
    };
    tiers.iter().map(tier).collect()
}

/// Those of each device by its path. Of several in one directory, which have the same, the sum.
fn devices(look: &Look, figure: fn(&SwapDevice, &Traffic) -> u64) -> Vec<Labelled> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for device in &look.swaps {
        let traffic = look.stats.devices.get(&device.id).copied().unwrap_or_default();
        let sum = sums.entry(&device.path).or_default();
        *sum = sum.saturating_add(figure(device, &traffic));
    }
    let sample = |(path, sum): (&str, u64)| (vec![("device", path.to_owned())], Figure::Whole(sum));
    sums.into_iter().map(sample).collect()
}

fn processes(look: &Look, sample: impl Fn(&Process) -> Labelled) -> Vec<Labelled> {
    let named = |process: &Process| {
        let (labels, figure) = sample(process);
        let number = ("process", process.pid.to_string());
        ([number].into_iter().chain(labels).collect(), figure)
    };
    look.budget.largest.iter().map(named).collect()
}

fn each(look: &Look, figure: fn(&Process) -> u64) -> Vec<Labelled> {
    processes(look, |process| (Vec::new(), Figure::Whole(figure(process))))
}
