//! `overspill swapoff`: takes swap devices of a running job out of use, and shows how far it is
//! ([`progress`]).

mod progress;

use super::swapon::{POLL, Silence, silent};
use crate::args::SwapoffArgs;
use crate::control::protocol::{Reply, Request, SwapChange, SwapName, SwapOutcome};
use crate::control::{self, Found, unexpected};
use crate::failure::{Failure, say};
use crate::report::printable;
use crate::signals::not_ignored;
use progress::ProgressDisplay;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Exit status when nothing takes the pages of a device. It and the others are those of
/// swapoff(8).
const NO_ROOM: u8 = 2;
/// Exit status when it fails for another reason.
const FAILED: u8 = 4;
/// Exit status when none of all devices is out of use.
const ALL_FAILED: u8 = 32;
/// Exit status when some of all are, or when some pages could not be read.
const SOME_FAILED: u8 = 64;
/// Added to the number of the signal that ended it, as shells do.
const KILLED_BY: u8 = 128;
/// Longest text that is a label or a UUID, in bytes.
const NAME_BYTES_MAX: usize = 36;

/// Runs the subcommand; returns the exit status.
pub fn run(args: &SwapoffArgs) -> Result<u8, Failure> {
    let failed = |failure: Failure| Failure { status: FAILED, ..failure };
    let signals = CancelSignals::catch()
        .map_err(|error| failed(Failure::own(format!("cannot catch signals: {error}"))))?;
    let found = control::find(args.pid).map_err(failed)?;
    let names =
        if args.all { all(&found).map_err(failed)? } else { named(args).map_err(failed)? };
    let mut statuses = Vec::new();
    for name in names {
        statuses.push(take_out_shown(&found, name, args.verbose, &signals).unwrap_or_else(
            |failure| {
                say(&failure.sentence);
                FAILED
            },
        ));
        if let Some(signal) = signals.caught() {
            return Ok(KILLED_BY + signal);
        }
    }
    Ok(status(&statuses, args.all))
}

/// The status of all devices together.
fn status(statuses: &[u8], all: bool) -> u8 {
    let out_of_use = statuses.iter().filter(|status| [0, SOME_FAILED].contains(status)).count();
    match statuses.iter().fold(0, |both, status| both | status) {
        0 => 0,
        _ if all && out_of_use == 0 => ALL_FAILED,
        _ if all => SOME_FAILED,
        status => status,
    }
}

/// The devices that the command line names.
fn named(args: &SwapoffArgs) -> Result<Vec<SwapName>, Failure> {
    let labels = args.label.iter().cloned().map(SwapName::Label);
    let uuids = args.uuid.iter().cloned().map(SwapName::Uuid);
    let others = args.device.iter().map(|text| match text.split_once('=') {
        Some(("LABEL", label)) => Ok(SwapName::Label(label.to_owned())),
        Some(("UUID", uuid)) => Ok(SwapName::Uuid(uuid.to_owned())),
        _ => {
            let path = std::path::absolute(text).map_err(|error| {
                Failure::failed(format!("cannot tell where '{text}' is: {error}"))
            })?;
            let short = (text.len() <= NAME_BYTES_MAX).then(|| text.clone());
            Ok(SwapName::Any { text: short, path: path.to_string_lossy().into_owned() })
        }
    });
    labels.chain(uuids).map(Ok).chain(others).collect()
}

/// All devices of the job.
fn all(found: &Found) -> Result<Vec<SwapName>, Failure> {
    match control::ask(found, Request::Swaps)? {
        Reply::Swaps(devices) => Ok(devices.iter().map(|device| SwapName::Id(device.id)).collect()),
        other => Err(unexpected(other)),
    }
}

