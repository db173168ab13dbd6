//! The benches, a module each. Each declares a [`crate::model::declare::Ladder`], and has `Args`
//! (its options besides [`common::Common`]) and `run`, which plans, has everything
//! measured, each time in a process of its own, and returns [`crate::model::findings::Findings`].

pub mod codecs;
pub mod common;
pub mod job;
pub mod page_fault;
pub mod reclaim_storm;
pub mod swap_r_rand;
pub mod swap_w_seq;
pub mod swapoff;
pub mod vs_kernel;
pub mod working_set;
pub mod zswap;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::declare::{Base, Goal, Ladder};
    use overspill::config::Config;

    const ALL: [&Ladder; 10] = [
        &codecs::LADDER,
        &job::LADDER,
        &page_fault::LADDER,
        &reclaim_storm::LADDER,
        &swap_r_rand::LADDER,
        &swap_w_seq::LADDER,
        &swapoff::LADDER,
        &vs_kernel::LADDER,
        &working_set::LADDER,
        &zswap::LADDER,
    ];

    #[test]
    fn the_engine_has_the_settings_of_every_step() {
        for ladder in ALL {
            for step in ladder.steps {
                let settings = ladder.settings(step).unwrap_or_default();
                let applied = Config::default().apply_with_baselines(&settings);
                assert!(applied.is_ok(), "{} {}: {settings}", ladder.bench, step.name);
            }
        }
    }

    #[test]
    fn the_steps_that_a_declaration_names_are_declared() {
        for ladder in ALL.iter().filter(|ladder| !ladder.steps.is_empty()) {
            let from = ladder.steps.iter().filter_map(|step| step.from);
            let bases = ladder.comparisons.iter().filter_map(|comparison| match comparison.base {
                Base::Step(name) | Base::Measure(name) => Some(name),
                Base::From | Base::First => None,
            });
            let only = ladder.comparisons.iter().filter_map(|comparison| comparison.only);
            let judged = ladder.verdicts.iter().flat_map(|verdict| verdict.steps.iter().copied());
            let goals = ladder.verdicts.iter().filter_map(|verdict| match verdict.goal {
                Goal::NotAbove(name) => Some(name),
                _ => None,
            });
            for name in from.chain(bases).chain(only).chain(judged).chain(goals) {
                assert!(ladder.step(name).is_some(), "{}: {name}", ladder.bench);
            }
        }
    }

    #[test]
    fn every_figure_that_is_judged_is_compared_or_in_a_table() {
        for ladder in ALL {
            for verdict in ladder.verdicts {
                let mut columns = ladder.tables.iter().flat_map(|table| table.columns);
                let mut comparisons = ladder.comparisons.iter();
                assert!(
                    columns.any(|column| column.figure == verdict.figure)
                        || comparisons.any(|comparison| comparison.name == verdict.figure),
                    "{}: {}",
                    ladder.bench,
                    verdict.figure
                );
            }
        }
    }
}
