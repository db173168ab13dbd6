//! How a program ends whose memory cannot be held any more, or whose engine is gone: it is killed,
//! and the reason is said.

use overspill_tests::command::{in_mount_namespace, overspill_run, shown};
use overspill_tests::process::{Outcome, run, wait_until};
use overspill_tests::scratch::{Room, private_file};
use overspill_tests::stats::Report;
use overspill_tests::{Scratch, TIME_LIMIT, clean, is_root, overspill, skipped};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// Checks the end of a program whose page could not be held: it is killed, with the reason.
fn out_of_room(outcome: &Outcome) {
    assert_eq!(outcome.status, 128 + 9, "it is killed: {outcome:?}");
    assert_eq!(outcome.stdout, "begun\n", "it got as far as it could, and no further");
    assert!(
        outcome.stderr.lines().any(|line| line.starts_with("overspill: ")),
        "the reason is missing: {}",
        outcome.stderr
    );
}

/// A program fills so many MiB in 16: it ends well where that fits, and else is killed.
fn fills(room: &Room, baselines: &str, args: &[&str], mib: &str, fits: bool) {
    let (fills, report) = (SCRATCH.program("fills.c"), room.path.join("stats.json"));
    let program = ["--stats-json", shown(&report), "--", shown(&fills), mib];
    let args = [&["--memory", "16M"], args, &program].concat();
    let outcome = overspill_run(&SCRATCH, baselines, &args);
    let statistics = Report::read(&report);
    statistics.check_budgets();
    if fits {
        let (status, stderr) = (outcome.status, outcome.stderr.as_str());
        assert_eq!((status, stderr), (0, ""), "{args:?}: {}", outcome.stdout);
    } else {
        out_of_room(&outcome);
        assert!(statistics.total("oom_kill") > 0, "the process that was killed is not counted");
    }
}

#[test]
fn swap_that_is_too_small() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let room = SCRATCH.room("small");
    for (size, fits) in [("8M", false), ("80M", true)] {
        for fault in ["thread", "signal"] {
            let file = room.path.join(format!("{size}.{fault}"));
            private_file(&file);
            let swap = format!("{}:{size}", shown(&file));
            let args = ["--swap", &swap, "--set", "compressed=0", "--fault", fault];
            fills(&room, "", &args, "64", fits);
        }
    }
}

/// A compressed tier that is full, with no device behind it: the program goes on while something
/// can be reclaimed, and gets the documented end then. [`run`] has a time limit.
#[test]
fn a_compressed_tier_that_is_full() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let room = SCRATCH.room("full");
    for (settings, baselines, fault) in [
        ("compressed=50", "", "thread"),
        ("compressed=90,zswap.incompressible=keep", "", "signal"),
        ("zswap.codec=none", "background=off", "thread"),
        ("zswap.codec=zstd", "zswap.keep=on", "signal"),
    ] {
        // Most of the budget can be used, also by pages that do not compress.
        for (mib, fits) in [("12", true), ("64", false)] {
            let args = ["--no-swap", "--set", settings, "--fault", fault];
            fills(&room, baselines, &args, mib, fits);
        }
    }
}

/// What was used is said once.
#[test]
fn a_program_that_is_killed_for_want_of_room() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let fills = SCRATCH.program("fills.c");
    for fault in ["thread", "signal"] {
        let args = [
            "--memory",
            "16M",
            "--no-swap",
            "--set",
            "compressed=20,oom.wait=500ms",
            "--fault",
            fault,
        ];
        let outcome =
            overspill_run(&SCRATCH, "", &[&args[..], &["--", shown(&fills), "64"]].concat());
        assert_eq!(
            (outcome.status, outcome.stdout.as_str()),
            (128 + 9, "begun\n"),
            "{fault}: {}",
            outcome.stderr
        );
        let said: Vec<&str> = outcome.stderr.lines().collect();
        assert!(
            matches!(said[..], [line] if line.contains("is killed (oom=kill). Of the budget of 16 \
                                                        MiB it had")),
            "{fault}: {}",
            outcome.stderr
        );
    }
}

