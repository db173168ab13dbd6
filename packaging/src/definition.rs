//! The command's definition, less what users do not see, and what is made of it.

use clap::Command;

/// A file, by its path below the prefix, and what is in it.
pub type Installed = (String, Vec<u8>);

/// The command with the subcommands that its help lists.
pub fn shown() -> Command {
    let all = overspill_cli::definition();
    let about = all.get_about().cloned().unwrap_or_default();
    let long_about = all.get_long_about().cloned().unwrap_or_default();
    let mut shown = Command::new("overspill")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .long_about(long_about)
        .subcommand_required(true)
        .subcommand_value_name("COMMAND")
        .subcommand_help_heading("COMMANDS")
        .disable_help_subcommand(true)
        .subcommands(all.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned());
    shown.build();
    shown
}
