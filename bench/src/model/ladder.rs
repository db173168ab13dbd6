//! What follows from a [`Ladder`]: options, cases, settings, and figures that compare two rows.

use super::declare::{Base, Comparison, Ladder, Step};
use super::findings::Findings;
use super::row::{Case, Row, by_name};
use crate::measure::*;
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Each once and in the order of its type.
pub fn in_order<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort();
    all.dedup();
    all
}

/// Each once, in the order in which they come up.
pub fn once<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut known = Vec::new();
    for one in all {
        if !known.contains(&one) {
            known.push(one);
        }
    }
    known
}

/// What was asked for, each once and in the order of its type; all there is if nothing was.
pub fn chosen<T: ValueEnum + Ord>(asked: &[T]) -> Vec<T> {
    in_order(if asked.is_empty() { T::value_variants().to_vec() } else { asked.to_vec() })
}

impl Ladder {
    /// What reads the names of steps from the command line.
    pub fn parser(&self) -> PossibleValuesParser {
        let value = |step: &Step| PossibleValue::new(step.name).help(step.help);
        PossibleValuesParser::new(self.steps.iter().map(value).collect::<Vec<_>>())
    }

    /// The steps that were asked for, each once and in the order of the ladder; all if none was.
    pub fn chosen(&self, asked: &[String]) -> Vec<&'static Step> {
        let wanted = |step: &&Step| asked.is_empty() || asked.iter().any(|name| name == step.name);
        self.steps.iter().filter(wanted).collect()
    }

    pub fn step(&self, name: &str) -> Option<&'static Step> {
        self.steps.iter().find(|step| step.name == name)
    }

    /// All settings of a step; `None` if it is no step of the engine. A setting takes the place of
    /// that of the step below.
    pub fn settings(&self, step: &Step) -> Option<String> {
        let own = step.settings?;
        let below = step.from.and_then(|from| self.settings(self.step(from)?));
        let mut all: Vec<String> =
            below.iter().flat_map(|below| below.split(',')).map(str::to_owned).collect();
        for setting in own.split(',') {
            let key = setting.split('=').next();
            match all.iter_mut().find(|other| other.split('=').next() == key) {
                Some(other) => setting.clone_into(other),
                None => all.push(setting.to_owned()),
            }
        }
        Some(all.join(","))
    }

    /// The settings of a case of the engine.
    pub fn settings_of<K>(&self, case: &Case<K>) -> String {
        self.step(&case.step).and_then(|step| self.settings(step)).unwrap_or_default()
    }

    /// What a step is made of, for people.
    fn made_of(&self, step: &Step) -> String {
        match self.settings(step) {
            None => step.instead.to_owned(),
            Some(list) if list.is_empty() => "defaults".to_owned(),
            Some(list) => list,
        }
    }

    pub fn case<K>(step: &Step, labels: Vec<(&'static str, Value)>, what: K) -> Case<K> {
        let reference = step.reference.map(|reference| reference());
        Case { step: step.name.to_owned(), labels, reference, what }
    }

    /// The cases of steps in the order of their rows: all that were asked for with as many threads,
    /// bottom up, then with the next number.
    pub fn with_threads(&self, asked: &[String], threads: &[u32]) -> Vec<Case<usize>> {
        let steps = self.chosen(asked);
        let case = |step: &&Step, threads: u32| {
            Ladder::case(step, vec![("threads", json!(threads))], threads as usize)
        };
        let of = |threads: u32| steps.iter().map(move |step| case(step, threads));
        once(threads.iter().copied()).into_iter().flat_map(of).collect()
    }

    /// Has a request measured by a process of its own, within a minute and what so many pages may
    /// take at the very worst.
    pub fn ask(&self, request: &impl Serialize, pages: u64) -> Result<Sample, Failure> {
        let worst = Duration::from_millis(pages);
        child::ask(self.bench, request, Duration::from_secs(60) + worst)
    }

    /// Measures all cases in turn, round after round; what was found.
    pub fn measure<K>(
        &'static self,
        cases: &[Case<K>],
        rounds: Option<u32>,
        measure: impl FnMut(&Case<K>) -> Result<Sample, Failure>,
    ) -> Result<Findings, Failure> {
        Ok(self.found(cases, crate::measure::rounds(cases, rounds, measure)?))
    }

    /// The rows of what was measured, compared, with the settings that most benches have. A case
    /// without any figure has no row.
    pub fn found<K>(&'static self, cases: &[Case<K>], mut series: Vec<Series>) -> Findings {
        self.compare(cases, &mut series);
        let rows = cases.iter().zip(&series).map(|(case, series)| Row::new(case, series));
        let rows = rows.filter(|row| !row.figures.is_empty()).collect();
        let rounds = series.iter().map(Vec::len).max().unwrap_or(0);
        let mut settings = json!({ "rounds": rounds, "pinned": true, "delivery": "signal" });
        if !self.steps.is_empty() {
            let is_measured = |step: &&Step| cases.iter().any(|case| case.step == step.name);
            let steps = self.steps.iter().filter(is_measured);
            settings["steps"] = by_name(steps.map(|step| (step.name, self.made_of(step))));
        }
        Findings::new(self, settings, rows)
    }

    /// Adds the figures that compare two cases of the same round. Where either lacks the figure, or
    /// the result is not finite, there is nothing to compare.
    fn compare<K>(&self, cases: &[Case<K>], series: &mut [Series]) {
        for comparison in self.comparisons {
            for at in 0..cases.len() {
                let Some(base) = self.base(comparison, cases, at) else { continue };
                let base = series[base].clone();
                // What was measured once, as it is the same each time, stands for every round.
                let once = base.len() == 1;
                for (round, sample) in series[at].iter_mut().enumerate() {
                    let base = base.get(if once { 0 } else { round });
                    let there = base.and_then(|base| base.get(comparison.figure));
                    let values = sample.get(comparison.figure).zip(there);
                    let result = values.map(|(here, there)| comparison.how.of(*here, *there));
                    let finite = result.filter(|result| result.is_finite());
                    sample.extend(finite.map(|result| (comparison.name.to_owned(), result)));
                }
            }
        }
    }

    /// Which case another is compared with.
    fn base<K>(&self, comparison: &Comparison, cases: &[Case<K>], at: usize) -> Option<usize> {
        let case = &cases[at];
        if comparison.only.is_some_and(|only| only != case.step) {
            return None;
        }
        let (name, itself) = match comparison.base {
            Base::Step(name) => (name, false),
            Base::Measure(name) => (name, true),
            Base::From => (self.step(&case.step)?.from?, false),
            Base::First => (cases[0].step.as_str(), false),
        };
        let base = cases.iter().position(|other| other.step == name && other.labels == case.labels);
        base.filter(|base| itself || *base != at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::declare::{How, compare};
    use super::*;

    static LADDER: Ladder = Ladder {
        bench: "x",
        steps: &[
            Step::new("kernel", "Its own").instead("mmap"),
            Step::new("low", "Below").set("a=1,b=1"),
            Step::new("high", "Above").from("low", "b=2,c=3"),
            Step::new("default", "As it is").set(""),
        ],
        groups: &["threads"],
        comparisons: &[
            compare("of_kernel", How::Times, "rate", Base::Step("kernel")),
            compare("gain", How::More, "rate", Base::From),
            compare("of_first", How::TimesLess, "rate", Base::First).only("default"),
            compare("measure", How::Less, "rate", Base::Measure("low")),
        ],
        ..Ladder::NONE
    };

    fn planned(names: &[&str], threads: &[u32]) -> Vec<Case<usize>> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        LADDER.with_threads(&names, threads)
    }

    #[test]
    fn each_step_comes_once_in_the_order_of_the_ladder_for_each_number_of_threads() {
        let cases = planned(&["high", "low", "high"], &[2, 1, 2]);
        let names: Vec<String> = cases.iter().map(Case::to_string).collect();
        assert_eq!(names, ["low, 2 threads", "high, 2 threads", "low, 1 thread", "high, 1 thread"]);
        assert_eq!(planned(&[], &[1]).len(), 4);
    }

    #[test]
    fn a_step_has_the_settings_of_the_one_below_but_for_its_own() {
        let expected = json!({"kernel": "mmap", "low": "a=1,b=1", "high": "a=1,b=2,c=3",
            "default": "defaults"});
        let cases = planned(&[], &[1]);
        assert_eq!(LADDER.found(&cases, vec![Series::new(); 4]).settings["steps"], expected);
        assert_eq!(LADDER.settings(&LADDER.steps[0]), None);
    }

    #[test]
    fn rows_are_compared_with_those_of_the_same_labels_and_round() {
        let cases = planned(&[], &[1, 2]);
        let series = |rates: &[f64]| -> Series {
            rates.iter().map(|rate| Sample::from([("rate".to_owned(), *rate)])).collect()
        };
        let one = [[8.0, 8.0], [2.0, 4.0], [4.0, 4.0], [16.0, 8.0]].map(|rates| series(&rates));
        let two = [series(&[]), series(&[0.0]), series(&[1.0]), Series::new()];
        let mut all: Vec<Series> = one.into_iter().chain(two).collect();
        LADDER.compare(&cases, &mut all);
        let of = |at: usize, round: usize, name: &str| all[at][round].get(name).copied();
        assert_eq!((of(0, 0, "of_kernel"), of(1, 0, "of_kernel")), (None, Some(0.25)));
        assert_eq!((of(2, 0, "gain"), of(2, 1, "gain")), (Some(1.0), Some(0.0)));
        assert_eq!((of(1, 1, "of_first"), of(3, 0, "of_first")), (None, Some(0.5)));
        assert_eq!((of(1, 0, "measure"), of(2, 0, "measure")), (Some(0.0), Some(-1.0)));
        assert_eq!(of(6, 0, "gain"), None, "what is not finite is no figure");
        assert_eq!(LADDER.found(&cases, all).rows.len(), 6, "cases without figures have no row");
    }

    #[test]
    fn a_base_that_was_measured_once_stands_for_every_round() {
        let cases = planned(&["low", "high"], &[1]);
        let once = vec![Sample::from([("rate".to_owned(), 2.0)])];
        let mut series = vec![once.clone(), [once.clone(), once].concat()];
        LADDER.compare(&cases, &mut series);
        assert!(series[1].iter().all(|sample| sample["gain"] == 0.0), "{series:?}");
    }
}
