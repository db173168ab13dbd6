//! A running job as its control socket answers for it: the table that its processes look at, and
//! their statistics.
//!
//! Locks: one over the budget in force and the table, so that two requests at once come one after
//! the other; one over the swap devices; one over the statistics of processes that have ended
//! ([`RunDir`]). Nobody holds two.

use super::protocol::{Budget, Call, JobStats, Process, ReclaimProgress, Reply, Request};
use super::swaps::{Processes, Swaps};
use crate::memory::{MemoryLimits, mem_total};
use crate::rundir::{self, RunDir};
use overspill::config::{Config, SwapSpec};
use overspill::job::JobTable;
use overspill::stats::{Counter, Snapshot, Stats};
use overspill::units::Bytes;
use overspill_os::directory::Directory;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;
use std::{fs, io};

/// Most processes that a reply names one by one: the use of a tree is mostly that of a few.
pub const LISTED_MAX: usize = 200;

/// A running job.
#[derive(Debug)]
pub struct Job {
    pid: u32,
    began: Instant,
    path: PathBuf,
    directory: Directory,
    /// Gone when the job ends, with its directory.
    run_dir: Weak<Mutex<RunDir>>,
    table: JobTable,
    memory: Mutex<Bytes>,
    swaps: Mutex<Swaps>,
}

impl Job {
    /// The job of this process, whose statistics are in `run_dir`, with a budget of `memory` and
    /// these devices. Before it is started.
    pub fn create(
        run_dir: &Arc<Mutex<RunDir>>,
        memory: Bytes,
        swap: &[SwapSpec],
    ) -> io::Result<Job> {
        let mut held = run_dir.lock().unwrap_or_else(PoisonError::into_inner);
        let (path, directory) = (held.path().to_owned(), held.directory().duplicate()?);
        let table = JobTable::create(held.table().as_fd())?;
        held.watch(table, memory);
        drop(held);
        let swaps = Mutex::new(Swaps::new(swap, table, directory.duplicate()?));
        let (run_dir, memory) = (Arc::downgrade(run_dir), Mutex::new(memory));
        Ok(Job {
            pid: std::process::id(),
            began: Instant::now(),
            path,
            directory,
            run_dir,
            table,
            memory,
            swaps,
        })
    }

    /// Does what is asked for.
    pub fn answer(&self, call: &Call) -> Reply {
        let keeps_statistics = || self.directory.has(&Stats::file_name(call.pid));
        if call.pid != self.pid && !(keeps_statistics() && lives(call.pid)) {
            return Reply::NotMine;
        }
        match &call.request {
            Request::Budget => Reply::Budget(self.budget(None)),
            Request::Set { memory_bytes } => match check(Bytes(*memory_bytes), mem_total()) {
                Ok(()) => Reply::Budget(self.set(Bytes(*memory_bytes))),
                Err(sentence) => Reply::Refused(sentence),
            },
            Request::Reclaim { bytes } => Reply::Reclaim(self.reclaim(Bytes(*bytes))),
            Request::Reclaimed { number } => Reply::Reclaim(self.reclaimed(*number)),
            Request::Stats => match self.run_dir.upgrade() {
                Some(run_dir) => Reply::Stats(Box::new(self.stats(&run_dir))),
                None => Reply::NotMine,
            },
            Request::Swaps
            | Request::Swapon { .. }
            | Request::Swapoff { .. }
            | Request::SwapChange { .. }
            | Request::CancelSwapoff { .. } => {
                self.answer_swaps(&call.request).unwrap_or_else(Reply::Refused)
            }
        }
    }

    /// Does what is asked for with the swap devices, or says why not.
    fn answer_swaps(&self, request: &Request) -> Result<Reply, String> {
        let mut swaps = self.swaps.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshots: Vec<_> = self.processes().collect();
        let processes =
            Processes { snapshots: &snapshots, is_managed: &|pid| self.is_managed(pid) };
        // What processes say of the last list is noted before there is another.
        swaps.follow(&processes);
        let change = match request {
            Request::Swapon { device } => swaps.add(device)?,
            Request::Swapoff { device } => swaps.remove(device, &processes)?,
            Request::SwapChange { change } => *change,
            Request::CancelSwapoff { change } => {
                swaps.cancel(*change)?;
                *change
            }
            _ => return Ok(Reply::Swaps(swaps.devices(&processes))),
        };
        let now = swaps.progress(change, &processes);
        now.map(Reply::SwapChange)
            .ok_or_else(|| "the job knows nothing of this change of its swap devices".to_owned())
    }

