//! Programs must not notice overspill: each runs natively and under it, and everything to be seen
//! is compared.
//!
//! The programs are in `tests/semantics/`. To add one, write it and add its line to `programs!` and
//! `signal_programs!` below. Not among the latter is the one that uses io_uring, which signal
//! delivery does without (uring.c); not among the former the one whose calls only signal delivery
//! sees (changed.c).

use overspill_tests::stats::Report;
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill, process, skipped};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// Runs `tests/semantics/SOURCE` natively and under `overspill run`, and compares.
fn same_as_native(source: &str, fault: &str) {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    if source == "elsewhere.c" && !others_can_reach(overspill) {
        return skipped("other users cannot read the library where it was built");
    }
    same_by(Command::new(overspill), source, fault, &[]);
}

/// Whether every user can read what lies beside a file.
fn others_can_reach(file: &Path) -> bool {
    let opens = |folder: &Path| folder.metadata().is_ok_and(|folder| folder.mode() & 0o1 != 0);
    file.ancestors().skip(1).all(opens)
}

/// The same with some options, by a command that runs overspill with the arguments that it is
/// given.
fn same_by(mut command: Command, source: &str, fault: &str, options: &[&str]) {
    let native = SCRATCH.native(source);
    let outcome = &native.outcome;
    assert!(
        outcome.status == 0 && !outcome.stdout.contains("WRONG"),
        "{source} is wrong natively: {outcome:?}"
    );
    let left_out = outcome.stdout.starts_with("SKIP");
    if left_out || outcome.stdout.contains("left out") {
        skipped(&format!("in part at least: {source} says\n{}", outcome.stdout));
    }

    let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    let options_name = options.concat().replace(":", ".");
    let room = SCRATCH.room(&format!("{source}.{fault}.{name}{options_name}"));
    let report = room.path.join("stats.json");
    command.args(["run", "--memory", "16M", "--fault", fault, "--swap"]).arg(&room.path);
    command
        .arg("--stats-json")
        .arg(&report)
        .args(options)
        .arg("--")
        .arg(SCRATCH.program(source))
        .current_dir(&room.path);
    // What a run that had to be killed leaves of its statistics goes with the room.
    command.env("XDG_RUNTIME_DIR", &room.path);
    let under = process::run(clean(&mut command), TIME_LIMIT);

    let stderr = &under.stderr;
    assert_eq!(
        under.stdout, outcome.stdout,
        "standard output differs (left: under overspill)\n{stderr}"
    );
    assert_eq!(under.status, outcome.status, "exit status differs\n{stderr}");
    assert_eq!(under.stderr_without_unmanaged(), outcome.stderr, "standard error differs");
    assert_eq!(room.verdict(), native.verdict, "the verdict of the daemon differs");
    Report::read(&report).check(!left_out);
}

/// No call that takes addresses is left out of pointers.c without a word, and none that changes
/// mappings out of changed.c.
#[test]
fn every_call_with_addresses_is_handed_all_kinds_of_memory() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        let calls = words.filter_map(|word| word.strip_prefix("SYS_"));
        calls.map(str::to_ascii_lowercase).collect()
    };
    let table = read("../crates/os/src/seccomp/arguments.rs");
    let (before, groups) = table.split_once("const GROUPS").unwrap();
    let (_, changes) = before.split_once("const CHANGES").unwrap();
    let changed = words(&read("semantics/changed.c"));
    let missing: Vec<_> = words(changes).difference(&changed).cloned().collect();
    assert!(words(changes).len() == 10 && missing.is_empty(), "{missing:?}");
    // Those of the first group have none.
    let (_, with_addresses) = groups.split_once("]),").unwrap();
    let calls = words(with_addresses);
    let missing: Vec<_> =
        calls.difference(&words(&read("semantics/pointers.c"))).cloned().collect();
    assert!(calls.len() > 200 && missing.is_empty(), "{missing:?}");
}

