//! Programs that start another program: `#!` lines and env(1).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Most of a `#!` line that the kernel reads (BINPRM_BUF_SIZE).
pub const LINE_MAX: usize = 256;

/// What a `#!` line asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interpreter {
    /// The program that is run instead.
    pub path: PathBuf,
    /// The rest of the line, which is one argument to it.
    pub argument: Option<OsString>,
}

impl Interpreter {
    /// Reads the beginning of a file; `None` if it has no `#!` line.
    pub fn parse(head: &[u8]) -> Option<Interpreter> {
        let head = &head[..head.len().min(LINE_MAX)];
        let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii();
        let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
        let (path, argument) = (&line[..end], line[end..].trim_ascii());
        if path.is_empty() {
            return None;
        }
        Some(Interpreter {
            path: PathBuf::from(OsString::from_vec(path.to_vec())),
            argument: (!argument.is_empty()).then(|| OsString::from_vec(argument.to_vec())),
        })
    }
}

/// What env(1) is going to start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EnvCommand {
    /// This program with these arguments, found in PATH.
    Runs(Vec<OsString>),
    /// Nothing, or something that cannot be told from here.
    Unknown,
}

impl EnvCommand {
    /// Reads the arguments of env(1), its own name left out.
    pub fn parse(args: &[OsString]) -> EnvCommand {
        let mut args: Vec<OsString> = args.to_vec();
        let mut at = 0;
        while let Some(arg) = args.get(at).map(|arg| arg.as_bytes().to_vec()) {
            let split = [&b"-S"[..], b"-vS", b"--split-string="]
                .into_iter()
                .find_map(|o| arg.strip_prefix(o));
            if let Some(text) = split {
                // -S: the text, or the next argument where it is empty, stands for several
                // arguments.
                let (text, used) = if text.is_empty() {
                    let Some(next) = args.get(at + 1) else { return EnvCommand::Unknown };
                    (next.as_bytes().to_vec(), 2)
                } else {
                    (text.to_vec(), 1)
                };
                if text.iter().any(|byte| b"'\"\\$#".contains(byte)) {
                    return EnvCommand::Unknown;
                }
                let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
                let words: Vec<_> = words.map(|word| OsString::from_vec(word.to_vec())).collect();
                args.splice(at..at + used, words);
                continue;
            }
            match arg.as_slice() {
                b"-u" | b"--unset" => at += 1,
                b"-" | b"-i" | b"--ignore-environment" | b"-v" | b"--debug" | b"--" => {}
                _ if arg.starts_with(b"--unset=") || arg.starts_with(b"-u") => {}
                _ if arg.starts_with(b"-") || arg.starts_with(b"PATH=") => {
                    return EnvCommand::Unknown;
                }
                _ if arg.contains(&b'=') => {}
                _ => return EnvCommand::Runs(args.split_off(at)),
            }
            at += 1;
        }
        EnvCommand::Unknown
    }
}

/// Whether a program is env(1), by its name.
pub fn is_env(name: Option<&OsStr>) -> bool {
    name == Some(OsStr::new("env"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn interpreter_lines_are_read_as_the_kernel_does() {
        let parse = |line: &str| {
            Interpreter::parse(line.as_bytes()).map(|i| {
                (i.path.to_str().unwrap().to_owned(), i.argument.map(|a| a.into_string().unwrap()))
            })
        };
        assert_eq!(parse("#!/bin/sh\necho\n"), Some(("/bin/sh".into(), None)));
        assert_eq!(
            parse("#! /usr/bin/env  -S python3 -u \n"),
            Some(("/usr/bin/env".into(), Some("-S python3 -u".into())))
        );
        assert_eq!(parse("#!/bin/awk\t-f"), Some(("/bin/awk".into(), Some("-f".into()))));
        assert_eq!(parse("#!\n/bin/sh"), None);
        assert_eq!(parse("# !/bin/sh"), None);
        assert_eq!(parse(""), None);
        let long = format!("#!/{}\n", "x".repeat(400));
        assert_eq!(parse(&long).unwrap().0.len(), LINE_MAX - 2);
    }

    proptest! {
        /// Whatever a line says, the program that it names is in it.
        #[test]
        fn any_line_is_read(head in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            "#! ?[/a-z \t\r\n-]{0,300}".prop_map(String::into_bytes),
        ]) {
            if let Some(Interpreter { path, argument }) = Interpreter::parse(&head) {
                let path = path.as_os_str().as_bytes();
                prop_assert!(!path.is_empty() && !path.contains(&b'\n'));
                prop_assert!(head.windows(path.len()).any(|part| part == path));
                prop_assert!(argument.is_none_or(|argument| !argument.is_empty()));
            }
        }

        /// What env(1) runs is the end of its arguments.
        #[test]
        fn any_arguments_of_env_lead_somewhere(
            args in prop::collection::vec(
                "(-S|-vS|--split-string=|-u|-i|-|--|A=b|PATH=| |x){0,6}",
                0..8,
            ),
        ) {
            let args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
            if let EnvCommand::Runs(command) = EnvCommand::parse(&args) {
                prop_assert!(!command.is_empty());
            }
        }
    }

    #[test]
    fn env_is_followed_to_its_program() {
        let parse =
            |args: &[&str]| EnvCommand::parse(&args.iter().map(OsString::from).collect::<Vec<_>>());
        let runs = |args: &[&str]| EnvCommand::Runs(args.iter().map(OsString::from).collect());
        assert_eq!(parse(&["python3", "x.py"]), runs(&["python3", "x.py"]));
        assert_eq!(parse(&["A=1", "B=", "prog", "C=3"]), runs(&["prog", "C=3"]));
        assert_eq!(parse(&["-u", "HOME", "-uX", "--unset=Y", "prog"]), runs(&["prog"]));
        assert_eq!(parse(&["-S python3 -u", "x.py"]), runs(&["python3", "-u", "x.py"]));
        assert_eq!(parse(&["-S", "A=1 perl -w", "x"]), runs(&["perl", "-w", "x"]));
        assert_eq!(parse(&["-i", "prog"]), runs(&["prog"]));
        assert_eq!(parse(&["-S -i prog", "x"]), runs(&["prog", "x"]));
        for unknown in [
            &[][..],
            &["-i"],
            &["A=1"],
            &["-C", "/", "x"],
            &["PATH=/x", "y"],
            &["-S 'a b'"],
            &["-S"],
        ] {
            assert_eq!(parse(unknown), EnvCommand::Unknown, "{unknown:?}");
        }
    }
}