    fn reclaim(&self, bytes: Bytes) -> ReclaimProgress {
        // Never more than there is: what comes back meanwhile would be asked for again and again.
        let used = self.processes().fold(0, |sum: u64, (_, process)| {
            sum.saturating_add(process.get(Counter::ChargedBytes))
        });
        let used = used.saturating_sub(self.table.saved().0);
        let request = {
            let _one_at_a_time = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            self.table.ask_reclaim(bytes.min(Bytes(used)))
        };
        self.reclaimed(request.number)
    }

    fn reclaimed(&self, number: u32) -> ReclaimProgress {
        let mut now = ReclaimProgress { number, ..ReclaimProgress::default() };
        // First who is done, then what came of it: a process is done after it has said what it
        // reclaimed, so what is read now holds all that the done ones have to say.
        for (pid, process) in self.processes() {
            let done = process.reclaim_done == number;
            if done || self.is_managed(pid) {
                now.processes += 1;
                now.done += u64::from(done);
            }
        }
        let request = self.table.reclaim();
        now.wanted_bytes = request.memory.0;
        match self.table.reclaimed(number) {
            Some(reclaimed) if request.number == number => now.reclaimed_bytes = reclaimed.0,
            _ => now.replaced = true,
        }
        now
    }

    fn stats(&self, run_dir: &Mutex<RunDir>) -> JobStats {
        let sum = run_dir.lock().unwrap_or_else(PoisonError::into_inner).now(lives);
        let mut stats = JobStats::new(self.began.elapsed().as_micros() as u64, sum);
        let in_use = stats.counters.entry(Counter::ChargedBytes.name().to_owned()).or_default();
        *in_use = in_use.saturating_sub(self.table.saved().0);
        let in_use = self.swaps.lock().unwrap_or_else(PoisonError::into_inner).numbers();
        stats.devices.retain(|id, _| in_use.contains(id));
        // Small processes have no statistics of their own.
        let unmanaged =
            stats.counters.entry(Counter::UnmanagedBytes.name().to_owned()).or_default();
        *unmanaged += self.table.held().1.0;
        stats
    }

    /// Changes the budget.
    pub fn set(&self, memory: Bytes) -> Budget {
        let before = {
            let mut now = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            self.table.ask_budget(memory);
            std::mem::replace(&mut *now, memory)
        };
        let warning = MemoryLimits::read().cgroup.filter(|cgroup| memory > *cgroup).map(|cgroup| {
            format!(
                "the budget of {memory} is above the memory cgroup's limit of {cgroup}, which \
                     may kill the program"
            )
        });
        Budget { warning, ..self.budget(Some(before)) }
    }

    fn budget(&self, before: Option<Bytes>) -> Budget {
        let memory = *self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let request = self.table.budget().number;
        let mut budget = Budget {
            before_bytes: before.unwrap_or(memory).0,
            memory_bytes: memory.0,
            ..Budget::default()
        };
        for (pid, process) in self.processes() {
            let answered = process.answered == request;
            // A process that has begun to run another, unmanaged program leaves its file behind.
            if !answered && !self.is_managed(pid) {
                continue;
            }
            let [limit, used, unmanaged] =
                [Counter::LimitBytes, Counter::ChargedBytes, Counter::UnmanagedBytes]
                    .map(|counter| process.get(counter));
            budget.processes += 1;
            budget.answered += u64::from(answered);
            budget.reached += u64::from(answered && limit <= process.target.0 && used <= limit);
            budget.stuck += u64::from(answered && process.stuck);
            budget.used_bytes = budget.used_bytes.saturating_add(used).saturating_add(unmanaged);
            budget.unmanaged_bytes = budget.unmanaged_bytes.saturating_add(unmanaged);
            budget.largest.push(Process { limit_bytes: limit, ..Process::new(pid, &process) });
        }
        // What is shared counts once. Small processes have no statistics of their own.
        let held = self.table.held().1.0;
        budget.used_bytes = budget.used_bytes.saturating_sub(self.table.saved().0);
        budget.used_bytes = budget.used_bytes.saturating_add(held);
        budget.unmanaged_bytes = budget.unmanaged_bytes.saturating_add(held);
        budget.largest.sort_by_key(|process| std::cmp::Reverse(process.used_bytes));
        budget.largest.truncate(LISTED_MAX);
        budget
    }

