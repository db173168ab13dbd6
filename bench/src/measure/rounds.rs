//! Measuring: every case in turn, round after round, then medians.
//!
//! A round goes through all cases, so that what changes on the machine in the meantime changes all
//! of them alike, and two cases are compared within each round ([`crate::model::Ladder::measure`])
//! rather than by their medians.

use super::failure::Failure;
use super::sample::{Sample, Series};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Rounds that are made unless the user says how many: the fewest that tell a difference from
/// noise.
pub const ROUNDS_BY_DEFAULT: u32 = 3;
/// Where that many rounds do not fit into this time, as on a busy machine, fewer are made: a
/// default run promises to end within 50 s.
const TIME_BY_DEFAULT: Duration = Duration::from_secs(45);

/// Measures every case once a round and returns a series for each. Shows a progress bar if standard
/// error is a terminal. Makes so many `rounds`; without a number at most [`ROUNDS_BY_DEFAULT`], and
/// none that would take too long.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_measured_in_turn_and_a_failure_names_its_case() {
        let mut order = Vec::new();
        let measure = |case: &&str| {
            order.push((*case).to_owned());
            Ok(Sample::new())
        };
        let series = rounds(&["x", "y"], Some(3), measure).unwrap();
        assert_eq!(order, ["x", "y", "x", "y", "x", "y"]);
        assert_eq!(series, vec![vec![Sample::new(); 3]; 2]);
        let failure = rounds(&["folios"], None, |_| Err(Failure::new("no memory"))).unwrap_err();
        assert_eq!(failure.to_string(), "folios: no memory");
    }

    #[test]
    fn a_round_that_would_take_too_long_is_not_begun() {
        let fits = |done, s| another_fits(done, Duration::from_secs(s), TIME_BY_DEFAULT);
        assert!(fits(0, 100), "one round is made in any case");
        assert_eq!(
            [fits(1, 22), fits(1, 23), fits(2, 30), fits(2, 31)],
            [true, false, true, false]
        );
        assert!(another_fits(1, Duration::from_secs(1000), Duration::MAX));
    }
}
