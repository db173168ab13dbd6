//! Measuring: every case in turn, round after round, then medians.
//!
//! A round goes through all cases, so that what changes on the machine in the meantime changes all
//! of them alike, and two cases are compared within each round ([`compare`]) rather than by their
//! medians.

use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Rounds that are made unless the user says how many: the fewest that tell a difference from
/// noise.
pub const ROUNDS_BY_DEFAULT: u32 = 3;
/// Where that many rounds do not fit into this time, as on a busy machine, fewer are made: a
/// default run promises to end within 50 s.
const TIME_BY_DEFAULT: Duration = Duration::from_secs(45);

/// The figures of one measurement, by name.
pub type Sample = BTreeMap<String, f64>;

/// The samples of one case, one a round.
pub type Series = Vec<Sample>;

/// Measures every case once a round and returns a series for each. Shows a progress bar if standard
/// error is a terminal. Makes so many `rounds`; without a number at most [`ROUNDS_BY_DEFAULT`], and
/// none that would take too long.
///
/// # Errors
/// The first failure of `measure`.
pub fn rounds<C: std::fmt::Display>(
    cases: &[C],
    rounds: Option<u32>,
    mut measure: impl FnMut(&C) -> Result<Sample, Failure>,
) -> Result<Vec<Series>, Failure> {
    let most = rounds.unwrap_or(ROUNDS_BY_DEFAULT);
    let limit = if rounds.is_none() { TIME_BY_DEFAULT } else { Duration::MAX };
    let bar = ProgressBar::new(cases.len() as u64 * u64::from(most));
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg:28}  {eta} left");
    bar.set_style(style.expect("the template is constant"));
    let mut series: Vec<Series> = vec![Vec::new(); cases.len()];
    let began = Instant::now();
    for round in 0..most {
        if !another_fits(round, began.elapsed(), limit) {
            break;
        }
        for (case, series) in cases.iter().zip(&mut series) {
            bar.set_message(case.to_string());
            series.push(measure(case).map_err(|failure| failure.during(case))?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(series)
}

/// Whether a round like the `done` ones ends within `limit`; the first is always made.
fn another_fits(done: u32, elapsed: Duration, limit: Duration) -> bool {
    done == 0 || elapsed + elapsed / done <= limit
}

/// Adds to each sample of `series` the figure `name`: `compare(figure here, figure there)` of the
/// same round. Where either lacks the figure, or the result is not finite, there is nothing to
/// compare.
pub fn compare(
    series: &mut Series,
    base: &Series,
    figure: &str,
    name: &str,
    compare: impl Fn(f64, f64) -> f64,
) {
    for (sample, base) in series.iter_mut().zip(base) {
        if let (Some(here), Some(there)) = (sample.get(figure), base.get(figure)) {
            let result = compare(*here, *there);
            if result.is_finite() {
                sample.insert(name.to_owned(), result);
            }
        }
    }
}

/// A figure over all rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The middle value; between two middle ones, their mean.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
    /// How many values there were.
    pub rounds: usize,
}

impl Spread {
    /// Of one or more values.
    pub fn of(mut values: Vec<f64>) -> Spread {
        assert!(!values.is_empty());
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            (values[middle - 1] + values[middle]) / 2.0
        } else {
            values[middle]
        };
        Spread { median, min: values[0], max: values[values.len() - 1], rounds: values.len() }
    }
}

/// What a change is worth that is positive where something is gained: only what every round says,
/// and rounds enough, tell it from noise.
pub fn verdict(change: Spread) -> &'static str {
    match change {
        _ if change.rounds < ROUNDS_BY_DEFAULT as usize => "too few rounds to tell",
        Spread { min, .. } if min > 0.0 => "a gain in every round",
        Spread { max, .. } if max < 0.0 => "a loss in every round",
        _ => "no gain that can be told from noise",
    }
}

/// Every figure of a series over its rounds.
pub fn summarise(series: &Series) -> BTreeMap<String, Spread> {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, value) in series.iter().flatten() {
        values.entry(name.clone()).or_default().push(*value);
    }
    values.into_iter().map(|(name, values)| (name, Spread::of(values))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(figures: &[(&str, f64)]) -> Sample {
        figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn a_median_is_the_middle_value_or_between_the_two() {
        let spread = Spread::of(vec![9.0, 1.0, 5.0]);
        assert_eq!(spread, Spread { median: 5.0, min: 1.0, max: 9.0, rounds: 3 });
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 30.0]).median, 3.0);
        assert_eq!(Spread::of(vec![7.0]), Spread { median: 7.0, min: 7.0, max: 7.0, rounds: 1 });
    }

    #[test]
    fn a_gain_counts_only_if_every_round_has_it() {
        let verdict = |values: &[f64]| verdict(Spread::of(values.to_vec()));
        assert_eq!(verdict(&[0.01, 0.02, 0.03]), "a gain in every round");
        assert_eq!(verdict(&[-0.03, -0.02, -0.01]), "a loss in every round");
        assert_eq!(verdict(&[-0.01, 0.02, 0.03]), "no gain that can be told from noise");
        assert_eq!(verdict(&[0.01, 0.02]), "too few rounds to tell");
    }

    #[test]
    fn a_summary_has_each_figure_of_any_round() {
        let series = vec![sample(&[("a", 1.0), ("b", 5.0)]), sample(&[("a", 3.0)])];
        let summary = summarise(&series);
        assert_eq!(summary["a"], Spread { median: 2.0, min: 1.0, max: 3.0, rounds: 2 });
        assert_eq!((summary["b"].median, summary["b"].rounds), (5.0, 1));
    }

    #[test]
    fn cases_are_measured_in_turn_and_compared_within_a_round() {
        let mut order = Vec::new();
        let measure = |case: &&str| {
            order.push((*case).to_owned());
            Ok(sample(&[("rate", order.len() as f64)]))
        };
        let mut series = rounds(&["x", "y"], Some(3), measure).unwrap();
        assert_eq!(order, ["x", "y", "x", "y", "x", "y"]);
        let base = series[0].clone();
        compare(&mut series[1], &base, "rate", "ratio", |here, there| here / there);
        let ratios: Vec<f64> = series[1].iter().map(|sample| sample["ratio"]).collect();
        assert_eq!(ratios, [2.0, 4.0 / 3.0, 6.0 / 5.0]);
    }

    #[test]
    fn a_round_that_would_take_too_long_is_not_begun() {
        let seconds = Duration::from_secs;
        assert!(another_fits(0, seconds(100), seconds(45)), "one round is made in any case");
        assert!(
            another_fits(1, seconds(22), seconds(45)) && another_fits(2, seconds(30), seconds(45))
        );
        assert!(
            !another_fits(1, seconds(23), seconds(45))
                && !another_fits(2, seconds(31), seconds(45))
        );
        assert!(another_fits(1, seconds(1000), Duration::MAX));
    }

    #[test]
    fn what_cannot_be_compared_is_left_out() {
        let base = vec![sample(&[("rate", 0.0)]), sample(&[]), sample(&[("rate", 2.0)])];
        let mut series = vec![sample(&[("rate", 1.0)]), sample(&[("rate", 1.0)]), sample(&[])];
        compare(&mut series, &base, "rate", "ratio", |here, there| here / there);
        assert!(series.iter().all(|sample| !sample.contains_key("ratio")), "{series:?}");
    }

    #[test]
    fn a_failure_names_its_case() {
        let failure = rounds(&["folios"], None, |_| Err(Failure::new("no memory"))).unwrap_err();
        assert_eq!(failure.to_string(), "folios: no memory");
    }
}
