//! A program that is run: everything checked, the program started, and waited for.

use crate::args::{FaultDelivery, Ways};
use crate::control::Control;
use crate::control::job::Job;
use crate::control::sockets::Variables;
use crate::env::Settings;
use crate::failure::{Failure, say};
use crate::out::tell;
use crate::program::{self, Program, preload};
use crate::ran::{COULD_NOT_BEGIN, Ran};
use crate::rundir::{RunDir, Tree, leftovers};
use crate::signals::Signals;
use crate::sizing::model::Measured;
use crate::sizing::report::Report;
use crate::sizing::watch::Watch;
use crate::{limits, sizing, swap, unmanaged};
use overspill::config::{Config, SwapList, SwapSpec};
use overspill::units::Bytes;
use overspill_os::{descriptors, seccomp};
use rustix::param::clock_ticks_per_second;
use rustix::process::Pid;
use rustix::rand::{GetRandomFlags, getrandom};
use std::env::var_os;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What loads a static program, what that takes for the program, and the variable that names the
/// file.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const STAND_IN: &str = "libdl.so.2";
const STATIC: &str = "OVERSPILL_STATIC";

/// Added to the number of the signal that killed the program, as shells do.
const KILLED_BY: i32 = 128;

/// A program that can be run, as far as that is known before it starts.
pub struct Checked<'a> {
    memory: Bytes,
    swap: Vec<SwapSpec>,
    set: String,
    window: Bytes,
    fault: FaultDelivery,
    strict: bool,
    library: preload::Library,
    program: Program,
    command: &'a [OsString],
}

/// How a program ended.
pub struct Ended {
    pub ran: Ran,
    pub tree: Tree,
    pub elapsed: Duration,
    /// Processor time of the program and the children that it waited for.
    program: Duration,
    /// Whether no more was left unmanaged than is to be expected.
    pub is_managed: bool,
}

impl Ended {
    /// How much memory the program needs, if it was watched and anything of it was managed.
    /// `around` is what a fault takes beside what the engine sees of it, if that was measured.
    pub fn sized(&self, watch: &Watch, around: Option<Duration>) -> Option<Report> {
        let measured = watch.measured(&self.tree, self.elapsed, self.program);
        let measured = Measured { around, ..measured };
        let sized = || Report::new(self.ran.command.clone(), &self.tree, measured);
        self.ran.managed.then(sized)
    }
}

impl<'a> Checked<'a> {
    /// A command with a budget, or why it cannot be run.
    pub fn new(
        ways: &Ways,
        fault: FaultDelivery,
        memory: Bytes,
        strict: bool,
        command: &'a [OsString],
    ) -> Result<Checked<'a>, Failure> {
        let swap = devices(ways)?;
        let set = ways.set.join(",");
        let mut config = Config { memory, swap: swap.clone(), ..Config::of_job() };
        config.apply_settings(&set).map_err(|bad| Failure::usage(bad.to_string()))?;
        limits::make_room(config.overhead());
        let window = limits::check_window(&config)?;
        let library = preload::find_for_this()?;
        let program = program::check(command, &library)?;
        check_static(&program, fault)?;
        Ok(Checked { memory, swap, set, window, fault, strict, library, program, command })
    }

    /// Runs it, with an eye on it if it is to be watched.
    pub fn run(self, mut watch: Option<&mut Watch>) -> Result<Ended, Failure> {
        // 1. A directory for the statistics, removed however this ends.
        leftovers::sweep();
        let (variables, unfit) = Variables::read(|name| var_os(name)).fit();
        unfit.iter().for_each(|sentence| say(sentence));
        let run_dir = RunDir::create(variables.xdg.clone())?;
        let path = run_dir.path().to_owned();
        let run_dir = Arc::new(Mutex::new(run_dir));
        let lock = || run_dir.lock().unwrap_or_else(PoisonError::into_inner);

        // 2. Other commands may look at it and change its budget while it runs.
        let (job, control) = control(&run_dir, self.memory, &self.swap, &variables)?;

        // 3. The program runs; signals are caught first, so that none is lost on the way.
        let settings = Settings {
            memory: self.memory,
            swap: &self.swap,
            fault: self.fault,
            set: &self.set,
            run_dir: &path,
            window: window_place(self.window)?,
            library: &self.library.path,
            strict: self.strict,
        };
        let mut signals = Signals::catch()
            .map_err(|error| Failure::own(format!("cannot catch signals: {error}")))?;
        let start = Instant::now();
        descriptors::make_room();
        let spawned = command(&self.program, self.command, &settings).spawn();
        let mut child = spawned.map_err(|error| cannot_start(&self.program.path, &error))?;
        let pid = Pid::from_raw(child.id() as i32).expect("a child has a process id");
        let mut progress = unmanaged::Progress::default();
        let tick = || {
            let mut run_dir = lock();
            progress.look(&run_dir).inspect(|sentence| say(sentence));
            follow(&mut run_dir, watch.as_deref_mut(), job.as_deref())
        };
        let waited = signals.wait(pid, tick, |pid| lock().process_killed(pid));
        let elapsed = start.elapsed();
        let program = processor_time(child.id());
        let waited = waited.and_then(|()| child.wait());
        let status = waited
            .map_err(|error| Failure::own(format!("cannot wait for the program: {error}")))?;

        // 4. What it leaves.
        drop(control);
        let tree = finish(&mut lock());
        let is_managed = tell_unmanaged(&tree, status, &self.program.path, &self.library.path);
        let ran = Ran {
            command: sizing::profile::words(self.command),
            elapsed_s: elapsed.as_secs_f64(),
            cpu_s: program.as_secs_f64(),
            status: exit_status(status),
            budget_bytes: tree.unmanaged.budget_bytes,
            ..Ran::default()
        };
        Ok(Ended { ran: ran.finish(&tree), tree, elapsed, program, is_managed })
    }
}

