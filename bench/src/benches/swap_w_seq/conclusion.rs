//! What the figures show, in sentences, each target with whether it is met.

use super::figures::{self, LOCKS, Phase};
use super::step::Step;
use crate::measure::host::Machine;
use crate::measure::{ROUNDS_BY_DEFAULT, Spread};
use crate::report::{Row, gain, percent, short, whole};
use clap::ValueEnum;
use serde_json::Value;

/// How many times the longest serial time is to fall by, from the first step to the last.
const SERIAL_TARGET: f64 = 10.0;
/// How many times the pages a second at which a lock saturates are to grow: what the origin's
/// throughput grew.
const SATURATION_TARGET: f64 = 2.92;
/// Share of the time that swap locks may take with two threads, at the last step.
const SHARE_TARGET: f64 = 0.01;
const SHARE_THREADS: u64 = 2;

/// The sentences.
pub fn of(rows: &[Row], machine: &Machine) -> String {
    let rows = Rows(rows);
    let last = Step::value_variants().last().copied().expect("there are steps");
    let threads = rows.threads().into_iter().max().unwrap_or(0);
    let mut sentences =
        vec![format!("{threads} thread{} on {} CPUs.", plural(threads), machine.cpus)];
    for phase in [Phase::Out, Phase::In] {
        sentences.extend(serial(&rows, threads, last, phase));
    }
    let one_alone = sentences.len() == 1;
    sentences.extend(share(&rows, last));
    sentences.extend(losses(&rows));
    if one_alone {
        sentences.remove(0);
        sentences.push(
            "One step alone is compared with nothing: measure baseline and batches too.".to_owned(),
        );
    }
    let theirs: Vec<String> = Step::value_variants()
        .iter()
        .filter_map(|step| step.reference_kib_per_s())
        .map(whole)
        .collect();
    sentences.push(format!(
        "For context, the kernel patches that the first four steps come from, on their machine of \
         2017, 32 processes: {} KiB/s out (+192 %).",
        theirs.join(" -> ")
    ));
    sentences.join(" ")
}

/// The rows, to be asked.
struct Rows<'a>(&'a [Row]);

impl Rows<'_> {
    fn threads_of(row: &Row) -> u64 {
        row.labels.get("threads").and_then(Value::as_u64).unwrap_or(0)
    }

    /// Numbers of threads, in the order of the rows.
    fn threads(&self) -> Vec<u64> {
        let mut threads: Vec<u64> = self.0.iter().map(Rows::threads_of).collect();
        threads.dedup();
        threads
    }

    fn figure(&self, step: Step, threads: u64, name: &str) -> Option<Spread> {
        let mine = |row: &&Row| Rows::threads_of(row) == threads && row.step == step.to_string();
        self.0.iter().find(mine)?.figures.get(name).copied()
    }

    /// What the lock is called at which a page takes longest, one after another.
    fn limit(&self, step: Step, threads: u64, phase: Phase) -> Option<&'static str> {
        let serial = |name: &str| {
            self.figure(step, threads, &phase.figure(name)).map(|spread| spread.median)
        };
        let times = LOCKS
            .iter()
            .filter_map(|lock| Some((serial(&lock.figure("serial_ns_per_page"))?, lock.title)));
        Some(times.max_by(|a, b| a.0.total_cmp(&b.0))?.1)
    }
}

