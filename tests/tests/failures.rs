//! What overspill says and how it ends when something is wrong.
//!
//! Exit statuses: 2 for a mistake on the command line, 125 if overspill itself fails, 126 if the
//! program cannot be executed, 127 if it was not found, else the program's own.

use overspill_tests::process::{Outcome, run, wait_until};
use overspill_tests::scratch::{Room, private_file};
use overspill_tests::stats::Report;
use overspill_tests::{Scratch, TIME_LIMIT, binary, clean, is_root, overspill, skipped};
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// The user and group that own nothing.
const NOBODY: u32 = 65534;

/// `overspill run ARGS`, without regard to what this machine can do.
fn overspill_run(args: &[&str]) -> Outcome {
    overspill_run_with("", args)
}

/// The same with mechanisms as their baselines are.
fn overspill_run_with(baselines: &str, args: &[&str]) -> Outcome {
    let mut command = Command::new(binary(&SCRATCH));
    clean(&mut command).arg("run").args(args).env("OVERSPILL_BASELINES", baselines);
    run(&mut command, TIME_LIMIT)
}

/// Checks that a run ended with `status` before the program began, and said one sentence with each
/// of `parts` in it.
fn refused(outcome: &Outcome, status: i32, parts: &[&str]) {
    let said = &outcome.stderr;
    assert_eq!(outcome.status, status, "{said}");
    assert_eq!(outcome.stdout, "", "the program ran");
    for part in parts {
        assert!(said.contains(part), "'{part}' is not in: {said}");
    }
    if status != 2 {
        assert!(
            said.starts_with("overspill: ") && said.lines().count() == 1,
            "not one sentence: {said}"
        );
    }
}

/// A path as an argument of the command line.
fn shown(path: &Path) -> &str {
    path.to_str().expect("the target directory has a UTF-8 name")
}

// ---- The command line ----

#[test]
fn mistakes_on_the_command_line() {
    refused(&overspill_run(&[]), 2, &["CMD"]);
    refused(&overspill_run(&["--no-such-option", "--", "true"]), 2, &["--no-such-option"]);
    refused(&overspill_run(&["--memory", "many", "--", "true"]), 2, &["'many' is not a size"]);
    refused(&overspill_run(&["--memory", "1M", "--", "true"]), 2, &["smallest possible", "4 MiB"]);
    refused(&overspill_run(&["--set", "folio=3", "--", "true"]), 2, &["folio", "1|2|4|8|16|32|64"]);
    refused(&overspill_run(&["--set", "colour=red", "--", "true"]), 2, &["colour"]);
    let outcome = overspill_run(&["--set", "slot.lock=device", "--", "true"]);
    refused(&outcome, 2, &["no setting 'slot.lock': choose one of out, "]);
    let outcome = overspill_run_with("folio=1", &["--", "true"]);
    refused(&outcome, 2, &["OVERSPILL_BASELINES: there is no baseline 'folio'"]);
    refused(&overspill_run(&["--fault", "luck", "--", "true"]), 2, &["luck"]);
}

#[test]
fn the_programs_own_status() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    for (script, status) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -KILL $$", 137),
        ("kill -ABRT $$", 134),
        ("exit 125", 125),
    ] {
        let outcome = overspill_run(&["--memory", "16M", "--", "sh", "-c", script]);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (status, ""), "{script}");
    }
}

// ---- Programs that cannot be run ----

#[test]
fn programs_that_are_not_there_or_cannot_be_executed() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let room = SCRATCH.room("programs");
    let data = room.path.join("data");
    fs::write(&data, "no program").unwrap();
    let refusal =
        |program: &str, status, part| refused(&overspill_run(&["--", program]), status, &[part]);
    refusal("no-such-program-anywhere", 127, "was not found in PATH");
    refusal("/no/such/program", 127, "does not exist");
    refusal(shown(&room.path), 126, "is a directory");
    refusal(shown(&data), 126, "is not executable");
    fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
    refusal(shown(&data), 126, "name its interpreter");
}

#[test]
fn a_static_program() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let room = SCRATCH.room("static");
    let source = room.path.join("empty.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let program = room.path.join("static");
    let compiled =
        run(Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source), TIME_LIMIT);
    if compiled.status != 0 {
        return skipped(&format!("nothing can be linked statically here: {}", compiled.stderr));
    }
    refused(&overspill_run(&["--", shown(&program)]), 125, &["statically linked"]);
}

