//! What is refused before a program begins, in one sentence that says what to do.
//!
//! Exit statuses: 2 for a mistake on the command line, 125 if overspill itself fails, 126 if the
//! program cannot be executed, 127 if it was not found, else the program's own.

use overspill_tests::command::{in_mount_namespace, shown};
use overspill_tests::process::{Outcome, run};
use overspill_tests::scratch::{Room, private_file};
use overspill_tests::{Scratch, TIME_LIMIT, binary, clean, command, is_root, overspill, skipped};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// The user and group that own nothing.
const NOBODY: u32 = 65534;

fn overspill_run(args: &[&str]) -> Outcome {
    command::overspill_run(&SCRATCH, "", args)
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
    let outcome = command::overspill_run(&SCRATCH, "folio=1", &["--", "true"]);
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
    let by_thread = ["--fault", "thread", "--", shown(&program)];
    refused(&overspill_run(&by_thread), 125, &["statically linked"]);
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
fn public_copy(name: &str) -> Room {
    let name = format!("overspill-{name}.{}", std::process::id());
    let path = std::env::temp_dir().join(name);
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

/// Under a hard limit of address space that may not be raised an engine takes less of it, and says
/// so where that is too little.
#[test]
fn where_addresses_are_few() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let room = public_copy("few");
    let user = if is_root() { "setpriv --reuid=65534 --regid=65534 --clear-groups" } else { "" };
    let program = "import os, resource; b = bytearray(100 << 20)\n\
                   for i in range(0, len(b), 4096): b[i] = i % 251\n\
                   child = os.fork()\n\
                   if child == 0: os._exit(sum(b) % 200)\n\
                   print(sum(b) % 200 == os.waitpid(child, 0)[1] >> 8)\n\
                   print(resource.getrlimit(resource.RLIMIT_AS)[0] >> 10)\n\
                   try: b = bytearray(8 << 30)\n\
                   except MemoryError: print('no more')";
    let within = |kib: u64| {
        let script = format!(
            "ulimit -v {kib}; exec {user} {} run --memory 16M --no-swap -- python3 -c \"$0\"",
            shown(&room.path.join("overspill"))
        );
        let mut command = Command::new("sh");
        clean(&mut command).args(["-c", &script, program]).current_dir("/");
        run(command.env_remove("XDG_RUNTIME_DIR"), TIME_LIMIT)
    };
    let outcome = within(2_000_000);
    if outcome.status == 125 && outcome.stderr.contains("userfaultfd") {
        return skipped("this user gets no userfaultfd");
    }
    assert_eq!(outcome.stdout, "True\n2000000\nno more\n", "{outcome:?}");
    let sentence = "the address-space limit of 293.0 MiB leaves";
    refused(&within(300_000), 125, &[sentence, "ulimit -v unlimited"]);
}

/// A system that promises only memory that it has refuses tables too, and the sentence names that
/// setting. What the setting is told from says so here; that of the machine stays as it is.
#[test]
fn where_memory_is_promised_only_once() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    if !is_root() {
        return skipped("only root can mount a file over another");
    }
    let room = SCRATCH.room("strict");
    let setting = room.path.join("overcommit_memory");
    fs::write(&setting, "2\n").unwrap();
    let program = SCRATCH.program("fills.c");
    for fault in ["thread", "signal"] {
        // The window fits under the limit, with its tables it does not.
        let refusal = |mount: &str| {
            let script = format!(
                "{mount} || exit 77; ulimit -v 3000000; \
                 exec setpriv --bounding-set=-sys_resource \"$0\" run --memory 64M --no-swap \
                 --set window=2800M --fault {fault} -- \"$2\" 8"
            );
            let paths: [&Path; 3] = [overspill, &setting, &program];
            run(clean(&mut in_mount_namespace(&script, &paths)), TIME_LIMIT)
        };
        let outcome = refusal("mount --bind \"$1\" /proc/sys/vm/overcommit_memory");
        if outcome.status == 77 {
            return skipped(&format!("nothing can be mounted here: {}", outcome.stderr));
        }
        refused(&outcome, 125, &["vm.overcommit_memory=2", "2.7 GiB", "raise vm.overcommit_ratio"]);
        let lenient = fs::read("/proc/sys/vm/overcommit_memory").unwrap().trim_ascii() != b"2";
        if lenient {
            refused(&refusal("true"), 125, &["a window of 2.7 GiB", "ulimit -v"]);
        }
    }
}

#[test]
fn a_user_without_rights() {
    if overspill(&SCRATCH).is_none() {
        return;
    }
    let room = public_copy("user");
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
