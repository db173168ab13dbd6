//! Reads any bytes as the beginning of a program: a head of ELF, a `#!` line, arguments of env(1).
//! Little is read, and in the end there is an answer.

use overspill_os::executable::elf::Elf;
use overspill_os::executable::script::{EnvCommand, Interpreter};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The target.
pub fn run(bytes: &[u8]) {
    let elf = Elf::parse(|offset, len| {
        assert!(len <= 4096);
        let start = usize::try_from(offset).ok()?;
        bytes.get(start..start.checked_add(len)?).map(<[u8]>::to_vec)
    });
    if let Some(elf) = elf {
        assert!(elf.runs_with(&elf) && !elf.architecture().is_empty());
    }
    if let Some(Interpreter { path, .. }) = Interpreter::parse(bytes) {
        assert!(!path.as_os_str().is_empty());
    }
    let args: Vec<_> =
        bytes.split(|byte| *byte == 0).map(|arg| OsString::from_vec(arg.to_vec())).collect();
    if let EnvCommand::Runs(command) = EnvCommand::parse(&args) {
        assert!(!command.is_empty());
    }
}
