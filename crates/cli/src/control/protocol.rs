//! What is said over the control socket: one line of JSON each way, then the connection is closed.
//!
//! ```text
//! {"version":1,"pid":384,"request":{"set":{"memory_bytes":100663296}}}
//! {"version":1,"reply":{"budget":{"before_bytes":268435456,"memory_bytes":100663296,...}}}
//! ```
//!
//! A new command is a variant of [`Request`], with a variant of [`Reply`] where none fits.
//! [`VERSION`] changes when what is there already changes its meaning. Fields that are not known
//! are passed over, so that fields can be added.

mod swaps;

use crate::rundir::done::Sum;
pub use crate::rundir::done::Traffic;
use overspill::config::Config;
use overspill::stats::{Counter, FaultSource, Histogram, Latencies, Pressure, Snapshot, Stall};
use overspill::units::{Bytes, PAGE_SHIFT};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
pub use swaps::{SwapChange, SwapDevice, SwapName, SwapOutcome};

/// Version of the protocol. Both sides say theirs.
pub const VERSION: u32 = 1;
/// Longest request in bytes, the end of the line included: a command and its few arguments, with a
/// path among them.
pub const REQUEST_MAX: usize = 8 << 10;
/// Longest reply in bytes.
pub const REPLY_MAX: usize = 1 << 20;

/// The most pages whose bytes can be counted: a figure may be anything, the file that it is from is
/// another process's.
const PAGES_MAX: u64 = u64::MAX >> PAGE_SHIFT;

/// A request as it is sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// [`VERSION`] of the sender.
    pub version: u32,
    /// The process that is meant: that of `overspill run`, or any of its job.
    pub pid: u32,
    /// What is wanted.
    pub request: Request,
}

/// What can be asked of a running job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Change its budget. Answered at once, by [`Reply::Budget`].
    Set {
        /// The new budget.
        memory_bytes: u64,
    },
    /// Tell its budget, and how far each process is with it.
    Budget,
    /// Take pages of its processes out of memory, so many bytes together; 0 ends what is under way.
    /// Answered at once, by [`Reply::Reclaim`].
    Reclaim {
        /// How much.
        bytes: u64,
    },
    /// Tell how far the request of that number is.
    Reclaimed {
        /// What [`Reply::Reclaim`] said.
        number: u32,
    },
    /// Tell what its processes have done and hold. Answered by [`Reply::Stats`].
    Stats,
    /// Tell its swap devices. Answered by [`Reply::Swaps`].
    Swaps,
    /// Use one more. Answered at once, by [`Reply::SwapChange`].
    Swapon {
        /// What it is, as in `--swap`, with an absolute path.
        device: String,
    },
    /// Take one out of use. Answered at once, by [`Reply::SwapChange`].
    Swapoff {
        /// Which.
        device: SwapName,
    },
    /// Tell how far such a change is.
    SwapChange {
        /// What [`Reply::SwapChange`] said.
        change: u32,
    },
    /// Use the device as before, which was to be taken out of use. Answered at once, by
    /// [`Reply::SwapChange`].
    CancelSwapoff {
        /// What [`Reply::SwapChange`] said.
        change: u32,
    },
}

/// An answer as it is sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// [`VERSION`] of the sender.
    pub version: u32,
    /// What became of the request.
    pub reply: Reply,
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// How the job stands to its budget.
    Budget(Budget),
    /// How far reclaim on request is.
    Reclaim(ReclaimProgress),
    /// What its processes have done and hold.
    Stats(Box<JobStats>),
    /// Its swap devices, in the order in which they were added.
    Swaps(Vec<SwapDevice>),
    /// How far a change of them is.
    SwapChange(SwapChange),
    /// The process that is meant is not of this job.
    NotMine,
    /// The request makes no sense here; the sentence says why.
    Refused(String),
}

