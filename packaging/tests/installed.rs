//! What is installed: manual pages that say everything, completions that complete, and files that
//! come and go with `make install` and `make uninstall`.

use clap::Command as Definition;
use overspill::config::SETTINGS;
use overspill_tests::process::{Outcome, run};
use overspill_tests::scratch::Room;
use overspill_tests::{Scratch, TIME_LIMIT, binary, clean, overspill, repository, skipped};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));
const BASH: &str = "share/bash-completion/completions/overspill";
const FISH: &str = "share/fish/vendor_completions.d/overspill.fish";

/// A directory with the pages and completions in it.
fn generated(name: &str) -> Room {
    let room = SCRATCH.room(name);
    done(Command::new(env!("CARGO_BIN_EXE_overspill-pages")).arg(&room.path));
    room
}

/// Runs a command that has to succeed.
fn done(command: &mut Command) -> Outcome {
    let outcome = run(clean(command), TIME_LIMIT);
    assert_eq!(outcome.status, 0, "{command:?}: {}{}", outcome.stdout, outcome.stderr);
    outcome
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// The subcommands that users see.
fn subcommands() -> Vec<Definition> {
    let mut definition = overspill_cli::definition();
    definition.build();
    let shown = definition.get_subcommands().filter(|command| !command.is_hide_set());
    shown.filter(|command| command.get_name() != "help").cloned().collect()
}

/// The source of a page, with nothing escaped.
fn page(room: &Room, name: &str, section: u8) -> String {
    let path = room.path.join(format!("share/man/man{section}/{name}.{section}"));
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    ["\\fB", "\\fI", "\\fR", "\\&"]
        .iter()
        .fold(text, |text, font| text.replace(font, ""))
        .replace("\\-", "-")
}

/// The files below a directory, seen from it.
fn files(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = PathBuf::from(entry.file_name());
        if entry.file_type().expect("it is there").is_dir() {
            found.extend(files(&entry.path()).into_iter().map(|below| name.join(below)));
        } else {
            found.insert(name);
        }
    }
    found
}

#[test]
fn every_command_option_and_setting_is_in_a_page() {
    let room = generated("pages");
    let all = page(&room, "overspill", 1);
    for command in subcommands() {
        let name = format!("overspill-{}", command.get_name());
        assert!(all.contains(&format!("{name}(1)")), "overspill(1) names {name}");
        let own = page(&room, &name, 1);
        for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"] {
            let line = format!(".SH {heading}");
            let has = own.lines().any(|known| known.replace('"', "") == line);
            assert!(has, "{name}: there is no {heading}");
        }
        for option in command.get_arguments() {
            let long = option.get_long().map(|long| format!("--{long}"));
            let short = option.get_short().map(|short| format!("-{short}"));
            for option in long.into_iter().chain(short) {
                assert!(own.contains(&option), "{name}: there is no {option}");
            }
            if let Some(variable) = option.get_env() {
                assert!(own.contains(variable.to_str().unwrap()), "{name}: {variable:?}");
            }
        }
    }
    let settings = page(&room, "overspill-settings", 7);
    for setting in SETTINGS {
        assert!(settings.contains(&format!(".TP\n{}=", setting.name())), "{setting:?}");
    }
    let torture = room.path.join("share/man/man1/overspill-torture.1");
    assert!(!torture.exists() && !all.contains("torture"), "it is not installed");
}

#[test]
fn what_a_page_refers_to_below_is_there() {
    let room = generated("references");
    let mut seen = 0;
    for command in subcommands() {
        let own = page(&room, &format!("overspill-{}", command.get_name()), 1);
        let words = own.split_whitespace().collect::<Vec<_>>().join(" ");
        for (at, _) in words.match_indices("\" below") {
            let heading = words[..at].rsplit('"').next().unwrap();
            let is_there = own.lines().any(|line| line.starts_with(heading));
            assert!(is_there, "overspill-{}(1): there is no {heading}", command.get_name());
            seen += 1;
        }
    }
    assert!(seen >= 2, "{seen} references");
}