#[test]
fn a_set_user_id_program() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let room = SCRATCH.room("setuid");
    let program = if is_root() {
        let program = room.path.join("setuid");
        fs::copy(SCRATCH.program("fills.c"), &program).unwrap();
        chown(&program, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
        program
    } else {
        let setuid = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|file| file.mode() & 0o4000 != 0 && file.uid() == 0)
        };
        match ["/usr/bin/su", "/bin/su", "/usr/bin/passwd", "/usr/bin/sudo"]
            .map(PathBuf::from)
            .into_iter()
            .find(setuid)
        {
            Some(program) => program,
            None => {
                return skipped("there is no set-user-ID program here, and only root can make one");
            }
        }
    };
    let mount = rustix::fs::statvfs(&program).unwrap();
    if mount.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID) {
        return skipped(&format!("{} is mounted with nosuid", program.display()));
    }
    refused(&overspill_run(&["--", shown(&program)]), 125, &["set-user-ID", "LD_PRELOAD"]);
}

#[test]
fn a_program_of_32_bits() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let room = SCRATCH.room("narrow");
    let program = room.path.join("narrow");
    let mut bytes = fs::read(SCRATCH.program("fills.c")).unwrap();
    // EI_CLASS: ELFCLASS32.
    bytes[4] = 1;
    fs::write(&program, bytes).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    refused(&overspill_run(&["--", shown(&program)]), 125, &["32-bit"]);
}

// ---- Swap that cannot be used ----

#[test]
fn swap_that_cannot_be_used() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let room = SCRATCH.room("noswap");
    let missing = room.path.join("missing");
    let refusal = |swap: &str, part| {
        refused(&overspill_run(&["--swap", swap, "--", "true"]), 125, &[swap, part])
    };
    refusal(shown(&missing), "name an existing directory");
    refusal("/dev/null", "neither a directory, a file nor a block device");
    let tmpfs = fs::read_to_string("/proc/mounts")
        .unwrap()
        .lines()
        .any(|mount| mount.starts_with("tmpfs /dev/shm "));
    if tmpfs {
        refusal("/dev/shm", "memory itself");
    } else {
        skipped("in part: /dev/shm is no tmpfs here");
    }
    let file = room.path.join("file");
    private_file(&file);
    let too_large = format!("{}:4000T", shown(&file));
    refused(&overspill_run(&["--swap", &too_large, "--", "true"]), 125, &["give a smaller size"]);
}

#[test]
fn swap_that_is_read_only() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let room = SCRATCH.room("readonly");
    let dir = room.path.join("dir");
    fs::create_dir(&dir).unwrap();
    let mut command = if is_root() {
        // Permissions do not hold root back, a read-only mount does.
        let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" || exit 77; \
                      exec \"$0\" run --swap \"$1\" -- true";
        in_mount_namespace(script, &[overspill, &dir])
    } else {
        fs::set_permissions(&dir, Permissions::from_mode(0o555)).unwrap();
        let mut command = Command::new(overspill);
        command.args(["run", "--swap", shown(&dir), "--", "true"]);
        command
    };
    let outcome = run(clean(&mut command), TIME_LIMIT);
    if outcome.status == 77 {
        return skipped(&format!("nothing can be mounted here: {}", outcome.stderr));
    }
    refused(&outcome, 125, &["cannot make files in the swap directory", shown(&dir)]);
}

/// A shell script whose mounts nobody else sees and that are gone when it ends. It exits 77 where
/// it cannot mount.
fn in_mount_namespace(script: &str, args: &[&Path]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).args(args);
    command
}

// ---- Memory that cannot be held any more ----

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

