//! Samples: the figures of one measurement, those of one case over all rounds, and their medians.

use std::collections::BTreeMap;

/// The figures of one measurement, by name.
pub type Sample = BTreeMap<String, f64>;

pub fn figures<N: Into<String>>(figures: impl IntoIterator<Item = (N, f64)>) -> Sample {
    figures.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

pub fn add<N: Into<String>>(sample: &mut Sample, more: impl IntoIterator<Item = (N, f64)>) {
    sample.extend(figures(more));
}

/// The samples of one case, one a round.
pub type Series = Vec<Sample>;

/// A figure over all rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The middle value; between two middle ones, their mean.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub rounds: usize,
}

impl Spread {
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

    #[test]
    fn a_summary_has_each_figure_of_any_round_with_its_median() {
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 30.0]).median, 3.0, "between the middle two");
        let samples = [9.0, 1.0, 5.0].map(|a| figures([("a", a)]));
        let mut series = samples.to_vec();
        add(&mut series[0], [("b", 5.0)]);
        let summary = summarise(&series);
        assert_eq!(summary["a"], Spread { median: 5.0, min: 1.0, max: 9.0, rounds: 3 });
        assert_eq!((summary["b"].median, summary["b"].rounds), (5.0, 1));
    }
}
