//! `vs-kernel`: the same program on the same RAM, with the kernel's swap and with overspill, in
//! turn.
//!
//! The program is `overspill-load`, which accesses memory, or a real one ([`program`]). It is run
//! by itself in a memory cgroup with zram, zswap or a swap file ([`peer`]), then by `overspill
//! run`, and accesses are done in a process of the library, too ([`ours`]). The [`floor`] says what
//! the mechanisms cost alone. [`run`] plans and compares, [`work`] is one measurement, [`launch`]
//! starts programs and waits for them, [`case`] is what is compared, [`figures`] what is told,
//! [`ram`] how much RAM each gets, [`plot`] and [`html`] draw it.

mod case;
mod conclusion;
mod figures;
mod floor;
mod html;
mod launch;
mod ours;
mod peer;
mod plot;
mod program;
mod ram;
mod work;

pub use work::measure_one;

use super::common::Common;
use crate::ladder;
use crate::machine::kernel_swap;
use crate::machine::place::Place;
use crate::measure::child;
use crate::measure::failure::Failure;
use crate::measure::host::{self, Machine};
use crate::measure::{self, Sample, Series, compare};
use crate::report::{self, Column, Findings, Report, Row, Table, ratio, short, whole};
use case::{Case, Peer, Program, Setting, Step, Task, Tasks};
use clap::ValueEnum;
use overspill::base::Bytes;
use overspill_bench::workload::{Packing, Plan, Workload};
use program::Inputs;
use ram::Ram;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use work::{Job, Request, Who};

/// Name of the bench.
pub const NAME: &str = "vs-kernel";

/// Longest that a measurement may take: this, and what an access may take at the very worst, with a
/// swap file on a slow disk.
const LIMIT: Duration = Duration::from_secs(30);
const LIMIT_PER_PAGE: Duration = Duration::from_millis(1);
/// How many times as long as with all the RAM that it takes a program may take besides.
const LIMIT_OF_PROGRAMS: u32 = 40;
/// A run without `--rounds` promises to end within 50 s. What has not begun by then is not begun,
/// and what runs is ended.
const TIME_BY_DEFAULT: Duration = Duration::from_secs(36);
/// The least that what is begun in such a run gets.
const LIMIT_LEAST: Duration = Duration::from_secs(4);
/// How often a program is tried that the kernel ends for want of memory. It does so by chance where
/// memory is accessed at random, with swap space left; every second time the program gets more.
const TRIES: u32 = 6;
/// How long a measurement may wait for another to end, set everything up and put it back.
const LIMIT_AROUND: Duration = Duration::from_secs(180);
/// The least that tells anything: at four times overcommit the budget is 8 MiB.
const SIZE_MIN: Bytes = Bytes(32 << 20);