/// Takes one device out of use, and shows how far it is; returns the exit status.
fn take_out_shown(
    found: &Found,
    name: SwapName,
    verbose: bool,
    signals: &CancelSignals,
) -> Result<u8, Failure> {
    let mut progress = None;
    let over = take_out(found, name, |now| {
        let progress = progress.get_or_insert_with(|| {
            let device = printable(&now.device);
            if verbose {
                let _ = writeln!(io::stdout(), "swapoff {device}");
            }
            ProgressDisplay::new(&device, verbose)
        });
        if !now.over {
            progress.show(now.left_pages);
        }
        signals.caught().is_some()
    })?;
    if let Some(progress) = &progress {
        progress.end();
    }
    let Some(now) = over else { return Ok(ended()) };
    let (status, sentence) = told(&now, &printable(&now.device));
    if let Some(sentence) = sentence {
        say(&sentence);
    }
    if let Some(progress) = progress.filter(|_| status == 0 && verbose) {
        say(&progress.summary());
    }
    Ok(status)
}

/// Takes one device out of use: how far that is when it has ended, or when nobody goes on with it;
/// nothing if the job has ended. `watch` hears how far it is each time, and calls it off if it says
/// so.
pub fn take_out(
    found: &Found,
    name: SwapName,
    mut watch: impl FnMut(&SwapChange) -> bool,
) -> Result<Option<SwapChange>, Failure> {
    let Some(mut now) = change(found, Request::Swapoff { device: name })? else { return Ok(None) };
    let mut silence = Silence::default();
    let mut cancelled = false;
    loop {
        let call_off = watch(&now);
        if now.over || silence.lasts(&now) {
            return Ok(Some(now));
        }
        let mut request = Request::SwapChange { change: now.change };
        if call_off && !cancelled {
            (cancelled, silence) = (true, Silence::default());
            request = Request::CancelSwapoff { change: now.change };
        } else {
            thread::sleep(POLL);
        }
        let Some(next) = change(found, request)? else { return Ok(None) };
        now = next;
    }
}

/// The exit status for one device, and what is to be said.
pub fn told(now: &SwapChange, device: &str) -> (u8, Option<String>) {
    let stays = "it stays in use";
    let (status, mut sentence) = match now.outcome {
        None => (FAILED, format!("swap device '{device}' is out of use in part: {}", silent(now))),
        Some(SwapOutcome::Done) if now.lost_pages > 0 => (
            SOME_FAILED,
            format!(
                "swap device '{device}' is out of use, but {} pages of it could not be read: they \
                 are lost to those who touch them",
                now.lost_pages
            ),
        ),
        Some(SwapOutcome::Done) => return (0, None),
        Some(SwapOutcome::NoRoom) => (
            NO_ROOM,
            format!(
                "not enough memory to take swap device '{device}' out of use: {stays}; give the \
                 job a larger budget (`overspill set`) or another device (`overspill swapon`)"
            ),
        ),
        Some(SwapOutcome::Cancelled) => (
            FAILED,
            format!(
                "swapoff was interrupted: swap device '{device}' is in use as before; run it \
                 again to go on"
            ),
        ),
        Some(SwapOutcome::NotOpened) => {
            (FAILED, format!("swap device '{device}' cannot be opened: {stays} nowhere"))
        }
    };
    if now.outcome.is_some() && !now.over {
        sentence += &format!("; {}", silent(now));
    }
    if now.not_opened > 0 {
        sentence +=
            &format!("; {} of {} processes cannot open it any more", now.not_opened, now.processes);
    }
    (status, Some(sentence))
}

/// The job has ended, and uses nothing any more.
fn ended() -> u8 {
    say("the job has ended meanwhile");
    0
}

/// How far a change is; nothing once the job has ended.
fn change(found: &Found, request: Request) -> Result<Option<SwapChange>, Failure> {
    match control::ask_while_it_runs(found, request)? {
        Some(Reply::SwapChange(change)) => Ok(Some(change)),
        // Between its last process and its end.
        None | Some(Reply::NotMine) => Ok(None),
        Some(other) => Err(unexpected(other)),
    }
}

