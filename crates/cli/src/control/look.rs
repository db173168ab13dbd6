//! What running jobs say of themselves: the one way by which commands read their statistics.

use super::protocol::{Budget, JobStats, Reply, Request, SwapDevice};
use super::{Found, ask_while_it_runs, find, find_all, unexpected};
use crate::failure::Failure;
use std::thread;

/// A job at one moment.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// What it runs, as far as that is to be seen.
    pub command: String,
    /// What its processes have done and hold, added up.
    pub stats: JobStats,
    /// How it stands to its budget, with its processes.
    pub budget: Budget,
    /// Its swap devices.
    pub swaps: Vec<SwapDevice>,
}

/// Which jobs are looked at.
#[derive(Debug)]
pub enum Source {
    /// All of this user's.
    All,
    /// One.
    One(Found),
}

impl Source {
    /// The job that process is of, or else all.
    pub fn of(pid: Option<u32>) -> Result<Source, Failure> {
        Ok(match pid {
            Some(pid) => Source::One(find(pid)?.whole()),
            None => Source::All,
        })
    }

    /// What they say now, by the processes of their `overspill run`. Those that have ended are left
    /// out.
    pub fn looks(&self) -> Vec<(u32, Result<Look, Failure>)> {
        match self {
            Source::All => look_at_all(&find_all()),
            Source::One(job) => look_at_all(std::slice::from_ref(job)),
        }
    }

    /// Whether there will be no more of them.
    pub fn is_over(&self) -> bool {
        match self {
            Source::All => false,
            Source::One(job) => !runs(job),
        }
    }
}

/// What the job says of itself; nothing once it has ended.
pub fn stats(found: &Found) -> Result<Option<JobStats>, Failure> {
    match ask_while_it_runs(found, Request::Stats)? {
        Some(Reply::Stats(stats)) => Ok(Some(*stats)),
        // Between its last process and its end.
        None | Some(Reply::NotMine) => Ok(None),
        Some(other) => Err(unexpected(other)),
    }
}

/// Whether a job has not ended, as far as it can be told.
fn runs(found: &Found) -> bool {
    !matches!(ask_while_it_runs(found, Request::Budget), Ok(None | Some(Reply::NotMine)))
}

/// All of it; nothing once the job has ended.
fn look(found: &Found) -> Result<Option<Look>, Failure> {
    let Some(stats) = stats(found)? else { return Ok(None) };
    let budget = match ask_while_it_runs(found, Request::Budget)? {
        Some(Reply::Budget(budget)) => budget,
        None | Some(Reply::NotMine) => return Ok(None),
        Some(other) => return Err(unexpected(other)),
    };
    let swaps = match ask_while_it_runs(found, Request::Swaps)? {
        Some(Reply::Swaps(swaps)) => swaps,
        None | Some(Reply::NotMine) => return Ok(None),
        Some(other) => return Err(unexpected(other)),
    };
    Ok(Some(Look { command: super::command(found.launcher), stats, budget, swaps }))
}

/// That of several jobs, at once: one that does not answer keeps nobody waiting for the others.
fn look_at_all(jobs: &[Found]) -> Vec<(u32, Result<Look, Failure>)> {
    thread::scope(|scope| {
        let looks: Vec<_> =
            jobs.iter().map(|found| (found.launcher, scope.spawn(|| look(found)))).collect();
        let ended = |(job, look): (u32, thread::ScopedJoinHandle<'_, _>)| {
            let look: Result<Option<Look>, Failure> = look.join().expect("it does not panic");
            look.transpose().map(|look| (job, look))
        };
        looks.into_iter().filter_map(ended).collect()
    })
}
