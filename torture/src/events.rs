//! What happens to the job from outside, as the seed has it.

use crate::full::FullDisks;
use crate::job::Job;
use crate::plan::Plan;
use crate::watch;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// Longest that a command to the job may take at least, or the plan's patience. Commands wait 5 s
/// for processes that are stopped.
const LIMIT: Duration = Duration::from_secs(90);

/// What a command says where the job, or some of its processes, did not answer in time.
const LATE: [&str; 2] = ["does not answer", "not take note of it"];

/// splitmix64, as the load has it.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % below
    }
}

/// Who makes things happen.
#[derive(Debug)]
pub struct Events<'a> {
    plan: &'a Plan,
    random: Random,
    /// The second device is in use.
    has_more: bool,
    /// The label of the device whose writes fail, if it is in use, and how many there were.
    broken: Option<String>,
    broken_count: u32,
    has_failed: bool,
    full: Option<FullDisks>,
    /// The largest budget that the job has had, in MiB.
    pub most_mib: u64,
    /// There was always room for what the job had, or soon again.
    pub had_room: bool,
}

impl Events<'_> {
    pub fn new(plan: &Plan) -> Events<'_> {
        Events {
            plan,
            random: Random::new(plan.seed),
            has_more: false,
            broken: None,
            broken_count: 0,
            has_failed: false,
            full: None,
            most_mib: plan.memory_mib,
            had_room: true,
        }
    }

    /// A tick, of which there are five a second: one thing may happen. What is wrong, if a command
    /// to the job failed in a way that it may not.
    pub fn tick(&mut self, job: &Job, is_late: bool) -> Result<(), String> {
        let happens =
            |class, one_in, random: &mut Random| self.plan.does(class) && random.below(one_in) == 0;
        let [kill, stop, budget, devices, errors, full, writes] = [
            ("kill", 4),
            ("stop", 8),
            ("budget", 12),
            ("devices", 20),
            ("errors", 20),
            ("full", 20),
            ("writes", 12),
        ]
        .map(|(class, one_in)| happens(class, one_in, &mut self.random));
        self.fill_disks(job, full)?;
        if kill {
            self.signal(job, Signal::KILL);
        }
        if stop && let Some(process) = self.signal(job, Signal::STOP) {
            std::thread::sleep(Duration::from_millis(self.random.below(400)));
            let _ = kill_process(process, Signal::CONT);
        }
        if budget {
            self.change_budget(job)?;
        }
        if devices {
            self.change_devices(job)?;
        }
        if writes {
            self.change_broken(job)?;
        }
        if errors && is_late && !self.has_failed {
            self.has_failed = true;
            self.fail_a_device(job)?;
        }
        Ok(())
    }

    /// One of the job's working processes gets a signal.
    fn signal(&mut self, job: &Job, signal: Signal) -> Option<Pid> {
        let threads = job.table.threads();
        let chosen = threads.get(self.random.below(threads.len().max(1) as u64) as usize)?;
        let process = Pid::from_raw(chosen.process)?;
        // Not somebody who has got the number since.
        job.processes().contains(&chosen.process).then_some(())?;
        kill_process(process, signal).ok().map(|()| process)
    }

    /// The disks have no room from now on, or still have none, or have room again.
    fn fill_disks(&mut self, job: &Job, is_due: bool) -> Result<(), String> {
        let lasts = Duration::from_millis(200 + self.random.below(1500));
        match self.full.take() {
            Some(full) if full.is_over() => self.had_room &= full.end(job),
            Some(mut full) => {
                full.hold(job);
                self.full = Some(full);
            }
            None if is_due => {
                let full = FullDisks::begin(job, lasts);
                self.full = Some(full.map_err(|error| format!("no disk can be filled: {error}"))?);
            }
            None => {}
        }
        Ok(())
    }

    /// Nothing more happens.
    pub fn end(&mut self, job: &Job) {
        self.had_room &= self.full.take().is_none_or(|full| full.end(job));
    }

    fn change_budget(&mut self, job: &Job) -> Result<(), String> {
        let mib = self.plan.memory_mib * (60 + self.random.below(80)) / 100;
        self.most_mib = self.most_mib.max(mib);
        // 1: not kept yet.
        self.command(job, "set", &["--memory", &format!("{mib}M"), "--wait", "0"], &[0, 1])?;
        Ok(())
    }

    fn change_devices(&mut self, job: &Job) -> Result<(), String> {
        let more = job.room().join("more");
        let more = more.to_string_lossy();
        if self.has_more {
            self.has_more = !self.is_taken_out(job, &more)?;
        } else if self.full.is_none() {
            // One that cannot be written is not opened.
            self.command(job, "swapon", &["-p", "9", &more], &[0])?;
            self.has_more = true;
        }
        Ok(())
    }

    /// A device comes or goes of which some writes fail, or all. What was written can be read. It
    /// is small: the others are needed as well.
    fn change_broken(&mut self, job: &Job) -> Result<(), String> {
        if let Some(label) = &self.broken {
            if self.is_taken_out(job, label)? {
                self.broken = None;
            }
            return Ok(());
        }
        self.broken_count += 1;
        let label = format!("broken{}", self.broken_count);
        let share = ["0.05", "0.3", "1"][self.random.below(3) as usize];
        let seed = self.random.below(1 << 32);
        let device =
            format!("ram:8M,prio=11,label={label},faults={share}:eio+short+full,seed={seed}");
        // Who is asked again has another one. Whether one that did not answer has it is not known.
        let (status, said) = self.ask(job, "swapon", &[&device])?;
        let is_late = LATE.iter().any(|late| said.contains(late));
        if status == 0 || said.contains("is in use, but") {
            self.broken = Some(label);
        } else if !is_late {
            return Err(format!("overspill swapon {device} ended with status {status}: {said}"));
        }
        Ok(())
    }

    /// Takes a device out of use, unless nothing takes its pages.
    fn is_taken_out(&self, job: &Job, name: &str) -> Result<bool, String> {
        const NO_ROOM: i32 = 2;
        self.command(job, "swapoff", &[name], &[0, NO_ROOM]).map(|status| status != NO_ROOM)
    }

    /// A device loses what is on it: who needs that gets SIGBUS, and nobody else.
    fn fail_a_device(&mut self, job: &Job) -> Result<(), String> {
        let path = job.room().join("fails");
        let name = path.to_string_lossy();
        let mut options = fs::File::options();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        let file = file.map_err(|error| format!("{name}: {error}"))?;
        self.command(job, "swapon", &["-p", "10", &format!("{name}:256M")], &[0])?;
        std::thread::sleep(Duration::from_secs(1));
        job.table.allow_lost_pages();
        file.set_len(4096).map_err(|error| format!("{name}: {error}"))?;
        std::thread::sleep(Duration::from_secs(1));
        // 64: some of its pages could not be read.
        self.command(job, "swapoff", &[&name], &[0, 2, 64])?;
        Ok(())
    }

    /// Gives the job a command, which is to end with one of these statuses; with which it did.
    fn command(
        &self,
        job: &Job,
        name: &str,
        args: &[&str],
        expected: &[i32],
    ) -> Result<i32, String> {
        let shown = format!("overspill {name} {}", args.join(" "));
        let (begun, mut is_first) = (Instant::now(), true);
        loop {
            let (status, said) = self.ask(job, name, args)?;
            match next(expected.contains(&status), &said, is_first, begun.elapsed() < self.limit())
            {
                Next::Done => return Ok(status),
                Next::Wrong => return Err(format!("{shown} ended with status {status}: {said}")),
                Next::Again => std::thread::sleep(Duration::from_secs(1)),
            }
            is_first = false;
        }
    }

    /// Gives the job a command; its exit status, and what it said.
    fn ask(&self, job: &Job, name: &str, args: &[&str]) -> Result<(i32, String), String> {
        let limit = self.limit();
        job.control(name, args, limit).ok_or_else(|| {
            let stacks = watch::stacks(&job.processes());
            let args = args.join(" ");
            format!("overspill {name} {args} did not end in {} s:\n{stacks}", limit.as_secs())
        })
    }

    fn limit(&self) -> Duration {
        self.plan.patience.max(LIMIT)
    }
}