/// The signals that call it off; the second one ends the command at once.
#[derive(Debug)]
struct CancelSignals(Arc<AtomicUsize>);

impl CancelSignals {
    fn catch() -> io::Result<CancelSignals> {
        let caught = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        // One that is ignored stays so: nohup(1) relies on that.
        for signal in not_ignored([SIGINT, SIGTERM, SIGHUP]) {
            flag::register_conditional_shutdown(
                signal,
                i32::from(KILLED_BY) + signal,
                again.clone(),
            )?;
            flag::register(signal, again.clone())?;
            flag::register_usize(signal, caught.clone(), signal as usize)?;
        }
        Ok(CancelSignals(caught))
    }

    fn caught(&self) -> Option<u8> {
        Some(self.0.load(Relaxed) as u8).filter(|signal| *signal != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_swapoff() {
        for (statuses, all, expected) in [
            (&[][..], true, 0),
            (&[0, 0], true, 0),
            (&[2, 4], true, 32),
            (&[0, 2], true, 64),
            (&[64], true, 64),
            (&[0], false, 0),
            (&[2], false, 2),
            (&[0, 2, 4], false, 6),
            (&[64, 0], false, 64),
        ] {
            assert_eq!(status(statuses, all), expected, "{statuses:?} {all}");
        }
    }

    #[test]
    fn each_end_is_told_in_a_sentence() {
        let now = SwapChange { over: true, processes: 3, done: 3, ..SwapChange::default() };
        let told = |now: &SwapChange| told(now, "/a");
        let with = |outcome| SwapChange { outcome: Some(outcome), ..now.clone() };
        assert_eq!(told(&with(SwapOutcome::Done)), (0, None));
        let says = |now: &SwapChange, status, parts: &[&str]| {
            let (is, sentence) = told(now);
            let sentence = sentence.unwrap();
            assert_eq!(is, status, "{sentence}");
            parts.iter().for_each(|part| assert!(sentence.contains(part), "{part} in {sentence}"));
            assert!(!sentence.contains('\n'));
        };
        says(
            &SwapChange { lost_pages: 7, ..with(SwapOutcome::Done) },
            64,
            &["'/a' is out of use, but 7 pages"],
        );
        says(&with(SwapOutcome::NoRoom), 2, &["not enough memory", "it stays in use"]);
        says(&with(SwapOutcome::Cancelled), 4, &["interrupted", "in use as before"]);
        let stopped = SwapChange { over: false, done: 1, silent: 2, ..now.clone() };
        says(&stopped, 4, &["out of use in part", "2 processes do not take note"]);
        says(
            &SwapChange { outcome: Some(SwapOutcome::NoRoom), ..stopped },
            2,
            &["stays in use", "2 processes do not"],
        );
        says(
            &SwapChange { not_opened: 1, ..with(SwapOutcome::Cancelled) },
            4,
            &["1 of 3 processes cannot open it"],
        );
    }

    #[test]
    fn names_are_told_apart() {
        let args = SwapoffArgs {
            pid: 1,
            all: false,
            label: vec!["a".to_owned()],
            uuid: vec!["b".to_owned()],
            verbose: false,
            device: ["LABEL=c", "UUID=d", "/e/f=g", "h"].map(str::to_owned).into(),
        };
        let any = |text: &str, path: &str| SwapName::Any {
            text: Some(text.to_owned()),
            path: path.to_owned(),
        };
        let here = std::env::current_dir().unwrap().join("h");
        let expected = [
            SwapName::Label("a".to_owned()),
            SwapName::Uuid("b".to_owned()),
            SwapName::Label("c".to_owned()),
            SwapName::Uuid("d".to_owned()),
            any("/e/f=g", "/e/f=g"),
            any("h", here.to_str().unwrap()),
        ];
        assert_eq!(named(&args).unwrap(), expected);
    }
}
