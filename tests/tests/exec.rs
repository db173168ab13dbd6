//! What a process of a job executes belongs to the job, whatever its environment says; and it sees
//! the environment that it was given.
//!
//! Each command is run natively and under overspill, and what it prints is compared: a checksum of
//! more memory than the budget has, and the environment ([`hungry.c`](../semantics/hungry.c)).

use overspill_tests::process::{Outcome, run};
use overspill_tests::stats::Report;
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill, skipped};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// How faults are served.
const DELIVERIES: [&str; 2] = ["signal", "thread"];

/// A path as a word of a command.
fn word(path: PathBuf) -> String {
    path.to_str().expect("the target directory has a UTF-8 name").to_owned()
}

fn hungry() -> String {
    word(SCRATCH.program("hungry.c"))
}

/// Runs a command natively and in a job with less memory than it takes, in each delivery, and
/// compares. What the job did comes back.
fn compared(name: &str, words: &[&str]) -> Vec<(Outcome, Report)> {
    let Some(overspill) = overspill(&SCRATCH) else { return Vec::new() };
    let native = run(clean(Command::new(words[0]).args(&words[1..])), TIME_LIMIT);
    let in_job = |fault: &&str| {
        let plain = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let room = SCRATCH.room(&format!("exec.{plain}.{fault}"));
        let report = room.path.join("stats.json");
        let mut command = Command::new(overspill);
        command.args(["run", "--memory", "8M", "--fault", fault, "--swap"]).arg(&room.path);
        command.arg("--stats-json").arg(&report).arg("--").args(words);
        let under = run(clean(&mut command), TIME_LIMIT);
        assert_eq!(
            (under.status, &under.stdout),
            (native.status, &native.stdout),
            "{name}, {fault} (left: in the job)\n{}",
            under.stderr
        );
        (under, Report::read(&report))
    };
    DELIVERIES.iter().map(in_job).collect()
}

/// The same for what must be managed, and runs without a word on standard error.
fn is_managed(name: &str, words: &[&str]) {
    for (under, report) in compared(name, words) {
        assert!(report.evicted() > 0, "{name}: it is not managed");
        report.check(true);
        assert_eq!(under.stderr_without_unmanaged(), "", "{name}");
    }
}

/// The same for what must not be.
fn is_not_managed(name: &str, words: &[&str]) {
    for (under, report) in compared(name, words) {
        assert!(report.processes() == 0 || report.evicted() == 0, "{name}: it is managed");
        assert_eq!(under.stderr_without_unmanaged(), "", "{name}");
    }
}

#[test]
fn environments_of_env_and_shells() {
    let hungry = hungry();
    let h = hungry.as_str();
    is_managed("empty", &["env", "LD_PRELOAD=", h]);
    is_managed("unset", &["env", "-u", "LD_PRELOAD", h]);
    let settings = ["OVERSPILL_RUN_DIR", "OVERSPILL_MEMORY", "LD_PRELOAD"].map(|name| ["-u", name]);
    is_managed("no settings", &[&["env"][..], settings.as_flattened(), &[h]].concat());
    is_managed("cleared", &["env", "-i", h]);
    is_managed("cleared twice", &["env", "-i", "env", "-i", "A=1", "env", "B=2", h]);
    is_managed("cleared for a shell", &["env", "-i", "/bin/sh", "-c", h]);
    is_managed("cleared for bash", &["env", "-i", "/bin/bash", "-c", &format!("{h}; true")]);
    is_managed("unset by a shell", &["sh", "-c", &format!("unset LD_PRELOAD; {h}; exit $?")]);
    is_managed("exec of a shell", &["sh", "-c", &format!("LD_PRELOAD= exec {h}")]);
}

#[test]
fn environments_of_interpreters() {
    let hungry = hungry();
    let h = hungry.as_str();
    is_managed("perl, exec", &["perl", "-e", "%ENV = (); exec @ARGV", h]);
    is_managed("perl, system", &["perl", "-e", "%ENV = (); exit system(@ARGV) >> 8", h]);
    let by_python = |call: &str| format!("import os, subprocess, sys; p = sys.argv[1]; {call}");
    for (name, call) in [
        ("subprocess", "sys.exit(subprocess.run([p], env={}).returncode)"),
        ("subprocess, shell", "sys.exit(subprocess.run(p, shell=True, env={'A': '1'}).returncode)"),
        ("execve", "os.execve(p, [p], {})"),
        ("environ", "os.environ.clear(); os.execv(p, [p])"),
        ("spawn", "os.waitpid(os.posix_spawn(p, [p], {'B': '2'}), 0)"),
    ] {
        is_managed(&format!("python, {name}"), &["/usr/bin/python3", "-c", &by_python(call), h]);
    }
}

/// The functions by which a program executes another one.
const WAYS: [&str; 18] = [
    "execve",
    "nothing",
    "execvpe",
    "execle",
    "execveat",
    "fexecve",
    "by number",
    "execveat by number",
    "posix_spawn",
    "posix_spawnp",
    "system",
    "popen",
    "wordexp",
    "vfork",
    "execl",
    "execlp",
    "execvp",
    "execv",
];

#[test]
fn each_way_to_execute() {
    let (hungry, leads) = (hungry(), word(SCRATCH.program("leads.c")));
    for way in WAYS {
        is_managed(way, &[&leads, way, &hungry]);
    }
}

