//! `swapoff`: how long it takes to empty a swap device that is taken out of use.
//!
//! Memory is written and pushed out to a file by another allocation, that allocation is freed, and
//! then the device is taken out of use: a page at a time, in runs, with several runs in flight, and
//! by the kernel, each alone and beside a load. What the disk can do is measured at the same time.
//!
//! [`run`] plans the cases and reads the results; [`work`] is one measurement, by the [`engine`] or
//! the [`kernel`], [`load`] what goes on meanwhile, [`device_rate`] what the disk can do, [`step`]
//! the ladder, [`figures`] what is told. [`crate::machine::put_back`] sees to it that nothing is left
//! behind.

mod conclusion;
mod device_rate;
mod engine;
mod figures;
mod kernel;
mod load;
mod plot;
mod step;
mod work;

pub use work::measure_one;

use crate::Common;
use crate::ladder;
use crate::machine::kernel_swap;
use crate::machine::place::Place;
use crate::machine::swap_device::SwapDevice;
use crate::measure::child;
use crate::measure::failure::Failure;
use crate::measure::host::{self, Machine};
use crate::measure::{self, Sample, Series, compare};
use crate::report::{self, Column, Findings, Report, Row, Table, percent, ratio, short, whole};
use overspill::base::Bytes;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use step::{Case, Step, Workload};
use work::{Request, Who};

/// Name of the bench.
pub const NAME: &str = "swapoff";

/// Longest that a measurement may take: this, and what a page may take at the very worst.
const LIMIT: Duration = Duration::from_secs(120);
const LIMIT_PER_PAGE: Duration = Duration::from_millis(2);
/// The least that tells anything: a few operations of the largest size.
const SIZE_MIN: Bytes = Bytes(16 << 20);
/// The load's memory, as a share of what comes back, and at most.
const LOAD_SHARE: u64 = 8;
const LOAD_MAX: u64 = 64 << 20;

/// Options of `overspill-bench swapoff`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What is written, pushed out and brought back; published figures are of 1G
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    size: Bytes,
    /// Where pages go: a directory on a disk, a file that is made and removed, or a swap file of
    /// overspill, which is used in place. The kernel's swap file is made beside it [default:
    /// $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "FILE")]
    device: Option<PathBuf>,
    /// Where the load's pages go: `ram` (memory that takes as long as a fast disk) or a directory,
    /// file or block device; both with options after a comma, as in
    /// `ram,latency=50us,bandwidth=500M`. Those of the kernel's load go to the disk of the other
    /// device in any case [default: the disk of the other device]
    #[arg(long, value_name = "DEVICE")]
    load_device: Option<SwapDevice>,
    /// Steps to measure [default: all; the kernel as root only]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    steps: Vec<Step>,
    /// Draw the figures into a file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

const TABLES: &[Table] = &[
    Table {
        title: "Seconds until the device was empty, processor time of it (not that of the load), \
                pages and read operations (the kernel's with all others of the disk); how many \
                times as fast, and with how many times fewer operations a page, as the first step \
                of the same round.",
        columns: &[
            Column { title: "elapsed s", figure: figures::ELAPSED, format: short, spread: true },
            Column { title: "user s", figure: figures::USER, format: short, spread: false },
            Column { title: "sys s", figure: figures::SYS, format: short, spread: false },
            Column { title: "page-ins", figure: figures::PAGE_INS, format: whole, spread: false },
            Column {
                title: "operations",
                figure: figures::OPERATIONS,
                format: whole,
                spread: false,
            },
            Column {
                title: "pages each",
                figure: figures::PAGES_PER_OPERATION,
                format: short,
                spread: false,
            },
            Column { title: "x faster", figure: figures::SOONER, format: ratio, spread: true },
            Column { title: "x fewer", figure: figures::FEWER, format: ratio, spread: false },
        ],
    },
    Table {
        title: "MB of pages a second, what a file on the same disk gave in sequence at the same \
                time, and the share of it; how many times as fast as the kernel's swapoff of the \
                same round; ns of the first access to a page afterwards.",
        columns: &[
            Column { title: "MB/s", figure: figures::MB_PER_S, format: whole, spread: true },
            Column {
                title: "disk MB/s",
                figure: figures::DEVICE_MB_PER_S,
                format: whole,
                spread: true,
            },
            Column { title: "share", figure: figures::DEVICE_RATIO, format: percent, spread: true },
            Column { title: "x kernel", figure: figures::OF_KERNEL, format: ratio, spread: true },
            Column {
                title: "access ns",
                figure: figures::FIRST_ACCESS,
                format: whole,
                spread: false,
            },
        ],
    },
    Table {
        title: "The load: accesses a second before and during the evacuation, how many times \
                slower it was, the seconds of its work that were lost by that, and the longest \
                access before and during.",
        columns: &[
            Column {
                title: "before/s",
                figure: figures::LOAD_BEFORE,
                format: whole,
                spread: false,
            },
            Column {
                title: "during/s",
                figure: figures::LOAD_DURING,
                format: whole,
                spread: false,
            },
            Column {
                title: "x slower",
                figure: figures::LOAD_SLOWDOWN,
                format: ratio,
                spread: true,
            },
            Column { title: "lost s", figure: figures::LOAD_LOST, format: short, spread: true },
            Column {
                title: "longest ms",
                figure: figures::LOAD_MS_BEFORE,
                format: short,
                spread: false,
            },
            Column { title: "during", figure: figures::LOAD_MS, format: short, spread: true },
        ],
    },
];

