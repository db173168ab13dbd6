//! What the tests of the built command share: a stand-in for the preload library, and running
//! things.
#![allow(dead_code)] // Each test file uses its part.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The stand-in: it keeps a statistics file as the real library does, and manages nothing.
const STAND_IN: &str = r#"
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void keep_statistics(void) {
    static uint64_t cells[FILE_BYTES / 8];
    const char *dir = getenv("OVERSPILL_RUN_DIR");
    char path[4096];
    if (!dir || getenv("STAND_IN_IDLE")) return;
    memcpy(&cells[0], "ovrspil\x10", 8);
    cells[1] = getpid();
    memcpy(&cells[2], "stand-in", 8);
    snprintf(path, sizeof path, "%s/stats.%d", dir, (int)getpid());
    int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
    if (fd < 0 || write(fd, cells, sizeof cells) != sizeof cells) abort();
    close(fd);
}
"#;

/// A directory of this test binary's own.
pub fn scratch() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let name = std::env::current_exe().unwrap().file_name().unwrap().to_owned();
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    })
}

/// Compiles C; `None`, said aloud, where that cannot be done.
pub fn compile(name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (input, output) = (scratch().join(format!("{name}.c")), scratch().join(name));
    fs::write(&input, source).unwrap();
    let result = Command::new("cc").args(flags).arg("-o").arg(&output).arg(&input).output();
    match result {
        Ok(done) if done.status.success() => Some(output),
        Ok(done) => {
            eprintln!("SKIPPED: cc {flags:?} failed:\n{}", String::from_utf8_lossy(&done.stderr));
            None
        }
        Err(error) => {
            eprintln!("SKIPPED: there is no cc: {error}");
            None
        }
    }
}

/// Path of the stand-in for the preload library.
pub fn stand_in() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let size = format!("-DFILE_BYTES={}", overspill::stats::FILE_BYTES);
        compile("libstand_in.so", STAND_IN, &["-shared", "-fPIC", &size])
    });
    library.as_deref()
}

/// `overspill` with the stand-in, nothing inherited that would change what it does.
pub fn overspill() -> Option<Command> {
    let mut command = bare();
    command.env("OVERSPILL_PRELOAD", stand_in()?);
    Some(command)
}

/// `overspill` as it is found by the tests.
pub fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overspill"));
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("OVERSPILL_")) {
        command.env_remove(name);
    }
    command
        .env_remove("LD_PRELOAD")
        .env_remove("TMPDIR")
        .env_remove("XDG_RUNTIME_DIR")
        .stdin(Stdio::null());
    command
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether `overspill run` may work on this machine; if not, that is said aloud.
pub fn runs_here() -> bool {
    let works = bare().arg("probe").output().unwrap();
    if !works.status.success() {
        eprintln!("SKIPPED: userfaultfd is not to be had here:\n{}", stdout(&works));
    }
    works.status.success()
}