macro_rules! programs {
    ($($name:ident => $source:literal),* $(,)?) => {
        $(#[test] fn $name() { same_as_native($source, "thread"); })*
    };
}

macro_rules! signal_programs {
    ($($name:ident => $source:literal),* $(,)?) => {
        /// The same with faults served by the thread that meets them.
        mod signal {
            use super::same_as_native;
            $(#[test] fn $name() { same_as_native($source, "signal"); })*
        }
    };
}

programs! {
    advise => "advise.c",
    address_limit => "address_limit.c",
    aio => "aio.c",
    arrays => "arrays.c",
    asynchronous => "asynchronous.c",
    blocking => "blocking.c",
    bridge => "bridge.c",
    brk => "brk.c",
    by_number => "by_number.c",
    calls => "calls.c",
    clones => "clones.c",
    closing => "closing.c",
    code => "code.c",
    constants => "constants.c",
    coroutines => "coroutines.c",
    credentials => "credentials.c",
    daemon => "daemon.c",
    deepbind => "deepbind.c",
    descriptors => "descriptors.c",
    direct => "direct.c",
    dlopen => "dlopen.c",
    dormant => "dormant.c",
    dumped => "dumped.c",
    dumps => "dumps.c",
    elsewhere => "elsewhere.c",
    ends => "ends.c",
    execute => "execute.c",
    fork_direct => "fork_direct.c",
    fork_evicted => "fork_evicted.c",
    fork_handlers => "fork_handlers.c",
    fork_shares => "fork_shares.c",
    forkstorm => "forkstorm.c",
    futex => "futex.c",
    grows => "grows.c",
    growsdown => "growsdown.c",
    guard => "guard.c",
    heap => "heap.c",
    heap_cpp => "heap_cpp.cc",
    holes => "holes.c",
    inline => "inline.c",
    insists => "insists.c",
    io => "io.c",
    keys => "keys.c",
    limits => "limits.c",
    lock => "lock.c",
    low => "low.c",
    many_descriptors => "many_descriptors.c",
    many_maps => "many_maps.c",
    masks => "masks.c",
    mixed => "mixed.c",
    mremap => "mremap.c",
    mremap_beside => "mremap_beside.c",
    nested => "nested.c",
    no_uring => "no_uring.c",
    older => "older.c",
    own_malloc => "own_malloc.c",
    own_stack => "own_stack.c",
    own_userfaultfd => "own_userfaultfd.c",
    pointers => "pointers.c",
    poked => "poked.c",
    privileges => "privileges.c",
    protect => "protect.c",
    random_maps => "random_maps.c",
    remote => "remote.c",
    restarted => "restarted.c",
    robust => "robust.c",
    sandbox => "sandbox.c",
    seal => "seal.c",
    signals => "signals.c",
    spawn => "spawn.c",
    stack_signals => "stack_signals.c",
    stdio => "stdio.c",
    syscalls => "syscalls.c",
    terabyte => "terabyte.c",
    thread_local => "thread_local.c",
    threads => "threads.c",
    unmap => "unmap.c",
    unread => "unread.c",
    uring => "uring.c",
    wild => "wild.c",
    without => "without.c",
    words => "words.c",
    wrapped => "wrapped.c",
    zero_device => "zero_device.c",
}

signal_programs! {
    advise => "advise.c",
    address_limit => "address_limit.c",
    aio => "aio.c",
    arrays => "arrays.c",
    asynchronous => "asynchronous.c",
    blocking => "blocking.c",
    bridge => "bridge.c",
    brk => "brk.c",
    by_number => "by_number.c",
    calls => "calls.c",
    changed => "changed.c",
    clones => "clones.c",
    closing => "closing.c",
    code => "code.c",
    constants => "constants.c",
    coroutines => "coroutines.c",
    credentials => "credentials.c",
    daemon => "daemon.c",
    deepbind => "deepbind.c",
    descriptors => "descriptors.c",
    direct => "direct.c",
    dlopen => "dlopen.c",
    dormant => "dormant.c",
    dumped => "dumped.c",
    dumps => "dumps.c",
    elsewhere => "elsewhere.c",
    ends => "ends.c",
    execute => "execute.c",
    fork_direct => "fork_direct.c",
    fork_evicted => "fork_evicted.c",
    fork_handlers => "fork_handlers.c",
    fork_shares => "fork_shares.c",
    forkstorm => "forkstorm.c",
    futex => "futex.c",
    grows => "grows.c",
    growsdown => "growsdown.c",
    guard => "guard.c",
    heap => "heap.c",
    heap_cpp => "heap_cpp.cc",
    holes => "holes.c",
    inline => "inline.c",
    insists => "insists.c",
    io => "io.c",
    keys => "keys.c",
    limits => "limits.c",
    lock => "lock.c",
    low => "low.c",
    many_descriptors => "many_descriptors.c",
    many_maps => "many_maps.c",
    masks => "masks.c",
    mixed => "mixed.c",
    mremap => "mremap.c",
    mremap_beside => "mremap_beside.c",
    nested => "nested.c",
    no_uring => "no_uring.c",
    older => "older.c",
    own_malloc => "own_malloc.c",
    own_stack => "own_stack.c",
    own_userfaultfd => "own_userfaultfd.c",
    pointers => "pointers.c",
    poked => "poked.c",
    privileges => "privileges.c",
    protect => "protect.c",
    random_maps => "random_maps.c",
    remote => "remote.c",
    restarted => "restarted.c",
    robust => "robust.c",
    sandbox => "sandbox.c",
    seal => "seal.c",
    signals => "signals.c",
    spawn => "spawn.c",
    stack_signals => "stack_signals.c",
    stdio => "stdio.c",
    syscalls => "syscalls.c",
    terabyte => "terabyte.c",
    thread_local => "thread_local.c",
    threads => "threads.c",
    unmap => "unmap.c",
    unread => "unread.c",
    wild => "wild.c",
    without => "without.c",
    words => "words.c",
    wrapped => "wrapped.c",
    zero_device => "zero_device.c",
}

/// A process of which the job knows nothing writes into one of its: nothing is lost where pages
/// leave by moving only.
#[test]
fn writes_from_outside_of_the_job() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let native = SCRATCH.native("remote.c").outcome;
    if native.stdout.contains("left out") {
        return skipped(&native.stdout);
    }
    for fault in ["thread", "signal"] {
        let room = SCRATCH.room(&format!("remote.{fault}.outside"));
        let control = room.path.join("control");
        std::fs::write(&control, [0; 4096]).expect("the room is writable");
        let program = SCRATCH.program("remote.c");
        let mut served = Command::new(overspill);
        served.args(["run", "--memory", "16M", "--fault", fault, "--set", "out=move", "--"]);
        served.arg(&program).arg("serve").arg(&control).env("XDG_RUNTIME_DIR", &room.path);
        let mut writes = Command::new(&program);
        writes.arg("write").arg(&control);
        let (served, written) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| process::run(clean(&mut writes), TIME_LIMIT));
            (process::run(clean(&mut served), TIME_LIMIT), writer.join().expect("in time"))
        });
        assert!(served.status == 0 && served.stdout.ends_with("all ok\n"), "{served:?}");
        assert_eq!(written.status, 0, "{written:?}");
    }
}

