//! `working-set`: which pages stay in memory, against FIFO, true LRU and Belady's optimum on the
//! same trace ([`crate::work::working_set`]).
//!
//! Nothing is compressed and pages come in one at a time, so that a miss is a page read from the
//! device or touched for the first time, for the engine as for the policies. Those have as many
//! frames as the budget has pages: what the engine keeps free, and what its buffers take, count
//! against it.

use crate::machine::*;
use crate::measure::*;
use crate::model::*;
use crate::work::working_set::policies::{self, Policy};
use crate::work::working_set::simulate;
use crate::work::working_set::trace::Pattern;
use overspill::units::Bytes;
use serde_json::json;

/// How much larger the device is than the budget: more than any trace touches.
const DEVICE: u64 = 6;

/// The policies that are simulated, by their steps.
const POLICIES: [(&str, Policy); 3] =
    [("fifo", policies::fifo), ("lru", policies::lru), ("belady", policies::belady)];

const ENGINE: &[&str] = &["overspill"];

/// The misses of a trace beside those of LRU.
const fn of_lru(trace: &'static [(&'static str, &'static str)], goal: Goal) -> Verdict {
    verdict(With(trace), ENGINE, "ratio_to_lru", "times the misses of LRU", goal)
}

/// No more than a tenth over LRU.
const NEAR: Goal = AtMost(1.1);

pub static LADDER: Ladder = Ladder {
    bench: "working-set",
    steps: &[
        Step::new("fifo", "First in, first out").instead("simulated"),
        Step::new("lru", "Least recently used").instead("simulated"),
        Step::new("belady", "What will not be touched for the longest time goes")
            .instead("simulated"),
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
            wide("misses", "misses_per_1000", short),
            col("of LRU", "ratio_to_lru", ratio),
            wide("hot", "hot_misses_per_1000", short),
            col("of LRU", "hot_ratio_to_lru", ratio),
            col("of LRU resident", "ratio_to_lru_of_resident", ratio),
            col("hot", "hot_ratio_to_lru_of_resident", ratio),
            col("resident", "resident_ratio", percent),
            col("in use", "charged_ratio", percent),
            col("minor a miss", "minor_faults_per_miss", ratio),
        ],
    }],
    comparisons: &[
        compare("ratio_to_lru", Times, "misses_per_1000", Base::Measure("lru")),
        compare("hot_ratio_to_lru", Times, "hot_misses_per_1000", Base::Measure("lru")),
    ],
    verdicts: &[
        of_lru(&[("trace", "zipf-2x")], NEAR),
        of_lru(&[("trace", "zipf-4x")], NEAR),
        of_lru(&[("trace", "hot-scan")], NEAR),
        verdict(All, ENGINE, "hot_ratio_to_lru", "times the hot misses of LRU", NEAR),
        of_lru(&[("trace", "uniform")], Told),
        of_lru(&[("trace", "loop")], Told),
    ],
    charts: &[
        chart("Misses by trace", "misses_per_1000", "of 1,000 accesses"),
        chart(
            "Misses of hot pages during one pass over four times the memory",
            "hot_misses_per_1000",
            "of 1,000 accesses",
        ),
    ],
    ..Ladder::NONE
};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The budget; what is accessed is 1.2 to 4.5 times as large
    #[arg(long, value_name = "SIZE", default_value = "32M")]
    size: Bytes,
    /// What is accessed [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    traces: Vec<Pattern>,
}

pub fn run(args: &Args, rounds: Option<u32>) -> Result<Findings, Failure> {
    // The pages of the RAM device, and those in memory.
    memory_for(args.size, args.size.0.saturating_mul(DEVICE + 1))?;
    let patterns = chosen(&args.traces);
    let device: SwapDevice = RAM.parse().expect("it is the default of other benches");
    let device = device.spec(Bytes(DEVICE * args.size.0));
    let cases = plan(&patterns);
    let mut series = crate::measure::rounds(&cases, rounds, |case| {
        if let Some(policy) = policy(case) {
            return Ok(simulate(case.what, args.size.pages() as u32, policy));
        }
        let request = pool::Request {
            settings: LADDER.settings_of(case),
            threads: 1,
            memory: args.size.0,
            bytes: args.size.0,
            device: device.clone(),
            what: case.what,
        };
        // A page of the budget is accessed many times.
        LADDER.ask(&request, 20 * args.size.pages())
    })?;
    // What policies miss is the same each time, and told once.
    let simulated = cases.iter().zip(&mut series).filter(|(case, _)| policy(case).is_some());
    simulated.for_each(|(_, series)| series.truncate(1));
    let own = json!({ "pinned": false, "size_bytes": args.size.0, "device": device });
    Ok(LADDER.found(&cases, series).with(own))
}

/// The policy that is simulated in a case, if it is not the engine's.
fn policy(case: &Case<Pattern>) -> Option<Policy> {
    POLICIES.iter().find(|(step, _)| *step == case.step).map(|(_, policy)| *policy)
}

/// The cases in the order of their rows: trace by trace.
fn plan(patterns: &[Pattern]) -> Vec<Case<Pattern>> {
    let labels = |pattern: Pattern| vec![("trace", json!(pattern.to_string()))];
    let case = |pattern, step| Ladder::case(step, labels(pattern), pattern);
    let of = |&pattern: &Pattern| LADDER.steps.iter().map(move |step| case(pattern, step));
    patterns.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn the_device_has_room_for_each_trace() {
        let mut traces = Pattern::value_variants().iter().map(|pattern| pattern.trace(100));
        assert!(traces.all(|trace| u64::from(trace.pages) < 100 * DEVICE));
    }

    #[test]
    fn lru_is_the_measure_of_each_trace() {
        let mut cases = plan(&[Pattern::HotScan, Pattern::Loop]);
        cases.retain(|case| policy(case).is_some());
        let simulated = |case: &Case<Pattern>| simulate(case.what, 256, policy(case).unwrap());
        let series = cases.iter().map(|case| vec![simulated(case)]).collect();
        let rows = LADDER.found(&cases, series).rows;
        let figure = |at: usize, name: &str| rows[at].get(name).unwrap().median;
        // First those of the scan: FIFO, LRU, the optimum.
        assert!(figure(0, "hot_ratio_to_lru") > 1.0);
        assert_eq!((figure(1, "ratio_to_lru"), figure(1, "hot_ratio_to_lru")), (1.0, 1.0));
        assert_eq!(figure(2, "hot_ratio_to_lru"), 0.0);
        // A loop defeats FIFO and LRU altogether.
        let misses = [3, 4, 5].map(|at| figure(at, "misses_per_1000"));
        assert!(misses[..2] == [1000.0; 2] && misses[2] < 250.0, "{misses:?}");
    }
}