/// How a job stands to its budget.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Budget {
    /// Budget before the request; the same as now, where it changed nothing.
    pub before_bytes: u64,
    /// Budget of all processes together now.
    pub memory_bytes: u64,
    /// What is to be said about it, though it was done.
    pub warning: Option<String>,
    /// Living processes with managed memory.
    pub processes: u64,
    /// How many of them know the budget.
    pub answered: u64,
    /// How many of them use no more than it allows.
    pub reached: u64,
    /// How many of them found nothing more that could be taken out of memory.
    pub stuck: u64,
    /// What all of them use.
    pub used_bytes: u64,
    /// What of it is memory that is not managed.
    pub unmanaged_bytes: u64,
    /// Those that use most, one by one; no more than a reply has room for.
    pub largest: Vec<Process>,
}

impl Budget {
    /// Whether all processes know of it, and use together no more than the budget, or the least
    /// that each has.
    pub fn is_reached(&self) -> bool {
        let pages = self.processes.saturating_mul(Config::MEMORY_MIN.0);
        let least = pages.saturating_add(self.unmanaged_bytes);
        self.answered == self.processes && self.used_bytes <= self.memory_bytes.max(least)
    }
}

/// One process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
    /// What it may use of the budget: less than all if forks share it.
    pub target_bytes: u64,
    /// What it may use for the moment, on the way there.
    pub limit_bytes: u64,
    /// What it uses.
    pub used_bytes: u64,
    /// What it has, and what it has done.
    #[serde(default)]
    pub figures: ProcessFigures,
}

/// What a process has, and what it has done since its program began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessFigures {
    /// Pages that are mapped.
    pub resident_bytes: u64,
    /// Pages that are compressed, by their own size.
    pub compressed_bytes: u64,
    /// Space of swap devices.
    pub swap_bytes: u64,
    /// Memory that is not managed.
    pub unmanaged_bytes: u64,
    /// Faults.
    pub faults: u64,
    /// Those that read a device.
    pub major_faults: u64,
}

impl Process {
    /// From its statistics.
    pub fn new(pid: u32, process: &Snapshot) -> Process {
        let pages = |counter| Bytes::from_pages(process.get(counter) & PAGES_MAX).0;
        Process {
            pid,
            name: process.name.clone(),
            target_bytes: process.target.0,
            limit_bytes: process.get(Counter::LimitBytes),
            used_bytes: process.get(Counter::ChargedBytes),
            figures: ProcessFigures {
                resident_bytes: pages(Counter::ResidentPages),
                compressed_bytes: pages(Counter::CompressedPages),
                swap_bytes: pages(Counter::DevicePages),
                unmanaged_bytes: process.get(Counter::UnmanagedBytes),
                faults: process.get(Counter::PgFault),
                major_faults: process.get(Counter::PgMajFault),
            },
        }
    }
}

/// How far reclaim on request is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReclaimProgress {
    /// Which request.
    pub number: u32,
    /// Whether another has taken its place: then the rest says nothing.
    pub replaced: bool,
    /// What is to be reclaimed; no more than is in use.
    pub wanted_bytes: u64,
    /// What is.
    pub reclaimed_bytes: u64,
    /// Living processes with managed memory.
    pub processes: u64,
    /// How many of them have nothing more to do: all is reclaimed, or they found nothing more.
    pub done: u64,
}

/// What the processes of a job have done and hold, added up.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobStats {
    /// Microseconds since the job began.
    pub elapsed_us: u64,
    /// Living processes with managed memory.
    pub processes: u64,
    /// Counters by name, of processes that have ended too; gauges are those of the living.
    pub counters: BTreeMap<String, u64>,
    /// How much the process waits for memory that waits most.
    pub pressure: [Waited; 2],
    /// Times of faults, for each [`FaultSource`] in its order: buckets of its histogram that are
    /// not empty.
    pub latency: Vec<Vec<(u16, u64)>>,
    /// What was done with each swap device that is in use, by [`SwapDevice::id`].
    #[serde(default)]
    pub devices: BTreeMap<u32, Traffic>,
}