#[test]
fn each_way_to_execute_from_a_program_that_is_small() {
    let (hungry, leads) = (hungry(), word(SCRATCH.program("leads.c")));
    for way in WAYS {
        is_managed(&format!("{way}, small"), &[&leads, "small", way, &hungry]);
    }
}

/// What is linked statically passes its environment on.
#[test]
fn beyond_a_static_program() {
    let leads = word(SCRATCH.compile("leads.c", &["-static"]));
    is_managed("static", &["sh", "-c", &format!("env -i {leads} small kept {}", hungry())]);
}

/// What is linked statically and traced from its start, as by a debugger, is executed as it is: its
/// code lies where its file says.
#[test]
fn a_static_program_in_a_debugger() {
    // Without arguments it says how it is used.
    let program = word(SCRATCH.compile("traced.c", &["-static", "-no-pie"]));
    let traced = word(SCRATCH.program("traced.c"));
    is_not_managed("traced", &[&traced, &program]);
}

#[test]
fn off_leaves_the_job() {
    let hungry = hungry();
    let h = hungry.as_str();
    is_not_managed("off", &["env", "OVERSPILL=off", h]);
    is_not_managed("off and cleared", &["env", "-i", "OVERSPILL=off", h]);
    is_not_managed(
        "off, with another library",
        &["env", "OVERSPILL=off", "LD_PRELOAD=libm.so.6", h],
    );
    is_not_managed(
        "off for all beneath",
        &["env", "OVERSPILL=off", "sh", "-c", &format!("{h}; true")],
    );
    is_managed("something else", &["env", "-i", "OVERSPILL=on", h]);
}

/// What the compiler needs for a kind of program is not there.
fn lacks(library: &str) -> bool {
    let mut command = Command::new("cc");
    let found = run(command.arg(format!("-print-file-name={library}")), TIME_LIMIT);
    let lacks = !Path::new(found.stdout.trim()).is_absolute();
    if lacks {
        skipped(&format!("{library} is not installed"));
    }
    lacks
}

/// The runtime of AddressSanitizer must be the first library, and its malloc finds mistakes.
#[test]
fn address_sanitizer() {
    if lacks("libasan.so") {
        return;
    }
    let room = SCRATCH.room("exec.asan");
    // A name that env does not take for a variable.
    let compiled = |name, flags: &[&str]| {
        let program = room.path.join(name);
        std::fs::rename(SCRATCH.compile("sanitized.c", flags), &program).unwrap();
        word(program)
    };
    let program = compiled("shared", &["-fsanitize=address"]);
    is_managed("asan", &["env", "-i", &program]);
    is_managed(
        "asan of a shell",
        &["sh", "-c", &format!("unset LD_PRELOAD; {program} && env -i {}", hungry())],
    );
    let mistakes = |program: &str| {
        for (mistake, name) in [("over", "heap-buffer-overflow"), ("leak", "LeakSanitizer")] {
            for (under, _) in compared(mistake, &["env", "-i", program, mistake]) {
                assert!(under.stderr.contains(name), "{under:?}");
            }
        }
    };
    mistakes(&program);
    // Statically linked it has its own malloc in the executable.
    if !lacks("libasan.a") {
        let program = compiled("static", &["-fsanitize=address", "-static-libasan"]);
        is_managed("asan, static", &["env", "-i", &program]);
        mistakes(&program);
    }
}

/// The loader of musl ends a program when it is to load this library.
#[test]
fn programs_for_musl() {
    let room = SCRATCH.room("exec.musl");
    let program = word(room.path.join("musl"));
    let source = overspill_tests::repository().join("tests/semantics/hungry.c");
    let mut compile = Command::new("musl-gcc");
    match compile.args(["-O1", "-o", &program]).arg(source).status() {
        Ok(status) => assert!(status.success(), "musl-gcc refuses hungry.c"),
        Err(_) => return skipped("musl-gcc is not installed"),
    }
    is_not_managed("musl", &["sh", "-c", &format!("{program}; exit $?")]);
    is_not_managed("musl, cleared", &["sh", "-c", &format!("env -i {program}")]);
    let python = "import os, sys; os.posix_spawnp(sys.argv[1], sys.argv[1:], {}); os.wait()";
    is_not_managed("musl, spawned", &["/usr/bin/python3", "-c", python, &program]);
}

/// Other libraries that the program preloads, with a malloc among them: ours comes first.
#[test]
fn beside_other_libraries() {
    let hungry = hungry();
    is_managed("libm", &["env", "LD_PRELOAD=libm.so.6", &hungry]);
    for name in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"] {
        if !Path::new("/usr/lib/x86_64-linux-gnu").join(name).exists() {
            skipped(&format!("{name} is not installed"));
            continue;
        }
        let variable = format!("LD_PRELOAD={name}");
        is_managed(name, &["env", &variable, &hungry]);
        is_managed(&format!("{name}, cleared"), &["env", "-i", &variable, &hungry]);
        let added = format!("LD_PRELOAD={name}:$LD_PRELOAD {hungry} | grep -v ^LD_PRELOAD");
        is_managed(&format!("{name}, before ours"), &["sh", "-c", &added]);
    }
}
