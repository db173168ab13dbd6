//! Completions of bash, zsh and fish.

use crate::definition::Installed;
use clap::Command;
use clap_complete::{Shell, generate};

/// Where each shell looks below the prefix.
const PLACES: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/overspill"),
    (Shell::Zsh, "share/zsh/site-functions/_overspill"),
    (Shell::Fish, "share/fish/vendor_completions.d/overspill.fish"),
];

/// What follows `--` is a command line of its own.
const BASH_COMMAND: &str = include_str!("command.bash");

/// The completions of all shells.
pub fn all(mut command: Command) -> Vec<Installed> {
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
