//! `working-set`: which pages stay in memory, against FIFO, true LRU and Belady's optimum on the
//! same trace ([`crate::work::working_set`]).
//!
//! Nothing is compressed and pages come in one at a time, so that a miss is a page read from the
//! device or touched for the first time, for the engine as for the policies. Those have as many
//! frames as the budget has pages: what the engine keeps free, and what its buffers take, count
//! against it.

use super::common::Common;
use crate::machine::room;
use crate::machine::swap_device::{RAM, SwapDevice};
use crate::measure::{self, Failure, Series, child};
use crate::model::declare::{
    Base, Goal, How, Ladder, Rows, Step, Table, Title, Verdict, chart, col, compare, verdict, wide,
};
use crate::model::findings::{Findings, settings};
use crate::model::format::{percent, ratio, short};
use crate::model::ladder::chosen;
use crate::model::row::{Case, Row};
use crate::render::plot;
use crate::work::working_set::policies::{self, Policy};
use crate::work::working_set::trace::Pattern;
use crate::work::working_set::{Request, figures, simulate};
use overspill::units::Bytes;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

pub use crate::work::working_set::measure_one;

/// Name of the bench.
pub const NAME: &str = "working-set";

/// How much larger the device is than the budget: more than any trace touches.
const DEVICE: u64 = 6;
/// Longest that a measurement may take: this, and what a page of the budget may take at the very
/// worst.
const LIMIT: Duration = Duration::from_secs(60);
const LIMIT_PER_PAGE: Duration = Duration::from_millis(20);

/// [`figures::MISSES`] and [`figures::HOT_MISSES`] as multiples of those of LRU.
const OF_LRU: &str = "ratio_to_lru";
const HOT_OF_LRU: &str = "hot_ratio_to_lru";

/// The policies that are simulated, by their steps.
const POLICIES: [(&str, Policy); 3] =
    [("fifo", policies::fifo), ("lru", policies::lru), ("belady", policies::belady)];

/// No more than a tenth over LRU.
const fn near_lru(trace: &'static [(&'static str, &'static str)]) -> Verdict {
    verdict(&["overspill"], OF_LRU, "times the misses of LRU", Goal::AtMost(1.1))
        .of(Rows::With(trace))
}

/// The same where there is no goal.
const fn told(trace: &'static [(&'static str, &'static str)]) -> Verdict {
    verdict(&["overspill"], OF_LRU, "times the misses of LRU", Goal::Told).of(Rows::With(trace))
}

/// What is measured, and what is told of it.
pub static LADDER: Ladder = Ladder {
    bench: NAME,
    steps: &[
        Step::new("fifo", "First in, first out"),
        Step::new("lru", "Least recently used"),
        Step::new("belady", "What will not be touched for the longest time goes"),
        Step::new("overspill", "The engine by default")
            .set("compressed=0,same_filled=off,folio=1,readahead=1,clean=off"),
        Step::new(
            "overspill-less-free",
            "The engine where it keeps less of the budget free: 2 to 3 %, not 5 to 8 %",
        )
        .from("overspill", "watermark=auto/2%/3%"),
    ],
    groups: &["trace"],
    tables: &[Table {
        title: "Misses of 1,000 accesses, and as a multiple of those of LRU; the same of accesses \
                to the hot pages during the scan. Of the engine: both as multiples of those of \
                LRU with as many frames as pages were in memory on average, what share of the \
                budget that was, what was in use with all buffers, and faults that found their \
                page in memory for each miss.",
        columns: &[
            wide("misses", figures::MISSES, short),
            col("of LRU", OF_LRU, ratio),
            wide("hot", figures::HOT_MISSES, short),
            col("of LRU", HOT_OF_LRU, ratio),
            col("of LRU resident", figures::OF_LRU_RESIDENT, ratio),
            col("hot", figures::HOT_OF_LRU_RESIDENT, ratio),
            col("resident", figures::RESIDENT, percent),
            col("in use", figures::CHARGED, percent),
            col("minor a miss", figures::MINOR, ratio),
        ],
    }],
    comparisons: &[
        compare(OF_LRU, How::Times, figures::MISSES, Base::Measure("lru")),
        compare(HOT_OF_LRU, How::Times, figures::HOT_MISSES, Base::Measure("lru")),
    ],
    verdicts: &[
        near_lru(&[("trace", "zipf-2x")]),
        near_lru(&[("trace", "zipf-4x")]),
        near_lru(&[("trace", "hot-scan")]),
        verdict(&["overspill"], HOT_OF_LRU, "times the hot misses of LRU", Goal::AtMost(1.1)),
        told(&[("trace", "uniform")]),
        told(&[("trace", "loop")]),
    ],
    charts: &[
        chart(Title::Is("Misses by trace"), figures::MISSES, "of 1,000 accesses", by_trace),
        chart(
            Title::Is("Misses of hot pages during one pass over four times the memory"),
            figures::HOT_MISSES,
            "of 1,000 accesses",
            by_trace,
        ),
    ],
    origin: "",
};

