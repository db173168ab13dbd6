//! Measuring case by case: with more RAM where the kernel ends a program for want of it, without
//! what is refused, and not for longer than was promised.

use super::declared::LADDER;
use super::plan::{LIMIT, Setup};
use super::ram::Ram;
use crate::measure::*;
use crate::model::*;
use crate::work::vs_kernel::case::{Kind, Program, Setting, Task, Variant};
use crate::work::vs_kernel::{Measurement, launch};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A run without `--rounds` promises to end within 50 s. What has not begun by then is not begun,
/// and what runs is ended.
pub const TIME_BY_DEFAULT: Duration = Duration::from_secs(36);
/// The least that what is begun in such a run gets.
const LIMIT_LEAST: Duration = Duration::from_secs(4);
/// How often a program is tried that the kernel ends for want of memory. It does so by chance where
/// memory is accessed at random, with swap space left; every second time the program gets more.
const TRIES: u32 = 6;
/// How long a measurement may wait for another to end, set everything up and put it back.
pub const LIMIT_AROUND: Duration = Duration::from_secs(180);

/// What was seen so far.
pub struct Rounds {
    /// When time is up, where the user does not say how often all of it is measured.
    until: Option<Instant>,
    /// How much RAM each gets.
    pub ram: Ram,
    /// Why peers, programs and ways to run them were not measured, or not in some rounds.
    pub left_out: BTreeMap<String, String>,
    /// What went wrong that should not.
    pub failed: Vec<String>,
    /// What was not begun, or not ended, as time was up.
    pub late: BTreeSet<String>,
    /// What each program put out the first time.
    checksums: BTreeMap<Program, f64>,
    /// Which cases put out something else than before.
    pub differ: BTreeSet<String>,
}

impl Rounds {
    /// At the beginning, when some things are known to be missing.
    pub fn new(until: Option<Instant>, ram: Ram, left_out: BTreeMap<String, String>) -> Rounds {
        let (failed, late, checksums, differ) = Default::default();
        Rounds { until, ram, left_out, failed, late, checksums, differ }
    }

    /// Takes note of a program that was measured by itself before.
    pub fn saw_alone(&mut self, program: Program, sample: &Sample) {
        self.ram.saw_alone(program, sample);
        self.checksums.extend(sample.get("checksum").map(|sum| (program, *sum)));
    }

    /// Measures a case; the sample is empty if it is left out, or fails. There is nothing to
    /// compare, and this fails, where a command of the user's fails by itself.
    pub fn measure(&mut self, setup: &Setup<'_>, case: &Case<Kind>) -> Result<Sample, Failure> {
        // Of how long a command of the user's takes nothing was promised.
        let is_own = case.what.program() == Some(Program::Own);
        let until = self.until.filter(|_| !is_own);
        let time_left =
            until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        if time_left.is_zero() {
            self.late.insert(case.to_string());
            return Ok(Sample::new());
        }
        let by_signal = case.what.by_signal();
        if by_signal.is_some_and(|name| self.left_out.contains_key(&name)) {
            return Ok(Sample::new());
        }
        let sample = match (self.attempt(setup, case.what, time_left), case.what) {
            (Ok(sample), _) => self.checked(case, sample),
            (Err(failure), Kind::Alone(Program::Own)) => return Err(by_itself(&failure)),
            (Err(failure), _) => {
                self.failed(case, &format!("{case}: {failure}"), time_left);
                Sample::new()
            }
        };
        match case.what {
            Kind::Floor => (),
            Kind::Alone(program) => self.ram.saw_alone(program, &sample),
            Kind::Work(setting, step) => self.ram.saw(&setting, step, &sample),
        }
        Ok(sample)
    }

    /// Measures, with more RAM where the kernel ends a program for want of it.
    fn attempt(
        &mut self,
        setup: &Setup<'_>,
        kind: Kind,
        time_left: Duration,
    ) -> Result<Sample, Failure> {
        let mut tried = 1;
        loop {
            let request = setup.request(&self.ram, kind)?;
            let limit = request.limit.min(time_left.max(LIMIT_LEAST));
            let request = Measurement { limit, ..request };
            match (child::ask(LADDER.bench, &request, limit + LIMIT_AROUND), kind) {
                (Err(failure), Kind::Work(setting, Variant::Peer))
                    if tried < TRIES && launch::was_killed(&failure) =>
                {
                    if tried.is_multiple_of(2) {
                        self.ram.raise(&setting);
                    }
                }
                (result, _) => return result,
            }
            tried += 1;
        }
    }

    /// A sample of a program that put out what it put out before.
    fn checked(&mut self, case: &Case<Kind>, mut sample: Sample) -> Sample {
        if let Some((sum, program)) = sample.remove("checksum").zip(case.what.program())
            && *self.checksums.entry(program).or_insert(sum) != sum
        {
            self.failed.push(format!("{case}: what it put out is not what it put out before"));
            self.differ.insert(case.to_string());
        }
        if let (Kind::Work(Setting { task: Task::Program(Program::Own), .. }, _), Some(elapsed)) =
            (case.what, sample.get("elapsed_s").copied())
        {
            let alone = self.ram.elapsed(Program::Own).as_secs_f64();
            add(&mut sample, [("native_ratio", elapsed / alone.max(1e-3))]);
        }
        sample
    }

    fn failed(&mut self, case: &Case<Kind>, sentence: &str, time_left: Duration) {
        match (case.what, case.what.by_signal()) {
            // One that the kernel ends for want of memory in one round may run in the next.
            (Kind::Work(setting, Variant::Peer), _) => {
                let told = self.left_out.entry(setting.peer.to_string()).or_default();
                if !told.contains(sentence) {
                    *told += if told.is_empty() { "" } else { "; " };
                    *told += sentence;
                }
            }
            _ if time_left < LIMIT => _ = self.late.insert(case.to_string()),
            // As far as system calls bear it.
            (_, Some(name)) => _ = self.left_out.insert(name, sentence.to_owned()),
            _ => self.failed.push(sentence.to_owned()),
        }
    }
}

/// That a command fails by itself, in a line, whatever it says.
pub fn by_itself(failure: &Failure) -> Failure {
    let text = failure.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let last = lines.next_back().map_or(String::new(), |last| format!(" ... {last}"));
    Failure::new(format!(
        "the command fails by itself, so there is nothing to compare: {first}{last}"
    ))
}
