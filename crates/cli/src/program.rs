//! The program to run: found as execvp(3) finds it, and checked for what keeps the preload library
//! out.
//!
//! The check follows the program to the binary that the kernel loads in the end: through `#!` lines
//! and env(1). What cannot be seen from here (a file without read permission) is left for exec to
//! judge.

use self::preload::Library;
use crate::failure::Failure;
use overspill_os::executable::elf::Elf;
use overspill_os::executable::script::{EnvCommand, Interpreter, LINE_MAX, is_env};
use overspill_os::executable::{CHAIN_MAX, is_loader, is_musl, privileges};
use rustix::fs::{Access, AtFlags, CWD, accessat, stat};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub mod preload;

/// What execvp(3) searches where PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// What is to be executed.
#[derive(Debug, PartialEq)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// Whether what runs in the end has no dynamic loader, so that the preload library loads it.
    pub is_static: bool,
    /// Whether that is the file itself.
    pub is_loaded: bool,
}

/// Finds the program of a command line and checks that it can be run with its memory managed.
pub fn check(command: &[OsString], library: &Library) -> Result<Program, Failure> {
    let search = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    check_with(command, library, &search)
}

fn check_with(command: &[OsString], library: &Library, search: &OsStr) -> Result<Program, Failure> {
    let program = find(&command[0], search)?;
    let mut path = program.clone();
    let mut argv = command.to_vec();
    let (mut is_static, mut is_interpreter) = (false, false);
    for _ in 0..CHAIN_MAX {
        match look(&path)? {
            ProgramKind::Unreadable => break,
            ProgramKind::Script(interpreter) => {
                let missing =
                    |error| missing_interpreter("interpreter", &interpreter.path, &path, error);
                fs::metadata(&interpreter.path).map_err(missing)?;
                argv[0] = path.clone().into();
                argv.splice(
                    0..0,
                    [interpreter.path.clone().into()].into_iter().chain(interpreter.argument),
                );
                path = interpreter.path;
                is_interpreter = true;
            }
            ProgramKind::Binary(elf) => {
                is_static = elf.loader.is_none() && !is_loader(&path);
                check_binary(&path, &elf, library)?;
                if is_static && is_interpreter {
                    return Err(static_interpreter(&path));
                }
                if !is_env(path.file_name()) {
                    break;
                }
                match EnvCommand::parse(&argv[1..]) {
                    EnvCommand::Runs(command) => {
                        path = find(&command[0], search)?;
                        argv = command;
                        (is_static, is_interpreter) = (false, false);
                    }
                    EnvCommand::Unknown => break,
                }
            }
        }
    }
    Ok(Program { is_loaded: is_static && path == program, is_static, path: program })
}

/// The file that a name stands for: itself if it holds a slash, else the first executable in the
/// search path.
fn find(name: &OsStr, search: &OsStr) -> Result<PathBuf, Failure> {
    let shown = name.display();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(error) if not_there(error.kind()) => {
                Err(Failure::not_found(format!("'{shown}' does not exist")))
            }
            Err(error) => Err(not_executable(&path, &error)),
        };
    }
    let mut denied = None;
    for dir in std::env::split_paths(search).filter(|_| !name.is_empty()) {
        // An empty entry of PATH is the current directory.
        let path =
            if dir.as_os_str().is_empty() { Path::new(".").join(name) } else { dir.join(name) };
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(error) if not_there(error.kind()) => {}
            Err(error) => denied = denied.or_else(|| Some(not_executable(&path, &error))),
        }
    }
    Err(denied.unwrap_or_else(|| {
        Failure::not_found(format!(
            "'{shown}' was not found in PATH: check its name, or give its path"
        ))
    }))
}

fn not_there(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn executable(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() {
        return Err(io::Error::from(ErrorKind::IsADirectory));
    }
    Ok(accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)?)
}

fn not_executable(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::not_executable(match error.kind() {
        ErrorKind::IsADirectory => format!("'{path}' is a directory: name a program"),
        ErrorKind::PermissionDenied => {
            format!("'{path}' is not executable: chmod +x '{path}', or name its interpreter")
        }
        _ => format!("'{path}' cannot be executed: {error}"),
    })
}