/// A file in memory is made like any other where the program has used up its descriptors.
#[test]
fn descriptors_with_a_device_in_memory() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    for fault in ["thread", "signal"] {
        same_by(Command::new(overspill), "descriptors.c", fault, &["--swap", "ram:64M"]);
    }
}

/// Whichever way a descriptor for direct I/O comes, it is seen, so that no page leaves while a
/// device writes to it. By signal the program's own memory is never handed to a device.
#[test]
fn doors_to_direct_io() {
    const DOORS: [&str; 9] = [
        "mkostemp",
        "mkostemps64",
        "recvmsg",
        "recvmmsg",
        "syscall-recvmsg",
        "pidfd_getfd",
        "openat2",
        "function-openat2",
        "fcntl",
    ];
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let program = SCRATCH.program("doors.c");
    let seen = |door: &str| {
        let room = SCRATCH.room(&format!("doors.{door}"));
        let report = room.path.join("stats.json");
        let mut command = Command::new(overspill);
        command.args(["run", "--memory", "16M", "--fault", "thread", "--swap"]).arg(&room.path);
        command.arg("--stats-json").arg(&report).arg("--").arg(&program).arg(door);
        command.current_dir(&room.path).env("XDG_RUNTIME_DIR", &room.path);
        let outcome = process::run(clean(&mut command), TIME_LIMIT);
        assert_eq!(outcome.status, 0, "{door}: {outcome:?}");
        let left_out = outcome.stdout.contains("left out");
        (!left_out).then(|| Report::read(&report).total("dma_seen") > 0)
    };
    match seen("none") {
        None => return skipped("there is no direct I/O where the tests run"),
        Some(seen) => assert!(!seen, "it is seen where nothing can be"),
    }
    let missed: Vec<_> = DOORS.iter().filter(|door| seen(door) != Some(true)).collect();
    assert!(missed.is_empty(), "not seen: {missed:?}");
}

/// A process that reclaims only when it must still shrinks before it forks.
#[test]
fn forks_without_reclaim_ahead_of_need() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    for fault in ["thread", "signal"] {
        let mut alone = Command::new("env");
        alone.arg("OVERSPILL_BASELINES=background=off").arg(overspill);
        same_by(alone, "forkstorm.c", fault, &[]);
    }
}

/// The engine's descriptors take no numbers of a program that may have as many as its hard limit
/// allows.
#[test]
fn the_soft_limit_of_files_is_the_hard_one() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    for fault in ["thread", "signal"] {
        let mut limited = Command::new("sh");
        limited.args(["-c", r#"ulimit -n 100; exec "$0" "$@""#]).arg(overspill);
        same_by(limited, "descriptors.c", fault, &[]);
    }
}

/// Processes that do little are not managed, and nothing is said of them; one among them that does
/// more is.
#[test]
fn small_processes_have_no_engine() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let many = "i=0; while [ $i -lt 60 ]; do /bin/true; (exit 0); i=$((i+1)); done; ";
    for (fault, more, processes) in
        [("signal", "", 0), ("thread", "", 0), ("signal", "\"$0\" $1", 1)]
    {
        let room = SCRATCH.room(&format!("small.{fault}.{processes}"));
        let report = room.path.join("stats.json");
        let mut command = Command::new(overspill);
        command.args(["run", "--memory", "64M", "--no-swap", "--fault", fault, "--stats-json"]);
        command.arg(&report).args(["--", "sh", "-c", &format!("{many}{more}")]);
        command.arg(SCRATCH.program("fills.c")).arg("8");
        command.env("XDG_RUNTIME_DIR", &room.path);
        let outcome = process::run(clean(&mut command), TIME_LIMIT);
        assert!(outcome.status == 0 && outcome.stderr.is_empty(), "{outcome:?}");
        assert_eq!(Report::read(&report).processes(), processes, "{fault}");
    }
}