/// Does what is due while the program runs; how long it is until something is.
fn follow(run_dir: &mut RunDir, watch: Option<&mut Watch>, job: Option<&Job>) -> Duration {
    let pause = run_dir.follow();
    let Some(watch) = watch else { return pause };
    let set = |memory| {
        job.inspect(|job| _ = job.set(memory));
    };
    pause.min(watch.look(run_dir, set))
}

/// Processor time of a child that has ended and was not waited for, with that of its own.
fn processor_time(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // PID (NAME) STATE ...; the name may hold anything. Fields 14 to 17 of proc_pid_stat(5).
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let ticks: u64 = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
}

/// A static program makes system calls by instructions of its own, which only signals tell.
fn check_static(program: &Program, fault: FaultDelivery) -> Result<(), Failure> {
    if !program.is_static || fault != FaultDelivery::Thread {
        return Ok(());
    }
    let name = program.path.display();
    Err(Failure::own(format!(
        "'{name}' is statically linked, so its memory is managed with faults by signal only: use \
         --fault signal, or a dynamically linked build of it"
    )))
}

/// Says what was not managed; whether that was no more than is to be expected.
fn tell_unmanaged(tree: &Tree, status: ExitStatus, program: &Path, library: &Path) -> bool {
    // A library that could not begin has said why.
    if !tree.begun && status.code() != Some(COULD_NOT_BEGIN.into()) {
        let (program, library) = (program.display(), library.display());
        say(&format!(
            "'{program}' ran without overspill, its memory unmanaged: the dynamic loader did not \
             start {library}"
        ));
    }
    let much = unmanaged::sentence(tree);
    much.iter().for_each(|sentence| say(sentence));
    tree.begun && much.is_none()
}

