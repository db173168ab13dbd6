//! `vs-kernel`: the same program on the same RAM, with the kernel's swap and with overspill, in turn.
//!
//! The program is `overspill-load`, run by itself in a memory cgroup with zram, zswap or a swap file ([`peer`]), then by
//! `overspill run`, and then the same accesses are done in a process of the library ([`ours`]). The [`floor`] says what the
//! mechanisms cost alone. [`run`] plans and compares, [`work`] is one measurement, [`case`] what is compared, [`figures`] what
//! is told, [`ram`] how much RAM each gets, [`plot`] and [`html`] draw it.

mod case;
mod conclusion;
mod figures;
mod floor;
mod html;
mod ours;
mod peer;
mod plot;
mod ram;
mod work;

pub use work::measure_one;

use crate::Common;
use crate::child;
use crate::failure::Failure;
use crate::kernel_swap;
use crate::ladder;
use crate::machine::{self, Machine};
use crate::measure::{self, Sample, Series, compare};
use crate::place::Place;
use crate::report::{self, Column, Findings, Report, Row, Table, ratio, short, whole};
use case::{Case, Peer, Setting, Step};
use clap::ValueEnum;
use overspill::base::Bytes;
use overspill_bench::workload::{Packing, Plan, Workload};
use ram::Ram;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use work::{Request, Who};

/// Name of the bench.
pub const NAME: &str = "vs-kernel";

/// Longest that a measurement may take: this, and what an access may take at the very worst.
const LIMIT: Duration = Duration::from_secs(60);
const LIMIT_PER_PAGE: Duration = Duration::from_millis(2);
/// The least that tells anything: at four times overcommit the budget is 8 MiB.
const SIZE_MIN: Bytes = Bytes(32 << 20);

/// How busy the machine was: processes that run or wait for a processor or a disk, averaged over a minute.
#[derive(Clone, Copy, Debug)]
pub struct Busy {
    /// Before this began: the work of others.
    pub began: f64,
    /// When it ended.
    pub ended: f64,
}

/// One of a kind, or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Choice<T>(Option<T>);

/// Reads a name of the kind, or `all`.
fn choice<T: ValueEnum>(text: &str) -> Result<Choice<T>, String> {
    if text == "all" {
        return Ok(Choice(None));
    }
    T::from_str(text, false).map(|one| Choice(Some(one))).map_err(|_| {
        let names = T::value_variants().iter().filter_map(T::to_possible_value);
        let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
        format!("give all, or of these: {}", names.join(", "))
    })
}

fn chosen<T: ValueEnum + Ord>(choices: &[Choice<T>]) -> Vec<T> {
    let all = choices.iter().any(|choice| choice.0.is_none());
    let named: Vec<T> = choices.iter().filter_map(|choice| choice.0.clone()).collect();
    ladder::chosen(if all { &[] } else { &named })
}

/// Options of `overspill-bench vs-kernel`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What is done: all, or of seq-write, seq-read, rand-read, rand-write, zipf-read
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all", value_parser = choice::<Workload>)]
    workload: Vec<Choice<Workload>>,
    /// With which swap of the kernel it is compared: all, or of zram, zswap, file
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all", value_parser = choice::<Peer>)]
    peer: Vec<Choice<Peer>>,
    /// Who does it besides the peer [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    steps: Vec<Step>,
    /// The memory that is accessed; published figures are of 512M and more
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    size: Bytes,
    /// How many times the RAM that is
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4", value_parser = clap::value_parser!(u32).range(1..=16))]
    overcommit: Vec<u32>,
    /// How far LZ4 packs what pages hold, as 2.5 for 2.5:1
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2.5")]
    contents: Vec<Packing>,
    /// Numbers of threads, each with a part of the memory
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Vec<u32>,
    /// Where swap files are made: a directory on a disk [default: $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Settings of overspill, as for `overspill run --set`
    #[arg(long, value_name = "KEY=VALUE[,...]", default_value = "")]
    set: String,
    /// Draw the time of an access into a file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write a page with the drawings and all figures, as HTML
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn mib(bytes: f64) -> String {
    whole(bytes / f64::from(1 << 20))
}

fn microseconds(ns: f64) -> String {
    short(ns / 1e3)
}

