//! What benches plan alike: the steps of a ladder, each with numbers of threads.

use clap::ValueEnum;
use std::fmt;

/// One row: a step with a number of threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case<S> {
    /// The step.
    pub step: S,
    /// How many threads.
    pub threads: usize,
}

impl<S: fmt::Display> fmt::Display for Case<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} thread{}",
            self.step,
            self.threads,
            if self.threads == 1 { "" } else { "s" }
        )
    }
}

/// What was asked for, each once and in the order of its type; all there is if nothing was.
pub fn chosen<T: ValueEnum + Ord>(asked: &[T]) -> Vec<T> {
    let mut chosen = if asked.is_empty() { T::value_variants().to_vec() } else { asked.to_vec() };
    chosen.sort();
    chosen.dedup();
    chosen
}

/// The cases in the order of their rows: all steps with as many threads, bottom up, then with the
/// next number.
pub fn plan<S: Copy>(steps: &[S], threads: &[u32]) -> Vec<Case<S>> {
    let mut cases: Vec<Case<S>> = Vec::new();
    for threads in threads.iter().map(|threads| *threads as usize) {
        if cases.iter().all(|case| case.threads != threads) {
            cases.extend(steps.iter().map(|step| Case { step: *step, threads }));
        }
    }
    cases
}

/// The numbers of threads of planned cases, each once.
pub fn threads(of_cases: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut threads: Vec<usize> = of_cases.collect();
    threads.dedup();
    threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
    enum Step {
        Low,
        High,
    }

    #[test]
    fn each_step_comes_once_for_each_number_of_threads() {
        assert_eq!(chosen(&[Step::High, Step::Low, Step::High]), [Step::Low, Step::High]);
        assert_eq!(chosen::<Step>(&[]), [Step::Low, Step::High]);
        let cases = plan(&["low", "high"], &[2, 1, 2]);
        let names: Vec<String> = cases.iter().map(Case::to_string).collect();
        assert_eq!(names, ["low, 2 threads", "high, 2 threads", "low, 1 thread", "high, 1 thread"]);
        assert_eq!(threads(cases.iter().map(|case| case.threads)), [2, 1]);
    }
}