/// A [`Stall`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Waited {
    /// Averages in hundredths of a percent.
    pub avg: [u64; 3],
    /// Microseconds in all.
    pub total_us: u64,
}

impl JobStats {
    /// From the statistics of all processes together.
    pub fn new(elapsed_us: u64, sum: Sum) -> JobStats {
        let Sum { living, total, devices, .. } = sum;
        let waited = |stall: Stall| Waited { avg: stall.avg, total_us: stall.total_us };
        JobStats {
            elapsed_us,
            processes: living,
            devices,
            counters: total
                .counters
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
            pressure: [total.pressure.some, total.pressure.full].map(waited),
            latency: FaultSource::ALL
                .iter()
                .map(|source| total.latency.of(*source).buckets().collect())
                .collect(),
        }
    }

    /// How much the process waits for memory that waits most.
    pub fn pressure(&self) -> Pressure {
        let [some, full] =
            self.pressure.map(|waited| Stall { avg: waited.avg, total_us: waited.total_us });
        Pressure { some, full }
    }

    /// Times of faults.
    pub fn latency(&self) -> Latencies {
        let buckets =
            |source: FaultSource| self.latency.get(source as usize).into_iter().flatten().copied();
        Latencies::new(|source| Histogram::of_buckets(buckets(source)))
    }
}

/// Reads a request; if it makes no sense, a sentence says why.
pub fn parse(line: &[u8]) -> Result<Call, String> {
    // The version first: what another one means by the rest is not known.
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let broken = |error: serde_json::Error| format!("this is no request to overspill: {error}");
    let head: Head = serde_json::from_slice(line).map_err(broken)?;
    if head.version != VERSION {
        return Err(format!(
            "this job's overspill speaks version {VERSION} of the protocol and the command \
             version {}: use the same overspill for both",
            head.version
        ));
    }
    serde_json::from_slice(line).map_err(broken)
}

/// Reads an answer.
///
/// # Errors
/// Where it is none.
pub fn parse_answer(line: &[u8]) -> serde_json::Result<Answer> {
    serde_json::from_slice(line)
}