const TABLES: &[Table] = &[
    Table {
        title: "Elapsed time of the accesses and processor time meanwhile, with that of overspill's threads; each as a ratio to \
                the peer of the same round, lower is better; microseconds of an access: mean, median, 99th and 99.9th percentile.",
        columns: &[
            Column { title: "elapsed s", figure: figures::ELAPSED, format: short, spread: false },
            Column { title: "ratio", figure: figures::RATIO, format: ratio, spread: true },
            Column { title: "cpu s", figure: figures::CPU, format: short, spread: false },
            Column { title: "cpu ratio", figure: figures::CPU_RATIO, format: ratio, spread: true },
            Column { title: "mean us", figure: figures::PER_ACCESS, format: microseconds, spread: false },
            Column { title: "p50", figure: figures::P50, format: microseconds, spread: false },
            Column { title: "p99", figure: figures::P99, format: microseconds, spread: false },
            Column { title: "p99.9", figure: figures::P999, format: microseconds, spread: false },
        ],
    },
    Table {
        title: "RAM at most in MiB, all in all; the part of it that is a compressed pool outside of the cgroup; limit of the \
                cgroup, or budget; faults that something was brought in for, and MiB written to and read from a device, of the \
                whole run with what is written beforehand.",
        columns: &[
            Column { title: "RAM", figure: figures::RAM, format: mib, spread: true },
            Column { title: "pool", figure: figures::POOL, format: mib, spread: false },
            Column { title: "limit", figure: figures::LIMIT, format: mib, spread: true },
            Column { title: "major faults", figure: figures::MAJOR, format: whole, spread: false },
            Column { title: "device MiB", figure: figures::DEVICE, format: mib, spread: false },
            Column { title: "written", figure: figures::WRITTEN, format: mib, spread: false },
        ],
    },
    Table {
        title: "The floor, in microseconds: a fault by signal served by a copy or by a move alone, the first access to a page of a \
                pool with room, and LZ4 for a page.",
        columns: &[
            Column { title: "bare copy", figure: figures::BARE_COPY, format: microseconds, spread: true },
            Column { title: "bare move", figure: figures::BARE_MOVE, format: microseconds, spread: true },
            Column { title: "minor fault", figure: figures::MINOR_FAULT, format: microseconds, spread: true },
            Column { title: "ratio", figure: figures::MINOR_RATIO, format: ratio, spread: true },
            Column { title: "compress", figure: figures::COMPRESS, format: microseconds, spread: false },
            Column { title: "decompress", figure: figures::DECOMPRESS, format: microseconds, spread: false },
        ],
    },
];

/// Measures and says what was found.
///
/// # Errors
/// When a measurement of overspill fails. A peer is left out where the kernel refuses it.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    if args.size < SIZE_MIN {
        return Err(Failure::new(format!(
            "{} is too little to tell anything: give --size {SIZE_MIN} or more",
            args.size
        )));
    }
    let place = Place::find(args.dir.as_deref())?;
    enough_room(args, &place)?;
    let command = command()?;
    let busy_before = machine::load_average();
    let cases = plan(args);
    let mut left_out: BTreeMap<Peer, String> = BTreeMap::new();
    for peer in chosen(&args.peer) {
        if let Some(reason) = kernel_swap::missing().or_else(|| peer::missing(peer)) {
            left_out.insert(peer, reason);
        }
    }
    let missing: Vec<Peer> = left_out.keys().copied().collect();
    let mut ram = Ram::default();
    let mut series = measure::rounds(&cases, args.common.rounds, |case| {
        let ask = |who, setting: Option<Setting>, memory| {
            let request = request(args, &place, who, setting, memory);
            let limit = LIMIT + LIMIT_PER_PAGE * args.size.pages().min(u32::MAX.into()) as u32;
            child::ask(NAME, &request, limit)
        };
        let Case::Work(setting, step) = case else { return ask(Who::Floor, None, 0) };
        let memory = ram.of(args.size, setting, *step);
        let sample = match step {
            Step::Peer if missing.contains(&setting.peer) => Sample::new(),
            Step::Peer => ask(Who::Peer(setting.peer), Some(*setting), memory).unwrap_or_else(|failure| {
                // One that the kernel ends for want of memory in one round may run in the next.
                left_out.insert(setting.peer, format!("{case}: {failure}"));
                Sample::new()
            }),
            Step::OverspillThread | Step::OverspillSignal => {
                let fault = if *step == Step::OverspillThread { "thread" } else { "signal" };
                ask(Who::Overspill { command: command.clone(), fault: fault.to_owned() }, Some(*setting), memory)?
            }
            Step::Library => ask(Who::Library, Some(*setting), memory)?,
        };
        ram.saw(setting, *step, &sample);
        Ok(sample)
    })?;
    compare_steps(&cases, &mut series);
    let rows: Vec<Row> = cases
        .iter()
        .zip(&series)
        .map(|(case, series)| row(case, series))
        // Those of a peer that is left out.
        .filter(|row| !row.figures.is_empty())
        .collect();
    let busy = Busy { began: busy_before, ended: machine::load_average() };
    let machine = Machine::this();
    let conclusion = conclusion::of(&cases, &rows, &left_out, &busy, machine.cpus);
    if let Some(path) = &args.plot {
        crate::plot::draw(path, &plot::title(&machine, args.size), &plot::charts(&rows))?;
    }
    if let Some(path) = &args.html {
        html::write(path, &machine, args.size, &rows, &conclusion)?;
    }
    let settings = settings(args, series[0].len(), &place, &left_out, &busy);
    let many = args.overcommit.len() * args.contents.len() * args.threads.len() > 1;
    let groups: &[&str] =
        if many { &["overcommit", "contents", "threads", "workload", "peer"] } else { &["workload", "peer"] };
    Ok(Findings { report: Report { bench: NAME, machine, settings, rows }, groups, tables: TABLES, conclusion })
}