/// What follows from the end of a command.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Done,
    Again,
    Wrong,
}

/// On a machine that does much else the job, or some of its processes, may be late to answer. They
/// are asked again then, and say what they like of what they have done already.
fn next(is_expected: bool, said: &str, is_first: bool, has_time: bool) -> Next {
    let is_late = LATE.iter().any(|late| said.contains(late));
    match (is_expected, is_late) {
        (true, _) => Next::Done,
        (false, true) if has_time => Next::Again,
        (false, false) if !is_first => Next::Done,
        (false, _) => Next::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_late_is_asked_again_and_only_who_stays_late_is_wrong() {
        let late = [
            "the job of process 7 does not answer (timed out)",
            "swap device 'x' is in use, but 5 processes do not take note of it within 5 s",
            "swap device 'x' is out of use in part: 1 process does not take note of it within 5 s",
        ];
        for said in late {
            assert_eq!(next(false, said, true, true), Next::Again, "{said}");
            assert_eq!(next(false, said, false, false), Next::Wrong, "{said}");
        }
        let used = "swap device 'x' is in use already";
        assert_eq!(next(false, used, true, true), Next::Wrong, "nobody was late");
        assert_eq!(next(false, used, false, true), Next::Done, "it was done the first time");
        assert_eq!(next(true, late[1], true, true), Next::Done);
    }
}
