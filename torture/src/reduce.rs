//! Findings in fewer words: what is left out of a plan as long as something is still found.

use crate::plan::Plan;
use crate::run::{Outcome, run};
use std::time::Duration;

/// Each try takes so many times as long as the finding took.
const TIMES: u32 = 2;
const LEAST: Duration = Duration::from_secs(10);

/// The shortest plan that was found to find something, beginning with one that does.
pub fn reduce(mut plan: Plan, mut outcome: Outcome) -> std::io::Result<(Plan, Outcome)> {
    plan.time = (outcome.time * TIMES).max(LEAST);
    let mut tries = |shorter: Plan, plan: &mut Plan| -> std::io::Result<()> {
        let tried = run(&shorter)?;
        if tried.finding.is_some() {
            (*plan, outcome) = (shorter, tried);
        }
        Ok(())
    };
    for class in plan.classes.clone() {
        let mut shorter = plan.clone();
        shorter.classes.retain(|other| *other != class);
        if !shorter.inside().is_empty() {
            tries(shorter, &mut plan)?;
        }
    }
    tries(Plan { processes: 1, ..plan.clone() }, &mut plan)?;
    tries(Plan { threads: 1, ..plan.clone() }, &mut plan)?;
    Ok((plan, outcome))
}