/// The `overspill` that programs run under: what `OVERSPILL_BIN` names, or the one beside this program.
fn command() -> Result<PathBuf, Failure> {
    match std::env::var_os("OVERSPILL_BIN") {
        Some(path) => Ok(path.into()),
        None => work::beside("overspill"),
    }
}

/// All cases in the order in which they are measured: the peer, and then those that are compared with it.
fn plan(args: &Args) -> Vec<Case> {
    let steps = ladder::chosen(&args.steps);
    let mut cases = vec![Case::Floor];
    for &overcommit in &args.overcommit {
        for &packing in &args.contents {
            for &threads in &args.threads {
                for workload in chosen(&args.workload) {
                    for peer in chosen(&args.peer) {
                        let setting = Setting { workload, peer, overcommit, packing, threads };
                        cases.push(Case::Work(setting, Step::Peer));
                        cases.extend(
                            steps.iter().filter(|step| **step != Step::Peer).map(|step| Case::Work(setting, *step)),
                        );
                    }
                }
            }
        }
    }
    cases
}

fn request(args: &Args, place: &Place, who: Who, setting: Option<Setting>, memory: u64) -> Request {
    let (workload, packing, threads) = setting.map_or((Workload::SeqWrite, Packing::Heap, 1), |setting| {
        (setting.workload, setting.packing, setting.threads as usize)
    });
    let plan = Plan { workload, packing, threads };
    Request { who, plan, pages: args.size.pages(), memory, dir: place.dir.clone(), settings: args.set.clone() }
}

fn row(case: &Case, series: &Series) -> Row {
    match case {
        Case::Floor => Row::new("floor", &[], None, series),
        Case::Work(setting, step) => {
            let Setting { workload, peer, overcommit, packing, threads } = setting;
            let labels = [
                ("workload", json!(workload.to_string())),
                ("peer", json!(peer.to_string())),
                ("overcommit", json!(overcommit)),
                ("contents", json!(packing.to_string())),
                ("threads", json!(threads)),
            ];
            Row::new(&step.to_string(), &labels, None, series)
        }
    }
}

/// Adds what each is as a ratio to its peer in the same round.
fn compare_steps(cases: &[Case], series: &mut [Series]) {
    let all: Vec<Series> = series.to_vec();
    for (case, series) in cases.iter().zip(series) {
        let Case::Work(setting, step) = case else { continue };
        let peer = cases.iter().position(|other| *other == Case::Work(*setting, Step::Peer));
        if let Some(peer) = peer.filter(|_| *step != Step::Peer) {
            for (figure, name) in [
                (figures::ELAPSED, figures::RATIO),
                (figures::CPU, figures::CPU_RATIO),
                (figures::P999, figures::P999_RATIO),
            ] {
                compare(series, &all[peer], figure, name, |here, there| here / there);
            }
        }
    }
}

/// Whether a measurement fits into the machine.
fn enough_room(args: &Args, place: &Place) -> Result<(), Failure> {
    let (available, free) = (machine::available_bytes(), place.free_bytes()?);
    // All of it may be in memory at once, packed or not.
    if args.size.0 + args.size.0 / 4 > available {
        return Err(Failure::new(format!(
            "{} need more memory than there is ({}): give a smaller --size",
            args.size,
            Bytes(available)
        )));
    }
    if 2 * args.size.0 > free {
        return Err(Failure::new(format!(
            "{} need {} on the disk of '{place}', and it has {}: give a smaller --size, or another --dir",
            args.size,
            Bytes(2 * args.size.0),
            Bytes(free)
        )));
    }
    Ok(())
}

fn settings(args: &Args, rounds: usize, place: &Place, left_out: &BTreeMap<Peer, String>, busy: &Busy) -> Value {
    let own = json!({
        "size_bytes": args.size.0,
        "dir": place.to_string(),
        "pinned": false,
        "delivery": "thread and signal, by step",
        "settings": args.set,
        "load_average": [busy.began, busy.ended],
        "left_out": report::by_name(left_out.iter().map(|(peer, reason)| (peer, reason.as_str()))),
    });
    report::settings(rounds, own)
}