/// The program with its arguments, and an environment that says what the library is to do.
///
/// A static program is loaded by the library, which the dynamic loader loads.
fn command(program: &Program, words: &[OsString], settings: &Settings<'_>) -> Command {
    let mut command;
    if program.is_loaded {
        command = Command::new(LOADER);
        command.arg(STAND_IN).args(words).env(STATIC, &program.path);
    } else {
        command = Command::new(&program.path);
        command.arg0(&words[0]).args(&words[1..]);
    }
    for (name, value) in settings.changes(var_os("LD_PRELOAD").as_deref()) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Takes in what the processes have left, passes on what they have reported, and removes the
/// directory.
fn finish(run_dir: &mut RunDir) -> Tree {
    run_dir.wait_for_engines();
    let tree = run_dir.finish();
    tell(&run_dir.reports());
    for (name, pid) in run_dir.orphaned() {
        say(&format!(
            "'{name}' (pid {pid}) was killed, as somebody killed the process beside it that holds \
             its memory: spare those called 'overspill'"
        ));
    }
    // A connection may hold on to it.
    run_dir.remove();
    tree
}

/// The job, and its control socket. A job runs without either, unless the user has said where the
/// socket is to be.
fn control(
    run_dir: &Arc<Mutex<RunDir>>,
    memory: Bytes,
    swap: &[SwapSpec],
    variables: &Variables,
) -> Result<(Option<Arc<Job>>, Option<Control>), Failure> {
    let job = Job::create(run_dir, memory, swap).map(Arc::new).map_err(|error| {
        Failure::own(format!("cannot make a file for the job's processes: {error}"))
    });
    let control = job.as_ref().map_err(Failure::clone);
    match control.and_then(|job| Control::open(job, variables)) {
        Ok(control) => Ok((job.ok(), Some(control))),
        Err(failure) if variables.own.is_some() => Err(failure),
        Err(failure) => {
            say(&format!(
                "other commands, such as `overspill stat`, will not reach this job: {}",
                failure.sentence
            ));
            Ok((job.ok(), None))
        }
    }
}

fn devices(ways: &Ways) -> Result<Vec<SwapSpec>, Failure> {
    if ways.no_swap {
        return Ok(Vec::new());
    }
    if !ways.swap.is_empty() {
        return ways.swap.iter().flat_map(|SwapList(specs)| specs).map(swap::check).collect();
    }
    match swap::default_directory(var_os("TMPDIR")) {
        Some(dir) => Ok(vec![swap::check(&SwapSpec::new(dir))?]),
        None => {
            say("neither $TMPDIR nor /var/tmp is a writable directory on a disk, so memory is \
                 only compressed: name one with --swap, or say --no-swap");
            Ok(Vec::new())
        }
    }
}

/// Where the window of the job begins: anywhere, as the kernel puts memory anywhere; always at the
/// same place where the kernel is told not to (`setarch -R`).
fn window_place(window: Bytes) -> Result<usize, Failure> {
    /// A window has a little more than its size.
    const MORE: u64 = 1 << 30;
    const ADDR_NO_RANDOMIZE: u32 = 0x0004_0000;
    let personality = fs::read_to_string("/proc/self/personality").unwrap_or_default();
    let personality = u32::from_str_radix(personality.trim(), 16).unwrap_or(0);
    let mut random = [0; 8];
    if personality & ADDR_NO_RANDOMIZE == 0 {
        getrandom(&mut random, GetRandomFlags::empty())
            .map_err(|error| Failure::own(format!("cannot get a random number: {error}")))?;
    }
    Ok(seccomp::place((window.0 + MORE) as usize, u64::from_ne_bytes(random)))
}

fn cannot_start(program: &Path, error: &io::Error) -> Failure {
    let program = program.display();
    let sentence = format!("cannot start '{program}': {error}");
    match error.kind() {
        ErrorKind::NotFound => Failure::not_found(sentence),
        // EACCES, ENOEXEC, ELOOP, ETXTBSY: the file is there, and exec refuses it.
        _ if [13, 8, 40, 26].contains(&error.raw_os_error().unwrap_or(0)) => {
            Failure::not_executable(sentence)
        }
        _ => Failure::own(sentence),
    }
}

fn exit_status(status: ExitStatus) -> u8 {
    let status = status.code().or_else(|| status.signal().map(|signal| KILLED_BY + signal));
    status.map_or(crate::failure::OWN, |status| status as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{NOT_EXECUTABLE, NOT_FOUND, OWN};

    #[test]
    fn exit_statuses_are_those_of_shells() {
        assert_eq!(exit_status(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_status(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(exit_status(ExitStatus::from_raw(15)), 143);
        assert_eq!(exit_status(ExitStatus::from_raw(11 | 0x80)), 139, "with a core dump");
    }

    #[test]
    fn refusals_of_exec_have_their_status() {
        let status =
            |errno| cannot_start(Path::new("/x"), &io::Error::from_raw_os_error(errno)).status;
        assert_eq!(
            (status(2), status(13), status(8), status(11)),
            (NOT_FOUND, NOT_EXECUTABLE, NOT_EXECUTABLE, OWN)
        );
    }
}
