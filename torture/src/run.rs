//! A run: the job is started, things happen to it, it is watched, and at its end nothing of it may
//! be left.

use crate::events::Events;
use crate::job::{Figures, Job};
use crate::plan::Plan;
use crate::watch::{self, Watch};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(200);
/// How often a line is printed.
const LINE: Duration = Duration::from_secs(60);
/// How long what belongs to a job may be there after its end at most, or the plan's patience.
const LEAVES: Duration = Duration::from_secs(20);
/// Exit status of the load that has found something.
const WRONG: i32 = 7;

/// What came of it.
#[derive(Default, Debug)]
pub struct Outcome {
    /// What was not as it should be.
    pub finding: Option<String>,
    pub time: Duration,
    pub beats: u64,
    /// Processes that were killed, and those that ended because a page was lost.
    pub ends: [u32; 2],
    /// What the engines of the job have counted; none where it has left no statistics.
    pub figures: Option<Figures>,
    /// The largest budget, in MiB.
    pub budget_mib: u64,
}

/// Tortures a job as planned.
pub fn run(plan: &Plan) -> std::io::Result<Outcome> {
    let mut job = Job::start(plan)?;
    let mut events = Events::new(plan);
    let begun = Instant::now();
    // 1. Things happen, and nothing is wrong.
    let mut finding = torture(plan, &mut job, &mut events, begun).err();
    // 2. It ends, and with status 0.
    events.end(&job);
    job.table.stop();
    if finding.is_none() {
        finding = end(plan, &mut job).err();
    }
    // 3. In the words of who found it first.
    finding = job.table.finding().or(finding);
    let (beats, ends) = (job.table.beats(), job.table.ends());
    // 4. It has not had more than it may, nor less, and nothing is left.
    let (figures, budget_mib) = (job.figures(), events.most_mib);
    if finding.is_none() {
        let counted = match &figures {
            None => Some("the job has left no statistics".to_owned()),
            Some(figures) => {
                too_much(plan, figures, budget_mib).or_else(|| too_little(figures, events.had_room))
            }
        };
        finding = counted.or_else(|| leak(&job, plan.patience.min(LEAVES)));
    }
    // 5. And what the job has said itself.
    let finding = finding.map(|finding| format!("{finding}\n{}", job.said()).trim_end().to_owned());
    Ok(Outcome { finding, time: begun.elapsed(), beats, ends, figures, budget_mib })
}

fn torture(
    plan: &Plan,
    job: &mut Job,
    events: &mut Events<'_>,
    begun: Instant,
) -> Result<(), String> {
    let (mut watch, mut line) = (Watch::default(), begun + LINE);
    while begun.elapsed() < plan.time {
        std::thread::sleep(TICK);
        if let Some(status) = job.ended() {
            return Err(format!("the job has ended: {status}"));
        }
        if let Some(finding) = job.table.finding() {
            return Err(finding);
        }
        let standing = watch.standing(&job.table, plan.patience);
        if let Some(slot) = standing.first() {
            let (threads, stacks) = (standing.len(), watch::stacks(&job.processes()));
            return Err(format!(
                "thread {} of process {} stands still, of {threads}:\n{stacks}",
                slot.thread, slot.process
            ));
        }
        // Once memory is written past the page tables all pages of the job leave by moving: the
        // other ways have the first half.
        if begun.elapsed() > plan.time / 2 {
            job.table.allow_writes_past();
        }
        // Before it has begun it takes no commands.
        if job.table.beats() == 0 {
            continue;
        }
        let happened = events.tick(job, begun.elapsed() > plan.time * 2 / 3);
        // What a job that has ended does not answer is no finding of its own.
        happened.or_else(|wrong| job.ended().map_or(Err(wrong), |_| Ok(())))?;
        if Instant::now() > line {
            line += LINE;
            println!("{}", progress(plan, job, begun));
        }
    }
    Ok(())
}

fn progress(plan: &Plan, job: &Job, begun: Instant) -> String {
    let [killed, lost] = job.table.ends();
    format!(
        "{} {:>4} s: {} operations, {} processes, {killed} killed, {lost} ended by a lost page; \
         0 wrong, 0 hang",
        plan.fault,
        begun.elapsed().as_secs(),
        job.table.beats(),
        job.processes().len(),
    )
}

fn end(plan: &Plan, job: &mut Job) -> Result<(), String> {
    match job.await_end(plan.patience) {
        None => {
            let stacks = watch::stacks(&job.processes());
            Err(format!("the job does not end:\n{stacks}"))
        }
        Some(status) if status.success() => Ok(()),
        Some(status) if status.code() == Some(WRONG) => Err("the load does not say what".into()),
        Some(status) => Err(format!("the job ended with {status}")),
    }
}

/// 2 % and 1 MiB a process are allowed; a child of each may be there too.
fn too_much(plan: &Plan, figures: &Figures, budget_mib: u64) -> Option<String> {
    let peak = figures.peak_mib;
    let allowed = budget_mib * 102 / 100 + 2 * (plan.processes * plan.threads) as u64 + 1;
    (peak > allowed).then(|| format!("{peak} MiB were in use at once, {allowed} are allowed"))
}

/// Who waits for room that there is, or soon is again, goes on.
fn too_little(figures: &Figures, had_room: bool) -> Option<String> {
    let kills = figures.oom_kills;
    (had_room && kills > 0).then(|| format!("killed for want of room: {kills} processes"))
}

fn leak(job: &Job, patience: Duration) -> Option<String> {
    let begun = Instant::now();
    loop {
        let left = job.left();
        if left.is_empty() {
            return None;
        }
        if begun.elapsed() > patience {
            return Some(format!("left when the job had ended: {}", left.join(", ")));
        }
        std::thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    #[test]
    fn more_memory_than_the_largest_budget_is_a_finding() {
        let found = |peak_mib| too_much(&plan(), &Figures { peak_mib, ..Figures::default() }, 50);
        // 2 % and two MiB for each of 8 threads.
        assert_eq!(found(51 + 16 + 1), None);
        assert!(found(51 + 16 + 2).is_some());
    }

    #[test]
    fn a_process_that_is_killed_for_want_of_room_is_a_finding_where_there_was_room() {
        let found = |oom_kills, had_room| {
            too_little(&Figures { oom_kills, ..Figures::default() }, had_room).is_some()
        };
        assert!(found(1, true) && !found(0, true) && !found(1, false));
    }
}
