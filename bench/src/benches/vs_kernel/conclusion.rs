//! What the figures show: each ratio beside what is to be reached, and how RAM was made equal.

use super::case::{Case, PROGRAMS_TARGET, Peer, RUN_TARGET, Setting, Step, target};
use super::ram::Ram;
use super::{Busy, figures};
use crate::ladder;
use crate::measure::Spread;
use crate::report::{Row, ratio, short, whole};
use clap::ValueEnum;
use overspill_bench::workload::Packing;
use std::collections::BTreeMap;

/// What was to be reached is about this overcommit.
const OVERCOMMIT: u32 = 4;
/// What of the memory in use a peer takes in RAM where swapping gains nothing.
const AS_MUCH: f64 = 0.9;
/// A minor fault, as a ratio to a bare one.
const MINOR_TARGET: f64 = 1.25;

/// The text, of several lines; `left_out` says why a peer was not measured.
pub fn of(
    cases: &[Case],
    rows: &[Row],
    ram: &Ram,
    left_out: &BTreeMap<String, String>,
    busy: &Busy,
    cpus: usize,
) -> String {
    let mut lines = Vec::new();
    for case in cases {
        let Case::Work(setting, step) = case else { continue };
        let figure = |name: &str| row(rows, setting, *step)?.figures.get(name).copied();
        if let (Some(to_reach), Some(ratio)) = (reach(setting, *step), figure(figures::RATIO)) {
            lines.push(line(setting, *step, ratio, to_reach, figure(figures::CPU_RATIO)));
        }
    }
    if !lines.is_empty() {
        lines.insert(
            0,
            "Elapsed time as a ratio to the peer's, and what is to be reached \
                         (library: processor time no higher, too):"
                .to_owned(),
        );
        lines.push(String::new());
    }
    lines.extend(programs(cases, rows));
    let floor = rows.iter().find(|row| row.step == "floor");
    if let Some(minor) = floor.and_then(|row| row.figures.get(figures::MINOR_RATIO)) {
        let met = met(*minor, MINOR_TARGET);
        lines.push(format!(
            "A minor fault takes {} times a bare fault with a copy; {MINOR_TARGET}: {met}.",
            ratio(minor.median)
        ));
    }
    lines.extend(same_ram(cases, rows));
    lines.extend(not_packed(cases, rows, ram));
    lines.extend(raised(cases, ram));
    if rows
        .iter()
        .any(|row| row.figures.get(figures::SAME_CODEC).is_some_and(|same| same.min < 1.0))
    {
        lines.push(
            "This kernel has no lz4 for zswap, which compressed with what it has by default \
             (mostly lzo) instead."
                .to_owned(),
        );
    }
    if busy.began > cpus as f64 / 2.0 {
        lines.push(format!(
            "Others were at work here: the load average was {} before this began and {} at the \
             end, on {cpus} processors. Elapsed times are those of a busy machine; processor \
             times suffer less.",
            short(busy.began),
            short(busy.ended)
        ));
    }
    for (name, reason) in left_out {
        let whose = if Peer::value_variants().iter().any(|peer| peer.to_string() == *name) {
            "The kernel's "
        } else {
            ""
        };
        lines.push(format!(
            "{whose}{name} was left out, or in some rounds: {}.",
            reason.trim_end_matches('.')
        ));
    }
    lines.join("\n")
}

/// The median over the real programs of the ratio to each peer.
fn programs(cases: &[Case], rows: &[Row]) -> Vec<String> {
    let settings = |peer: Peer, step: Step| {
        let of = move |case: &Case| match case {
            Case::Work(setting, this) if setting.peer == peer && *this == step => {
                setting.task.program().map(|_| *setting)
            }
            _ => None,
        };
        cases.iter().filter_map(of).filter(|setting| setting.overcommit == OVERCOMMIT)
    };
    let mut lines = Vec::new();
    for peer in ladder::chosen::<Peer>(&[]) {
        for step in [Step::OverspillThread, Step::OverspillSignal] {
            let ratios: Vec<(String, f64)> = settings(peer, step)
                .filter_map(|setting| {
                    let ratio = row(rows, &setting, step)?.figures.get(figures::RATIO)?.median;
                    Some((setting.task.to_string(), ratio))
                })
                .collect();
            if ratios.is_empty() {
                continue;
            }
            let told: Vec<String> =
                ratios.iter().map(|(name, value)| format!("{name} {}", ratio(*value))).collect();
            let median = Spread::of(ratios.into_iter().map(|(_, ratio)| ratio).collect());
            let to_reach = PROGRAMS_TARGET[peer as usize];
            let run = match peer {
                Peer::Zram => {
                    format!("; {} in overspill run: {}", ratio(RUN_TARGET), met(median, RUN_TARGET))
                }
                Peer::Zswap | Peer::File => String::new(),
            };
            lines.push(format!(
                "  {:<6} {:<17} {} ({}), to reach {}: {}{run}",
                peer.to_string() + ",",
                step.to_string() + ":",
                ratio(median.median),
                told.join(", "),
                ratio(to_reach),
                met(median, to_reach),
            ));
        }
    }
    if !lines.is_empty() {
        lines.insert(
            0,
            "Real programs, elapsed time from start to end as a ratio to the peer's \
                         (redis: of the reads): the median of them against"
                .to_owned(),
        );
        lines.push(String::new());
    }
    lines
}

