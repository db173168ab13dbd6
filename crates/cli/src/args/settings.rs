//! The settings that `--set` of `overspill run` takes, as text: for its help, for
//! `overspill settings` and for the documents.

use overspill::config::{Config, SETTINGS};

/// Columns of a terminal that the list fits.
const WIDTH: usize = 80;
/// By how much a meaning is indented.
const INDENT: usize = 6;

/// Each setting with its values and its default, and below it the meaning.
pub fn list() -> String {
    let default = Config::default();
    let mut list = String::new();
    for setting in SETTINGS {
        let (name, values) = (setting.name(), setting.values().join("|"));
        list += &format!("  {name}={values} [default: {}]\n", setting.show(&default));
        for line in wrapped(setting.meaning(), WIDTH - INDENT) {
            list += &format!("{:INDENT$}{line}\n", "");
        }
    }
    list
}

/// The same as a table of a document.
pub fn table() -> String {
    let default = Config::default();
    let mut table = "| setting | values | default | meaning |\n|---|---|---|---|\n".to_owned();
    for setting in SETTINGS {
        let values: Vec<_> = setting.values().iter().map(|value| format!("`{value}`")).collect();
        table += &format!(
            "| `{}` | {} | `{}` | {} |\n",
            setting.name(),
            values.join(", "),
            setting.show(&default),
            setting.meaning()
        );
    }
    table
}

/// The words of a text in lines of at most `width` columns.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        match line.len() {
            0 => *line = word.to_owned(),
            len if len + 1 + word.len() <= width => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the documents say what this module prints.
    const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/settings.md");

    #[test]
    fn the_guide_has_the_table() {
        let document = std::fs::read_to_string(DOCUMENT).unwrap();
        let (_, rest) = document.split_once("<!-- settings: begin -->\n").unwrap();
        let (written, _) = rest.split_once("<!-- settings: end -->").unwrap();
        assert_eq!(
            written.trim(),
            table().trim(),
            "docs/guide/settings.md is out of date: put what `overspill settings --markdown` \
             prints between its markers"
        );
    }

    #[test]
    fn the_list_fits_a_terminal_and_has_every_setting() {
        let list = list();
        assert!(list.lines().all(|line| line.len() <= WIDTH), "{list}");
        for setting in SETTINGS {
            assert!(list.contains(&format!("  {}=", setting.name())), "{setting:?}");
        }
        assert!(list.contains("  out=auto|move|drop [default: auto]\n      How pages leave"));
    }

    #[test]
    fn words_are_wrapped_where_the_width_ends() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("one two three", 6), ["one", "two", "three"]);
    }
}
