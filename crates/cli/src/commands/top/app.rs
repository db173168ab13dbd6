//! What is shown, and what keys do to it. Nothing here touches the terminal or a job.

use super::watched::Watched;
use crate::control::job;
use crate::control::look::Look;
use crate::control::protocol::{Process, SwapName};
use crate::failure::Failure;
use crate::memory::mem_total;
use crate::report::printable;
use overspill::stats::Counter;
use overspill::units::{Bytes, PAGE_SIZE};
use std::cmp::Reverse;

/// A key, as far as it means something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// A letter, or another character.
    Letter(char),
    /// The arrows.
    Up,
    /// Down.
    Down,
    /// Goes on.
    Enter,
    /// Goes back.
    Escape,
    /// Takes the last character away.
    Backspace,
    /// Ends it, at any time (Ctrl-C).
    Interrupt,
}

/// What comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sort {
    /// What uses most.
    #[default]
    Used,
    /// What faults most.
    Faults,
    /// What has most on swap devices.
    Swap,
    /// What waits most for memory; of processes, what uses most.
    Stalled,
    /// The lowest number.
    Number,
}

impl Sort {
    const ALL: [Sort; 5] = [Sort::Used, Sort::Faults, Sort::Swap, Sort::Stalled, Sort::Number];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Used => "used",
            Sort::Faults => "faults",
            Sort::Swap => "swap",
            Sort::Stalled => "stalled",
            Sort::Number => "number",
        }
    }

    fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }
}

/// What is to be done to a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Change its budget.
    Budget(Bytes),
    /// Take so much out of memory.
    Reclaim(Bytes),
    /// Take a swap device out of use.
    Swapoff(SwapName, String),
}

/// What somebody is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Prompt {
    /// A new budget, or how much is to be reclaimed.
    Size {
        /// The job.
        job: u32,
        /// Whether it is the budget.
        is_budget: bool,
        /// What has been typed.
        typed: String,
    },
    /// Which device is to be taken out of use, by its digit.
    Device {
        /// The job.
        job: u32,
        /// The one that has the first digit.
        first: usize,
    },
    /// Whether it is meant so.
    Sure {
        /// The job.
        job: u32,
        /// What is to be done.
        action: Action,
        /// The question.
        question: String,
    },
}

/// What follows from a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Another screen, at most.
    Nothing,
    /// The end.
    Quit,
    /// Something is to be done to a job.
    Do(u32, Action),
}

/// What is shown.
#[derive(Clone, Debug, Default)]
pub struct App {
    /// The jobs, in the order in which they are shown.
    pub jobs: Vec<Watched>,
    /// The one that is marked.
    pub marked: Option<u32>,
    /// The one that is opened.
    pub opened: Option<u32>,
    /// What comes first.
    pub sort: Sort,
    /// What somebody is asked.
    pub prompt: Option<Prompt>,
    /// What was done last, or why not.
    pub message: String,
    /// Whether the one job that is watched is all there is to see.
    pub only: bool,
}

impl App {
    /// Takes in what jobs say; those that are not there any more have ended.
    pub fn update(&mut self, looks: Vec<(u32, Result<Look, Failure>)>) {
        let mut before = std::mem::take(&mut self.jobs);
        for (job, look) in looks {
            let known = before.iter().position(|watched| watched.job == job);
            let known = known.map(|at| before.swap_remove(at));
            let watched = match (known, look) {
                (Some(mut watched), Ok(look)) => {
                    watched.again(look);
                    watched
                }
                (None, Ok(look)) => Watched::new(job, look),
                (known, Err(failure)) => {
                    let watched = known.unwrap_or_else(|| Watched::new(job, Look::default()));
                    Watched { silent: Some(failure.sentence), ..watched }
                }
            };
            self.jobs.push(watched);
        }
        self.order();
        let is_there = |job: &u32| self.jobs.iter().any(|watched| watched.job == *job);
        self.marked = self.marked.filter(is_there).or(self.jobs.first().map(|first| first.job));
        if let Some(ended) = self.opened.filter(|job| !is_there(job)) {
            self.message = format!("job {ended} has ended");
            self.opened = None;
        }
        self.prompt = self.prompt.take().filter(|prompt| is_there(&prompt.job()));
    }

    fn order(&mut self) {
        let sort = self.sort;
        self.jobs.sort_by_key(|job| {
            let figure = match sort {
                Sort::Used => job.look.budget.used_bytes,
                Sort::Faults => job.sample.rate(Counter::PgFault) as u64,
                Sort::Swap => job.swapped(),
                Sort::Stalled => (job.sample.stalled_percent()[1] * 100.0) as u64,
                Sort::Number => 0,
            };
            (Reverse(figure), job.job)
        });
    }

