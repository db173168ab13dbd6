//! Manual pages: one of the command, one of each subcommand, one of the settings, one of the C
//! interface.

use crate::definition::Installed;
use crate::interface;
use crate::roff::{escaped, is_example, item, paragraph, paragraphs, section, with_bold};
use crate::texts;
use clap::Command;
use clap_mangen::Man;
use overspill::config::{Config, SETTINGS};
use std::io;

const SETTINGS_PAGE: &str = "overspill-settings";
const INTERFACE_PAGE: &str = "overspill";
const SOURCE: &str = concat!("overspill ", env!("CARGO_PKG_VERSION"));

/// All pages. `command` is built.
pub fn all(command: &Command) -> io::Result<Vec<Installed>> {
    let mut pages = vec![page(command, command)?];
    for subcommand in command.get_subcommands() {
        pages.push(page(command, subcommand)?);
    }
    pages.push((path(SETTINGS_PAGE, 7), settings(command).into_bytes()));
    pages.push((path(INTERFACE_PAGE, 3), interface(command).into_bytes()));
    Ok(pages)
}

fn path(name: &str, section: u8) -> String {
    format!("share/man/man{section}/{name}.{section}")
}

/// The paragraphs of help, by the section where they go.
#[derive(Default)]
struct Sections {
    description: String,
    notes: String,
    status: String,
    environment: String,
    examples: String,
}

impl Sections {
    /// Adds what is told before the options, without its first line, which is the name's; or what
    /// is told after them.
    fn add(&mut self, help: &str, is_before: bool) {
        for text in paragraphs(help).skip(usize::from(is_before)) {
            if let Some(rest) = text.strip_prefix("Exit status") {
                self.status += &paragraph(&sentence(rest));
            } else if let Some(rest) = text.strip_prefix("Environment") {
                self.environment += &paragraph(&sentence(rest));
            } else if text.starts_with("Settings (--set") {
                self.notes += &paragraph("Settings (--set KEY=VALUE): see overspill-settings(7).");
            } else if is_example(text) {
                self.examples += &paragraph(text);
            } else if is_before {
                self.description += &paragraph(text);
            } else {
                self.notes += &paragraph(text);
            }
        }
    }
}

/// What follows the words that say what it is about, as a sentence.
fn sentence(rest: &str) -> String {
    let rest = rest.trim_start_matches([':', ',', ' ', '\n']);
    let (first, others) = rest.split_at(rest.chars().next().map_or(0, char::len_utf8));
    first.to_uppercase() + others
}

/// The page of `command`, which is `all` or a subcommand of it.
fn page(all: &Command, command: &Command) -> io::Result<Installed> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let long_about = command.get_long_about().map_or(about.clone(), ToString::to_string);
    let notes = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let more = texts::of(&name);
    let mut sections = Sections::default();
    sections.add(&long_about, true);
    sections.add(&notes, false);
    sections.add(more.notes, false);

    if sections.description.is_empty() {
        sections.description = paragraph(&format!("{about}."));
    }
    let mut text = title(&name, 1, "User Commands");
    text += &section("NAME", &format!("{} \\- {}\n", escaped(&name), in_name(&about)));
    text += &section("SYNOPSIS", &format!("{}\n", escaped(&usage(command))));
    text += &section("DESCRIPTION", &sections.description);
    text += &options(command)?;
    let see_also = see_also(all, &name, 1);
    for (heading, source) in [
        ("NOTES", &sections.notes),
        ("EXIT STATUS", &sections.status),
        ("ENVIRONMENT", &sections.environment),
        ("FILES", &more.files.iter().map(|(term, meaning)| item(term, meaning)).collect()),
        ("EXAMPLES", &sections.examples),
        ("SEE ALSO", &see_also),
    ] {
        text += &section(heading, source);
    }
    Ok((path(&name, 1), text.into_bytes()))
}

/// How a page begins.
fn title(name: &str, section: u8, manual: &str) -> String {
    format!(".TH \"{}\" {section} \"\" \"{SOURCE}\" \"{manual}\"\n", escaped(name))
}

/// What a command does, as the line of names has it: other programs read that, without fonts.
fn in_name(about: &str) -> String {
    let (first, rest) = about.split_at(about.chars().next().map_or(0, char::len_utf8));
    escaped(&(first.to_lowercase() + rest).replace('`', ""))
}

/// The usage that the command's help has.
fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    usage.trim_start_matches("Usage:").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The subcommands of a command, and its options.
fn options(command: &Command) -> io::Result<String> {
    let man = Man::new(command.clone());
    let mut source = Vec::new();
    if command.has_subcommands() {
        man.render_subcommands_section(&mut source)?;
    }
    man.render_options_section(&mut source)?;
    let source = String::from_utf8(source).map_err(io::Error::other)?;
    // Shorter, and apart from what the option does.
    let source = source
        .replace("May also be specified with the ", ".sp\nVariable: ")
        .replace(" environment variable. ", "");
    Ok(with_bold(&source))
}

/// The other pages.
fn see_also(all: &Command, name: &str, own: u8) -> String {
    let subcommands = all.get_subcommands().filter_map(Command::get_display_name);
    let pages = ["overspill"].into_iter().chain(subcommands).map(|page| (page, 1));
    let others = pages.chain([(INTERFACE_PAGE, 3), (SETTINGS_PAGE, 7)]);
    let others = others.filter(|page| *page != (name, own));
    let names: Vec<_> = others.map(|(page, section)| format!("`{page}`({section})")).collect();
    let guide = concat!(env!("CARGO_PKG_REPOSITORY"), "/tree/main/docs/guide");
    // Names are not divided.
    let names = paragraph(&names.join(", "));
    format!(".nh\n.ad l\n{names}.hy\n.ad b\n") + &paragraph(&format!("The guide: {guide}"))
}

/// The page of the settings.
fn settings(all: &Command) -> String {
    let default = Config::default();
    let mut list = String::new();
    for setting in SETTINGS {
        let (name, values) = (setting.name(), setting.values().join("|"));
        list += &format!(
            ".TP\n\\fB{}\\fR={} [default: {}]\n{}\n",
            escaped(name),
            escaped(&values),
            escaped(&setting.show(&default)),
            escaped(setting.meaning())
        );
    }
    let prose = |text: &str| paragraphs(text).map(paragraph).collect::<String>();
    title(SETTINGS_PAGE, 7, "Miscellaneous Information")
        + &section("NAME", "overspill\\-settings \\- settings of the engine of overspill\n")
        + &section("SYNOPSIS", &texts::SETTINGS_SYNOPSIS.map(synopsis).join(".br\n"))
        + &section("DESCRIPTION", &prose(texts::SETTINGS_DESCRIPTION))
        + &section("SETTINGS", &list)
        + &section("EXAMPLES", &prose(texts::SETTINGS_EXAMPLES))
        + &section("SEE ALSO", &see_also(all, SETTINGS_PAGE, 7))
}

/// The page of the C interface.
fn interface(all: &Command) -> String {
    title(INTERFACE_PAGE, 3, "Library Functions Manual")
        + &section("NAME", &format!("{INTERFACE_PAGE} \\- {}\n", texts::INTERFACE_NAME))
        + &interface::sections()
        + &section("SEE ALSO", &see_also(all, INTERFACE_PAGE, 3))
}

fn synopsis(line: &str) -> String {
    escaped(line) + "\n"
}