/// A message as a line.
pub fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages are numbers and text");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::stats::Counter;
    use proptest::prelude::*;

    fn requests() -> impl Strategy<Value = Request> {
        prop_oneof![
            Just(Request::Budget),
            Just(Request::Stats),
            any::<u64>().prop_map(|memory_bytes| Request::Set { memory_bytes }),
            any::<u64>().prop_map(|bytes| Request::Reclaim { bytes }),
            any::<u32>().prop_map(|number| Request::Reclaimed { number }),
            Just(Request::Swaps),
            "/\\PC{0,40}".prop_map(|device| Request::Swapon { device }),
            prop_oneof![
                any::<u32>().prop_map(SwapName::Id),
                "\\PC{0,16}".prop_map(SwapName::Label),
                "\\PC{0,36}".prop_map(SwapName::Uuid),
                (prop::option::of("\\PC{0,36}"), "/\\PC{0,40}")
                    .prop_map(|(text, path)| SwapName::Any { text, path }),
            ]
            .prop_map(|device| Request::Swapoff { device }),
            any::<u32>().prop_map(|change| Request::SwapChange { change }),
            any::<u32>().prop_map(|change| Request::CancelSwapoff { change }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_sent_is_what_is_read(pid in any::<u32>(), request in requests()) {
            let call = Call { version: VERSION, pid, request };
            let sent = line(&call);
            let lines = sent.iter().filter(|byte| **byte == b'\n').count();
            prop_assert!(sent.len() <= REQUEST_MAX && lines == 1);
            prop_assert_eq!(parse(&sent), Ok(call));
        }

        #[test]
        fn garbage_is_refused_with_a_sentence(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            // A line of random bytes is a request with a probability of nothing.
            prop_assert!(parse(&bytes).unwrap_err().starts_with("this is no request"));
        }

        /// Bytes changed, left out, put in, cut off: a request or a sentence, and a request only if
        /// it says so.
        #[test]
        fn damaged_requests_are_read_or_refused(
            pid in any::<u32>(),
            request in requests(),
            damage in prop::collection::vec(
                (any::<prop::sample::Index>(), 0..4, any::<u8>()),
                1..6,
            ),
        ) {
            let mut sent = line(&Call { version: VERSION, pid, request });
            for (at, kind, byte) in damage {
                let at = at.index(sent.len().max(1));
                match kind {
                    _ if sent.is_empty() => {}
                    0 => sent[at] = byte,
                    1 => drop(sent.remove(at)),
                    2 => sent.insert(at, byte),
                    _ => sent.truncate(at),
                }
            }
            match parse(&sent) {
                Ok(call) => prop_assert_eq!(parse(&line(&call)), Ok(call)),
                Err(sentence) => {
                    prop_assert!(!sentence.is_empty() && !sentence.contains('\n'), "{}", sentence);
                }
            }
        }

        /// An answer may be another program's: it is one, or an error, and whatever figures are in
        /// it can be reckoned with.
        #[test]
        fn damaged_answers_are_read_or_refused(
            figures in prop::collection::vec(any::<u64>(), 12),
            buckets in prop::collection::vec((any::<u16>(), any::<u64>()), 0..9),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let waited = |n: usize| Waited {
                avg: [figures[n], figures[n + 1], figures[n + 2]],
                total_us: figures[n + 3],
            };
            let mut stats = JobStats::new(figures[0], Sum { living: figures[1], ..Sum::default() });
            stats.pressure = [waited(2), waited(6)];
            stats.latency = vec![buckets; FaultSource::ALL.len() + 1];
            let budget = Budget {
                processes: figures[0],
                answered: figures[0],
                used_bytes: figures[1],
                unmanaged_bytes: figures[2],
                ..Budget::default()
            };
            for reply in [Reply::Stats(Box::new(stats)), Reply::Budget(budget)] {
                let mut sent = line(&Answer { version: VERSION, reply });
                match parse_answer(&sent).unwrap().reply {
                    Reply::Stats(stats) => {
                        let all = stats.latency().all();
                        let pressure = stats.pressure().to_string();
                        let _ = (all.total_ns(), all.within_ns(999), pressure);
                    }
                    Reply::Budget(budget) => drop(budget.is_reached()),
                    _ => unreachable!(),
                }
                let at = at.index(sent.len());
                sent[at] = byte;
                if let Ok(answer) = parse_answer(&sent) {
                    prop_assert_eq!(parse_answer(&line(&answer)).unwrap(), answer);
                }
            }
        }

        #[test]
        fn values_of_any_shape_are_refused(
            text in "[\\[\\]{}\",:0-9a-z .-]{0,64}",
            depth in 0..5_000_usize,
        ) {
            let _ = parse(text.as_bytes());
            prop_assert!(parse("[".repeat(depth).as_bytes()).is_err());
            let sets = "{\"set\":".repeat(depth);
            let nested = format!("{{\"version\":1,\"pid\":1,\"request\":{sets}");
            prop_assert!(parse(nested.as_bytes()).is_err());
        }
    }

    #[test]
    fn versions_and_commands_of_others_are_named() {
        let refused = |text: &str| parse(text.as_bytes()).unwrap_err();
        assert!(
            refused(r#"{"version":2,"anything":[]}"#)
                .contains("version 1 of the protocol and the command version 2")
        );
        assert!(refused(r#"{"version":1,"pid":1,"request":"dance"}"#).contains("dance"));
        assert!(refused(r#"{"version":1,"pid":-1,"request":"budget"}"#).contains("-1"));
        assert!(refused(r#"{"version":1,"pid":1,"request":{"set":{}}}"#).contains("memory_bytes"));
        // Fields that a later version adds do no harm.
        let call = parse(
            br#"{"version":1,"pid":7,"request":{"set":{"memory_bytes":5,"new":0}},"more":{}}"#,
        );
        assert_eq!(
            call,
            Ok(Call { version: 1, pid: 7, request: Request::Set { memory_bytes: 5 } })
        );
    }

    #[test]
    fn the_longest_reply_has_room() {
        let process = Process { pid: u32::MAX, name: "\u{1}".repeat(32), ..Process::default() };
        let process = Process {
            target_bytes: u64::MAX,
            limit_bytes: u64::MAX,
            used_bytes: u64::MAX,
            figures: ProcessFigures {
                resident_bytes: u64::MAX,
                compressed_bytes: u64::MAX,
                swap_bytes: u64::MAX,
                unmanaged_bytes: u64::MAX,
                faults: u64::MAX,
                major_faults: u64::MAX,
            },
            ..process
        };
        let budget =
            Budget { largest: vec![process; super::super::job::LISTED_MAX], ..Budget::default() };
        assert!(
            line(&Answer { version: VERSION, reply: Reply::Budget(budget) }).len() < REPLY_MAX / 2
        );
        let mut stats = JobStats::new(u64::MAX, Sum { living: u64::MAX, ..Sum::default() });
        let most = u64::MAX;
        let traffic = Traffic {
            read_bytes: most,
            reads: most,
            written_bytes: most,
            writes: most,
            read_errors: most,
            write_errors: most,
            checksum_errors: most,
        };
        stats.devices = (0..overspill::units::SlotId::DEVICES_MAX as u32)
            .map(|id| (u32::MAX - id, traffic))
            .collect();
        stats.counters =
            Counter::ALL.iter().map(|counter| (counter.name().to_owned(), u64::MAX)).collect();
        stats.latency = vec![vec![(u16::MAX, u64::MAX); 400]; FaultSource::ALL.len()];
        assert!(
            line(&Answer { version: VERSION, reply: Reply::Stats(Box::new(stats)) }).len()
                < REPLY_MAX / 2
        );
        // A path is 4096 bytes at most, and without control characters where the list of devices
        // can carry it.
        let device = SwapDevice {
            path: "\"".repeat(4096),
            label: Some("\"".repeat(16)),
            ..SwapDevice::default()
        };
        let swaps = Reply::Swaps(vec![device; overspill::units::SlotId::DEVICES_MAX]);
        assert!(line(&Answer { version: VERSION, reply: swaps }).len() < REPLY_MAX);
    }

    #[test]
    fn statistics_arrive_as_they_were() {
        let mut total = Snapshot::default();
        total.counters.insert(Counter::PgFault.name(), 7);
        total.latency = Latencies::new(|source| Histogram::of_buckets([(20 + source as u16, 3)]));
        total.pressure.full = Stall { avg: [1, 2, 3], total_us: 4 };
        let devices = [(3, Traffic { reads: 8, ..Traffic::default() })].into();
        let sum = Sum { living: 6, total: total.clone(), devices, peak: 0 };
        let sent = line(&JobStats::new(5, sum));
        let stats: JobStats = serde_json::from_slice(&sent).unwrap();
        assert_eq!((stats.elapsed_us, stats.processes, stats.counters["pgfault"]), (5, 6, 7));
        assert_eq!((stats.pressure(), stats.latency()), (total.pressure, total.latency));
        assert_eq!(stats.devices[&3].reads, 8);
        // Those of an older job say less.
        let older: JobStats = serde_json::from_str(
            r#"{"elapsed_us":1,"processes":1,"counters":{},"latency":[],"pressure":
                [{"avg":[0,0,0],"total_us":0},{"avg":[0,0,0],"total_us":0}]}"#,
        )
        .unwrap();
        assert!(older.devices.is_empty());
    }
}
