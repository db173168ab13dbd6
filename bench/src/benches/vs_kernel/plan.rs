//! What is measured, and what the process of a measurement is told.

use super::args::Args;
use super::case::{Kind, Setting, Step, Task, case};
use super::ram::Ram;
use crate::machine::place::Place;
use crate::measure::Failure;
use crate::model::ladder::chosen;
use crate::model::row::Case;
use crate::work::vs_kernel::program::Inputs;
use crate::work::vs_kernel::request::{Job, Request, Who};
use overspill_bench::workload::{Packing, Plan, Workload};
use std::path::PathBuf;
use std::time::Duration;

/// Longest that a measurement may take: this, and what an access may take at the very worst, with a
/// swap file on a slow disk.
pub const LIMIT: Duration = Duration::from_secs(30);
const LIMIT_PER_PAGE: Duration = Duration::from_millis(1);
/// How many times as long as with all the RAM that it takes a program may take besides.
const LIMIT_OF_PROGRAMS: u32 = 40;

/// All cases in the order in which they are measured: the peer, and then those that are compared
/// with it.
pub fn plan(args: &Args) -> Vec<Case<Kind>> {
    let steps = chosen(&args.steps);
    let (accesses, programs): (Vec<Task>, Vec<Task>) =
        args.tasks().into_iter().partition(|task| task.program().is_none());
    let mut settings: Vec<(Option<Packing>, u32, Vec<Task>)> = Vec::new();
    for &packing in &args.contents {
        settings
            .extend(args.threads.iter().map(|threads| (Some(packing), *threads, accesses.clone())));
    }
    settings.push((None, 1, programs.clone()));
    let mut kinds = vec![Kind::Floor];
    kinds.extend(programs.into_iter().filter_map(Task::program).map(Kind::Alone));
    for &overcommit in &args.overcommit {
        for (packing, threads, tasks) in &settings {
            for &task in tasks {
                for peer in args.peers() {
                    let setting =
                        Setting { task, peer, overcommit, packing: *packing, threads: *threads };
                    // Those with which the others are compared are measured in any case.
                    let steps = [Step::Peer]
                        .into_iter()
                        .chain(steps.iter().copied().filter(|step| *step != Step::Peer));
                    let fit =
                        steps.filter(|step| task.program().is_none() || *step != Step::Library);
                    kinds.extend(fit.map(|step| Kind::Work(setting, step)));
                }
            }
        }
    }
    kinds.into_iter().map(case).collect()
}

/// What all measurements have in common.
pub struct Setup<'a> {
    /// The options.
    pub args: &'a Args,
    /// Where swap files are made.
    pub place: &'a Place,
    /// The `overspill` that programs run under.
    pub command: PathBuf,
    /// What programs read.
    pub inputs: Inputs,
}

impl Setup<'_> {
    /// What the process of a measurement is told.
    pub fn request(&self, ram: &Ram, kind: Kind) -> Result<Request, Failure> {
        let Setup { args, place, .. } = *self;
        let (who, job) = self.who_and_job(kind)?;
        let (memory, needs) = match kind {
            Kind::Work(setting, step) => (ram.of(&setting, step), ram.needs(setting.task)),
            Kind::Floor | Kind::Alone(_) => (0, args.size.0),
        };
        let alone = kind.program().map_or(Duration::ZERO, |program| ram.elapsed(program));
        let pages = args.size.pages().min(1 << 24) as u32;
        let limit = LIMIT + LIMIT_PER_PAGE * pages + LIMIT_OF_PROGRAMS * alone;
        let (dir, settings) = (place.dir.clone(), args.set.clone());
        Ok(Request { who, job, needs, memory, limit, dir, settings })
    }

    fn who_and_job(&self, kind: Kind) -> Result<(Who, Job), Failure> {
        let size = self.args.size;
        let program = |program| self.inputs.job(program, size.0).map(Job::Program);
        let accesses = |workload, packing, threads: u32| Job::Accesses {
            plan: Plan { workload, packing, threads: threads as usize },
            pages: size.pages(),
        };
        let overspill =
            |fault: &str| Who::Overspill { command: self.command.clone(), fault: fault.to_owned() };
        Ok(match kind {
            Kind::Floor => (Who::Floor, accesses(Workload::SeqWrite, Packing::Heap, 1)),
            Kind::Alone(one) => (Who::Alone, program(one)?),
            Kind::Work(setting, step) => {
                let who = match step {
                    Step::Peer => Who::Peer(setting.peer),
                    Step::OverspillThread => overspill("thread"),
                    Step::OverspillSignal => overspill("signal"),
                    Step::Library => Who::Library,
                };
                let packing = setting.packing.unwrap_or(Packing::Heap);
                let job = match setting.task {
                    Task::Accesses(workload) => accesses(workload, packing, setting.threads),
                    Task::Program(one) => program(one)?,
                };
                (who, job)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{args, parse};

    fn names(line: &str) -> Vec<String> {
        plan(&args(line)).iter().map(Case::to_string).collect()
    }

    #[test]
    fn by_default_all_accesses_are_compared_with_every_peer() {
        let names = names("");
        assert_eq!(names.len(), 1 + 5 * 3 * 4);
        assert_eq!(names[..2], ["floor", "peer, seq-write, zram, 4x, 2.5:1, 1 thread"]);
        assert!(names.iter().all(|name| !name.contains("sort")));
    }

    #[test]
    fn programs_have_no_library_and_neither_contents_nor_threads() {
        let names =
            names("--workload sort,cxx --peer zram --contents 1,10 --threads 1,2 --overcommit 2,4");
        let expected = [
            "floor",
            "alone, sort",
            "alone, cxx",
            "peer, sort, zram, 2x, its own, 1 thread",
            "overspill-thread, sort, zram, 2x, its own, 1 thread",
            "overspill-signal, sort, zram, 2x, its own, 1 thread",
        ];
        assert_eq!(
            (names.len(), &names[..6]),
            (3 + 2 * 2 * 3, expected.map(String::from).as_slice())
        );
    }

    #[test]
    fn who_the_others_are_compared_with_is_measured_whatever_steps_are_asked_for() {
        let of = |line: &str| plan(&args(line)).len() - 1;
        assert_eq!(of("--workload seq-read --peer file --steps library"), 2);
        assert_eq!(
            of("--workload seq-read,rand-read --peer file --contents 1,10 --threads 1,2 --steps \
                 peer"),
            8
        );
        assert_eq!(of("--workload all --peer file --steps peer"), 5 + 5 + 5);
        assert!(
            parse::<Args>("--workload sort,never").is_err()
                && parse::<Args>("--peer all,zram").is_ok()
        );
    }

    #[test]
    fn what_is_missing_takes_what_needs_it_along() {
        let cases = plan(&args("--workload seq-read,redis --peer zram,file"));
        let left = |name: &str| cases.iter().filter(|case| !case.what.needs(name)).count();
        assert_eq!(
            (cases.len(), left("redis"), left("zram"), left("sort")),
            (1 + 8 + 1 + 6, 9, 14, 16)
        );
        let by_signal: Vec<String> =
            cases.iter().filter_map(|case| case.what.by_signal()).collect();
        assert_eq!(by_signal, ["redis in overspill-signal", "redis in overspill-signal"]);
    }
}
