//! Programs that are linked statically: the library loads them, and they behave as they do
//! natively, with their memory managed.

use overspill_tests::process::{Outcome, run};
use overspill_tests::stats::Report;
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill, skipped};
use std::process::Command;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// Runs a command natively and in a job by signal, and compares; what the job did.
fn same(name: &str, memory: &str, words: &[&str]) -> Option<(Outcome, Report)> {
    let overspill = overspill(&SCRATCH)?;
    let natively = SCRATCH.room(&format!("loaded.{name}.native"));
    let mut command = Command::new(words[0]);
    let native = run(clean(command.args(&words[1..]).current_dir(&natively.path)), TIME_LIMIT);
    assert!(native.status == 0 && !native.stdout.contains("WRONG"), "{name}: {native:?}");
    let room = SCRATCH.room(&format!("loaded.{name}"));
    let report = room.path.join("stats.json");
    let mut command = Command::new(overspill);
    command.args(["run", "--memory", memory, "--fault", "signal", "--swap"]).arg(&room.path);
    command.arg("--stats-json").arg(&report).arg("--").args(words).current_dir(&room.path);
    let under = run(clean(&mut command), TIME_LIMIT);
    assert_eq!(under.stdout, native.stdout, "{name} (left: in the job)\n{}", under.stderr);
    assert_eq!(under.status, native.status, "{name}: {}", under.stderr);
    Some((under, Report::read(&report)))
}

/// Runs `tests/semantics/SOURCE`, linked with a flag.
fn c_program(flag: &str, source: &str) {
    let name = format!("{source}{flag}");
    let probe = SCRATCH.room(&format!("loaded.{name}.probe"));
    let mut compile = Command::new("cc");
    compile.args([flag, "-x", "c", "-o"]).arg(probe.path.join("probe")).arg("-");
    // A file without a main function fails later than one that there is no library for.
    let missing = run(&mut compile, TIME_LIMIT).stderr;
    if missing.contains("cannot find -lc") {
        return skipped(&format!("nothing can be linked with {flag} here"));
    }
    let program = SCRATCH.compile(source, &[flag]);
    let Some((_, report)) = same(&name, "16M", &[program.to_str().unwrap()]) else { return };
    assert!(report.total("managed_peak_bytes") > 4 << 20, "{name} is not managed");
}

macro_rules! programs {
    ($flag:literal, $($name:ident => $source:literal),* $(,)?) => {
        $(#[test] fn $name() { super::c_program($flag, $source); })*
    };
}

/// Programs of the semantics suite that are to be the same when they are linked statically.
mod c_at_its_own_addresses {
    programs! {
        "-static",
        address_limit => "address_limit.c",
        aio => "aio.c",
        asynchronous => "asynchronous.c",
        blocking => "blocking.c",
        brk => "brk.c",
        changed => "changed.c",
        coroutines => "coroutines.c",
        fork_evicted => "fork_evicted.c",
        heap => "heap.c",
        limits => "limits.c",
        loaded => "loaded.c",
        mremap => "mremap.c",
        remote => "remote.c",
        signals => "signals.c",
        syscalls => "syscalls.c",
        threads => "threads.c",
    }
}

mod c_at_any_addresses {
    programs! {
        "-static-pie",
        loaded => "loaded.c",
        threads => "threads.c",
    }
}

#[test]
fn go_itself_and_beneath_a_shell() {
    let Some(path) = SCRATCH.go_program("static_goroutines", &["goroutines.go"], "0", &[]) else {
        return;
    };
    let program = path.to_str().unwrap();
    let beneath = format!("env -i {program} && {program}");
    for (name, words) in [("go", vec![program]), ("go-sh", vec!["sh", "-c", &beneath])] {
        let Some((under, report)) = same(name, "64M", &words) else { return };
        assert_eq!(under.stderr, "", "{name}");
        assert!(report.evicted() > 0, "{name} is not managed");
    }
}