fn by_trace(row: &Row) -> (String, String) {
    (row.label("trace"), row.step.clone())
}

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

/// Measures.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    // The pages of the RAM device, and those in memory.
    room::memory(args.size, args.size.0.saturating_mul(DEVICE + 1))?;
    let patterns = chosen(&args.traces);
    let device: SwapDevice = RAM.parse().expect("it is the default of other benches");
    let device = device.spec(Bytes(DEVICE * args.size.0));
    // 1. The engine, in rounds.
    let engine = plan(&patterns);
    let measured = measure::rounds(&engine, args.common.rounds, |case| {
        let request = Request {
            pattern: case.what,
            settings: LADDER.settings_of(case),
            memory: args.size.0,
            device: device.clone(),
        };
        let pages = args.size.pages().min(u32::MAX.into()) as u32;
        child::ask(NAME, &request, LIMIT + LIMIT_PER_PAGE * pages)
    })?;
    let rounds = measured[0].len();
    // 2. The policies, once each: they miss the same each time. All of it trace by trace.
    let mut found = simulated(&patterns, args.size.pages() as u32);
    found.extend(engine.into_iter().zip(measured));
    found.sort_by_key(|(case, _)| case.what);
    let (cases, series): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let steps = LADDER.steps.iter().filter(|step| step.settings.is_some());
    let own = json!({
        "pinned": false,
        "size_bytes": args.size.0,
        "device": device,
        "steps": LADDER.made_of(&steps.collect::<Vec<_>>()),
    });
    let rows = LADDER.rows(&cases, series);
    let findings = Findings::new(&LADDER, settings(rounds, own), rows);
    plot::draw(args.plot.as_deref(), &findings)?;
    Ok(findings)
}

fn case(pattern: Pattern, step: &Step) -> Case<Pattern> {
    Ladder::case(step, vec![("trace", json!(pattern.to_string()))], pattern)
}

/// What is measured: the engine with each pattern.
fn plan(patterns: &[Pattern]) -> Vec<Case<Pattern>> {
    let steps = || LADDER.steps.iter().filter(|step| step.settings.is_some());
    patterns.iter().flat_map(|&pattern| steps().map(move |step| case(pattern, step))).collect()
}

/// What each policy misses with each pattern.
fn simulated(patterns: &[Pattern], frames: u32) -> Vec<(Case<Pattern>, Series)> {
    let of = |&pattern: &Pattern| {
        POLICIES.map(|(name, policy)| {
            let step = LADDER.step(name).expect("each policy is a step");
            (case(pattern, step), vec![simulate(pattern, frames, policy)])
        })
    };
    patterns.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn the_engine_is_measured_with_each_pattern() {
        let args: Args = crate::fixture::args("--traces loop,zipf-2x,loop --size 8M");
        let cases: Vec<String> = plan(&chosen(&args.traces)).iter().map(Case::to_string).collect();
        let of = |pattern: &str| {
            ["overspill", "overspill-less-free"].map(|step| format!("{step}, {pattern}"))
        };
        assert_eq!(cases, [of("zipf-2x"), of("loop")].concat());
        let mut traces = Pattern::value_variants().iter().map(|pattern| pattern.trace(100));
        assert!(traces.all(|trace| u64::from(trace.pages) < 100 * DEVICE));
    }

    #[test]
    fn lru_is_the_measure_of_each_trace() {
        let mut found = simulated(&[Pattern::HotScan, Pattern::Loop], 256);
        let round = crate::fixture::sample([(figures::MISSES, 500.0)]);
        found.push((case(Pattern::Loop, LADDER.step("overspill").unwrap()), vec![round; 2]));
        let (cases, series): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let rows = LADDER.rows(&cases, series);
        let figure = |at: usize, name: &str| rows[at].get(name).map(|spread| spread.median);
        // First those of the scan: FIFO, LRU, the optimum.
        assert!(figure(0, HOT_OF_LRU).unwrap() > 1.0);
        assert_eq!((figure(1, OF_LRU), figure(1, HOT_OF_LRU)), (Some(1.0), Some(1.0)));
        assert_eq!((figure(2, figures::HOT_MISSES), figure(2, HOT_OF_LRU)), (Some(0.0), Some(0.0)));
        // A loop defeats FIFO and LRU altogether.
        let misses = [3, 4].map(|at| figure(at, figures::MISSES));
        assert_eq!(misses, [Some(1000.0), Some(1000.0)]);
        assert!(figure(5, figures::MISSES).unwrap() < 250.0);
        assert_eq!((figure(6, OF_LRU), rows[6].get(OF_LRU).unwrap().rounds), (Some(0.5), 2));
    }
}
