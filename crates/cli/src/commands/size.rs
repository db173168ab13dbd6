//! `overspill size`: a program is run in little memory, and how much it needs is told.

use super::probe;
use crate::args::{FaultDelivery, SizeArgs};
use crate::failure::{Failure, say};
use crate::launch::Checked;
use crate::out::{OutFile, tell};
use crate::program::preload;
use crate::ran::Told;
use crate::sizing::profile::Profiles;
use crate::sizing::report::Report;
use crate::sizing::watch::Watch;
use crate::sizing::{self, around};
use overspill::config::Delivery;
use std::env::var_os;

/// Runs the subcommand; returns the exit status.
pub fn run(args: &SizeArgs) -> Result<u8, Failure> {
    // 1. Everything that can be refused is refused before the program starts.
    let fault = probe::settled_here(args.ways.fault)?;
    let memory = args.memory.unwrap_or(Watch::first());
    let checked = Checked::new(&args.ways, fault, memory, false, &args.command)?;
    let json = args.json.as_deref().map(OutFile::report).transpose()?;
    let page = args.report.as_deref().map(OutFile::report).transpose()?;

    // 2. The program, whose budget goes along with what it has.
    let mut watch = Watch::new(memory, args.memory.is_none());
    let ended = checked.run(Some(&mut watch))?;

    // 3. What is known now.
    let delivery = match fault {
        FaultDelivery::Thread => Delivery::Thread,
        FaultDelivery::Signal | FaultDelivery::Auto => Delivery::Signal,
    };
    let is_to_be_measured = ended.ran.managed && !preload::is_here();
    let report = ended.sized(&watch, is_to_be_measured.then(|| around::measure(delivery)));
    match &report {
        Some(report) => tell(report.text().as_bytes()),
        None => say(&ended.ran.sentence),
    }
    if let Some(json) = json {
        json.write_json(&Told { run: &ended.ran, rest: &report })?;
    }
    if let Some(page) = page {
        page.write(sizing::page(&ended.ran, report.as_ref(), &ended.tree).as_bytes())?;
    }
    match (report, ended.ran.status) {
        (None, _) => {}
        (_, 0) if args.no_save => {}
        (Some(report), 0) => save(args, &report),
        (_, status) => say(&format!(
            "it ended with status {status}: this is of as far as it got, and is not kept"
        )),
    }
    Ok(ended.ran.status)
}

/// Keeps it for the next run. A run that is over is not to fail for that.
fn save(args: &SizeArgs, report: &Report) {
    let saved = match Profiles::find(|name| var_os(name)) {
        Some(profiles) => profiles.save(&args.command, report),
        None => Err(Failure::own(
            "it is not kept for `overspill run --memory auto`, as neither XDG_STATE_HOME nor HOME \
             is set",
        )),
    };
    if let Err(failure) = saved {
        say(&failure.sentence);
    }
}
