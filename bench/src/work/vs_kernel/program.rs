//! Real programs as work: what is installed of them, their inputs, and how they are started.
//!
//! Each is run as its users run it, with all that it works on in its memory. What it prints, or
//! what a client reads from it, is compared to the bit between the runs
//! ([`super::launch`]). [`redis`] is the client of that server.

mod inputs;
mod redis;

use super::case::Program;
use crate::machine::put_back::{Guard, PutBack};
use crate::measure::Failure;
pub use redis::{Client, Served};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What numpy is to do.
const NUMPY: &str = include_str!("program/numpy.py");
/// Pythons that may have numpy: the distribution's, and the first of the search path.
const PYTHONS: [&str; 2] = ["/usr/bin/python3", "python3"];
/// Bytes that the buffer of sort(1) may have for each byte of its file: lines and what it knows of
/// each of them.
const SORT_BUFFER: u64 = 2;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub words: Vec<String>,
    /// Who works with it from outside, where somebody does.
    pub client: Option<Client>,
}

impl Job {
    fn new(words: &[&str]) -> Job {
        Job { words: words.iter().map(|word| (*word).to_owned()).collect(), client: None }
    }
}

/// Where a program's files are, which are removed when this is dropped, also by force.
#[derive(Debug)]
pub struct Inputs {
    lines: PathBuf,
    source: PathBuf,
    socket: PathBuf,
    guard: Option<Guard>,
}

impl Inputs {
    /// For programs whose data are of `size`; makes what these need.
    pub fn make(programs: &[Program], dir: &Path, size: u64) -> Result<Inputs, Failure> {
        let name = |end: &str| dir.join(format!(".overspill-bench-{}.{end}", std::process::id()));
        let [lines, source, socket] = ["txt", "cpp", "sock"].map(name);
        let all = PutBack::files([&lines, &source, &socket].map(PathBuf::clone));
        let guard = if programs.is_empty() { None } else { Some(Guard::start(&all)?) };
        if programs.contains(&Program::Sort) {
            inputs::lines(&lines, size)?;
        }
        if programs.contains(&Program::Cxx) {
            inputs::source(&source, size)?;
        }
        Ok(Inputs { lines, source, socket, guard })
    }

    /// How a program is started on data of `size`.
    pub fn job(&self, program: Program, size: u64) -> Result<Job, Failure> {
        let [lines, source, socket] =
            [&self.lines, &self.source, &self.socket].map(|path| path.to_string_lossy());
        let bytes = size.to_string();
        let mut client = None;
        let words: Vec<&str> = match program {
            // With a buffer that takes all of it, so that it makes no files of its own.
            Program::Sort => {
                let buffer = &format!("-S{}b", SORT_BUFFER * size);
                return Ok(Job::new(&["env", "LC_ALL=C", "sort", "--parallel=1", buffer, &lines]));
            }
            Program::NumpySort | Program::NumpyProduct => {
                let python = python().ok_or_else(|| Failure::new(NO_NUMPY))?;
                let what = if program == Program::NumpySort { "sort" } else { "product" };
                let threads = ["OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1"];
                [&["env"], &threads[..], &[python, "-c", NUMPY, what, &bytes]].concat()
            }
            Program::Redis => {
                client = Some(Client::new(socket.to_string(), size)?);
                let quiet =
                    ["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"];
                [&["redis-server", "--unixsocket", &socket], &quiet[..]].concat()
            }
            // What g++ starts. Under `overspill run g++` it is a child of it, with a pool of its
            // own.
            Program::Cxx => {
                let compiler = compiler().ok_or_else(|| Failure::new(NO_COMPILER))?;
                let args = ["-quiet", "-std=c++17", "-O0", &source, "-o", "-"];
                return Ok(Job::new(&[&[compiler.as_str()], &args[..]].concat()));
            }
        };
        Ok(Job { client, ..Job::new(&words) })
    }
}

impl Drop for Inputs {
    fn drop(&mut self) {
        // What cannot be removed was said on standard error.
        let _ = self.guard.take().map(Guard::finish);
    }
}

const NO_NUMPY: &str = "there is no python3 with numpy: install python3-numpy";
const NO_COMPILER: &str = "there is no g++ with a cc1plus: install g++";

pub fn missing(program: Program) -> Option<String> {
    let version = |name: &str| runs(name, &["--version"]);
    let (is_there, without) = match program {
        Program::Sort => (
            version("sort").is_some_and(|text| text.contains("GNU")),
            "there is no GNU sort: install coreutils",
        ),
        Program::NumpySort | Program::NumpyProduct => (python().is_some(), NO_NUMPY),
        Program::Redis => (
            ["redis-server", "redis-benchmark"].iter().all(|name| version(name).is_some()),
            "there is no redis-server with redis-benchmark: install redis-server and redis-tools",
        ),
        Program::Cxx => (compiler().is_some(), NO_COMPILER),
    };
    (!is_there).then(|| without.to_owned())
}

fn python() -> Option<&'static str> {
    PYTHONS.into_iter().find(|python| runs(python, &["-c", "import numpy"]).is_some())
}

fn compiler() -> Option<String> {
    let path = runs("g++", &["-print-prog-name=cc1plus"])?.trim().to_owned();
    // Where it has none it prints the name alone.
    Path::new(&path).is_absolute().then_some(path)
}

/// What a command prints; `None` unless it succeeds.
fn runs(name: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(name).args(args).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
