//! Findings in fewer words: what is left out of a plan as long as something is still found.

use crate::plan::Plan;
use crate::run::Outcome;
use std::io;
use std::time::Duration;

/// Each try takes so many times as long as the finding took.
const TIMES: u32 = 2;
const LEAST: Duration = Duration::from_secs(10);

/// How often a shorter plan is tried before it is taken to find nothing. Of a finding that
/// reproduces half of the time, each word too many stays once in 256.
pub const TRIES: u32 = 8;

/// The shortest plan that was found to find something, beginning with one that does. `run` tries a
/// plan; each shorter one is tried until something is found, and `tries` times at most.
pub fn reduce(
    plan: Plan,
    outcome: Outcome,
    tries: u32,
    mut run: impl FnMut(&Plan) -> io::Result<Outcome>,
) -> io::Result<(Plan, Outcome)> {
    let mut best = (plan, outcome);
    best.0.time = (best.1.time * TIMES).max(LEAST);
    let mut attempt = |shorter: Plan, best: &mut (Plan, Outcome)| -> io::Result<()> {
        for _ in 0..tries {
            let tried = run(&shorter)?;
            if tried.finding.is_some() {
                *best = (shorter, tried);
                break;
            }
        }
        Ok(())
    };
    for class in best.0.classes.clone() {
        let mut shorter = best.0.clone();
        shorter.classes.retain(|other| *other != class);
        if !shorter.inside().is_empty() {
            attempt(shorter, &mut best)?;
        }
    }
    if best.0.processes > 1 {
        attempt(Plan { processes: 1, ..best.0.clone() }, &mut best)?;
    }
    if best.0.threads > 1 {
        attempt(Plan { threads: 1, ..best.0.clone() }, &mut best)?;
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Random;
    use crate::plan::tests::plan;
    use crate::plan::{INSIDE, OUTSIDE};

    fn outcome(is_found: bool) -> Outcome {
        let finding = is_found.then(|| "a wrong byte".to_owned());
        Outcome { finding, time: Duration::from_secs(3), ..Outcome::default() }
    }

    /// What comes of a finding that needs forks, budgets and two threads, and then reproduces half
    /// of the time.
    fn reduced(seed: u64, tries: u32) -> Plan {
        let mut random = Random::new(seed);
        let run = |plan: &Plan| {
            let has_all = plan.does("fork") && plan.does("budget") && plan.threads > 1;
            Ok(outcome(has_all && random.below(2) == 0))
        };
        let (plan, outcome) = reduce(plan(), outcome(true), tries, run).unwrap();
        assert!(outcome.finding.is_some(), "what is told was found");
        assert!(plan.does("fork") && plan.does("budget") && plan.threads == 2, "{plan:?}");
        plan
    }

    #[test]
    fn a_finding_that_reproduces_half_of_the_time_is_reduced_as_far_as_it_goes() {
        let shortest = |tries| {
            let plans = (0..100).map(|seed| reduced(seed, tries));
            plans.filter(|plan| plan.classes.len() == 2 && plan.processes == 1).count()
        };
        let (once, often) = (shortest(1), shortest(TRIES));
        assert!(once == 0 && often > 80, "{once} of 100 with one try each, and {often}");
    }

    #[test]
    fn what_reproduces_always_is_tried_once_and_what_finds_nothing_as_often_as_is_said() {
        let (mut found, mut vain) = (0, 0);
        let run = |plan: &Plan| {
            let finds = plan.does("touch");
            *if finds { &mut found } else { &mut vain } += 1;
            Ok(outcome(finds))
        };
        let (plan, _) = reduce(plan(), outcome(true), 3, run).unwrap();
        assert_eq!((plan.inside(), plan.processes, plan.threads), ("touch".to_owned(), 1, 1));
        assert_eq!(plan.time, LEAST, "twice 3 s is less");
        // All other classes, and processes and threads; without "touch" nothing is found.
        assert_eq!((found, vain), (INSIDE.len() + OUTSIDE.len() - 1 + 2, 3));
    }
}
