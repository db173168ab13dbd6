//! A run: the job is started, things happen to it, it is watched, and at its end nothing of it may
//! be left.

use crate::events::Events;
use crate::job::Job;
use crate::plan::Plan;
use crate::watch::{self, Watch};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(200);
/// How often a line is printed.
const LINE: Duration = Duration::from_secs(60);
/// How long what belongs to a job may be there after its end.
const LEAVES: Duration = Duration::from_secs(20);
/// Exit status of the load that has found something.
const WRONG: i32 = 7;

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// What was not as it should be.
    pub finding: Option<String>,
    pub time: Duration,
    pub beats: u64,
    /// Processes that were killed, and those that ended because a page was lost.
    pub ends: [u32; 2],
    /// The most memory that was in use at once, and the largest budget, in MiB.
    pub peak_mib: Option<u64>,
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
    job.table.stop();
    if finding.is_none() {
        finding = end(plan, &mut job).err();
    }
    // 3. In the words of who found it first.
    finding = job.table.finding().or(finding);
    let (beats, ends) = (job.table.beats(), job.table.ends());
    // 4. It has not had more than it may, and nothing is left.
    let (peak_mib, budget_mib) = (job.peak_mib(), events.most_mib);
    if finding.is_none() {
        finding = too_much(plan, peak_mib, budget_mib).or_else(|| leak(&job));
    }
    Ok(Outcome { finding, time: begun.elapsed(), beats, ends, peak_mib, budget_mib })
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
            return Err(format!("the job has ended: {status}\n{}", job.said()));
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
        Some(status) => Err(format!("the job ended with {status}\n{}", job.said())),
    }
}

/// 2 % and 1 MiB a process are allowed; a child of each may be there too.
fn too_much(plan: &Plan, peak_mib: Option<u64>, budget_mib: u64) -> Option<String> {
    let Some(peak) = peak_mib else { return Some("the job has left no statistics".to_owned()) };
    let allowed = budget_mib * 102 / 100 + 2 * (plan.processes * plan.threads) as u64 + 1;
    (peak > allowed).then(|| format!("{peak} MiB were in use at once, {allowed} are allowed"))
}

fn leak(job: &Job) -> Option<String> {
    let begun = Instant::now();
    loop {
        let left = job.left();
        if left.is_empty() {
            return None;
        }
        if begun.elapsed() > LEAVES {
            return Some(format!("left when the job had ended: {}", left.join(", ")));
        }
        std::thread::sleep(TICK);
    }
}
