//! What the figures show, in sentences: those of the largest number of threads, where locks are
//! contended most.

use super::{Step, figures};
use crate::measure::host::Machine;
use crate::measure::{Spread, verdict};
use crate::report::{Row, gain, ratio, short};
use overspill::base::Bytes;
use serde_json::Value;

/// The sentences; `smaller` are numbers of threads that mapped less than the size asked for.
pub fn of(rows: &[Row], machine: &Machine, smaller: &[(usize, Bytes)]) -> String {
    let threads_of = |row: &Row| row.labels.get("threads").and_then(Value::as_u64).unwrap_or(0);
    let threads = rows.iter().map(threads_of).max().unwrap_or(0);
    let figure = |step: Step, name: &str| {
        let row =
            rows.iter().find(|row| threads_of(row) == threads && row.step == step.to_string());
        row.and_then(|row| row.figures.get(name)).copied()
    };
    let mut sentences =
        vec![format!("With {threads} thread{} on {} CPUs:", plural(threads), machine.cpus)];
    if let Some(spread) = figure(Step::Folios, figures::KERNEL_RATIO) {
        sentences.push(format!(
            "the engine by default makes {} times as many pages present a second as the kernel{}.",
            ratio(spread.median),
            by_round(spread, ratio)
        ));
    }
    if let Some(spread) = figure(Step::Folios, figures::KERNEL_CPU_RATIO) {
        sentences.push(format!(
            "It takes {} times the kernel's processor time for each.",
            ratio(spread.median)
        ));
    }
    let locks = [Step::NoPercpu, Step::PickOutside].map(|step| figure(step, figures::LOCKS));
    if let ([Some(without), Some(with)], Some(fewer)) =
        (locks, figure(Step::PickOutside, figures::LOCKS_FEWER))
    {
        sentences.push(format!(
            "Lists of frames for each CPU take the zone lock {} times less often: {} times for \
             1,000 frames, not {}.",
            short(fewer.median),
            short(with.median),
            short(without.median)
        ));
    }
    if let Some(rate) = figure(Step::PickOutside, figures::PICK_GAIN) {
        sentences.push(format!("Picking frames before the zone lock is taken: {}.", picking(rate)));
    }
    let holds = [Step::PickInside, Step::PickOutside].map(|step| figure(step, figures::FREE_HOLD));
    if let ([Some(inside), Some(outside)], Some(change)) =
        (holds, figure(Step::PickOutside, figures::PICK_HOLD))
    {
        sentences.push(format!(
            "A freed frame holds the lock for {} ns, with picking inside for {} ns ({}).",
            short(outside.median),
            short(inside.median),
            gain(change.median - 1.0)
        ));
    }
    let of_engine = |row: &&Row| row.step != Step::Kernel.to_string();
    if rows.iter().filter(of_engine).any(|row| !row.figures.contains_key(figures::LOCKS)) {
        sentences.push(
            "The engine counted no zone lock for some rows, so those figures are missing."
                .to_owned(),
        );
    }
    if sentences.len() == 1 {
        sentences = vec!["One step shows no difference: add others with --steps.".to_owned()];
    }
    if !smaller.is_empty() {
        let sizes: Vec<String> = smaller
            .iter()
            .map(|(threads, bytes)| {
                format!("{bytes} each for {threads} thread{}", plural(*threads as u64))
            })
            .collect();
        sentences.push(format!("Sizes were scaled down: {}.", sizes.join(", ")));
    }
    sentences.join(" ")
}

fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// The lowest and the highest value, in brackets; nothing for one value.
fn by_round(spread: Spread, format: fn(f64) -> String) -> String {
    if spread.rounds < 2 {
        return String::new();
    }
    format!(" ({} to {} by round)", format(spread.min), format(spread.max))
}

/// What a change of the fault rate is worth.
fn picking(rate: Spread) -> String {
    format!("faults {}{}, {}", gain(rate.median), by_round(rate, gain), verdict(rate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{machine, row};

    #[test]
    fn the_whole_ladder_gives_a_sentence_for_each_question() {
        let rows = [
            row(Step::Folios, 1, &[(figures::KERNEL_RATIO, [9.0; 3]), (figures::LOCKS, [9.0; 3])]),
            row(Step::Kernel, 32, &[]),
            row(Step::NoPercpu, 32, &[(figures::LOCKS, [2000.0; 3])]),
            row(
                Step::PickInside,
                32,
                &[(figures::LOCKS, [50.0; 3]), (figures::FREE_HOLD, [20.0; 3])],
            ),
            row(
                Step::PickOutside,
                32,
                &[
                    (figures::LOCKS, [50.0; 3]),
                    (figures::LOCKS_FEWER, [40.0; 3]),
                    (figures::FREE_HOLD, [15.0; 3]),
                    (figures::PICK_HOLD, [0.75; 3]),
                    (figures::PICK_GAIN, [-0.01, 0.01, 0.02]),
                ],
            ),
            row(
                Step::Folios,
                32,
                &[
                    (figures::KERNEL_RATIO, [1.0, 1.1, 1.2]),
                    (figures::KERNEL_CPU_RATIO, [0.9; 3]),
                    (figures::LOCKS, [50.0; 3]),
                ],
            ),
        ];
        assert_eq!(
            of(&rows, &machine(), &[(32, Bytes(16 << 20))]),
            "With 32 threads on 2 CPUs: the engine by default makes 1.10 times as many pages \
             present a second as the kernel (1.00 to 1.20 by round). It takes 0.90 times the \
             kernel's processor time for each. Lists of frames for each CPU take the zone lock \
             40.0 times less often: 50.0 times for 1,000 frames, not 2,000. Picking frames before \
             the zone lock is taken: faults +1.0 % (-1.0 % to +2.0 % by round), no gain that can \
             be told from noise. A freed frame holds the lock for 15.0 ns, with picking inside \
             for 20.0 ns (-25.0 %). Sizes were scaled down: 16 MiB each for 32 threads."
        );
    }

    #[test]
    fn what_was_not_measured_is_not_spoken_of() {
        let alone = [row(Step::Kernel, 1, &[(figures::RATE, [1.0; 3])])];
        assert_eq!(
            of(&alone, &machine(), &[]),
            "One step shows no difference: add others with --steps."
        );
        let uncounted =
            [row(Step::Kernel, 1, &[]), row(Step::Folios, 1, &[(figures::KERNEL_RATIO, [2.0; 3])])];
        let text = of(&uncounted, &machine(), &[]);
        assert!(
            text.contains("2.00 times") && text.ends_with("so those figures are missing."),
            "{text}"
        );
    }
}
