//! The C interface as C programs see it: the header, the library, each call, the examples.

use cbindgen::{Builder, Config};
use overspill_tests::process::{Outcome, run};
use overspill_tests::{Scratch, TIME_LIMIT, clean, repository, skipped};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, OnceLock};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));
/// What a program ends with where there is no userfaultfd.
const NO_USERFAULTFD: i32 = 77;
/// How large pools of the examples are, in MiB.
const EXAMPLES_MIB: &str = "16";

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command that has to succeed.
fn done(command: &mut Command) -> Outcome {
    let outcome = run(clean(command), TIME_LIMIT);
    assert_eq!(outcome.status, 0, "{command:?}: {}{}", outcome.stdout, outcome.stderr);
    outcome
}

/// The static library: beside the command that `OVERSPILL_BIN` names, or else built, with the rest
/// of the workspace, whose features are the same then.
fn archive() -> PathBuf {
    const NAME: &str = "liboverspill_c.a";
    if let Some(command) = std::env::var_os("OVERSPILL_BIN") {
        return fs::canonicalize(Path::new(&command).with_file_name(NAME))
            .unwrap_or_else(|error| panic!("{NAME} beside OVERSPILL_BIN: {error}"));
    }
    let target = SCRATCH.target_dir();
    let release = !cfg!(debug_assertions);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--workspace", "--target-dir"]).arg(target);
    let status = cargo.args(release.then_some("--release")).current_dir(repository()).status();
    assert!(status.expect("cargo runs").success(), "the library could not be built");
    target.join(if release { "release" } else { "debug" }).join(NAME)
}

/// The directory of the shared library, where programs are compiled too.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
        fs::create_dir_all(&directory).unwrap();
        done(Command::new(here().join("link.sh")).arg(archive()).arg(&directory));
        directory
    })
}

