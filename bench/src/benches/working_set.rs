//! `working-set`: which pages stay in memory, against FIFO, true LRU and Belady's optimum on the
//! same trace.
//!
//! Nothing is compressed and pages come in one at a time, so that a miss is a page read from the
//! device or touched for the first time, for the engine as for the policies. Those have as many
//! frames as the budget has pages: what the engine keeps free, and what its buffers take, count
//! against it.
//!
//! [`run`] plans the cases and reads the results; [`trace`] is what is accessed, [`policies`] what
//! others would miss, [`work`] one measurement, [`figures`] what is counted, [`conclusion`] what it
//! shows, [`plot`] the drawing.

mod conclusion;
mod figures;
mod plot;
mod policies;
mod trace;
mod work;

pub use work::measure_one;

use super::common::Common;
use crate::ladder;
use crate::machine::swap_device::{RAM, SwapDevice};
use crate::measure::child;
use crate::measure::failure::Failure;
use crate::measure::host::Machine;
use crate::measure::{self, Sample, Series};
use crate::report::{self, Column, Findings, Report, Row, Table, percent, ratio, short};
use clap::ValueEnum;
use figures::Counted;
use overspill::base::Bytes;
use policies::Misses;
use serde_json::{Value, json};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use trace::{Pattern, Trace};
use work::Request;

/// Name of the bench.
pub const NAME: &str = "working-set";

/// How much larger the device is than the budget: more than any trace touches.
const DEVICE: u64 = 6;
/// Longest that a measurement may take: this, and what a page of the budget may take at the very
/// worst.
const LIMIT: Duration = Duration::from_secs(60);
const LIMIT_PER_PAGE: Duration = Duration::from_millis(20);
/// Settings of all pools, for misses to be as those of the policies.
const SETTINGS: &str = "compressed=0,same_filled=off,folio=1,readahead=1,clean=off";

/// Options of `overspill-bench working-set`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The budget; what is accessed is 1.2 to 4.5 times as large
    #[arg(long, value_name = "SIZE", default_value = "32M")]
    size: Bytes,
    /// What is accessed [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    traces: Vec<Pattern>,
    /// Draw the misses into a file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Step {
    /// First in, first out
    Fifo,
    /// Least recently used
    Lru,
    /// What will not be touched for the longest time goes
    Belady,
    /// The engine by default
    Overspill,
    /// The engine where it keeps less of the budget free: 2 to 3 %, not 5 to 8 %
    OverspillLessFree,
}

impl Step {
    /// That of a policy which is simulated.
    fn policy(self) -> Option<fn(&[u32], usize) -> Misses> {
        match self {
            Step::Fifo => Some(policies::fifo),
            Step::Lru => Some(policies::lru),
            Step::Belady => Some(policies::belady),
            Step::Overspill | Step::OverspillLessFree => None,
        }
    }

    /// Settings of a pool.
    fn settings(self) -> String {
        match self {
            Step::OverspillLessFree => format!("{SETTINGS},watermark.low=2%,watermark.high=3%"),
            _ => SETTINGS.to_owned(),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no step is skipped").get_name())
    }
}

/// One row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    pattern: Pattern,
    step: Step,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.pattern, self.step)
    }
}

const TABLES: &[Table] = &[Table {
    title: "Misses of 1,000 accesses, and as a multiple of those of LRU; the same of accesses to \
            the hot pages during the scan. Of the engine: both as multiples of those of LRU with \
            as many frames as pages were in memory on average, what share of the budget that was, \
            what was in use with all buffers, and faults that found their page in memory for each \
            miss.",
    columns: &[
        Column { title: "misses", figure: figures::MISSES, format: short, spread: true },
        Column { title: "of LRU", figure: figures::OF_LRU, format: ratio, spread: false },
        Column { title: "hot", figure: figures::HOT_MISSES, format: short, spread: true },
        Column { title: "of LRU", figure: figures::HOT_OF_LRU, format: ratio, spread: false },
        Column {
            title: "of LRU resident",
            figure: figures::OF_LRU_RESIDENT,
            format: ratio,
            spread: false,
        },
        Column { title: "hot", figure: figures::HOT_OF_LRU_RESIDENT, format: ratio, spread: false },
        Column { title: "resident", figure: figures::RESIDENT, format: percent, spread: false },
        Column { title: "in use", figure: figures::CHARGED, format: percent, spread: false },
        Column { title: "minor a miss", figure: figures::MINOR, format: ratio, spread: false },
    ],
}];