#[test]
fn pages_are_without_mistakes() {
    if !is_there("groff") {
        return skipped("there is no groff");
    }
    let room = generated("groff");
    for path in files(&room.path.join("share/man")) {
        let path = room.path.join("share/man").join(path);
        let outcome = done(Command::new("groff").args(["-man", "-ww", "-z"]).arg(&path));
        assert_eq!(outcome.stderr, "", "{}", path.display());
    }
}

/// What bash makes of the last of `words`, by the completion in `script`.
fn completed(script: &Path, words: &[&str]) -> Vec<String> {
    const COMPLETE: &str = "\
        source \"$1\"; shift
        COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_LINE=$*; COMP_POINT=${#COMP_LINE}
        compopt() { :; }
        handler=$(complete -p overspill | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        $handler overspill \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", COMPLETE, "bash"]).arg(script).args(words);
    done(&mut bash).stdout.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    if !is_there("bash") {
        return skipped("there is no bash");
    }
    let room = generated("bash");
    let script = room.path.join(BASH);
    done(Command::new("bash").arg("-n").arg(&script));
    let completed = |words: &[&str]| completed(&script, words);
    assert_eq!(completed(&["overspill", "ru"]), ["run"]);
    assert_eq!(completed(&["overspill", "swapo"]), ["swapon", "swapoff"]);
    assert_eq!(completed(&["overspill", "run", "--mem"]), ["--memory"]);
    assert_eq!(completed(&["overspill", "run", "--fault", ""]), ["auto", "thread", "signal"]);
    assert_eq!(completed(&["overspill", "run", "--fault", "s"]), ["signal"]);
    let mut checked = [0, 0];
    for command in subcommands() {
        let name = command.get_name();
        if command.get_arguments().any(|option| option.get_long() == Some("set")) {
            let settings = completed(&["overspill", name, "--set", "oom"]);
            assert_eq!(settings, ["oom=sigbus", "oom=kill"], "{name}");
            checked[0] += 1;
        }
        if command.get_arguments().any(|words| words.is_trailing_var_arg_set()) {
            let programs = completed(&["overspill", name, "--", "bas"]);
            assert!(programs.contains(&"bash".to_owned()), "{name}: {programs:?}");
            checked[1] += 1;
        }
    }
    assert_eq!(checked, [2, 2], "run and size");
    assert!(!completed(&["overspill", ""]).contains(&"torture".to_owned()));
}

#[test]
fn fish_completes_commands_options_and_command_lines() {
    if !is_there("fish") {
        return skipped("there is no fish");
    }
    let room = generated("fish-runs");
    let script = room.path.join(FISH);
    let completed = |line: &str| {
        let mut fish = Command::new("fish");
        fish.args(["--no-config", "-c", "source $argv[1]; complete -C $argv[2]"]);
        let outcome = done(fish.arg(&script).arg(line));
        let words = outcome.stdout.lines().map(|line| line.split('\t').next().unwrap().to_owned());
        words.collect::<Vec<String>>()
    };
    assert_eq!(completed("overspill swapo"), ["swapoff", "swapon"]);
    assert_eq!(completed("overspill run --fault "), ["auto", "signal", "thread"]);
    for name in ["run", "size"] {
        let programs = completed(&format!("overspill {name} -- ech"));
        assert!(programs.contains(&"echo".to_owned()), "{name}: {programs:?}");
        let line = format!("overspill {name} --memory 64M -- ls /usr/sha");
        assert_eq!(completed(&line), ["/usr/share/"], "{name}");
    }
    assert!(!completed("overspill stat ech").contains(&"echo".to_owned()));
}

#[test]
fn other_shells_have_every_command_and_option() {
    let room = generated("shells");
    for path in ["share/zsh/site-functions/_overspill", FISH] {
        let script = room.path.join(path);
        let text = fs::read_to_string(&script).unwrap();
        for command in subcommands() {
            assert!(text.contains(command.get_name()), "{path}: {}", command.get_name());
            for long in command.get_arguments().filter_map(|option| option.get_long()) {
                assert!(text.contains(long), "{path}: {long}");
            }
        }
        let shell = if path.contains("zsh") { "zsh" } else { "fish" };
        if is_there(shell) {
            done(Command::new(shell).arg("-n").arg(&script));
        } else {
            skipped(&format!("there is no {shell}"));
        }
    }
}

/// `make TARGET` with what was built for this test, as where cargo is out of reach.
fn make(room: &Room, target: &str) -> Outcome {
    let built = binary(&SCRATCH).parent().expect("it lies in a directory").to_owned();
    // The pages' generator is of the same profile as this test, which the binary need not be.
    let release = room.path.join("built");
    fs::create_dir_all(&release).unwrap();
    for (name, from) in [
        ("overspill", built.join("overspill")),
        ("liboverspill_preload.so", built.join("liboverspill_preload.so")),
        ("liboverspill_c.a", built.join("liboverspill_c.a")),
        ("overspill-pages", env!("CARGO_BIN_EXE_overspill-pages").into()),
    ] {
        let _ = std::os::unix::fs::symlink(from, release.join(name));
    }
    let variable = |name: &str, path: &str| format!("{name}={}", room.path.join(path).display());
    done(
        Command::new("make")
            .current_dir(repository())
            .args(["--no-print-directory", target, "CARGO=no-cargo", "PREFIX=/usr"])
            .arg(variable("RELEASE", "built"))
            .arg(variable("TREE", "tree"))
            .arg(variable("DESTDIR", "root")),
    )
}

/// A program in C is built with what pkg-config says, and runs.
fn links_with_what_is_installed(root: &Path) {
    if !is_there("pkg-config") {
        return skipped("there is no pkg-config");
    }
    let said = done(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "overspill"])
            .env("PKG_CONFIG_PATH", root.join("usr/lib/pkgconfig")),
    );
    let program = root.join("version");
    let source = program.with_extension("c");
    fs::write(
        &source,
        "#include <overspill.h>\n#include <stdio.h>\n\
         int main(void) { puts(overspill_version()); }\n",
    )
    .unwrap();
    let mut cc = Command::new("cc");
    cc.arg(&source).arg("-o").arg(&program).args(said.stdout.split_whitespace());
    done(&mut cc);
    let runs = done(Command::new(&program).env("LD_LIBRARY_PATH", root.join("usr/lib")));
    assert_eq!(runs.stdout.trim(), env!("CARGO_PKG_VERSION"));
    fs::remove_file(program).unwrap();
    fs::remove_file(source).unwrap();
}