/// Measures and says what was found.
///
/// # Errors
/// When there is no place for the device, a measurement fails, or the drawing cannot be written.
/// The kernel is left out where it refuses.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    let steps = ladder::chosen(&args.steps);
    let cases = plan(&steps);
    let place = Place::find(args.device.as_deref())?;
    enough_room(args, &place)?;
    let mut without_kernel = kernel_swap::missing().filter(|_| steps.contains(&Step::Kernel));
    let mut series = measure::rounds(&cases, args.common.rounds, |case| {
        let limit = LIMIT + LIMIT_PER_PAGE * args.size.pages().min(u32::MAX.into()) as u32;
        let request = request(case, args, &place);
        match (case.step, &without_kernel) {
            (Step::Kernel, Some(_)) => Ok(Sample::new()),
            (Step::Kernel, None) => {
                Ok(child::ask(NAME, &request, limit).unwrap_or_else(|failure| {
                    without_kernel = Some(failure.to_string());
                    Sample::new()
                }))
            }
            _ => child::ask(NAME, &request, limit),
        }
    })?;
    compare_steps(&cases, &mut series);
    let rows: Vec<Row> = cases
        .iter()
        .zip(&series)
        .map(|(case, series)| {
            let labels = [("workload", json!(case.workload.to_string()))];
            Row::new(&case.step.to_string(), &labels, case.step.reference(), series)
        })
        // Those of a kernel that refused.
        .filter(|row| !row.figures.is_empty())
        .collect();
    let machine = Machine::this();
    if let Some(path) = &args.plot {
        crate::plot::draw(path, &plot::title(&machine, args.size), &plot::charts(&rows))?;
    }
    let conclusion = conclusion::of(&rows, without_kernel.as_deref());
    let settings = settings(args, &steps, series[0].len(), &place, without_kernel.as_deref());
    let report = Report { bench: NAME, machine, settings, rows };
    Ok(Findings { report, groups: &["workload"], tables: TABLES, conclusion, failed: None })
}

fn plan(steps: &[Step]) -> Vec<Case> {
    let with = |workload| steps.iter().map(move |step| Case { workload, step: *step });
    with(Workload::Alone).chain(with(Workload::Load)).collect()
}

fn request(case: &Case, args: &Args, place: &Place) -> Request {
    let load = match case.workload {
        Workload::Alone => 0,
        Workload::Load => load_bytes(args.size),
    };
    let who = match case.step.settings() {
        Some(settings) => Who::Engine {
            settings: settings.to_owned(),
            file: place.file.clone(),
            load_device: load_device(args, place).spec(Bytes(work::load_device(load))),
        },
        None => Who::Kernel,
    };
    Request { who, dir: place.dir.clone(), size: Bytes::from_pages(args.size.pages()).0, load }
}

/// What the load's pages go to.
fn load_device(args: &Args, place: &Place) -> SwapDevice {
    args.load_device.clone().unwrap_or_else(|| SwapDevice::at(&place.dir))
}

/// Whole runs of what it pushes out at once.
fn load_bytes(size: Bytes) -> u64 {
    (size.0 / LOAD_SHARE).min(LOAD_MAX) >> 20 << 20
}

/// Whether a measurement fits into the machine.
fn enough_room(args: &Args, place: &Place) -> Result<(), Failure> {
    let size = args.size;
    if size < SIZE_MIN {
        return Err(Failure::new(format!(
            "{size} is too little to tell anything: give --size {SIZE_MIN} or more"
        )));
    }
    let case = Case { workload: Workload::Load, step: Step::InFlight };
    let needed = request(&case, args, place);
    let (available, free) = (host::available_bytes(), place.free_bytes()?);
    // What both allocations keep in memory at once is bounded by the budget, and what the engine
    // keeps of it by less than this.
    if needed.memory() + needed.memory() / 4 > available {
        return Err(Failure::new(format!(
            "{size} need more memory than there is ({}): give a smaller --size",
            Bytes(available)
        )));
    }
    if needed.disk() > free {
        return Err(Failure::new(format!(
            "{size} need {} on the disk of '{}', and it has {}: give a smaller --size, or another \
             --device",
            Bytes(needed.disk()),
            place.dir.display(),
            Bytes(free)
        )));
    }
    Ok(())
}

