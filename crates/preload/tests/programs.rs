//! Real programs with this library preloaded: without a pool (only the allocator changes) and with
//! one.
//!
//! The programs are in `tests/programs/`; each checks itself, prints one line and ends with status
//! 0. Programs that are compared with their native run are elsewhere, in the tests of the whole
//! command.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest that one program may take; natively they take a second or two.
const TIME_LIMIT: Duration = Duration::from_secs(90);

/// The library under test: the one beside the command that `OVERSPILL_BIN` names, or else built
/// into the target directory, as cargo builds no cdylib for the tests of its own package. It is
/// built with the rest of the workspace: what this package alone needs of the others' features
/// would be built once more.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        const NAME: &str = "liboverspill_preload.so";
        if let Some(command) = std::env::var_os("OVERSPILL_BIN") {
            let library = Path::new(&command).with_file_name(NAME);
            return std::fs::canonicalize(&library)
                .unwrap_or_else(|error| panic!("{}: {error}", library.display()));
        }
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
        let release = !cfg!(debug_assertions);
        let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--workspace", "--target-dir"])
            .arg(target)
            .args(release.then_some("--release"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(status.expect("cargo runs").success(), "the library could not be built");
        target.join(if release { "release" } else { "debug" }).join(NAME)
    })
}

/// Compiles a program, once, and returns its path.
fn compiled(source: &str) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(source)
        .with_extension(format!("{}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let compiler = if source.extension().is_some_and(|ext| ext == "cc") { "c++" } else { "cc" };
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = LOCK.lock().unwrap_or_else(|e| e.into_inner());
    if !out.exists() {
        let status = Command::new(compiler)
            .args(["-O1", "-g", "-pthread", "-o"])
            .arg(&out)
            .arg(&source)
            .status();
        assert!(
            status.expect("a C compiler is needed").success(),
            "{} does not compile",
            source.display()
        );
    }
    out
}

/// Whether pools can be made on this machine.
fn pools_work() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let output = run(Path::new("true"), &[], &[("OVERSPILL_MEMORY", "16M")]);
        if !output.status.success() {
            eprintln!("SKIPPED: {}", String::from_utf8_lossy(&output.stderr));
        }
        output.status.success()
    })
}

/// Runs a program with the library, and ends it when the time is up.
fn run(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut child = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", library())
        .envs(variables.iter().copied())
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let deadline = Instant::now() + TIME_LIMIT;
    while child.try_wait().expect("a child can be waited for").is_none()
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Either it has ended, or it is ended here and its status says so.
    let _ = child.kill();
    child.wait_with_output().expect("a child can be waited for")
}

fn succeeds(source: &str, arguments: &[&str], variables: &[(&str, &str)], expected: &str) {
    let output = run(&compiled(source), arguments, variables);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{source} with {variables:?}: {}\n{stderr}", output.status);
    assert_eq!(
        (String::from_utf8_lossy(&output.stdout).trim(), &*stderr),
        (expected, ""),
        "{source}"
    );
}

const AWAKE: (&str, &str) = ("OVERSPILL_BASELINES", "dormant=off");
const THREAD: &[(&str, &str)] = &[("OVERSPILL_MEMORY", "64M"), AWAKE];
const SIGNAL: &[(&str, &str)] =
    &[("OVERSPILL_MEMORY", "64M"), ("OVERSPILL_FAULT", "signal"), AWAKE];

#[test]
fn cancelled_threads_unwind_through_interposed_calls() {
    let fifo = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fifo");
    let made =
        Command::new("mkfifo").arg(&fifo).stderr(Stdio::null()).status().expect("mkfifo runs");
    assert!(made.success() || fifo.exists());
    succeeds("cancel.cc", &[], &[], "unwound 2");
    if pools_work() {
        succeeds("cancel.cc", &[], THREAD, "unwound 2");
        succeeds("cancel.cc", &[], SIGNAL, "unwound 2");
    }
}

#[test]
fn mappings_keep_their_meaning() {
    succeeds("mappings.c", &["passive"], &[], "done");
    if pools_work() {
        succeeds("mappings.c", &["managed"], THREAD, "done");
        succeeds("mappings.c", &["managed"], SIGNAL, "done");
    }
}

#[test]
fn children_can_allocate_whatever_other_threads_were_doing() {
    succeeds("forkstorm.c", &["500"], &[], "done");
}

#[test]
fn children_of_managed_programs_can_allocate_too() {
    if pools_work() {
        succeeds("forkstorm.c", &["30"], THREAD, "done");
    }
}

#[test]
fn a_mistake_in_the_settings_ends_the_program_with_a_sentence() {
    for (variable, value) in
        [("OVERSPILL_MEMORY", "12X"), ("OVERSPILL_MEMORY", "1"), ("OVERSPILL_SET", "nope=1")]
    {
        let output = run(Path::new("true"), &[], &[("OVERSPILL_MEMORY", "64M"), (variable, value)]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{variable}={value}: {stderr}");
        assert!(stderr.starts_with("overspill: ") && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn only_interposed_functions_are_exported() {
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().expect("nm runs");
    let symbols = String::from_utf8(output.stdout).expect("symbols are text");
    let names: Vec<_> = symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(
        ["malloc", "mmap", "fork", "open", "syscall"].map(|name| names.contains(&name))
            == [true, true, false, true, true]
    );
    let foreign = |name: &&&str| {
        ["mi_", "LZ4", "_ZN", "_R", "rust_", "overspill"].iter().any(|p| name.starts_with(p))
    };
    assert_eq!(names.iter().filter(foreign).collect::<Vec<_>>(), Vec::<&&str>::new());
}