/// Measures and says what was found.
///
/// # Errors
/// When there is not memory enough, a measurement fails, or the drawing cannot be written.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    let machine = Machine::this();
    enough_memory(args.size, crate::measure::host::available_bytes())?;
    let patterns = ladder::chosen(&args.traces);
    let device: SwapDevice = RAM.parse().expect("it is the default of other benches");
    let device = device.spec(Bytes(DEVICE * args.size.0));
    // 1. The policies, once each: they miss the same each time.
    let simulated: Vec<(Case, Series)> =
        patterns.iter().flat_map(|pattern| simulate(*pattern, args.size)).collect();
    // 2. The engine, in rounds.
    let cases = plan(&patterns);
    let measured = measure::rounds(&cases, args.common.rounds, |case| {
        let request = Request {
            pattern: case.pattern,
            settings: case.step.settings(),
            memory: args.size.0,
            device: device.clone(),
        };
        child::ask(
            NAME,
            &request,
            LIMIT + LIMIT_PER_PAGE * args.size.pages().min(u32::MAX.into()) as u32,
        )
    })?;
    let rounds = measured[0].len();
    // 3. What they found, trace by trace.
    let mut found: Vec<(Case, Series)> =
        simulated.into_iter().chain(cases.into_iter().zip(measured)).collect();
    found.sort_by_key(|(case, _)| case.pattern);
    compare_with_lru(&mut found);
    let row = |(case, series): &(Case, Series)| {
        Row::new(
            &case.step.to_string(),
            &[("trace", json!(case.pattern.to_string()))],
            None,
            series,
        )
    };
    let rows: Vec<Row> = found.iter().map(row).collect();
    if let Some(path) = &args.plot {
        crate::plot::draw(path, &plot::title(&machine), &plot::charts(&rows))?;
    }
    let conclusion = conclusion::of(&rows);
    let report = Report { bench: NAME, machine, settings: settings(args, rounds, &device), rows };
    Ok(Findings { report, groups: &["trace"], tables: TABLES, conclusion, failed: None })
}

/// What is measured: the engine with each pattern.
fn plan(patterns: &[Pattern]) -> Vec<Case> {
    let steps = || Step::value_variants().iter().filter(|step| step.policy().is_none());
    patterns.iter().flat_map(|&pattern| steps().map(move |&step| Case { pattern, step })).collect()
}

/// The pages of the RAM device, those in memory and the tables must be there.
fn enough_memory(size: Bytes, available: u64) -> Result<(), Failure> {
    let needed = size.0.saturating_mul(DEVICE + 1);
    if needed > available {
        return Err(Failure::new(format!(
            "a --size of {size} needs {} of memory and {} is available: give a smaller --size",
            Bytes(needed),
            Bytes(available)
        )));
    }
    Ok(())
}

/// What each policy misses.
fn simulate(pattern: Pattern, size: Bytes) -> Vec<(Case, Series)> {
    let frames = size.pages() as u32;
    let trace = pattern.trace(frames);
    let policies = Step::value_variants().iter().filter_map(|step| Some((*step, step.policy()?)));
    let simulated = policies
        .map(|(step, policy)| (Case { pattern, step }, vec![missed(&trace, policy, frames)]));
    simulated.collect()
}

fn missed(trace: &Trace, policy: fn(&[u32], usize) -> Misses, frames: u32) -> Sample {
    Counted::of(trace, &policy(&trace.accesses, frames as usize)).sample(trace)
}

