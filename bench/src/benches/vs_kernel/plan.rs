//! What is measured, and what the process of a measurement is told.

use super::args::{Args, Sides};
use super::ram::Ram;
use crate::machine::*;
use crate::measure::*;
use crate::model::*;
use crate::work::vs_kernel::case::{Kind, Program, Setting, Task};
use crate::work::vs_kernel::program::Inputs;
use crate::work::vs_kernel::{Measurement, beside};
use overspill::units::Bytes;
use overspill_bench::workload::Packing;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Longest that a measurement may take: this, and what an access may take at the very worst, with a
/// swap file on a slow disk.
pub const LIMIT: Duration = Duration::from_secs(30);
const LIMIT_PER_PAGE: Duration = Duration::from_millis(1);
/// Longest that a command of the user's may take by itself.
const LIMIT_ALONE: Duration = Duration::from_secs(24 * 60 * 60);
/// How many times as long as with all the RAM that it takes a program may take besides.
const LIMIT_OF_PROGRAMS: u32 = 40;

/// All cases in the order in which they are measured: the peer, and then those that are compared
/// with it.
pub fn plan(args: &Args) -> Vec<Case<Kind>> {
    let (accesses, programs): (Vec<Task>, Vec<Task>) =
        args.tasks().into_iter().partition(|task| task.program().is_none());
    let mut settings: Vec<(Option<Packing>, u32, &[Task])> = Vec::new();
    for &packing in &args.contents {
        settings.extend(args.threads.iter().map(|n| (Some(packing), *n, &accesses[..])));
    }
    settings.push((None, 1, &programs));
    let steps = args.sides.steps();
    let mut kinds = vec![Kind::Floor];
    kinds.extend(programs.iter().filter_map(|task| task.program()).map(Kind::Alone));
    for &overcommit in &args.overcommit {
        for &(packing, threads, tasks) in &settings {
            for &task in tasks {
                for peer in args.peers() {
                    let setting = Setting { task, peer, overcommit, packing, threads };
                    kinds.extend(setting.by(&steps));
                }
            }
        }
    }
    kinds.into_iter().map(case).collect()
}

/// The case of a kind: its step and labels.
pub fn case(kind: Kind) -> Case<Kind> {
    let (step, labels) = match kind {
        Kind::Floor => ("floor".to_owned(), Vec::new()),
        Kind::Alone(program) => {
            ("alone".to_owned(), vec![("workload", json!(program.to_string()))])
        }
        Kind::Work(setting, step) => {
            // Programs hold what they hold.
            let contents = setting.packing.map(|packing| packing.to_string());
            let labels = vec![
                ("workload", json!(setting.task.to_string())),
                ("peer", json!(setting.peer.to_string())),
                ("overcommit", json!(setting.overcommit)),
                ("contents", json!(contents.unwrap_or_else(|| "its own".to_owned()))),
                ("threads", json!(setting.threads)),
            ];
            (step.to_string(), labels)
        }
    };
    Case { step, labels, reference: None, what: kind }
}

/// What all measurements have in common.
pub struct Setup<'a> {
    sides: &'a Sides,
    /// Memory that is worked on.
    size: Bytes,
    /// Where swap files are made.
    pub swap_dir: SwapDir,
    /// The `overspill` that programs run under.
    command: PathBuf,
    inputs: Inputs,
}

impl Setup<'_> {
    /// For these programs, of which the user's is these words.
    pub fn new<'a>(
        sides: &'a Sides,
        size: Bytes,
        programs: &[Program],
        own: Vec<String>,
    ) -> Result<Setup<'a>, Failure> {
        let swap_dir = SwapDir::find(sides.dir.as_deref())?;
        swap_dir.has_room(size, 2 * size.0, "--dir")?;
        let command = command()?;
        let inputs = Inputs::make(programs, &swap_dir.dir, size.0, own)?;
        Ok(Setup { sides, size, swap_dir, command, inputs })
    }

    /// What the process of a measurement is told.
    pub fn request(&self, ram: &Ram, kind: Kind) -> Result<Measurement, Failure> {
        let size = self.size.0;
        let (memory, needs) = match kind {
            Kind::Work(setting, step) => (ram.of(&setting, step), ram.needs(setting.task)),
            Kind::Floor | Kind::Alone(_) => (0, size),
        };
        let alone = kind.program().map_or(Duration::ZERO, |program| ram.elapsed(program));
        let pages = self.size.pages().min(1 << 24) as u32;
        let limit = match kind {
            Kind::Alone(Program::Own) => LIMIT_ALONE,
            _ => LIMIT + LIMIT_PER_PAGE * pages + LIMIT_OF_PROGRAMS * alone,
        };
        let program = kind.program().map(|program| self.inputs.job(program, size)).transpose()?;
        let home = program.as_ref().and_then(|job| Some(job.user.as_ref()?.1.clone()));
        Ok(Measurement {
            kind,
            program,
            command: self.command.clone(),
            size,
            needs,
            memory,
            limit,
            dir: home.unwrap_or_else(|| self.swap_dir.dir.clone()),
            settings: self.sides.set.clone(),
        })
    }
}

/// The `overspill` that programs run under: what `OVERSPILL_BIN` names, or the one beside this
/// program.
fn command() -> Result<PathBuf, Failure> {
    match std::env::var_os("OVERSPILL_BIN") {
        Some(path) => Ok(path.into()),
        None => beside("overspill"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::args;

    #[test]
    fn the_peer_comes_first_and_programs_have_neither_library_nor_contents_nor_threads() {
        let programs = "--workload sort,cxx --peer zram --contents 1,10 --threads 1,2";
        let all = "--contents 1,10 --threads 1,2 --steps peer";
        for (line, planned, first) in [
            ("", 1 + 5 * (4 + 4 + 5), "floor; peer, seq-write, zram, 4x, 2.5:1, 1 thread"),
            (
                format!("{programs} --overcommit 2,4").as_str(),
                3 + 2 * 2 * 3,
                "floor; alone, sort; alone, cxx; peer, sort, zram, 2x, its own, 1 thread; \
                 overspill-thread, sort, zram, 2x, its own, 1 thread; overspill-signal, sort",
            ),
            // Who the others are compared with is measured whatever steps are asked for.
            ("--workload seq-read --peer file --steps library", 3, "floor; peer, seq-read, file"),
            (format!("--workload seq-read,rand-read --peer file {all}").as_str(), 9, "floor; peer"),
            ("--workload all --peer file --steps peer", 1 + 5 + 8 + 8, "floor; alone"),
            ("--workload seq-read --peer all,zram --steps peer", 4, "floor; peer"),
        ] {
            let names: Vec<String> = plan(&args(line)).iter().map(Case::to_string).collect();
            assert_eq!(names.len(), planned, "{line}");
            assert!(names.join("; ").starts_with(first), "{line}: {names:?}");
        }
    }

    #[test]
    fn what_is_missing_takes_what_needs_it_along() {
        let cases = plan(&args("--workload seq-read,redis --peer zram,file"));
        let left = |name: &str| cases.iter().filter(|case| !case.what.needs(name)).count();
        assert_eq!(cases.len(), 1 + 4 + 5 + 1 + 6);
        assert_eq!(["redis", "zram", "sort"].map(left), [10, 15, 17]);
        let by_signal: Vec<String> =
            cases.iter().filter_map(|case| case.what.by_signal()).collect();
        assert_eq!(by_signal, ["redis in overspill-signal"; 2]);
    }
}