#[test]
fn swap_that_is_too_small() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let room = SCRATCH.room("small");
    let fills = SCRATCH.program("fills.c");
    let report = room.path.join("stats.json");
    for (size, fits) in [("8M", false), ("80M", true)] {
        for fault in ["thread", "signal"] {
            let file = room.path.join(format!("{size}.{fault}"));
            private_file(&file);
            let swap = format!("{}:{size}", shown(&file));
            let args = [
                "--memory",
                "16M",
                "--swap",
                &swap,
                "--set",
                "compressed=0",
                "--fault",
                fault,
                "--stats-json",
            ];
            let outcome =
                overspill_run(&[&args[..], &[shown(&report), "--", shown(&fills), "64"]].concat());
            let statistics = Report::read(&report);
            statistics.check_budgets();
            if fits {
                assert_eq!(
                    (outcome.status, outcome.stderr.as_str()),
                    (0, ""),
                    "{}",
                    outcome.stdout
                );
            } else {
                out_of_room(&outcome);
                assert!(
                    statistics.total("oom_kill") > 0,
                    "the process that was killed is not counted"
                );
            }
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
    let (fills, report) = (SCRATCH.program("fills.c"), room.path.join("stats.json"));
    for (settings, baselines, fault) in [
        ("compressed=50", "", "thread"),
        ("compressed=90,zswap.incompressible=keep", "", "signal"),
        ("zswap.codec=none", "background=off", "thread"),
        ("zswap.codec=zstd", "zswap.keep=on", "signal"),
    ] {
        // Most of the budget can be used, also by pages that do not compress.
        for (mib, fits) in [("12", true), ("64", false)] {
            let args = [
                "--memory",
                "16M",
                "--no-swap",
                "--set",
                settings,
                "--fault",
                fault,
                "--stats-json",
                shown(&report),
            ];
            let args = [&args[..], &["--", shown(&fills), mib]].concat();
            let outcome = overspill_run_with(baselines, &args);
            let statistics = Report::read(&report);
            statistics.check_budgets();
            if fits {
                assert_eq!(
                    (outcome.status, outcome.stderr.as_str()),
                    (0, ""),
                    "{settings} {mib}: {}",
                    outcome.stdout
                );
            } else {
                out_of_room(&outcome);
                assert!(
                    statistics.total("oom_kill") > 0,
                    "the process that was killed is not counted"
                );
            }
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
        let outcome = overspill_run(&[&args[..], &["--", shown(&fills), "64"]].concat());
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
            let outcome = overspill_run(&[&args[..], &program].concat());
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
        let outcome = overspill_run(&args);
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

        let outcome = overspill_run(&[&args[..], &["child"]].concat());
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

// ---- Older kernels, users without rights ----

#[test]
fn a_kernel_without_userfaultfd() {
    let mut command = Command::new(binary(&SCRATCH));
    clean(&mut command).args(["run", "--", "true"]).env("OVERSPILL_SIMULATE", "no-uffd");
    refused(&run(&mut command, TIME_LIMIT), 125, &["userfaultfd", "CONFIG_USERFAULTFD"]);
    let mut command = Command::new(binary(&SCRATCH));
    clean(&mut command)
        .args(["run", "--fault", "thread", "--", "true"])
        .env("OVERSPILL_SIMULATE", "no-kernel-faults");
    refused(
        &run(&mut command, TIME_LIMIT),
        125,
        &["vm.unprivileged_userfaultfd=1", "CAP_SYS_PTRACE"],
    );
    command.env("OVERSPILL_SIMULATE", "no-kernel-fault");
    refused(&run(&mut command, TIME_LIMIT), 2, &["no-kernel-fault"]);
}

/// A thread takes over where faults cannot be served by signal, unless signals were asked for.
#[test]
fn a_c_library_that_cannot_be_changed() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let under = |fault: &str| {
        let mut command = Command::new(binary(&SCRATCH));
        clean(&mut command).args(["run", "--memory", "16M", "--no-swap", "--fault", fault, "--"]);
        command.arg(SCRATCH.program("mixed.c")).arg("20").env("OVERSPILL_SIMULATE", "no-patch");
        run(&mut command, TIME_LIMIT)
    };
    refused(&under("signal"), 125, &["--fault thread"]);
    let by_thread = under("thread");
    if by_thread.status != 0 {
        return skipped("a thread may not serve faults here");
    }
    let outcome = under("auto");
    assert!(
        outcome.status == 0 && outcome.stdout == by_thread.stdout && outcome.stderr.is_empty(),
        "{outcome:?}"
    );
}

/// A copy of the command and of a program where any user can reach them.
fn public_copy() -> Room {
    let path = std::env::temp_dir().join(format!("overspill-public.{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    let room = Room { path };
    let home = binary(&SCRATCH).parent().unwrap();
    let files = [
        binary(&SCRATCH).to_owned(),
        home.join("liboverspill_preload.so"),
        SCRATCH.program("mixed.c"),
    ];
    for file in files {
        fs::copy(&file, room.path.join(file.file_name().unwrap()))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    fs::set_permissions(&room.path, Permissions::from_mode(0o755)).unwrap();
    room
}

#[test]
fn a_user_without_rights() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let room = public_copy();
    let mut any_worked = false;
    for fault in ["thread", "signal", "auto"] {
        let mut command = if is_root() {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
                .arg(room.path.join("overspill"));
            command
        } else {
            Command::new(room.path.join("overspill"))
        };
        clean(&mut command).args(["run", "--memory", "32M", "--no-swap", "--fault", fault, "--"]);
        command
            .arg(room.path.join("mixed_c"))
            .arg("20")
            .current_dir("/")
            .env("TMPDIR", "/tmp")
            .env_remove("XDG_RUNTIME_DIR");
        let outcome = run(&mut command, TIME_LIMIT);
        if outcome.status == 0 {
            assert!(
                outcome.stdout.ends_with("all ok\n") && outcome.stderr.is_empty(),
                "{outcome:?}"
            );
            any_worked = true;
            continue;
        }
        assert!(fault != "auto" || !any_worked, "auto takes what is allowed: {outcome:?}");
        refused(&outcome, 125, &[]);
        let remedies = [
            "/dev/userfaultfd",
            "vm.unprivileged_userfaultfd",
            "CAP_SYS_PTRACE",
            "seccomp",
            "CONFIG_USERFAULTFD",
        ];
        assert!(
            remedies.iter().any(|remedy| outcome.stderr.contains(remedy)),
            "what to change? {}",
            outcome.stderr
        );
    }
}