/// Adds to each case what its misses are as a multiple of those of LRU with the same trace.
fn compare_with_lru(found: &mut [(Case, Series)]) {
    let lru: Vec<(Pattern, Sample)> = found
        .iter()
        .filter(|(case, _)| case.step == Step::Lru)
        .map(|(case, series)| (case.pattern, series[0].clone()))
        .collect();
    for (case, series) in found {
        let Some((_, lru)) = lru.iter().find(|(pattern, _)| *pattern == case.pattern) else {
            continue;
        };
        for (figure, name) in
            [(figures::MISSES, figures::OF_LRU), (figures::HOT_MISSES, figures::HOT_OF_LRU)]
        {
            // LRU is the same in every round.
            let lru = vec![lru.clone(); series.len()];
            measure::compare(series, &lru, figure, name, |here, lru| here / lru);
        }
    }
}

fn settings(args: &Args, rounds: usize, device: &str) -> Value {
    let engine = Step::value_variants().iter().filter(|step| step.policy().is_none());
    let steps = report::by_name(engine.map(|step| (step, step.settings())));
    let own =
        json!({ "pinned": false, "size_bytes": args.size.0, "device": device, "steps": steps });
    report::settings(rounds, own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::config::Config;

    #[test]
    fn the_engine_has_the_settings_and_is_measured_with_each_pattern() {
        for step in Step::value_variants() {
            Config::default().apply_settings(&step.settings()).unwrap();
        }
        let args: Args = crate::testing::args("--traces loop,zipf-2x,loop --size 8M");
        let cases: Vec<String> =
            plan(&ladder::chosen(&args.traces)).iter().map(Case::to_string).collect();
        let steps = ["overspill", "overspill-less-free"];
        let of = |pattern: &str| steps.map(|step| format!("{pattern}, {step}"));
        assert_eq!(cases, [of("zipf-2x"), of("loop")].concat());
        assert!(
            Pattern::value_variants()
                .iter()
                .all(|pattern| u64::from(pattern.trace(100).pages) < 100 * DEVICE)
        );
    }

    #[test]
    fn lru_is_the_measure_of_each_trace() {
        let mut found: Vec<(Case, Series)> = [Pattern::HotScan, Pattern::Loop]
            .into_iter()
            .flat_map(|pattern| simulate(pattern, Bytes(1 << 20)))
            .collect();
        let round = crate::testing::sample([(figures::MISSES, 500.0)]);
        found.push((Case { pattern: Pattern::Loop, step: Step::Overspill }, vec![round; 2]));
        compare_with_lru(&mut found);
        let figure = |at: usize, name: &str| found[at].1[0].get(name).copied();
        // First those of the scan: FIFO, LRU, the optimum.
        assert!(figure(0, figures::HOT_OF_LRU).unwrap() > 1.0);
        assert_eq!(
            (figure(1, figures::OF_LRU), figure(1, figures::HOT_OF_LRU)),
            (Some(1.0), Some(1.0))
        );
        assert_eq!(
            (figure(2, figures::HOT_MISSES), figure(2, figures::HOT_OF_LRU)),
            (Some(0.0), Some(0.0))
        );
        // A loop defeats FIFO and LRU altogether.
        assert_eq!(
            (figure(3, figures::MISSES), figure(4, figures::MISSES)),
            (Some(1000.0), Some(1000.0))
        );
        assert!(figure(5, figures::MISSES).unwrap() < 250.0);
        assert!(
            found[6].1.iter().all(|sample| sample[figures::OF_LRU] == 0.5 && sample.len() == 2)
        );
    }

    #[test]
    fn what_does_not_fit_the_machine_is_refused_in_a_sentence() {
        assert!(enough_memory(Bytes(1 << 30), 7 << 30).is_ok());
        let failure = enough_memory(Bytes(1 << 30), 6 << 30).unwrap_err().to_string();
        assert!(failure.ends_with("give a smaller --size"), "{failure}");
    }
}