    /// The living processes that keep statistics.
    fn processes(&self) -> impl Iterator<Item = (u32, Snapshot)> {
        let pids = rundir::processes(&self.directory).into_iter().filter(|pid| lives(*pid));
        pids.filter_map(|pid| Some((pid, rundir::read(&self.directory, pid)?)))
    }

    /// Whether a process has its statistics mapped, as far as can be known.
    fn is_managed(&self, pid: u32) -> bool {
        let file = self.path.join(Stats::file_name(pid));
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
        maps.map_or(true, |maps| file.to_str().is_none_or(|file| maps.contains(file)))
    }
}

/// Whether a budget makes sense on a machine with so much memory.
pub fn check(memory: Bytes, total: Option<Bytes>) -> Result<(), String> {
    Config::check_memory(memory).map_err(|error| error.to_string())?;
    match total {
        Some(total) if memory > total => Err(format!(
            "a budget of {memory} is more than the {total} of RAM that this machine has: give less"
        )),
        _ => Ok(()),
    }
}

/// Whether a process is there and has not ended: one that nobody has waited for has.
pub fn lives(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // PID (NAME) STATE ...; the name may hold anything.
    let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::VERSION;

    struct JobDir(Arc<Mutex<RunDir>>);

    impl JobDir {
        fn new() -> JobDir {
            JobDir(Arc::new(Mutex::new(RunDir::create(None).unwrap())))
        }

        fn job(&self) -> Job {
            Job::create(&self.0, Bytes(64 << 20), &[]).unwrap()
        }

        fn keep(&self, pid: u32) -> Stats {
            let path = self.0.lock().unwrap().path().join(format!("stats.{pid}"));
            let file =
                fs::OpenOptions::new().create_new(true).read(true).write(true).open(path).unwrap();
            Stats::in_file(file.as_fd()).unwrap()
        }
    }

    fn ask(job: &Job, pid: u32, request: Request) -> Reply {
        job.answer(&Call { version: VERSION, pid, request })
    }

    fn budget(reply: Reply) -> Budget {
        let Reply::Budget(budget) = reply else { panic!("{reply:?}") };
        budget
    }

    #[test]
    fn a_job_answers_for_its_own_processes() {
        let room = JobDir::new();
        let job = room.job();
        // Process 1 lives. Its number is beyond doubt not ours.
        assert_eq!(ask(&job, 1, Request::Budget), Reply::NotMine);
        assert_eq!(budget(ask(&job, std::process::id(), Request::Budget)).processes, 0);
        let stats = room.keep(std::process::id());
        stats.set_name("prog");
        let now = budget(ask(&job, std::process::id(), Request::Budget));
        assert_eq!((now.processes, now.answered, now.largest[0].name.as_str()), (1, 1, "prog"));
        assert_eq!((now.before_bytes, now.memory_bytes), (64 << 20, 64 << 20));
    }

    #[test]
    fn a_budget_is_reached_when_every_process_says_so() {
        let room = JobDir::new();
        let job = room.job();
        let stats = room.keep(std::process::id());
        let gauges = |target: u64, limit: u64, used: u64| {
            stats.set_target(Bytes(target << 20));
            stats.set(Counter::LimitBytes, limit << 20);
            stats.set(Counter::ChargedBytes, used << 20);
        };
        gauges(64, 64, 60);
        let asked = budget(ask(&job, std::process::id(), Request::Set { memory_bytes: 16 << 20 }));
        assert_eq!((asked.before_bytes >> 20, asked.memory_bytes >> 20), (64, 16));
        // It has not answered; but the file is mapped, so it is expected to.
        assert_eq!((asked.processes, asked.answered, asked.reached), (1, 0, 0));
        stats.set_answered(1);
        gauges(16, 40, 39);
        stats.set_stuck(true);
        let now = budget(ask(&job, std::process::id(), Request::Budget));
        assert_eq!((now.answered, now.reached, now.stuck, now.used_bytes >> 20), (1, 0, 1, 39));
        assert!(!now.is_reached());
        gauges(16, 16, 15);
        stats.set_stuck(false);
        let now = budget(ask(&job, std::process::id(), Request::Budget));
        assert!(now.is_reached() && now.stuck == 0, "{now:?}");
    }

    #[test]
    fn processes_that_ended_or_run_something_else_do_not_count() {
        let room = JobDir::new();
        let job = room.job();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        room.keep(child.id());
        assert_eq!(
            budget(ask(&job, child.id(), Request::Budget)).processes,
            1,
            "nothing was asked for yet"
        );
        let asked = budget(ask(&job, child.id(), Request::Set { memory_bytes: 16 << 20 }));
        assert_eq!(asked.processes, 0, "it has not mapped the file");
        child.kill().unwrap();
        while lives(child.id()) {
            std::thread::yield_now();
        }
        assert_eq!(
            ask(&job, child.id(), Request::Budget),
            Reply::NotMine,
            "nobody has waited for it"
        );
        child.wait().unwrap();
    }

    #[test]
    fn reclaim_is_done_when_every_process_is() {
        let room = JobDir::new();
        let job = room.job();
        let ask = |request| match ask(&job, std::process::id(), request) {
            Reply::Reclaim(now) => now,
            other => panic!("{other:?}"),
        };
        let stats = room.keep(std::process::id());
        stats.set(Counter::ChargedBytes, 10 << 20);
        let now = ask(Request::Reclaim { bytes: 4 << 20 });
        let expected = ReclaimProgress {
            number: 1,
            wanted_bytes: 4 << 20,
            processes: 1,
            ..ReclaimProgress::default()
        };
        assert_eq!(now, expected);
        // Reclaiming is tested with processes that do.
        stats.set_reclaim_done(1);
        assert_eq!(ask(Request::Reclaimed { number: 1 }), ReclaimProgress { done: 1, ..expected });
        // More than there is cannot be had.
        let now = ask(Request::Reclaim { bytes: 1 << 40 });
        assert_eq!((now.number, now.wanted_bytes, now.done), (2, 10 << 20, 0));
        assert!(ask(Request::Reclaimed { number: 1 }).replaced);
    }

    #[test]
    fn statistics_are_those_of_all_processes() {
        let room = JobDir::new();
        let job = room.job();
        let (ours, ended) = (room.keep(std::process::id()), room.keep((1 << 22) + 1));
        for stats in [&ours, &ended] {
            stats.add(Counter::PgFault, 5);
            stats.set(Counter::ChargedBytes, 10);
        }
        let stats = || match ask(&job, std::process::id(), Request::Stats) {
            Reply::Stats(stats) => stats,
            other => panic!("{other:?}"),
        };
        let told = |stats: &JobStats| {
            (stats.processes, stats.counters["pgfault"], stats.counters["charged_bytes"])
        };
        // What ended counts, what it held does not; before and after its file is taken in.
        assert_eq!(told(&stats()), (1, 10, 10));
        room.0.lock().unwrap().sweep();
        ours.add(Counter::PgFault, 1);
        assert_eq!(told(&stats()), (1, 11, 10));
        assert!(stats().elapsed_us > 0);
    }

    #[test]
    fn budgets_that_make_no_sense_are_refused() {
        let total = Some(Bytes(1 << 30));
        assert_eq!(check(Bytes(4 << 20), total), Ok(()));
        assert!(
            check(Bytes((4 << 20) - 1), total)
                .unwrap_err()
                .contains("the smallest possible is 4 MiB")
        );
        assert!(check(Bytes(2 << 30), total).unwrap_err().contains("more than the 1 GiB of RAM"));
        assert_eq!(check(Config::MEMORY_MAX, None), Ok(()));
        assert!(check(Bytes(1 << 50), None).unwrap_err().contains("the largest possible is 2 TiB"));
        let room = JobDir::new();
        let job = room.job();
        for memory_bytes in [0, 4095, u64::MAX] {
            let reply = ask(&job, std::process::id(), Request::Set { memory_bytes });
            assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
        }
        assert_eq!(job.table.budget().number, 0);
    }
}
