//! Programs as files, and what keeps a preloaded library out of them. Nothing is executed here.

pub mod elf;
pub mod privileges;
pub mod script;

use elf::Elf;
use rustix::fs::{CWD, Mode, OFlags, openat};
use script::{Interpreter, LINE_MAX};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most programs followed, one starting the next; the kernel follows five `#!` lines.
pub const CHAIN_MAX: usize = 8;

/// Why a preloaded library does not get into a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// There is no dynamic loader.
    Static,
    /// The loader is that of another C library.
    OtherLibrary,
    /// It is for another architecture.
    Foreign(String),
    /// It switches credentials, so that the loader ignores LD_PRELOAD.
    Privileged(&'static str),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Static => f.write_str("is statically linked"),
            Reason::OtherLibrary => f.write_str("is linked with another C library"),
            Reason::Foreign(architecture) => write!(f, "is a {architecture} program"),
            Reason::Privileged(reason) => f.write_str(reason),
        }
    }
}

/// Why a library of this process's kind does not get into the program that is executed by this
/// path, also by way of `#!` lines; `None` where it does, or where that cannot be seen.
pub fn out_of_reach(path: &Path) -> Option<Reason> {
    let mut path = PathBuf::from(path);
    for _ in 0..CHAIN_MAX {
        let mut head = [0; LINE_MAX];
        let file = openat(CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let len = rustix::io::pread(&file, &mut head[..], 0).ok()?;
        if let Some(interpreter) = Interpreter::parse(&head[..len]) {
            path = interpreter.path;
            continue;
        }
        let elf = Elf::of_open_file(&file)?;
        return judge(&path, &elf);
    }
    None
}

fn judge(path: &Path, elf: &Elf) -> Option<Reason> {
    if !elf.runs_here() {
        return Some(Reason::Foreign(elf.architecture()));
    }
    match &elf.loader {
        None if is_loader(path) => {}
        None => return Some(Reason::Static),
        Some(loader) if is_musl(loader) != cfg!(target_env = "musl") => {
            return Some(Reason::OtherLibrary);
        }
        Some(_) => {}
    }
    privileges::switch(path, &rustix::fs::stat(path).ok()?).map(Reason::Privileged)
}

/// Whether a program is a dynamic loader, by its name: run as a program it has no loader, and
/// honours LD_PRELOAD.
pub fn is_loader(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        let name = name.as_bytes();
        name.starts_with(b"ld") && name.windows(3).any(|part| part == b".so")
    })
}

/// Whether a loader is musl's.
pub fn is_musl(loader: &Path) -> bool {
    loader.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-musl"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_a_library_does_not_reach_is_told() {
        let dir = std::env::temp_dir().join(format!("overspill-reach-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let reason = |name: &str, content: &[u8], mode: u32| {
            let path = dir.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            out_of_reach(&path)
        };
        let fit = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(reason("fit", &fit, 0o755), None);
        let mut fixed = fit.clone();
        // No program headers (e_phnum): no loader.
        fixed[56..58].fill(0);
        assert_eq!(reason("static", &fixed, 0o755), Some(Reason::Static));
        let line = format!("#!{}/static\n", dir.display());
        assert_eq!(reason("script", line.as_bytes(), 0o755), Some(Reason::Static));
        assert_eq!(reason("ld-x.so.2", &fixed, 0o755), None);
        let mut small = fit;
        small[4] = 1;
        let told = reason("small", &small, 0o755).unwrap().to_string();
        assert!(told.starts_with("is a 32-bit "), "{told}");
        assert_eq!((reason("text", b"echo", 0o755), out_of_reach(&dir.join("no"))), (None, None));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn musl_is_told_by_its_loader() {
        let is = |path: &str| is_musl(Path::new(path));
        assert!(is("/lib/ld-musl-x86_64.so.1") && !is("/lib64/ld-linux-x86-64.so.2"));
    }
}
