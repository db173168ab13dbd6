//! Real programs as work: what is installed of them, their inputs, and how they are started.
//!
//! Each is run as its users run it, with all that it works on in its memory. What it prints, or
//! what a client reads from it, is compared to the bit between the runs
//! ([`super::launch`]). [`redis`] is the client of that server.

mod inputs;
mod redis;

use super::case::Program;
use crate::machine::*;
use crate::measure::*;
use overspill::units::PAGE_SIZE;
use overspill_bench::workload::Workload;
pub use redis::{Client, Served};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// What numpy is to do.
const NUMPY: &str = include_str!("program/numpy.py");
/// What a pool of Python processes is to do, what a process that forks, and one with workers.
const POOL: &str = include_str!("program/pool.py");
const FORKS: &str = include_str!("program/forks.py");
const WORKERS: &str = include_str!("program/workers.py");
/// How a database is asked, and its server started and ended around that.
const POSTGRESQL: &str = include_str!("program/postgresql.sh");
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
const AS_POSTGRES: [&str; 7] = [
    "setpriv",
    "--reuid=postgres",
    "--regid=postgres",
    "--clear-groups",
    "--inh-caps=+sys_ptrace",
    "--ambient-caps=+sys_ptrace",
    "--",
];

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub words: Vec<String>,
    /// Who works with it from outside, where somebody does.
    pub client: Option<Client>,
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
        let what = PutBack { folder: Some(folder.clone()), ..PutBack::default() };
        let inputs = Inputs { guard: Some(Guard::start(&what)?), folder, own };
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
            Program::Cxx => inputs::source(&path, size),
            Program::Make => inputs::makefile(&path, size),
            Program::Postgresql => {
                fs::create_dir(&path).failing("a directory for a database cannot be made")?;
                let text = path.to_string_lossy();
                inputs::query(&path.join("sort.sql"), size)?;
                command("chown", &["-R", "postgres:", &text])?;
                let data = format!("{text}/data");
                let words = ["initdb", "-D", &data, "-A", "trust", "-N", "--locale=C"];
                command(AS_POSTGRES[0], &[&AS_POSTGRES[1..], &words].concat()).map(drop)
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
        let python = |script, args: &[&str]| match python("pass") {
            Some(python) => Ok(Job::new([&[python, "-c", script], args].concat())),
            None => fail!("{NO_PYTHON}"),
        };
        Ok(match program {
            // With a buffer that takes all of it, so that it makes no files of its own.
            Program::Sort => {
                let buffer = &format!("-S{}b", SORT_BUFFER * size);
                Job::new(["env", "LC_ALL=C", "sort", "--parallel=1", buffer, &path])
            }
            Program::NumpySort | Program::NumpyProduct => {
                let python = self::python("import numpy").ok_or_else(|| Failure::new(NO_NUMPY))?;
                let what = if program == Program::NumpySort { "sort" } else { "product" };
                let threads = ["OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1"];
                Job::new([&["env"], &threads[..], &[python, "-c", NUMPY, what, &bytes]].concat())
            }
            Program::Redis => {
                let client = Some(Client::new(path.to_string(), size)?);
                let quiet =
                    ["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"];
                let words = [&["redis-server", "--unixsocket", &path], &quiet[..]].concat();
                Job { client, ..Job::new(words) }
            }
            // What g++ starts.
            Program::Cxx => {
                let compiler = compiler().ok_or_else(|| Failure::new(NO_COMPILER))?;
                Job::new([&compiler, "-quiet", "-std=c++17", "-O0", &path, "-o", "-"])
            }
            Program::Make => Job::new(["make", "-s", "-B", "-j4", "-C", &path]),
            Program::PythonPool => python(POOL, &[&bytes])?,
            Program::Postgresql => {
                let user = Some((AS_POSTGRES.map(str::to_owned).to_vec(), self.path(program)));
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

const NO_PYTHON: &str = "there is no python3: install python3";
const NO_NUMPY: &str = "there is no python3 with numpy: install python3-numpy";
const NO_COMPILER: &str = "there is no g++ with a cc1plus: install g++";
const NO_POSTGRESQL: &str = "there is no postgres with initdb and psql on the search path, or no \
                             user of that name: install postgresql";

pub fn missing(program: Program) -> Option<String> {
    let have = |names: &[&str]| names.iter().all(|name| runs(name, &["--version"]).is_some());
    let (is_there, without) = match program {
        Program::Sort => (
            runs("sort", &["--version"]).is_some_and(|text| text.contains("GNU")),
            "there is no GNU sort: install coreutils",
        ),
        Program::NumpySort | Program::NumpyProduct => (python("import numpy").is_some(), NO_NUMPY),
        Program::Redis => (
            have(&["redis-server", "redis-benchmark", "redis-cli"]),
            "there is no redis-server with redis-benchmark and redis-cli: install redis-server and \
             redis-tools",
        ),
        Program::Cxx => (compiler().is_some(), NO_COMPILER),
        Program::Make => {
            (have(&["make"]) && compiler().is_some(), "there is no g++ with make: install both")
        }
        Program::PythonPool | Program::Forks | Program::Workers => {
            (python("pass").is_some(), NO_PYTHON)
        }
        Program::Postgresql => (
            have(&["postgres", "initdb", "psql"]) && runs("id", &["-u", "postgres"]).is_some(),
            NO_POSTGRESQL,
        ),
        Program::Busy2 | Program::Busy8 | Program::BusyIdle100 | Program::Short => return None,
        // It was looked for before.
        Program::Own => return None,
    };
    (!is_there).then(|| without.to_owned())
}

/// A Python that can do this.
fn python(what: &str) -> Option<&'static str> {
    PYTHONS.into_iter().find(|python| runs(python, &["-c", what]).is_some())
}

fn compiler() -> Option<String> {
    let path = runs("g++", &["-print-prog-name=cc1plus"])?.trim().to_owned();
    // Where it has none it prints the name alone.
    Path::new(&path).is_absolute().then_some(path)
}

/// What a command prints; `None` unless it succeeds.
fn runs(name: &str, args: &[&str]) -> Option<String> {
    command(name, args).ok()
}

/// A program that is installed, or built, beside this one.
pub fn beside(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::current_exe().unwrap_or_default().with_file_name(name);
    if !path.exists() {
        fail!("there is no '{}': build it", path.display());
    }
    Ok(path)
}
