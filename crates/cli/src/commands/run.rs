//! `overspill run`: everything checked, the program run, and reported on.

use super::probe;
use crate::args::{Memory, RunArgs};
use crate::failure::{Failure, UNMANAGED, say};
use crate::launch::Checked;
use crate::memory::MemoryLimits;
use crate::out::{OutFile, tell};
use crate::ran::Told;
use crate::sizing::profile::Profiles;
use crate::sizing::watch::Watch;
use crate::{report, sizing};
use overspill::config::Config;
use overspill::units::Bytes;
use std::env::var_os;
use std::ffi::OsString;

/// Runs the subcommand; returns the exit status.
pub fn run(args: RunArgs) -> Result<u8, Failure> {
    // 1. Everything that can be refused is refused before the program starts.
    let fault = probe::settled_here(args.ways.fault)?;
    let memory = match args.memory {
        Some(Memory::Auto) => Some(profiled(&args.command)?),
        Some(Memory::Size(memory)) => Some(memory),
        None => None,
    };
    let memory = budget(memory, MemoryLimits::read())?;
    let checked = Checked::new(&args.ways, fault, memory, args.strict, &args.command)?;
    let json = args.stats_json.as_deref().map(OutFile::statistics).transpose()?;
    let page = args.report.as_deref().map(OutFile::report).transpose()?;

    // 2. The program.
    let mut watch = page.is_some().then(|| Watch::new(memory, false));
    let ended = checked.run(watch.as_mut())?;

    // 3. What there is to say about it.
    if args.stats && ended.ran.managed {
        tell(report::render(&ended.tree, ended.elapsed).as_bytes());
    } else if args.stats {
        say(&ended.ran.sentence);
    }
    if let Some(json) = json {
        json.write_json(&Told { run: &ended.ran, rest: &ended.tree })?;
    }
    if let Some((page, watch)) = page.zip(watch) {
        let report = ended.sized(&watch, None);
        page.write(sizing::page(&ended.ran, report.as_ref(), &ended.tree).as_bytes())?;
    }
    Ok(match ended.ran.status {
        0 if args.strict && !ended.is_managed => UNMANAGED,
        status => status,
    })
}

/// The budget of a command that `overspill size` has found.
fn profiled(command: &[OsString]) -> Result<Bytes, Failure> {
    let Some(profiles) = Profiles::find(|name| var_os(name)) else {
        let nowhere = "anywhere, as neither XDG_STATE_HOME nor HOME is set";
        return Err(sizing::profile::missing(command, nowhere));
    };
    Ok(profiles.load(command)?.automatic())
}

fn budget(asked: Option<Bytes>, limits: MemoryLimits) -> Result<Bytes, Failure> {
    if let (Some(asked), Some(cgroup)) = (asked, limits.cgroup)
        && asked > cgroup
    {
        say(&format!(
            "the budget of {asked} is above the memory cgroup's limit of {cgroup}, which may kill \
             the program"
        ));
    }
    match asked.or_else(|| Some(limits.default_budget()?.min(Config::MEMORY_MAX))) {
        Some(memory) if memory >= Config::MEMORY_MIN => Ok(memory),
        Some(memory) => Err(Failure::own(format!(
            "three quarters of the memory available to this job are {memory}, and the smallest \
             possible budget is {}: raise the limit of its memory cgroup",
            Config::MEMORY_MIN
        ))),
        None => Err(Failure::own(
            "cannot read how much memory is available: give a budget with --memory",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_what_was_asked_for_or_three_quarters() {
        let limits = MemoryLimits { cgroup: Some(Bytes(8 << 20)), available: Some(Bytes(1 << 30)) };
        assert_eq!(budget(Some(Bytes(64 << 20)), limits), Ok(Bytes(64 << 20)));
        assert_eq!(budget(None, limits), Ok(Bytes(6 << 20)));
        let small = MemoryLimits { cgroup: Some(Bytes(4 << 20)), ..limits };
        assert!(
            budget(None, small).unwrap_err().sentence.contains("smallest possible budget is 4 MiB")
        );
        assert!(budget(None, MemoryLimits::default()).unwrap_err().sentence.contains("--memory"));
    }
}
