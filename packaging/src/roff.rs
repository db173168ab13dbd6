//! Text of the command's help as the source of a manual page.
//!
//! Help is paragraphs. What is indented in one is an example, or a list where what follows a term
//! stands in a column of its own. What is in backticks is bold.

use std::fmt::Write;

/// Text that no character of is taken for a request or an escape; with what is in backticks bold.
pub fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let escaped = with_bold(&text);
    if escaped.starts_with('.') { format!("\\&{escaped}") } else { escaped }
}

/// The source of a page with what is in backticks bold.
pub fn with_bold(source: &str) -> String {
    let parts = source.split('`').enumerate();
    parts
        .map(|(at, part)| if at % 2 == 1 { format!("\\fB{part}\\fR") } else { part.into() })
        .collect()
}

/// Paragraphs of help.
pub fn paragraphs(help: &str) -> impl Iterator<Item = &str> {
    help.split("\n\n").map(|paragraph| paragraph.trim_matches('\n')).filter(|text| !text.is_empty())
}

/// Whether a paragraph is nothing but an example.
pub fn is_example(paragraph: &str) -> bool {
    paragraph.lines().all(is_indented)
}

fn is_indented(line: &str) -> bool {
    line.starts_with(' ')
}

/// A paragraph of help.
pub fn paragraph(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut source = String::new();
    for block in lines.chunk_by(|line, next| is_indented(line) == is_indented(next)) {
        source += &if !is_indented(block[0]) {
            format!(".PP\n{}\n", escaped(&block.join(" ")))
        } else if is_list(block) {
            list(block)
        } else {
            example(block)
        };
    }
    source
}

/// By how much the lines of a block are indented at least.
fn indent(block: &[&str]) -> usize {
    let of_line = |line: &&str| line.len() - line.trim_start().len();
    block.iter().map(of_line).min().unwrap_or(0)
}

fn is_list(block: &[&str]) -> bool {
    let indent = indent(block);
    block.iter().any(|line| line[indent..].trim_end().contains("  "))
}

fn list(block: &[&str]) -> String {
    let indent = indent(block);
    let mut source = String::new();
    for line in block {
        let line = &line[indent..];
        if is_indented(line) {
            writeln!(source, "{}", escaped(line.trim())).expect("strings take all");
        } else {
            let (term, meaning) = line.split_once("  ").unwrap_or((line, ""));
            source += &item(term, meaning.trim());
        }
    }
    source
}

/// An item of a list.
pub fn item(term: &str, meaning: &str) -> String {
    let meaning = if meaning.is_empty() { String::new() } else { escaped(meaning) + "\n" };
    format!(".TP\n\\fB{}\\fR\n{meaning}", escaped(term))
}

fn example(block: &[&str]) -> String {
    let indent = indent(block);
    let lines: String = block.iter().map(|line| escaped(&line[indent..]) + "\n").collect();
    format!(".PP\n.RS 4\n.nf\n{lines}.fi\n.RE\n")
}

/// A section.
pub fn section(heading: &str, source: &str) -> String {
    if source.is_empty() { String::new() } else { format!(".SH \"{heading}\"\n{source}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_indented_is_an_example_or_a_list() {
        assert_eq!(
            paragraph("Say it:\n\n  $ x --y").lines().next(),
            Some(".PP"),
            "paragraphs are told apart by their caller"
        );
        assert_eq!(paragraph("one\ntwo"), ".PP\none two\n");
        assert_eq!(paragraph("  $ x --y"), ".PP\n.RS 4\n.nf\n$ x \\-\\-y\n.fi\n.RE\n");
        assert_eq!(
            paragraph("These:\n  a b  one\n       two\n  c"),
            ".PP\nThese:\n.TP\n\\fBa b\\fR\none\ntwo\n.TP\n\\fBc\\fR\n"
        );
    }

    #[test]
    fn text_is_no_request() {
        assert_eq!(escaped(".x 'y' \\z"), "\\&.x \\(aqy\\(aq \\ez");
        assert_eq!(escaped("say `a-b` now"), "say \\fBa\\-b\\fR now");
    }
}
