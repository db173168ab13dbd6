//! What the figures show: each ratio beside what is to be reached, and how RAM was made equal.

use super::case::{Case, Peer, Setting, Step, target};
use super::figures;
use crate::measure::Spread;
use crate::report::{Row, ratio, whole};
use overspill_bench::workload::Packing;
use std::collections::BTreeMap;

/// What was to be reached is about this overcommit.
const OVERCOMMIT: u32 = 4;
/// A minor fault, as a ratio to a bare one.
const MINOR_TARGET: f64 = 1.25;

/// The text, of several lines; `left_out` says why a peer was not measured.
pub fn of(cases: &[Case], rows: &[Row], left_out: &BTreeMap<Peer, String>) -> String {
    let mut lines = Vec::new();
    for case in cases {
        let Case::Work(setting, step) = case else { continue };
        let figure = |name: &str| row(rows, setting, *step)?.figures.get(name).copied();
        if let (Some(to_reach), Some(ratio)) = (reach(setting, *step), figure(figures::RATIO)) {
            lines.push(line(setting, *step, ratio, to_reach, figure(figures::CPU_RATIO)));
        }
    }
    if !lines.is_empty() {
        lines.insert(0, "Elapsed time as a ratio to the peer's, and what is to be reached (library: processor time no higher, too):".to_owned());
        lines.push(String::new());
    }
    let floor = rows.iter().find(|row| row.step == "floor");
    if let Some(minor) = floor.and_then(|row| row.figures.get(figures::MINOR_RATIO)) {
        let met = met(*minor, MINOR_TARGET);
        lines.push(format!(
            "A minor fault takes {} times a bare fault with a copy; {MINOR_TARGET}: {met}.",
            ratio(minor.median)
        ));
    }
    lines.extend(ram(cases, rows));
    for (peer, reason) in left_out {
        lines.push(format!("The kernel's {peer} was left out: {reason}."));
    }
    lines.join("\n")
}

fn row<'r>(rows: &'r [Row], setting: &Setting, step: Step) -> Option<&'r Row> {
    let label =
        |row: &Row, name: &str, text: String| row.labels.get(name).is_some_and(|label| label.as_str() == Some(&text));
    let number =
        |row: &Row, name: &str, n: u32| row.labels.get(name).is_some_and(|label| label.as_u64() == Some(n.into()));
    rows.iter().find(|row| {
        row.step == step.to_string()
            && label(row, "workload", setting.workload.to_string())
            && label(row, "peer", setting.peer.to_string())
            && label(row, "contents", setting.packing.to_string())
            && number(row, "overcommit", setting.overcommit)
            && number(row, "threads", setting.threads)
    })
}

/// What is to be reached, where that was said.
fn reach(setting: &Setting, step: Step) -> Option<f64> {
    let of = setting.overcommit == OVERCOMMIT && setting.packing == Packing::Heap;
    target(setting.workload, setting.peer, step).filter(|_| of)
}

fn line(setting: &Setting, step: Step, elapsed: Spread, to_reach: f64, cpu: Option<Spread>) -> String {
    let Setting { workload, peer, threads, .. } = setting;
    // More processor time than the peer's is a miss where the library is concerned.
    let dear = cpu.filter(|cpu| step == Step::Library && cpu.median > 1.0);
    let dear = dear.map_or(String::new(), |cpu| format!(", and processor time {} times the peer's", ratio(cpu.median)));
    format!(
        "  {:<10} {threads} thread{} against {:<6} {:<17} {} ({} to {}), to reach {}: {}{dear}",
        workload.to_string(),
        if *threads == 1 { " " } else { "s" },
        peer.to_string() + ",",
        step.to_string() + ":",
        ratio(elapsed.median),
        ratio(elapsed.min),
        ratio(elapsed.max),
        ratio(to_reach),
        met(elapsed, to_reach),
    )
}

fn met(figure: Spread, most: f64) -> &'static str {
    if figure.median <= most { "met" } else { "missed" }
}

/// What the peers took in RAM.
fn ram(cases: &[Case], rows: &[Row]) -> Option<String> {
    let mib = |bytes: f64| whole(bytes / f64::from(1 << 20));
    let mut pools: BTreeMap<Peer, (f64, f64)> = BTreeMap::new();
    for case in cases {
        let Case::Work(setting, Step::Peer) = case else { continue };
        let figure = |name: &str| Some(row(rows, setting, Step::Peer)?.figures.get(name)?.max);
        if let (Some(pool @ 1.0..), Some(total)) = (figure(figures::POOL), figure(figures::RAM)) {
            let most = pools.entry(setting.peer).or_default();
            *most = (most.0.max(pool), most.1.max(total));
        }
    }
    let told: Vec<String> = pools
        .iter()
        .map(|(peer, (pool, total))| format!("{peer}'s took up to {} MiB, {} MiB all in all", mib(*pool), mib(*total)))
        .collect();
    (!told.is_empty()).then(|| {
        format!(
            "RAM is the same on both sides: overspill's budget is what the peer took in the same round, with its compressed pool \
             outside of the cgroup ({}), less what overspill takes beside its budget. Where its pages fit, the limit of the cgroup \
             is lowered by the pool in the next round.",
            told.join("; ")
        )
    })
}
