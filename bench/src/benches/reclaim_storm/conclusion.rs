//! What the figures show, in sentences.

use super::{Step, figures};
use crate::measure::Spread;
use crate::report::{Row, percent, ratio, short, whole};

/// What the throttle is to gain where the engine collapses without it, as its origin did: by how
/// much the benchmark is sooner done, and by what share there are fewer major faults.
const SOONER_TARGET: f64 = 9.0;
const MAJOR_TARGET: f64 = 0.89;

/// The sentences.
pub fn of(steps: &[Step], rows: &[Row]) -> String {
    let figure = |step: Step, name: &str| -> Option<Spread> {
        let at = steps.iter().position(|other| *other == step)?;
        rows[at].figures.get(name).copied()
    };
    let median = |step: Step, name: &str| figure(step, name).map(|spread| spread.median);
    let throttled =
        [Step::Wake, Step::Timed, Step::Default].into_iter().find(|step| steps.contains(step));
    let (Some(with), true) = (throttled, steps.contains(&Step::Off)) else {
        return "One way to reclaim shows no difference: add others with --steps.".to_owned();
    };
    let mut sentences = Vec::new();
    let all = |name: &str| Some((median(Step::Off, name)?, median(with, name)?));
    if let (Some((off_at_once, at_once)), Some((off, on)), Some(sooner), Some(less)) = (
        all(figures::PARALLEL),
        all(figures::BENCHMARK),
        figure(with, figures::SOONER),
        figure(with, figures::MAJOR_LESS),
    ) {
        sentences.push(format!(
            "With the throttle ({with}) at most {} threads reclaim at once, without it {}; the \
             messages arrive in {} s, not in {} s: {} times as soon ({} to {} by round), with {} \
             {} major faults.",
            whole(at_once),
            whole(off_at_once),
            ratio(on),
            ratio(off),
            ratio(sooner.median),
            ratio(sooner.min),
            ratio(sooner.max),
            percent(less.median.abs()),
            if less.median < 0.0 { "more" } else { "fewer" },
        ));
        sentences.push(match sooner.median >= SOONER_TARGET && less.median >= MAJOR_TARGET {
            true => "That is the gain of its origin: 9 times as soon, 89 % fewer major faults."
                .to_owned(),
            false => collapse(&figure, with),
        });
    }
    if let Some(stalls) = median(Step::Default, figures::STALLS).filter(|_| with != Step::Default) {
        sentences.push(format!(
            "By default a thread reclaims ahead of need: others had to themselves {} times, not {}.",
            whole(stalls),
            whole(median(with, figures::STALLS).unwrap_or_default())
        ));
    }
    sentences.push(
        "For context, the kernel patch that the mechanism comes from, on its machine with 120 \
         groups: 282.3 s to 30.4 s, 29,026 major faults to 3,064, 1,298 reclaimers at once to 4."
            .to_owned(),
    );
    sentences.join(" ")
}

/// Why it gained less than its origin, which collapsed without it, and whether it costs anything.
fn collapse(figure: &impl Fn(Step, &str) -> Option<Spread>, with: Step) -> String {
    let median = |step: Step, name: &str| figure(step, name).map_or(0.0, |spread| spread.median);
    const SEVEN: [(&str, &str); 7] = [
        (figures::BENCHMARK, "benchmark time"),
        (figures::USER, "user time"),
        (figures::SYS, "system time"),
        (figures::ELAPSED, "elapsed time"),
        (figures::MAJOR, "major faults"),
        (figures::PARALLEL, "parallel reclaimers"),
        (figures::RECLAIM_MS, "longest reclaim"),
    ];
    // Worse only where no round of the one is as good as any of the other.
    let worse =
        SEVEN.iter().filter(|(name, _)| match (figure(with, name), figure(Step::Off, name)) {
            (Some(with), Some(off)) => with.min > off.max,
            _ => false,
        });
    let worse: Vec<&str> = worse.map(|(_, name)| *name).collect();
    format!(
        "The origin gained 9 times and 89 %: it collapsed without the throttle, evicting what was \
         used at once. Here {} of {} evicted pages came back within a second without it, and {} \
         of {} with it; the longest reclaim took {} ms and {} ms. {}",
        whole(median(Step::Off, figures::REFAULTS)),
        whole(median(Step::Off, figures::EVICTED)),
        whole(median(with, figures::REFAULTS)),
        whole(median(with, figures::EVICTED)),
        short(median(Step::Off, figures::RECLAIM_MS)),
        short(median(with, figures::RECLAIM_MS)),
        match worse.is_empty() {
            true => "With it none of the seven figures is worse in every round.".to_owned(),
            false => format!("With it worse in every round: {}.", worse.join(", ")),
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Sample, Series};

    fn row(step: Step, figures: &[(&str, [f64; 2])]) -> Row {
        let sample = |round: usize| -> Sample {
            figures.iter().map(|(name, values)| ((*name).to_owned(), values[round])).collect()
        };
        let series: Series = vec![sample(0), sample(1)];
        Row::new(&step.to_string(), &[], step.reference(), &series)
    }

    fn rows(sooner: f64, less: f64, sys: f64) -> [Row; 2] {
        let off = [
            (figures::PARALLEL, [900.0; 2]),
            (figures::BENCHMARK, [20.0; 2]),
            (figures::SYS, [5.0; 2]),
            (figures::EVICTED, [1000.0; 2]),
            (figures::REFAULTS, [800.0; 2]),
        ];
        let on = [
            (figures::PARALLEL, [2.0; 2]),
            (figures::BENCHMARK, [20.0 / sooner; 2]),
            (figures::SYS, [sys, sys + 1.0]),
            (figures::SOONER, [sooner; 2]),
            (figures::MAJOR_LESS, [less; 2]),
        ];
        [row(Step::Off, &off), row(Step::Default, &on)]
    }

    const STEPS: [Step; 2] = [Step::Off, Step::Default];

    #[test]
    fn a_gain_as_that_of_the_origin_is_said() {
        let text = of(&STEPS, &rows(10.0, 0.95, 1.0));
        assert!(
            text.starts_with(
                "With the throttle (default) at most 2 threads reclaim at once, without it 900;"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "10.00 times as soon (10.00 to 10.00 by round), with 95.0 % fewer major faults."
            ),
            "{text}"
        );
        assert!(text.contains("That is the gain of its origin"), "{text}");
    }

    #[test]
    fn a_smaller_one_is_explained_and_what_is_worse_is_named() {
        let text = of(&STEPS, &rows(1.5, 0.1, 4.0));
        assert!(
            text.contains("Here 800 of 1,000 evicted pages came back within a second without it"),
            "{text}"
        );
        assert!(text.contains("With it none of the seven figures is worse"), "{text}");
        let text = of(&STEPS, &rows(1.5, 0.1, 6.0));
        assert!(text.contains("With it worse in every round: system time."), "{text}");
    }

    #[test]
    fn one_step_shows_nothing() {
        let rows = rows(1.0, 0.0, 1.0);
        assert!(
            of(&[Step::Default], &rows[1..]).starts_with("One way to reclaim shows no difference")
        );
    }
}