/// Adds what is told by two steps of the same round, with the same workload: each against the
/// first, and against the kernel.
fn compare_steps(cases: &[Case], series: &mut [Series]) {
    let all: Vec<Series> = series.to_vec();
    let of = |workload, step| {
        let at = cases.iter().position(|case| *case == Case { workload, step });
        at.map_or_else(Series::new, |at| all[at].clone())
    };
    for (case, series) in cases.iter().zip(series) {
        let [base, kernel] = [Step::Run1, Step::Kernel].map(|step| of(case.workload, step));
        if case.step != Step::Run1 {
            compare(series, &base, figures::MB_PER_S, figures::SOONER, |here, base| here / base);
            compare(series, &base, figures::PAGES_PER_OPERATION, figures::FEWER, |here, base| {
                here / base
            });
        }
        if case.step != Step::Kernel {
            compare(series, &kernel, figures::MB_PER_S, figures::OF_KERNEL, |here, kernel| {
                here / kernel
            });
        }
    }
}

fn settings(
    args: &Args,
    steps: &[Step],
    rounds: usize,
    place: &Place,
    without_kernel: Option<&str>,
) -> Value {
    let made_of = |step: &Step| step.settings().unwrap_or("swapoff(8)");
    let case = Case { workload: Workload::Load, step: Step::InFlight };
    let load = request(&case, args, place);
    let own = json!({
        "size_bytes": args.size.0,
        "memory_bytes": Request { load: 0, ..load.clone() }.memory(),
        "load_bytes": load.load,
        "device": place.to_string(),
        "load_device": load_device(args, place).to_string(),
        "pinned": false,
        "settings": engine::SETTINGS,
        "steps": report::by_name(steps.iter().map(|step| (step, made_of(step)))),
        "without_kernel": without_kernel,
    });
    report::settings(rounds, own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{args, sample};
    use clap::ValueEnum;
    use overspill::config::Config;

    #[test]
    fn every_step_is_measured_alone_and_beside_a_load_and_the_engine_has_its_settings() {
        let chosen: Args = args("--steps kernel,run-1,kernel");
        let cases: Vec<String> =
            plan(&ladder::chosen(&chosen.steps)).iter().map(Case::to_string).collect();
        assert_eq!(cases, ["run-1, alone", "kernel, alone", "run-1, load", "kernel, load"]);
        let names: Vec<String> = Step::value_variants().iter().map(Step::to_string).collect();
        assert_eq!(
            names,
            ["run-1", "run-8", "run-32", "run-256", "in-flight", "in-flight-4", "kernel"]
        );
        let mut config = Config::default();
        for settings in Step::value_variants().iter().filter_map(|step| step.settings()) {
            config.apply_settings(settings).unwrap();
        }
        config.apply_settings(engine::SETTINGS).unwrap();
        let default = Config::default();
        config.apply_settings(Step::InFlight.settings().unwrap()).unwrap();
        assert_eq!(
            (config.swapoff_run, config.swapoff_depth),
            (default.swapoff_run, default.swapoff_depth)
        );
    }

    #[test]
    fn steps_are_compared_within_a_round_and_a_workload() {
        let cases = plan(&[Step::Run1, Step::InFlight, Step::Kernel]);
        let series = |rate: f64, pages: f64| -> Series {
            vec![sample([(figures::MB_PER_S, rate), (figures::PAGES_PER_OPERATION, pages)])]
        };
        let [base, best] = [series(50.0, 1.0), series(1000.0, 250.0)];
        // The kernel refuses beside the load.
        let mut all =
            [base.clone(), best.clone(), series(100.0, 8.0), base, best, vec![Sample::new()]];
        compare_steps(&cases, &mut all);
        let get = |at: usize, name: &str| all[at][0].get(name).copied();
        assert_eq!((get(0, figures::SOONER), get(0, figures::OF_KERNEL)), (None, Some(0.5)));
        assert_eq!((get(1, figures::SOONER), get(1, figures::FEWER)), (Some(20.0), Some(250.0)));
        assert_eq!((get(1, figures::OF_KERNEL), get(2, figures::OF_KERNEL)), (Some(10.0), None));
        assert_eq!(
            (get(4, figures::SOONER), get(4, figures::OF_KERNEL), get(5, figures::SOONER)),
            (Some(20.0), None, None)
        );
    }

    #[test]
    fn the_load_is_a_share_in_whole_mib() {
        assert_eq!(
            [16 << 20, 100 << 20, 1 << 30, 8 << 30].map(|size| load_bytes(Bytes(size)) >> 20),
            [2, 12, 64, 64]
        );
    }
}