fn row<'r>(rows: &'r [Row], setting: &Setting, step: Step) -> Option<&'r Row> {
    let label = |row: &Row, name: &str, text: String| {
        row.labels.get(name).is_some_and(|label| label.as_str() == Some(&text))
    };
    let number = |row: &Row, name: &str, n: u32| {
        row.labels.get(name).is_some_and(|label| label.as_u64() == Some(n.into()))
    };
    rows.iter().find(|row| {
        row.step == step.to_string()
            && label(row, "workload", setting.task.to_string())
            && label(row, "peer", setting.peer.to_string())
            && label(row, "contents", setting.contents())
            && number(row, "overcommit", setting.overcommit)
            && number(row, "threads", setting.threads)
    })
}

/// What is to be reached, where that was said.
fn reach(setting: &Setting, step: Step) -> Option<f64> {
    let of = setting.overcommit == OVERCOMMIT && setting.packing == Some(Packing::Heap);
    target(setting.task, setting.peer, step).filter(|_| of)
}

fn line(
    setting: &Setting,
    step: Step,
    elapsed: Spread,
    to_reach: f64,
    cpu: Option<Spread>,
) -> String {
    let Setting { task, peer, threads, .. } = setting;
    let processor = cpu.map_or(String::new(), |cpu| {
        // More processor time than the peer's is a miss where the library is concerned.
        let missed = if step == Step::Library && cpu.median > 1.0 { ": missed" } else { "" };
        format!("; processor time {}{missed}", ratio(cpu.median))
    });
    format!(
        "  {:<10} {threads} thread{} against {:<6} {:<17} {} ({} to {}), to reach {}: {}{processor}",
        task.to_string(),
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

/// Who got more than was asked for, because the kernel could not do with that.
fn raised(cases: &[Case], ram: &Ram) -> Option<String> {
    let more = |case: &Case| match case {
        Case::Work(setting, Step::Peer) if ram.raised_by(setting) > 0 => {
            let Setting { task, peer, overcommit, .. } = setting;
            let bytes = whole(ram.raised_by(setting) as f64 / f64::from(1 << 20));
            Some(format!("{task} with {peer} at {overcommit}x got {bytes} MiB more"))
        }
        _ => None,
    };
    let told: Vec<String> = cases.iter().filter_map(more).collect();
    (!told.is_empty()).then(|| {
        format!(
            "The kernel ended programs for want of memory, which then got more, and overspill as \
             much: {}.",
            told.join("; ")
        )
    })
}

/// Where a peer took as much RAM as there was memory to swap.
fn not_packed(cases: &[Case], rows: &[Row], ram: &Ram) -> Option<String> {
    let as_much = |case: &&Case| {
        let Case::Work(setting, Step::Peer) = case else { return false };
        let took = row(rows, setting, Step::Peer).and_then(|row| row.figures.get(figures::RAM));
        took.is_some_and(|took| took.median >= AS_MUCH * ram.needs(setting.task) as f64)
    };
    let n = cases.iter().filter(as_much).count();
    (n > 0).then(|| {
        format!(
            "In {n} of the comparisons the peer took nearly as much RAM as there was memory in \
             use, or more, for what it keeps does not pack: swapping gains nothing there, and \
             overspill, with as much, has little to swap."
        )
    })
}

/// What the peers took in RAM.
fn same_ram(cases: &[Case], rows: &[Row]) -> Option<String> {
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
        .map(|(peer, (pool, total))| {
            format!("{peer}'s took up to {} MiB, {} MiB all in all", mib(*pool), mib(*total))
        })
        .collect();
    (!told.is_empty()).then(|| {
        format!(
            "RAM is the same on both sides: overspill's budget is what the peer took in the same \
             round, with its compressed pool outside of the cgroup ({}), less what overspill \
             takes beside its budget. Where its pages fit, the limit of the cgroup is lowered by \
             the pool in the next round.",
            told.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::case::{Program, Task};
    use super::*;
    use crate::testing::sample;
    use overspill::units::Bytes;
    use overspill_bench::workload::Workload;
    use serde_json::json;

    const QUIET: Busy = Busy { began: 0.1, ended: 1.0 };

    fn setting(packing: Packing) -> Setting {
        Setting {
            task: Task::Accesses(Workload::SeqRead),
            peer: Peer::Zram,
            overcommit: 4,
            packing: Some(packing),
            threads: 1,
        }
    }

    fn row(packing: Packing, step: Step, figures: &[(&str, f64)]) -> Row {
        let labels = [
            ("workload", json!("seq-read")),
            ("peer", json!("zram")),
            ("overcommit", json!(4)),
            ("contents", json!(packing.to_string())),
            ("threads", json!(1)),
        ];
        let round = |scale: f64| sample(figures.iter().map(|(name, value)| (*name, value * scale)));
        Row::new(&step.to_string(), &labels, None, &vec![round(0.9), round(1.0), round(1.1)])
    }

    #[test]
    fn each_target_is_met_or_missed_with_its_figure() {
        let steps = [Step::Peer, Step::OverspillThread, Step::Library];
        let cases: Vec<Case> = [Packing::Heap, Packing::None]
            .into_iter()
            .flat_map(|packing| steps.map(|step| Case::Work(setting(packing), step)))
            .collect();
        let pool = [(figures::POOL, 100.0 * 1048576.0), (figures::RAM, 200.0 * 1048576.0)];
        let rows = [
            row(Packing::Heap, Step::Peer, &pool),
            row(
                Packing::Heap,
                Step::OverspillThread,
                &[(figures::RATIO, 0.7), (figures::CPU_RATIO, 1.5)],
            ),
            row(Packing::Heap, Step::Library, &[(figures::RATIO, 0.5), (figures::CPU_RATIO, 1.2)]),
            row(Packing::None, Step::Library, &[(figures::RATIO, 0.5)]),
        ];
        let text = of(&cases, &rows, &Ram::new(Bytes(1 << 28)), &BTreeMap::new(), &QUIET, 2);
        for said in [
            "overspill-thread: 0.70 (0.63 to 0.77), to reach 0.80: met; processor time 1.50\n",
            "library:          0.50 (0.45 to 0.55), to reach 0.35: missed; processor time 1.20: \
             missed\n",
            "zram's took up to 110 MiB, 220 MiB all in all",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert_eq!(
            text.matches("to reach").count(),
            2,
            "nothing was said of other contents: {text}"
        );
        assert!(!text.contains("left out") && !text.contains("Others"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_not_told_and_why_is() {
        let left_out = BTreeMap::from([("zram".to_owned(), "it needs root".to_owned())]);
        let text = of(
            &[Case::Floor],
            &[],
            &Ram::new(Bytes(1 << 28)),
            &left_out,
            &Busy { began: 3.0, ended: 4.0 },
            2,
        );
        assert!(
            text.starts_with("Others were at work here: the load average was 3.0 before"),
            "{text}"
        );
        assert!(
            text.ends_with("The kernel's zram was left out, or in some rounds: it needs root."),
            "{text}"
        );
    }

    #[test]
    fn programs_have_a_median_and_peers_that_pack_nothing_are_told() {
        let setting = |program| Setting {
            task: Task::Program(program),
            packing: None,
            ..setting(Packing::Heap)
        };
        let programs = [(Program::Sort, 0.5), (Program::Redis, 0.75), (Program::Cxx, 2.0)];
        let cases: Vec<Case> = programs
            .iter()
            .flat_map(|(program, _)| {
                [Step::Peer, Step::OverspillThread].map(|step| Case::Work(setting(*program), step))
            })
            .collect();
        let rows: Vec<Row> = programs
            .iter()
            .flat_map(|(program, ratio)| {
                let figures = |step| {
                    if step == Step::Peer { (figures::RAM, 1e9) } else { (figures::RATIO, *ratio) }
                };
                [Step::Peer, Step::OverspillThread].map(|step| {
                    let mut row = row(Packing::Heap, step, &[figures(step)]);
                    row.labels.insert("workload".to_owned(), json!(program.to_string()));
                    row.labels.insert("contents".to_owned(), json!("its own"));
                    row
                })
            })
            .collect();
        let mut ram = Ram::new(Bytes(1 << 28));
        ram.raise(&setting(Program::Redis));
        let text = of(&cases, &rows, &ram, &BTreeMap::new(), &QUIET, 2);
        for said in [
            "zram,  overspill-thread: 0.75 (sort 0.50, redis 0.75, cxx 2.00), to reach 0.70: \
             missed; 0.80 in overspill run: met\n",
            "In 3 of the comparisons the peer took nearly as much RAM",
            "redis with zram at 4x got 16 MiB more.",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}
