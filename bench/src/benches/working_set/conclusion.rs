//! What the figures show, in sentences.

use super::trace::Pattern;
use super::{Step, figures};
use crate::measure::Spread;
use crate::report::{Row, ratio, short};
use serde_json::Value;

/// By how much more than LRU the engine may miss: a tenth.
const TARGET: f64 = 1.1;

/// The sentences, of each pattern that was measured.
pub fn of(rows: &[Row]) -> String {
    let figure = |pattern: Pattern, step: Step, name: &str| -> Option<Spread> {
        let of = |row: &&Row| {
            row.labels.get("trace").and_then(Value::as_str) == Some(&pattern.to_string())
        };
        rows.iter().filter(of).find(|row| row.step == step.to_string())?.figures.get(name).copied()
    };
    let median = |pattern: Pattern, step: Step, name: &str| {
        figure(pattern, step, name).map(|spread| spread.median)
    };
    let mut sentences = Vec::new();
    for pattern in [Pattern::Zipf2, Pattern::Zipf4, Pattern::HotScan] {
        if let Some(of_lru) = median(pattern, Step::Overspill, figures::OF_LRU) {
            let resident = median(pattern, Step::Overspill, figures::OF_LRU_RESIDENT);
            let resident = resident.map_or(String::new(), |times| {
                format!(" ({} times with as many frames as pages were in memory)", ratio(times))
            });
            let (times, verdict) = (ratio(of_lru), verdict(of_lru));
            sentences.push(format!(
                "{pattern}: {times} times the misses of LRU{resident}, at most 1.10: {verdict}."
            ));
        }
    }
    let hot = |step: Step| median(Pattern::HotScan, step, figures::HOT_MISSES);
    if let (Some(ours), Some(lru), Some(belady)) =
        (hot(Step::Overspill), hot(Step::Lru), hot(Step::Belady))
    {
        // LRU may miss none.
        let of_lru = if ours == 0.0 { 0.0 } else { ours / lru };
        sentences.push(format!(
            "One pass over four times the memory: of 1,000 accesses to the hot half of it {} miss \
             meanwhile, {} with LRU, {} at the optimum; no more than a tenth over LRU: {}.",
            short(ours),
            short(lru),
            short(belady),
            verdict(of_lru)
        ));
    }
    for pattern in [Pattern::Uniform, Pattern::Loop] {
        let of_lru = |step: Step| median(pattern, step, figures::OF_LRU).map(ratio);
        if let (Some(ours), Some(fifo), Some(belady)) =
            (of_lru(Step::Overspill), of_lru(Step::Fifo), of_lru(Step::Belady))
        {
            sentences.push(format!(
                "{pattern}: {ours} times the misses of LRU; FIFO {fifo}, the optimum {belady}."
            ));
        }
    }
    sentences.join(" ")
}

fn verdict(of_lru: f64) -> &'static str {
    if of_lru <= TARGET { "met" } else { "missed" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;
    use serde_json::json;

    #[test]
    fn targets_are_met_or_missed_and_what_was_not_measured_is_not_told() {
        let row = |pattern: Pattern, step: Step, figures: &[(&str, f64)]| {
            let labels = [("trace", json!(pattern.to_string()))];
            Row::new(&step.to_string(), &labels, None, &vec![sample(figures.iter().copied())])
        };
        let rows = [
            row(
                Pattern::Zipf2,
                Step::Overspill,
                &[(figures::OF_LRU, 1.1), (figures::OF_LRU_RESIDENT, 0.9)],
            ),
            row(Pattern::HotScan, Step::Lru, &[(figures::OF_LRU, 1.0), (figures::HOT_MISSES, 2.0)]),
            row(Pattern::HotScan, Step::Belady, &[(figures::HOT_MISSES, 0.0)]),
            row(
                Pattern::HotScan,
                Step::Overspill,
                &[(figures::OF_LRU, 1.2), (figures::HOT_MISSES, 2.5)],
            ),
            row(Pattern::Loop, Step::Fifo, &[(figures::OF_LRU, 1.0)]),
            row(Pattern::Loop, Step::Belady, &[(figures::OF_LRU, 0.25)]),
            row(Pattern::Loop, Step::Overspill, &[(figures::OF_LRU, 0.5)]),
        ];
        assert_eq!(
            of(&rows),
            "zipf-2x: 1.10 times the misses of LRU (0.90 times with as many frames as pages were \
             in memory), at most 1.10: met. hot-scan: 1.20 times the misses of LRU, at most 1.10: \
             missed. One pass over four times the memory: of 1,000 accesses to the hot half of it \
             2.5 miss meanwhile, 2.0 with LRU, 0.0 at the optimum; no more than a tenth over LRU: \
             missed. loop: 0.50 times the misses of LRU; FIFO 1.00, the optimum 0.25."
        );
        assert_eq!(of(&rows[4..6]), "");
    }
}