/// The largest process of a job ends, and not the one that finds no room; or the one that says that
/// it can be spared.
#[test]
fn the_largest_process_of_a_job_is_killed_for_want_of_room() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let hogs = SCRATCH.program("hogs.c");
    for fault in ["thread", "signal"] {
        for (adjusted, out) in [
            ("0", "the second: whole\nthe first: killed\n"),
            ("700", "the second: killed\nthe first: waits\n"),
        ] {
            let args = ["--memory", "32M", "--no-swap", "--set", "oom.wait=500ms", "--fault"];
            let program = [fault, "--", shown(&hogs), "18", "16", adjusted];
            let outcome = overspill_run(&SCRATCH, "", &[&args[..], &program].concat());
            assert_eq!((outcome.status, outcome.stdout.as_str()), (0, out), "{outcome:?}");
            let said: Vec<&str> = outcome.stderr.lines().collect();
            let is_said = |line: &str| {
                line.contains("is killed (oom=kill)") && line.matches("hogs_c (").count() >= 2
            };
            assert!(matches!(said[..], [line] if is_said(line)), "{fault}: {}", outcome.stderr);
        }
    }
}

/// A file that a program has under the number of its standard error gets nothing of ours:
/// `overspill run` says it.
#[test]
fn the_reason_is_not_said_in_a_programs_own_file() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let room = SCRATCH.room("database");
    let fills = SCRATCH.program("fills.c");
    for fault in ["thread", "signal"] {
        let database = room.path.join(fault);
        let settings = "compressed=20,oom.wait=500ms";
        let args =
            ["run", "--memory", "16M", "--no-swap", "--set", settings, "--fault", fault, "--"];
        let mut command = Command::new(overspill);
        clean(&mut command).args(args).arg(&fills).arg("64").env("DATABASE", &database);
        let outcome = run(&mut command, TIME_LIMIT);
        assert_eq!(
            (outcome.status, outcome.stdout.as_str()),
            (128 + 9, "begun\n"),
            "{fault}: {}",
            outcome.stderr
        );
        assert_eq!(fs::read_to_string(&database).unwrap(), "data\n", "{fault}");
        let said =
            outcome.stderr.lines().filter(|line| line.contains("is killed (oom=kill)")).count();
        assert_eq!(said, 1, "{fault}: {}", outcome.stderr);
    }
}

/// Whoever kills the process that an engine lives in ends the program, which would wait for its
/// memory for ever. Others go on.
#[test]
fn a_program_whose_engine_is_killed() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let orphaned = SCRATCH.program("orphaned.c");
    for fault in ["thread", "signal"] {
        let args = ["--memory", "16M", "--fault", fault, "--", shown(&orphaned)];
        let outcome = overspill_run(&SCRATCH, "", &args);
        assert_eq!(
            (outcome.status, outcome.stdout.as_str()),
            (128 + 9, "begun\n"),
            "{fault}: {}",
            outcome.stderr
        );
        let said: Vec<&str> = outcome.stderr.lines().collect();
        assert!(
            matches!(said[..], [line] if line.contains("was killed")),
            "{fault}: {}",
            outcome.stderr
        );

        let outcome = overspill_run(&SCRATCH, "", &[&args[..], &["child"]].concat());
        let all = (outcome.status, outcome.stdout.as_str());
        assert_eq!(all, (0, "begun\na child ended by 9\n"), "{fault}: {}", outcome.stderr);
    }
}

