//! Completions of bash, zsh and fish.

use crate::definition::Installed;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::{Shell, generate};
use overspill::config::SETTINGS;

/// Where each shell looks below the prefix.
const PLACES: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/overspill"),
    (Shell::Zsh, "share/zsh/site-functions/_overspill"),
    (Shell::Fish, "share/fish/vendor_completions.d/overspill.fish"),
];

/// What follows `--` is a command line of its own, for the subcommands that stand for SUBCOMMANDS.
/// In zsh it is by itself.
fn command_line(shell: Shell, running: &[&str]) -> String {
    let (script, between) = match shell {
        Shell::Bash => (include_str!("command.bash"), "|"),
        Shell::Fish => (include_str!("command.fish"), " "),
        _ => ("", ""),
    };
    script.replace("SUBCOMMANDS", &running.join(between))
}

/// The subcommands that run a command line.
fn running(command: &Command) -> Vec<&str> {
    let runs = |sub: &&Command| sub.get_arguments().any(Arg::is_trailing_var_arg_set);
    command.get_subcommands().filter(runs).map(Command::get_name).collect()
}

/// What an argument can be, where only a shell is to know it.
fn offered(arg: Arg) -> Arg {
    if arg.get_long() == Some("set") {
        arg.value_parser(PossibleValuesParser::new(settings()))
    } else if arg.is_trailing_var_arg_set() {
        arg.value_hint(ValueHint::CommandWithArguments)
    } else {
        arg
    }
}

/// Each setting with each word that it takes. What is a pattern, such as a range, is not offered.
///
/// They stay until the program ends, as clap wants texts of definitions to.
fn settings() -> Vec<&'static str> {
    let is_word = |value: &&str| {
        !value.contains("..") && !value.contains(|c: char| c == '[' || c.is_ascii_uppercase())
    };
    let mut words = Vec::new();
    for setting in SETTINGS {
        let of_one = setting.values().into_iter().filter(is_word);
        words.extend(of_one.map(|word| &*format!("{}={word}", setting.name()).leak()));
    }
    words
}

/// The completions of all shells.
pub fn all(command: Command) -> Vec<Installed> {
    let command_lines = PLACES.map(|(shell, _)| command_line(shell, &running(&command)));
    let mut command = command.mut_subcommands(|sub| sub.mut_args(offered));
    let places = PLACES.into_iter().zip(command_lines);
    let write = |((shell, path), command_line): ((Shell, &str), String)| {
        let mut text = Vec::new();
        generate(shell, &mut command, "overspill", &mut text);
        text.extend(command_line.bytes());
        (path.to_owned(), text)
    };
    places.map(write).collect()
}
