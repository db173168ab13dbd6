//! Real programs as work: what is installed of them, their inputs, and how they are started.
//!
//! Each is run as its users run it, with all that it works on in its memory. What it prints, or
//! what a client reads from it, is compared to the bit between the runs
//! ([`super::launch`]).

mod inputs;

use super::case::Program;
use crate::machine::*;
use crate::measure::*;
use overspill::units::PAGE_SIZE;
use overspill_bench::workload::Workload;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// What numpy is to do.
const NUMPY: &str = include_str!("program/numpy.py");
/// What a pool of Python processes is to do, what a process that forks, and one with workers.
const POOL: &str = include_str!("program/pool.py");
const FORKS: &str = include_str!("program/forks.py");
const WORKERS: &str = include_str!("program/workers.py");
/// What works with a redis-server, and ends it.
const REDIS: &str = include_str!("program/redis.py");
/// How a database is asked, and its server started and ended around that.
const POSTGRESQL: &str = include_str!("program/postgresql.sh");
/// The longest path of a socket.
const SOCKET_MAX: usize = 100;
/// Many short processes.
const SHORT: &str = "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done";
/// Pythons: the distribution's, which may have numpy, and the first of the search path.
const PYTHONS: [&str; 2] = ["/usr/bin/python3", "python3"];
/// Bytes that the buffer of sort(1) may have for each byte of its file: lines and what it knows of
/// each of them.
const SORT_BUFFER: u64 = 2;
/// How many times as many accesses as pages a process of a job makes: some seconds with 512 MiB.
const PASSES: &str = "8";
/// Who a database runs as, which refuses to be root's; he may have faults served by a thread.
const AS_POSTGRES: &str = "setpriv --reuid=postgres --regid=postgres --clear-groups \
                           --inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace --";
/// What a redis-server is told: that it has no port, and only memory. Behind `--save` is an empty
/// word.
const REDIS_ARGS: &str = "--port 0 --save  --appendonly no --daemonize no";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub words: Vec<String>,
    /// The command that works with it from outside and ends it, where one does; the last word is
    /// the process that it works with. It prints what that took as JSON
    /// ([`super::launch::Served`]).
    pub client: Option<Vec<String>>,
    /// Words before it, and before overspill, that have another user run it, and a directory of
    /// that user.
    pub user: Option<(Vec<String>, PathBuf)>,
}

impl Job {
    pub fn new<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> Job {
        let words = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        Job { words, client: None, user: None }
    }
}

/// Where a program's files are, which are removed when this is dropped, also by force.
#[derive(Debug)]
pub struct Inputs {
    folder: PathBuf,
    guard: Option<Guard>,
    /// The command of the user's.
    own: Vec<String>,
}

impl Inputs {
    /// For programs whose data are of `size`; makes what these need. The user's `own` command
    /// brings what it needs.
    pub fn make(
        programs: &[Program],
        dir: &Path,
        size: u64,
        own: Vec<String>,
    ) -> Result<Inputs, Failure> {
        let folder = dir.join(format!(".overspill-bench-{}.inputs", std::process::id()));
        if programs.iter().all(|program| *program == Program::Own) {
            return Ok(Inputs { folder, guard: None, own });
        }
        let guard = Some(Guard::start(&PutBack::files([folder.clone()]))?);
        let inputs = Inputs { guard, folder, own };
        fs::create_dir(&inputs.folder).failing("a directory for inputs cannot be made")?;
        for &program in programs {
            inputs.of(program, size)?;
        }
        Ok(inputs)
    }