/// What became of the longest serial time.
fn serial(rows: &Rows<'_>, threads: u64, last: Step, phase: Phase) -> Option<String> {
    let figure = |step: Step, name: &str| rows.figure(step, threads, &phase.figure(name));
    let median = |step: Step, name: &str| figure(step, name).map(|spread| spread.median);
    let less = figure(last, figures::SERIAL_LESS)?;
    let way = match phase {
        Phase::Out => "out",
        Phase::In => "in",
    };
    let more = median(last, figures::SATURATION_MORE)?;
    let spread = median(last, figures::SPREAD_LESS).map_or(String::new(), |spread| {
        format!(
            " Of the locks of swap alone, and were swap space in use evenly, it would be {} ({}).",
            times_less(spread),
            met(spread, SERIAL_TARGET)
        )
    });
    Some(format!(
        "A page on its way {way} holds the lock that would limit it for {} ns, at the baseline \
         for {} ns: {} ({} to {} times less by round; {}). It would saturate at {} pages a second \
         rather than {}, {} times that ({}). At the baseline it is {}, at the end {}.{spread}",
        short(median(last, figures::SERIAL)?),
        short(median(Step::Baseline, figures::SERIAL)?),
        times_less(less.median),
        short(less.min),
        short(less.max),
        met(less.median, SERIAL_TARGET),
        whole(median(last, figures::SATURATION)?),
        whole(median(Step::Baseline, figures::SATURATION)?),
        short(more),
        met(more, SATURATION_TARGET),
        rows.limit(Step::Baseline, threads, phase)?,
        rows.limit(last, threads, phase)?,
    ))
}

fn times_less(ratio: f64) -> String {
    if ratio >= 1.0 {
        format!("{} times less", short(ratio))
    } else {
        format!("{} times more", short(1.0 / ratio))
    }
}

fn met(value: f64, target: f64) -> String {
    if value >= target {
        format!("the target of {target} is met")
    } else {
        format!("the target of {target} is missed")
    }
}

/// What part of the time swap locks take with two threads.
fn share(rows: &Rows<'_>, last: Step) -> Option<String> {
    let share = |phase: Phase| {
        Some(rows.figure(last, SHARE_THREADS, &phase.figure(figures::SHARE))?.median)
    };
    let (out, back) = (share(Phase::Out)?, share(Phase::In)?);
    let met = if out.max(back) < SHARE_TARGET { "met" } else { "missed" };
    Some(format!(
        "With {SHARE_THREADS} threads, swap locks take {} of the time on the way out and {} on \
         the way in (the target of below {} is {met}).",
        percent(out),
        percent(back),
        percent(SHARE_TARGET)
    ))
}

/// The steps that are slower than the one before in every round.
fn losses(rows: &Rows<'_>) -> Option<String> {
    let mut slower = Vec::new();
    let mut compared = Vec::new();
    for threads in rows.threads() {
        for step in Step::value_variants().iter().copied() {
            for (phase, way) in [(Phase::Out, "out"), (Phase::In, "in")] {
                let Some(change) = rows.figure(step, threads, &phase.figure(figures::GAIN)) else {
                    continue;
                };
                compared.push(change.rounds);
                if change.max < 0.0 {
                    let plural = plural(threads);
                    slower.push(format!(
                        "{step} with {threads} thread{plural}, {way} ({})",
                        gain(change.median)
                    ));
                }
            }
        }
    }
    let rounds = *compared.iter().min()?;
    if rounds < ROUNDS_BY_DEFAULT as usize {
        return Some(
            "Too few rounds to tell whether a step is slower than the one before.".to_owned(),
        );
    }
    if slower.is_empty() {
        return Some("No step is slower than the one before in every round (met).".to_owned());
    }
    // Steps that do not differ are slower in every round now and then, one of 2^rounds.
    let by_chance = compared.len() as f64 / 2f64.powi(rounds as i32);
    let verdict = if slower.len() as f64 <= by_chance + 2.0 * by_chance.sqrt() {
        "which more rounds would tell from chance"
    } else {
        "more than chance explains: missed"
    };
    Some(format!(
        "Slower than the step before in every round: {} ({} of {} comparisons, {verdict}).",
        slower.join("; "),
        slower.len(),
        compared.len()
    ))
}

fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Sample;
    use crate::testing::{machine, row};
    use serde_json::json;

    fn ladder(less: f64, change: [f64; 3], share: f64) -> Vec<Row> {
        let serial = |name: &'static str, value: f64| (name, [value; 3]);
        let baseline = [
            serial(figures::SERIAL, 1000.0),
            serial(figures::SATURATION, 1e6),
            serial("locks.slot_lock.serial_ns_per_page", 1000.0),
        ];
        let last = [
            serial(figures::SERIAL, 1000.0 / less),
            serial(figures::SATURATION, 1e6 * less),
            serial("locks.zone_lock.serial_ns_per_page", 1000.0 / less),
            serial("locks.slot_lock.serial_ns_per_page", 1.0),
            serial(figures::SERIAL_LESS, less),
            serial(figures::SATURATION_MORE, less),
            serial(figures::SPREAD_LESS, 4.0 * less),
            (figures::GAIN, change),
            serial(figures::SHARE, share),
            serial("in.swap_locks_ratio", 0.001),
        ];
        vec![row(Step::Baseline, 2, &baseline), row(Step::Batches, 2, &last)]
    }

    #[test]
    fn each_target_is_judged() {
        let good = of(&ladder(20.0, [-0.1, 0.1, 0.2], 0.002), &machine());
        assert_eq!(
            good,
            "2 threads on 2 CPUs. A page on its way out holds the lock that would limit it for \
             50.0 ns, at the baseline for 1,000 ns: 20.0 times less (20.0 to 20.0 times less by \
             round; the target of 10 is met). It would saturate at 20,000,000 pages a second \
             rather than 1,000,000, 20.0 times that (the target of 2.92 is met). At the baseline \
             it is the lock of the device's slots, at the end the zone lock. Of the locks of swap \
             alone, and were swap space in use evenly, it would be 80.0 times less (the target of \
             10 is met). With 2 threads, swap locks take 0.2 % of the time on the way out and 0.1 \
             % on the way in (the target of below 1.0 % is met). No step is slower than the one \
             before in every round (met). For context, the kernel patches that the first four \
             steps come from, on their machine of 2017, 32 processes: 1,428,002 -> 1,481,704 -> \
             2,050,097 -> 4,170,746 KiB/s out (+192 %)."
        );
        let bad = of(&ladder(2.0, [-0.3, -0.2, -0.1], 0.02), &machine());
        for said in ["target of 10 is missed", "target of 2.92 is missed", "below 1.0 % is missed"]
        {
            assert!(bad.contains(said), "{said}: {bad}");
        }
        let said = "in every round: batches with 2 threads, out (-20.0 %) (1 of 1 comparisons, ";
        assert!(bad.contains(said), "{bad}");
    }

    #[test]
    fn a_loss_that_chance_explains_is_not_held_against_a_step() {
        let row = |threads: u64, rounds: usize, change: f64| {
            let sample = Sample::from([(figures::GAIN.to_owned(), change)]);
            Row::new("slot-caches", &[("threads", json!(threads))], None, &vec![sample; rounds])
        };
        let rows = |rounds: usize| -> Vec<Row> {
            (1..=8)
                .map(|threads| row(threads, rounds, if threads == 1 { -0.1 } else { 0.1 }))
                .collect()
        };
        let said = |rounds: usize| losses(&Rows(&rows(rounds))).unwrap();
        assert!(
            said(3).contains("1 of 8 comparisons, which more rounds would tell from chance"),
            "{}",
            said(3)
        );
        assert!(
            said(12).contains("1 of 8 comparisons, more than chance explains: missed"),
            "{}",
            said(12)
        );
    }

    #[test]
    fn a_ratio_below_one_is_more() {
        assert_eq!(
            (times_less(2.0), times_less(0.25)),
            ("2.0 times less".to_owned(), "4.0 times more".to_owned())
        );
    }

    #[test]
    fn what_was_not_measured_is_not_spoken_of() {
        let text = of(&[row(Step::Baseline, 1, &[(figures::RATE, [1.0; 3])])], &machine());
        assert!(text.starts_with("One step alone is compared with nothing"), "{text}");
        let change = Sample::from([(figures::GAIN.to_owned(), -0.5)]);
        let once = Row::new("slot-caches", &[("threads", json!(1))], None, &vec![change]);
        assert!(of(&[once], &machine()).contains("Too few rounds to tell"));
    }
}