fn missing_interpreter(what: &str, interpreter: &Path, of: &Path, error: io::Error) -> Failure {
    let (interpreter, of) = (interpreter.display(), of.display());
    Failure::not_found(format!(
        "the {what} '{interpreter}' of '{of}' cannot be used ({error}): install it"
    ))
}

/// What kind of program a file is.
enum ProgramKind {
    Binary(Elf),
    Script(Interpreter),
    /// Executable but not readable for this user: nothing to be told.
    Unreadable,
}

fn look(path: &Path) -> Result<ProgramKind, Failure> {
    let mut head = Vec::new();
    match File::open(path).and_then(|file| file.take(LINE_MAX as u64).read_to_end(&mut head)) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Ok(ProgramKind::Unreadable);
        }
        Err(error) => return Err(not_executable(path, &error)),
    }
    if let Some(interpreter) = Interpreter::parse(&head) {
        return Ok(ProgramKind::Script(interpreter));
    }
    match Elf::of_file(path) {
        Ok(Some(elf)) => Ok(ProgramKind::Binary(elf)),
        Ok(None) => Err(Failure::not_executable(format!(
            "'{}' is neither an ELF program nor a script with a #! line: name its interpreter, \
             such as sh, before it",
            path.display()
        ))),
        Err(errno) => Err(not_executable(path, &errno.into())),
    }
}

fn check_binary(path: &Path, elf: &Elf, library: &Library) -> Result<(), Failure> {
    let name = path.display();
    let refuse = |sentence: String| Err(Failure::own(sentence));
    if !elf.runs_with(&library.elf) {
        let (theirs, ours) = (elf.architecture(), library.elf.architecture());
        return refuse(format!(
            "'{name}' is a {theirs} program and the preload library is {ours}: use a {ours} build \
             of it"
        ));
    }
    match &elf.loader {
        // The loader itself, run as a program, has no loader and honours LD_PRELOAD. The library
        // loads static programs.
        None => {}
        Some(loader) => {
            fs::metadata(loader)
                .map_err(|error| missing_interpreter("dynamic loader", loader, path, error))?;
            if is_musl(loader) != cfg!(target_env = "musl") {
                let (theirs, ours) =
                    if is_musl(loader) { ("musl", "glibc") } else { ("glibc", "musl") };
                return refuse(format!(
                    "'{name}' is linked with {theirs} and this overspill with {ours}: use an \
                     overspill built for {theirs}"
                ));
            }
        }
    }
    let stat = stat(path).map_err(|errno| not_executable(path, &errno.into()))?;
    if let Some(reason) = privileges::switch(path, &stat) {
        return refuse(format!(
            "'{name}' {reason}, so the dynamic loader ignores LD_PRELOAD for it: run overspill as \
             the user it switches to, or use a copy without that mark"
        ));
    }
    Ok(())
}