/// How busy the machine was: processes that run or wait for a processor or a disk, averaged over a
/// minute.
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
    /// What is done: accesses to memory (seq-write, seq-read, rand-read, rand-write, zipf-read), or
    /// real programs (sort, numpy-sort, numpy-product, redis, cxx) that are installed; `accesses`,
    /// `programs` or `all` of them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "accesses")]
    workload: Vec<Tasks>,
    /// With which swap of the kernel it is compared: all, or of zram, zswap, file
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all", value_parser = choice::<Peer>)]
    peer: Vec<Choice<Peer>>,
    /// Who does it besides the peer [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    steps: Vec<Step>,
    /// The memory that is accessed, and about what programs take; published figures are of 512M and
    /// more
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    size: Bytes,
    /// How many times the RAM that is
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4", value_parser = clap::value_parser!(u32).range(1..=16))]
    overcommit: Vec<u32>,
    /// How far LZ4 packs what pages hold, as 2.5 for 2.5:1; programs hold what they hold
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2.5")]
    contents: Vec<Packing>,
    /// Numbers of threads, each with a part of the memory; programs have one
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
        title: "Elapsed time of the accesses and processor time meanwhile, with that of \
                overspill's threads; each as a ratio to the peer of the same round, lower is \
                better; microseconds of an access: mean, median, 99th and 99.9th percentile.",
        columns: &[
            Column { title: "elapsed s", figure: figures::ELAPSED, format: short, spread: false },
            Column { title: "ratio", figure: figures::RATIO, format: ratio, spread: true },
            Column { title: "cpu s", figure: figures::CPU, format: short, spread: false },
            Column { title: "cpu ratio", figure: figures::CPU_RATIO, format: ratio, spread: true },
            Column {
                title: "mean us",
                figure: figures::PER_ACCESS,
                format: microseconds,
                spread: false,
            },
            Column { title: "p50", figure: figures::P50, format: microseconds, spread: false },
            Column { title: "p99", figure: figures::P99, format: microseconds, spread: false },
            Column { title: "p99.9", figure: figures::P999, format: microseconds, spread: false },
        ],
    },
    Table {
        title: "RAM at most in MiB, all in all; the part of it that is a compressed pool outside \
                of the cgroup, and how far that packed; limit of the cgroup, or budget; \
                overspill's tables; pages brought in, faults that waited for a device (zram is \
                one), and MiB written to and read from a device, of the whole run with what is \
                written beforehand.",
        columns: &[
            Column { title: "RAM", figure: figures::RAM, format: mib, spread: true },
            Column { title: "pool", figure: figures::POOL, format: mib, spread: false },
            Column { title: "packed", figure: figures::PACKED, format: short, spread: false },
            Column { title: "limit", figure: figures::LIMIT, format: mib, spread: true },
            Column {
                title: "metadata",
                figure: figures::METADATA,
                format: |bytes| short(bytes / f64::from(1 << 20)),
                spread: false,
            },
            Column { title: "pages in", figure: figures::PAGES_IN, format: whole, spread: false },
            Column { title: "major faults", figure: figures::MAJOR, format: whole, spread: false },
            Column { title: "device MiB", figure: figures::DEVICE, format: mib, spread: false },
            Column { title: "written", figure: figures::WRITTEN, format: mib, spread: false },
        ],
    },
    Table {
        title: "The floor, in microseconds: a fault by signal served by a copy or by a move \
                alone, the first access to a page of a pool with room, and LZ4 for a page.",
        columns: &[
            Column {
                title: "bare copy",
                figure: figures::BARE_COPY,
                format: microseconds,
                spread: true,
            },
            Column {
                title: "bare move",
                figure: figures::BARE_MOVE,
                format: microseconds,
                spread: true,
            },
            Column {
                title: "minor fault",
                figure: figures::MINOR_FAULT,
                format: microseconds,
                spread: true,
            },
            Column { title: "ratio", figure: figures::MINOR_RATIO, format: ratio, spread: true },
            Column {
                title: "compress",
                figure: figures::COMPRESS,
                format: microseconds,
                spread: false,
            },
            Column {
                title: "decompress",
                figure: figures::DECOMPRESS,
                format: microseconds,
                spread: false,
            },
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
    let began = Instant::now();
    let place = Place::find(args.dir.as_deref())?;
    enough_room(args, &place)?;
    let command = command()?;
    let busy_before = host::load_average();
    // 1. What can be measured here.
    let mut left_out = BTreeMap::new();
    for peer in chosen(&args.peer) {
        if let Some(reason) = kernel_swap::missing().or_else(|| peer::missing(peer)) {
            left_out.insert(peer.to_string(), reason);
        }
    }
    for program in tasks(args).into_iter().filter_map(Task::program) {
        if let Some(reason) = program::missing(program) {
            left_out.insert(program.to_string(), reason);
        }
    }
    let missing: Vec<String> = left_out.keys().cloned().collect();
    let cases: Vec<Case> = plan(args)
        .into_iter()
        .filter(|case| !missing.iter().any(|name| case.needs(name)))
        .collect();
    let programs: Vec<Program> = cases.iter().filter_map(Case::program).collect();
    let inputs = Inputs::make(&programs, &place.dir, args.size.0)?;
    // 2. All of it, in turn.
    let mut checksums = BTreeMap::new();
    let mut failed: Vec<String> = Vec::new();
    let mut late = BTreeSet::new();
    let mut ram = Ram::new(args.size);
    let mut series = measure::rounds(&cases, args.common.rounds, |case| {
        let ours = case.by_signal();
        let time_left = match args.common.rounds {
            Some(_) => Duration::MAX,
            None => TIME_BY_DEFAULT.saturating_sub(began.elapsed()),
        };
        if time_left.is_zero() {
            late.insert(case.to_string());
            return Ok(Sample::new());
        }
        if ours.as_ref().is_some_and(|name| left_out.contains_key(name)) {
            return Ok(Sample::new());
        }
        let request = |ram: &Ram| -> Result<Request, Failure> {
            let request = request(args, &place, &command, &inputs, ram, case)?;
            let limit = request.limit.min(time_left.max(LIMIT_LEAST));
            Ok(Request { limit, ..request })
        };
        let sample = match attempt(case, &mut ram, request) {
            Ok(mut sample) => {
                let sum = sample.remove(figures::CHECKSUM).zip(case.program());
                if sum.is_some_and(|(sum, program)| *checksums.entry(program).or_insert(sum) != sum)
                {
                    failed.push(format!("{case}: what it put out is not what it put out before"));
                }
                sample
            }
            Err(failure) => {
                let sentence = format!("{case}: {failure}");
                match (case, ours) {
                    // One that the kernel ends for want of memory in one round may run in the next.
                    (Case::Work(setting, Step::Peer), _) => {
                        let told: &mut String =
                            left_out.entry(setting.peer.to_string()).or_default();
                        if !told.contains(&sentence) {
                            *told += if told.is_empty() { "" } else { "; " };
                            *told += &sentence;
                        }
                    }
                    _ if time_left < LIMIT => _ = late.insert(case.to_string()),
                    // As far as system calls bear it.
                    (_, Some(name)) => _ = left_out.insert(name, sentence),
                    _ => failed.push(sentence),
                }
                Sample::new()
            }
        };
        match case {
            Case::Floor => (),
            Case::Alone(program) => ram.saw_alone(*program, &sample),
            Case::Work(setting, step) => ram.saw(setting, *step, &sample),
        }
        Ok(sample)
    })?;
    drop(inputs);
    // 3. What was found.
    compare_steps(&cases, &mut series);
    let rows: Vec<Row> = cases
        .iter()
        .zip(&series)
        .map(|(case, series)| row(case, series))
        // Those of a peer that is left out.
        .filter(|row| !row.figures.is_empty())
        .collect();
    let busy = Busy { began: busy_before, ended: host::load_average() };
    let machine = Machine::this();
    let mut conclusion = conclusion::of(&cases, &rows, &ram, &left_out, &busy, machine.cpus);
    if !late.is_empty() {
        conclusion += &format!(
            "\n{} of {} were left out, as this would have taken more than {} s on this machine: \
             --rounds 1 measures all.",
            late.len(),
            cases.len(),
            TIME_BY_DEFAULT.as_secs()
        );
    }
    if let Some(path) = &args.plot {
        crate::plot::draw(path, &plot::title(&machine, args.size), &plot::charts(&rows))?;
    }
    if let Some(path) = &args.html {
        let (rounds, command) = (series[0].len(), command_line());
        let about = html::About {
            machine: &machine,
            size: args.size,
            rounds,
            command,
            conclusion: &conclusion,
        };
        html::write(path, &about, &rows)?;
    }
    let settings = settings(args, series[0].len(), &place, &left_out, &busy);
    let many = args.overcommit.len() * args.contents.len() * args.threads.len() > 1;
    let groups: &[&str] = if many {
        &["overcommit", "contents", "threads", "workload", "peer"]
    } else {
        &["workload", "peer"]
    };
    let failed = (!failed.is_empty()).then(|| Failure::new(failed.join("; ")));
    Ok(Findings {
        report: Report { bench: NAME, machine, settings, rows },
        groups,
        tables: TABLES,
        conclusion,
        failed,
    })
}

/// What the user typed, as a line that a shell reads the same way.
fn command_line() -> String {
    let plain = |word: &str| {
        !word.is_empty()
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c))
    };
    let quoted = |word: String| {
        if plain(&word) { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    let words = std::env::args_os().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    ["sudo".to_owned(), "overspill-bench".to_owned()]
        .into_iter()
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Measures a case, with more RAM where the kernel ends a program for want of it.
fn attempt(
    case: &Case,
    ram: &mut Ram,
    request: impl Fn(&Ram) -> Result<Request, Failure>,
) -> Result<Sample, Failure> {
    for tried in 1..TRIES {
        let request = request(ram)?;
        match (child::ask(NAME, &request, request.limit + LIMIT_AROUND), case) {
            (Err(failure), Case::Work(setting, Step::Peer)) if launch::was_killed(&failure) => {
                if tried.is_multiple_of(2) {
                    ram.raise(setting);
                }
            }
            (result, _) => return result,
        }
    }
    let request = request(ram)?;
    child::ask(NAME, &request, request.limit + LIMIT_AROUND)
}

/// The `overspill` that programs run under: what `OVERSPILL_BIN` names, or the one beside this
/// program.
fn command() -> Result<PathBuf, Failure> {
    match std::env::var_os("OVERSPILL_BIN") {
        Some(path) => Ok(path.into()),
        None => work::beside("overspill"),
    }
}

/// What is to be done, each once and in the order of all.
fn tasks(args: &Args) -> Vec<Task> {
    Task::all()
        .into_iter()
        .filter(|task| args.workload.iter().any(|tasks| tasks.0.contains(task)))
        .collect()
}

/// All cases in the order in which they are measured: the peer, and then those that are compared
/// with it.
fn plan(args: &Args) -> Vec<Case> {
    let steps = ladder::chosen(&args.steps);
    let (accesses, programs): (Vec<Task>, Vec<Task>) =
        tasks(args).into_iter().partition(|task| task.program().is_none());
    let mut settings: Vec<(Option<Packing>, u32, Vec<Task>)> = Vec::new();
    for &packing in &args.contents {
        settings
            .extend(args.threads.iter().map(|threads| (Some(packing), *threads, accesses.clone())));
    }
    settings.push((None, 1, programs.clone()));
    let mut cases = vec![Case::Floor];
    cases.extend(programs.into_iter().filter_map(Task::program).map(Case::Alone));
    for &overcommit in &args.overcommit {
        for (packing, threads, tasks) in &settings {
            for &task in tasks {
                for peer in chosen(&args.peer) {
                    let setting =
                        Setting { task, peer, overcommit, packing: *packing, threads: *threads };
                    // Those with which the others are compared are measured in any case.
                    let steps = [Step::Peer]
                        .into_iter()
                        .chain(steps.iter().copied().filter(|step| *step != Step::Peer));
                    let fit =
                        steps.filter(|step| task.program().is_none() || *step != Step::Library);
                    cases.extend(fit.map(|step| Case::Work(setting, step)));
                }
            }
        }
    }
    cases
}

/// What the process of a measurement is told.
fn request(
    args: &Args,
    place: &Place,
    command: &Path,
    inputs: &Inputs,
    ram: &Ram,
    case: &Case,
) -> Result<Request, Failure> {
    let program = |program| inputs.job(program, args.size.0).map(Job::Program);
    let accesses = |workload, packing, threads: u32| Job::Accesses {
        plan: Plan { workload, packing, threads: threads as usize },
        pages: args.size.pages(),
    };
    let (who, job, memory) = match case {
        Case::Floor => (Who::Floor, accesses(Workload::SeqWrite, Packing::Heap, 1), 0),
        Case::Alone(one) => (Who::Alone, program(*one)?, 0),
        Case::Work(setting, step) => {
            let overspill = |fault: &str| Who::Overspill {
                command: command.to_owned(),
                fault: fault.to_owned(),
            };
            let who = match step {
                Step::Peer => Who::Peer(setting.peer),
                Step::OverspillThread => overspill("thread"),
                Step::OverspillSignal => overspill("signal"),
                Step::Library => Who::Library,
            };
            let job = match setting.task {
                Task::Accesses(workload) => {
                    accesses(workload, setting.packing.unwrap_or(Packing::Heap), setting.threads)
                }
                Task::Program(one) => program(one)?,
            };
            (who, job, ram.of(setting, *step))
        }
    };
    let needs = match case {
        Case::Work(setting, _) => ram.needs(setting.task),
        Case::Floor | Case::Alone(_) => args.size.0,
    };
    let alone = case.program().map_or(Duration::ZERO, |program| ram.elapsed(program));
    let limit =
        LIMIT + LIMIT_PER_PAGE * args.size.pages().min(1 << 24) as u32 + LIMIT_OF_PROGRAMS * alone;
    Ok(Request {
        who,
        job,
        needs,
        memory,
        limit,
        dir: place.dir.clone(),
        settings: args.set.clone(),
    })
}

fn row(case: &Case, series: &Series) -> Row {
    match case {
        Case::Floor => Row::new("floor", &[], None, series),
        Case::Alone(program) => {
            Row::new("alone", &[("workload", json!(program.to_string()))], None, series)
        }
        Case::Work(setting, step) => {
            let Setting { task, peer, overcommit, threads, .. } = setting;
            let labels = [
                ("workload", json!(task.to_string())),
                ("peer", json!(peer.to_string())),
                ("overcommit", json!(overcommit)),
                ("contents", json!(setting.contents())),
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
    let (available, free) = (host::available_bytes(), place.free_bytes()?);
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
            "{} need {} on the disk of '{place}', and it has {}: give a smaller --size, or \
             another --dir",
            args.size,
            Bytes(2 * args.size.0),
            Bytes(free)
        )));
    }
    Ok(())
}

fn settings(
    args: &Args,
    rounds: usize,
    place: &Place,
    left_out: &BTreeMap<String, String>,
    busy: &Busy,
) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{args, parse};

    fn names(line: &str) -> Vec<String> {
        plan(&args(line)).iter().map(Case::to_string).collect()
    }

    #[test]
    fn by_default_all_accesses_are_compared_with_every_peer() {
        let names = names("");
        assert_eq!(names.len(), 1 + 5 * 3 * 4);
        assert_eq!(names[..2], ["floor", "seq-write, zram, 4x, 2.5:1, 1 threads, peer"]);
        assert!(names.iter().all(|name| !name.contains("sort")));
    }

    #[test]
    fn programs_have_no_library_and_neither_contents_nor_threads() {
        let names =
            names("--workload sort,cxx --peer zram --contents 1,10 --threads 1,2 --overcommit 2,4");
        let expected = [
            "floor",
            "sort, alone",
            "cxx, alone",
            "sort, zram, 2x, its own, 1 threads, peer",
            "sort, zram, 2x, its own, 1 threads, overspill-thread",
            "sort, zram, 2x, its own, 1 threads, overspill-signal",
        ];
        assert_eq!(
            (names.len(), &names[..6]),
            (3 + 2 * 2 * 3, expected.map(String::from).as_slice())
        );
    }

    #[test]
    fn who_the_others_are_compared_with_is_measured_whatever_steps_are_asked_for() {
        let of = |line: &str| plan(&args(line)).len() - 1;
        assert_eq!(of("--workload seq-read --peer file --steps library"), 2);
        assert_eq!(
            of("--workload seq-read,rand-read --peer file --contents 1,10 --threads 1,2 --steps \
                 peer"),
            8
        );
        assert_eq!(of("--workload all --peer file --steps peer"), 5 + 5 + 5);
        assert!(
            parse::<Args>("--workload sort,never").is_err()
                && parse::<Args>("--peer all,zram").is_ok()
        );
    }

    #[test]
    fn what_is_missing_takes_what_needs_it_along() {
        let cases = plan(&args("--workload seq-read,redis --peer zram,file"));
        let left = |name: &str| cases.iter().filter(|case| !case.needs(name)).count();
        assert_eq!(
            (cases.len(), left("redis"), left("zram"), left("sort")),
            (1 + 8 + 1 + 6, 9, 14, 16)
        );
        let by_signal: Vec<String> = cases.iter().filter_map(Case::by_signal).collect();
        assert_eq!(by_signal, ["redis in overspill-signal", "redis in overspill-signal"]);
    }
}
