//! A directory on a disk in which a test file compiles and runs its programs.

use crate::process::{self, Outcome};
use crate::{TIME_LIMIT, clean, repository, skipped};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Makes an empty file that nobody else may read or write, as a swap file has to be.
pub fn private_file(path: &Path) {
    File::options().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
}

/// Where a test file's programs are compiled and run.
pub struct Scratch {
    dir: PathBuf,
    /// What was compiled and how it ran natively: done once, however many tests ask. The lock
    /// guards the table only.
    programs: Mutex<HashMap<String, Arc<Program>>>,
}

#[derive(Default)]
struct Program {
    path: OnceLock<PathBuf>,
    native: OnceLock<Native>,
}

/// How a program ran natively.
#[derive(Clone, Debug)]
pub struct Native {
    /// Status and output.
    pub outcome: Outcome,
    /// What it left in the file named `verdict`, where it did.
    pub verdict: Option<Vec<u8>>,
}

impl Scratch {
    /// Under `tmpdir`, which is the calling test's `env!("CARGO_TARGET_TMPDIR")`.
    pub fn new(tmpdir: &str) -> Scratch {
        Scratch { dir: tmpdir.into(), programs: Mutex::default() }
    }

    /// Cargo's target directory.
    pub fn target_dir(&self) -> &Path {
        self.dir.parent().expect("CARGO_TARGET_TMPDIR lies in the target directory")
    }

    /// A directory of its own for one run, removed when dropped.
    pub fn room(&self, name: &str) -> Room {
        let path = self.dir.join(format!("{name}.{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Room { path }
    }

    fn entry(&self, source: &str) -> Arc<Program> {
        self.programs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(source.to_owned())
            .or_default()
            .clone()
    }

    /// The program that `tests/semantics/SOURCE` compiles to.
    pub fn program(&self, source: &str) -> PathBuf {
        self.entry(source).path.get_or_init(|| self.compile(source, &[])).clone()
    }

    /// Sources of `tests/semantics`, built by Go with cgo ("1") or without it ("0"); None, and a
    /// word about it, where there is no Go.
    pub fn go_program(
        &self,
        name: &str,
        sources: &[&str],
        cgo: &str,
        flags: &[&str],
    ) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/local/go/bin")]);
        let Some(go) = places.map(|place| place.join("go")).find(|go| go.is_file()) else {
            skipped("there is no Go here");
            return None;
        };
        let room = self.target_dir().join("tmp/go");
        fs::create_dir_all(&room).unwrap();
        let program = room.join(name);
        let mut command = Command::new(go);
        command.arg("build").args(flags).arg("-o").arg(&program).current_dir(&room);
        let semantics = repository().join("tests/semantics");
        command.args(sources.iter().map(|source| semantics.join(source)));
        command.env("CGO_ENABLED", cgo).env("GOCACHE", room.join("cache")).env("HOME", &room);
        command.env("GOFLAGS", "").env("GO111MODULE", "off");
        let outcome = process::run(&mut command, TIME_LIMIT);
        assert_eq!(outcome.status, 0, "{outcome:?}");
        Some(program)
    }

    /// Compiles `tests/semantics/SOURCE` with `flags` beside the usual ones. Where there is a file
    /// of that name with `.so` before its end, the library that it compiles to is the string
    /// LIBRARY in the program.
    pub fn compile(&self, source: &str, flags: &[&str]) -> PathBuf {
        let from = repository().join("tests/semantics").join(source);
        let compiler = if source.ends_with(".cc") { "c++" } else { "cc" };
        let name = format!("{}{}", source.replace('.', "_"), flags.concat());
        // Compiled aside and renamed, so that test files that run at the same time do not meet.
        let (to, aside) =
            (self.dir.join(&name), self.dir.join(format!("{name}.{}", std::process::id())));
        let mut command = Command::new(compiler);
        command.args(["-O1", "-g", "-pthread"]).args(flags).arg("-o").arg(&aside).arg(&from);
        let library = from.with_extension("so.c");
        if library.exists() {
            let built = self.dir.join(format!("{name}.so.{}", std::process::id()));
            let mut compile = Command::new("cc");
            compile.args(["-O1", "-g", "-shared", "-fPIC", "-o"]).arg(&built).arg(&library);
            let outcome = process::run(&mut compile, TIME_LIMIT);
            assert!(outcome.status == 0, "cc refuses {}:\n{}", library.display(), outcome.stderr);
            let path = self.dir.join(format!("{name}.so"));
            fs::rename(&built, &path).expect("the scratch directory is writable");
            command.arg(format!("-DLIBRARY=\"{}\"", path.display()));
        }
        let outcome = process::run(&mut command, TIME_LIMIT);
        assert!(outcome.status == 0, "{compiler} refuses {source}:\n{}", outcome.stderr);
        fs::rename(&aside, &to).expect("the scratch directory is writable");
        to
    }

    /// How a program runs without overspill.
    pub fn native(&self, source: &str) -> Native {
        let program = self.program(source);
        let run = || {
            let room = self.room(&format!("{source}.native"));
            let outcome =
                process::run(clean(Command::new(&program).current_dir(&room.path)), TIME_LIMIT);
            let verdict = room.verdict();
            Native { outcome, verdict }
        };
        self.entry(source).native.get_or_init(run).clone()
    }
}

/// The working directory of one run.
pub struct Room {
    /// Its path.
    pub path: PathBuf,
}

impl Room {
    /// What the program, or a daemon that outlives it, leaves in the file `verdict`; `None` if it
    /// does not announce one by making the file `verdict-follows`.
    pub fn verdict(&self) -> Option<Vec<u8>> {
        if !self.path.join("verdict-follows").exists() {
            return None;
        }
        let file = self.path.join("verdict");
        assert!(process::wait_until(TIME_LIMIT, || file.exists()), "the daemon left no verdict");
        Some(fs::read(file).expect("the verdict is readable"))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