/// The kernel executes an interpreter by itself.
fn static_interpreter(path: &Path) -> Failure {
    let name = path.display();
    Failure::own(format!(
        "the interpreter '{name}' is statically linked, so the preload library cannot reach its \
         memory: run '{name}' with the script as its argument"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{NOT_EXECUTABLE, NOT_FOUND, OWN};
    use std::os::unix::fs::PermissionsExt;

    struct TestDir(PathBuf);

    impl TestDir {
        fn new(name: &str) -> TestDir {
            let dir = std::env::temp_dir()
                .join(format!("overspill-target-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            TestDir(dir)
        }

        fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }

        fn check(&self, command: &[&str]) -> Result<Program, Failure> {
            let own = std::env::current_exe().unwrap();
            let library = Library { elf: Elf::of_file(&own).unwrap().unwrap(), path: own };
            let command: Vec<_> = command.iter().map(OsString::from).collect();
            let search = format!("{}:/usr/bin:/bin", self.0.display());
            check_with(&command, &library, OsStr::new(&search))
        }

        fn refused(&self, command: &[&str]) -> (u8, String) {
            self.check(command).map_err(|failure| (failure.status, failure.sentence)).unwrap_err()
        }
    }

    impl Drop for TestDir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// This test binary: a program that is fit to be run.
    fn fit() -> Vec<u8> {
        fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn programs_are_found_as_execvp_finds_them() {
        let room = TestDir::new("find");
        let path = room.file("prog", &fit(), 0o755);
        assert_eq!(room.check(&["prog"]).unwrap().path, path);
        assert_eq!(room.check(&[path.to_str().unwrap()]).unwrap().path, path);
        assert_eq!(room.refused(&["no-such-program"]).0, NOT_FOUND);
        assert_eq!(room.refused(&["/no/such/program"]).0, NOT_FOUND);
        assert_eq!(room.refused(&[""]).0, NOT_FOUND);
        room.file("data", b"text", 0o644);
        assert_eq!(room.refused(&["data"]).0, NOT_EXECUTABLE);
        assert_eq!(room.refused(&["/"]).0, NOT_EXECUTABLE);
        room.file("text", b"echo hello", 0o755);
        let (status, sentence) = room.refused(&["text"]);
        assert!(
            status == NOT_EXECUTABLE && sentence.contains("name its interpreter"),
            "{sentence}"
        );
    }

    #[test]
    fn scripts_are_followed_to_their_binary() {
        let room = TestDir::new("script");
        let dir = room.0.display();
        room.file("prog", &fit(), 0o755);
        room.file("direct", format!("#!{dir}/prog -x\n").as_bytes(), 0o755);
        room.file("nested", format!("#!{dir}/direct\n").as_bytes(), 0o755);
        room.file("by-env", b"#!/usr/bin/env prog\n", 0o755);
        for name in ["direct", "nested", "by-env"] {
            assert_eq!(room.check(&[name]).unwrap().path, room.0.join(name));
        }
        room.file("orphan", b"#!/no/such/interpreter\n", 0o755);
        let (status, sentence) = room.refused(&["orphan"]);
        assert!(status == NOT_FOUND && sentence.contains("/no/such/interpreter"), "{sentence}");
        room.file("env-orphan", b"#!/usr/bin/env no-such-program\n", 0o755);
        assert_eq!(room.refused(&["env-orphan"]).0, NOT_FOUND);
        room.file("cleared", b"#!/usr/bin/env -S -i prog\n", 0o755);
        assert!(room.check(&["cleared"]).is_ok(), "the library stays");
        room.file("loop", format!("#!{dir}/loop\n").as_bytes(), 0o755);
        assert!(room.check(&["loop"]).is_ok(), "left for exec to refuse");
    }

    #[test]
    fn binaries_out_of_reach_are_refused() {
        let room = TestDir::new("binary");
        let mut other = fit();
        // e_machine; then EI_CLASS.
        other[18] = if other[18] == 62 { 183 } else { 62 };
        room.file("other", &other, 0o755);
        let (status, sentence) = room.refused(&["other"]);
        assert!(status == OWN && sentence.contains("and the preload library is"), "{sentence}");
        let mut small = fit();
        small[4] = 1;
        room.file("small", &small, 0o755);
        assert!(room.refused(&["small"]).1.contains("32-bit"));
        let mut fixed = fit();
        // No program headers (e_phnum): no loader.
        fixed[56..58].fill(0);
        let path = room.file("static", &fixed, 0o755);
        let itself = Program { path, is_static: true, is_loaded: true };
        assert_eq!(room.check(&["static"]).unwrap(), itself);
        let by_env = room.check(&["env", "static"]).unwrap();
        assert!(by_env.is_static && !by_env.is_loaded && by_env.path.ends_with("env"));
        room.file("via-static", format!("#!{}/static\n", room.0.display()).as_bytes(), 0o755);
        assert!(room.refused(&["via-static"]).1.contains("statically linked"));
        room.file("ld-test.so.1", &fixed, 0o755);
        assert!(room.check(&["ld-test.so.1"]).is_ok());
    }
}