    /// The processes of a job in their order.
    pub fn processes<'a>(&self, job: &'a Watched) -> Vec<&'a Process> {
        let mut processes: Vec<_> = job.look.budget.largest.iter().collect();
        processes.sort_by_key(|one| {
            let figure = match self.sort {
                Sort::Used | Sort::Stalled => one.used_bytes,
                Sort::Faults => job.faults.get(&one.pid).copied().unwrap_or(0.0) as u64,
                Sort::Swap => one.figures.swap_bytes,
                Sort::Number => 0,
            };
            (Reverse(figure), one.pid)
        });
        processes
    }

    /// The job of that number.
    pub fn job(&self, job: u32) -> Option<&Watched> {
        self.jobs.iter().find(|watched| watched.job == job)
    }

    /// The job that keys are about.
    pub fn current(&self) -> Option<&Watched> {
        self.job(self.opened.or(self.marked)?)
    }

    /// What follows from a key.
    pub fn key(&mut self, key: Key) -> Effect {
        if key == Key::Interrupt {
            return Effect::Quit;
        }
        if let Some(prompt) = self.prompt.take() {
            return self.answer(prompt, key);
        }
        self.message.clear();
        match key {
            Key::Letter('q') => return Effect::Quit,
            Key::Escape if self.opened.is_none() || self.only => return Effect::Quit,
            Key::Escape => self.opened = None,
            Key::Up | Key::Letter('k') => self.move_mark(-1),
            Key::Down | Key::Letter('j') => self.move_mark(1),
            Key::Enter => self.opened = self.opened.or(self.marked),
            Key::Letter('s') => {
                self.sort = self.sort.next();
                self.order();
            }
            Key::Letter('b') => self.ask_size(true),
            Key::Letter('r') => self.ask_size(false),
            Key::Letter('o') => self.ask_device(),
            _ => {}
        }
        Effect::Nothing
    }

    fn move_mark(&mut self, by: isize) {
        let at = self.jobs.iter().position(|job| Some(job.job) == self.marked);
        let to = at.map_or(0, |at| at.saturating_add_signed(by)).min(self.jobs.len().max(1) - 1);
        if self.opened.is_none() {
            self.marked = self.jobs.get(to).map(|job| job.job);
        }
    }

    fn ask_size(&mut self, is_budget: bool) {
        let size = |job: &Watched| Prompt::Size { job: job.job, is_budget, typed: String::new() };
        self.prompt = self.current().map(size);
    }

    fn ask_device(&mut self) {
        let Some(job) = self.current() else { return };
        if job.look.swaps.is_empty() {
            self.message = format!("job {} has no swap device", job.job);
            return;
        }
        self.prompt = Some(Prompt::Device { job: job.job, first: 0 });
    }

    /// Goes on with what somebody was asked.
    fn answer(&mut self, prompt: Prompt, key: Key) -> Effect {
        match (prompt, key) {
            (_, Key::Escape) => {}
            (Prompt::Size { job, is_budget, typed }, Key::Enter) => {
                self.typed(job, is_budget, &typed);
            }
            (Prompt::Size { job, is_budget, mut typed }, key) => {
                match key {
                    Key::Letter(letter) if typed.len() < 20 && letter.is_ascii_graphic() => {
                        typed.push(letter);
                    }
                    Key::Backspace => drop(typed.pop()),
                    _ => {}
                }
                self.prompt = Some(Prompt::Size { job, is_budget, typed });
            }
            (Prompt::Device { job, first }, Key::Letter(digit @ '1'..='9')) => {
                self.chosen(job, first, digit as usize - '1' as usize);
            }
            (Prompt::Device { job, first }, Key::Down | Key::Letter('j')) => {
                let devices = self.job(job).map_or(0, |watched| watched.look.swaps.len());
                let first = (first + 1).min(devices.max(1) - 1);
                self.prompt = Some(Prompt::Device { job, first });
            }
            (Prompt::Device { job, first }, Key::Up | Key::Letter('k')) => {
                self.prompt = Some(Prompt::Device { job, first: first.saturating_sub(1) });
            }
            (prompt @ Prompt::Device { .. }, _) => self.prompt = Some(prompt),
            (Prompt::Sure { job, action, .. }, Key::Letter('y')) => {
                return Effect::Do(job, action);
            }
            (Prompt::Sure { .. }, Key::Letter('n')) => {}
            (prompt @ Prompt::Sure { .. }, _) => self.prompt = Some(prompt),
        }
        Effect::Nothing
    }

    /// A size has been typed; what follows is the question whether it is meant so.
    fn typed(&mut self, job: u32, is_budget: bool, typed: &str) {
        let size =
            typed.parse::<Bytes>().map_err(|bad| bad.to_string()).and_then(
                |size| match is_budget {
                    true => job::check(size, mem_total()).map(|()| size),
                    false if size.0 < PAGE_SIZE as u64 => Err("give at least a page".to_owned()),
                    false => Ok(size),
                },
            );
        let Some(watched) = self.job(job) else { return };
        let command = &watched.look.command;
        let now = Bytes(watched.look.budget.memory_bytes);
        match size {
            Err(sentence) => self.message = sentence,
            Ok(size) if is_budget => {
                let question =
                    format!("Change the budget of job {job} ({command}): {now} -> {size}?");
                self.prompt = Some(Prompt::Sure { job, action: Action::Budget(size), question });
            }
            Ok(size) => {
                let question = format!("Take {size} of job {job} ({command}) out of memory?");
                self.prompt = Some(Prompt::Sure { job, action: Action::Reclaim(size), question });
            }
        }
    }

    /// A device has been chosen.
    fn chosen(&mut self, job: u32, first: usize, at: usize) {
        let swaps = self.job(job).map(|watched| &watched.look.swaps);
        let Some(device) = swaps.and_then(|swaps| swaps.get(first + at)) else {
            self.prompt = Some(Prompt::Device { job, first });
            return;
        };
        let (path, used) = (printable(&device.path), Bytes(device.used_bytes));
        let question = format!("Take {path} ({used} in use) of job {job} out of use?");
        let action = Action::Swapoff(SwapName::Id(device.id), path);
        self.prompt = Some(Prompt::Sure { job, action, question });
    }
}

