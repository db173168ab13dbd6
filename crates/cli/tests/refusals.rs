//! What `overspill run` refuses before the program starts: the exit status, and one sentence that
//! says what to do.

mod common;

use common::{bare, compile, overspill, runs_here, scratch, stderr, stdout};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What came back from a run that must not have started its program.
fn refused(mut command: Command, status: i32, part: &str) {
    let done = command.output().unwrap();
    let text = stderr(&done);
    assert_eq!(done.status.code(), Some(status), "{text}");
    assert!(text.contains(part), "'{part}' in: {text}");
    assert!(done.stdout.is_empty(), "the program ran: {}", stdout(&done));
    if status != 2 {
        assert!(
            text.starts_with("overspill: ") && text.lines().count() == 1,
            "one sentence: {text}"
        );
    }
}

fn run(command: Option<Command>, args: &[&str]) -> Option<Command> {
    if !runs_here() {
        return None;
    }
    command.map(|mut command| {
        command.arg("run").args(args);
        command
    })
}

/// A copy of a program that prints, so that a run of it would show.
fn program(name: &str, mode: u32) -> PathBuf {
    let path = scratch().join(name);
    fs::copy(fs::canonicalize("/bin/echo").unwrap(), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn mistakes_on_the_command_line_are_usage_errors() {
    for (args, part) in [
        (&["run"][..], "CMD"),
        (
            &["run", "--memory", "1M", "--", "echo", "x"],
            "a budget of 1 MiB is too small: the smallest possible is 4 MiB",
        ),
        (
            &["run", "--memory", "3T", "--", "echo", "x"],
            "a budget of 3 TiB is too large: the largest possible is 2 TiB",
        ),
        (&["run", "--memory", "much", "--", "echo", "x"], "not a size"),
        (&["run", "--set", "colour=red", "--", "echo", "x"], "no setting 'colour'"),
        (&["run", "--set", "folio", "--", "echo", "x"], "KEY=VALUE"),
        (&["run", "--fault", "magic", "--", "echo", "x"], "thread"),
        (&["run", "--swap", "/tmp:4X", "--", "echo", "x"], "not a size"),
        (&["run", "--swap", "/var/tmp", "--no-swap", "--", "echo", "x"], "exclude each other"),
        (&["run", "--nonsense", "--", "echo", "x"], "--nonsense"),
        (&["stat", "0"], "from 0.1 to 86400"),
        (&["stat", "--json", "--latency"], "--latency"),
        (&["reclaim", "--pid", "1", "12"], "nothing smaller than a page"),
        (&["swapon", "/var/tmp"], "--pid"),
        (&["swapon", "--pid", "1", "/var/tmp:4X"], "not a size"),
        (&["swapon", "--pid", "1", "-p", "40000", "/var/tmp"], "40000"),
        (&["swapon", "--show=COLOUR"], "choose from NAME, TYPE, SIZE, USED, PRIO, UUID, LABEL"),
        (&["swapon", "--json", "--raw"], "--raw"),
        (&["walk"], "walk"),
        (&[], "Usage"),
    ] {
        let mut command = bare();
        command.args(args);
        refused(command, 2, part);
    }
}

#[test]
fn swapoff_has_the_statuses_of_swapoff() {
    for (args, part) in [
        (&["--pid", "1"][..], "PATH"),
        (&["-a"], "--pid"),
        (&["--pid", "1", "-a", "/x"], "-a"),
        (&["--pid", "0", "/x"], "0"),
    ] {
        let done = bare().arg("swapoff").args(args).output().unwrap();
        let text = stderr(&done);
        assert!(
            done.status.code() == Some(16) && text.contains(part) && text.contains("error: "),
            "{text}"
        );
    }
    let help = bare().args(["swapoff", "--help"]).output().unwrap();
    assert!(help.status.success() && stdout(&help).contains("32 if all failed"));
    let nobody = ((1 << 22) + 1).to_string();
    let mut command = bare();
    command.args(["swapoff", "--pid", &nobody, "/x"]);
    refused(command, 4, "there is no process");
}

#[test]
fn there_is_no_job_to_look_at_or_to_change() {
    let empty = scratch().join("no-jobs");
    fs::create_dir_all(&empty).unwrap();
    fs::set_permissions(&empty, fs::Permissions::from_mode(0o700)).unwrap();
    let nobody = ((1 << 22) + 1).to_string();
    for (args, part) in [
        (&["stat"][..], "no job of yours runs: start one with `overspill run`"),
        (&["stat", "--pid", &nobody, "--json", "1"], "there is no process"),
        (&["reclaim", "--pid", &nobody, "1M"], "there is no process"),
        (&["set", "--pid", &nobody, "--memory", "8M"], "there is no process"),
        (&["swapon", "--show"], "no job of yours runs"),
        (&["swapon", "--pid", &nobody, "/var/tmp"], "there is no process"),
    ] {
        let mut command = bare();
        command.args(args).env("OVERSPILL_RUNTIME_DIR", &empty);
        refused(command, 1, part);
    }
}

#[test]
fn swap_that_cannot_be_used_is_refused() {
    let nowhere = ["--swap", "/no/such/place", "--", "echo", "x"];
    let Some(command) = run(overspill(), &nowhere) else { return };
    refused(command, 125, "name an existing directory");
    refused(
        run(overspill(), &["--swap", "/dev/null", "--", "echo", "x"]).unwrap(),
        125,
        "neither a directory",
    );
    refused(
        run(overspill(), &["--swap", "/var/tmp:9000T", "--", "echo", "x"]).unwrap(),
        125,
        "give a smaller size",
    );
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    if mounts.lines().any(|line| line.contains(" /dev/shm tmpfs ")) {
        refused(
            run(overspill(), &["--swap", "/dev/shm", "--", "echo", "x"]).unwrap(),
            125,
            "memory itself",
        );
    } else {
        eprintln!("SKIPPED: /dev/shm is not a tmpfs here");
    }
}

#[test]
fn programs_that_are_not_there_or_not_executable() {
    let Some(command) = run(overspill(), &["--", "no-such-program", "x"]) else { return };
    refused(command, 127, "not found in PATH");
    refused(run(overspill(), &["--", "/no/such/program"]).unwrap(), 127, "does not exist");
    refused(run(overspill(), &["--", "/"]).unwrap(), 126, "is a directory");
    let plain = program("plain", 0o644);
    refused(run(overspill(), &["--", plain.to_str().unwrap(), "x"]).unwrap(), 126, "chmod +x");
    let script = scratch().join("orphan");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    refused(
        run(overspill(), &["--", script.to_str().unwrap()]).unwrap(),
        127,
        "'/no/such/interpreter'",
    );
}

#[test]
fn static_programs() {
    let source = "#include <stdio.h>\nint main(void) { puts(\"ran\"); }";
    for flags in [&["-static"][..], &["-static-pie"]] {
        let Some(path) = compile("static", source, flags) else { continue };
        let args = ["--fault", "thread", "--", path.to_str().unwrap()];
        let Some(command) = run(overspill(), &args) else { return };
        refused(command, 125, "with faults by signal only: use --fault signal, or a dynamically");
        // The kernel executes an interpreter by itself.
        let script = scratch().join("static-script");
        fs::write(&script, format!("#!{}\n", path.display())).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let Some(command) = run(overspill(), &["--", script.to_str().unwrap()]) else { return };
        refused(command, 125, "with the script as its argument");
    }
}

#[test]
fn programs_of_another_architecture() {
    let path = program("small", 0o755);
    let mut bytes = fs::read(&path).unwrap();
    bytes[4] = 1; // ELFCLASS32
    bytes[18..20].copy_from_slice(&3u16.to_le_bytes()); // EM_386
    fs::write(&path, bytes).unwrap();
    let Some(command) = run(overspill(), &["--", path.to_str().unwrap(), "x"]) else { return };
    refused(command, 125, "is a 32-bit x86 program");
}

#[test]
fn programs_that_switch_their_user() {
    // A file left by an earlier run has the other owner.
    let _ = fs::remove_file(scratch().join("switching"));
    let path = program("switching", 0o755);
    let stranger = if rustix::process::geteuid().is_root() { 65534 } else { 0 };
    if let Err(error) = chown(&path, Some(stranger), None) {
        eprintln!("SKIPPED: only root can give a file to another user: {error}");
        return;
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    let Some(command) = run(overspill(), &["--", path.to_str().unwrap(), "x"]) else { return };
    let done = Command::new("findmnt").args(["-no", "OPTIONS", "-T"]).arg(&path).output();
    if done.is_ok_and(|done| stdout(&done).contains("nosuid")) {
        eprintln!("SKIPPED: the build directory is mounted nosuid");
        return;
    }
    refused(command, 125, "is set-user-ID");
}

#[test]
fn a_library_that_is_missing_or_none() {
    if !runs_here() {
        return;
    }
    let lone = scratch().join("lone");
    fs::create_dir_all(&lone).unwrap();
    let copy = lone.join("overspill");
    // A link, not a copy: a file just written may still be open in a child that another test is
    // starting.
    let _ = fs::remove_file(&copy);
    fs::hard_link(env!("CARGO_BIN_EXE_overspill"), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args(["run", "--memory", "64M", "--", "echo", "x"]).env_remove("OVERSPILL_PRELOAD");
    refused(command, 125, "liboverspill_preload.so is missing");
    let mut command = bare();
    command.env("OVERSPILL_PRELOAD", "/etc/passwd").args(["run", "--", "echo", "x"]);
    refused(command, 125, "not a shared library");
}

#[test]
fn kernels_and_users_without_userfaultfd() {
    let simulate = |what: &str, args: &[&str]| {
        let mut command = overspill()?;
        command.env("OVERSPILL_SIMULATE", what).arg("run").args(args);
        Some(command)
    };
    let Some(command) = simulate("no-uffd", &["--", "echo", "x"]) else { return };
    refused(command, 125, "CONFIG_USERFAULTFD=y");
    refused(
        simulate("no-uffd", &["--fault", "signal", "--", "echo", "x"]).unwrap(),
        125,
        "CONFIG_USERFAULTFD=y",
    );
    refused(simulate("no-such-thing", &["--", "echo", "x"]).unwrap(), 2, "no-uffd");
    if !runs_here() {
        return;
    }
    let command = simulate("no-kernel-faults", &["--fault", "thread", "--", "echo", "x"]).unwrap();
    refused(command, 125, "sysctl vm.unprivileged_userfaultfd=1");
    for fault in ["auto", "signal"] {
        let done = simulate("no-kernel-faults", &["--fault", fault, "--", "echo", "x"])
            .unwrap()
            .output()
            .unwrap();
        assert_eq!(
            (done.status.code(), stdout(&done).as_str()),
            (Some(0), "x\n"),
            "{}",
            stderr(&done)
        );
    }
}

#[test]
fn a_user_without_rights_is_served_by_signal_and_told_what_a_thread_needs() {
    if !runs_here() {
        return;
    }
    let Some(library) = common::stand_in() else { return };
    let as_nobody = |program: &str, args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", program]);
        command.args(args).env("OVERSPILL_PRELOAD", library);
        command
    };
    // A program that it executes says more than its own exec, which setpriv makes with rights left.
    let can_read = as_nobody("test", &["-r", library.to_str().unwrap()]).status();
    if !can_read.is_ok_and(|status| status.success()) {
        eprintln!(
            "SKIPPED: the tests cannot switch to user nobody, or it cannot reach the build \
             directory"
        );
        return;
    }
    let permitted = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd")
        .is_ok_and(|text| text.trim() == "1");
    let device = fs::metadata("/dev/userfaultfd").is_ok_and(|m| m.mode() & 0o6 == 0o6);
    if permitted || device {
        eprintln!("SKIPPED: this machine lets every user serve kernel faults");
        return;
    }
    let overspill_as_nobody = |args: &[&str]| {
        let args = [&["run", "--memory", "64M"], args].concat();
        as_nobody(env!("CARGO_BIN_EXE_overspill"), &args)
    };
    let by_thread = overspill_as_nobody(&["--fault", "thread", "--", "echo", "x"]);
    refused(by_thread, 125, "sysctl vm.unprivileged_userfaultfd=1");
    if Path::new("/var/tmp").is_dir() {
        let done = overspill_as_nobody(&["--", "echo", "x"]).output().unwrap();
        assert_eq!(stdout(&done), "x\n", "{}", stderr(&done));
    }
}
