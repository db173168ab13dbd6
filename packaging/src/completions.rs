//! Completions of bash, zsh and fish.

use crate::definition::Installed;
use clap::Command;
use clap::builder::PossibleValuesParser;
use clap_complete::{Shell, generate};
use overspill::config::SETTINGS;

/// Where each shell looks below the prefix.
const PLACES: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/overspill"),
    (Shell::Zsh, "share/zsh/site-functions/_overspill"),
    (Shell::Fish, "share/fish/vendor_completions.d/overspill.fish"),
];

/// What follows `--` is a command line of its own.
const BASH_COMMAND: &str = include_str!("command.bash");

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
    let mut command = command.mut_subcommand("run", |run| {
        run.mut_arg("set", |set| set.value_parser(PossibleValuesParser::new(settings())))
    });
    let mut write = |(shell, path): (Shell, &str)| {
        let mut text = Vec::new();
        generate(shell, &mut command, "overspill", &mut text);
        if shell == Shell::Bash {
            text.extend(BASH_COMMAND.bytes());
        }
        (path.to_owned(), text)
    };
    PLACES.map(&mut write).into()
}
