//! The torture in short, and that it finds what is wrong.

use overspill_tests::command::in_mount_namespace;
use overspill_tests::process::{Outcome, run};
use overspill_tests::{Scratch, clean, is_root, overspill, skipped};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));
const LIMIT: Duration = Duration::from_secs(400);

/// `overspill-torture`; none where nothing can be run.
fn program() -> Option<&'static Path> {
    overspill(&SCRATCH)?;
    let program = Path::new(env!("CARGO_BIN_EXE_overspill-torture"));
    if !program.with_file_name("overspill").exists() {
        skipped("the command is not built beside the torture: cargo build --workspace");
        return None;
    }
    Some(program)
}

/// `overspill-torture ARGS`; none where nothing can be run.
fn torture(name: &str, args: &[&str]) -> Option<Outcome> {
    let program = program()?;
    let room = SCRATCH.room(name);
    let mut command = Command::new(program);
    clean(&mut command).args(args).arg("--dir").arg(&room.path);
    let outcome = run(&mut command, LIMIT);
    leaves_nothing(&room.path);
    Some(outcome)
}

fn leaves_nothing(directory: &Path) {
    let left = fs::read_dir(directory).map_or(0, Iterator::count);
    assert_eq!(left, 0, "{}: it leaves nothing behind", directory.display());
}

#[test]
fn everything_that_can_happen_does_and_nothing_is_wrong() {
    let args = ["--seconds", "12", "--seed", "20261125", "--no-reduce"];
    let Some(outcome) = torture("everything", &args) else { return };
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert_eq!(outcome.stdout.matches("nothing found").count(), 2, "{outcome:?}");
}

/// Many processes that fork, and children that are killed at any instruction.
#[test]
fn a_tree_that_is_killed_leaves_nothing_behind() {
    let args = "--seconds 8 --seed 7 --memory 160M --processes 12 --threads 1 --size 16M \
                --only touch,map,fork,slay,kill,stop --no-reduce --json";
    let args: Vec<_> = args.split_whitespace().collect();
    let Some(outcome) = torture("tree", &args) else { return };
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert!(!outcome.stdout.contains("\"killed\":0,"), "nobody was killed: {outcome:?}");
}

/// Disks that are full for a while, and writes that fail: each page stays where it is, nobody is
/// killed for want of room, and it all goes on afterwards.
#[test]
fn disks_that_are_full_and_writes_that_fail_lose_nothing() {
    let args = "--seconds 8 --seed 5 --memory 24M --fault signal --only touch,map,fork,full,writes \
                --no-reduce --json";
    let args: Vec<_> = args.split_whitespace().collect();
    let Some(outcome) = torture("full", &args) else { return };
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert!(!outcome.stdout.contains("\"write_errors\":0,"), "no write failed: {outcome:?}");
}

/// The same with a file system that is full itself.
#[test]
fn a_file_system_that_is_full_for_a_while_loses_nothing() {
    let Some(program) = program() else { return };
    if !is_root() {
        return skipped("only root can mount a file system");
    }
    let (room, work) = (SCRATCH.room("ext4"), SCRATCH.room("ext4-work"));
    let (image, mounted) = (room.path.join("image"), room.path.join("mounted"));
    fs::create_dir(&mounted).unwrap();
    File::create(&image).and_then(|file| file.set_len(512 << 20)).unwrap();
    let made = run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image), LIMIT);
    assert_eq!(made.status, 0, "{made:?}");
    let args = "--seconds 8 --seed 5 --memory 24M --fault thread --only touch,map,fork,full";
    let script = format!(
        "mount -o loop \"$1\" \"$2\" || exit 77; \
         \"$0\" {args} --no-reduce --swap \"$2\" --dir \"$3\"; status=$?; \
         ls \"$2\"; umount \"$2\" || umount -l \"$2\"; exit $status"
    );
    let args: [&Path; 4] = [program, &image, &mounted, &work.path];
    let outcome = run(clean(&mut in_mount_namespace(&script, &args)), LIMIT);
    if outcome.status == 77 {
        return skipped(&format!("no loop device can be mounted here: {}", outcome.stderr));
    }
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert!(outcome.stdout.ends_with("nothing found\nlost+found\n"), "{outcome:?}");
    leaves_nothing(&work.path);
}

#[test]
fn a_wrong_byte_is_found_and_told_in_few_words() {
    let args = ["--seconds", "20", "--seed", "3", "--fault", "signal", "--tries", "1"];
    let args = [&args[..], &["--only", "touch,map,heap,break,budget"]].concat();
    let Some(outcome) = torture("wrong", &args) else { return };
    assert_eq!(outcome.status, 1, "{outcome:?}");
    let again = outcome.stdout.lines().find(|line| line.starts_with("again: ")).unwrap_or("");
    assert!(again.contains("--seed 3 ") && again.contains("break"), "{outcome:?}");
    assert!(again.contains("--processes 1 --threads 1"), "{outcome:?}");
    assert!(!again.contains("heap") && !again.contains("budget"), "{outcome:?}");
}

#[test]
fn a_thread_that_stands_still_is_found_with_what_it_waits_for() {
    let args = ["--seconds", "40", "--seed", "3", "--fault", "signal", "--patience", "3"];
    let args = [&args[..], &["--only", "touch,hang", "--no-reduce"]].concat();
    let Some(outcome) = torture("hang", &args) else { return };
    assert_eq!(outcome.status, 1, "{outcome:?}");
    assert!(outcome.stdout.contains("stands still"), "{outcome:?}");
    assert!(outcome.stdout.contains("call "), "{outcome:?}");
}

#[test]
fn a_process_that_outlives_its_job_is_found() {
    let args = ["--seconds", "2", "--seed", "3", "--fault", "signal", "--patience", "3"];
    let args = [&args[..], &["--only", "touch,leak", "--no-reduce"]].concat();
    let Some(outcome) = torture("leak", &args) else { return };
    assert_eq!(outcome.status, 1, "{outcome:?}");
    assert!(outcome.stdout.contains("left when the job had ended: process "), "{outcome:?}");
}

#[test]
fn bad_input_is_told() {
    let Some(outcome) = torture("swap", &["--swap", "/nowhere"]) else { return };
    assert_eq!(outcome.status, 3, "{outcome:?}");
    let Some(outcome) = torture("only", &["--only", "kill"]) else { return };
    assert_eq!(outcome.status, 3, "{outcome:?}");
    assert!(outcome.stderr.contains("the load has nothing to do"), "{outcome:?}");
    let Some(outcome) = torture("class", &["--only", "tuch"]) else { return };
    assert_eq!(outcome.status, 2, "{outcome:?}");
}
