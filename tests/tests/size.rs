//! `overspill size`, and what it has found used by `overspill run --memory auto`.

use overspill_tests::process::{Outcome, run};
use overspill_tests::stats::Report;
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill};
use serde_json::{Value, json};
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

fn run_command(command: &mut Command) -> Outcome {
    run(command, TIME_LIMIT)
}

fn read_json(file: &Path) -> Value {
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
    let report = read_json(&room.path.join("size.json"));
    // 1. It is told what it had, in a budget that it did not fit in.
    let (budget, most) = (mib(&report["budget_bytes"]), mib(&report["most_bytes"]));
    assert!(budget < MIB && (MIB..MIB + 12).contains(&most), "{budget} of {most}: {report}");
    // It got more when all of it had come back often: it does nothing but wait.
    assert!(budget > MIB / 3 + MIB / 8, "{budget}: {report}");
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
    let text = fs::read_to_string(&page).unwrap();
    for said in ["<svg", "Where the time went", "What was not managed", "Processes", "Swap devices"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert_eq!(report["run"]["managed"], true, "{report}");
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
        (&["size", "--memory", "auto", "--", "true"], 2, "'auto' is for `overspill run`"),
        (&["size", "--json", "/no/such/place/x", "--", "true"], 125, "or /dev/stderr"),
        (&["run", "--report", "/no/such/place/x", "--", "true"], 125, "or /dev/stderr"),
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

/// A page and a JSON file of a run that has managed nothing: both say what ran, how that ended, and
/// `why` nothing was managed.
fn tells_why(room: &Path, [page, file]: [&str; 2], words: &[&str], status: u8, why: &str) {
    let report = read_json(&room.join(file));
    let run = &report["run"];
    let sentence = run["sentence"].as_str().unwrap_or_else(|| panic!("no sentence: {report}"));
    let begins = format!("'{}' ran for ", words[0]);
    let ends = format!(" and ended with status {status}; nothing of it was managed, as ");
    assert!(sentence.starts_with(&begins) && sentence.contains(&ends), "{sentence}");
    assert!(sentence.contains(why), "{why}: {sentence}");
    let figures = [&run["command"], &run["status"], &run["managed"]];
    assert_eq!(figures, [&json!(words), &json!(status), &json!(false)]);
    assert!(run["elapsed_s"].as_f64().unwrap() > 0.0, "{run}");
    let text = fs::read_to_string(room.join(page)).unwrap();
    for said in ["<h1>Nothing of it was managed</h1>", "<pre>", &begins[1..], why] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(!text.contains("<svg"), "an empty picture: {text}");
}

#[test]
fn a_run_that_managed_nothing_says_what_it_was_and_why() {
    let room = SCRATCH.room("size-nothing");
    let little = "no process that overspill is in needed so much memory";
    let files = ["run.html", "run.json"];
    let run = |fault: &str, words: &[&str]| {
        let args = ["run", "--memory", "64M", "--fault", fault, "--stats", "--report", "run.html"];
        run_in(&room.path, &[&args[..], &["--stats-json", "run.json", "--"], words].concat())
    };
    // 1. One that needs next to nothing, by either command.
    let tiny = ["sh", "-c", "exit 3"];
    let Some(outcome) = run("auto", &tiny) else { return };
    assert_eq!((outcome.status, outcome.stdout.as_str()), (3, ""), "{outcome:?}");
    assert!(outcome.stderr.contains(little), "{}", outcome.stderr);
    tells_why(&room.path, files, &tiny, 3, little);
    let args = ["size", "--json", "size.json", "--report", "size.html", "--"];
    let outcome = run_in(&room.path, &[&args[..], &tiny].concat()).unwrap();
    assert_eq!(outcome.status, 3);
    tells_why(&room.path, ["size.html", "size.json"], &tiny, 3, little);
    // 2. One that has left the job, with much memory for long enough to be seen.
    let python = "import time; x = bytearray(96 << 20); time.sleep(1.5)";
    let left = ["env", "OVERSPILL=off", "python3", "-c", python];
    let outcome = run("auto", &left).unwrap();
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("start it without that"), "{}", outcome.stderr);
    tells_why(&room.path, files, &left, 0, "which has OVERSPILL=off in its environment");
    // 3. One that overspill cannot get into with faults by thread.
    let source = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
        int main(void) { size_t all = 96 << 20; char *x = malloc(all); memset(x, 1, all);\n\
        usleep(1500000); return x[all / 2] != 1; }\n";
    fs::write(room.path.join("static.c"), source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-static", "-o", "static", "static.c"]).current_dir(&room.path);
    if run_command(&mut cc).status != 0 {
        return overspill_tests::skipped("no static program can be built here");
    }
    let command = ["sh", "-c", "./static; exit 5"];
    assert_eq!(run("thread", &command).unwrap().status, 5);
    tells_why(&room.path, files, &command, 5, "which is statically linked, had most of its memory");
}
