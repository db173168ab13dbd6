//! A command of the user's beside the kernel's swap: how much it takes by itself, and what it gets.
//!
//! It is one more program: run natively, with each peer and by overspill, in turn, where this bench
//! was started. What it writes to files is its own affair; what it prints is compared.

use super::args::Args;
use super::compare::{Own, compared};
use super::declared::LADDER;
use super::plan::{Setup, case};
use super::ram::{LEAST, Ram};
use super::round::{LIMIT_AROUND, Rounds, by_itself};
use crate::machine::*;
use crate::measure::*;
use crate::model::*;
use crate::work::vs_kernel::case::{Kind, Program, Setting, Task, Variant};
use crate::work::vs_kernel::peer;
use overspill::units::Bytes;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What part of what it takes by itself a command gets: so little that it swaps, and no so little
/// that it only does that.
const PART: u64 = 3;

/// Measures the command of the options beside the kernel's swap, and tells what came of it.
pub fn run(args: &Args, rounds: Option<u32>) -> Result<Findings, Failure> {
    may_be_compared(args)?;
    let native = match args.sides.size {
        Some(_) => Sample::new(),
        None => natively(args)?,
    };
    let took = native.get("ram_bytes_peak").map_or(0, |bytes| *bytes as u64);
    let size = args.sides.size.unwrap_or(Bytes(took));
    let part = Bytes((size.0 / PART).max(LEAST));
    let (words, memory) = (args.command.clone(), args.memory.unwrap_or(part));
    let own = Own { words, size, memory, native };
    let cases = plan(args, memory);
    let (findings, seen) = compared(&LADDER, &args.sides, rounds, cases, Some(&own))?;
    Ok(told(&own, &seen, findings))
}

/// Whether all is there, before anything runs that may take long.
fn may_be_compared(args: &Args) -> Result<(), Failure> {
    if let Some(why) = kernel_swap::missing() {
        fail!("a command cannot be compared with the kernel's swap here: {why}");
    }
    let missing: Vec<String> = args.peers().into_iter().filter_map(peer::missing).collect();
    if missing.len() == args.peers().len() {
        fail!("a command cannot be compared with the kernel's swap here: {}", missing.join("; "));
    }
    if args.memory.is_some_and(|memory| memory < Bytes(LEAST)) {
        fail!("no program runs in so little: give --memory {} or more", Bytes(LEAST));
    }
    let program = &args.command[0];
    if found(program).is_none() {
        fail!("there is no command '{program}': give one that is on the search path, or a path");
    }
    Ok(())
}

/// The file that a command is, as a shell would find it.
fn found(program: &str) -> Option<PathBuf> {
    let runs = |path: &Path| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| runs(path));
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).map(|dir| dir.join(program)).find(|path| runs(path))
}

/// What the command takes by itself.
fn natively(args: &Args) -> Result<Sample, Failure> {
    let size = Bytes(0);
    let setup = Setup::new(&args.sides, size, &[Program::Own], args.command.clone())?;
    let request = setup.request(&Ram::new(size, None), Kind::Alone(Program::Own))?;
    child::ask(LADDER.bench, &request, request.limit + LIMIT_AROUND)
        .map_err(|failure| by_itself(&failure))
}

/// The command by itself, and then with each peer and by overspill.
fn plan(args: &Args, memory: Bytes) -> Vec<Case<Kind>> {
    let name = Path::new(&args.command[0]).file_name().unwrap_or_default().to_string_lossy();
    let steps = match args.sides.steps.is_empty() {
        true => vec![Variant::Peer, Variant::OverspillSignal],
        false => args.sides.steps(),
    };
    let (task, overcommit) = (Task::Program(Program::Own), PART as u32);
    let setting = |peer| Setting { task, peer, overcommit, packing: None, threads: 1 };
    let peers = args.peers();
    let kinds = peers.iter().flat_map(|peer| setting(*peer).by(&steps));
    let labelled = |kind: Kind| {
        let peer = kind.peer().map(|peer| ("peer", json!(peer.to_string())));
        let memory = kind.peer().map(|_| ("memory", json!(memory.to_string())));
        let labels = [("workload", json!(name))].into_iter().chain(peer).chain(memory);
        Case { labels: labels.collect(), ..case(kind) }
    };
    [Kind::Alone(Program::Own)].into_iter().chain(kinds).map(labelled).collect()
}

/// Adds what is known of the command, and whether it always printed the same.
fn told(own: &Own, seen: &Rounds, findings: Findings) -> Findings {
    let same = seen.differ.is_empty();
    let said = if same {
        "What it printed was the same in all runs.".to_owned()
    } else if seen.differ.iter().any(|case| case.starts_with("alone")) {
        "WHAT IT PRINTED DIFFERS from run to run, also by itself: it tells nothing of whether the \
         others are right."
            .to_owned()
    } else {
        let cases = seen.differ.iter().cloned().collect::<Vec<_>>().join("; ");
        format!("WHAT IT PRINTED IS NOT WHAT IT PRINTS BY ITSELF: {cases}.")
    };
    let Own { words, memory, .. } = own;
    let settings = json!({ "command": words, "memory_bytes": memory.0, "same_output": same });
    let mut findings = findings.with(settings);
    findings.notes.insert(0, said);
    findings.subject = format!("{} in {memory} beside the kernel's swap", words[0]);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{args, parse};

    #[test]
    fn a_command_is_measured_by_itself_and_beside_each_peer() {
        let names = |line: &str| -> Vec<String> {
            plan(&args(line), Bytes(64 << 20)).iter().map(Case::to_string).collect()
        };
        let all = names("-- /usr/bin/sort -n file");
        let begin =
            ["alone, sort", "peer, sort, zram, 64 MiB", "overspill-signal, sort, zram, 64 MiB"];
        assert_eq!((&all[..3], all.len()), (&begin.map(str::to_owned)[..], 1 + 3 * 2));
        let thread = names("--peer file --steps overspill-thread -- sort");
        assert_eq!(
            thread[1..],
            ["peer, sort, file, 64 MiB", "overspill-thread, sort, file, 64 MiB"]
        );
        for line in ["--workload sort -- sort", "--overcommit 2 -- sort", "--memory 64M"] {
            assert!(parse::<Args>(line).is_err(), "{line}");
        }
    }

    #[test]
    fn what_a_command_says_that_fails_by_itself_is_one_line() {
        let said = |text: &str| by_itself(&Failure::new(text)).to_string();
        assert!(
            said("it failed: a\nb\n\nValueError: c\n").ends_with("it failed: a ... ValueError: c")
        );
        assert!(said("it failed").ends_with("compare: it failed"));
    }

    #[test]
    fn a_command_is_found_as_a_shell_finds_it() {
        assert!(found("sh").is_some() && found("/bin/sh").is_some());
        assert!(found("no-such-command").is_none() && found("/etc/passwd").is_none());
        assert!(found("/bin").is_none(), "a directory is no command");
    }
}
