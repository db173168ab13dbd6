//! `overspill size`, and what it has found used by `overspill run --memory auto`.

use overspill_tests::process::{Outcome, run};
use overspill_tests::stats::Report;
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// What the program goes through again and again.
const MIB: u64 = 48;

fn shown(path: &Path) -> &str {
    path.to_str().expect("a path of this repository")
}

/// `overspill ARGS` with a directory of its own for profiles and swap files; `None` where nothing
/// can be run.
fn run_in(room: &Path, args: &[&str]) -> Option<Outcome> {
    let mut command = Command::new(overspill(&SCRATCH)?);
    clean(&mut command).args(args).env("XDG_STATE_HOME", room).env("TMPDIR", room);
    Some(run(command.current_dir(room), TIME_LIMIT))
}

fn json(file: &Path) -> Value {
    let text = fs::read_to_string(file).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn mib(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no size")) >> 20
}

#[test]
fn a_loop_needs_what_it_goes_through() {
    let room = SCRATCH.room("size-loop");
    let program = SCRATCH.program("loops.c");
    let (words, page) = ([shown(&program), "48", "30"], room.path.join("size.html"));
    let args = ["size", "--json", "size.json", "--report", "size.html", "--"];
    let Some(outcome) = run_in(&room.path, &[&args[..], &words].concat()) else { return };
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let native = run(Command::new(&program).args(&words[1..]), TIME_LIMIT);
    assert_eq!(outcome.stdout, native.stdout, "what it prints is its own");
    let report = json(&room.path.join("size.json"));
    // 1. It is told what it had, in a budget that it did not fit in.
    let (budget, most) = (mib(&report["budget_bytes"]), mib(&report["most_bytes"]));
    assert!(budget < MIB && (MIB..MIB + 12).contains(&most), "{budget} of {most}: {report}");
    let turns = report["refaults"].as_u64().unwrap() / (MIB << 8);
    assert!((5..31).contains(&turns), "pages left and came back: {turns}");
    // 2. Nothing helps until all of it fits.
    let near = MIB - 6..MIB + 20;
    // Unless devices were read: then the curve bends where all of it is compressed as well.
    let is_bent = near.contains(&mib(&report["knee_bytes"]));
    assert!(is_bent || report["curve"][0]["device"] != 0, "{report}");
    for at_most in report["at_most"].as_array().unwrap() {
        assert!(near.contains(&mib(&at_most["budget_bytes"])), "{at_most}");
    }
    let curve = report["curve"].as_array().unwrap();
    let refaults = |point: &Value| point["refaults"].as_u64().unwrap();
    assert!(refaults(&curve[0]) > (MIB << 8) && refaults(curve.last().unwrap()) == 0);
    for said in ["the knee", "at most 10 % more", "refaults"] {
        assert!(outcome.stderr.contains(said), "{said}: {}", outcome.stderr);
    }
    assert!(fs::read_to_string(&page).unwrap().contains("<svg"));
    // 3. The next run has what was found, and nothing comes back.
    let args = ["run", "--memory", "auto", "--stats-json", "stats.json", "--"];
    let outcome = run_in(&room.path, &[&args[..], &words].concat()).unwrap();
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, native.stdout.as_str()));
    let (stats, auto) = (Report::read(&room.path.join("stats.json")), &report["at_most"][1]);
    assert_eq!(stats.total("budget_bytes"), auto["budget_bytes"].as_u64().unwrap(), "{auto}");
    let left = refaults(&curve[0]) / 4;
    assert!(stats.total("refault_seen") < left, "{} pages", stats.total("refault_seen"));
}

#[test]
fn a_run_tells_it_too_and_what_fits_is_told_in_a_sentence() {
    let room = SCRATCH.room("size-run");
    let program = SCRATCH.program("loops.c");
    let words = [shown(&program), "24", "3"];
    let args = ["run", "--memory", "16M", "--report", "run.html", "--"];
    let Some(outcome) = run_in(&room.path, &[&args[..], &words].concat()) else { return };
    assert_eq!((outcome.status, outcome.stderr_without_unmanaged().as_str()), (0, ""));
    assert!(fs::read_to_string(room.path.join("run.html")).unwrap().contains("<svg"));
    let args = ["size", "--memory", "96M", "--no-save", "--"];
    let outcome = run_in(&room.path, &[&args[..], &words].concat()).unwrap();
    assert_eq!(outcome.status, 0);
    assert!(outcome.stderr.contains("all of it fitted"), "{}", outcome.stderr);
    assert!(!room.path.join("overspill").exists(), "nothing is kept");
}

#[test]
fn bad_input_is_one_sentence() {
    let room = SCRATCH.room("size-refused");
    for (args, status, says) in [
        (&["size", "--", "no-such-command"][..], 127, "'no-such-command' was not found"),
        (&["size", "--memory", "1M", "--", "true"], 2, "4 MiB"),
        (&["size"], 2, "CMD"),
        (&["size", "--json", "/no/such/place/x", "--", "true"], 125, "cannot write the report to"),
        (&["run", "--memory", "auto", "--", "true"], 125, "make it by `overspill size -- true`"),
    ] {
        let Some(outcome) = run_in(&room.path, args) else { return };
        assert_eq!((outcome.status, outcome.stdout.as_str()), (status, ""), "{args:?}");
        assert!(outcome.stderr.contains(says), "{args:?}: {}", outcome.stderr);
    }
    // One that fails ends as it does, and is not kept; of one that does little nothing is known.
    let fails = ["size", "--", "python3", "-c", "x = bytearray(1 << 25); raise SystemExit(3)"];
    let Some(outcome) = run_in(&room.path, &fails) else { return };
    assert_eq!(outcome.status, 3, "{outcome:?}");
    assert!(outcome.stderr.contains("it ended with status 3: "), "{}", outcome.stderr);
    let outcome = run_in(&room.path, &["size", "--", "true"]).unwrap();
    assert_eq!(outcome.status, 0);
    assert!(outcome.stderr.contains("nothing of it was managed"), "{}", outcome.stderr);
    assert!(!room.path.join("overspill").exists(), "nothing is kept");
}