/// Compiles a program with the header, and links it with the library.
fn compiled(compiler: &str, source: &str, options: &[&str], name: &str) -> PathBuf {
    let program = library().join(name);
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(options);
    command.arg("-I").arg(here()).arg("-o").arg(&program).arg(here().join(source));
    command.arg("-L").arg(library()).arg("-loverspill");
    done(command.arg(format!("-Wl,-rpath,{}", library().display())));
    program
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn the_header_is_what_the_definitions_say() {
    let config = Config::from_file(here().join("cbindgen.toml")).expect("it can be read");
    let sources = ["error.rs", "options.rs", "pools.rs", "calls.rs"];
    let all = sources.iter().fold(Builder::new().with_config(config), |builder, source| {
        builder.with_src(here().join("src").join(source))
    });
    let mut made = Vec::new();
    all.generate().expect("the definitions can be read").write(&mut made);
    let made = String::from_utf8(made).expect("a header is text");
    let path = here().join("overspill.h");
    if std::env::var_os("OVERSPILL_WRITE_HEADER").is_some() {
        fs::write(&path, &made).expect("the header can be written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == kept,
        "overspill.h is not what the definitions say: OVERSPILL_WRITE_HEADER=1 cargo test -p \
         overspill-c header"
    );
}

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(here().join("overspill.h")).unwrap();
    let code = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/', '#']));
    let words = code.flat_map(|line| line.split([' ', '*']));
    let functions = words.filter_map(|word| word.split_once('(').map(|(name, _)| name));
    functions.filter(|name| name.starts_with("overspill_")).map(str::to_owned).collect()
}

#[test]
fn the_library_shows_what_the_header_declares_with_its_version() {
    let shared = library().join("liboverspill.so.0");
    let symbols = done(Command::new("nm").args(["-D", "--defined-only"]).arg(&shared)).stdout;
    let shown = symbols.lines().filter_map(|line| line.split_whitespace().last());
    let declared = declared();
    let versioned = declared.iter().map(|name| format!("{name}@@OVERSPILL_0.1"));
    let expected: BTreeSet<_> = versioned.chain(["OVERSPILL_0.1".to_owned()]).collect();
    assert!(declared.len() > 15, "{declared:?}");
    assert_eq!(shown.map(str::to_owned).collect::<BTreeSet<_>>(), expected);
    let dynamic = done(Command::new("readelf").arg("-dW").arg(&shared)).stdout;
    assert!(dynamic.contains("Library soname: [liboverspill.so.0]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

/// Runs the suite in both deliveries.
fn suite(program: &Path) {
    for delivery in ["signal", "thread"] {
        let room = SCRATCH.room(&format!("{}-{delivery}", program.file_name().unwrap().display()));
        let mut command = Command::new(program);
        // The engine of a pool that was closed stays: others might still look at it.
        clean(command.arg(&room.path).arg(delivery)).env("ASAN_OPTIONS", "detect_leaks=0");
        let outcome = run(&mut command, TIME_LIMIT);
        if outcome.status == NO_USERFAULTFD {
            skipped(&format!("{delivery}: {}", outcome.stderr));
            continue;
        }
        let said = (outcome.status, outcome.stdout.as_str(), outcome.stderr.as_str());
        assert_eq!(said, (0, "done\n", ""), "{} {delivery}", program.display());
    }
}

#[test]
fn every_call_does_what_it_says() {
    suite(&compiled("cc", "tests/suite.c", &[], "suite"));
}

#[test]
fn every_call_keeps_to_its_memory() {
    let sanitizer = ["-fsanitize=address", "-fno-omit-frame-pointer"];
    let probe = library().join("asan");
    let source = library().join("asan.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let built = Command::new("cc").args(sanitizer).arg("-o").arg(&probe).arg(&source).output();
    let runs = || run(&mut Command::new(&probe), TIME_LIMIT).status == 0;
    if !built.is_ok_and(|output| output.status.success()) || !runs() {
        return skipped("there is no AddressSanitizer");
    }
    suite(&compiled("cc", "tests/suite.c", &sanitizer, "suite-asan"));
}

#[test]
fn the_static_library_does_the_same() {
    let program = library().join("suite-static");
    let mut command = Command::new("cc");
    command.args(["-O1", "-g", "-pthread", "-I"]).arg(here()).arg("-o").arg(&program);
    command.arg(here().join("tests/suite.c")).arg(archive());
    done(command.args(["-lgcc_s", "-ldl", "-lm"]));
    suite(&program);
}

#[test]
fn without_userfaultfd_there_is_a_sentence() {
    let program = compiled("cc", "tests/suite.c", &[], "suite-without");
    let mut command = Command::new(program);
    clean(command.arg("/var/tmp")).env("OVERSPILL_SIMULATE", "no-uffd");
    let outcome = run(&mut command, TIME_LIMIT);
    assert_eq!(outcome.status, NO_USERFAULTFD, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no userfaultfd"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("overspill probe"), "{}", outcome.stderr);
}

#[test]
fn beside_another_engine_there_is_a_sentence() {
    let program = compiled("cc", "tests/suite.c", &[], "suite-beside");
    let mut command = Command::new(program);
    // As in a job; the loader passes over a library that is not there.
    clean(command.arg("/var/tmp"))
        .env("LD_PRELOAD", "/none/liboverspill_preload.so")
        .env("OVERSPILL_FAULT", "signal");
    let outcome = run(&mut command, TIME_LIMIT);
    assert_eq!(outcome.status, 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("run it with --fault thread"), "{}", outcome.stderr);
}

/// Pieces of C in the page of the guide, each a function of a program that has what it speaks of.
#[test]
fn what_the_guide_shows_compiles() {
    const KNOWN: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
                         #include <overspill.h>\n\
                         overspill_pool *pool; int fd; char *buffer; size_t size;\n";
    let page = fs::read_to_string(repository().join("docs/guide/c.md")).unwrap();
    let pieces: Vec<&str> = page.split("```c\n").skip(1).map(fence).collect();
    assert!(pieces.len() >= 2, "{} pieces", pieces.len());
    let functions = pieces.iter().enumerate().map(|(number, piece)| {
        let code = piece.replace("#include <overspill.h>\n", "");
        format!("void piece{number}(void) {{\n{code}}}\n")
    });
    let source = library().join("pieces.c");
    fs::write(&source, KNOWN.to_owned() + &functions.collect::<String>()).unwrap();
    let mut command = Command::new("cc");
    command.args(["-fsyntax-only", "-std=c11", "-Wall", "-Wextra", "-Werror"]);
    done(command.args(["-Wno-unused-variable", "-I"]).arg(here()).arg(source));
}

/// What stands before the end of a block of code.
fn fence(rest: &str) -> &str {
    rest.split_once("```").expect("a block of code has an end").0
}

fn example(program: &Path, says: &str) {
    let room = SCRATCH.room(&format!("{}-swap", program.file_name().unwrap().display()));
    let mut command = Command::new(program);
    let outcome = run(clean(command.arg(EXAMPLES_MIB).arg(&room.path)), TIME_LIMIT);
    if outcome.stderr.contains("no userfaultfd") {
        return skipped(&outcome.stderr);
    }
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    assert!(outcome.stdout.contains(says), "{}", outcome.stdout);
}

#[test]
fn the_example_in_c_runs() {
    let program = compiled("cc", "examples/larger_than_ram.c", &["-std=c11"], "larger_than_ram");
    example(&program, "the sum of 64 MiB in 16 MiB is right");
}

#[test]
fn the_example_in_cxx_runs() {
    if !is_there("c++") {
        return skipped("there is no C++ compiler (c++)");
    }
    let program = compiled("c++", "examples/pool_resource.cc", &["-std=c++17"], "pool_resource");
    example(&program, "6291456 values sorted and 167772 names found in 16 MiB");
}