#[test]
fn what_is_installed_works_and_can_be_removed() {
    let room = SCRATCH.room("install");
    make(&room, "tree");
    make(&room, "install");
    let root = room.path.join("root");
    let installed = files(&root);
    for path in [
        "usr/bin/overspill",
        "usr/lib/overspill/liboverspill_preload.so",
        "usr/lib/liboverspill.so.0",
        "usr/lib/liboverspill.so",
        "usr/lib/liboverspill.a",
        "usr/lib/pkgconfig/overspill.pc",
        "usr/include/overspill.h",
        "usr/share/man/man3/overspill.3",
        "usr/share/man/man1/overspill.1",
        "usr/share/man/man1/overspill-run.1",
        "usr/share/man/man7/overspill-settings.7",
        "usr/share/bash-completion/completions/overspill",
        "usr/share/zsh/site-functions/_overspill",
        "usr/share/fish/vendor_completions.d/overspill.fish",
    ] {
        assert!(installed.contains(Path::new(path)), "{path} is missing: {installed:#?}");
    }
    assert!(installed.iter().all(|path| path.starts_with("usr")), "{installed:#?}");
    if overspill(&SCRATCH).is_some() {
        let command = root.join("usr/bin/overspill");
        let outcome =
            done(Command::new(command).args(["run", "--memory", "64M", "--", "echo", "it works"]));
        assert_eq!(outcome.stdout, "it works\n");
    }
    links_with_what_is_installed(&root);
    fs::write(root.join("usr/bin/other"), "").unwrap();
    make(&room, "uninstall");
    assert_eq!(files(&root), BTreeSet::from([PathBuf::from("usr/bin/other")]));
    assert!(!root.join("usr/lib/overspill").exists(), "the library's directory is ours");
}