    /// Makes those of a program, unless they are there already.
    fn of(&self, program: Program, size: u64) -> Result<(), Failure> {
        let path = self.path(program);
        match program {
            _ if path.exists() => Ok(()),
            Program::Sort => inputs::lines(&path, size),
            Program::Redis => inputs::values(&path, size),
            Program::Cxx => inputs::source(&path, size),
            Program::Make => inputs::makefile(&path, size),
            Program::Postgresql => {
                fs::create_dir(&path).failing("a directory for a database cannot be made")?;
                let text = path.to_string_lossy();
                inputs::query(&path.join("sort.sql"), size)?;
                command("chown", &["-R", "postgres:", &text])?;
                let data = format!("{text}/data");
                let words = ["initdb", "-D", &data, "-A", "trust", "-N", "--locale=C"];
                let words: Vec<&str> = AS_POSTGRES.split(' ').chain(words).collect();
                command(words[0], &words[1..]).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// What a program works on, a file or a directory.
    fn path(&self, program: Program) -> PathBuf {
        let file = match program {
            Program::Cxx => "cxx.cpp".to_owned(),
            program => program.to_string(),
        };
        self.folder.join(file)
    }

    /// How a program is started on data of `size`.
    pub fn job(&self, program: Program, size: u64) -> Result<Job, Failure> {
        let path = self.path(program);
        let (path, bytes) = (path.to_string_lossy(), size.to_string());
        let python = |script, args: &[&str]| -> Result<Job, Failure> {
            Ok(Job::new([&[python("pass")?, "-c", script], args].concat()))
        };
        Ok(match program {
            // With a buffer that takes all of it, so that it makes no files of its own.
            Program::Sort => {
                let buffer = &format!("-S{}b", SORT_BUFFER * size);
                Job::new(["env", "LC_ALL=C", "sort", "--parallel=1", buffer, &path])
            }
            Program::NumpySort | Program::NumpyProduct => {
                let python = self::python("import numpy")?;
                let what = if program == Program::NumpySort { "sort" } else { "product" };
                let threads = ["OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1"];
                Job::new([&["env"], &threads[..], &[python, "-c", NUMPY, what, &bytes]].concat())
            }
            Program::Redis => {
                let socket = format!("{path}.socket");
                if socket.len() > SOCKET_MAX {
                    fail!("'{socket}' is too long for a socket: name another --dir");
                }
                let client = Some(python(REDIS, &[&socket, &path])?.words);
                let words = ["redis-server", "--unixsocket", &socket].into_iter();
                Job { client, ..Job::new(words.chain(REDIS_ARGS.split(' '))) }
            }
            Program::Cxx => {
                Job::new([&compiler()?, "-quiet", "-std=c++17", "-O0", &path, "-o", "-"])
            }
            Program::Make => Job::new(["make", "-s", "-B", "-j4", "-C", &path]),
            Program::PythonPool => python(POOL, &[&bytes])?,
            Program::Postgresql => {
                let user = AS_POSTGRES.split(' ').map(str::to_owned).collect();
                let user = Some((user, self.path(program)));
                Job { user, ..Job::new(["sh", "-c", POSTGRESQL, "sh", &path]) }
            }
            Program::Busy2 => load(size, 2, 0)?,
            Program::Busy8 => load(size, 8, 0)?,
            Program::BusyIdle100 => load(size / 2, 1, 100)?,
            Program::Forks => python(FORKS, &[&(size / 2).to_string()])?,
            Program::Workers => python(WORKERS, &[&(size / 8 * 5).to_string()])?,
            Program::Short => Job::new(["sh", "-c", SHORT]),
            Program::Own => Job::new(&self.own),
        })
    }
}

/// Processes that write to so many bytes at random, and others that keep as much.
fn load(bytes: u64, busy: u32, idle: u32) -> Result<Job, Failure> {
    let load = beside("overspill-load")?;
    let (pages, busy, idle) = (bytes / PAGE_SIZE as u64, busy.to_string(), idle.to_string());
    let (work, pages) = (Workload::RandWrite.to_string(), pages.to_string());
    let words = [&load.to_string_lossy(), work.as_str(), &pages, "--passes", PASSES];
    Ok(Job::new([&words[..], &["--processes", &busy, "--idle", &idle]].concat()))
}

impl Drop for Inputs {
    fn drop(&mut self) {
        // What cannot be removed was said on standard error.
        let _ = self.guard.take().map(Guard::finish);
    }
}

/// What this machine lacks for a program, in a sentence.
pub fn missing(program: Program) -> Option<String> {
    let have =
        |names: &[&str]| names.iter().try_for_each(|name| command(name, &["--version"]).map(drop));
    let found = match program {
        Program::Sort => match command("sort", &["--version"]) {
            Ok(text) if !text.contains("GNU") => return Some("there is no GNU sort".to_owned()),
            found => found.map(drop),
        },
        Program::NumpySort | Program::NumpyProduct => python("import numpy").map(drop),
        Program::Redis => have(&["redis-server", "redis-benchmark", "redis-cli"])
            .and_then(|()| python("pass").map(drop)),
        Program::Cxx => compiler().map(drop),
        Program::Make => have(&["make"]).and(compiler().map(drop)),
        Program::PythonPool | Program::Forks | Program::Workers => python("pass").map(drop),
        Program::Postgresql => have(&["postgres", "initdb", "psql"])
            .and_then(|()| command("id", &["-u", "postgres"]).map(drop)),
        // The last was looked for before.
        Program::Busy2 | Program::Busy8 | Program::BusyIdle100 | Program::Short | Program::Own => {
            return None;
        }
    };
    found.err().map(|failure| failure.to_string())
}

/// A Python that can do this.
fn python(what: &str) -> Result<&'static str, Failure> {
    let found = PYTHONS.into_iter().find(|python| command(python, &["-c", what]).is_ok());
    found.ok_or_else(|| Failure::new(format!("there is no python3 that does '{what}': install it")))
}

/// The compiler proper, which g++ starts.
fn compiler() -> Result<String, Failure> {
    let path = command("g++", &["-print-prog-name=cc1plus"])?.trim().to_owned();
    // Where it has none it prints the name alone.
    if Path::new(&path).is_relative() {
        fail!("g++ has no cc1plus: install all of it");
    }
    Ok(path)
}

/// A program that is installed, or built, beside this one.
pub fn beside(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::current_exe().unwrap_or_default().with_file_name(name);
    if !path.exists() {
        fail!("there is no '{}': build it", path.display());
    }
    Ok(path)
}