impl Prompt {
    fn job(&self) -> u32 {
        match self {
            Prompt::Size { job, .. } | Prompt::Device { job, .. } | Prompt::Sure { job, .. } => {
                *job
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::control::protocol::SwapDevice;

    /// A job with these figures in MiB and faults.
    pub fn look(command: &str, used: u64, faults: u64) -> Look {
        let mut look = Look { command: command.to_owned(), ..Look::default() };
        look.stats.elapsed_us = 65_000_000;
        look.stats.processes = 1;
        let mut count = |counter: Counter, n: u64| {
            look.stats.counters.insert(counter.name().to_owned(), n);
        };
        count(Counter::PgFault, faults);
        count(Counter::ResidentPages, 256 * used / 2);
        count(Counter::CompressedPages, 256 * 60);
        count(Counter::CompressedPoolBytes, 20 << 20);
        count(Counter::SwapCachePages, 256);
        count(Counter::UnmanagedBytes, 2 << 20);
        look.stats.latency =
            vec![vec![(56, faults / 4)], vec![], vec![(88, faults / 2)], vec![(114, faults / 4)]];
        look.stats.pressure[0].total_us = 13_000_000;
        look.stats.pressure[1].total_us = 6_500_000;
        look.stats.pressure[1].avg = [1_234, 500, 100];
        look.budget.memory_bytes = 64 << 20;
        look.budget.used_bytes = used << 20;
        let mut process = Process {
            pid: 6310,
            name: command.to_owned(),
            limit_bytes: 60 << 20,
            used_bytes: (used - 2) << 20,
            ..Process::default()
        };
        process.figures.faults = faults;
        process.figures.resident_bytes = (used << 20) / 2;
        process.figures.compressed_bytes = 60 << 20;
        process.figures.swap_bytes = 30 << 20;
        let small = Process {
            pid: 6311,
            name: "helper".to_owned(),
            used_bytes: 1 << 20,
            ..Process::default()
        };
        look.budget.largest = vec![process, small];
        look.swaps = vec![SwapDevice {
            id: 4,
            path: "/var/tmp".to_owned(),
            kind: "directory".to_owned(),
            size_bytes: 1 << 30,
            used_bytes: 30 << 20,
            priority: -2,
            ..SwapDevice::default()
        }];
        look
    }

    pub fn app() -> App {
        let mut app = App::default();
        app.update(vec![(384, Ok(look("python3", 50, 6_500))), (385, Ok(look("sort", 60, 650)))]);
        app
    }

    fn keys(app: &mut App, keys: &str) -> Effect {
        let mut last = Effect::Nothing;
        for letter in keys.chars() {
            last = app.key(match letter {
                '\n' => Key::Enter,
                '\u{8}' => Key::Backspace,
                '\u{1b}' => Key::Escape,
                letter => Key::Letter(letter),
            });
        }
        last
    }

    fn order(app: &App) -> Vec<u32> {
        app.jobs.iter().map(|job| job.job).collect()
    }

    #[test]
    fn jobs_are_sorted_marked_and_opened() {
        let mut app = app();
        assert_eq!((order(&app), app.marked), (vec![385, 384], Some(385)));
        keys(&mut app, "s");
        assert_eq!((order(&app), app.sort.name()), (vec![384, 385], "faults"));
        keys(&mut app, "k");
        assert_eq!(app.marked, Some(384));
        keys(&mut app, "jjj\n");
        assert_eq!((app.marked, app.opened), (Some(385), Some(385)));
        keys(&mut app, "j\u{1b}");
        assert_eq!((app.marked, app.opened), (Some(385), None));
        assert_eq!((keys(&mut app, "q"), app.key(Key::Interrupt)), (Effect::Quit, Effect::Quit));
        assert_eq!(keys(&mut app, "ssss"), Effect::Nothing);
        assert_eq!(app.sort, Sort::Used, "it comes round");
    }

    #[test]
    fn nothing_is_done_unless_it_is_confirmed() {
        let mut app = app();
        assert_eq!(keys(&mut app, "b96X\u{8}M\n"), Effect::Nothing);
        let Some(Prompt::Sure { question, .. }) = &app.prompt else { panic!("{:?}", app.prompt) };
        assert_eq!(question, "Change the budget of job 385 (sort): 64 MiB -> 96 MiB?");
        assert_eq!(keys(&mut app, "x\ny"), Effect::Do(385, Action::Budget(Bytes(96 << 20))));
        assert!(app.prompt.is_none());
        assert_eq!(keys(&mut app, "r4M\nn"), Effect::Nothing);
        assert_eq!(keys(&mut app, "r4M\ny"), Effect::Do(385, Action::Reclaim(Bytes(4 << 20))));
        assert_eq!(keys(&mut app, "o91"), Effect::Nothing);
        let device = Action::Swapoff(SwapName::Id(4), "/var/tmp".to_owned());
        assert_eq!(keys(&mut app, "y"), Effect::Do(385, device));
        assert_eq!(keys(&mut app, "o\u{1b}b1\u{1b}"), Effect::Nothing);
        assert!(app.prompt.is_none() && app.message.is_empty());
    }

    #[test]
    fn any_device_can_be_chosen() {
        let mut app = app();
        let device = |id| SwapDevice { id, path: format!("/disk{id}"), ..SwapDevice::default() };
        app.jobs[0].look.swaps = (1..=12).map(device).collect();
        let taken = |app: &mut App, typed: &str| match keys(app, typed) {
            Effect::Do(385, Action::Swapoff(_, path)) => path,
            other => panic!("{other:?}"),
        };
        assert_eq!(taken(&mut app, "o9y"), "/disk9");
        assert_eq!(taken(&mut app, "ojjj9y"), "/disk12");
        assert_eq!(taken(&mut app, &format!("o{}1y", "j".repeat(20))), "/disk12");
        assert_eq!(taken(&mut app, "ojjkkk1y"), "/disk1");
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        let mut app = app();
        for (typed, part) in [
            ("bmuch\n", "is not a size"),
            ("b1M\n", "smallest possible"),
            ("r1\n", "at least a page"),
        ] {
            assert_eq!(keys(&mut app, typed), Effect::Nothing);
            assert!(app.prompt.is_none() && app.message.contains(part), "{}", app.message);
        }
        keys(&mut app, "s");
        assert!(app.message.is_empty());
        app.jobs[0].look.swaps.clear();
        keys(&mut app, "ko");
        assert!(app.message.contains("no swap device") && app.prompt.is_none());
        assert_eq!(keys(&mut App::default(), "bro\njk"), Effect::Nothing, "there is no job");
    }

    #[test]
    fn jobs_come_and_go() {
        let mut app = app();
        keys(&mut app, "\nb");
        app.update(vec![(384, Ok(look("python3", 50, 6_600))), (7, Ok(look("new", 9, 1)))]);
        assert_eq!((order(&app), app.marked, app.opened), (vec![384, 7], Some(384), None));
        assert!(app.prompt.is_none() && app.message.contains("385 has ended"));
        app.update(vec![(384, Err(Failure::failed("it is stopped")))]);
        let job = app.job(384).unwrap();
        assert_eq!(
            (job.silent.as_deref(), job.look.command.as_str()),
            (Some("it is stopped"), "python3")
        );
        app.update(Vec::new());
        assert_eq!((app.marked, app.jobs.len()), (None, 0));
    }
}