/// The reason is said before the access fails, whatever standard error is: a socket, which cannot
/// be opened by name, or a file, in which others go on writing where it ends.
#[test]
fn the_reason_is_said_on_any_standard_error() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let room = SCRATCH.room("reason");
    for fault in ["thread", "signal"] {
        let swap = room.path.join(fault);
        private_file(&swap);
        let swap = format!("{}:4M", shown(&swap));
        let fills = SCRATCH.program("fills.c");
        let args = [
            "run",
            "--memory",
            "8M",
            "--swap",
            &swap,
            "--set",
            "compressed=0,oom=sigbus",
            "--fault",
            fault,
            "--",
        ];
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(overspill);
        clean(&mut command)
            .args(args)
            .arg(&fills)
            .arg("32")
            .stdout(Stdio::null())
            .stderr(OwnedFd::from(theirs));
        let mut child = command.spawn().unwrap();
        drop(command);
        let ended = wait_until(TIME_LIMIT, || child.try_wait().unwrap().is_some());
        let _ = child.kill();
        let status = child.wait().unwrap();
        let mut said = String::new();
        (&ours).read_to_string(&mut said).unwrap();
        assert!(ended && status.code() == Some(128 + 7), "{fault}: {status} {said}");
        assert!(
            said.starts_with("overspill: out of room") && said.lines().count() == 1,
            "{fault}: {said}"
        );
        assert!(said.contains("Give it a larger --memory, or a larger --swap"), "{said}");

        let file = room.path.join("standard-error");
        let script =
            "file=$1; shift; exec 2>\"$file\"; echo before >&2; \"$0\" \"$@\"; echo $? >&2";
        let mut command = Command::new("sh");
        clean(&mut command)
            .args(["-c", script])
            .arg(overspill)
            .arg(&file)
            .args(args)
            .arg(&fills)
            .arg("32");
        run(&mut command, TIME_LIMIT);
        let said = fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        assert!(
            matches!(lines[..], ["before", reason, "135"] if reason.starts_with("overspill: out \
                                                                                 of room")),
            "{said}"
        );
    }
}

/// Runs `fills` with swap on an ext4 of its own of `mib` MiB; `None` where that cannot be had.
fn on_small_filesystem(name: &str, mib: u64, fills: &str) -> Option<Outcome> {
    let overspill = overspill(&SCRATCH)?;
    if !is_root() {
        skipped("only root can mount a file system");
        return None;
    }
    let room = SCRATCH.room(name);
    let (image, dir) = (room.path.join("image"), room.path.join("dir"));
    fs::create_dir(&dir).unwrap();
    File::create(&image).and_then(|file| file.set_len(mib << 20)).unwrap();
    let made = run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image), TIME_LIMIT);
    assert!(made.status == 0, "mkfs.ext4: {}", made.stderr);
    let script = format!(
        "mount -o loop \"$1\" \"$2\" || exit 77; OVERSPILL_BASELINES=dormant=off \"$0\" run \
         --memory 16M --set compressed=0 --swap \"$2\" -- {fills}; status=$?; \
         umount \"$2\" || umount -l \"$2\"; exit $status"
    );
    let args: [&Path; 4] = [overspill, &image, &dir, &SCRATCH.program("fills.c")];
    let outcome = run(clean(&mut in_mount_namespace(&script, &args)), TIME_LIMIT);
    if outcome.status == 77 {
        skipped(&format!("no loop device can be mounted here: {}", outcome.stderr));
        return None;
    }
    Some(outcome)
}

#[test]
fn a_file_system_that_is_too_small() {
    if let Some(outcome) = on_small_filesystem("ext4-small", 24, "\"$3\" 64") {
        out_of_room(&outcome);
    }
    if let Some(outcome) = on_small_filesystem("ext4-enough", 96, "\"$3\" 64") {
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.stdout);
    }
}

/// Others fill the file system after the start: the program ends as if swap were small, or does not
/// notice where the room was taken in advance. It never computes with wrong data.
#[test]
fn a_file_system_that_becomes_full() {
    let Some(outcome) = on_small_filesystem("ext4-full", 96, "\"$3\" 64 \"$2/ballast\"") else {
        return;
    };
    if outcome.status == 0 {
        assert!(outcome.stdout.contains("all ok"), "{outcome:?}");
    } else {
        out_of_room(&outcome);
    }
}
